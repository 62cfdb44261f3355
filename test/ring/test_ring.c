/*
 * test_ring.c - IOCBs out and back: bounds, order, completions in any order for many waiters, no lost wake. Meant to be
 * run under ThreadSanitizer too.
 */
#include <errno.h>
#include <pthread.h>

#include "check.h"
#include "dev/finish.h"
#include "ring/ring.h"

static void bounds(void)
{
	struct wire_iocb *io, *held[4];
	struct wire_ioctx *c;
	struct ring *r;

	CHECK_EQ(ring_new(0, &r), -EINVAL);
	CHECK_EQ(ring_new(3, &r), -EINVAL);
	CHECK_EQ(ring_new(1u << 17, &r), -EINVAL);
	CHECK_EQ(ring_new(4, &r), 0);
	CHECK_EQ(ring_get(r, WIRE_IOCTX_MAX + 1, &io, &c), -EINVAL);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(ring_get(r, (uint32_t)i, &held[i], &c), 0);
	CHECK_EQ(ring_get(r, 0, &io, NULL), -EAGAIN);
	ring_put(r, held[2]->id);
	CHECK_EQ(ring_get(r, WIRE_IOCTX_MAX, &io, &c), 0);
	CHECK_EQ(io->id, held[2]->id);
	CHECK(c[WIRE_IOCTX_MAX - 1].bytes == 0);
	ring_free(r);
}

static void wait_has_a_deadline(void)
{
	struct wire_iocb *io;
	struct ring_result res;
	struct ring *r;
	uint32_t first;

	CHECK_EQ(ring_new(4, &r), 0);
	CHECK_EQ(ring_get(r, 0, &io, NULL), 0);
	ring_issue(r, 0, &io, 1, &first);
	CHECK_EQ(ring_done(r, io->id, &res), 0);
	CHECK_EQ(ring_wait(r, io->id, port_now_ns() + 3000000, &res), -ETIMEDOUT);
	dev_ring_post(ring_shared(r), io->id, -5, 7);
	CHECK_EQ(ring_wait(r, io->id, port_now_ns() + 1000000000, &res), 0);
	CHECK_EQ(res.status, -5);
	CHECK_EQ(res.failed, 7);
	CHECK_EQ(ring_done(r, io->id, &res), 1);
	ring_free(r);
}

/* ---- many waiters, completions in any order ---- */

#define DEPTH 64u
#define WAITERS 4
#define ROUNDS 4000u

struct world {
	struct ring *ring;
	uint32_t issued[WAITERS]; /* id + 1 of each waiter's IOCB; 0: none */
	uint32_t stop;
	uint32_t failures;
	pthread_mutex_t get_lock;
};

static struct world w;

static void *kernel(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg + 1;

	/* Two such threads; each serves half of the waiters, in random order. */
	while (!port_load_acquire32(&w.stop)) {
		uint32_t k = (uint32_t)(check_random(&seed) % (WAITERS / 2)) * 2 + (uint32_t)(uintptr_t)arg;
		uint32_t id = port_load_acquire32(&w.issued[k]);

		if (!id)
			continue;
		port_store_release32(&w.issued[k], 0);
		dev_ring_post(ring_shared(w.ring), id - 1, (int32_t)id, k);
	}
	return NULL;
}

static void *waiter(void *arg)
{
	uint32_t k = (uint32_t)(uintptr_t)arg;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct wire_iocb *io;
		struct ring_result res;
		uint32_t first;
		int rc;

		pthread_mutex_lock(&w.get_lock); /* get and issue: one thread at a time */
		rc = ring_get(w.ring, 0, &io, NULL);
		if (!rc)
			ring_issue(w.ring, k & 1, &io, 1, &first);
		pthread_mutex_unlock(&w.get_lock);
		if (!rc) {
			port_store_release32(&w.issued[k], io->id + 1);
			rc = ring_wait(w.ring, io->id, port_now_ns() + 10000000000ull, &res);
			if (!rc && (res.status != (int32_t)io->id + 1 || res.failed != k))
				rc = -1;
			ring_put(w.ring, io->id);
		}
		if (rc)
			port_add_acqrel32(&w.failures, 1);
	}
	return NULL;
}

static void many_waiters(void)
{
	pthread_t kernels[2], waiters[WAITERS];

	memset(&w, 0, sizeof(w));
	pthread_mutex_init(&w.get_lock, NULL);
	CHECK_EQ(ring_new(DEPTH, &w.ring), 0);
	for (uintptr_t i = 0; i < 2; i++)
		pthread_create(&kernels[i], NULL, kernel, (void *)i);
	for (uintptr_t i = 0; i < WAITERS; i++)
		pthread_create(&waiters[i], NULL, waiter, (void *)i);
	for (int i = 0; i < WAITERS; i++)
		pthread_join(waiters[i], NULL);
	port_store_release32(&w.stop, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(kernels[i], NULL);
	CHECK_EQ(w.failures, 0);
	ring_free(w.ring);
}

int main(void)
{
	CHECK_RUN(bounds);
	CHECK_RUN(wait_has_a_deadline);
	CHECK_RUN(many_waiters);
	return check_end();
}
