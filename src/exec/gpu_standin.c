/*
 * gpu_standin.c - the stand-in for an engine on a GPU: its KV memory, and streams in which kernels (standin_kernel.cu)
 * write and check bytes, on SMs that the I/O kernels leave where the driver has green contexts.
 *
 * Everything is made, and each kernel run once, at open: nothing may be loaded while an I/O kernel spins.
 */
#include "exec/standin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "exec/gpu.h"

#define NAP_NS 20000
#define CLOSE_NS 10000000000ull

/* ---- memory ---- */

static int near_get(void *at, uint64_t bytes, const char *what)
{
	int rc = gpu_error(cudaMalloc((void **)at, bytes), what);

	return rc ? rc : gpu_error(cudaMemset(*(void **)at, 0, bytes), what);
}

static int pinned_get(void *at, uint64_t bytes)
{
	int rc =
	    gpu_error(cudaHostAlloc((void **)at, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");

	if (!rc)
		memset(*(void **)at, 0, bytes);
	return rc;
}

static int cuda_open(struct standin *s)
{
	struct cudaDeviceProp p;
	char why[160];
	int rc = exec_cuda_probe(why, sizeof(why));

	if (rc)
		return err_set(rc, "executor cuda: %s; use executor host", why);
	rc = gpu_error(cudaGetDevice(&s->device), "no device");
	if (!rc)
		rc = gpu_error(cudaGetDeviceProperties(&p, s->device), "no device");
	if (!rc)
		rc = near_get(&s->memory, s->bytes, "KV memory on the GPU (ask for less, or use executor host)");
	if (!rc)
		rc = gpu_error(cudaDeviceSynchronize(), "KV memory on the GPU");
	if (!rc)
		snprintf(s->text, sizeof(s->text), "GPU memory (%.100s, device %d)", p.name, s->device);
	return rc;
}

static void cuda_close(struct standin *s)
{
	cudaSetDevice(s->device);
	if (s->memory && !s->in_use)
		cudaFree(s->memory);
}

static int cuda_clear(struct standin *s)
{
	cudaSetDevice(s->device);
	return gpu_error(cudaMemset(s->memory, 0, s->bytes) ? cudaErrorUnknown : cudaDeviceSynchronize(),
	                 "clearing KV memory");
}

/* ---- a worker ---- */

static int stream_make(struct standin_worker *w)
{
	uint32_t sms, io_sms = w->standin->io_sms;
	CUstream stream;

	if (gpu_green_stream(w->standin->device, io_sms < 2 ? 2 : io_sms, 1, 0, &stream, &sms)) {
		int rc = gpu_error(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream for compute");

		if (rc)
			return rc;
		snprintf(w->text, sizeof(w->text), "a stream on all SMs");
	} else {
		snprintf(w->text, sizeof(w->text), "a stream on %u SMs, the I/O kernels on others", sms);
	}
	w->stream = stream;
	return 0;
}

static int launch(struct standin_worker *w, const void *kernel, dim3 grid, uint32_t threads, void *arg)
{
	void *args[] = {arg};
	dim3 block = {threads, 1, 1};

	return gpu_error(cudaLaunchKernel(kernel, grid, block, args, 0, w->stream), "computing in an engine's place");
}

static int cuda_stamp(struct standin_worker *w, uint64_t *at)
{
	dim3 one = {1, 1, 1};

	cudaSetDevice(w->standin->device);
	return launch(w, (const void *)standin_stamp_kernel, one, 1, &at);
}

static int cuda_run(struct standin_worker *w, struct standin_job *j, size_t first)
{
	uint64_t parts = j->segment_bytes / STANDIN_PART_BYTES + 1;
	dim3 grid = {j->n * j->outer_count * j->inner_count,
	             (uint32_t)(parts < STANDIN_PARTS_MAX ? parts : STANDIN_PARTS_MAX), 1};

	if (!j->n)
		return 0;
	cudaSetDevice(w->standin->device);
	j->blocks = w->near_blocks + first;
	j->found = w->near_found + first;
	return launch(w, (const void *)standin_kernel, grid, STANDIN_THREADS, j);
}

/* Checks a segment of no bytes, so that the kernels are loaded. */
static int first_run(struct standin_worker *w)
{
	struct standin_job none = {.outer_count = 1, .inner_count = 1, .n = 1};
	int rc = cuda_run(w, &none, 0);

	if (!rc)
		rc = cuda_stamp(w, w->stamps);
	return rc ? rc : gpu_error(cudaStreamSynchronize(w->stream), "the first kernel of compute");
}

static int cuda_worker_open(struct standin_worker *w)
{
	uint64_t blocks = w->blocks_max * sizeof(*w->blocks), found = w->blocks_max * sizeof(*w->found);
	int rc;

	cudaSetDevice(w->standin->device);
	rc = pinned_get(&w->blocks, blocks);
	if (!rc)
		rc = pinned_get(&w->found, found);
	if (!rc)
		rc = pinned_get(&w->stamps, 2 * w->layout.layers * sizeof(*w->stamps));
	if (!rc)
		rc = near_get(&w->near_blocks, blocks, "lists of blocks on the GPU");
	if (!rc)
		rc = near_get(&w->near_found, found, "lists of blocks on the GPU");
	if (!rc)
		rc = gpu_error(cudaDeviceSynchronize(), "lists of blocks on the GPU");
	if (!rc)
		rc = stream_make(w);
	return rc ? rc : first_run(w);
}

/* Polls: the driver's own wait has no deadline. */
static cudaError_t wait_idle(struct standin_worker *w, uint64_t deadline_ns)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	cudaError_t e;

	while ((e = cudaStreamQuery(w->stream)) == cudaErrorNotReady && port_now_ns() < deadline_ns)
		nanosleep(&nap, NULL); /* a GPU wakes nobody */
	return e;
}

static void cuda_worker_close(struct standin_worker *w)
{
	cudaSetDevice(w->standin->device);
	if (w->stream && wait_idle(w, port_now_ns() + CLOSE_NS) == cudaErrorNotReady) {
		log_warn("cuda: compute in an engine's place does not end; its memory is kept");
		w->standin->in_use = 1;
		return;
	}
	if (w->stream)
		cudaStreamDestroy(w->stream);
	cudaFree(w->near_blocks);
	cudaFree(w->near_found);
	cudaFreeHost(w->blocks);
	cudaFreeHost(w->found);
	cudaFreeHost(w->stamps);
	cudaGetLastError();
}

static int cuda_begin(struct standin_worker *w)
{
	int rc;

	cudaSetDevice(w->standin->device);
	for (size_t i = 0; i < w->n; i++)
		w->found[i] = (struct standin_found){0, UINT64_MAX};
	rc = gpu_error(
	    cudaMemcpyAsync(w->near_blocks, w->blocks, w->n * sizeof(*w->blocks), cudaMemcpyHostToDevice, w->stream),
	               "sending a list of blocks");
	if (!rc)
		rc = gpu_error(cudaMemcpyAsync(w->near_found, w->found, w->n * sizeof(*w->found),
		                               cudaMemcpyHostToDevice, w->stream),
		               "sending a list of blocks");
	return rc;
}

static int cuda_end(struct standin_worker *w, uint64_t deadline_ns)
{
	cudaError_t e;
	int rc;

	cudaSetDevice(w->standin->device);
	rc = gpu_error(
	    cudaMemcpyAsync(w->found, w->near_found, w->n * sizeof(*w->found), cudaMemcpyDeviceToHost, w->stream),
	               "fetching what was found");
	if (rc)
		return rc;
	e = wait_idle(w, deadline_ns);
	if (e == cudaErrorNotReady) {
		cudaGetLastError();
		return err_set(-ETIMEDOUT, "compute in an engine's place did not end by its deadline: a layer that it "
		                           "waits for did not come");
	}
	return gpu_error(e, "computing in an engine's place");
}

static const struct standin_ops ops = {
    .executor = TUTTI_EXEC_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .clear = cuda_clear,
    .worker_open = cuda_worker_open,
    .worker_close = cuda_worker_close,
    .begin = cuda_begin,
    .stamp = cuda_stamp,
    .run = cuda_run,
    .end = cuda_end,
};

const struct standin_ops *standin_cuda(void) { return &ops; }
