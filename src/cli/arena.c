#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "cli/arena.h"
#include "cli/trace.h"

#define HUGE_BYTES (2ull << 20)
#define PAGE_BYTES 4096ull

static void fill_free_list(struct arena *a, uint64_t blocks)
{
	for (uint64_t i = 0; i < blocks; i++)
		a->free[i] = blocks - 1 - i;
	a->n_free = blocks;
	for (uint64_t i = blocks - 1; a->scattered && i > 0; i--) {
		uint64_t k = trace_random(&a->random) % (i + 1), t = a->free[i];

		a->free[i] = a->free[k];
		a->free[k] = t;
	}
}

int arena_open(struct arena *a, const struct arena_shape *shape)
{
	uint64_t layer_bytes, bytes;
	pthread_condattr_t attr;
	int result;

	*a = (struct arena){.layout = TUTTI_KV_LAYOUT_INIT, .random = shape->seed, .scattered = shape->scattered};
	if (shape->blocks < 2 || !shape->layers || !shape->objects || !shape->object_bytes ||
	    __builtin_mul_overflow(shape->blocks, shape->object_bytes, &layer_bytes) ||
	    __builtin_mul_overflow(layer_bytes, shape->objects, &layer_bytes) || layer_bytes > UINT64_MAX / 2)
		return -EINVAL;
	layer_bytes = (layer_bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
	if (__builtin_mul_overflow(layer_bytes, shape->layers, &bytes))
		return -EINVAL;
	a->bases = calloc(shape->layers, sizeof(void *));
	a->free = calloc(shape->blocks, sizeof(*a->free));
	bytes = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
	result = a->bases && a->free ? tutti_standin_open(shape->executor, bytes, shape->sms, &a->standin) : -ENOMEM;
	if (result) {
		free(a->bases);
		free(a->free);
		return result;
	}
	for (uint32_t l = 0; l < shape->layers; l++)
		a->bases[l] = (uint8_t *)tutti_standin_memory(a->standin) + l * layer_bytes;
	a->layout.layers = shape->layers;
	a->layout.blocks = shape->blocks;
	a->layout.layer_base = a->bases;
	a->layout.block_stride = shape->object_bytes;
	a->layout.outer_count = shape->objects;
	a->layout.outer_stride = shape->blocks * shape->object_bytes;
	a->layout.inner_count = 1;
	a->layout.segment_bytes = shape->object_bytes;
	fill_free_list(a, shape->blocks);
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->more, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void arena_close(struct arena *a)
{
	if (!a->standin)
		return;
	tutti_standin_close(a->standin);
	free(a->bases);
	free(a->free);
	pthread_mutex_destroy(&a->lock);
	pthread_cond_destroy(&a->more);
	*a = (struct arena){0};
}

/* Out of the free list: from a random place, so that neighbours of a chain are not neighbours in memory. */
static uint64_t take_one(struct arena *a)
{
	size_t i = a->scattered ? (size_t)(trace_random(&a->random) % a->n_free) : a->n_free - 1;
	uint64_t block = a->free[i];

	a->free[i] = a->free[--a->n_free];
	return block;
}

int arena_take(struct arena *a, size_t n, uint64_t deadline_ns, uint64_t *blocks)
{
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
	                         .tv_nsec = (long)(deadline_ns % 1000000000)};
	int result = n > a->layout.blocks ? -EINVAL : 0;

	pthread_mutex_lock(&a->lock);
	while (!result && a->n_free < n)
		result = -pthread_cond_timedwait(&a->more, &a->lock, &until);
	for (size_t i = 0; !result && i < n; i++)
		blocks[i] = take_one(a);
	pthread_mutex_unlock(&a->lock);
	return result;
}

void arena_give(struct arena *a, size_t n, const uint64_t *blocks)
{
	pthread_mutex_lock(&a->lock);
	for (size_t i = n; i > 0; i--) /* unscattered: the next taker gets them in the same order */
		a->free[a->n_free++] = blocks[i - 1];
	pthread_cond_broadcast(&a->more);
	pthread_mutex_unlock(&a->lock);
}
