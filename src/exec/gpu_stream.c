/*
 * gpu_stream.c - streams: ours, on SMs of their own where the driver has green contexts and else of high priority; and
 * what the application's streams and ours tell each other, by words in shared memory (stream memory operations).
 *
 * A word that is waited for must change in every outcome, because a stream's wait has no deadline: the host raises
 * it if nobody else does. Such operations are refused while a stream is captured into a graph: a graph would repeat
 * the wait for a value that is reached already, and wait for nothing.
 */
#include "exec/gpu.h"

#include <errno.h>
#include <stdio.h>

#include "base/err.h"

static int lanes_streams(struct exec *e, const struct exec_opts *o)
{
	uint32_t asked = o->blocks < 2 ? 2 : o->blocks, sms = 0;
	int rc = o->sm_domain ? 0 : CUDA_ERROR_NOT_SUPPORTED, low, high;

	for (uint32_t i = 0; i < e->n_streams && !rc; i++)
		rc = gpu_green_stream(e->device, asked, 0, 0, &e->streams[i].stream, &sms);
	if (!rc) {
		snprintf(e->text, sizeof(e->text), "cuda, %u SMs, green context", sms);
		return 0;
	}
	if (o->sm_domain)
		log_warn("cuda: no green context (error %d): the I/O kernel shares its SMs with compute, and may "
		         "start late",
		         rc);
	rc = gpu_error(cudaDeviceGetStreamPriorityRange(&low, &high), "priorities of streams");
	for (uint32_t i = 0; i < e->n_streams && !rc; i++)
		rc = gpu_error(cudaStreamCreateWithPriority(&e->streams[i].stream, cudaStreamNonBlocking, high),
		               "making a stream");
	snprintf(e->text, sizeof(e->text), "cuda, %u %s, priority stream", o->blocks, o->small ? "warps" : "SMs");
	return rc;
}

int gpu_streams_make(struct exec *e, const struct exec_opts *o)
{
	int rc = lanes_streams(e, o);

	return rc ? rc : gpu_error(cudaStreamCreateWithFlags(&e->events, cudaStreamNonBlocking), "making a stream");
}

/* ---- words ---- */

typedef CUresult (*word_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

/* One of the driver's two functions for words, looked up once: every caller finds the same. */
static int word_op(struct exec *e, int write, void *stream, uint32_t *flag, uint32_t value)
{
	static const char *const names[] = {"cuStreamWaitValue32", "cuStreamWriteValue32"};
	static word_fn fns[2];
	word_fn fn = __atomic_load_n(&fns[write], __ATOMIC_RELAXED);
	enum cudaStreamCaptureStatus capture;
	CUresult rc;

	cudaSetDevice(e->device);
	if (!fn)
		fn = (word_fn)gpu_driver_fn(names[write]);
	if (!fn)
		return err_set(-ENOTSUP, "cuda: the driver has no stream memory operations");
	__atomic_store_n(&fns[write], fn, __ATOMIC_RELAXED);
	if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) {
		cudaGetLastError();
		return err_set(-EBUSY, "cuda: the stream is captured into a graph; call this between graphs");
	}
	rc = fn(stream, (CUdeviceptr)(uintptr_t)flag, value,
	        write ? CU_STREAM_WRITE_VALUE_DEFAULT : CU_STREAM_WAIT_VALUE_GEQ);
	return rc ? err_set(-EIO, "cuda: %s: error %d", names[write], (int)rc) : 0;
}

int gpu_stream_wait(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	return word_op(e, 0, stream, flag, value);
}

int gpu_stream_write(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	return word_op(e, 1, stream, flag, value);
}

int gpu_event_write(struct exec *e, void *event, uint32_t *flag, uint32_t value)
{
	int rc;

	cudaSetDevice(e->device);
	rc = gpu_error(cudaStreamWaitEvent(e->events, event, 0), "waiting for an event");
	return rc ? rc : word_op(e, 1, e->events, flag, value);
}

/* ---- the compute domain ---- */

int exec_cuda_compute_stream(uint32_t io_sms, int priority, void **out, uint32_t *sms)
{
	CUstream stream;
	int device, rc = gpu_error(cudaGetDevice(&device), "no device");

	if (!rc)
		rc = gpu_error(cudaFree(NULL), "no context");
	if (rc)
		return rc;
	rc = gpu_green_stream(device, io_sms < 2 ? 2 : io_sms, 1, priority, &stream, sms);
	if (rc)
		return err_set(-ENOTSUP,
		               "cuda: no green context (error %d): compute can't be kept off the I/O "
		                         "kernel's SMs on this driver",
		               rc);
	*out = stream;
	return 0;
}
