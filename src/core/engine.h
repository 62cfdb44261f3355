/*
 * engine.h - a data path put together: controller, executor, ring, P2P map, and the thread blocks' resources. What
 * lanes and the raw gio_uring calls stand on.
 */
#ifndef TUTTI_CORE_ENGINE_H
#define TUTTI_CORE_ENGINE_H

#include <pthread.h>

#include "ctrl/ctrl.h"
#include "dev/plan.h"
#include "exec/exec.h"
#include "map/map.h"
#include "ring/ring.h"
#include "tutti/types.h"

enum { ENGINE_READS = 0, ENGINE_WRITES = 1, ENGINE_STREAMS = WIRE_STREAMS };
#define ENGINE_BLOCKS_MAX 16u

struct engine_opts {
	const struct ctrl_ops *ctrl_ops;
	struct ctrl *ctrl;               /* stays the caller's */
	const struct exec_ops *exec_ops; /* NULL: the host's */
	const struct ctrl_info *info;
	uint32_t blocks; /* of each stream */
	int small;       /* exec_opts.small */
	uint32_t queue_depth;
	uint32_t ring_depth;   /* power of two */
	uint64_t bounce_bytes; /* of all blocks together; 0: none, and no plans then */
	uint64_t command_bytes; /* what the largest command moves, a multiple of 4096; 0: the controller's limit */
	uint32_t ioctx; /* of each IOCB, at most, where device code runs elsewhere; 0: none, plans only */
	uint32_t n_devs;
	/* Of each device: the bytes of it that commands may touch. */
	uint64_t first_byte[TUTTI_DEVICES_MAX], end_byte[TUTTI_DEVICES_MAX];
};

struct engine;

int engine_new(const struct engine_opts *o, struct engine **out);
/* -ENOTRECOVERABLE: something may still write to registered memory; it stays mapped, and so does the engine. */
int engine_free(struct engine *e);
struct ring *engine_ring(struct engine *e);
/* Registers memory for direct transfers. Before the first launch. *registered: with the kernel too. */
int engine_map(struct engine *e, void *va, uint64_t bytes, int *registered);
/* Where device code runs elsewhere: the accelerator's memory for explicit IOCTX. -EINVAL: it is not its. */
int engine_map_near(struct engine *e, void *va, uint64_t bytes);
/* 1: all of it was given to engine_map or engine_map_near, in one go. */
int engine_is_mapped(const struct engine *e, uint64_t va, uint64_t bytes);
/*
 * Issues IOCBs to a stream and launches the kernel, which starts when all of their events are there. Fills in their
 * deadlines. done (may be NULL): called on an executor thread when the kernel has ended. -EAGAIN: queue full, nothing
 * was issued. -ENOTRECOVERABLE: the engine is dead.
 */
struct engine_launch {
	struct wire_iocb *const *iocbs;
	uint32_t n; /* at most DEV_STEPS_MAX */
	uint32_t stream;
	uint32_t blocks;      /* at most so many; 0: all. The host's threads always all */
	int gentle;           /* exec_job.gentle */
	uint64_t deadline_ns; /* absolute */
	void (*done)(void *arg);
	void *done_arg;
};
int engine_launch(struct engine *e, const struct engine_launch *l);
/* 1: device code runs on another processor: plans must lie in engine_room_get's memory, KV memory is never direct. */
int engine_remote(const struct engine *e);
/* 1: reads are pulled from the controller's medium by the I/O kernel (model controller, in place). */
int engine_in_place(const struct engine *e);
/*
 * Room for what device code works on, reserved when the engine was made: cheap. Near room is not there (NULL) where
 * device code runs on the host. -EAGAIN: full.
 */
struct engine_room {
	void *shared, *near;
};
int engine_room_get(struct engine *e, uint64_t shared_bytes, uint64_t near_bytes, struct engine_room *out);
void engine_room_put(struct engine *e, const struct engine_room *room);
/* Before kernels that are launched later. shared NULL: zeros. */
int engine_copy_in(struct engine *e, uint32_t stream, void *near, const void *shared, uint64_t bytes);
/* Bytes of the accelerator's memory that this engine holds. */
uint64_t engine_near_bytes(const struct engine *e);
/*
 * The IOCB, not issued yet, waits for all that the caller's stream holds now, or (not NULL) for the caller's event; on
 * the accelerator, where nobody is in the way. -ENOTSUP, -EBUSY: the stream is being captured.
 */
int engine_stream_hold(struct engine *e, struct wire_iocb *io, void *stream, void *event);
/* The caller's stream waits, on the accelerator, until the IOCB is done. -ENOTSUP, -EBUSY likewise. */
int engine_stream_wait(struct engine *e, uint32_t iocb, void *stream);
/* Makes all running kernels give up (their steps fail with -ECANCELED). */
void engine_abort(struct engine *e);
int engine_dead(const struct engine *e);
/* Sum over all blocks so far. Any thread. */
void engine_stats(struct engine *e, struct dev_stats *out);
const char *engine_executor(const struct engine *e);

#endif
