/*
 * export.cu - memory of a GPU, for other devices: a range of it becomes a dma-buf, which a kernel driver can import;
 * and registers of a device become something that a GPU thread can write to.
 *
 * The driver's functions are asked for by name, so that this loads where the driver is older or not there.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

extern "C" {
#include "base/err.h"
#include "map/map.h"
}

static void *driver_fn(const char *name)
{
	void *fn = NULL;
	cudaDriverEntryPointQueryResult found;

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
	void *fn = driver_fn("cuDeviceGetAttribute");
	int yes = 0;

	return fn && !((PFN_cuDeviceGetAttribute_v2000)fn)(&yes, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device) && yes;
}

int map_export(void *va, uint64_t bytes, int *fd)
{
	void *fn = driver_fn("cuMemGetHandleForAddressRange");
	CUresult error;
	int device;

	if (device_of(va, &device))
		return err_set(-EFAULT, "memory at %p is not a GPU's", va);
	if (!fn || !exports(device))
		return err_set(-EOPNOTSUPP,
		               "GPU %d: its driver gives no dma-buf of its memory; it needs the open kernel modules "
		               "(nvidia-open), 515 or later",
		               device);
	/* Flag 1 (mapping over PCIe) is for GPUs that are coherent with the CPU; on x86 it must be 0. */
	error = ((PFN_cuMemGetHandleForAddressRange_v11070)fn)(fd, (CUdeviceptr)va, (size_t)bytes,
	                                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
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
		snprintf(text, text_bytes, "no GPU that CUDA can use");
		return -ENODEV;
	}
	while (device < n && exports(device))
		device++;
	if (device < n) {
		snprintf(text, text_bytes, "GPU %d: its driver gives no dma-buf of its memory (nvidia-open does)",
		         device);
		return -EOPNOTSUPP;
	}
	snprintf(text, text_bytes, "%d GPU%s can give %s memory as dma-bufs", n, n == 1 ? "" : "s",
	         n == 1 ? "its" : "their");
	return 0;
}

int map_registers(void *va, uint64_t bytes, void **near)
{
	cudaError_t e = cudaHostRegister(va, (size_t)bytes,
	                                 cudaHostRegisterIoMemory | cudaHostRegisterMapped | cudaHostRegisterPortable);

	if (e == cudaSuccess && cudaHostGetDevicePointer(near, va, 0) != cudaSuccess) {
		cudaHostUnregister(va);
		e = cudaErrorNotSupported;
	}
	if (e == cudaSuccess)
		return 0;
	cudaGetLastError();
	return err_set(-EOPNOTSUPP, "registers at %p can't be given to the GPU: %s", va, cudaGetErrorString(e));
}

void map_registers_end(void *va)
{
	cudaHostUnregister(va);
	cudaGetLastError();
}
