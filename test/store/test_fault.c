/*
 * test_fault.c - the n-th transfer or flush fails, is cut short, or is the last one that works, for every n.
 *
 * Whatever a call then says, the store stays consistent in itself, blocks that it acknowledges are on the medium, and
 * the next open (with the medium whole again) finds every acknowledged block that the store still had.
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/state.h"
#include "store/store.h"

#define KEYS 120

static struct ram_media ram;
static struct store *store;
static struct store_ns *ns[2];
static int acked[2][KEYS];
static uint64_t errors;

static struct tutti_key key_of(int space, int i) { return lane_key((uint64_t)space * 77777 + (uint64_t)i); }

/* A call under faults: a failure is a negative errno with a message. */
static int tried(int r)
{
	CHECK(r <= 0);
	if (r) {
		CHECK(err_text()[0]);
		errors++;
	}
	CHECK(!store || !store_check(store));
	return r;
}

static void try_put(int space, int from, int n)
{
	struct tutti_key keys[8];
	struct store_hold_info info;
	struct store_block b[8];
	struct tutti_lease l;
	int32_t results[8];
	size_t first, count;

	for (int i = 0; i < n; i++)
		keys[i] = key_of(space, from + i);
	if (tried(store_reserve(ns[space], NULL, keys, (size_t)n, 1000, &first, &count, &l)) || !count)
		return;
	CHECK_EQ(store_hold_blocks(ns[space], &l, 0, count, &info, b), 0);
	for (size_t i = 0; i < count; i++)
		results[i] =
		    lane_write(&ram.m, ns[space], 0, l.epoch, &info, &b[i], i ? &b[i - 1].key : &info.parent, LANE_ALL);
	CHECK_EQ(store_report(ns[space], &l, 0, 0, count, results), 0);
	for (size_t i = 0, whole = 1; i < count; i++) {
		whole = whole && !results[i];
		acked[space][from + (int)(first + i)] = (int)whole;
	}
	CHECK_EQ(store_check(store), 0);
}

static void try_ns(int i)
{
	struct tutti_ns_spec spec = lane_spec(i ? "b" : "a", 1, i ? 1 : 2, 656, 1);

	tried(store_ns_open(store, &spec, &ns[i], NULL));
}

/* What the running store holds of what was acknowledged. */
struct held {
	int space, there[2][KEYS];
	uint32_t slot[2][KEYS];
};

static int hold(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth, uint32_t slot)
{
	struct held *h = arg;

	(void)parent;
	(void)depth;
	for (int i = 0; i < KEYS; i++) {
		struct tutti_key k = key_of(h->space, i);

		if (!memcmp(&k, key, sizeof(k))) {
			h->there[h->space][i] = 1;
			h->slot[h->space][i] = slot;
		}
	}
	return 0;
}

static void look(struct held *h)
{
	memset(h, 0, sizeof(*h));
	for (int i = 0; i < 2; i++) {
		h->space = i;
		if (ns[i])
			store_ns_each(ns[i], hold, h);
	}
}

static int open_pool(void)
{
	struct store_open_opts o = lane_open_opts();
	int r;

	store = NULL;
	ns[0] = ns[1] = NULL;
	r = tried(store_open(&ram.m, &o, &store));
	if (r)
		store = NULL;
	return r;
}

/* Runs until the end or until the pool cannot be opened. */
static void scenario(struct held *h, int close_it)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	uint32_t segment, n = STORE_EXTENTS_MAX;
	uint64_t mark;

	if (open_pool())
		return;
	try_ns(0);
	for (int i = 0; ns[0] && i < 12; i++)
		try_put(0, i * 4, 1 + i % 4);
	mark = store_sync_begin(store);
	store_sync_end(store, mark, ram.m.flush(ram.m.self, 0));
	try_ns(1);
	for (int i = 0; ns[1] && i < 6; i++)
		try_put(1, i * 4, 1 + i % 3);
	if (!store_prewrite_next(store, 8, &segment, e, &n))
		tried(store_prewrite_done(store, segment, 0));
	if (ns[1])
		tried(store_ns_clear(ns[1])); /* emptied in memory even if it failed; then the medium may say either */
	memset(acked[1], 0, sizeof(acked[1]));
	for (int i = 0; ns[1] && i < 3; i++)
		try_put(1, 60 + i * 4, 3);
	for (int i = 0; ns[0] && i < 4; i++)
		try_put(0, 60 + i * 4, 4);
	look(h);
	if (close_it) {
		struct store *closing = store;

		store = NULL;
		tried(store_close(closing));
	} else {
		store_abandon(store);
	}
}

static void check_after(const struct held *h)
{
	struct held now;

	CHECK_EQ(open_pool(), 0);
	CHECK_EQ(store_check(store), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct store_ns *n;

		for (uint32_t k = 0; !store_ns_at(store, k, &n); k++) {
			struct tutti_ns_info info;

			store_ns_info(n, &info);
			if (!strcmp(info.model, i ? "b" : "a"))
				ns[i] = n;
		}
	}
	look(&now);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < KEYS; k++) {
			struct tutti_key key = key_of(i, k);

			if (acked[i][k] && h->there[i][k])
				CHECK(now.there[i][k]);
			if (now.there[i][k])
				CHECK_EQ(lane_read(&ram.m, ns[i], 0, &key, now.slot[i][k]), LANE_RIGHT);
		}
	store_abandon(store);
	store = NULL;
}

static uint64_t run(enum ram_fault fault, int reads_too, uint64_t at, int close_it)
{
	struct store_format_opts f = {.ranks = 1, .bytes = 900 << 10, .segment_bytes = 65536, .uuid = {3}};
	struct held h;
	uint64_t n;

	memset(acked, 0, sizeof(acked));
	memset(&h, 0, sizeof(h));
	ram_init(&ram, 1, 900 << 10, 0);
	CHECK_EQ(store_format(&ram.m, &f), 0);
	ram.fault = fault;
	ram.fault_at = at;
	ram.reads_too = reads_too;
	ram.n_io = 0;
	scenario(&h, close_it);
	n = ram.n_io;
	ram.fault = RAM_OK;
	ram.stopped = 0;
	check_after(&h);
	ram_free(&ram);
	return n;
}

static void every_n(enum ram_fault fault, int reads_too)
{
	uint64_t n = run(fault, reads_too, UINT64_MAX, 1);

	CHECK(n > 150);
	errors = 0;
	for (uint64_t at = 0; at < n; at++) {
		run(fault, reads_too, at, 0);
		run(fault, reads_too, at, 1);
	}
	CHECK(errors > 5);
}

static void a_write_fails(void) { every_n(RAM_FAIL, 0); }
static void a_write_is_cut_short(void) { every_n(RAM_SHORT, 0); }
static void the_device_stops(void) { every_n(RAM_STOP, 1); }
static void a_read_fails(void) { every_n(RAM_FAIL, 1); }

static void format_fails_at_every_step(void)
{
	struct store_format_opts f = {.ranks = 2, .bytes = 1800 << 10, .segment_bytes = 131072, .uuid = {3}};
	struct store_open_opts o = lane_open_opts();

	for (uint64_t at = 0; at < 100; at++) {
		int r, after;

		ram_init(&ram, 2, 900 << 10, 0);
		CHECK_EQ(store_format(&ram.m, &f), 0); /* an older pool is there */
		ram.fault = RAM_STOP;
		ram.fault_at = at;
		r = store_format(&ram.m, &f);
		ram.stopped = 0;
		ram.fault = RAM_OK;
		after = store_open(&ram.m, &o, &store);
		if (r)
			CHECK(after == -ENOMEDIUM || after == 0);
		else
			CHECK_EQ(after, 0);
		if (!after) {
			CHECK_EQ(store_check(store), 0);
			store_abandon(store);
		}
		ram_free(&ram);
		if (!r) {
			CHECK(at > 8);
			return;
		}
	}
	CHECK(0);
}

/* Headers that cannot be read cost their blocks, not the pool. */
static void unreadable_headers(void)
{
	struct store_open_opts o = lane_open_opts();
	struct held h;
	struct tutti_pool_info info;
	struct store_probe p;
	uint64_t before, reads, all, lost = 0;

	ram_init(&ram, 1, 900 << 10, 0);
	CHECK_EQ(
	    store_format(&ram.m, &(struct store_format_opts){.ranks = 1, .bytes = 900 << 10, .segment_bytes = 65536}),
	    0);
	memset(acked, 0, sizeof(acked));
	scenario(&h, 0);
	before = ram.n_reads;
	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	reads = ram.n_reads - before;
	store_info(store, &info);
	all = info.recovered_slots;
	store_abandon(store);
	CHECK(reads > 5 && all > 10);
	ram.reads_too = 1;
	ram.fault = RAM_FAIL;
	ram.fault_result = 0x281;                                      /* NVMe: unrecovered read error */
	for (ram.fault_at = 3; ram.fault_at < reads; ram.fault_at++) { /* after superblock, namespaces, segments */
		ram.n_io = 0;
		CHECK_EQ(store_open(&ram.m, &o, &store), 0);
		CHECK_EQ(store_check(store), 0);
		store_info(store, &info);
		CHECK(info.recovered_bad == 0 && info.recovered_slots == all); /* the second try worked */
		store_abandon(store);
	}
	ram.fault = RAM_OK;
	/* A bad place: every chunk's first page, one after another. */
	CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
	for (uint32_t i = 0; i < p.n_segments; i++) {
		ram.bad_from = p.device_bytes - (i + 1) * p.chunk_bytes;
		ram.bad_to = ram.bad_from + 1;
		CHECK_EQ(store_open(&ram.m, &o, &store), 0);
		CHECK_EQ(store_check(store), 0);
		store_info(store, &info);
		CHECK(info.recovered_slots < all ? info.recovered_bad > 0 : info.recovered_bad == 0);
		lost += all - info.recovered_slots;
		store_abandon(store);
	}
	CHECK(lost >= all);
	ram_free(&ram);
}

/* Every page of the metadata goes bad, one after another: superblock and records exist twice, a checkpoint can be done
 * without. */
static void unreadable_metadata(void)
{
	struct store_open_opts o = lane_open_opts();
	struct tutti_pool_info info;
	struct tutti_ns_info of_a;
	struct store_probe p;
	struct held h;
	uint64_t committed;

	ram_init(&ram, 1, 900 << 10, 0);
	CHECK_EQ(
	    store_format(&ram.m, &(struct store_format_opts){.ranks = 1, .bytes = 900 << 10, .segment_bytes = 65536}),
	    0);
	memset(acked, 0, sizeof(acked));
	scenario(&h, 1);
	CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	CHECK_EQ(store_ns_at(store, 0, &ns[0]), 0);
	store_ns_info(ns[0], &of_a);
	committed = of_a.committed;
	CHECK_EQ(store_close(store), 0);
	for (uint64_t page = 0; page < p.device_bytes - p.n_segments * p.chunk_bytes; page += 4096) {
		ram.bad_from = page;
		ram.bad_to = page + 4096;
		CHECK_EQ(store_open(&ram.m, &o, &store), 0);
		CHECK_EQ(store_check(store), 0);
		store_info(store, &info);
		/* Records that differ in age give the older state: nothing else than a loss of blocks may come of it.
		 */
		CHECK_EQ(info.n_namespaces, 2);
		CHECK_EQ(store_ns_at(store, 0, &ns[0]), 0);
		store_ns_info(ns[0], &of_a);
		CHECK(of_a.committed <= committed);
		ram.bad_to = 0;
		store_abandon(store);
		store = NULL;
		/* Not closed: the copy on the medium is put back by what follows. */
		CHECK_EQ(store_open(&ram.m, &o, &store), 0);
		CHECK_EQ(store_close(store), 0);
		store = NULL;
	}
	ram.bad_from = 0;
	ram.bad_to = 16384;
	CHECK_EQ(store_open(&ram.m, &o, &store), -EIO);
	ram_free(&ram);
}

int main(void)
{
	ram_keep_heap();
	CHECK_RUN(a_write_fails);
	CHECK_RUN(a_write_is_cut_short);
	CHECK_RUN(the_device_stops);
	CHECK_RUN(a_read_fails);
	CHECK_RUN(format_fails_at_every_step);
	CHECK_RUN(unreadable_headers);
	CHECK_RUN(unreadable_metadata);
	return check_end();
}
