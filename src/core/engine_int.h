/*
 * engine_int.h - inside the engine: engine.c (made and freed, launches, room), engine_block.c (what a thread block
 * owns), engine_kernel.c (what runs, and what happens to what gave up).
 */
#ifndef TUTTI_CORE_ENGINE_INT_H
#define TUTTI_CORE_ENGINE_INT_H

#include "core/engine.h"
#include "core/plan_room.h"

struct engine_block {
	struct dev_block dev;
	struct port_parker parker;
	struct engine *engine;
	uint8_t *memory; /* list pages, then bounce buffers; mapped for the controller */
	uint64_t memory_bytes;
	uint64_t steps_bytes;
	int mapped, shared;
};

/* What an executor's job points to. */
struct engine_stream {
	struct engine *engine;
	uint32_t index;
	struct engine_block *blocks[ENGINE_BLOCKS_MAX];
	struct dev_block *devs[ENGINE_BLOCKS_MAX];
};

struct engine {
	struct engine_opts o;
	struct ctrl_info info;
	struct ring *ring;
	const struct exec_ops *exec_ops;
	struct exec *exec;
	struct map map;
	struct engine_stream streams[ENGINE_STREAMS];
	pthread_mutex_t ctrl_lock;  /* set-up calls of the controller */
	pthread_mutex_t issue_lock; /* SQ order is launch order */
	uint32_t *abort;            /* shared */
	uint32_t dead;
	uint32_t in_place; /* namespaces whose medium device code reaches: all or none once the engine is made */
	uint64_t medium[CTRL_NS_MAX];
	/* Room for plans; where device code runs on the host, malloc is the room. */
	pthread_mutex_t room_lock;
	uint8_t *room_shared, *room_near;
	struct plan_room shared_room, near_room;
};

void *engine_shared_get(struct engine *e, uint64_t bytes);
void engine_shared_put(struct engine *e, void *p, uint64_t bytes);

/* engine_block.c. Memory for the controller, and how it sees it. */
int engine_map_memory(struct engine *e, void *va, uint64_t bytes, int *registered);
int engine_block_new(struct engine *e, uint32_t stream, struct engine_block **out);
/* -ENOTRECOVERABLE: the queue pair could not be deleted; nothing of the block may be freed. */
int engine_block_free(struct engine *e, struct engine_block *b);
/* Resets the queue pairs of a block whose kernel gave up. 0: memory is safe again; dev_block_reset is the caller's. */
int engine_block_recover(struct engine *e, struct engine_block *b);

/* engine_kernel.c: what executors call; arg is a struct engine_stream. */
void engine_kernel(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count);
void engine_kernel_gave_up(void *arg, uint32_t sq_first, uint32_t count);
void engine_kernel_late(void *arg, uint32_t sq_first, uint32_t count);
void engine_kernel_lost(void *arg, uint32_t sq_first, uint32_t count);
void engine_kernel_ended(void *arg);
/* A controller made of software spins while a kernel looks at its queues, which can't wake it. */
void engine_controller_awake(struct engine *e, int by);

#endif
