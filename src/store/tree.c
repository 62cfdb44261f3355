/*
 * tree.c - who hangs below whom, who may be evicted, and what leaves when something is dropped.
 *
 * Invariants (store_check recounts them):
 *   - a slot in the LRU list is COMMITTED, has no child and no pin; every such slot is in the list;
 *   - a COMMITTED slot's parent is COMMITTED; a RESERVED one's is RESERVED or COMMITTED; a ZOMBIE's is either or
 * ZOMBIE;
 *   - COMMITTED and RESERVED slots, and no others, are in the table;
 *   - a ZOMBIE has a pin, or a child that is a ZOMBIE.
 */
#include "store/state.h"

#define CANDIDATES 16

void store_lru_push(struct store_ns *ns, uint32_t slot, int hot)
{
	struct slot *s = slot_at(ns, slot);

	s->bits |= SLOT_LRU;
	s->a = hot ? ns->hot : NONE;
	s->b = hot ? NONE : ns->cold;
	if (s->a != NONE)
		slot_at(ns, s->a)->b = slot;
	if (s->b != NONE)
		slot_at(ns, s->b)->a = slot;
	if (hot || ns->hot == NONE)
		ns->hot = slot;
	if (!hot || ns->cold == NONE)
		ns->cold = slot;
	ns->n_lru++;
}

/* Afterwards the slot has no child and no pin. */
void store_lru_remove(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);

	if (s->a != NONE)
		slot_at(ns, s->a)->b = s->b;
	else
		ns->cold = s->b;
	if (s->b != NONE)
		slot_at(ns, s->b)->a = s->a;
	else
		ns->hot = s->a;
	s->bits &= ~SLOT_LRU;
	s->a = NONE;
	s->b = 0;
	ns->n_lru--;
}

void store_lru_settle(struct store_ns *ns, uint32_t slot, int hot)
{
	const struct slot *s = slot_at(ns, slot);

	if (slot_state(s) == SLOT_COMMITTED && !(s->bits & SLOT_LRU) && s->a == NONE && !s->b)
		store_lru_push(ns, slot, hot);
}

void store_tree_link(struct store_ns *ns, uint32_t slot, uint32_t parent)
{
	struct slot *s = slot_at(ns, slot), *p;

	s->parent = parent;
	s->sib_next = s->sib_prev = NONE;
	if (parent == NONE)
		return;
	p = slot_at(ns, parent);
	if (p->bits & SLOT_LRU)
		store_lru_remove(ns, parent);
	s->sib_next = p->a;
	if (p->a != NONE)
		slot_at(ns, p->a)->sib_prev = slot;
	p->a = slot;
}

/* The parent is left as it is: a caller settles it. */
void store_tree_unlink(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);

	if (s->parent == NONE)
		return;
	if (s->sib_prev != NONE)
		slot_at(ns, s->sib_prev)->sib_next = s->sib_next;
	else
		slot_at(ns, s->parent)->a = s->sib_next;
	if (s->sib_next != NONE)
		slot_at(ns, s->sib_next)->sib_prev = s->sib_prev;
	s->parent = NONE;
}

void store_tree_touch(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);

	s->stamp = ns->clock;
	if ((s->bits & SLOT_LRU) && ns->hot != slot) {
		store_lru_remove(ns, slot);
		store_lru_push(ns, slot, 1);
	}
}

void store_tree_pin(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);

	if (s->bits & SLOT_LRU)
		store_lru_remove(ns, slot);
	if (!s->b++)
		segment_of(ns, slot)->busy++;
}

/* Frees a zombie that nothing holds any more, then its parents likewise. */
static void zombie_leave(struct store_ns *ns, uint32_t slot)
{
	while (slot != NONE) {
		struct slot *s = slot_at(ns, slot);
		uint32_t parent = s->parent;

		if (slot_state(s) != SLOT_ZOMBIE || s->a != NONE || s->b) {
			store_lru_settle(ns, slot, 1);
			return;
		}
		store_tree_unlink(ns, slot);
		ns->n_zombie--;
		segment_of(ns, slot)->busy--;
		s->bits |= SLOT_HEADER;
		store_space_give(ns, slot);
		slot = parent;
	}
}

void store_tree_unpin(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);

	if (--s->b)
		return;
	if (slot_state(s) == SLOT_ZOMBIE)
		zombie_leave(ns, slot);
	else {
		segment_of(ns, slot)->busy--;
		store_lru_settle(ns, slot, 1);
	}
}

/* A reserved slot, out of its reservation already, whose parent is committed. */
void store_tree_commit(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);
	struct segment *g = segment_of(ns, slot);

	slot_set_state(s, SLOT_COMMITTED);
	s->commit = ns->s->sync_no;
	s->stamp = ns->clock;
	s->b = 0;
	s->bits |= SLOT_HEADER;
	ns->n_reserved--;
	ns->n_committed++;
	g->busy--;
	g->stamp = ns->clock;
	ns->s->dirty = 1;
	store_lru_settle(ns, slot, 1);
}

static uint32_t leftmost(const struct store_ns *ns, uint32_t slot)
{
	while (slot_first_child(slot_at(ns, slot)) != NONE)
		slot = slot_first_child(slot_at(ns, slot));
	return slot;
}

/* One block of a dropped subtree, its children done already. */
static void drop_one(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);
	enum slot_state state = slot_state(s);

	if (state == SLOT_ZOMBIE)
		return;
	store_index_remove(ns, slot);
	if (s->bits & SLOT_LRU)
		store_lru_remove(ns, slot);
	s->bits |= SLOT_HEADER;
	if (state == SLOT_RESERVED) {
		/* Stays with its reservation until no lane can write to it. */
		store_tree_unlink(ns, slot);
		slot_set_state(s, SLOT_DEAD);
		ns->n_reserved--;
		ns->n_dead++;
		ns->s->holds[s->stamp].live--;
		store_hold_look(ns->s, s->stamp);
		return;
	}
	ns->n_committed--;
	if (s->a != NONE || s->b) {
		/* Something below it, or it itself, is leased. */
		if (!s->b)
			segment_of(ns, slot)->busy++;
		slot_set_state(s, SLOT_ZOMBIE);
		ns->n_zombie++;
		return;
	}
	store_tree_unlink(ns, slot);
	store_space_give(ns, slot);
}

uint64_t store_tree_drop(struct store_ns *ns, uint32_t slot)
{
	uint32_t parent = slot_at(ns, slot)->parent, at = leftmost(ns, slot);
	uint64_t n = 0;

	for (;;) {
		const struct slot *s = slot_at(ns, at);
		uint32_t next = at == slot ? NONE : s->sib_next != NONE ? leftmost(ns, s->sib_next) : s->parent;

		drop_one(ns, at);
		n++;
		if (next == NONE)
			break;
		at = next;
	}
	if (parent != NONE)
		store_lru_settle(ns, parent, 1);
	return n;
}

static void evict(struct store_ns *ns, uint32_t slot)
{
	struct slot *s = slot_at(ns, slot);
	uint32_t parent = s->parent, stamp = s->stamp;

	store_lru_remove(ns, slot);
	store_index_remove(ns, slot);
	store_tree_unlink(ns, slot);
	s->bits |= SLOT_HEADER;
	ns->n_committed--;
	ns->n_evicted++;
	store_space_give(ns, slot);
	/* The parent was used whenever the child was; it goes to the hot end only if it was looked up alone since then.
	 */
	if (parent != NONE)
		store_lru_settle(ns, parent, (int32_t)(slot_at(ns, parent)->stamp - stamp) > 0);
}

int store_tree_evict(struct store_ns *ns, uint32_t *slot)
{
	uint32_t best = NONE, best_free = 0, at = ns->cold;

	for (int i = 0; i < CANDIDATES && at != NONE; i++, at = slot_at(ns, at)->b) {
		uint32_t n = store_space_set_free(ns, at);

		if (best == NONE || n > best_free) {
			best = at;
			best_free = n;
		}
	}
	if (best == NONE)
		return -1;
	evict(ns, best);
	*slot = best;
	return 0;
}

/* Pre-order: the next slot of root's subtree, not below `at` if skip. */
static uint32_t walk_next(const struct store_ns *ns, uint32_t root, uint32_t at, int skip)
{
	uint32_t child = slot_first_child(slot_at(ns, at));

	if (!skip && child != NONE)
		return child;
	while (at != root) {
		const struct slot *s = slot_at(ns, at);

		if (s->sib_next != NONE)
			return s->sib_next;
		at = s->parent;
	}
	return NONE;
}

/* Marks (or unmarks) the subtrees of all the segment's blocks. Returns 0 at the first one that is held. */
static int walk_segment(struct store_ns *ns, uint32_t segment, int mark)
{
	uint32_t first = segment * ns->geom.slots_per_segment;

	for (uint32_t i = 0; i < ns->geom.slots_per_segment; i++) {
		uint32_t root = first + i;

		if (slot_state(slot_at(ns, root)) != SLOT_COMMITTED)
			continue;
		for (uint32_t at = root; at != NONE;) {
			struct slot *s = slot_at(ns, at);
			int done = !(s->bits & SLOT_VISITED) == !mark;

			if (mark && (slot_state(s) != SLOT_COMMITTED || slot_pins(s)))
				return 0;
			s->bits = mark ? s->bits | SLOT_VISITED : s->bits & ~SLOT_VISITED;
			at = walk_next(ns, root, at, done);
		}
	}
	return 1;
}

int store_tree_idle(struct store_ns *ns, uint32_t segment)
{
	int idle;

	if (ns->s->segments[segment].busy)
		return 0;
	idle = walk_segment(ns, segment, 1);
	walk_segment(ns, segment, 0);
	return idle;
}

/*
 * Goes from the hottest to the coldest: a segment's last use is that of the hottest block in it or below one in it, and
 * the first walk to reach a block is the hottest one through it, so every block is walked over once.
 */
static void stamp_segments(struct store_ns *ns, const uint32_t *order, uint64_t n)
{
	for (uint64_t i = n; i-- > 0;)
		for (uint32_t at = order[i]; at != NONE && !(slot_at(ns, at)->bits & SLOT_VISITED);
		     at = slot_at(ns, at)->parent) {
			struct segment *g = segment_of(ns, at);

			slot_at(ns, at)->bits |= SLOT_VISITED;
			if (g->stamp < slot_at(ns, order[i])->stamp)
				g->stamp = slot_at(ns, order[i])->stamp;
		}
	for (uint64_t i = 0; i < n; i++)
		slot_at(ns, order[i])->bits &= ~SLOT_VISITED;
}

void store_tree_build(struct store_ns *ns, const uint32_t *order, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct slot *s = slot_at(ns, order[i]);

		s->a = NONE;
		s->b = 0;
		s->stamp = ++ns->clock;
	}
	for (uint64_t i = 0; i < n; i++)
		store_tree_link(ns, order[i], slot_at(ns, order[i])->parent);
	for (uint64_t i = 0; i < n; i++)
		store_lru_settle(ns, order[i], 1);
	stamp_segments(ns, order, n);
	ns->clock++;
}
