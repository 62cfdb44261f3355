/*
 * space.c - the free slots of one namespace, by stripe set.
 *
 * Each set has a mask of its free slots. Sets with free slots are in lists: wholly free ones by device, others by how
 * many are free. So every choice below is O(1):
 *   1. go on in the parent's set, so that neighbours in a chain are neighbours on disk;
 *   2. a wholly free set, on the next device;
 *   3. the emptiest set, if at least half of it is free;
 *   4. a free segment of the pool;
 *   5. the emptiest set after all;
 *   6. a segment of another namespace, if this one has less than its share;
 *   7. evict: as many of the coldest leaves as are wanted, at most a set's worth, then the emptiest set.
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>

static uint64_t full_mask(uint32_t set_slots) { return set_slots == 64 ? UINT64_MAX : (1ull << set_slots) - 1; }

static uint32_t set_dev(const struct store_ns *ns, uint32_t set)
{
	return set % geom_sets_per_segment(&ns->geom) % ns->geom.n_dev;
}

static uint32_t list_of(const struct store_ns *ns, uint32_t set, uint32_t set_slots)
{
	uint64_t free = ns->sets[set].free;

	return free == full_mask(set_slots) ? LISTS_WHOLE + set_dev(ns, set) : (uint32_t)__builtin_popcountll(free);
}

/* Appends a set that has free slots to its list. */
static void list_add(struct store_ns *ns, uint32_t set, uint32_t set_slots)
{
	uint32_t list = list_of(ns, set, set_slots);
	struct set *t = &ns->sets[set];

	t->next = NONE;
	t->prev = ns->lists[list].tail;
	if (t->prev != NONE)
		ns->sets[t->prev].next = set;
	else
		ns->lists[list].head = set;
	ns->lists[list].tail = set;
	if (list >= LISTS_WHOLE)
		ns->whole |= 1u << (list - LISTS_WHOLE);
	else
		ns->partial |= 1ull << list;
}

static void list_remove(struct store_ns *ns, uint32_t set, uint32_t set_slots)
{
	uint32_t list = list_of(ns, set, set_slots);
	const struct set *t = &ns->sets[set];

	if (t->prev != NONE)
		ns->sets[t->prev].next = t->next;
	else
		ns->lists[list].head = t->next;
	if (t->next != NONE)
		ns->sets[t->next].prev = t->prev;
	else
		ns->lists[list].tail = t->prev;
	if (ns->lists[list].head != NONE)
		return;
	if (list >= LISTS_WHOLE)
		ns->whole &= ~(1u << (list - LISTS_WHOLE));
	else
		ns->partial &= ~(1ull << list);
}

void store_space_init(struct store_ns *ns)
{
	for (uint32_t i = 0; i < LISTS; i++)
		ns->lists[i].head = ns->lists[i].tail = NONE;
	ns->partial = 0;
	ns->whole = 0;
	ns->n_free = 0;
}

void store_space_add(struct store_ns *ns, uint32_t segment)
{
	uint32_t per = geom_sets_per_segment(&ns->geom);

	for (uint32_t set = segment * per; set < (segment + 1) * per; set++) {
		uint32_t first, n = geom_set_slots(&ns->geom, set, &first);

		ns->sets[set].free = full_mask(n);
		list_add(ns, set, n);
	}
	ns->n_free += ns->geom.slots_per_segment;
}

void store_space_remove(struct store_ns *ns, uint32_t segment)
{
	uint32_t per = geom_sets_per_segment(&ns->geom);

	for (uint32_t set = segment * per; set < (segment + 1) * per; set++) {
		uint32_t first, n = geom_set_slots(&ns->geom, set, &first);

		list_remove(ns, set, n);
		ns->sets[set].free = 0;
	}
	ns->n_free -= ns->geom.slots_per_segment;
}

static void set_change(struct store_ns *ns, uint32_t set, uint32_t set_slots, uint64_t free)
{
	if (ns->sets[set].free)
		list_remove(ns, set, set_slots);
	ns->sets[set].free = free;
	if (free)
		list_add(ns, set, set_slots);
}

void store_space_take_exactly(struct store_ns *ns, uint32_t slot)
{
	struct geom_place p = geom_place(&ns->geom, slot);

	set_change(ns, p.set, p.set_slots, ns->sets[p.set].free & ~(1ull << p.index));
	ns->n_free--;
}

void store_space_give(struct store_ns *ns, uint32_t slot)
{
	struct geom_place p = geom_place(&ns->geom, slot);

	slot_set_state(slot_at(ns, slot), SLOT_FREE);
	set_change(ns, p.set, p.set_slots, ns->sets[p.set].free | 1ull << p.index);
	ns->n_free++;
}

uint32_t store_space_set_free(const struct store_ns *ns, uint32_t slot)
{
	return (uint32_t)__builtin_popcountll(ns->sets[geom_place(&ns->geom, slot).set].free);
}

/* The lowest free slot of the set at or above index `from`, else the lowest. */
static uint32_t take_in_set(struct store_ns *ns, uint32_t set, uint32_t from)
{
	uint32_t first, n = geom_set_slots(&ns->geom, set, &first);
	uint64_t free = ns->sets[set].free, above = from < 64 ? free & (UINT64_MAX << from) : 0;
	uint32_t i = (uint32_t)__builtin_ctzll(above ? above : free);

	set_change(ns, set, n, free & ~(1ull << i));
	ns->n_free--;
	return first + i;
}

/* From a wholly free set of the device `dev` or the next one that has any. */
static uint32_t take_whole(struct store_ns *ns, uint32_t dev)
{
	uint32_t ahead = ns->whole >> dev << dev;
	uint32_t list = LISTS_WHOLE + (uint32_t)__builtin_ctz(ahead ? ahead : ns->whole);

	return take_in_set(ns, ns->lists[list].head, 0);
}

/* From the emptiest set that has `least` free slots, or NONE. */
static uint32_t take_partial(struct store_ns *ns, uint32_t least)
{
	uint32_t most = ns->partial ? 63 - (uint32_t)__builtin_clzll(ns->partial) : 0;

	return most && most >= least ? take_in_set(ns, ns->lists[most].head, 0) : NONE;
}

static uint32_t take_evicted(struct store_ns *ns, uint32_t want)
{
	uint32_t n = want < ns->geom.g ? want : ns->geom.g, slot = NONE;

	for (uint32_t i = 0; i < n && !ns->whole; i++)
		if (store_tree_evict(ns, &slot))
			break;
	if (slot == NONE)
		return NONE;
	return ns->whole ? take_whole(ns, 0) : take_partial(ns, 1);
}

uint32_t store_space_take(struct store_ns *ns, uint32_t parent, uint32_t want, int *result)
{
	uint32_t dev = ns->next_dev, slot;
	int r;

	*result = 0;
	if (parent != NONE) {
		struct geom_place p = geom_place(&ns->geom, parent);

		if (ns->sets[p.set].free)
			return take_in_set(ns, p.set, p.index + 1);
		dev = (p.dev + 1) % ns->geom.n_dev;
	} else if (ns->whole) {
		ns->next_dev = (dev + 1) % ns->geom.n_dev;
	}
	if (ns->whole)
		return take_whole(ns, dev);
	slot = take_partial(ns, ((ns->geom.sets_per_chunk ? ns->geom.g : ns->geom.tail_g) + 1) / 2);
	if (slot != NONE)
		return slot;
	r = store_segment_hand_out(ns);
	if (!r)
		return take_whole(ns, dev);
	if (r != -ENOSPC)
		*result = r;
	slot = take_partial(ns, 1);
	if (slot != NONE)
		return slot;
	r = store_segment_steal(ns);
	if (!r)
		return take_whole(ns, dev);
	if (r != -ENOSPC)
		*result = r;
	slot = take_evicted(ns, want);
	if (slot == NONE && !*result)
		*result = err_set(
		    -ENOSPC, "namespace %s: every block of its %llu segments is leased, reserved or above one that is",
		    ns->facts.model, (unsigned long long)ns->n_segments);
	return slot;
}
