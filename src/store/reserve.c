/*
 * reserve.c - a reservation is made: what of a chain is there, and slots for what is not.
 *
 * How it goes on (published, dropped, expired) is hold.c.
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

/* Finds the leading keys that are committed. *parent becomes the last of them; -EINVAL: not a chain. */
static int reserve_prefix(struct store_ns *ns, const struct tutti_key *keys, size_t n, uint32_t *parent, size_t *first)
{
	uint32_t before = *parent;

	for (*first = 0; *first < n; ++*first) {
		uint32_t at = store_index_find(ns, &keys[*first]);
		const struct slot *s;

		if (at == NONE)
			return 0;
		s = slot_at(ns, at);
		if (s->parent != *parent)
			return err_set(
			    -EINVAL,
			    "reserve: key %zu is there already, but below another parent: the keys are not a chain",
			    *first);
		if (slot_state(s) != SLOT_COMMITTED)
			return 1; /* someone else is writing it */
		segment_of(ns, at)->stamp = ns->clock;
		*parent = at;
	}
	if (*parent != before && *parent != NONE)
		store_tree_touch(ns, *parent);
	return 0;
}

/* Makes a free slot, taken out of its set, the next block of the reservation. */
static void reserve_one(struct store_ns *ns, struct hold *h, uint32_t slot, uint32_t parent,
                        const struct tutti_key *key, uint32_t *tail)
{
	struct slot *s = slot_at(ns, slot);

	s->key = *key;
	s->bits = (s->bits & SLOT_HEADER) | (parent == NONE ? 0 : slot_depth(slot_at(ns, parent)) + 1);
	slot_set_state(s, SLOT_RESERVED);
	s->a = s->b = NONE;
	s->stamp = store_hold_index(ns->s, h);
	s->commit = 0;
	store_tree_link(ns, slot, parent);
	if (*tail == NONE)
		h->slot = slot;
	else
		slot_at(ns, *tail)->b = slot;
	*tail = slot;
	h->n_blocks++;
	h->live++;
	h->unreported++;
	ns->n_reserved++;
	segment_of(ns, slot)->busy++;
	store_index_insert(ns, slot);
}

/* Takes slots for keys[0..n) below parent. Returns why there are not more. */
static int reserve_slots(struct store_ns *ns, struct hold *h, uint32_t parent, const struct tutti_key *keys, size_t n)
{
	static const struct tutti_key none;
	uint32_t at = parent, tail = NONE;
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		size_t left = n - i;
		uint32_t slot;

		if (!memcmp(&keys[i], &none, sizeof(none)))
			return err_set(-EINVAL, "reserve: key %zu is all zeros, which means no key", i);
		if (at != NONE && slot_depth(slot_at(ns, at)) == DEPTH_MAX)
			return err_set(-ENOSPC, "a chain has at most %u blocks", DEPTH_MAX + 1);
		if (i && store_index_find(ns, &keys[i]) != NONE)
			return err_set(-EINVAL,
			               "reserve: key %zu is there already, its parent is not: the keys are not a chain",
			               i);
		slot = store_space_take(ns, at, left < UINT32_MAX ? (uint32_t)left : UINT32_MAX, &r);
		if (slot == NONE)
			return r;
		reserve_one(ns, h, slot, at, &keys[i], &tail);
		at = slot;
	}
	return 0;
}

/* The call's arguments, and where the new blocks hang. 1: nothing is to be reserved. */
static int reserve_begin(struct store_ns *ns, const struct tutti_key *parent, const struct tutti_key *keys, size_t n,
                         uint32_t *at, size_t *first)
{
	static const struct tutti_key none;
	int r;

	*at = NONE;
	if (n > UINT32_MAX)
		return err_set(-EINVAL, "reserve: %zu blocks at once are too many", n);
	if (parent && memcmp(parent, &none, sizeof(none))) {
		*at = store_index_find(ns, parent);
		if (*at == NONE)
			return err_set(-ENOENT, "reserve: the parent is neither committed nor reserved");
	}
	r = reserve_prefix(ns, keys, n, at, first);
	if (r || *first == n)
		return r < 0 ? r : 1;
	/* A clear whose record could not be written: nothing may be committed before it is. */
	return ns->durable ? 0 : store_table_write_ns(ns);
}

int store_reserve(struct store_ns *ns, const struct tutti_key *parent, const struct tutti_key *keys, size_t n,
                  uint64_t lease_ns, size_t *first, size_t *count, struct tutti_lease *reservation)
{
	struct store *s = ns->s;
	uint64_t now = s->now_ns(s->now_arg);
	struct hold *h;
	uint32_t at;
	int r, pin;

	*first = *count = 0;
	memset(reservation, 0, sizeof(*reservation));
	store_hold_sweep(s, 0);
	ns->clock++;
	ns->used_ns = now;
	r = reserve_begin(ns, parent, keys, n, &at, first);
	if (r)
		return r < 0 ? r : 0;
	h = store_hold_take(ns, HOLD_RESERVATION, lease_ns, now);
	if (!h)
		return -EAGAIN;
	h->slot = NONE;
	h->sequence = s->next_sequence;
	if (at != NONE)
		h->parent = slot_at(ns, at)->key;
	/* Nothing below the parent protects it yet. */
	pin = at != NONE && slot_state(slot_at(ns, at)) == SLOT_COMMITTED;
	if (pin)
		store_tree_pin(ns, at);
	r = reserve_slots(ns, h, at, keys + *first, n - *first);
	if (pin)
		store_tree_unpin(ns, at);
	if (!h->n_blocks) {
		store_hold_give(s, h);
		return r;
	}
	s->next_sequence++;
	*count = h->n_blocks;
	reservation->epoch = s->super.epoch;
	reservation->id = h->id;
	reservation->expiry_ns = h->expiry_ns;
	return 0;
}
