/*
 * fake_gpu.h - an executor in a GPU's place, for the host's part of the work: near memory, streams and events of its
 * own, kernels that come late. Kernels run on a thread per stream: dev_io_serve itself, or the GPU's own kernels in
 * exec/sim.h.
 */
#ifndef TUTTI_TEST_EXEC_FAKE_GPU_H
#define TUTTI_TEST_EXEC_FAKE_GPU_H

#include "core/rig.h"
#include "exec/exec.h"

enum fake_gpu_kernel { FAKE_GPU_THREAD = 0, FAKE_GPU_SIM };

/* A stream or an event of the application: writes wait in it until it is let go. */
struct app_stream {
	int busy;
	unsigned n;
	struct exec_event writes[64];
};

extern const struct exec_ops fake_gpu;
extern const struct rig_accel fake_gpu_accel;

/* What kernels are from now on. Not while a lane is open. */
void fake_gpu_use(enum fake_gpu_kernel kernel);
/* HBM, up to eight pieces; NULL: no more. */
void *fake_gpu_get(uint64_t bytes);
void fake_gpu_put(void *p);
void fake_gpu_let(struct app_stream *s);

/* For a program at file scope: the library's CUDA executor is this one. */
#define FAKE_GPU_AS_CUDA                                                                                               \
	const struct exec_ops *exec_cuda(void) { return &fake_gpu; }                                                   \
	int exec_cuda_probe(char *text, uint32_t text_bytes)                                                           \
	{                                                                                                              \
		snprintf(text, text_bytes, "not really a GPU");                                                        \
		return 0;                                                                                              \
	}                                                                                                              \
	int exec_cuda_compute_stream(uint32_t io_sms, int priority, void **stream, uint32_t *sms)                      \
	{                                                                                                              \
		return io_sms || priority || !stream || !sms ? -EINVAL : -ENOTSUP;                                     \
	}

#endif
