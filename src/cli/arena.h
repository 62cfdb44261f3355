/*
 * arena.h - paged KV memory of an engine stand-in, the host's or a GPU's: layers, each with the K of all blocks, then
 * the V of all blocks (the classic split layout), and a free list that hands block numbers out scattered.
 */
#ifndef TUTTI_CLI_ARENA_H
#define TUTTI_CLI_ARENA_H

#include <pthread.h>
#include <tutti/standin.h>

struct arena {
	struct tutti_kv_layout layout;
	void **bases;
	struct tutti_standin *standin; /* holds the memory */
	uint64_t *free; /* the block numbers that are free; taken from the end */
	size_t n_free;
	uint64_t random;
	int scattered;
	pthread_mutex_t lock;
	pthread_cond_t more;
};

struct arena_shape {
	uint32_t layers, objects; /* objects of a layer: 2 for K and V */
	uint64_t object_bytes;
	uint64_t blocks;          /* at least 2: K and V of a single block would touch and be one object */
	uint64_t seed;
	int scattered;
	enum tutti_executor executor; /* of the lanes to come: whose the memory is */
	uint32_t sms;
};

/* -EINVAL: sizes overflow or are zero; -ENOMEM, and what tutti_standin_open says. The memory is zero. */
int arena_open(struct arena *a, const struct arena_shape *shape);
void arena_close(struct arena *a);
/* Takes n blocks, all at once; waits for others to give theirs back, until deadline_ns. -ETIMEDOUT. */
int arena_take(struct arena *a, size_t n, uint64_t deadline_ns, uint64_t *blocks);
void arena_give(struct arena *a, size_t n, const uint64_t *blocks);

#endif
