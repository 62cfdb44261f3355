/*
 * gpu.c - the CUDA executor: each job is a kernel of as many thread blocks as the stream has (io_kernel.cu).
 *
 * Everything that CUDA needs is made at open. Afterwards the launching thread launches, a thread per stream waits for
 * the ends of kernels, and a watchdog looks for those that do not end (gpu_end.c).
 */
#include "exec/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"

int gpu_error(cudaError_t e, const char *what)
{
	int rc = e == cudaErrorMemoryAllocation ? -ENOMEM : e == cudaErrorNoDevice ? -ENODEV : -EIO;

	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* ours, not the application's */
	return err_set(rc, "cuda: %s: %s", what, cudaGetErrorString(e));
}

void *gpu_driver_fn(const char *name)
{
	void *fn = NULL;
	enum cudaDriverEntryPointQueryResult found;

	if (cudaGetDriverEntryPointByVersion(name, &fn, CUDA_VERSION, cudaEnableDefault, &found) != cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		cudaGetLastError();
		return NULL;
	}
	return fn;
}

int exec_cuda_probe(char *text, uint32_t text_bytes)
{
	struct cudaDeviceProp p;
	int n = 0, driver = 0, same = 0, device = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || !n) {
		cudaGetLastError();
		snprintf(text, text_bytes, "no usable GPU: %s", e ? cudaGetErrorString(e) : "none");
		return -ENODEV;
	}
	cudaGetDevice(&device);
	cudaDriverGetVersion(&driver);
	e = cudaGetDeviceProperties(&p, device);
	if (!e)
		e = cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
	if (e || !same || !p.canMapHostMemory) {
		cudaGetLastError();
		snprintf(text, text_bytes, "device %d can't use the host's addresses for pinned memory", device);
		return -ENOTSUP;
	}
	snprintf(text, text_bytes, "%s, %d SMs, compute %d.%d, driver %d.%d; %s", p.name, p.multiProcessorCount,
	         p.major, p.minor, driver / 1000, driver % 1000 / 10,
	         p.major >= 9 ? "bulk copies through shared memory" : "no bulk copies: vector loads and stores");
	return 0;
}

static void gpu_close(struct exec *e)
{
	cudaSetDevice(e->device);
	gpu_watch_stop(e);
	for (uint32_t i = 0; i < e->n_streams; i++) {
		struct gpu_stream *s = &e->streams[i];

		if (s->stream)
			cudaStreamDestroy(s->stream);
		if (s->exits)
			gpu_memory_put(e, s->exits, GPU_JOBS_MAX * IO_BLOCKS_MAX * sizeof(*s->exits), EXEC_SHARED);
		if (s->stop)
			gpu_memory_put(e, s->stop, sizeof(*s->stop), EXEC_NEAR);
		pthread_cond_destroy(&s->change);
		pthread_mutex_destroy(&s->lock);
	}
	if (e->events)
		cudaStreamDestroy(e->events);
	pthread_cond_destroy(&e->watch_change);
	pthread_mutex_destroy(&e->watch_lock);
	free(e);
}

static int open_parts(struct exec *e, const struct exec_opts *o)
{
	int rc = gpu_error(cudaGetDevice(&e->device), "no device");

	if (!rc)
		rc = gpu_error(cudaSetDevice(e->device), "no device");
	if (!rc)
		rc = gpu_error(cudaFree(NULL), "no context");
	if (!rc)
		rc = gpu_streams_make(e, o);
	for (uint32_t i = 0; i < e->n_streams && !rc; i++) {
		struct gpu_stream *s = &e->streams[i];

		s->exits = gpu_memory_get(e, GPU_JOBS_MAX * IO_BLOCKS_MAX * sizeof(*s->exits), EXEC_SHARED);
		s->stop = gpu_memory_get(e, sizeof(*s->stop), EXEC_NEAR);
		rc = s->exits && s->stop ? 0 : -ENOMEM;
	}
	if (!rc)
		rc = gpu_warm_up(e);
	return rc ? rc : gpu_watch_start(e);
}

static int gpu_open(const struct exec_opts *o, struct exec **out)
{
	pthread_condattr_t attr;
	struct exec *e;
	int rc;

	if (!o->streams || o->streams > GPU_STREAMS_MAX || !o->blocks || o->blocks > IO_BLOCKS_MAX)
		return err_set(-EINVAL, "cuda: %u streams of %u blocks; at most %u of %u", o->streams, o->blocks,
		               GPU_STREAMS_MAX, IO_BLOCKS_MAX);
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "cuda: no memory");
	e->n_streams = o->streams;
	e->blocks = o->blocks;
	e->small = o->small;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&e->watch_lock, NULL);
	pthread_cond_init(&e->watch_change, &attr);
	for (uint32_t i = 0; i < e->n_streams; i++) {
		e->streams[i].exec = e;
		pthread_mutex_init(&e->streams[i].lock, NULL);
		pthread_cond_init(&e->streams[i].change, &attr);
	}
	pthread_condattr_destroy(&attr);
	rc = open_parts(e, o);
	if (rc) {
		gpu_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

static const char *gpu_describe(struct exec *e) { return e->text; }

static const struct exec_ops ops = {
    .name = "cuda",
    .open = gpu_open,
    .close = gpu_close,
    .launch = gpu_launch,
    .remote = 1,
    .memory_get = gpu_memory_get,
    .memory_put = gpu_memory_put,
    .share = gpu_share,
    .unshare = gpu_unshare,
    .copy_in = gpu_copy_in,
    .settle = gpu_settle,
    .is_near = gpu_is_near,
    .near_bytes = gpu_near_bytes,
    .stream_wait = gpu_stream_wait,
    .stream_write = gpu_stream_write,
    .event_write = gpu_event_write,
    .describe = gpu_describe,
};

const struct exec_ops *exec_cuda(void) { return &ops; }
