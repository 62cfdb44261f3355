/*
 * test_concurrency.c - several threads, each with a lane of its own, on one store and a pool that is smaller than what
 * they want: eviction, leases, syncs and writing ahead all at once. Every byte checked; no lease is left. Meant for
 * ThreadSanitizer too.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"

#define THREADS 3
#define CHAIN 12
#define CHAINS 40u
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 40
#else
#define ROUNDS 150
#endif

static struct rig r[THREADS]; /* one store (r[0]'s); a lane and KV memory each */
static uint32_t wrong, errors, hits, stop;

static void note(int rc, const char *what)
{
	if (rc) {
		printf("# %s: %s\n", what, tutti_error_message());
		__atomic_fetch_add(&errors, 1, __ATOMIC_RELAXED);
	}
}

/* Two chains with a common prefix of half their length, so that branches and shared leases occur. */
static void chain_keys(const struct rig *g, uint32_t chain, struct tutti_key *keys)
{
	uint32_t tokens[CHAIN * 16];

	for (uint32_t i = 0; i < CHAIN * 16; i++)
		tokens[i] = (i < CHAIN * 8 ? chain / 2 * 7919 : chain * 104729 + 1) + i;
	note(tutti_keys(&g->digest, NULL, tokens, 16, NULL, CHAIN, keys), "keys");
}

static void *worker(void *arg)
{
	struct rig *g = arg;
	uint64_t seed = (uint64_t)(g - r) + 77, blocks[CHAIN];
	struct tutti_key keys[CHAIN];

	for (uint32_t i = 0; i < CHAIN; i++)
		blocks[i] = (i * 5 + 2) % g->shape.blocks;
	for (int round = 0; round < ROUNDS; round++) {
		size_t hit, bad, stored;

		chain_keys(g, (uint32_t)(check_random(&seed) % CHAINS), keys);
		note(rig_retrieve(g, keys, CHAIN, blocks, (int)(seed & 1), &hit, &bad), "retrieve");
		for (size_t i = 0; i < hit; i++)
			if (bad || rig_wrong(g, 0, blocks[i], &keys[i]))
				__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&hits, (uint32_t)hit, __ATOMIC_RELAXED);
		if (hit < CHAIN) {
			int rc = rig_store(g, keys, CHAIN, blocks, &stored);

			/* Another thread's lease may hold everything for a moment: that is no fault. */
			note(rc == -ENOSPC ? 0 : rc, "store");
		}
	}
	return NULL;
}

static void *syncer(void *arg)
{
	const struct timespec nap = {.tv_nsec = 3000000};

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		struct tutti_pool_info info;

		note(tutti_store_sync(r[0].store), "sync");
		note(tutti_store_info(r[0].store, &info), "info");
		nanosleep(&nap, NULL); /* between syncs others get a chance */
	}
	return NULL;
}

static void threads_share_a_store(void)
{
	/* 40 chains of 12 blocks, sharing prefixes: about 360 blocks; the pool holds fewer than half of them. */
	struct rig_shape s = {.layers = 3,
	                      .blocks = 24,
	                      .outer_count = 2,
	                      .segment_bytes = 8192,
	                      .order = "LoB",
	                      .pool_bytes = 10u << 20,
	                      .prewrite_segments = 1};
	pthread_t t[THREADS], sync;
	struct tutti_ns_info i;

	rig_up(&r[0], &s);
	for (int k = 1; k < THREADS; k++) {
		rig_shape_memory(&r[k], &s);
		r[k].store = r[0].store;
		r[k].ns = r[0].ns;
		CHECK_EQ(rig_open_lane(&r[k], 0), 0);
	}
	for (int k = 0; k < THREADS; k++)
		pthread_create(&t[k], NULL, worker, &r[k]);
	pthread_create(&sync, NULL, syncer, NULL);
	for (int k = 0; k < THREADS; k++)
		pthread_join(t[k], NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	pthread_join(sync, NULL);
	CHECK_EQ(errors, 0);
	CHECK_EQ(wrong, 0);
	CHECK(hits > 0);
	CHECK_EQ(store_check(r[0].store->st), 0);
	CHECK_EQ(tutti_ns_get_info(r[0].ns, &i), 0);
	CHECK_EQ(i.leased, 0);
	CHECK_EQ(i.reserved, 0);
	CHECK(i.evicted > 0);
	for (int k = 1; k < THREADS; k++)
		CHECK_EQ(rig_close_lanes(&r[k]), 0);
	rig_down(&r[0]);
}

/* ---- waits from other threads ---- */

struct wait_arg {
	struct tutti_plan *plan;
	uint32_t layer;
	int rc;
};

static void *waiter(void *arg)
{
	struct wait_arg *w = arg;

	w->rc = tutti_wait_layer(w->plan, w->layer, rig_now() + 20000000000ull);
	return NULL;
}

static void any_thread_may_wait(void)
{
	struct rig_shape s = {.layers = 8, .blocks = 24, .outer_count = 2, .segment_bytes = 8192, .order = "LoB"};
	uint64_t blocks[CHAIN];
	struct tutti_key keys[CHAIN];
	struct wait_arg w[16];
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint8_t blob[4096];
	pthread_t t[16];
	size_t n, bytes;
	struct rig g;

	rig_up(&g, &s);
	chain_keys(&g, 1, keys);
	for (uint32_t i = 0; i < CHAIN; i++)
		blocks[i] = i;
	CHECK_EQ(rig_store(&g, keys, CHAIN, blocks, &n), 0);
	for (int round = 0; round < 20; round++) {
		CHECK_EQ(tutti_lookup(g.ns, keys, CHAIN, 60000000000ull, &n, &lease), 0);
		CHECK_EQ(tutti_plan_blob(g.ns, &lease, 0, CHAIN, blob, sizeof(blob), &bytes), 0);
		CHECK_EQ(tutti_plan_open(g.lane[0], blob, bytes, blocks, CHAIN, &p), 0);
		CHECK_EQ(tutti_retrieve(p), 0);
		for (uint32_t i = 0; i < 16; i++) {
			w[i] = (struct wait_arg){.plan = p, .layer = i % 8, .rc = 1};
			pthread_create(&t[i], NULL, waiter, &w[i]);
		}
		for (uint32_t i = 0; i < 16; i++)
			pthread_join(t[i], NULL);
		for (uint32_t i = 0; i < 16; i++)
			CHECK_EQ(w[i].rc, 0);
		CHECK_EQ(tutti_plan_finish(p, rig_now() + 20000000000ull, NULL, 0, NULL), 0);
		CHECK_EQ(tutti_release(g.ns, &lease), 0);
	}
	rig_down(&g);
}

/* ---- verify beside stores ---- */

static void *verifier(void *arg)
{
	const struct rig *g = arg;
	uint64_t checked, bad;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		note(tutti_verify(g->ns, 1, NULL, NULL, &checked, &bad), "verify");
		__atomic_fetch_add(&wrong, (uint32_t)bad, __ATOMIC_RELAXED);
	}
	return NULL;
}

/*
 * A slot that is given to the same block anew while it is read has the key that verify expects and bytes that are half
 * the old block's: it must not be taken for damaged, and dropped.
 */
static void verify_leaves_new_blocks_alone(void)
{
	struct rig_shape s = {.layers = 4,
	                      .blocks = 2,
	                      .outer_count = 1,
	                      .segment_bytes = 32768,
	                      .order = "LBo",
	                      .pool_bytes = 8u << 20};
	uint64_t seed = 5, block = 1;
	struct tutti_key key;
	size_t stored, hit;
	pthread_t t;
	struct rig g;

	rig_up(&g, &s);
	stop = wrong = errors = 0;
	pthread_create(&t, NULL, verifier, &g);
	for (int round = 0; round < 10 * ROUNDS; round++) {
		rig_keys(&g, check_random(&seed) % 70, 1, &key);
		CHECK_EQ(rig_store(&g, &key, 1, &block, &stored), 0);
		CHECK_EQ(tutti_lookup(g.ns, &key, 1, 0, &hit, NULL), 0);
		CHECK_EQ(hit, 1); /* nobody else stores, so nothing evicts it */
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	pthread_join(t, NULL);
	CHECK_EQ(errors, 0);
	CHECK_EQ(wrong, 0);
	rig_down(&g);
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(threads_share_a_store);
	CHECK_RUN(any_thread_may_wait);
	CHECK_RUN(verify_leaves_new_blocks_alone);
	scratch_end();
	return check_end();
}
