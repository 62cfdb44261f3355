/*
 * exec.h - who runs device code. One const struct of functions per executor: host (threads) here, cuda beside it.
 *
 * A stream is a queue of kernels that run one after the other, each by the stream's thread blocks in parallel: block b
 * of kernel k starts when block b of kernel k - 1 has returned (on the host; a GPU waits for all blocks). Streams are
 * independent. Idle streams cost nothing.
 */
#ifndef TUTTI_EXEC_EXEC_H
#define TUTTI_EXEC_EXEC_H

#include <stdint.h>

struct exec;
struct dev_block;

/* *word (shared memory) is at least value. */
struct exec_event {
	uint32_t *word;
	uint32_t value;
};

/* What a kernel is launched with: the ring's entries that it serves. */
struct exec_job {
	void (*kernel)(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count);
	void *arg;
	uint32_t sq_first;
	uint32_t count;
	int gentle; /* cuda: keep less on the link at once than its rate needs: compute beside it loses less */
	/* Start only when all of these are there (0: at once); the array is read during the launch alone. */
	const struct exec_event *events;
	uint32_t n_events;
	/* By the watchdog, once, when deadline_ns has passed and the kernel has not ended: raises its events. It then
	 * starts, if that is what kept it, and finds its deadline passed. */
	void (*late)(void *arg, uint32_t sq_first, uint32_t count);
	/*
	 * Where another processor runs the device code, it is not `kernel` that runs but its own form of dev_io_serve,
	 * over these (in shared memory, one per thread block). Blocks that gave up have exit_rc set; then `gave_up` is
	 * called after the kernel's end and before `done`, with a stream in which no kernel touches a block until it
	 * returned. deadline_ns: of the I/O, for the watchdog.
	 */
	struct dev_block *const *blocks;
	uint32_t n_blocks; /* how many of them; 0: all that the stream has */
	void (*gave_up)(void *arg, uint32_t sq_first, uint32_t count);
	/* After the end of every kernel, before done. */
	void (*ended)(void *arg);
	/* By the watchdog: the kernel did not end in time. Raises what streams wait for; nothing may be freed. */
	void (*lost)(void *arg, uint32_t sq_first, uint32_t count);
	uint64_t deadline_ns;
	/* Called once, by the last block, after all returned. May launch. May be NULL. */
	void (*done)(void *done_arg);
	void *done_arg;
};

struct exec_opts {
	uint32_t streams;
	uint32_t blocks;     /* of each stream */
	uint32_t queue_jobs; /* bound of waiting kernels per stream */
	int sm_domain;       /* cuda: 1: SMs of their own (a green context), where the driver has it */
	int small;           /* cuda: 1: blocks of one warp, which start beside a matrix product that has all SMs */
};

/* Memory that device code reads or writes. */
enum exec_memory {
	EXEC_SHARED = 0, /* the host too */
	EXEC_NEAR = 1,   /* device code alone; the host only through copy_in */
};

struct exec_ops {
	const char *name;
	int (*open)(const struct exec_opts *o, struct exec **out);
	/* Waits for the kernels that were launched (each has its own deadline), then ends. */
	void (*close)(struct exec *e);
	/* Does not wait. -EAGAIN: the stream's queue is full. Any thread. */
	int (*launch)(struct exec *e, uint32_t stream, const struct exec_job *job);
	/* 1: device code runs elsewhere: job.blocks, job.gave_up; its waits wake nobody and nobody wakes them. */
	int remote;
	/* Zeroed, page aligned if it is large. NULL: no memory. Not on the way of a request: it may be slow. */
	void *(*memory_get)(struct exec *e, uint64_t bytes, enum exec_memory kind);
	void (*memory_put)(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind);
	/* Makes memory of somebody else reachable for device code at its own address; whole pages around it. */
	int (*share)(struct exec *e, void *p, uint64_t bytes);
	void (*unshare)(struct exec *e, void *p, uint64_t bytes);
	/* In the stream's order, before kernels launched later: shared (or, from NULL: zeros) into near memory. */
	int (*copy_in)(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes);
	/* The stream's kernels launched so far have ended, then so has this. For after a failure. */
	int (*settle)(struct exec *e, uint32_t stream);
	/* 1: memory of the accelerator; 0: of the host. */
	int (*is_near)(const void *p);
	/* Bytes of near memory that this executor holds. */
	uint64_t (*near_bytes)(const struct exec *e);
	/* The caller's own stream (a CUstream) goes on when *flag (shared) has reached value. -ENOTSUP; -EBUSY: it is
	 * being captured into a graph. */
	int (*stream_wait)(struct exec *e, void *stream, uint32_t *flag, uint32_t value);
	/* *flag (shared) becomes value when the caller's stream has done what it holds now. Likewise. */
	int (*stream_write)(struct exec *e, void *stream, uint32_t *flag, uint32_t value);
	/* The same, when the caller's event (a CUevent that was recorded) is over. */
	int (*event_write)(struct exec *e, void *event, uint32_t *flag, uint32_t value);
	/* "cuda, 2 SMs, green context" */
	const char *(*describe)(struct exec *e);
};

extern const struct exec_ops exec_host;

/* The CUDA executor, NULL in a build without it. exec_cuda_probe: 0 and what it found, or -errno and why not. */
const struct exec_ops *exec_cuda(void);
int exec_cuda_probe(char *text, uint32_t text_bytes);
/* Tries whether GPU threads can reach these pages of a drive's registers. 0, or -errno and why not (err_text). */
int exec_cuda_registers(void *p, uint64_t bytes);
/* A stream (CUstream) of the caller's on the *sms SMs that a domain of io_sms leaves. -ENOTSUP: no green contexts. */
int exec_cuda_compute_stream(uint32_t io_sms, int priority, void **stream, uint32_t *sms);

#endif
