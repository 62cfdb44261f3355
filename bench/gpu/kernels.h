/* kernels.h - what kernels.cu launches. Addresses are the GPU's unless said; nothing waits. */
#ifndef TUTTI_BENCH_GPU_KERNELS_H
#define TUTTI_BENCH_GPU_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL_LAYERS 32u
#define KERNEL_OBJECTS 2u

/* Writes, or compares, the numbers of the first n blocks of a chain; *wrong (pinned) counts words that differ. */
void kernel_fill(uint8_t *base, const uint64_t *layer_at, uint64_t object_stride, uint64_t object_bytes,
                 const uint64_t *blocks, size_t n, uint64_t salt, cudaStream_t s);
void kernel_check(uint8_t *base, const uint64_t *layer_at, uint64_t object_stride, uint64_t object_bytes,
                  const uint64_t *blocks, size_t n, uint64_t salt, unsigned long long *wrong, cudaStream_t s);
/* n pieces of `bytes` from src[] to dst[] (pinned arrays): what a driver without batched copies gets. */
void kernel_copy_many(void *const *dst, const void *const *src, size_t n, uint64_t bytes, cudaStream_t s);
/* Object o of block i: staging + at[i * KERNEL_OBJECTS + o] <-> its place in the KV memory. */
void kernel_scatter(uint8_t *staging, const uint64_t *at, uint8_t *layer, uint64_t object_stride, uint64_t object_bytes,
                    const uint64_t *blocks, size_t n, int gather, cudaStream_t s);
/* One piece by `blocks` thread blocks of `threads`, 16 bytes a load and four loads of a thread on their way. */
void kernel_pull(void *dst, const void *src, uint64_t bytes, unsigned blocks, unsigned threads, cudaStream_t s);
/* Takes as many parameters as the I/O kernel, and does nothing. */
void kernel_nothing(cudaStream_t s);
/* C (float) = A x B (bfloat16), rows x cols x inner, each a multiple of 128. */
void kernel_product(const void *a, const void *b, void *c, int rows, int cols, int inner, cudaStream_t s);

#endif
