/*
 * io_kernel.cuh - what the I/O kernel's two shapes share: state comes into shared memory, and goes back.
 */
#ifndef TUTTI_EXEC_IO_KERNEL_CUH
#define TUTTI_EXEC_IO_KERNEL_CUH

#include <stddef.h>
#include <string.h>

#include "dev/io.h"
#include "exec/io_kernel.h"

/* What a launch gives of shared memory behind what is declared. */
#ifndef IO_DYNAMIC
#define IO_DYNAMIC(name) extern __shared__ __align__(128) uint8_t name[]
#endif

static __device__ void io_copy8(void *to, const void *from, uint32_t bytes)
{
#pragma unroll 4
	for (uint32_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
		((uint64_t *)to)[i] = ((const volatile uint64_t *)from)[i];
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

/* A kernel before this one gave up: there is nothing to do. All threads. */
static __device__ int io_stopped(const struct io_params *p, uint32_t *stopped)
{
	if (threadIdx.x == 0) {
		p->exits[blockIdx.x].begin = port_now_ns();
		*stopped = port_load_acquire32(p->stop);
		if (*stopped)
			io_exit_put(p, 0, -EINTR);
	}
	__syncthreads();
	return *stopped != 0;
}

/* Bits of headers that are none, two words a command; see mover.cuh. */
static __device__ uint32_t *io_header_bad(uint8_t *at, uint32_t n_cmds)
{
	return (uint32_t *)(at + n_cmds * (sizeof(struct dev_cmd) + sizeof(struct dev_span)));
}

#if defined(DEV_MOVERS)
/* The steps' plans, as far as there is room. All threads. */
static __device__ void io_plans_near(struct dev_block *b, struct dev_plan *near)
{
	__shared__ struct dev_plan *from[IO_NEAR_PLANS];
	__shared__ uint32_t n;

	if (threadIdx.x == 0) {
		n = 0;
		for (uint32_t i = 0; i < b->n_steps; i++) {
			struct dev_step *s = &b->steps[i];
			uint32_t k = 0;

			while (k < n && from[k] != s->plan)
				k++;
			if (!s->plan || k == IO_NEAR_PLANS)
				continue;
			if (k == n)
				from[n++] = s->plan;
			s->plan = &near[k];
		}
	}
	__syncthreads();
	for (uint32_t k = 0; k < n; k++)
		io_copy8(&near[k], from[k], sizeof(*near));
	__syncthreads();
}
#endif

/* The block's state, laid out in shared memory from `at` on (io_extra_bytes), and its steps. All threads. */
static __device__ void io_begin(const struct io_params *p, struct dev_block *b, struct wire_ring *ring, uint8_t *at)
{
	uint32_t n;

	io_copy8(b, p->blocks[blockIdx.x], sizeof(*b));
	__syncthreads();
	n = b->n_cmds;
	io_copy8(at, b->cmds, n * (uint32_t)sizeof(struct dev_cmd));
	io_copy8(io_header_bad(at, n) + 2 * n, b->bounce_next, (b->n_bounce + 4u) / 4 * 8);
	io_copy8(ring, b->ring, offsetof(struct wire_ring, sq_tail)); /* the tails go on meanwhile */
	for (uint32_t i = threadIdx.x; i < 2 * n; i += blockDim.x)
		io_header_bad(at, n)[i] = 0;
	__syncthreads();
	if (threadIdx.x == 0) {
		b->cmds = (struct dev_cmd *)at;
		b->retry = (struct dev_span *)(at + n * sizeof(struct dev_cmd));
		b->bounce_next = (uint16_t *)(io_header_bad(at, n) + 2 * n);
		b->ring = ring;
		b->index = blockIdx.x;
		b->n_blocks = gridDim.x;
		b->clock_ns = p->clock_ns;
		b->map.n = 0;
		if (p->near)
			b->steps = (struct dev_step *)(at + io_extra_bytes(n, b->n_bounce));
		dev_steps_begin(b, p->count);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < p->count; i += blockDim.x)
		dev_step_load(b, p->sq_first, i);
	__syncthreads();
#if defined(DEV_MOVERS)
	if (p->near)
		io_plans_near(b, (struct dev_plan *)(b->steps + p->count));
#endif
}

/*
 * The block gave up: what it leaves of its steps fails. All work on data that was begun is done, and the controller reaches none of the engine's memory (data is bounced or in place), so this may be said at once.
 */
static __device__ void io_fail_open(struct dev_block *b, int rc)
{
	if (threadIdx.x == 0)
		for (struct dev_cmd *c = dev_work_next(b); c; c = dev_work_next(b))
			if (c->work != DEV_WORK_OUT && c->work != DEV_WORK_HEADERS_OUT)
				dev_cmd_end(b, c);
	__syncthreads();
	for (uint32_t i = b->first_open; i < b->n_steps; i++) {
		struct dev_step *s = &b->steps[i];

		if (threadIdx.x == 0)
			dev_step_fail_open(b, i, rc);
		__syncthreads();
		for (uint32_t e = s->lo + threadIdx.x; dev_step_verifies(s) && e < s->hi; e += blockDim.x)
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
	host->stats = b->stats;
	if (rc)
		atomicExch(p->stop, 1u);
	io_exit_put(p, b->first_open, rc);
}

#endif
