/* store.h - what store.c, background.c, blocks.c and verify.c share: the public store handle. */
#ifndef TUTTI_CORE_STORE_H
#define TUTTI_CORE_STORE_H

#include <errno.h>
#include <pthread.h>

#include "core/pool.h"
#include "store/store.h"
#include "tutti/tutti.h"

struct tutti_ns {
	struct tutti_store *store;
	struct store_ns *ns;
};

struct tutti_store {
	pthread_mutex_t lock; /* everything of store/ */
	struct pool pool;
	struct media *media;      /* under the lock */
	struct media *background; /* the background thread's own, so that a flush holds nobody up */
	struct store *st;
	struct tutti_ns ns[STORE_NAMESPACES_MAX];
	uint32_t n_ns;
	enum tutti_controller controller;
	struct tutti_model_timing timing;
	/* The background thread: syncs what was committed, writes segments ahead of use. */
	pthread_t thread;
	pthread_cond_t wake;
	int thread_started, stop;
	int sync_asked;            /* something was committed: sync at sync_due_ns */
	uint64_t sync_interval_ns; /* UINT64_MAX: never */
	uint64_t sync_due_ns;
	uint32_t syncs_failed; /* in a row */
	uint32_t prewrite_ahead;
	int prewrite_asked;
	int deallocate_asked; /* a clear left segments, and a device can be told */
	int deallocation_told; /* of the first failure was told; the others are counted */
	int lent;                /* a segment is, to the background thread: nobody can have it meanwhile */
	int lent_cancel;         /* it is wanted, or the store closes. Atomic */
	pthread_cond_t lent_end; /* it is lent no more */
	pthread_mutex_t sync_lock; /* one sync at a time */
};

/* A block's result says that it is bad on disk: a media error (status code type 2), a checksum, another block's
 * header. A timeout or a dropped plan says nothing about it. */
static inline int core_says_damaged(int result) { return result >> 8 == 2 || result == -EBADMSG || result == -ESTALE; }

/*
 * The way into every public call on a store or its namespaces: takes the lock. -EINVAL: this process is a child, made
 * by fork, of the one whose store it is; who held the lock may not be here. `call` is for the message.
 */
int core_enter(struct tutti_store *s, const char *call);

int background_start(struct tutti_store *s);
void background_stop(struct tutti_store *s);
/*
 * For who finds no other: gives up the segment that is being written ahead. Under the lock, which is let go meanwhile;
 * the I/O in flight ends by its deadline. 1: there was one.
 */
int background_yield(struct tutti_store *s);
/* Something was committed, or a segment may have been taken. Under the lock. */
void background_poke(struct tutti_store *s, int committed);
/* Segments may have been left. Under the lock. */
void background_deallocate(struct tutti_store *s);

#endif
