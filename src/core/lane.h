/*
 * lane.h - what lane.c, plan.c and write_queue.c share: the data path of one rank.
 */
#ifndef TUTTI_CORE_LANE_H
#define TUTTI_CORE_LANE_H

#include <pthread.h>

#include "core/engine.h"
#include "core/pool.h"
#include "sched/sched.h"
#include "tutti/tutti.h"
#include "wire/blob.h"

#define LANE_PLANS_MAX 4096u

/* Stores wait here for their turn. */
struct write_queue {
	pthread_mutex_t lock;
	struct sched sched;
};

struct tutti_lane {
	struct pool pool;
	struct store_view view;
	struct engine *engine;
	struct engine_opts engine_opts;
	enum tutti_executor executor;
	struct write_queue writes;
	uint64_t deadline_ns; /* of one kernel */
	uint64_t bounce_bytes; /* as asked; 0: the executor's default */
	uint32_t rank;
	uint32_t mem_align_bytes, lba_bytes;
	int no_verify, null_ctrl;
	int gentle[ENGINE_STREAMS]; /* by stream; any thread reads it */
	uint32_t n_plans;
	/* The registered KV memory. */
	struct dev_layout mem;
	uint64_t *layer_base;
	struct engine_room bases; /* layer_base, where device code runs elsewhere */
	uint64_t blocks;
	uint64_t *taken; /* a bit a block: scratch of plan_fill, all zero between calls */
	int registered, kernel_registered, bounce;
	char why[160];
	pthread_mutex_t stats_lock;
	uint64_t failed_blocks, layers_retrieved, layers_stored, stores_dropped, checksum_ns;
	uint32_t sms, queue_depth;
};

static inline int plan_gentle(const struct tutti_lane *l, int stream)
{
	return __atomic_load_n(&l->gentle[stream], __ATOMIC_RELAXED);
}

#define PLAN_NO_IOCB UINT32_MAX

struct tutti_plan {
	struct tutti_lane *lane;
	struct dev_plan dev;
	struct wire_blob blob;
	struct engine_room room;
	struct dev_plan *image, *near_plan; /* of dev, where device code runs elsewhere: to send, and sent */
	struct dev_entry *entries;
	uint8_t (*keys)[WIRE_KEY_BYTES];
	uint32_t *iocb; /* [layers], then headers or invalidate, then commit: id, or PLAN_NO_IOCB */
	uint32_t layers_issued;
	uint64_t first_issued_ns; /* retrieve: the first kernel */
	uint32_t needs_wipe; /* store: some header on disk may be valid */
	int dropped;
	int commit_issued;
};

/* Number of iocb[] for the steps beside layers. */
static inline uint32_t plan_first_step(const struct tutti_plan *p) { return p->dev.geom.layers; }
static inline uint32_t plan_commit_step(const struct tutti_plan *p) { return p->dev.geom.layers + 1; }

/* The deadline of a kernel that starts now for this plan; -ESTALE if its lease leaves no time for I/O. */
int plan_deadline(const struct tutti_plan *p, uint64_t *deadline_ns);

/* io_ns: of one kernel. */
int write_queue_init(struct write_queue *q, uint32_t room, uint64_t io_ns);
void write_queue_free(struct write_queue *q);
/* Queues n (1 or 2) IOCBs in order. -EAGAIN: no room for all of them; none was queued. */
int write_queue_add(struct tutti_lane *l, struct tutti_plan *p, struct wire_iocb *const *iocbs, uint32_t n);
/* Launches what may be launched now. Called whenever something changed. */
void write_queue_kick(struct tutti_lane *l);
/* A read kernel is launched now, and the plan's next one at next_ns or so (SCHED_NEVER: none); write_queue_read_done is
 * its `done`. */
void write_queue_read_begin(struct tutti_lane *l, const struct tutti_plan *p, uint64_t next_ns);
/* The plan will issue none, though it has layers left. */
void write_queue_no_more_reads(struct tutti_lane *l, const struct tutti_plan *p);
void write_queue_read_done(void *lane);

#endif
