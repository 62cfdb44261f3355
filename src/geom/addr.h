/*
 * addr.h - where an object lies: arithmetic from (slot, layer, object of the layer) to (device, byte offset).
 *
 * A pool is cut into segments. A segment is one chunk at the same place of every device of a rank, so
 * that each rank's share of it is n_dev chunks. A chunk holds stripe sets of g slots; what is left at its
 * end holds one smaller set of tail_g slots, so that less than a slot is lost. Inside a set:
 *
 *     g headers | layer 0: object 0 of g slots | object 1 of g slots | ... | layer 1: ... |
 *
 * so the same object of neighbouring slots is contiguous, and so is a whole layer of a whole set.
 * Slots are numbered so that a set is filled before the next one, and the next set is on the next device.
 * All functions are pure; GPU and CPU compile the same lines.
 */
#ifndef TUTTI_GEOM_ADDR_H
#define TUTTI_GEOM_ADDR_H

#include "port/port.h"

#define GEOM_DEVS_MAX 16u
#define GEOM_SET_SLOTS_MAX 64u
#define GEOM_PITCH_ALIGN 4096u
#define GEOM_HEADER_FIXED_BYTES 192u
#define GEOM_OBJECTS_MAX 65536u /* objects of a slot's share */

/* One namespace in one pool, seen by one rank. Plain data: handed to device code by value. */
struct geom {
	uint32_t layers;
	uint32_t objects_per_layer;
	uint64_t object_bytes;
	uint64_t pitch_bytes;  /* object_bytes rounded up to GEOM_PITCH_ALIGN */
	uint64_t header_bytes; /* fixed part and 8 bytes an object, rounded up likewise */
	uint64_t slot_bytes;   /* header and all objects */
	uint64_t chunk_bytes;
	uint32_t g;                  /* slots of a whole set */
	uint32_t tail_g;             /* slots of a chunk's last, smaller set; 0: none */
	uint32_t sets_per_chunk;     /* whole sets of a chunk */
	uint32_t slots_per_segment;  /* n_dev x (sets_per_chunk x g + tail_g) */
	uint32_t n_segments;
	uint32_t n_dev;
	uint32_t dev[GEOM_DEVS_MAX];        /* the pool's number of each device */
	uint64_t start_bytes[GEOM_DEVS_MAX]; /* of this rank's first chunk on each device */
};

/* One slot's place: the device and the set it lies in. */
struct geom_place {
	uint32_t dev;        /* index into geom.dev */
	uint32_t set_slots;  /* g, or tail_g in a chunk's last set */
	uint32_t index;      /* of the slot in its set */
	uint32_t set;        /* number of the set, unique in the pool: equal sets, equal numbers */
	uint64_t set_bytes;  /* byte offset of the set on its device */
};

PORT_FN uint64_t geom_round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

PORT_FN uint32_t geom_objects(const struct geom *g) { return g->layers * g->objects_per_layer; }

PORT_FN uint32_t geom_sets_per_segment(const struct geom *g)
{
	return g->n_dev * (g->sets_per_chunk + (g->tail_g ? 1u : 0u));
}

/* Number of slots that set `set` (geom_place.set) holds, and its first slot. */
PORT_FN uint32_t geom_set_slots(const struct geom *g, uint32_t set, uint32_t *first_slot)
{
	uint32_t whole = g->sets_per_chunk * g->n_dev;
	uint32_t segment = set / geom_sets_per_segment(g);
	uint32_t in = set % geom_sets_per_segment(g);
	int tail = in >= whole;

	*first_slot = segment * g->slots_per_segment + (tail ? whole * g->g + (in - whole) * g->tail_g : in * g->g);
	return tail ? g->tail_g : g->g;
}

PORT_FN struct geom_place geom_place(const struct geom *g, uint32_t slot)
{
	struct geom_place p;
	uint32_t segment = slot / g->slots_per_segment;
	uint32_t in = slot % g->slots_per_segment;
	uint32_t whole = g->sets_per_chunk * g->n_dev * g->g; /* slots in whole sets */
	uint32_t q; /* number of the set in its segment */

	if (in < whole) {
		q = in / g->g;
		p.index = in % g->g;
		p.set_slots = g->g;
	} else {
		q = g->sets_per_chunk * g->n_dev + (in - whole) / g->tail_g;
		p.index = (in - whole) % g->tail_g;
		p.set_slots = g->tail_g;
	}
	p.set = segment * geom_sets_per_segment(g) + q;
	p.dev = q % g->n_dev;
	p.set_bytes =
	    g->start_bytes[p.dev] + segment * g->chunk_bytes + (uint64_t)(q / g->n_dev) * g->g * g->slot_bytes;
	return p;
}

/* Byte offset, on its device, of a slot's header. */
PORT_FN uint64_t geom_header_offset(const struct geom *g, const struct geom_place *p)
{
	return p->set_bytes + p->index * g->header_bytes;
}

/* Byte offset, on its device, of one object. */
PORT_FN uint64_t geom_object_offset(const struct geom *g, const struct geom_place *p, uint32_t layer, uint32_t object)
{
	uint64_t row = (uint64_t)layer * g->objects_per_layer + object;

	return p->set_bytes + p->set_slots * g->header_bytes + (row * p->set_slots + p->index) * g->pitch_bytes;
}

/*
 * Largest power of two of slots whose pitch fits preferred_io_bytes, at least 1, at most GEOM_SET_SLOTS_MAX.
 * Chosen once, when a namespace is made, and kept in its record.
 */
PORT_FN uint32_t geom_choose_g(uint64_t pitch_bytes, uint64_t preferred_io_bytes)
{
	uint32_t g = 1;

	while (g < GEOM_SET_SLOTS_MAX && pitch_bytes * (g * 2) <= preferred_io_bytes)
		g *= 2;
	return g;
}

/*
 * Fills the derived fields from layers, objects_per_layer, object_bytes, g, chunk_bytes, n_segments, n_dev.
 * Returns 0, or -1 if a field is zero or out of range, a product overflows, or no slot fits a chunk.
 */
PORT_FN int geom_derive(struct geom *g)
{
	uint64_t objects = (uint64_t)g->layers * g->objects_per_layer;
	uint64_t sets, rest, slots;

	if (!g->layers || !g->objects_per_layer || !g->object_bytes || !g->g || g->g > GEOM_SET_SLOTS_MAX ||
	    !g->n_dev || g->n_dev > GEOM_DEVS_MAX || !g->n_segments || objects > GEOM_OBJECTS_MAX ||
	    g->object_bytes > (1ull << 30) || g->chunk_bytes % GEOM_PITCH_ALIGN || g->chunk_bytes > (1ull << 40))
		return -1;
	g->pitch_bytes = geom_round_up(g->object_bytes, GEOM_PITCH_ALIGN);
	g->header_bytes = geom_round_up(GEOM_HEADER_FIXED_BYTES + 8 * objects, GEOM_PITCH_ALIGN);
	g->slot_bytes = g->header_bytes + objects * g->pitch_bytes;
	sets = g->chunk_bytes / (g->slot_bytes * g->g);
	rest = g->chunk_bytes - sets * g->slot_bytes * g->g;
	g->tail_g = (uint32_t)(rest / g->slot_bytes); /* below g, since a whole set did not fit */
	slots = (sets * g->g + g->tail_g) * g->n_dev;
	if (!slots || slots * g->n_segments >= 0xffffff00ull)
		return -1;
	g->sets_per_chunk = (uint32_t)sets;
	g->slots_per_segment = (uint32_t)slots;
	return 0;
}

#endif
