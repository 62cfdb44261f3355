/*
 * test_space.c - where everything lies: on many random pools every header and object of every slot of every rank is
 * inside the pool's data, no two overlap, and none touches the metadata. Marked page by page.
 *
 * And how it lies after a pool was turned over ten times: in how many commands a chain is read, counted as runs of
 * neighbouring slots.
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/state.h"
#include "store/store.h"

static uint64_t seed = 7;

static uint64_t rnd(uint64_t below) { return check_random(&seed) % below; }

/* A byte per page of each device. */
static uint8_t *marks[RAM_DEVS];
static struct store_probe probes[RAM_DEVS];

static void mark(uint32_t dev, uint64_t offset, uint64_t bytes)
{
	CHECK(offset % 4096 == 0 && bytes % 4096 == 0 && bytes);
	CHECK(offset + bytes <= probes[dev].device_bytes);
	for (uint64_t page = offset / 4096; page < (offset + bytes) / 4096; page++) {
		CHECK(!marks[dev][page]);
		marks[dev][page] = 1;
	}
}

/* Sets too: a set's slots are neighbours, and geom_set_slots says the same as geom_place. */
static void check_sets(const struct geom *g)
{
	uint32_t next = 0, segments = g->n_segments < 3 ? g->n_segments : 3;

	for (uint32_t set = 0; set < geom_sets_per_segment(g) * segments; set++) {
		uint32_t first, n = geom_set_slots(g, set, &first);

		CHECK_EQ(first, next);
		for (uint32_t i = 0; i < n; i++) {
			struct geom_place p = geom_place(g, first + i), a = geom_place(g, first);

			CHECK(p.set == set && p.index == i && p.set_slots == n && p.dev == a.dev &&
			      p.set_bytes == a.set_bytes);
			CHECK_EQ(geom_header_offset(g, &p), p.set_bytes + i * g->header_bytes);
			if (i)
				CHECK_EQ(geom_object_offset(g, &p, 0, 0) - geom_object_offset(g, &a, 0, 0),
				         i * g->pitch_bytes);
		}
		next += n;
	}
	CHECK_EQ(next, g->slots_per_segment * segments);
}

static uint64_t mark_all(const struct store_ns *ns, uint32_t ranks)
{
	uint64_t bytes = 0;

	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct geom g;

		store_ns_geom(ns, rank, &g);
		CHECK(g.object_bytes <= g.pitch_bytes &&
		      GEOM_HEADER_FIXED_BYTES + 8 * geom_objects(&g) <= g.header_bytes);
		check_sets(&g);
		for (uint32_t slot = 0; slot < g.slots_per_segment * g.n_segments; slot++) {
			struct geom_place p = geom_place(&g, slot);

			mark(g.dev[p.dev], geom_header_offset(&g, &p), g.header_bytes);
			for (uint32_t l = 0; l < g.layers; l++)
				for (uint32_t o = 0; o < g.objects_per_layer; o++)
					mark(g.dev[p.dev], geom_object_offset(&g, &p, l, o), g.pitch_bytes);
			bytes += g.slot_bytes;
		}
	}
	return bytes;
}

/* Returns 0 if this namespace does not fit the pool. */
static int one_pool(void)
{
	static const uint64_t sizes[] = {81920, 10496, 656, 4097, 1, 4096, 32768, 131072};
	uint32_t n_dev = 1 + (uint32_t)rnd(4), ranks = 1 + (uint32_t)rnd(5), parts;
	uint64_t each = (2 + rnd(30)) << 20, data = 0, used;
	struct store_format_opts f = {.ranks = ranks, .bytes = each * n_dev, .uuid = {1}};
	struct store_open_opts o = lane_open_opts();
	struct tutti_ns_spec spec = lane_spec("m", 1 + (uint32_t)rnd(5), 1 + (uint32_t)rnd(3), sizes[rnd(8)], ranks);
	struct store_ns *ns;
	struct store *s;
	struct ram_media ram;
	int r;

	ram_init(&ram, n_dev, each, 0);
	ram.m.preferred_io_bytes = 131072u << rnd(3);
	if (rnd(2))
		f.segment_bytes = (65536 + 4096 * rnd(500)) * n_dev;
	if (store_format(&ram.m, &f)) {
		ram_free(&ram);
		return 0;
	}
	CHECK_EQ(store_open(&ram.m, &o, &s), 0);
	r = store_ns_open(s, &spec, &ns, NULL);
	CHECK(r == 0 || r == -EINVAL);
	if (!r) {
		for (uint32_t d = 0; d < n_dev; d++) {
			CHECK_EQ(store_probe(&ram.m, d, &probes[d]), 0);
			marks[d] = calloc(1, each / 4096);
			parts = ranks > 1 && n_dev % ranks == 0 ? 1 : ranks;
			/* What is not chunks is metadata. */
			memset(marks[d], 1,
			       (probes[d].device_bytes - probes[d].n_segments * probes[d].chunk_bytes * parts) / 4096);
			data += probes[d].n_segments * probes[d].chunk_bytes * parts;
		}
		used = mark_all(ns, ranks);
		CHECK(used <= data);
		for (uint32_t d = 0; d < n_dev; d++)
			free(marks[d]);
	}
	store_abandon(s);
	ram_free(&ram);
	return !r;
}

static void nothing_overlaps(void)
{
	int fitted = 0;

	for (int i = 0; i < 250; i++)
		fitted += one_pool();
	CHECK(fitted > 100);
}

static void the_cap_holds(void)
{
	for (int i = 0; i < 400; i++) {
		uint32_t n_dev = 1 + (uint32_t)rnd(16), ranks = 1 + (uint32_t)rnd(16);
		uint64_t each = (1 + rnd(1u << rnd(20))) << 20, total = 0;
		struct store_format_opts f = {.ranks = ranks, .bytes = each * n_dev - rnd(100000)};
		struct ram_media ram;
		struct store_probe p;

		ram_init(&ram, n_dev, each, 0);
		if (!store_format(&ram.m, &f)) {
			for (uint32_t d = 0; d < n_dev; d++) {
				CHECK_EQ(store_probe(&ram.m, d, &p), 0);
				CHECK(p.device_bytes <= each);
				total += p.device_bytes;
			}
			CHECK(total <= f.bytes && p.bytes == f.bytes);
			/* Little is lost: metadata, and less than a segment. */
			CHECK(f.bytes - total <= f.bytes / 20 + p.chunk_bytes * ranks * n_dev + (2ull << 20) * n_dev);
		}
		ram_free(&ram);
	}
	CHECK(1);
}

/* ---- an aged pool ---- */

#define AGED_CHAIN 128
#define AGED_DOCS 64

struct aged {
	struct ram_media ram;
	struct store *s;
	struct store_ns *ns;
	struct tutti_key keys[AGED_CHAIN];
	struct {
		uint64_t seed;
		size_t n;
	} doc[AGED_DOCS];
};

/* A pool of `slots` slots of 2 layers x 2 objects; a set has g slots as for 32 KiB objects of a full-size model. */
static void aged_open(struct aged *a, uint64_t slots)
{
	struct tutti_ns_spec spec = lane_spec("m", 2, 2, 8192, 1);
	uint64_t bytes = slots * 9 * 4096 * 21 / 20 + (1 << 20);
	struct store_format_opts f = {.ranks = 1, .bytes = bytes, .uuid = {1}};
	struct store_open_opts o = lane_open_opts();

	memset(a, 0, sizeof(*a));
	ram_init(&a->ram, 1, bytes, 0);
	CHECK_EQ(store_format(&a->ram.m, &f), 0);
	CHECK_EQ(store_open(&a->ram.m, &o, &a->s), 0);
	CHECK_EQ(store_ns_open(a->s, &spec, &a->ns, NULL), 0);
	CHECK_EQ(a->ns->geom.g, 16);
}

static uint64_t aged_slots(const struct aged *a) { return (uint64_t)a->s->n_segments * a->ns->geom.slots_per_segment; }

/* Reserves and commits keys[0..n) as one rank that writes nothing. *runs: of neighbouring slots of one set. */
static size_t aged_store(struct aged *a, size_t n, uint64_t *runs)
{
	struct store_block b[AGED_CHAIN];
	int32_t ok[AGED_CHAIN] = {0};
	struct store_hold_info info;
	struct tutti_lease lease;
	size_t first, count;

	CHECK_EQ(store_reserve(a->ns, NULL, a->keys, n, 1000000, &first, &count, &lease), 0);
	CHECK_EQ(first + count, n);
	if (!count)
		return 0;
	CHECK_EQ(store_hold_blocks(a->ns, &lease, 0, count, &info, b), 0);
	for (size_t i = 0; i < count; i++)
		*runs += !i || b[i].slot != b[i - 1].slot + 1 ||
		         geom_place(&a->ns->geom, b[i].slot).set != geom_place(&a->ns->geom, b[i - 1].slot).set;
	CHECK_EQ(store_report(a->ns, &lease, 0, 0, count, ok), 0);
	return count;
}

/* Chains of 1 to longest blocks, half of them a branch off an older one, until the pool was filled `times` times. */
static void aged_turn_over(struct aged *a, size_t longest, uint64_t times)
{
	uint64_t runs = 0, full = 0;

	for (uint64_t total = 0, k = 0; total < times * aged_slots(a); k++) {
		size_t n = 1 + rnd(longest), shared = 0, old = rnd(AGED_DOCS);

		if (a->doc[old].n > 1 && rnd(2))
			shared = rnd(a->doc[old].n < n ? a->doc[old].n : n);
		for (size_t i = 0; i < n; i++)
			a->keys[i] = lane_key((i < shared ? a->doc[old].seed : k) * 1000003 + i);
		total += aged_store(a, n, &runs);
		if (!shared) {
			a->doc[k % AGED_DOCS].seed = k;
			a->doc[k % AGED_DOCS].n = n;
		}
		full |= a->ns->n_evicted != 0;
		CHECK(!full || a->ns->n_free <= aged_slots(a) / 24);
	}
	CHECK(full);
}

/* Runs of 20 new chains, where the least is one for each set. */
static void aged_case(uint64_t slots, size_t longest, uint64_t runs_max_percent)
{
	static struct aged a;
	uint64_t blocks = 0, runs = 0, least;

	seed = 7;
	aged_open(&a, slots);
	aged_turn_over(&a, longest, 10);
	for (uint64_t k = 0; k < 20; k++) {
		for (size_t i = 0; i < longest; i++)
			a.keys[i] = lane_key((1000000 + k) * 1000003 + i);
		blocks += aged_store(&a, longest, &runs);
	}
	least = 20 * ((longest + a.ns->geom.g - 1) / a.ns->geom.g);
	printf("# %llu slots, chains of up to %zu: %llu blocks in %llu runs, at least %llu\n",
	       (unsigned long long)aged_slots(&a), longest, (unsigned long long)blocks, (unsigned long long)runs,
	       (unsigned long long)least);
	CHECK_EQ(blocks, 20 * longest);
	CHECK(runs * 100 <= least * runs_max_percent);
	CHECK_EQ(store_check(a.s), 0);
	store_abandon(a.s);
	ram_free(&a.ram);
}

static void an_aged_pool_is_no_splinters(void)
{
	aged_case(1500, 128, 250);
	aged_case(12000, 128, 200);
	aged_case(12000, 40, 300);
}

int main(void)
{
	CHECK_RUN(nothing_overlaps);
	CHECK_RUN(the_cap_holds);
	CHECK_RUN(an_aged_pool_is_no_splinters);
	return check_end();
}
