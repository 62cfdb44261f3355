/*
 * export.c - memory of a GPU for other devices: a range of it becomes a dma-buf, which a kernel driver can import.
 *
 * The driver's functions are asked for by name, so that this loads where the driver is older or not there. Built in
 * CUDA builds alone.
 */
#include "map/map.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>

#include "base/err.h"

static void *driver_fn(const char *name)
{
	void *fn = NULL;
	enum cudaDriverEntryPointQueryResult found;

	if (cudaGetDriverEntryPointByVersion(name, &fn, CUDA_VERSION, cudaEnableDefault, &found) != cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		cudaGetLastError(); /* ours, not the application's */
		return NULL;
	}
	return fn;
}

/* The GPU whose memory va is; -EFAULT: none's. */
static int device_of(const void *va, int *device)
{
	struct cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, va) != cudaSuccess) {
		cudaGetLastError();
		return -EFAULT;
	}
	*device = a.device;
	return a.type == cudaMemoryTypeDevice ? 0 : -EFAULT;
}

static int exports(int device)
{
	PFN_cuDeviceGetAttribute_v2000 get = (PFN_cuDeviceGetAttribute_v2000)driver_fn("cuDeviceGetAttribute");
	int yes = 0;

	return get && !get(&yes, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device) && yes;
}

int map_export(void *va, uint64_t bytes, int *fd)
{
	PFN_cuMemGetHandleForAddressRange_v11070 get =
	    (PFN_cuMemGetHandleForAddressRange_v11070)driver_fn("cuMemGetHandleForAddressRange");
	CUresult error;
	int device;

	if (device_of(va, &device))
		return err_set(-EFAULT, "memory at %p is not a GPU's", va);
	if (!get || !exports(device))
		return err_set(-EOPNOTSUPP,
		               "GPU %d: its driver gives no dma-buf of its memory; it needs the open kernel modules "
		               "(nvidia-open), 515 or later",
		               device);
	/* Flag 1 (mapping over PCIe) is for GPUs that are coherent with the CPU; on x86 it must be 0. */
	error = get(fd, (CUdeviceptr)(uintptr_t)va, (size_t)bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	if (error)
		return err_set(-EOPNOTSUPP, "GPU %d: no dma-buf of %llu bytes at %p: CUDA error %d", device,
		               (unsigned long long)bytes, va, (int)error);
	return 0;
}

int map_export_probe(char *text, uint32_t text_bytes)
{
	int n = 0, device = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		cudaGetLastError();
		snprintf(text, text_bytes, "CUDA finds no GPU");
		return -ENODEV;
	}
	while (device < n && exports(device))
		device++;
	if (device < n) {
		snprintf(text, text_bytes, "GPU %d's driver gives no dma-buf of its memory (nvidia-open does)", device);
		return -EOPNOTSUPP;
	}
	snprintf(text, text_bytes, "the GPU's driver gives its memory as dma-bufs");
	return 0;
}
