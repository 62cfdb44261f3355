/*
 * ring.c - the host's half of gio_uring.
 *
 * Completions come in any order, waiters want theirs. One waiter at a time is the reaper: it empties the CQ into the
 * per-IOCB results and parks; the others sleep on a condition until it passes the role on. Where the kernel runs on a
 * GPU nobody wakes the reaper: it looks, with naps between that grow from SILENT_NAP_MIN_NS to SILENT_NAP_MAX_NS.
 */
#include "ring/ring.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "port/port.h"

struct slot {
	struct wire_ioctx *ioctx;
	uint32_t room; /* of ioctx */
	uint32_t next_free;
	uint8_t complete;
	uint32_t uses;
	struct ring_result result;
};

#define SILENT_SPIN_NS 20000u
#define SILENT_NAP_MIN_NS 10000u
#define SILENT_NAP_MAX_NS 100000u

struct ring {
	struct wire_ring *shared;
	struct ring_memory memory;
	uint32_t *flags; /* of each IOCB: what a stream waits for; only ever grows */
	struct wire_ioctx *ioctx; /* memory.ioctx of each IOCB */
	uint32_t *holds; /* of each IOCB: what a held one waits for, likewise */
	struct port_parker parker;
	struct slot *slots;
	uint32_t free_head;   /* UINT32_MAX: none */
	pthread_mutex_t lock; /* cq_head, results, free list, reaper */
	pthread_cond_t change;
	uint32_t cq_head;
	int reaping;
};

#define NO_SLOT UINT32_MAX

static void *zeroed(size_t n, size_t size)
{
	void *p = aligned_alloc(64, (n * size + 63) / 64 * 64);

	if (p)
		memset(p, 0, n * size);
	return p;
}

static void *own_get(void *arg, uint64_t bytes, int near)
{
	(void)arg;
	(void)near;
	return zeroed(1, bytes);
}

static void own_put(void *arg, void *p, uint64_t bytes, int near)
{
	(void)arg;
	(void)bytes;
	(void)near;
	free(p);
}

int ring_new(uint32_t depth, struct ring **out)
{
	const struct ring_memory own = {.get = own_get, .put = own_put};

	return ring_new_in(depth, &own, out);
}

static void *get(struct ring *r, size_t n, size_t size, int near)
{
	return r->memory.get(r->memory.arg, n * size, near);
}

static void put(struct ring *r, void *p, size_t n, size_t size, int near)
{
	if (p)
		r->memory.put(r->memory.arg, p, n * size, near);
}

int ring_new_in(uint32_t depth, const struct ring_memory *memory, struct ring **out)
{
	struct wire_ring *w;
	struct ring *r;
	pthread_condattr_t attr;

	if (!depth || depth & (depth - 1) || depth > 65536)
		return err_set(-EINVAL, "ring: depth %u is not a power of two up to 65536", depth);
	r = zeroed(1, sizeof(*r));
	if (!r)
		return err_set(-ENOMEM, "ring: no memory");
	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->change, &attr);
	pthread_condattr_destroy(&attr);
	r->memory = *memory;
	r->shared = w = get(r, 1, sizeof(*w), 0);
	r->slots = zeroed(depth, sizeof(*r->slots));
	r->flags = get(r, depth, sizeof(*r->flags), 0);
	r->holds = get(r, depth, sizeof(*r->holds), 0);
	if (memory->ioctx)
		r->ioctx = get(r, (size_t)depth * memory->ioctx, sizeof(*r->ioctx), 0);
	if (w) {
		w->entries = depth;
		w->host = &r->parker;
		w->iocb = get(r, depth, sizeof(*w->iocb), 0);
		w->sq[0] = get(r, depth * WIRE_STREAMS, sizeof(uint32_t), 0);
		w->cq = get(r, depth, sizeof(*w->cq), 0);
		w->state = get(r, depth, sizeof(*w->state), 1);
		w->cq_tail = get(r, 1, 64, 1);
	}
	if (!w || !w->iocb || !w->sq[0] || !w->cq || !w->state || !w->cq_tail || !r->slots || !r->flags || !r->holds ||
	    (memory->ioctx && !r->ioctx)) {
		ring_free(r);
		return err_set(-ENOMEM, "ring: no memory for %u IOCBs", depth);
	}
	for (uint32_t i = 1; i < WIRE_STREAMS; i++)
		w->sq[i] = w->sq[0] + i * depth;
	for (uint32_t i = 0; i < depth; i++)
		r->slots[i].next_free = i + 1 < depth ? i + 1 : NO_SLOT;
	*out = r;
	return 0;
}

void ring_free(struct ring *r)
{
	struct wire_ring *w;

	if (!r)
		return;
	w = r->shared;
	if (w) {
		for (uint32_t i = 0; !r->ioctx && r->slots && i < w->entries; i++)
			free(r->slots[i].ioctx);
		put(r, r->ioctx, (size_t)w->entries * r->memory.ioctx, sizeof(*r->ioctx), 0);
		put(r, r->holds, w->entries, sizeof(*r->holds), 0);
		put(r, r->flags, w->entries, sizeof(*r->flags), 0);
		put(r, w->cq_tail, 1, 64, 1);
		put(r, w->state, w->entries, sizeof(*w->state), 1);
		put(r, w->cq, w->entries, sizeof(*w->cq), 0);
		put(r, w->sq[0], w->entries * WIRE_STREAMS, sizeof(uint32_t), 0);
		put(r, w->iocb, w->entries, sizeof(*w->iocb), 0);
		put(r, w, 1, sizeof(*w), 0);
	}
	free(r->slots);
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

struct wire_ring *ring_shared(struct ring *r) { return r->shared; }

int ring_get(struct ring *r, uint32_t n_ioctx, struct wire_iocb **out, struct wire_ioctx **ioctx)
{
	struct slot *s;
	uint32_t id;

	if (n_ioctx > WIRE_IOCTX_MAX)
		return err_set(-EINVAL, "ring: %u IOCTX asked, an IOCB holds %u at most", n_ioctx, WIRE_IOCTX_MAX);
	pthread_mutex_lock(&r->lock);
	id = r->free_head;
	if (id != NO_SLOT)
		r->free_head = r->slots[id].next_free;
	pthread_mutex_unlock(&r->lock);
	if (id == NO_SLOT)
		return err_set(-EAGAIN, "ring: all %u IOCBs are out; wait for one and give it back",
		               r->shared->entries);
	s = &r->slots[id];
	if (r->ioctx) {
		s->ioctx = r->ioctx + (size_t)id * r->memory.ioctx;
		s->room = r->memory.ioctx;
	}
	if (s->room < n_ioctx && r->ioctx) {
		ring_put(r, id);
		return err_set(-EINVAL, "ring: %u IOCTX asked, there is room for %u", n_ioctx, r->memory.ioctx);
	}
	if (s->room < n_ioctx) {
		free(s->ioctx);
		s->ioctx = zeroed(n_ioctx, sizeof(*s->ioctx));
		s->room = s->ioctx ? n_ioctx : 0;
		if (!s->ioctx) {
			ring_put(r, id);
			return err_set(-ENOMEM, "ring: no memory for %u IOCTX", n_ioctx);
		}
	}
	s->complete = 0;
	*out = &r->shared->iocb[id];
	memset(*out, 0, sizeof(**out));
	(*out)->id = id;
	/* Higher than any value before, so that a wait for an earlier use stays satisfied. */
	(*out)->flag = (uint64_t)(uintptr_t)&r->flags[id];
	(*out)->flag_value = ++s->uses;
	(*out)->n = n_ioctx;
	(*out)->ioctx = n_ioctx ? (uint64_t)(uintptr_t)s->ioctx : 0;
	(*out)->step = WIRE_STEP_EXPLICIT;
	if (n_ioctx)
		memset(s->ioctx, 0, n_ioctx * sizeof(*s->ioctx));
	if (ioctx)
		*ioctx = n_ioctx ? s->ioctx : NULL;
	return 0;
}

void ring_issue(struct ring *r, uint32_t stream, struct wire_iocb *const *iocbs, uint32_t n, uint32_t *sq_first)
{
	uint32_t tail = r->shared->sq_tail[stream]; /* ours alone */

	*sq_first = tail;
	for (uint32_t i = 0; i < n; i++)
		r->shared->sq[stream][(tail + i) & (r->shared->entries - 1)] = iocbs[i]->id;
	/* Orders the entries before the tail; the launch that follows orders both before the kernel's reads. */
	port_store_release32(&r->shared->sq_tail[stream], tail + n);
}

void ring_unissue(struct ring *r, uint32_t stream, uint32_t n)
{
	port_store_release32(&r->shared->sq_tail[stream], r->shared->sq_tail[stream] - n);
}

/* Empties the CQ into the results. Under the lock. Returns 1 if anything came. */
static int reap(struct ring *r)
{
	int any = 0;

	for (;;) {
		struct wire_ring_cqe *e = &r->shared->cq[r->cq_head & (r->shared->entries - 1)];

		/* Orders the number before the entry and all that the kernel wrote (pairs with dev_ring_post's
		 * release). */
		if (port_load_acquire32(&e->seq) != r->cq_head + 1)
			return any;
		r->slots[e->id].result.status = e->status;
		r->slots[e->id].result.failed = e->failed;
		r->slots[e->id].complete = 1;
		r->cq_head++;
		any = 1;
	}
}

static int next_is_there(struct ring *r)
{
	return port_load_acquire32(&r->shared->cq[r->cq_head & (r->shared->entries - 1)].seq) == r->cq_head + 1;
}

/* Nobody wakes us: looks, then naps, then looks. Without the lock. */
static int silent_sleep(struct ring *r, uint64_t deadline_ns, uint64_t *nap_ns)
{
	uint64_t start = port_now_ns(), now = start;
	struct timespec nap = {.tv_nsec = (long)*nap_ns};

	while (!next_is_there(r) && now - start < SILENT_SPIN_NS && now < deadline_ns) {
		port_pause();
		now = port_now_ns();
	}
	if (next_is_there(r))
		return 0;
	if (now >= deadline_ns)
		return -ETIMEDOUT;
	nanosleep(&nap, NULL); /* a GPU wakes nobody */
	*nap_ns = *nap_ns * 2 < SILENT_NAP_MAX_NS ? *nap_ns * 2 : SILENT_NAP_MAX_NS;
	return 0;
}

/* As the reaper, under the lock: sleeps until a completion comes or the deadline passes. */
static int reaper_sleep(struct ring *r, uint64_t deadline_ns, uint64_t *nap_ns)
{
	int rc = 0;

	r->reaping = 1;
	if (r->memory.silent) {
		pthread_mutex_unlock(&r->lock);
		rc = silent_sleep(r, deadline_ns, nap_ns);
		pthread_mutex_lock(&r->lock);
		r->reaping = 0;
		pthread_cond_broadcast(&r->change);
		return rc;
	}
	port_park_announce(&r->parker);
	/* Orders the announcement before this look (pairs with dev_ring_post's store, then its look at asleep). */
	if (next_is_there(r)) {
		port_park_cancel(&r->parker);
	} else {
		pthread_mutex_unlock(&r->lock);
		rc = port_park_wait(&r->parker, deadline_ns);
		pthread_mutex_lock(&r->lock);
	}
	r->reaping = 0;
	pthread_cond_broadcast(&r->change);
	return rc;
}

int ring_wait(struct ring *r, uint32_t id, uint64_t deadline_ns, struct ring_result *out)
{
	struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
	                     .tv_nsec = (long)(deadline_ns % 1000000000u)};
	uint64_t nap_ns = SILENT_NAP_MIN_NS;
	int late = 0;

	deadline_ns += !deadline_ns; /* 0 is a time that has passed; a parker would take it for "none" */
	pthread_mutex_lock(&r->lock);
	for (;;) {
		/* While another thread is the reaper it may be looking at the head without the lock: only it may move
		 * it. */
		if (!r->reaping && reap(r))
			pthread_cond_broadcast(&r->change);
		if (r->slots[id].complete || late)
			break;
		if (!r->reaping)
			late = reaper_sleep(r, deadline_ns, &nap_ns) == -ETIMEDOUT;
		else
			late = pthread_cond_timedwait(&r->change, &r->lock, &t) == ETIMEDOUT;
	}
	if (r->slots[id].complete) {
		*out = r->slots[id].result;
		late = 0;
	}
	pthread_mutex_unlock(&r->lock);
	return late ? -ETIMEDOUT : 0;
}

int ring_done(struct ring *r, uint32_t id, struct ring_result *out)
{
	int complete;

	pthread_mutex_lock(&r->lock);
	if (!r->reaping && reap(r))
		pthread_cond_broadcast(&r->change);
	complete = r->slots[id].complete;
	if (complete)
		*out = r->slots[id].result;
	pthread_mutex_unlock(&r->lock);
	return complete;
}

int ring_complete(struct ring *r, uint32_t id, int32_t status, uint32_t failed)
{
	struct slot *s = &r->slots[id];
	struct wire_iocb *io = &r->shared->iocb[id];
	int changed;

	pthread_mutex_lock(&r->lock);
	if (!r->reaping)
		reap(r);
	changed = !s->complete && port_load_acquire32(&r->flags[id]) != io->flag_value;
	if (changed) {
		s->result.status = status;
		s->result.failed = failed;
		s->complete = 1;
		port_store_release32(&r->flags[id], io->flag_value);
		pthread_cond_broadcast(&r->change);
	}
	pthread_mutex_unlock(&r->lock);
	return changed;
}

void ring_hold(struct ring *r, struct wire_iocb *io)
{
	io->event = (uint64_t)(uintptr_t)&r->holds[io->id];
	io->event_value = io->flag_value; /* higher than any before, like the flag */
}

void ring_let(struct ring *r, uint32_t id) { port_store_release32(&r->holds[id], r->shared->iocb[id].event_value); }

void ring_put(struct ring *r, uint32_t id)
{
	pthread_mutex_lock(&r->lock);
	r->slots[id].next_free = r->free_head;
	r->slots[id].complete = 0;
	r->free_head = id;
	pthread_mutex_unlock(&r->lock);
}
