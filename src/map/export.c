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
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

#define WINDOW_BYTES (2u << 20) /* a page of the GPU's */
#define KERNEL_ENOTSUPP 524     /* of a kernel driver; user space has no name for it */

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

static int is_able(CUdevice_attribute what, int device)
{
	PFN_cuDeviceGetAttribute_v2000 get = (PFN_cuDeviceGetAttribute_v2000)driver_fn("cuDeviceGetAttribute");
	int yes = 0;

	return get && !get(&yes, what, device) && yes;
}

static int exports(int device) { return is_able(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device); }

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

/* ---- for the CPU ---- */

/* Is what the CPU writes to the window there for the GPU? */
static int window_works(volatile uint32_t *window, const void *va)
{
	uint32_t back = 0;

	window[0] = 0x7457u;
	return cudaMemcpy(&back, va, sizeof(back), cudaMemcpyDeviceToHost) == cudaSuccess && back == 0x7457u;
}

static int window_try(void *va, char *text, uint32_t text_bytes)
{
	int fd, works, rc = map_export(va, WINDOW_BYTES, &fd);
	void *window;

	if (rc) {
		snprintf(text, text_bytes, "%s", err_text());
		return rc;
	}
	window = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rc = window == MAP_FAILED ? -errno : 0;
	close(fd);
	if (rc) {
		snprintf(text, text_bytes, "the driver does not let its dma-buf be mapped (%s)",
		         rc == -KERNEL_ENOTSUPP ? "ENOTSUPP" : strerror(-rc));
		return rc;
	}
	works = window_works(window, va);
	munmap(window, WINDOW_BYTES);
	snprintf(text, text_bytes, "its dma-buf can be mapped%s", works ? "" : ", but holds other bytes");
	return works ? 0 : -EIO;
}

int map_window_probe(char *text, uint32_t text_bytes)
{
	int device = 0, rc;
	void *va;

	if (cudaGetDevice(&device) != cudaSuccess || cudaMalloc(&va, WINDOW_BYTES) != cudaSuccess) {
		cudaGetLastError();
		snprintf(text, text_bytes, "CUDA gives no memory");
		return -ENODEV;
	}
	if (is_able(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, device)) {
		snprintf(text, text_bytes, "the CPU reaches it over a coherent link");
		rc = 0;
	} else {
		rc = window_try(va, text, text_bytes);
	}
	cudaFree(va);
	return rc;
}
