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

/* What a kernel is launched with: the ring's entries that it serves. */
struct exec_job {
	void (*kernel)(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count);
	void *arg;
	uint32_t sq_first;
	uint32_t count;
	/* Start only when *event >= event_value (NULL: at once); given up at event_deadline_ns, then the kernel starts
	 * anyway and finds its own deadline passed. */
	const uint32_t *event;
	uint32_t event_value;
	uint64_t event_deadline_ns;
	/* Called once, by the last block, after all returned. May launch. May be NULL. */
	void (*done)(void *done_arg);
	void *done_arg;
};

struct exec_opts {
	uint32_t streams;
	uint32_t blocks;     /* of each stream */
	uint32_t queue_jobs; /* bound of waiting kernels per stream */
};

struct exec_ops {
	const char *name;
	int (*open)(const struct exec_opts *o, struct exec **out);
	/* Waits for the kernels that were launched (each has its own deadline), then ends. */
	void (*close)(struct exec *e);
	/* Does not wait. -EAGAIN: the stream's queue is full. Any thread. */
	int (*launch)(struct exec *e, uint32_t stream, const struct exec_job *job);
};

extern const struct exec_ops exec_host;

#endif
