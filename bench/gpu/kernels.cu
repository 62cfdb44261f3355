/*
 * kernels.cu - what the benchmark itself runs on the GPU: numbers that say where they belong, written and compared;
 * copies that scatter; a matrix product on the tensor cores for machines without cuBLAS.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "bench/gpu/kernels.h"
}

/* ---- bytes ---- */

static __device__ uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

struct place {
	uint8_t *base;
	const uint64_t *layer_at;
	uint64_t object_stride, object_bytes;
	const uint64_t *blocks;
	uint64_t n, salt;
};

/* A thread block per object: grid (blocks of the chain, layers, objects of a layer). */
static __device__ uint64_t *object_of(const place &p, uint64_t *seed)
{
	uint64_t i = blockIdx.x, l = blockIdx.y, o = blockIdx.z;

	*seed = mix(p.salt + ((l * gridDim.z + o) << 40) + i);
	return (uint64_t *)(p.base + p.layer_at[l] + o * p.object_stride + p.blocks[i] * p.object_bytes);
}

static __global__ void fill(place p)
{
	uint64_t seed, *at = object_of(p, &seed);

	for (uint64_t w = threadIdx.x; w < p.object_bytes / 8; w += blockDim.x)
		at[w] = mix(seed + w);
}

static __global__ void check(place p, unsigned long long *wrong)
{
	uint64_t seed, *at = object_of(p, &seed);
	unsigned long long bad = 0;

	for (uint64_t w = threadIdx.x; w < p.object_bytes / 8; w += blockDim.x)
		bad += at[w] != mix(seed + w);
	if (bad)
		atomicAdd_system(wrong, bad);
}

extern "C" void kernel_fill(uint8_t *base, const uint64_t *layer_at, uint64_t object_stride, uint64_t object_bytes,
                            const uint64_t *blocks, size_t n, uint64_t salt, cudaStream_t s)
{
	place p = {base, layer_at, object_stride, object_bytes, blocks, n, salt};

	fill<<<dim3((unsigned)n, KERNEL_LAYERS, KERNEL_OBJECTS), 256, 0, s>>>(p);
}

extern "C" void kernel_check(uint8_t *base, const uint64_t *layer_at, uint64_t object_stride, uint64_t object_bytes,
                             const uint64_t *blocks, size_t n, uint64_t salt, unsigned long long *wrong, cudaStream_t s)
{
	place p = {base, layer_at, object_stride, object_bytes, blocks, n, salt};

	check<<<dim3((unsigned)n, KERNEL_LAYERS, KERNEL_OBJECTS), 256, 0, s>>>(p, wrong);
}

/* ---- copies ---- */

static __device__ void copy16(void *dst, const void *src, uint64_t bytes)
{
	for (uint64_t w = threadIdx.x; w < bytes / 16; w += blockDim.x)
		((uint4 *)dst)[w] = ((const uint4 *)src)[w];
}

static __global__ void copy_many(void *const *dst, const void *const *src, uint64_t bytes)
{
	copy16(dst[blockIdx.x], src[blockIdx.x], bytes);
}

extern "C" void kernel_copy_many(void *const *dst, const void *const *src, size_t n, uint64_t bytes, cudaStream_t s)
{
	copy_many<<<(unsigned)n, 256, 0, s>>>(dst, src, bytes);
}

static __global__ void scatter(uint8_t *staging, const uint64_t *at, uint8_t *layer, uint64_t object_stride,
                               uint64_t object_bytes, const uint64_t *blocks, int gather)
{
	uint64_t i = blockIdx.x, o = blockIdx.y;
	uint8_t *packed = staging + at[i * gridDim.y + o];
	uint8_t *placed = layer + o * object_stride + blocks[i] * object_bytes;

	copy16(gather ? packed : placed, gather ? placed : packed, object_bytes);
}

extern "C" void kernel_scatter(uint8_t *staging, const uint64_t *at, uint8_t *layer, uint64_t object_stride,
                               uint64_t object_bytes, const uint64_t *blocks, size_t n, int gather, cudaStream_t s)
{
	scatter<<<dim3((unsigned)n, KERNEL_OBJECTS), 256, 0, s>>>(staging, at, layer, object_stride, object_bytes,
	                                                          blocks, gather);
}

/* Registers as the I/O kernel's small shape has them; see io_small.cu. */
static __global__ void __launch_bounds__(256, 8) pull(uint4 *dst, const uint4 *src, uint64_t n)
{
	uint64_t step = (uint64_t)gridDim.x * blockDim.x, i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;

	for (; i + 3 * step < n; i += 4 * step) {
		uint4 v[4];

#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = src[i + k * step];
#pragma unroll
		for (int k = 0; k < 4; k++)
			dst[i + k * step] = v[k];
	}
	for (; i < n; i += step)
		dst[i] = src[i];
}

extern "C" void kernel_pull(void *dst, const void *src, uint64_t bytes, unsigned blocks, unsigned threads,
                            cudaStream_t s)
{
	pull<<<blocks, threads, 0, s>>>((uint4 *)dst, (const uint4 *)src, bytes / 16);
}

struct parameters {
	uint64_t v[24];
};

static __global__ void nothing(const __grid_constant__ parameters p, uint64_t *never)
{
	if (never)
		*never = p.v[threadIdx.x];
}

extern "C" void kernel_nothing(cudaStream_t s)
{
	nothing<<<4, 32, 0, s>>>(parameters{}, nullptr);
}

/* ---- a matrix product ---- */

#define TILE 128
#define DEEP 32
#define PAD 8

using namespace nvcuda;

/* 128 x 128 of C by 8 warps of 32 x 64; no pipeline: it is here to keep the SMs busy, not to win. */
static __global__ void __launch_bounds__(256)
    product(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int cols, int inner)
{
	__shared__ __align__(16) __nv_bfloat16 sa[TILE][DEEP + PAD], sb[DEEP][TILE + PAD];
	int warp = threadIdx.x / 32, wr = warp / 2 * 32, wc = warp % 2 * 64;
	size_t row0 = (size_t)blockIdx.y * TILE, col0 = (size_t)blockIdx.x * TILE;
	wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[2][4];

	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 4; j++)
			wmma::fill_fragment(acc[i][j], 0.0f);
	for (int k0 = 0; k0 < inner; k0 += DEEP) {
		for (int v = threadIdx.x; v < TILE * DEEP / 8; v += 256) {
			int ra = v / (DEEP / 8), ca = v % (DEEP / 8) * 8, rb = v / (TILE / 8), cb = v % (TILE / 8) * 8;

			*(uint4 *)&sa[ra][ca] = *(const uint4 *)&a[(row0 + ra) * inner + k0 + ca];
			*(uint4 *)&sb[rb][cb] = *(const uint4 *)&b[(size_t)(k0 + rb) * cols + col0 + cb];
		}
		__syncthreads();
		for (int k = 0; k < DEEP; k += 16) {
			wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa[2];
			wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb;

			for (int i = 0; i < 2; i++)
				wmma::load_matrix_sync(fa[i], &sa[wr + i * 16][k], DEEP + PAD);
			for (int j = 0; j < 4; j++) {
				wmma::load_matrix_sync(fb, &sb[k][wc + j * 16], TILE + PAD);
				for (int i = 0; i < 2; i++)
					wmma::mma_sync(acc[i][j], fa[i], fb, acc[i][j]);
			}
		}
		__syncthreads();
	}
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 4; j++)
			wmma::store_matrix_sync(&c[(row0 + wr + i * 16) * cols + col0 + wc + j * 16], acc[i][j], cols,
			                        wmma::mem_row_major);
}

extern "C" void kernel_product(const void *a, const void *b, void *c, int rows, int cols, int inner, cudaStream_t s)
{
	product<<<dim3((unsigned)(cols / TILE), (unsigned)(rows / TILE)), 256, 0, s>>>(
	    (const __nv_bfloat16 *)a, (const __nv_bfloat16 *)b, (float *)c, cols, inner);
}
