/*
 * test_space.c - where everything lies: on many random pools every header and object of every slot of every rank is
 * inside the pool's data, no two overlap, and none touches the metadata. Marked page by page.
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
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

int main(void)
{
	CHECK_RUN(nothing_overlaps);
	CHECK_RUN(the_cap_holds);
	return check_end();
}
