/*
 * io_small.cu - the I/O kernel in its small shape: a thread block is one warp of 32 registers a thread, with a few KiB
 * of shared memory, so that it fits beside the blocks of a matrix product and starts while one runs. (A product of 384
 * threads of 168 registers leaves an SM 1024 of them.)
 *
 * Thread 0 runs the loop of dev/io.h and does all but move data; for that the others wait, in a barrier, to help.
 * A block moves less than the large shape's, whose copies run beside the loop; there can be more of them.
 */
#define DEV_WARP 1

#include <cuda_runtime.h>

#include "exec/io_kernel.cuh"

#define WARP_LOADS 4u
#define WARP_TURN_BYTES (16u * IO_SMALL_THREADS)
#define WARP_HEADER_BYTES 1536u

/* A header that is checked or made: byte by byte that would be a way over the bus each. */
__shared__ __align__(16) uint8_t warp_header[WARP_HEADER_BYTES];

/* What thread 0 wants moved. */
__shared__ struct {
	uint8_t *dst; /* NULL: summed where it lies */
	const uint8_t *src;
	uint64_t bytes, offset;
	int stop;
} warp_job;

static __device__ __forceinline__ uint64_t warp_put16(uint8_t *dst, ulonglong2 v, uint32_t at, uint64_t offset)
{
	if (dst)
		*(ulonglong2 *)(void *)(dst + at) = v;
	return objsum_term(v.x, (offset + at) / 8) + objsum_term(v.y, (offset + at) / 8 + 1);
}

/* 16 bytes a thread; the host's memory is far, so WARP_LOADS loads are on their way before the first is used. */
static __device__ uint64_t warp_move16(uint8_t *dst, const uint8_t *src, uint32_t bytes, uint64_t offset)
{
	uint32_t at = 16 * threadIdx.x;
	uint64_t sum = 0;

	for (; at + (WARP_LOADS - 1) * WARP_TURN_BYTES < bytes; at += WARP_LOADS * WARP_TURN_BYTES) {
		ulonglong2 v[WARP_LOADS];

#pragma unroll
		for (uint32_t i = 0; i < WARP_LOADS; i++)
			v[i] = *(const ulonglong2 *)(const void *)(src + at + i * WARP_TURN_BYTES);
#pragma unroll
		for (uint32_t i = 0; i < WARP_LOADS; i++)
			sum += warp_put16(dst, v[i], at + i * WARP_TURN_BYTES, offset);
	}
	for (; at < bytes; at += WARP_TURN_BYTES)
		sum += warp_put16(dst, *(const ulonglong2 *)(const void *)(src + at), at, offset);
	return sum;
}

/* Any address, any length. */
static __device__ uint64_t warp_move_any(uint8_t *dst, const uint8_t *src, uint32_t bytes, uint64_t offset)
{
	uint64_t sum = 0;

	for (uint32_t at = 8 * threadIdx.x; at < bytes; at += 8 * IO_SMALL_THREADS) {
		uint64_t lane = 0;

		for (uint32_t k = 0; k < 8 && at + k < bytes; k++) {
			uint8_t byte = src[at + k];

			lane |= (uint64_t)byte << (8 * k);
			if (dst)
				dst[at + k] = byte;
		}
		sum += objsum_term(lane, (offset + at) / 8);
	}
	return sum;
}

/* All threads of the warp; the sum is thread 0's. */
static __device__ uint64_t warp_help(void)
{
	uint8_t *dst = warp_job.dst;
	const uint8_t *src = warp_job.src;
	uint32_t bytes = (uint32_t)warp_job.bytes;
	uint64_t sum = (((uintptr_t)src | (uintptr_t)dst | bytes) & 15u) == 0
	                   ? warp_move16(dst, src, bytes, warp_job.offset)
	                   : warp_move_any(dst, src, bytes, warp_job.offset);

	__threadfence_system(); /* before thread 0 tells anybody */
	for (int by = 16; by; by /= 2)
		sum += __shfl_down_sync(0xffffffffu, (unsigned long long)sum, by);
	__syncwarp(); /* what went to shared memory is there, too */
	return sum;
}

/* dev/move.h: by thread 0. */
static __device__ __noinline__ uint64_t warp_move(void *dst, const void *src, uint64_t bytes, uint64_t offset)
{
	warp_job.dst = (uint8_t *)dst;
	warp_job.src = (const uint8_t *)src;
	warp_job.bytes = bytes;
	warp_job.offset = offset;
	__syncwarp();
	return warp_help();
}

static __device__ uint32_t warp_header_bytes(uint32_t objects)
{
	return (GEOM_HEADER_FIXED_BYTES + 8 * objects + 15) / 16 * 16;
}

static __device__ const struct wire_header *warp_header_near(const struct wire_header *h, uint32_t objects)
{
	uint32_t bytes = warp_header_bytes(objects);

	if (bytes > WARP_HEADER_BYTES)
		return h;
	warp_move(warp_header, h, bytes, 0);
	return (const struct wire_header *)(const void *)warp_header;
}

static __device__ void warp_header_make(const struct dev_plan *p, uint32_t entry, struct wire_header *h)
{
	uint32_t bytes = warp_header_bytes(geom_objects(&p->geom));

	if (bytes > WARP_HEADER_BYTES) {
		dev_header_make(p, entry, h);
		return;
	}
	memset(warp_header, 0, bytes);
	dev_header_make(p, entry, (struct wire_header *)(void *)warp_header);
	warp_move(h, warp_header, bytes, 0);
}

/* No launch bounds: they would take the place of the compiler's option that limits registers (Makefile). */
PORT_C __global__ void io_small_kernel(const __grid_constant__ struct io_params p)
{
	IO_DYNAMIC(dyn);
	__shared__ __align__(16) struct dev_block b;
	__shared__ __align__(16) struct wire_ring ring;
	__shared__ uint32_t stopped;
	__shared__ int failed;

	if (io_stopped(&p, &stopped))
		return;
	io_begin(&p, &b, &ring, dyn);
	if (threadIdx.x == 0)
		warp_job.stop = 0;
	__syncwarp();
	if (threadIdx.x == 0) {
		b.mover = NULL;
		failed = dev_io_serve(&b);
		warp_job.stop = 1;
		__syncwarp();
	} else {
		for (;;) {
			__syncwarp();
			if (warp_job.stop)
				break;
			warp_help();
		}
	}
	__syncthreads();
	if (failed)
		io_fail_open(&b, failed);
	if (threadIdx.x == 0)
		io_leave(&p, p.blocks[blockIdx.x], &b, failed);
}
