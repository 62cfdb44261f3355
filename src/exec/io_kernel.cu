/*
 * io_kernel.cu - device code on a GPU: a kernel of as many thread blocks as its stream has, each of which serves its
 * dev_block as a CPU thread would (dev/io.h), with warps beside that thread that move and sum data (mover.cuh).
 *
 * A block that gives up raises the stream's stop word: kernels behind it end at once, before they touch a queue, until
 * the host has mended what is broken.
 */
#define DEV_MOVERS 1

#include <cuda_runtime.h>

#include "exec/io_kernel.cuh"
#include "exec/mover.cuh"
#include "exec/mover_copy.cuh"
#include "exec/mover_sum.cuh"

static __device__ void io_mover_init(struct dev_mover *m, const struct io_params *p, uint8_t *dyn, uint32_t *header_bad)
{
	memset(m, 0, offsetof(struct dev_mover, full));
	m->n_stages = p->n_stages;
	m->loads = p->loads;
	m->stores = p->stores;
	m->stages = dyn;
	m->header_bad = header_bad;
	for (uint32_t i = 0; i < p->n_stages; i++) {
		mover_bar_init(&m->full[i], 1);
		mover_bar_init(&m->empty[i], IO_SUMMER_WARPS);
	}
	mover_fence();
}

PORT_C __global__ void __launch_bounds__(IO_THREADS, 1) io_kernel(const __grid_constant__ struct io_params p)
{
	IO_DYNAMIC(dyn);
	__shared__ __align__(16) struct dev_block b;
	__shared__ __align__(16) struct wire_ring ring;
	__shared__ struct dev_mover m;
	__shared__ uint32_t stopped;
	__shared__ int failed;
	uint8_t *at = dyn + p.n_stages * IO_STAGE_BYTES;
	uint32_t t = threadIdx.x;

	if (io_stopped(&p, &stopped))
		return;
	io_begin(&p, &b, &ring, at);
	if (t == 0) {
		io_mover_init(&m, &p, dyn, io_header_bad(at, b.n_cmds));
		b.mover = &m;
	}
	__syncthreads();
	if (t == 0) {
		failed = dev_io_serve(&b);
		mover_store(&m.stop, 1);
	} else if (t == 32) {
		mover_copier(&b);
	} else if (t >= 64) {
		mover_summer(&b, t - 64);
	}
	__syncthreads();
	if (failed)
		io_fail_open(&b, failed);
	if (t == 0) {
		b.stats.bounced_bytes += m.moved_bytes;
		b.stats.sum_bytes += m.moved_bytes;
		io_leave(&p, p.blocks[blockIdx.x], &b, failed);
	}
}

PORT_C __global__ void io_clock_kernel(struct io_clock *w)
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
