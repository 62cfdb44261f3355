/*
 * lane.h - the tests play the lane: they write a block's objects and header through the media as a lane does, and read
 * them back. Every byte depends on (key, rank, layer, object, offset) alone, so that what is read can be judged.
 */
#ifndef TUTTI_TEST_LANE_H
#define TUTTI_TEST_LANE_H

#include "geom/header.h"
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

static inline void lane_fill(uint8_t *to, uint64_t bytes, const struct tutti_key *key, uint32_t rank, uint32_t row)
{
	uint64_t state;

	memcpy(&state, key->b, 8);
	state ^= ((uint64_t)rank << 32 | row) * 0x9E3779B97F4A7C15ull;
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t v = state += 0xD1B54A32D192ED03ull;

		v ^= v >> 29;
		memcpy(to + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

static inline int lane_io(const struct store_media *m, uint32_t dev, int write, uint64_t offset, void *data,
                          uint64_t bytes)
{
	struct store_io io = {.dev = dev, .write = write, .offset_bytes = offset, .bytes = bytes, .data = data};

	return m->io(m->self, &io, 1);
}

enum { LANE_INVALIDATE, LANE_OBJECTS, LANE_ALL, LANE_HEADER_ONLY };

/* One rank's share of one reserved block: invalidates if it must, then objects, then the header, up to `upto`. */
static inline int lane_write(const struct store_media *m, const struct store_ns *ns, uint32_t rank, uint64_t epoch,
                             const struct store_hold_info *info, const struct store_block *b,
                             const struct tutti_key *parent, int upto)
{
	struct geom g;
	struct geom_place p;
	uint8_t *buffer;
	struct wire_header *h;
	int r = 0;

	store_ns_geom(ns, rank, &g);
	p = geom_place(&g, b->slot);
	buffer = aligned_alloc(4096, g.header_bytes + g.pitch_bytes);
	h = (struct wire_header *)(void *)buffer;
	memset(buffer, 0, g.header_bytes + g.pitch_bytes);
	if (b->flags & STORE_BLOCK_HEADER_VALID)
		r = lane_io(m, g.dev[p.dev], 1, geom_header_offset(&g, &p), buffer, g.header_bytes);
	for (uint32_t row = 0; !r && (upto == LANE_OBJECTS || upto == LANE_ALL) && row < geom_objects(&g); row++) {
		uint8_t *object = buffer + g.header_bytes;

		lane_fill(object, g.object_bytes, &b->key, rank, row);
		geom_header_sums(h)[row] = objsum(object, g.object_bytes);
		r = lane_io(m, g.dev[p.dev], 1,
		            geom_object_offset(&g, &p, row / g.objects_per_layer, row % g.objects_per_layer), object,
		            g.pitch_bytes);
	}
	h->rank = rank;
	h->objects = geom_objects(&g);
	h->depth = b->depth;
	h->object_bytes = g.object_bytes;
	h->generation = store_ns_generation(ns);
	h->sequence = info->sequence;
	h->epoch = epoch;
	memcpy(h->ns_digest, store_ns_digest(ns)->b, 32);
	memcpy(h->key, b->key.b, 32);
	memcpy(h->parent, parent->b, 32);
	geom_header_seal(h);
	if (!r && upto >= LANE_ALL)
		r = lane_io(m, g.dev[p.dev], 1, geom_header_offset(&g, &p), buffer, g.header_bytes);
	free(buffer);
	return r;
}

enum lane_verdict { LANE_RIGHT, LANE_MISS, LANE_WRONG }; /* WRONG: checks pass and bytes are not the key's */

static inline enum lane_verdict lane_read(const struct store_media *m, const struct store_ns *ns, uint32_t rank,
                                          const struct tutti_key *key, uint32_t slot)
{
	struct geom g;
	struct geom_place p;
	uint8_t *buffer, *object, *want;
	const struct wire_header *h;
	enum lane_verdict v = LANE_RIGHT;

	store_ns_geom(ns, rank, &g);
	p = geom_place(&g, slot);
	buffer = aligned_alloc(4096, g.header_bytes + 2 * g.pitch_bytes);
	h = (const struct wire_header *)(void *)buffer;
	object = buffer + g.header_bytes;
	want = object + g.pitch_bytes;
	if (lane_io(m, g.dev[p.dev], 0, geom_header_offset(&g, &p), buffer, g.header_bytes) ||
	    geom_header_check(h, geom_objects(&g)) != GEOM_HEADER_OK ||
	    geom_header_match(h, store_ns_digest(ns)->b, key->b, store_ns_generation(ns), rank) != GEOM_HEADER_OK)
		v = LANE_MISS;
	for (uint32_t row = 0; v == LANE_RIGHT && row < geom_objects(&g); row++) {
		if (lane_io(m, g.dev[p.dev], 0,
		            geom_object_offset(&g, &p, row / g.objects_per_layer, row % g.objects_per_layer), object,
		            g.pitch_bytes) ||
		    objsum(object, g.object_bytes) != geom_header_sums_const(h)[row]) {
			v = LANE_MISS;
			break;
		}
		lane_fill(want, g.object_bytes, key, rank, row);
		if (memcmp(object, want, g.object_bytes))
			v = LANE_WRONG;
	}
	free(buffer);
	return v;
}

static inline struct tutti_key lane_key(uint64_t n)
{
	struct tutti_key k;
	uint64_t z = n * 0x9E3779B97F4A7C15ull + 0x1234567;

	for (int i = 0; i < 4; i++) {
		z ^= z >> 30;
		z *= 0xBF58476D1CE4E5B9ull;
		z ^= z >> 27;
		memcpy(k.b + 8 * i, &z, 8);
	}
	k.b[31] |= 1; /* never all zeros */
	return k;
}

static inline struct tutti_ns_spec lane_spec(const char *model, uint32_t layers, uint32_t objects_per_layer,
                                             uint64_t object_bytes, uint32_t ranks)
{
	struct tutti_ns_spec s = TUTTI_NS_SPEC_INIT;

	s.model = model;
	s.kv_dtype = "bfloat16";
	s.backend = "test";
	memset(s.weights, 0x5a, sizeof(s.weights));
	memset(s.layout, 0xa5, sizeof(s.layout));
	s.block_tokens = 16;
	s.layers = layers;
	s.kv_heads = 8;
	s.head_size = 128;
	s.tp_size = ranks;
	s.objects_per_layer = objects_per_layer;
	s.object_bytes = object_bytes;
	return s;
}

/* An injected clock. */
static uint64_t lane_now = 1000;
static inline uint64_t lane_clock(void *arg)
{
	(void)arg;
	return lane_now;
}
static inline struct store_open_opts lane_open_opts(void)
{
	return (struct store_open_opts){.owner_pid = 4711, .owner_host = "test", .now_ns = lane_clock};
}

#endif
