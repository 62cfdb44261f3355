/* check.c - recounts a store the slow way and compares: what every test calls, and what a doubting operator may. */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A broken invariant: its text is the message. */
#define MUST(ns, condition)                                                                                            \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			return err_set(-EUCLEAN, "namespace %u: %s does not hold (check.c:%d)", (ns)->number,          \
			               #condition, __LINE__);                                                          \
	} while (0)

struct recount {
	uint64_t free, committed, reserved, dead, zombie, lru, children, linked, pins, sets, segments;
};

static int check_place(const struct store_ns *ns, uint32_t slot, struct recount *n)
{
	struct geom_place p = geom_place(&ns->geom, slot);
	int free = slot_state(slot_at(ns, slot)) == SLOT_FREE;

	MUST(ns, (ns->sets[p.set].free >> p.index & 1) == (uint64_t)free);
	n->free += (uint64_t)free;
	return 0;
}

static int check_children(const struct store_ns *ns, uint32_t slot, struct recount *n)
{
	const struct slot *s = slot_at(ns, slot);
	uint32_t before = NONE;

	for (uint32_t c = slot_first_child(s); c != NONE; c = slot_at(ns, c)->sib_next) {
		enum slot_state state;

		MUST(ns, c < ns->slots_max);
		state = slot_state(slot_at(ns, c));
		MUST(ns, slot_at(ns, c)->parent == slot && slot_at(ns, c)->sib_prev == before);
		MUST(ns, slot_depth(slot_at(ns, c)) == slot_depth(s) + 1);
		MUST(ns, state == SLOT_COMMITTED || state == SLOT_RESERVED || state == SLOT_ZOMBIE);
		MUST(ns, state != SLOT_COMMITTED || slot_state(s) == SLOT_COMMITTED);
		MUST(ns, state != SLOT_RESERVED || slot_state(s) == SLOT_COMMITTED || slot_state(s) == SLOT_RESERVED);
		before = c;
		MUST(ns, ++n->children <= ns->slots_max);
	}
	return 0;
}

/* One slot that is not free. */
static int check_slot(const struct store_ns *ns, uint32_t slot, struct recount *n, uint32_t *busy)
{
	const struct slot *s = slot_at(ns, slot);
	enum slot_state state = slot_state(s);
	int indexed = state == SLOT_COMMITTED || state == SLOT_RESERVED, lru = (s->bits & SLOT_LRU) != 0;

	MUST(ns, !(s->bits & SLOT_VISITED));
	MUST(ns, (store_index_find(ns, &s->key) == slot) == indexed);
	n->committed += state == SLOT_COMMITTED;
	n->reserved += state == SLOT_RESERVED;
	n->dead += state == SLOT_DEAD;
	n->zombie += state == SLOT_ZOMBIE;
	n->lru += (uint64_t)lru;
	if (state == SLOT_DEAD) {
		++*busy;
		return 0;
	}
	n->linked += s->parent != NONE;
	MUST(ns, s->parent != NONE || !slot_depth(s));
	MUST(ns, !lru || state == SLOT_COMMITTED);
	if (state == SLOT_RESERVED) {
		++*busy;
	} else {
		n->pins += slot_pins(s);
		*busy += state == SLOT_ZOMBIE || slot_pins(s);
		MUST(ns, state != SLOT_ZOMBIE || s->b || s->a != NONE);
		MUST(ns, lru == (state == SLOT_COMMITTED && slot_first_child(s) == NONE && !slot_pins(s)));
	}
	return check_children(ns, slot, n);
}

static int check_segment(const struct store_ns *ns, uint32_t segment, struct recount *n)
{
	uint32_t spseg = ns->geom.slots_per_segment, per = geom_sets_per_segment(&ns->geom), busy = 0;

	for (uint32_t slot = segment * spseg; slot < (segment + 1) * spseg; slot++) {
		int r = check_place(ns, slot, n);

		if (!r && slot_state(slot_at(ns, slot)) != SLOT_FREE)
			r = check_slot(ns, slot, n, &busy);
		if (r)
			return r;
	}
	for (uint32_t set = segment * per; set < (segment + 1) * per; set++)
		n->sets += ns->sets[set].free != 0;
	MUST(ns, busy == ns->s->segments[segment].busy);
	n->segments++;
	return 0;
}

static int check_lists(const struct store_ns *ns, const struct recount *n)
{
	uint64_t sets = 0, lru = 0, entries = 0;

	for (uint32_t list = 0; list < LISTS; list++) {
		uint32_t before = NONE;

		for (uint32_t set = ns->lists[list].head; set != NONE; set = ns->sets[set].next) {
			uint32_t first, slots = geom_set_slots(&ns->geom, set, &first);
			uint32_t count = (uint32_t)__builtin_popcountll(ns->sets[set].free);

			MUST(ns, ns->sets[set].prev == before);
			MUST(ns, count == slots
			             ? list == LISTS_WHOLE + set % geom_sets_per_segment(&ns->geom) % ns->geom.n_dev
			             : list == count);
			before = set;
			MUST(ns, ++sets <= n->sets);
		}
		MUST(ns, ns->lists[list].tail == before);
		MUST(ns, (before != NONE) ==
		             (list < LISTS_WHOLE ? ns->partial >> list & 1 : ns->whole >> (list - LISTS_WHOLE) & 1));
	}
	MUST(ns, sets == n->sets);
	for (uint32_t at = ns->cold, before = NONE; at != NONE; before = at, at = slot_at(ns, at)->b) {
		MUST(ns, (slot_at(ns, at)->bits & SLOT_LRU) && slot_at(ns, at)->a == before);
		MUST(ns, ++lru <= n->lru);
		MUST(ns, slot_at(ns, at)->b != NONE || ns->hot == at);
	}
	MUST(ns, lru == n->lru && lru == ns->n_lru);
	for (uint64_t i = 0; i < ns->table_max; i++)
		entries += ns->table[i].slot != 0;
	MUST(ns, entries == n->committed + n->reserved);
	return 0;
}

static int check_holds(const struct store_ns *ns, const struct recount *n)
{
	const struct store *s = ns->s;
	uint64_t leases = 0, reservations = 0, listed = 0, live = 0;
	uint32_t all = (1u << s->super.ranks) - 1;

	for (uint32_t i = s->hold_first; i != NONE; i = s->holds[i].next) {
		const struct hold *h = &s->holds[i];
		uint32_t of_it = 0, its_live = 0, unreported = 0;

		MUST(ns, h->kind != HOLD_NONE && !h->listed);
		if (h->ns != ns)
			continue;
		if (h->kind == HOLD_LEASE) {
			enum slot_state state = slot_state(slot_at(ns, h->slot));

			leases++;
			MUST(ns, (state == SLOT_COMMITTED || state == SLOT_ZOMBIE) && slot_pins(slot_at(ns, h->slot)));
			continue;
		}
		reservations++;
		for (uint32_t at = h->slot; at != NONE; at = slot_at(ns, at)->b) {
			const struct slot *b = slot_at(ns, at);

			MUST(ns, (slot_state(b) == SLOT_RESERVED || slot_state(b) == SLOT_DEAD) && b->stamp == i);
			its_live += slot_state(b) == SLOT_RESERVED;
			unreported += b->commit != all;
			MUST(ns, ++of_it <= h->n_blocks);
		}
		MUST(ns, of_it + h->published == h->n_blocks && its_live == h->live && unreported == h->unreported);
		MUST(ns, h->live || h->unreported);
		listed += of_it;
		live += its_live;
	}
	MUST(ns, leases == ns->n_leases && leases == n->pins && reservations == ns->n_reservations);
	MUST(ns, listed == n->reserved + n->dead && live == n->reserved);
	return 0;
}

static int check_ns(const struct store_ns *ns)
{
	struct recount n = {0};
	int r;

	for (uint32_t i = 0; i < ns->s->n_segments; i++) {
		const struct segment *g = &ns->s->segments[i];

		if (g->state != SEGMENT_OWNED || g->owner != ns->number)
			continue;
		r = check_segment(ns, i, &n);
		if (r)
			return r;
	}
	MUST(ns, n.segments == ns->n_segments && n.free == ns->n_free);
	MUST(ns, n.committed == ns->n_committed && n.reserved == ns->n_reserved);
	MUST(ns, n.dead == ns->n_dead && n.zombie == ns->n_zombie);
	MUST(ns, n.children == n.linked);
	r = check_lists(ns, &n);
	return r ? r : check_holds(ns, &n);
}

int store_check(struct store *s)
{
	uint32_t holds = 0;

	for (uint32_t i = s->hold_first; i != NONE; i = s->holds[i].next)
		holds++;
	if (holds != s->n_holds || s->hold_look != NONE)
		return err_set(-EUCLEAN, "%u leases and reservations are in the list, %u are counted", holds,
		               s->n_holds);
	for (uint32_t i = 0; i < s->n_segments; i++) {
		const struct segment *g = &s->segments[i];

		if (g->state == SEGMENT_OWNED && (g->owner >= STORE_NAMESPACES_MAX || !s->ns[g->owner]))
			return err_set(-EUCLEAN, "segment %u is owned by namespace %u, which is not there", i,
			               g->owner);
		if (g->state == SEGMENT_FREE && s->all_taken)
			return err_set(-EUCLEAN, "segment %u is free, and all are said to be taken", i);
	}
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		int r = s->ns[i] ? check_ns(s->ns[i]) : 0;

		if (r)
			return r;
	}
	return 0;
}
