/*
 * index.c - the index alone, through the public calls: lookups, inserts that evict, memory.
 *
 * Pools of 4 KiB objects, one layer, a sparse file: full of committed blocks in chains of 2,048. The null controller
 * stores them: all decisions, no bytes. An insert is tutti_reserve and tutti_complete of one new block in a full pool;
 * what the lane does in between is not timed, but does leave the caches cold.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define CHAIN 2048
#define LOOKUPS 64
#define ROUNDS 25
#define INSERTS 20000
#define MANY 5000000

static const uint64_t slot_bytes = 8192; /* header and object */

/* Stores chains until `slots` are taken; then, if it is to be `full`, until the first has to be evicted. */
static uint64_t fill(struct bench_rig *r, uint64_t slots, int full)
{
	struct tutti_key *keys = malloc(CHAIN * sizeof(*keys));
	struct tutti_ns_info info = {0};
	uint64_t chains = 0;
	struct bench_cost c;
	size_t stored;

	for (; (chains + 1) * CHAIN <= slots || (full && !info.evicted); chains++) {
		bench_keys(r, chains, CHAIN, keys);
		bench_store(r, r->lane, keys, CHAIN, &stored, &c);
		bench_need(tutti_ns_get_info(r->ns, &info), "info");
	}
	free(keys);
	return chains;
}

static void open_full(struct bench_rig *r, const char *path, uint64_t slots, int full, uint64_t *chains)
{
	struct bench_shape s = {.path = path, .layers = 1, .objects = 1, .object_bytes = 4096, .blocks = CHAIN};

	s.pool_bytes = slots * slot_bytes + slots * slot_bytes / 50 + (256u << 20);
	s.controller = TUTTI_CTRL_NULL;
	s.prewrite = TUTTI_PREWRITE_NONE;
	bench_rig_open(r, &s);
	*chains = fill(r, slots, full);
}

static void lookups(struct bench_rig *r, uint64_t chains)
{
	struct tutti_key *keys = malloc((size_t)LOOKUPS * CHAIN * sizeof(*keys));
	struct bench_row row = {.unit = "million/s", .target = 10, .sense = BENCH_AT_LEAST};
	struct bench_row hash = {.name = "keys of a chain, hashed", .unit = "million/s", .sense = BENCH_NO_TARGET};
	struct bench_series rate = {0}, hashed = {0};

	for (int round = 0; round < ROUNDS; round++) {
		uint64_t t = bench_now_ns();

		for (uint64_t i = 0; i < LOOKUPS; i++)
			bench_keys(r, bench_mix((uint64_t)round * LOOKUPS + i) % chains, CHAIN, keys + i * CHAIN);
		bench_add(&hashed, LOOKUPS * CHAIN * 1e3 / (double)(bench_now_ns() - t));
		t = bench_thread_cpu_ns();
		for (size_t i = 0; i < LOOKUPS; i++) {
			size_t matched;

			bench_need(tutti_lookup(r->ns, keys + i * CHAIN, CHAIN, 0, &matched, NULL), "lookup");
			if (matched != CHAIN)
				bench_need(-1, "a chain is not there");
		}
		bench_add(&rate, LOOKUPS * CHAIN * 1e3 / (double)(bench_thread_cpu_ns() - t));
	}
	snprintf(row.name, sizeof(row.name), "lookup, chain of 2,048 keys, 1 million slots");
	snprintf(row.note, sizeof(row.note),
	         "keys of scattered chains, no lease, keys hashed before; ceiling: the best peer's");
	row.ceiling = 2.0;
	bench_row_of_series(&row, &rate);
	bench_row_of_series(&hash, &hashed);
	free(keys);
}

/* ---- inserts ---- */

static int less(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t insert(struct bench_rig *r, uint64_t seed)
{
	struct tutti_key key;
	struct tutti_lease hold;
	struct tutti_plan *p;
	size_t first, count, bytes;
	const uint32_t tokens[2] = {(uint32_t)seed}; /* two: no key of bench_keys is made so */
	uint64_t t, ns;

	bench_need(tutti_keys(&r->digest, NULL, tokens, 2, NULL, 1, &key), "keys");
	t = bench_now_ns();
	bench_need(tutti_reserve(r->ns, NULL, &key, 1, BENCH_LEASE_NS, &first, &count, &hold), "reserve");
	ns = bench_now_ns() - t;
	bench_need(tutti_plan_blob(r->ns, &hold, 0, 1, r->blob, r->blob_bytes, &bytes), "plan");
	bench_need(tutti_plan_open(r->lane, r->blob, bytes, r->order, 1, &p), "plan");
	bench_need(tutti_store_layer(p, 0), "store");
	bench_need(tutti_plan_finish(p, bench_now_ns() + BENCH_STEP_NS, r->blob, r->blob_bytes, &bytes), "finish");
	t = bench_now_ns();
	bench_need(tutti_complete(r->ns, r->blob, bytes, NULL), "complete");
	ns += bench_now_ns() - t;
	bench_need(tutti_release(r->ns, &hold), "release");
	return (uint32_t)ns;
}

struct tail {
	double p50_us, p99_us;
};

static struct tail inserts(struct bench_rig *r, const char *slots)
{
	struct bench_row row = {.unit = "us", .target = 10, .sense = BENCH_AT_MOST};
	uint32_t *ns = malloc(INSERTS * sizeof(*ns));
	struct tutti_ns_info before, after;
	uint64_t first;
	struct tail t;

	/* A pool that has just become full evicts three for two stored, until a slot in 24 is free: not that state. */
	for (first = 0; first < bench_rig_slots(r) / 10 + CHAIN; first++)
		insert(r, first);
	bench_need(tutti_ns_get_info(r->ns, &before), "info");
	for (uint64_t i = 0; i < INSERTS; i++)
		ns[i] = insert(r, first + i);
	bench_need(tutti_ns_get_info(r->ns, &after), "info");
	qsort(ns, INSERTS, sizeof(*ns), less);
	t = (struct tail){ns[INSERTS / 2] / 1e3, ns[INSERTS * 99 / 100] / 1e3};
	snprintf(row.name, sizeof(row.name), "insert with eviction, %s slots, p99", slots);
	row.value = t.p99_us;
	snprintf(row.note, sizeof(row.note), "p50 %.2f us, %d inserts, %llu evicted, %.1f %% full", t.p50_us, INSERTS,
	         (unsigned long long)(after.evicted - before.evicted),
	         100.0 * (double)after.committed / (double)after.slots);
	bench_row_add(&row);
	free(ns);
	return t;
}

static void memory(struct bench_rig *r, const char *slots)
{
	struct bench_row row = {.unit = "bytes", .target = 100, .sense = BENCH_AT_MOST};
	struct tutti_pool_info pool;

	bench_need(tutti_store_info(r->store, &pool), "info");
	snprintf(row.name, sizeof(row.name), "index memory a slot, %s slots", slots);
	row.value = (double)pool.index_bytes / (double)bench_rig_slots(r);
	bench_row_add(&row);
}

void bench_index(void)
{
	struct bench_row growth = {.name = "insert with eviction, 5 million by 50 thousand slots, p99", .unit = "x"};
	char path[512];
	struct bench_rig r;
	struct tail small, large;
	uint64_t chains;

	snprintf(path, sizeof(path), "%s/bench.pool", bench_opts.dir);
	open_full(&r, path, 50000, 1, &chains);
	small = inserts(&r, "50 thousand");
	bench_rig_close(&r);
	open_full(&r, path, 1000000, 0, &chains);
	lookups(&r, chains);
	memory(&r, "1 million");
	bench_rig_close(&r);
	open_full(&r, path, MANY, 1, &chains);
	large = inserts(&r, "5 million");
	memory(&r, "5 million");
	bench_rig_close(&r);
	unlink(path);
	growth.value = large.p99_us / small.p99_us;
	growth.target = 1.2;
	growth.sense = BENCH_AT_MOST;
	snprintf(growth.note, sizeof(growth.note), "p50: %.2f x: the caches hold less of it",
	         large.p50_us / small.p50_us);
	bench_row_add(&growth);
}
