/* test_store.c - pools, segments, namespaces, reopening: the store's calls one by one, on a pool in memory. */
#include "store/small_pool.h"

static void format_says_what_probe_reads(void)
{
	struct store_probe p;
	const char *paths[2] = {"/a/b", "/c"};
	struct store_format_opts f = {.paths = paths, .ranks = 2, .bytes = 8 << 20, .uuid = {9}};

	if (ram.m.n_dev)
		ram_free(&ram);
	ram_init(&ram, 2, 4 << 20, 0);
	CHECK_EQ(store_probe(&ram.m, 0, &p), -ENOMEDIUM);
	CHECK_EQ(store_format(&ram.m, &f), 0);
	for (uint32_t d = 0; d < 2; d++) {
		CHECK_EQ(store_probe(&ram.m, d, &p), 0);
		CHECK(p.device == d && p.n_dev == 2 && p.ranks == 2 && p.bytes == 8 << 20 && p.uuid[0] == 9 &&
		      p.version == 1);
		CHECK(!strcmp(p.paths[0], "/a/b") && !strcmp(p.paths[1], "/c"));
		CHECK(p.device_bytes <= 4 << 20 && p.n_segments >= 24 && p.chunk_bytes % 4096 == 0);
	}
	f.bytes = 500 << 10;
	CHECK_EQ(store_format(&ram.m, &f), -EINVAL);
	CHECK(strstr(err_text(), "at least that"));
	f.bytes = 64 << 20;
	CHECK_EQ(store_format(&ram.m, &f), -EINVAL);
	CHECK(strstr(err_text(), "fewer bytes"));
	f.bytes = 8 << 20;
	f.ranks = 0;
	CHECK_EQ(store_format(&ram.m, &f), -EINVAL);
	CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
	CHECK_EQ(store_probe(&ram.m, 2, &p), -EINVAL);
}

static void format_chooses_sensible_segments(void)
{
	static const uint64_t sizes[] = {1ull << 21, 1ull << 24,  1ull << 28, 1ull << 30,
	                                 8ull << 30, 64ull << 30, 1ull << 40};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct store_format_opts f = {.ranks = 1, .bytes = sizes[i]};
		struct store_probe p;
		struct ram_media big;

		ram_init(&big, 1, sizes[i], 0);
		CHECK_EQ(store_format(&big.m, &f), 0);
		CHECK_EQ(store_probe(&big.m, 0, &p), 0);
		CHECK(p.n_segments >= 20 && p.n_segments <= 2048);
		CHECK(sizes[i] < 2ull << 30 || p.chunk_bytes >= 64 << 20);
		CHECK(p.chunk_bytes <= 1 << 30);
		CHECK(p.chunk_bytes * p.n_segments >= sizes[i] * 9 / 10 || sizes[i] < 1ull << 25);
		ram_free(&big);
	}
}

static void reopen_finds_what_was_there(void)
{
	struct tutti_key k[40];
	struct store_block b[40];
	struct store_hold_info info;
	struct tutti_pool_info p;
	struct tutti_lease l, stale = {0};
	size_t m;

	for (int clean = 0; clean < 2; clean++) {
		simple_pool();
		chain_keys(k, 1, 40);
		CHECK_EQ(commit(NULL, k, 40, 1), 40);
		CHECK_EQ(store_lookup(ns, k, 40, 1000, &m, &stale), 0);
		reopen(clean);
		CHECK_EQ(store_ns_at(store, 0, &ns), 0);
		CHECK_EQ(store_ns_at(store, 1, &ns), -ENOENT);
		ns_open("m", 1, 4096, 1);
		store_info(store, &p);
		CHECK(p.clean == clean && p.epoch == 2 && p.recovered_slots == (clean ? 0 : 40) && !p.recovered_bad);
		CHECK_EQ(matched(k, 40), 40);
		CHECK_EQ(store_lookup(ns, k, 40, 1000, &m, &l), 0);
		CHECK_EQ(store_hold_blocks(ns, &l, 0, 40, &info, b), 0);
		for (int i = 0; i < 40; i++) {
			CHECK((int)b[i].depth == i && b[i].flags == (clean ? STORE_BLOCK_SYNCED : 0u));
			CHECK_EQ(lane_read(&ram.m, ns, 0, &k[i], b[i].slot), LANE_RIGHT);
		}
		CHECK_EQ(store_hold_blocks(ns, &stale, 0, 1, &info, b), -ESTALE);
		CHECK_EQ(store_release(ns, &stale, 0), 0);
		/* What is not sure stays not sure over a clean close. */
		reopen(1);
		CHECK_EQ(store_ns_at(store, 0, &ns), 0);
		CHECK_EQ(store_lookup(ns, k, 40, 1000, &m, &l), 0);
		CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, b), 0);
		CHECK_EQ(b[0].flags, clean ? STORE_BLOCK_SYNCED : 0);
		done();
	}
}

static void clear_empties_for_good(void)
{
	struct tutti_key k[40];
	struct tutti_pool_info p;
	uint64_t generation;

	simple_pool();
	chain_keys(k, 1, 40);
	CHECK_EQ(commit(NULL, k, 40, 1), 40);
	generation = store_ns_generation(ns);
	CHECK_EQ(store_ns_clear(ns), 0);
	CHECK(store_ns_generation(ns) == generation + 1 && matched(k, 40) == 0);
	store_info(store, &p);
	CHECK(p.segments_free == p.segments);
	reopen(0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	CHECK_EQ(matched(k, 40), 0);
	CHECK_EQ(commit(NULL, k, 20, 1), 20);
	reopen(0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	CHECK_EQ(matched(k, 40), 20); /* and not what lies there from before */
	done();
}

static void a_removed_namespace_is_gone(void)
{
	struct tutti_key k[40];
	struct tutti_pool_info p;
	struct tutti_lease lease;
	struct store_ns *none;
	uint64_t generation;
	size_t m;

	simple_pool();
	chain_keys(k, 1, 40);
	CHECK_EQ(commit(NULL, k, 40, 1), 40);
	generation = store_ns_generation(ns);
	CHECK_EQ(store_lookup(ns, k, 40, 1000000, &m, &lease), 0);
	CHECK_EQ(store_ns_remove(ns), -EBUSY);
	CHECK_EQ(store_release(ns, &lease, 0), 0);
	CHECK_EQ(store_ns_remove(ns), 0);
	CHECK_EQ(store_check(store), 0);
	CHECK_EQ(store_ns_at(store, 0, &none), -ENOENT);
	store_info(store, &p);
	CHECK(p.n_namespaces == 0 && p.segments_free == p.segments);
	/* The same again, in the same epoch: another namespace, and after a crash nothing of the old one is in it. */
	ns_open("m", 1, 4096, 1);
	CHECK(store_ns_generation(ns) != generation && matched(k, 40) == 0);
	CHECK_EQ(commit(NULL, k, 20, 1), 20);
	reopen(0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	CHECK_EQ(matched(k, 40), 20);
	CHECK_EQ(store_ns_remove(ns), 0);
	for (int clean = 1; clean >= 0; clean--) {
		reopen(clean);
		store_info(store, &p);
		CHECK(p.n_namespaces == 0 && p.segments_free == p.segments && p.damaged_records == 0);
	}
	for (uint32_t i = 0; i < 2 * STORE_NAMESPACES_MAX; i++) {
		ns_open(i % 2 ? "a" : "b", 1, 4096, 1);
		CHECK_EQ(store_ns_remove(ns), 0);
	}
	done();
}

/* Cut short at any write or flush it leaves the namespace as it was, or empty, or gone: never a part of it. */
static void a_removal_that_is_cut_short(void)
{
	struct tutti_key k[10];
	uint32_t steps = 7; /* clear: two copies, each flushed; then both wiped, and flushed */

	for (uint32_t at = 0; at <= steps; at++) {
		struct tutti_pool_info p;
		size_t n;

		simple_pool();
		chain_keys(k, 1, 10);
		CHECK_EQ(commit(NULL, k, 10, 1), 10);
		ram.fault = RAM_STOP;
		ram.fault_at = ram.n_io + at;
		CHECK(!store_ns_remove(ns) == (at == steps));
		ram.fault = RAM_OK;
		ram.stopped = 0;
		reopen(0);
		store_info(store, &p);
		CHECK_EQ(p.damaged_records, 0);
		CHECK(p.n_namespaces == 1 || at >= 6);
		if (p.n_namespaces) {
			CHECK_EQ(store_ns_at(store, 0, &ns), 0);
			n = matched(k, 10);
			CHECK(n == 0 || (n == 10 && at == 0));
		}
		done();
	}
}

static void namespaces_share_fairly(void)
{
	struct store_ns *a, *b;
	struct tutti_key k[5];
	uint64_t all;

	simple_pool();
	a = ns;
	for (uint64_t i = 0; i < 200; i++) {
		chain_keys(k, i, 5);
		CHECK_EQ(commit(NULL, k, 5, 1), 5);
	}
	all = info_of(a).segments;
	ns_open("other", 1, 8192, 1);
	b = ns;
	for (uint64_t i = 0; i < 200; i++) {
		chain_keys(k, 1000 + i, 5);
		CHECK_EQ(commit(NULL, k, 5, 1), 5);
		CHECK_EQ(matched(k, 5), 5);
		CHECK_EQ(store_check(store), 0);
	}
	CHECK_EQ(info_of(b).segments, all / 2);
	CHECK_EQ(info_of(a).segments, all - all / 2);
	reopen(0);
	CHECK_EQ(store_ns_at(store, 1, &ns), 0);
	CHECK_EQ(matched(k, 5), 5);
	CHECK_EQ(info_of(ns).segments, all / 2);
	/* Ten minutes without use: the other has no share any more. */
	CHECK_EQ(store_ns_at(store, 0, &a), 0);
	lane_now += 601ull * 1000000000;
	for (uint64_t i = 0; i < 300; i++) {
		chain_keys(k, 5000 + i, 5);
		CHECK_EQ(commit(NULL, k, 5, 1), 5);
	}
	CHECK_EQ(info_of(ns).segments, all);
	CHECK_EQ(info_of(a).segments, 0);
	done();
}

struct all_right {
	uint64_t n, wrong;
};

static int read_one(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                    uint32_t slot)
{
	struct all_right *a = arg;

	(void)parent;
	(void)depth;
	a->n++;
	a->wrong += lane_read(&ram.m, ns, 0, key, slot) != LANE_RIGHT;
	return 0;
}

/* What lies in a segment from before it went to another owner and came back is void, though its headers are sound. */
static void old_headers_are_void_when_a_segment_comes_back(void)
{
	struct tutti_key k[5];
	struct all_right a = {0};
	uint64_t all;

	simple_pool();
	for (uint64_t i = 0; i < 300; i++) { /* first blocks all: none of them is lost with a parent */
		chain_keys(k, i, 1);
		CHECK_EQ(commit(NULL, k, 1, 1), 1);
	}
	all = info_of(ns).segments;
	ns_open("other", 1, 8192, 1);
	chain_keys(k, 500, 2);
	CHECK_EQ(commit(NULL, k, 2, 1), 2); /* overwrites some of the first one's objects, not all of its headers */
	CHECK_EQ(info_of(ns).segments, 1);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	lane_now += 601ull * 1000000000; /* the other is idle */
	chain_keys(k, 600, 1);
	while (info_of(ns).segments < all) {
		k[0] = lane_key(700000 + lane_now++);
		CHECK_EQ(commit(NULL, k, 1, 1), 1);
	}
	reopen(0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	CHECK_EQ(store_ns_each(ns, read_one, &a), 0);
	CHECK(a.n > 20 && a.wrong == 0);
	done();
}

static void the_later_of_two_copies_wins(void)
{
	struct tutti_key k[1];
	struct store_hold_info info;
	struct store_block before, after, found;
	struct tutti_lease l;
	size_t m;

	lane_now = 1000;
	pool_format(1, 1, 8 << 20, 1536 << 10); /* four sets a segment: what is free last is used last */
	pool_open();
	ns_open("m", 1, 4096, 1);
	chain_keys(k, 1, 1);
	CHECK_EQ(commit(NULL, k, 1, 1), 1);
	CHECK_EQ(store_lookup(ns, k, 1, 10, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, &before), 0);
	CHECK_EQ(store_release(ns, &l, 0), 0);
	CHECK_EQ(store_drop(ns, before.slot, k), 1);
	CHECK_EQ(commit(NULL, k, 1, 1), 1);
	CHECK_EQ(store_lookup(ns, k, 1, 10, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, &after), 0);
	CHECK(before.slot != after.slot);
	reopen(0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
	CHECK_EQ(store_lookup(ns, k, 1, 10, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, &found), 0);
	CHECK_EQ(found.slot, after.slot);
	done();
}

#define SEGMENT_RECORDS (16384 + 524288) /* where they begin; two copies each */

/* A reservation waits for one flush, however many segments it opens, and the next one in them for none. */
static void a_reservation_opens_its_segments_by_one_flush(void)
{
	struct tutti_key k[70];
	uint64_t flushes;

	simple_pool();
	chain_keys(k, 1, 70);
	flushes = ram.n_flushes;
	CHECK_EQ(commit(NULL, k, 42, 1), 42);
	CHECK_EQ(info_of(ns).segments, 9);
	CHECK_EQ(ram.n_flushes - flushes, 1);
	CHECK_EQ(commit(&k[41], &k[42], 3, 1), 3); /* as many as were left */
	CHECK_EQ(ram.n_flushes - flushes, 1);
	/* Both copies say so. */
	for (uint32_t copy = 0; copy < 2; copy++) {
		struct store_probe p;

		CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
		store_abandon(store);
		for (uint32_t i = 0; i < p.n_segments; i++)
			memset(ram.mem[0] + SEGMENT_RECORDS + (2ull * i + copy) * 4096, 0, 4096);
		pool_open();
		ns_open("m", 1, 4096, 1);
		CHECK_EQ(info_of(ns).segments, 9);
		CHECK_EQ(matched(k, 45), 45);
	}
	/* What can't be made durable is not used, and the pool goes on without it. */
	ram.fault = RAM_FAIL;
	ram.n_io = 0;
	ram.fault_at = 2; /* of two records: the flush */
	CHECK_EQ(commit(&k[44], &k[45], 8, 1), 0);
	ram.fault = RAM_OK;
	CHECK_EQ(info_of(ns).segments, 9);
	CHECK_EQ(commit(&k[44], &k[45], 8, 1), 8);
	CHECK_EQ(info_of(ns).segments, 11);
	done();
}

static void held_segments_are_not_taken(void)
{
	struct store_ns *a, *b;
	struct tutti_key k[250], other[5];
	struct tutti_lease l;
	size_t m, n = 0;

	simple_pool();
	a = ns;
	chain_keys(k, 1, 250);
	n = commit(NULL, k, 250, 1);
	CHECK(n > 50);
	CHECK_EQ(store_lookup(a, k, n, 1000, &m, &l), 0);
	CHECK_EQ(m, n);
	ns_open("other", 1, 4096, 1);
	b = ns;
	chain_keys(other, 2, 5);
	CHECK_EQ(commit(NULL, other, 5, 1), 0); /* every segment holds an ancestor of the leased block */
	CHECK_EQ(store_check(store), 0);
	CHECK_EQ(store_release(a, &l, 0), 0);
	CHECK_EQ(commit(NULL, other, 5, 1), 5);
	CHECK_EQ(info_of(b).segments, 1);
	ns = a;
	CHECK(matched(k, n) < n);
	done();
}

static void prewriting(void)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	struct tutti_pool_info p;
	struct tutti_key k[5];
	uint32_t segment, n = STORE_EXTENTS_MAX, again;

	lane_now = 1000;
	pool_format(2, 3, 8 << 20, 65536); /* three ranks share two devices */
	pool_open();
	n = 5;
	CHECK_EQ(store_prewrite_next(store, 1, &segment, e, &n), -ENOBUFS);
	n = STORE_EXTENTS_MAX;
	CHECK_EQ(store_prewrite_next(store, 1, &segment, e, &n), 0);
	CHECK(n == 6 && e[0].bytes == 65536);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < i; j++)
			CHECK(e[i].dev != e[j].dev || e[i].offset_bytes + e[i].bytes <= e[j].offset_bytes ||
			      e[j].offset_bytes + e[j].bytes <= e[i].offset_bytes);
	CHECK_EQ(store_prewrite_done(store, segment, 0), 0);
	CHECK_EQ(store_prewrite_done(store, segment, 0), -EINVAL);
	CHECK_EQ(store_prewrite_next(store, 1, &again, e, &n), -ENOENT);
	n = STORE_EXTENTS_MAX;
	CHECK_EQ(store_prewrite_next(store, 2, &again, e, &n), 0);
	CHECK(again != segment);
	CHECK_EQ(store_prewrite_done(store, again, -EIO), -EIO);
	store_info(store, &p);
	CHECK(p.segments_prewritten == 1 && p.segments_free == p.segments);
	reopen(0);
	store_info(store, &p);
	CHECK_EQ(p.segments_prewritten, 1);
	ns_open("m", 1, 4096, 3);
	chain_keys(k, 1, 5);
	CHECK_EQ(commit(NULL, k, 5, 3), 5);
	n = STORE_EXTENTS_MAX;
	CHECK_EQ(store_prewrite_next(store, 1, &again, e, &n), 0); /* the prewritten one was taken first */
	CHECK_EQ(store_prewrite_done(store, again, 0), 0);
	done();
}

static void what_blocks_have_filled_is_not_written_ahead(void)
{
	struct tutti_pool_info p;
	struct tutti_ns_info info;
	struct tutti_key k[64];

	simple_pool();
	chain_keys(k, 1, 1);
	CHECK_EQ(commit(NULL, k, 1, 1), 1);
	store_ns_info(ns, &info);
	CHECK(info.segments == 1 && info.slots > 1 && info.slots <= 64);
	CHECK_EQ(store_ns_clear(ns), 0);
	store_info(store, &p);
	CHECK_EQ(p.segments_prewritten, 0); /* slots of it were never written */
	chain_keys(k, 2, (size_t)info.slots);
	CHECK_EQ(commit(NULL, k, (size_t)info.slots, 1), info.slots);
	CHECK_EQ(store_ns_clear(ns), 0);
	store_info(store, &p);
	CHECK_EQ(p.segments_prewritten, 1);
	done();
}

static void view_is_what_the_store_has(void)
{
	struct store_view v;
	struct geom g;
	struct tutti_key other = lane_key(1);

	lane_now = 1000;
	pool_format(4, 2, 16 << 20, 131072);
	pool_open();
	ns_open("m", 3, 10496, 2);
	for (uint32_t rank = 0; rank < 2; rank++) {
		CHECK_EQ(store_view(&ram.m, store_ns_digest(ns), rank, &v), 0);
		store_ns_geom(ns, rank, &g);
		CHECK(!memcmp(&g, &v.geom, sizeof(g)) && v.generation == store_ns_generation(ns) && v.ns_number == 0);
		CHECK(g.n_dev == 2 && g.dev[0] == 2 * rank && g.dev[1] == 2 * rank + 1 && v.pool.epoch == 1);
	}
	CHECK_EQ(store_view(&ram.m, &other, 0, &v), -ENOENT);
	CHECK_EQ(store_view(&ram.m, store_ns_digest(ns), 2, &v), -EINVAL);
	CHECK_EQ(store_ns_clear(ns), 0);
	CHECK_EQ(store_view(&ram.m, store_ns_digest(ns), 0, &v), 0);
	CHECK_EQ(v.generation, store_ns_generation(ns));
	done();
}

static void wrong_devices_are_named(void)
{
	struct store_open_opts o = lane_open_opts();
	struct ram_media other;
	uint8_t *kept;

	pool_format(2, 1, 4 << 20, 65536);
	ram_init(&other, 2, 2 << 20, 0);
	CHECK_EQ(store_format(&other.m, &(struct store_format_opts){.ranks = 1, .bytes = 4 << 20, .uuid = {7}}), 0);
	kept = ram.mem[1];
	ram.mem[1] = other.mem[1];
	CHECK_EQ(store_open(&ram.m, &o, &store), -ENODEV);
	CHECK(strstr(err_text(), "another pool"));
	ram.mem[1] = kept;
	ram.m.bytes[1] -= 1 << 20;
	CHECK_EQ(store_open(&ram.m, &o, &store), -ENODEV);
	CHECK(strstr(err_text(), "truncated"));
	ram.m.bytes[1] += 1 << 20;
	ram.m.n_dev = 1;
	CHECK_EQ(store_open(&ram.m, &o, &store), -ENODEV);
	ram.m.n_dev = 2;
	kept = ram.mem[0];
	ram.mem[0] = ram.mem[1];
	ram.mem[1] = kept;
	CHECK_EQ(store_open(&ram.m, &o, &store), -ENODEV);
	ram.mem[1] = ram.mem[0];
	ram.mem[0] = kept;
	pool_open();
	done();
	ram_free(&other);
}

static void namespace_table_fills_up(void)
{
	char name[16];
	struct tutti_ns_spec spec;
	struct store_ns *out;
	int created;

	simple_pool();
	for (int i = 1; i < (int)STORE_NAMESPACES_MAX; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		spec = lane_spec(name, 1, 2, 4096, 1);
		CHECK_EQ(store_ns_open(store, &spec, &out, &created), 0);
		CHECK_EQ(created, 1);
	}
	CHECK_EQ(store_ns_open(store, &spec, &out, &created), 0);
	CHECK_EQ(created, 0);
	spec.model = "one more";
	CHECK_EQ(store_ns_open(store, &spec, &out, &created), -ENOSPC);
	spec = lane_spec("large", 16, 2, 4096, 1);
	CHECK_EQ(store_ns_open(store, &spec, &out, &created), -ENOSPC);
	done();
	simple_pool();
	CHECK_EQ(store_ns_open(store, &spec, &out, &created), -EINVAL);
	CHECK(strstr(err_text(), "segments of"));
	spec = lane_spec("ranks", 1, 2, 4096, 2);
	CHECK_EQ(store_ns_open(store, &spec, &out, &created), -EINVAL);
	done();
}

/* A refused size comes with one that is enough. */
static void a_refused_size_says_which_would_do(void)
{
	static const struct {
		uint32_t n_dev, ranks;
		uint64_t bytes, segment_bytes;
		const char *word;
	} asked[] = {{1, 1, 100 << 10, 0, "at least that"},       {1, 1, 4096, 0, "at least that"},
	             {3, 1, 900 << 10, 0, "at least that"},       {1, 16, 600 << 10, 0, "at least that"},
	             {4, 2, 100 << 10, 1 << 20, "at least that"}, {1, 1, 64 << 20, 128 << 20, "at least that"},
	             {2, 1, 64 << 20, 4096, "or more"},           {1, 4, 64 << 20, 5000, "or more"},
	             {1, 1, 1ull << 40, 8192, "or larger"},       {2, 2, 1ull << 50, 65536, "or larger"}};

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		struct store_format_opts o = {
		    .ranks = asked[i].ranks, .bytes = asked[i].bytes, .segment_bytes = asked[i].segment_bytes};
		struct store_media m = {.n_dev = asked[i].n_dev};
		const char *at;

		for (uint32_t d = 0; d < m.n_dev; d++)
			m.bytes[d] = 1ull << 60;
		CHECK_EQ(store_format_check(&m, &o), -EINVAL);
		CHECK(strstr(err_text(), asked[i].word));
		if (o.segment_bytes && !strstr(err_text(), "take ")) {
			at = strstr(err_text(), "give ") ? strstr(err_text(), "give ") + 5
			                                 : strstr(err_text(), "them ") + 5;
			o.segment_bytes = strtoull(at, NULL, 10);
		} else {
			o.bytes = strtoull(strstr(err_text(), "take ") + 5, NULL, 10);
		}
		if (store_format_check(&m, &o))
			printf("# case %zu: %s\n", i, err_text());
		CHECK_EQ(store_format_check(&m, &o), 0);
		if (o.bytes == asked[i].bytes)
			continue;
		o.bytes -= 4096ull * m.n_dev; /* and not more than is needed */
		CHECK_EQ(store_format_check(&m, &o), -EINVAL);
	}
}

/* Without a wish for segments every size is laid out, however large, until there is no way to. */
static void a_large_pool_needs_no_segment_size(void)
{
	static const uint64_t bytes[] = {32ull << 40, (64ull << 40) + (1 << 20), 65ull << 40, 100ull << 40, 1ull << 53,
	                                 1ull << 56};

	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
		for (uint32_t n = 1; n <= 16; n++) {
			struct store_format_opts o = {.ranks = n % 5 + 1, .bytes = n * bytes[i]};
			struct store_media m = {.n_dev = n};

			for (uint32_t d = 0; d < m.n_dev; d++)
				m.bytes[d] = INT64_MAX;
			CHECK_EQ(store_format_check(&m, &o), 0);
		}
	CHECK_EQ(store_format_check(&(struct store_media){.n_dev = 1, .bytes = {INT64_MAX}},
	                            &(struct store_format_opts){.ranks = 1, .bytes = 1ull << 58}),
	         -EINVAL);
	CHECK(strstr(err_text(), "too many"));
}

struct asked_pool {
	uint32_t n_dev, ranks;
	uint64_t bytes, segment_bytes;
};

/* Opens such a pool and a namespace in it. */
static int fits(const struct asked_pool *p, const struct tutti_ns_spec *spec)
{
	struct store_format_opts f = {.ranks = p->ranks, .bytes = p->bytes, .segment_bytes = p->segment_bytes};
	struct store_open_opts o = lane_open_opts();
	struct store_ns *made;
	struct ram_media big;
	struct store *s;
	int r;

	ram_init(&big, p->n_dev, p->bytes / p->n_dev, 0);
	CHECK_EQ(store_format(&big.m, &f), 0);
	CHECK_EQ(store_open(&big.m, &o, &s), 0);
	r = store_ns_open(s, spec, &made, NULL);
	store_abandon(s);
	ram_free(&big);
	return r;
}

/* The number behind these words of the message; 0: they are not there. */
static uint64_t told(const char *words)
{
	const char *at = strstr(err_text(), words);

	return at ? strtoull(at + strlen(words), NULL, 10) : 0;
}

/* A refused model comes with a pool that is enough, and no larger than that. */
static void a_model_that_does_not_fit_says_what_would_do(void)
{
	static const struct {
		struct asked_pool pool;
		uint32_t layers;
		uint64_t object_bytes;
		int larger, segments; /* which ways are told */
	} asked[] = {{{1, 1, 2 << 20, 0}, 80, 65536, 1, 0},
	             {{1, 1, 64 << 20, 0}, 80, 65536, 1, 1},
	             {{1, 1, 64 << 20, 1 << 20}, 80, 65536, 1, 1},
	             {{4, 2, 64 << 20, 0}, 80, 65536, 1, 1},
	             {{3, 2, 16 << 20, 0}, 48, 9000, 1, 1},
	             {{1, 4, 64 << 20, 0}, 80, 65536, 1, 1},
	             {{1, 1, 4ull << 30, 0}, 320, 131072, 1, 1},
	             {{1, 1, 1ull << 30, 0}, 1024, 1 << 20, 1, 1}, /* above what is chosen at most */
	             {{1, 1, 8ull << 30, 0}, 1024, 1 << 20, 0, 1}};

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		struct asked_pool p = asked[i].pool;
		struct tutti_ns_spec spec =
		    lane_spec("large", asked[i].layers, 2, asked[i].object_bytes, asked[i].pool.ranks);
		uint64_t least, segment, piece = 4096ull * p.n_dev * (p.n_dev % p.ranks ? p.ranks : 1);

		CHECK_EQ(fits(&p, &spec), -EINVAL);
		least = told("pool of ");
		segment = told("segments of ");
		CHECK_EQ(least != 0, asked[i].larger);
		CHECK_EQ(segment != 0, asked[i].segments);
		if (strstr(err_text(), ", with segments")) { /* both at once */
			p.bytes = least;
			least = 0;
		}
		p.segment_bytes = segment;
		CHECK_EQ(segment ? fits(&p, &spec) : 0, 0);
		p.segment_bytes -= piece;
		CHECK_EQ(segment ? fits(&p, &spec) : -EINVAL, -EINVAL);
		p = (struct asked_pool){p.n_dev, p.ranks, least, 0};
		CHECK_EQ(least ? fits(&p, &spec) : 0, 0);
		p.bytes -= 4096ull * p.n_dev;
		CHECK_EQ(least ? fits(&p, &spec) : -EINVAL, -EINVAL);
	}
}

int main(void)
{
	CHECK_RUN(format_says_what_probe_reads);
	CHECK_RUN(format_chooses_sensible_segments);
	CHECK_RUN(reopen_finds_what_was_there);
	CHECK_RUN(clear_empties_for_good);
	CHECK_RUN(a_removed_namespace_is_gone);
	CHECK_RUN(a_removal_that_is_cut_short);
	CHECK_RUN(namespaces_share_fairly);
	CHECK_RUN(old_headers_are_void_when_a_segment_comes_back);
	CHECK_RUN(the_later_of_two_copies_wins);
	CHECK_RUN(a_reservation_opens_its_segments_by_one_flush);
	CHECK_RUN(held_segments_are_not_taken);
	CHECK_RUN(prewriting);
	CHECK_RUN(what_blocks_have_filled_is_not_written_ahead);
	CHECK_RUN(view_is_what_the_store_has);
	CHECK_RUN(wrong_devices_are_named);
	CHECK_RUN(a_refused_size_says_which_would_do);
	CHECK_RUN(a_large_pool_needs_no_segment_size);
	CHECK_RUN(a_model_that_does_not_fit_says_what_would_do);
	CHECK_RUN(namespace_table_fills_up);
	return check_end();
}
