/*
 * index.c - key -> slot: an open-addressing table of (tag, slot), linear probing, at most half full.
 *
 * The tag is the key's 32-bit hash and gives the entry's home, so an entry can be moved back over a hole without
 * looking at its slot. A chain is looked up in batches: all table lines of a batch are fetched, then all slots, then
 * they are compared, so that the misses of a batch overlap.
 */
#include "store/state.h"

#include <string.h>

#define BATCH 32u

static uint32_t key_tag(const struct tutti_key *key)
{
	uint64_t a, b;

	memcpy(&a, key->b, 8);
	memcpy(&b, key->b + 16, 8);
	return (uint32_t)((a ^ (b << 29 | b >> 35)) * 0x9E3779B97F4A7C15ull >> 32);
}

static uint64_t home(const struct store_ns *ns, uint32_t tag)
{
	/* Scaled, not masked: the table's size is no power of two. table_max < 2^34, so the product needs more than 64
	 * bits. */
	return (uint64_t)(((unsigned __int128)tag * ns->table_max) >> 32);
}

static uint64_t after(const struct store_ns *ns, uint64_t at) { return at + 1 == ns->table_max ? 0 : at + 1; }

static int key_is(const struct tutti_key *a, const struct tutti_key *b) { return !memcmp(a, b, sizeof(*a)); }

uint32_t store_index_find(const struct store_ns *ns, const struct tutti_key *key)
{
	uint32_t tag = key_tag(key);

	for (uint64_t at = home(ns, tag); ns->table[at].slot; at = after(ns, at))
		if (ns->table[at].tag == tag && key_is(&slot_at(ns, ns->table[at].slot - 1)->key, key))
			return ns->table[at].slot - 1;
	return NONE;
}

void store_index_insert(struct store_ns *ns, uint32_t slot)
{
	uint32_t tag = key_tag(&slot_at(ns, slot)->key);
	uint64_t at = home(ns, tag);

	while (ns->table[at].slot)
		at = after(ns, at);
	ns->table[at].tag = tag;
	ns->table[at].slot = slot + 1;
	if (ns->n_committed + ns->n_reserved > ns->table_peak)
		ns->table_peak = ns->n_committed + ns->n_reserved;
}

void store_index_remove(struct store_ns *ns, uint32_t slot)
{
	uint64_t hole = home(ns, key_tag(&slot_at(ns, slot)->key));

	while (ns->table[hole].slot != slot + 1)
		hole = after(ns, hole);
	/* Moves back every later entry of the run whose home is not after the hole. */
	for (uint64_t at = after(ns, hole); ns->table[at].slot; at = after(ns, at)) {
		uint64_t from = home(ns, ns->table[at].tag);
		uint64_t distance = at >= from ? at - from : at + ns->table_max - from;
		uint64_t gap = at >= hole ? at - hole : at + ns->table_max - hole;

		if (distance >= gap) {
			ns->table[hole] = ns->table[at];
			hole = at;
		}
	}
	ns->table[hole].slot = 0;
}

void store_index_prefetch(const struct store_ns *ns, const struct tutti_key *key)
{
	__builtin_prefetch(&ns->table[home(ns, key_tag(key))], 1);
}

/* First entry with the tag: almost always the key's, and compared later. */
static uint32_t candidate(const struct store_ns *ns, uint32_t tag, uint64_t at)
{
	for (; ns->table[at].slot; at = after(ns, at))
		if (ns->table[at].tag == tag)
			return ns->table[at].slot - 1;
	return NONE;
}

struct batch {
	uint32_t tag[BATCH];
	uint64_t home[BATCH];
	uint32_t slot[BATCH];
};

static void batch_home(const struct store_ns *ns, struct batch *b, const struct tutti_key *keys, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		b->tag[i] = key_tag(&keys[i]);
		b->home[i] = home(ns, b->tag[i]);
		__builtin_prefetch(&ns->table[b->home[i]]);
	}
}

static void batch_slots(const struct store_ns *ns, struct batch *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		b->slot[i] = candidate(ns, b->tag[i], b->home[i]);
		if (b->slot[i] != NONE)
			__builtin_prefetch(slot_at(ns, b->slot[i]));
	}
}

static size_t min_batch(size_t n) { return n < BATCH ? n : BATCH; }

size_t store_index_match(struct store_ns *ns, const struct tutti_key *keys, size_t n, uint32_t *last)
{
	uint32_t spseg = ns->geom.slots_per_segment, segment_start = 0, at = NONE;
	struct batch two[2];
	int fresh = 1;

	*last = NONE;
	batch_home(ns, &two[0], keys, min_batch(n));
	batch_slots(ns, &two[0], min_batch(n));
	for (size_t base = 0; base < n; base += BATCH) {
		struct batch *b = &two[base / BATCH % 2], *ahead = &two[(base / BATCH + 1) % 2];
		size_t here = min_batch(n - base), next = n - base > BATCH ? min_batch(n - base - BATCH) : 0;

		batch_home(ns, ahead, keys + base + BATCH, next);
		for (size_t i = 0; i < here; i++) {
			const struct slot *s;

			at = b->slot[i];
			if (at != NONE && !key_is(&slot_at(ns, at)->key, &keys[base + i]))
				at = store_index_find(ns, &keys[base + i]);
			if (at == NONE)
				return base + i;
			s = slot_at(ns, at);
			if (slot_state(s) != SLOT_COMMITTED || (*last != NONE && s->parent != *last))
				return base + i;
			if (fresh || at - segment_start >= spseg) {
				fresh = 0;
				segment_start = at - at % spseg;
				ns->s->segments[at / spseg].stamp = ns->clock;
			}
			*last = at;
		}
		batch_slots(ns, ahead, next);
	}
	return n;
}
