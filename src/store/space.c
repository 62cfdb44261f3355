/*
 * space.c - the free slots of one namespace, by stripe set.
 *
 * Each set has a mask of its free slots. Sets with free slots are in lists: wholly free ones by device, others by how
 * many are free. So every choice below is O(1):
 *   1. go on in the parent's set, so that neighbours in a chain are neighbours on disk;
 *   2. a wholly free set, on the next device;
 *   3. a free segment of the pool, unless a quarter of the own slots is free: what nobody has is better than holes;
 *   4. for the end of a chain, the set with the least room that is enough for it; for a single block, half a set;
 *   5. while the free slots are fewer than 1 in 24: a segment of another namespace, if this one has less than its
 *      share, else evict the coldest leaves until a set is whole (a bounded number of them);
 *   6. the emptiest set, but rather one that is less than half empty: those that are emptier are draining.
 *
 * Why 1 in 24: in a pool that is kept full to the last slot the free slots are those that were evicted last,
 * scattered over as many sets, and after a few turnovers every chain lies in splinters. A few free slots more let sets
 * drain to the end before they are filled again.
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>

#define HOLES_PART 4u  /* see 3. */
#define SLACK_PART 24u /* see 5. */
#define SLACK_STEP 2u  /* leaves evicted in one go beyond those that are wanted: one for so many */

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

/*
 * Lists of sets that are not whole, but will do for the last `want` blocks of a chain. A single block is as likely a
 * chain that will grow: it wants half a set.
 */
static uint64_t fitting(const struct store_ns *ns, uint32_t want)
{
	uint32_t least = want > 1 ? want : (ns->geom.g + 1) / 2;

	return least < ns->geom.g ? ns->partial & UINT64_MAX << least : 0;
}

/*
 * From the emptiest set of those that are less than half empty; a set that is emptier is left to drain, unless there is
 * no other.
 */
static uint32_t take_hole(struct store_ns *ns)
{
	uint64_t holes = ns->partial & ((2ull << ns->geom.g / 2) - 1);

	if (!holes)
		holes = ns->partial;
	return holes ? take_in_set(ns, ns->lists[63 - __builtin_clzll(holes)].head, 0) : NONE;
}

static uint64_t slots_of(const struct store_ns *ns) { return ns->n_segments * ns->geom.slots_per_segment; }

/* Free slots below which room is made for a chain that goes on for `want` blocks. */
static uint64_t enough(const struct store_ns *ns, uint32_t want)
{
	uint64_t slack = slots_of(ns) / SLACK_PART, set = want < ns->geom.g ? want : ns->geom.g;

	return slack > set ? slack : set;
}

/* As much room as is enough, in bounded steps. Returns what a segment of another could not be had for. */
static int make_room(struct store_ns *ns, uint32_t want)
{
	uint32_t set = want < ns->geom.g ? want : ns->geom.g, n = set + (set + SLACK_STEP - 1) / SLACK_STEP, slot;
	int r = store_segment_steal(ns);

	for (uint32_t i = 0; i < n && !ns->whole && !fitting(ns, want) && ns->n_free < enough(ns, want); i++)
		if (store_tree_evict(ns, &slot))
			break;
	return r;
}

uint32_t store_space_take(struct store_ns *ns, uint32_t parent, uint32_t want, int *result)
{
	uint32_t dev = ns->next_dev, slot = NONE;
	int r = 0;

	*result = 0;
	if (parent != NONE) {
		struct geom_place p = geom_place(&ns->geom, parent);

		if (ns->sets[p.set].free)
			return take_in_set(ns, p.set, p.index + 1);
		dev = (p.dev + 1) % ns->geom.n_dev;
	} else if (ns->whole) {
		ns->next_dev = (dev + 1) % ns->geom.n_dev;
	}
	if (!ns->whole && (ns->n_free * HOLES_PART <= slots_of(ns) || ns->n_free < enough(ns, want)))
		r = store_segment_hand_out(ns, want);
	if (r && r != -ENOSPC)
		*result = r;
	r = ns->whole || fitting(ns, want) || ns->n_free >= enough(ns, want) ? 0 : make_room(ns, want);
	if (r && r != -ENOSPC)
		*result = r;
	if (ns->whole)
		return take_whole(ns, dev);
	if (fitting(ns, want))
		return take_in_set(ns, ns->lists[__builtin_ctzll(fitting(ns, want))].head, 0);
	slot = take_hole(ns);
	if (slot == NONE && !*result)
		*result = err_set(
		    -ENOSPC, "namespace %s: every block of its %llu segments is leased, reserved or above one that is",
		    ns->facts.model, (unsigned long long)ns->n_segments);
	return slot;
}
