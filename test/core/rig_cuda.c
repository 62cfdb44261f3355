/* rig_cuda.c - KV memory on the GPU, for rigs; nothing in a build without CUDA. */
#include "core/rig.h"

#include <stddef.h>

#if defined(TUTTI_CUDA)

#include <cuda_runtime_api.h>

static void *get(uint64_t bytes)
{
	void *p = NULL;

	return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
}

static void put(void *p) { cudaFree(p); }

static void copy(void *dst, const void *src, uint64_t bytes) { cudaMemcpy(dst, src, bytes, cudaMemcpyDefault); }

const struct rig_accel *rig_gpu(void)
{
	static const struct rig_accel gpu = {.get = get, .put = put, .copy = copy};
	int n;

	return cudaGetDeviceCount(&n) == cudaSuccess && n ? &gpu : NULL;
}

#else

const struct rig_accel *rig_gpu(void) { return NULL; }

#endif
