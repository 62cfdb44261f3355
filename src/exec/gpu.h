/*
 * gpu.h - inside the CUDA executor: gpu.c (open and close), gpu_launch.c, gpu_end.c (what happens when a kernel is
 * over, or does not end), gpu_memory.c, gpu_stream.c (the application's streams and ours), gpu_green.c (SMs of our
 * own). Only io_kernel.cu is compiled by nvcc; built in CUDA builds alone.
 */
#ifndef TUTTI_EXEC_GPU_H
#define TUTTI_EXEC_GPU_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "exec/exec.h"
#include "exec/io_kernel.h"

#define GPU_STREAMS_MAX 4u
#define GPU_JOBS_MAX 256u

struct gpu_job {
	struct exec_job job;
	uint64_t launched_ns;
	uint32_t launch; /* what its exits say when it is over */
	int over, late;
};

struct gpu_stream {
	struct exec *exec;
	CUstream stream;
	pthread_t thread;
	int started;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct gpu_job jobs[GPU_JOBS_MAX];
	uint64_t head, tail;
	struct io_exit *exits; /* [GPU_JOBS_MAX][IO_BLOCKS_MAX], pinned */
	uint32_t *stop;        /* near */
	int closing, lost;
};

struct exec {
	int device;
	uint32_t n_streams, blocks;
	int small; /* kernels */
	uint32_t dyn_max;
	int64_t clock_ns;
	uint64_t near_bytes;
	CUstream events; /* where events of the application are waited for */
	char text[120];
	pthread_t watchdog;
	int watching, closing;
	uint32_t watch_idle;
	pthread_mutex_t watch_lock;
	pthread_cond_t watch_change;
	struct gpu_stream streams[GPU_STREAMS_MAX];
};

/* 0, or -errno with a message; the application never sees an error of ours. */
int gpu_error(cudaError_t e, const char *what);
/* A function of the installed driver; NULL: it has none. */
void *gpu_driver_fn(const char *name);

/* gpu_memory.c: the executor's operations of these names. */
void *gpu_memory_get(struct exec *e, uint64_t bytes, enum exec_memory kind);
void gpu_memory_put(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind);
int gpu_share(struct exec *e, void *p, uint64_t bytes);
void gpu_unshare(struct exec *e, void *p, uint64_t bytes);
int gpu_copy_in(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes);
int gpu_is_near(const void *p);
uint64_t gpu_near_bytes(const struct exec *e);

/* gpu_registers.c: pages of a device's registers. known: it is shared already, and has one user more now. */
int gpu_registers_known(void *p);
int gpu_registers_share(void *p, uint64_t bytes);
/* 1: it was such a page. */
int gpu_registers_unshare(void *p);

/* gpu_stream.c */
int gpu_streams_make(struct exec *e, const struct exec_opts *o);
int gpu_stream_wait(struct exec *e, void *stream, uint32_t *flag, uint32_t value);
int gpu_stream_write(struct exec *e, void *stream, uint32_t *flag, uint32_t value);
int gpu_event_write(struct exec *e, void *event, uint32_t *flag, uint32_t value);

/* gpu_green.c: a stream on `asked` SMs of our own (rest 0) or on those that they leave (1). 0, or the driver's error.
 * *sms: how many the stream has. */
int gpu_green_stream(int device, uint32_t asked, int rest, int priority, CUstream *out, uint32_t *sms);

/* gpu_end.c */
int gpu_watch_start(struct exec *e);
void gpu_watch_stop(struct exec *e);
/* The watchdog has something to look at. */
void gpu_watch_wake(struct exec *e);
int gpu_settle(struct exec *e, uint32_t stream);

/* gpu_launch.c */
int gpu_launch(struct exec *e, uint32_t stream, const struct exec_job *job);
/* Loads and runs everything once, so that nothing is loaded while a kernel spins; finds the clocks' difference. */
int gpu_warm_up(struct exec *e);

#endif
