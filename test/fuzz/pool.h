/*
 * pool.h - a small sound pool for the fuzzers of what is read from disk. A fuzzer changes bytes of it, as patches of
 * (place, value), and seals the checksum again where that is what it is after: a sum only says that bytes are those
 * written.
 */
#ifndef TUTTI_TEST_FUZZ_POOL_H
#define TUTTI_TEST_FUZZ_POOL_H

#include "base/hash.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"
#include "wire/disk.h"

#define POOL_BYTES (900u << 10)
#define POOL_MUST(c)                                                                                                   \
	do {                                                                                                           \
		if (!(c))                                                                                              \
			abort();                                                                                       \
	} while (0)

/* A store is some large allocations, opened and closed many times a second: a quarantine for them is mostly page
 * faults. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=2:thread_local_quarantine_size_kb=64"; }

static struct ram_media pool;
static uint8_t *pool_image;

static inline void pool_put(struct store_ns *ns, int from, int n)
{
	struct tutti_key keys[4], zero = {{0}};
	struct store_hold_info info;
	struct store_block b[4];
	struct tutti_lease l;
	int32_t ok[4] = {0};
	size_t first, count;

	for (int i = 0; i < n; i++)
		keys[i] = lane_key((uint64_t)(from + i));
	POOL_MUST(!store_reserve(ns, NULL, keys, (size_t)n, 1000, &first, &count, &l) && (int)count == n);
	POOL_MUST(!store_hold_blocks(ns, &l, 0, count, &info, b));
	for (size_t i = 0; i < count; i++)
		POOL_MUST(
		    !lane_write(&pool.m, ns, 0, l.epoch, &info, &b[i], i ? &b[i - 1].key : &zero, LANE_HEADER_ONLY));
	POOL_MUST(!store_report(ns, &l, 0, 0, count, ok));
}

/* Two namespaces, some chains; closed or left. */
static inline void pool_make(int clean)
{
	struct store_open_opts o = lane_open_opts();
	struct tutti_ns_spec a = lane_spec("a", 1, 2, 656, 1), b = lane_spec("b", 2, 1, 4097, 1);
	struct store *s;
	struct store_ns *ns;

	if (pool_image)
		return;
	ram_init(&pool, 1, POOL_BYTES, 0);
	POOL_MUST(!store_format(&pool.m,
	                        &(struct store_format_opts){.ranks = 1, .bytes = POOL_BYTES, .segment_bytes = 65536}));
	POOL_MUST(!store_open(&pool.m, &o, &s));
	POOL_MUST(!store_ns_open(s, &a, &ns, NULL));
	for (int i = 0; i < 3; i++)
		pool_put(ns, 10 * i, 4);
	POOL_MUST(!store_ns_open(s, &b, &ns, NULL));
	pool_put(ns, 100, 2);
	if (clean)
		POOL_MUST(!store_close(s));
	else
		store_abandon(s);
	pool_image = malloc(POOL_BYTES);
	memcpy(pool_image, pool.mem[0], POOL_BYTES);
}

static inline void pool_restore(void) { memcpy(pool.mem[0], pool_image, POOL_BYTES); }

/* The patches: two bytes of place, one of value, onto `bytes` bytes at `at`. Value is added: 0 changes nothing. */
static inline void pool_patch(uint8_t *at, size_t bytes, const uint8_t *data, size_t size)
{
	for (; size >= 3; data += 3, size -= 3) {
		size_t place = (size_t)data[0] | (size_t)data[1] << 8;

		at[place % bytes] = (uint8_t)(at[place % bytes] + data[2]);
	}
}

/* Sum field at byte 8, computed with it 0. */
static inline void pool_seal(uint8_t *at, size_t bytes)
{
	uint64_t sum;

	memset(at + 8, 0, 8);
	sum = hash_xxh3(at, bytes);
	memcpy(at + 8, &sum, 8);
}

static inline int pool_count(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                             uint32_t slot)
{
	(void)key;
	(void)parent;
	(void)depth;
	(void)slot;
	++*(uint64_t *)arg;
	return 0;
}

/* Opens what is there; if that works, everything must: counts, a new block, a close and an open. */
static inline void pool_use(void)
{
	struct store_open_opts o = lane_open_opts();
	struct store *s;
	struct store_ns *ns;
	uint64_t before = 0, after = 0;

	if (store_open(&pool.m, &o, &s))
		return;
	POOL_MUST(!store_check(s));
	for (uint32_t i = 0; !store_ns_at(s, i, &ns); i++) {
		struct tutti_key key = lane_key(5000 + i);
		struct tutti_lease l;
		size_t first, count;
		int r = store_reserve(ns, NULL, &key, 1, 1000, &first, &count, &l);

		POOL_MUST(r == 0 || r == -ENOSPC);
		if (!r)
			store_release(ns, &l, 1);
		POOL_MUST(!store_check(s));
		POOL_MUST(!store_ns_each(ns, pool_count, &before));
	}
	if (store_close(s))
		return;
	POOL_MUST(!store_open(&pool.m, &o, &s));
	POOL_MUST(!store_check(s));
	for (uint32_t i = 0; !store_ns_at(s, i, &ns); i++)
		POOL_MUST(!store_ns_each(ns, pool_count, &after));
	POOL_MUST(before == after);
	store_abandon(s);
}

#endif
