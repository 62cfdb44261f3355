/*
 * io_kernel.cu - device code on a GPU: a kernel of as many thread blocks as its stream has, each of which serves its
 * dev_block as a CPU thread would (dev/io.h), with warps beside that thread that move and sum data (mover.cuh).
 *
 * A block that gives up raises the stream's stop word: kernels behind it end at once, before they touch a queue, until
 * the host has mended what is broken.
 */
#define DEV_MOVERS 1

#include <cuda_runtime.h>
#include <string.h>

extern "C" {
#include "exec/io_kernel.h"
}
#include "exec/mover.cuh"
#include "exec/mover_copy.cuh"
#include "exec/mover_sum.cuh"

static __device__ void io_copy8(void *to, const void *from, uint32_t bytes)
{
#pragma unroll 4
	for (uint32_t i = threadIdx.x; i < bytes / 8; i += IO_THREADS)
		((uint64_t *)to)[i] = ((const volatile uint64_t *)from)[i];
}

static __device__ void io_mover_init(struct dev_mover *m, const struct io_params *p, uint8_t *dyn, uint32_t *header_bad)
{
	memset(m, 0, offsetof(struct dev_mover, full));
	m->n_stages = p->n_stages;
	m->stages = dyn;
	m->header_bad = header_bad;
	for (uint32_t i = 0; i < p->n_stages; i++) {
		mover_bar_init(&m->full[i], 1);
		mover_bar_init(&m->empty[i], IO_SUMMER_WARPS);
	}
	mover_fence();
}

/* The last that the host hears of a block. */
static __device__ void io_exit_put(const struct io_params *p, uint32_t first_open, int rc)
{
	struct io_exit *x = &p->exits[blockIdx.x];

	x->first_open = first_open;
	x->rc = rc;
	x->end = port_now_ns();
	/* Orders all that the block wrote before the word (pairs with the acquire in gpu_end.c). */
	port_store_release32(&x->over, p->launch);
}

/*
 * The block gave up: what it leaves of its steps fails. The movers are through with all that they were given, and the
 * controller reaches none of the engine's memory (data is bounced or in place), so this may be said at once.
 */
static __device__ void io_fail_open(struct dev_block *b, int rc)
{
	if (threadIdx.x == 0)
		for (struct dev_cmd *c = mover_next(b); c; c = mover_next(b))
			if (c->work != DEV_WORK_OUT && c->work != DEV_WORK_HEADERS_OUT)
				dev_cmd_end(b, c);
	__syncthreads();
	for (uint32_t i = b->first_open; i < b->n_steps; i++) {
		struct dev_step *s = &b->steps[i];

		if (threadIdx.x == 0)
			dev_step_fail_open(b, i, rc);
		__syncthreads();
		for (uint32_t e = s->lo + threadIdx.x; dev_step_verifies(s) && e < s->hi; e += IO_THREADS)
			if (!s->plan->results[e] && dev_entry_differs(s, e))
				dev_entry_fail(s, e, -EBADMSG);
	}
	__syncthreads();
}

/* The state that outlives the kernel. */
static __device__ void io_leave(const struct io_params *p, struct dev_block *host, struct dev_block *b, int rc)
{
	for (uint32_t q = 0; q < b->n_qps; q++) {
		host->qp[q].tail = b->qp[q].tail;
		host->qp[q].head = b->qp[q].head;
		host->qp[q].phase = b->qp[q].phase;
		host->qp[q].head_rung = b->qp[q].head_rung;
	}
	b->stats.bounced_bytes += b->mover->moved_bytes;
	b->stats.sum_bytes += b->mover->moved_bytes;
	host->stats = b->stats;
	if (rc)
		atomicExch(p->stop, 1u);
	io_exit_put(p, b->first_open, rc);
}

extern "C" __global__ void __launch_bounds__(IO_THREADS, 1) io_kernel(const __grid_constant__ struct io_params p)
{
	extern __shared__ __align__(128) uint8_t dyn[];
	__shared__ __align__(16) struct dev_block b;
	__shared__ __align__(16) struct wire_ring ring;
	__shared__ struct dev_mover m;
	__shared__ uint32_t stopped;
	__shared__ int failed;
	struct dev_block *host = p.blocks[blockIdx.x];
	uint8_t *at = dyn + p.n_stages * IO_STAGE_BYTES;
	uint32_t t = threadIdx.x;

	if (t == 0) {
		p.exits[blockIdx.x].begin = port_now_ns();
		stopped = port_load_acquire32(p.stop);
		if (stopped)
			io_exit_put(&p, 0, -EINTR);
	}
	__syncthreads();
	if (stopped)
		return;
	io_copy8(&b, host, sizeof(b));
	__syncthreads();
	io_copy8(at, b.cmds, b.n_cmds * (uint32_t)sizeof(struct dev_cmd));
	io_copy8(at + b.n_cmds * (sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8), b.bounce_next,
	         (b.n_bounce + 4u) / 4 * 8);
	io_copy8(&ring, b.ring, sizeof(ring));
	for (uint32_t i = t; i < 2 * b.n_cmds; i += IO_THREADS)
		((uint32_t *)(at + b.n_cmds * (sizeof(struct dev_cmd) + sizeof(struct dev_span))))[i] = 0;
	__syncthreads();
	if (t == 0) {
		uint32_t n = b.n_cmds;

		b.cmds = (struct dev_cmd *)at;
		b.retry = (struct dev_span *)(at + n * sizeof(struct dev_cmd));
		io_mover_init(&m, &p, dyn, (uint32_t *)(at + n * (sizeof(struct dev_cmd) + sizeof(struct dev_span))));
		b.bounce_next = (uint16_t *)(at + n * (sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8));
		b.ring = &ring;
		b.mover = &m;
		b.index = blockIdx.x;
		b.n_blocks = gridDim.x;
		b.clock_ns = p.clock_ns;
		b.map.n = 0;
		dev_steps_begin(&b, p.count);
	}
	__syncthreads();
	for (uint32_t i = t; i < p.count; i += IO_THREADS)
		dev_step_load(&b, p.sq_first, i);
	__syncthreads();
	if (t == 0) {
		int rc = dev_io_serve(&b);

		failed = rc;
		mover_store(&m.stop, 1);
	} else if (t == 32) {
		mover_copier(&b);
	} else if (t >= 64) {
		mover_summer(&b, t - 64);
	}
	__syncthreads();
	if (failed)
		io_fail_open(&b, failed);
	if (t == 0)
		io_leave(&p, host, &b, failed);
}

extern "C" __global__ void io_clock_kernel(struct io_clock *w)
{
	uint64_t start = port_now_ns();

	for (uint32_t i = 1; i <= IO_CLOCK_ROUNDS; i++) {
		while (port_load_acquire32(&w->ask) != i)
			if (port_now_ns() - start > 1000000000ull)
				return;
		w->time = port_now_ns();
		port_store_release32(&w->answer, i);
	}
}
