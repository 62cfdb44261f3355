/* gpu_memory.c - memory that the GPU reaches: pinned, its own, and other people's, which is pinned where it lies. */
#include "exec/gpu.h"

#include <string.h>

#define PAGE_BYTES 4096u

void *gpu_memory_get(struct exec *e, uint64_t bytes, enum exec_memory kind)
{
	void *p = NULL;

	cudaSetDevice(e->device);
	if (kind == EXEC_SHARED) {
		if (gpu_error(cudaHostAlloc(&p, bytes + 64, cudaHostAllocMapped | cudaHostAllocPortable),
		              "pinned memory"))
			return NULL;
		memset(p, 0, bytes + 64);
		return p;
	}
	if (gpu_error(cudaMalloc(&p, bytes), "GPU memory"))
		return NULL;
	if (gpu_error(cudaMemset(p, 0, bytes), "GPU memory") || gpu_error(cudaDeviceSynchronize(), "GPU memory")) {
		cudaFree(p);
		return NULL;
	}
	e->near_bytes += bytes;
	return p;
}

void gpu_memory_put(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind)
{
	cudaSetDevice(e->device);
	if (kind == EXEC_SHARED) {
		cudaFreeHost(p);
	} else {
		cudaFree(p);
		e->near_bytes -= bytes;
	}
}

uint64_t gpu_near_bytes(const struct exec *e) { return e->near_bytes; }

static void pages_around(void **p, uint64_t *bytes)
{
	uint64_t from = (uint64_t)(uintptr_t)*p / PAGE_BYTES * PAGE_BYTES;

	*bytes = ((uint64_t)(uintptr_t)*p + *bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES - from;
	*p = (void *)(uintptr_t)from;
}

int gpu_share(struct exec *e, void *p, uint64_t bytes)
{
	cudaError_t rc;

	cudaSetDevice(e->device);
	pages_around(&p, &bytes);
	if (gpu_registers_known(p))
		return 0;
	rc = cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
	if (rc == cudaErrorInvalidValue || rc == cudaErrorNotSupported) { /* no memory: a device's registers? */
		cudaGetLastError();
		return gpu_registers_share(p, bytes);
	}
	return gpu_error(rc, "pinning memory of the controller");
}

void gpu_unshare(struct exec *e, void *p, uint64_t bytes)
{
	cudaSetDevice(e->device);
	pages_around(&p, &bytes);
	if (gpu_registers_unshare(p))
		return;
	gpu_error(cudaHostUnregister(p), "unpinning memory of the controller");
}

int gpu_copy_in(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	cudaStream_t s = e->streams[stream].stream;

	cudaSetDevice(e->device);
	return gpu_error(shared ? cudaMemcpyAsync(near, shared, bytes, cudaMemcpyHostToDevice, s)
	                        : cudaMemsetAsync(near, 0, bytes, s),
	                 "sending a plan");
}

int gpu_is_near(const void *p)
{
	struct cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return a.type == cudaMemoryTypeDevice;
}
