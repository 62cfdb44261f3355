/*
 * arena.h - paged KV memory of an engine stand-in: layers, each with the K of all blocks, then the V of all blocks (the
 * classic split layout), and a free list that hands block numbers out scattered.
 */
#ifndef TUTTI_CLI_ARENA_H
#define TUTTI_CLI_ARENA_H

#include <pthread.h>
#include <tutti/types.h>

struct arena {
	struct tutti_kv_layout layout;
	void **bases;
	uint8_t *memory;
	size_t memory_bytes;
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
};

/* -EINVAL: sizes overflow or are zero; -ENOMEM. The memory is zero and aligned to 2 MiB. */
int arena_open(struct arena *a, const struct arena_shape *shape);
void arena_close(struct arena *a);
/* Takes n blocks, all at once; waits for others to give theirs back, until deadline_ns. -ETIMEDOUT. */
int arena_take(struct arena *a, size_t n, uint64_t deadline_ns, uint64_t *blocks);
void arena_give(struct arena *a, size_t n, const uint64_t *blocks);
static inline uint8_t *arena_at(const struct arena *a, uint32_t layer, uint64_t block, uint32_t object)
{
	return (uint8_t *)a->layout.layer_base[layer] + block * a->layout.block_stride +
	       object * a->layout.outer_stride;
}

#endif
