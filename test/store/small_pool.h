/*
 * small_pool.h - one store on a pool in memory, and the words the tests about it speak in.
 */
#ifndef TUTTI_TEST_SMALL_POOL_H
#define TUTTI_TEST_SMALL_POOL_H

#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"

static struct ram_media ram;
static struct store *store;
static struct store_ns *ns;

static inline void pool_format(uint32_t n_dev, uint32_t ranks, uint64_t bytes, uint64_t chunk)
{
	struct store_format_opts f = {.ranks = ranks, .bytes = bytes, .uuid = {1, 2, 3}};

	if (ram.m.n_dev)
		ram_free(&ram);
	ram_init(&ram, n_dev, bytes / n_dev, 0);
	f.segment_bytes = chunk * n_dev * (ranks > 1 && n_dev % ranks == 0 ? 1 : ranks);
	CHECK_EQ(store_format(&ram.m, &f), 0);
}

static inline void pool_open(void)
{
	struct store_open_opts o = lane_open_opts();

	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	CHECK_EQ(store_check(store), 0);
}

static inline void ns_open(const char *model, uint32_t layers, uint64_t object_bytes, uint32_t ranks)
{
	struct tutti_ns_spec spec = lane_spec(model, layers, 2, object_bytes, ranks);

	CHECK_EQ(store_ns_open(store, &spec, &ns, NULL), 0);
}

/* One device, one rank; slots of 4 KiB header and 2 objects of 4 KiB: 5 a chunk of 64 KiB. */
static inline void simple_pool(void)
{
	lane_now = 1000;
	pool_format(1, 1, 2 << 20, 65536);
	pool_open();
	ns_open("m", 1, 4096, 1);
}

static inline void done(void)
{
	CHECK_EQ(store_check(store), 0);
	store_abandon(store);
}

static inline void chain_keys(struct tutti_key *keys, uint64_t chain, size_t n)
{
	for (size_t i = 0; i < n; i++)
		keys[i] = lane_key(chain * 100000 + i);
}

/* Reserves and commits, with data on the medium. Returns how many. */
static inline size_t commit(const struct tutti_key *parent, const struct tutti_key *keys, size_t n, uint32_t ranks)
{
	struct tutti_lease lease;
	struct store_hold_info info;
	struct store_block *b;
	size_t first, count;
	int32_t ok[256] = {0};

	if (store_reserve(ns, parent, keys, n, 1000000, &first, &count, &lease) || !count)
		return 0;
	CHECK(count <= 256);
	b = calloc(count, sizeof(*b));
	CHECK_EQ(store_hold_blocks(ns, &lease, 0, count, &info, b), 0);
	for (uint32_t rank = 0; rank < ranks; rank++) {
		for (size_t i = 0; i < count; i++)
			CHECK_EQ(lane_write(&ram.m, ns, rank, lease.epoch, &info, &b[i],
			                    i ? &b[i - 1].key : &info.parent, LANE_ALL),
			         0);
		CHECK_EQ(store_report(ns, &lease, rank, 0, count, ok), 0);
	}
	free(b);
	return count;
}

static inline size_t matched(const struct tutti_key *keys, size_t n)
{
	size_t m;

	CHECK_EQ(store_lookup(ns, keys, n, 0, &m, NULL), 0);
	return m;
}

static inline struct tutti_ns_info info_of(struct store_ns *of)
{
	struct tutti_ns_info i;

	store_ns_info(of, &i);
	return i;
}

static inline void reopen(int clean)
{
	if (clean)
		CHECK_EQ(store_close(store), 0);
	else
		store_abandon(store);
	pool_open();
}

#endif
