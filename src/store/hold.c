/*
 * hold.c - leases and reservations: who holds what until when.
 *
 * A lease pins the last block of its prefix. A reservation is a list of slots in chain order (linked through slot.b);
 * its first blocks leave the list as they are published, so what remains starts with the first unpublished one. A block
 * that fails becomes DEAD with all that hangs below it, in this and other reservations, but keeps its place in the
 * list: another rank's lane may still write to it. Dead slots come back when every rank has reported every block of the
 * reservation, at expiry, or when the caller says that no lane has it.
 *
 * What one reservation does may concern others (a published parent, a dropped one): these are listed, and looked at
 * before the call returns.
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

#define ID_INDEX_BITS 16

void store_hold_init(struct store *s)
{
	s->hold_first = s->hold_look = s->hold_free = NONE;
	s->next_expiry_ns = UINT64_MAX;
}

/* The place in holds of an id that was given out. */
static uint32_t id_index(uint64_t id)
{
	_Static_assert(STORE_LEASES_MAX <= 1u << ID_INDEX_BITS && !(STORE_LEASES_MAX & (STORE_LEASES_MAX - 1)),
	               "the index of a hold is the low bits of its id");
	return (uint32_t)(id & (STORE_LEASES_MAX - 1));
}

/* How many the namespace has out of this kind. */
static uint64_t *out_of_kind(const struct hold *h)
{
	return h->kind == HOLD_LEASE ? &h->ns->n_leases : &h->ns->n_reservations;
}

/* Given back ones first: those behind hold_fresh were never touched. */
static struct hold *unused_take(struct store *s)
{
	struct hold *h;

	if (s->hold_free == NONE)
		return &s->holds[s->hold_fresh++];
	h = &s->holds[s->hold_free];
	s->hold_free = h->next;
	return h;
}

static void used_link(struct store *s, struct hold *h)
{
	uint32_t i = store_hold_index(s, h);

	h->prev = NONE;
	h->next = s->hold_first;
	if (h->next != NONE)
		s->holds[h->next].prev = i;
	s->hold_first = i;
	s->n_holds++;
}

static void used_unlink(struct store *s, const struct hold *h)
{
	if (h->prev != NONE)
		s->holds[h->prev].next = h->next;
	else
		s->hold_first = h->next;
	if (h->next != NONE)
		s->holds[h->next].prev = h->prev;
	s->n_holds--;
}

struct hold *store_hold_take(struct store_ns *ns, enum hold_kind kind, uint64_t lease_ns, uint64_t now)
{
	struct store *s = ns->s;
	struct hold *h;

	if (s->n_holds == STORE_LEASES_MAX)
		store_hold_sweep(s, 1);
	if (s->n_holds == STORE_LEASES_MAX) {
		err_set(-EAGAIN, "%u leases and reservations are out, the most there can be; release some",
		        STORE_LEASES_MAX);
		return NULL;
	}
	h = unused_take(s);
	memset(h, 0, sizeof(*h));
	h->id = ++s->hold_generation << ID_INDEX_BITS | store_hold_index(s, h);
	h->kind = kind;
	h->ns = ns;
	h->expiry_ns = lease_ns > UINT64_MAX - now ? UINT64_MAX : now + lease_ns;
	used_link(s, h);
	if (h->expiry_ns < s->next_expiry_ns)
		s->next_expiry_ns = h->expiry_ns;
	++*out_of_kind(h);
	return h;
}

void store_hold_give(struct store *s, struct hold *h)
{
	used_unlink(s, h);
	--*out_of_kind(h);
	h->kind = HOLD_NONE;
	h->id = 0;
	h->next = s->hold_free;
	s->hold_free = store_hold_index(s, h);
}

/* Takes what is not published out of the index; the slots stay DEAD. */
static void reservation_kill(struct hold *h)
{
	struct store_ns *ns = h->ns;

	/* Every live block hangs below the first one; dropping that drops all. */
	if (h->live)
		store_tree_drop(ns, h->slot);
}

/* No lane writes to the reservation's dead slots any more: they are free, and it is gone. */
static void reservation_end(struct store *s, struct hold *h)
{
	struct store_ns *ns = h->ns;

	for (uint32_t at = h->slot, next; at != NONE; at = next) {
		next = slot_at(ns, at)->b;
		segment_of(ns, at)->busy--;
		ns->n_dead--;
		store_space_give(ns, at);
	}
	store_hold_give(s, h);
}

static void hold_expire(struct store *s, struct hold *h)
{
	if (h->kind == HOLD_LEASE) {
		uint32_t slot = h->slot;
		struct store_ns *ns = h->ns;

		store_hold_give(s, h);
		store_tree_unpin(ns, slot);
		return;
	}
	reservation_kill(h);
	reservation_end(s, h);
}

/* slot.commit of a reserved slot that every rank has reported. */
static uint32_t all_ranks(const struct store *s) { return (1u << s->super.ranks) - 1; }

/* 1: every rank has written it, and its parent is published. */
static int publishable(const struct store_ns *ns, const struct slot *s)
{
	return slot_state(s) == SLOT_RESERVED && s->commit == all_ranks(ns->s) &&
	       (s->parent == NONE || slot_state(slot_at(ns, s->parent)) == SLOT_COMMITTED);
}

/* Publishes the first blocks of the reservation, up to one that can't be yet. */
static void publish(struct store_ns *ns, struct hold *h)
{
	while (h->slot != NONE && publishable(ns, slot_at(ns, h->slot))) {
		uint32_t at = h->slot;
		struct slot *s = slot_at(ns, at);

		h->slot = s->b;
		h->parent = s->key;
		h->published++;
		h->live--;
		store_tree_commit(ns, at);
		/* Other reservations may have waited for this block. */
		for (uint32_t c = slot_first_child(s); c != NONE; c = slot_at(ns, c)->sib_next)
			if (slot_state(slot_at(ns, c)) == SLOT_RESERVED)
				store_hold_look(ns->s, slot_at(ns, c)->stamp);
	}
}

void store_hold_look(struct store *s, uint32_t hold)
{
	struct hold *h = &s->holds[hold];

	if (h->listed)
		return;
	h->listed = 1;
	h->look_next = s->hold_look;
	s->hold_look = hold;
}

/* Looks at every listed reservation: publishes what it can, ends it if nothing of it is left to wait for. */
void store_hold_settle(struct store *s)
{
	while (s->hold_look != NONE) {
		struct hold *h = &s->holds[s->hold_look];

		s->hold_look = h->look_next;
		h->listed = 0;
		if (h->kind != HOLD_RESERVATION)
			continue;
		publish(h->ns, h);
		if (!h->live && !h->unreported) {
			uint64_t id = h->id;

			reservation_end(s, h);
			h->done_id = id;
		}
	}
}

/* Ends what has expired. Without `now` only when something can have. */
void store_hold_sweep(struct store *s, int now)
{
	uint64_t t = s->now_ns(s->now_arg), least = UINT64_MAX;

	if (!now && t < s->next_expiry_ns)
		return;
	for (uint32_t i = s->hold_first, next; i != NONE; i = next) {
		struct hold *h = &s->holds[i];

		next = h->next;
		if (t >= h->expiry_ns)
			hold_expire(s, h);
		else if (h->expiry_ns < least)
			least = h->expiry_ns;
	}
	s->next_expiry_ns = least;
	store_hold_settle(s);
}

/* NULL: unknown, ended or expired. */
static struct hold *hold_find(struct store_ns *ns, const struct tutti_lease *lease)
{
	struct store *s = ns->s;
	struct hold *h = &s->holds[id_index(lease->id)];

	store_hold_sweep(s, 0);
	return lease->id && lease->epoch == s->super.epoch && h->id == lease->id && h->ns == ns ? h : NULL;
}

/* A lease of the n blocks of a chain that end at slot; those before them are held with them, and not counted. */
static int lease_slot(struct store_ns *ns, uint32_t slot, size_t n, uint64_t lease_ns, uint64_t now,
                      struct tutti_lease *lease)
{
	struct hold *h = store_hold_take(ns, HOLD_LEASE, lease_ns, now);

	if (!h)
		return -EAGAIN;
	store_tree_pin(ns, slot);
	h->slot = slot;
	h->n_blocks = (uint32_t)n;
	lease->epoch = ns->s->super.epoch;
	lease->id = h->id;
	lease->expiry_ns = h->expiry_ns;
	return 0;
}

int store_lease_block(struct store_ns *ns, uint32_t slot, const struct tutti_key *key, uint64_t lease_ns,
                      struct tutti_lease *lease)
{
	struct store *s = ns->s;

	memset(lease, 0, sizeof(*lease));
	store_hold_sweep(s, 0);
	return store_holds(ns, slot, key) ? lease_slot(ns, slot, 1, lease_ns, s->now_ns(s->now_arg), lease) : -ESTALE;
}

int store_lookup(struct store_ns *ns, const struct tutti_key *keys, size_t n, uint64_t lease_ns, size_t *matched,
                 struct tutti_lease *lease)
{
	struct store *s = ns->s;
	uint64_t now = s->now_ns(s->now_arg);
	uint32_t last;

	*matched = 0;
	if (lease)
		memset(lease, 0, sizeof(*lease));
	store_hold_sweep(s, 0);
	ns->clock++;
	ns->used_ns = now;
	*matched = n ? store_index_match(ns, keys, n, &last) : 0;
	if (!*matched)
		return 0;
	store_tree_touch(ns, last);
	return lease ? lease_slot(ns, last, *matched, lease_ns, now, lease) : 0;
}

static uint32_t block_flags(const struct store *s, const struct slot *slot)
{
	uint32_t flags = slot->bits & SLOT_HEADER ? STORE_BLOCK_HEADER_VALID : 0;

	if (slot_state(slot) != SLOT_COMMITTED && slot_state(slot) != SLOT_ZOMBIE)
		return flags;
	if (slot->commit <= s->synced && !(slot->commit > s->unsafe_low && slot->commit <= s->unsafe_high))
		return STORE_BLOCK_SYNCED;
	return 0;
}

static void block_fill(const struct store_ns *ns, uint32_t slot, struct store_block *b)
{
	const struct slot *s = slot_at(ns, slot);

	b->slot = slot;
	b->flags = block_flags(ns->s, s);
	b->depth = slot_depth(s);
	b->rsvd = 0;
	b->key = s->key;
}

/* Of a lease: upwards, from its last block. */
static void lease_blocks(const struct store_ns *ns, const struct hold *h, size_t first, size_t n,
                         struct store_hold_info *info, struct store_block *blocks)
{
	uint32_t at = h->slot;

	for (size_t i = h->n_blocks; i-- > first; at = slot_at(ns, at)->parent)
		if (i < first + n)
			block_fill(ns, at, &blocks[i - first]);
	if (at != NONE)
		info->parent = slot_at(ns, at)->key;
}

/* Of a reservation: down its list, which begins behind what is published. */
static void reservation_blocks(const struct store_ns *ns, const struct hold *h, size_t first, size_t n,
                               struct store_hold_info *info, struct store_block *blocks)
{
	uint32_t at = h->slot;

	info->parent = h->parent;
	for (size_t i = h->published; i < first + n; at = slot_at(ns, at)->b, i++) {
		if (i < first)
			info->parent = slot_at(ns, at)->key;
		else
			block_fill(ns, at, &blocks[i - first]);
	}
}

int store_hold_blocks(struct store_ns *ns, const struct tutti_lease *lease, size_t first, size_t n,
                      struct store_hold_info *info, struct store_block *blocks)
{
	const struct hold *h = hold_find(ns, lease);

	if (!h || h->released)
		return err_set(
		    -ESTALE,
		    "the lease or reservation is gone: released, expired, or given before the pool was opened anew");
	if (first > h->n_blocks || n > h->n_blocks - first)
		return err_set(-EINVAL, "blocks %zu to %zu of a lease of %u", first, first + n, h->n_blocks);
	memset(info, 0, sizeof(*info));
	info->op = h->kind == HOLD_LEASE ? TUTTI_RETRIEVE : TUTTI_STORE;
	info->n_blocks = h->n_blocks;
	info->sequence = h->sequence;
	if (h->kind == HOLD_RESERVATION && n && first < h->published)
		return err_set(-ESTALE, "block %zu of the reservation is published already", first);
	if (h->kind == HOLD_LEASE)
		lease_blocks(ns, h, first, n, info, blocks);
	else
		reservation_blocks(ns, h, first, n, info, blocks);
	return 0;
}

/* 1: it ended because every rank had reported all of it; a report that comes once more changes nothing. */
static int reported_before(const struct store *s, const struct tutti_lease *r)
{
	return r->id && r->epoch == s->super.epoch && s->holds[id_index(r->id)].done_id == r->id;
}

/* What one rank says of one block. The first word counts. */
static void report_block(struct store_ns *ns, struct hold *h, uint32_t at, uint32_t rank, int32_t result)
{
	struct slot *slot = slot_at(ns, at);

	if (slot->commit >> rank & 1)
		return;
	slot->commit |= 1u << rank;
	if (slot->commit == all_ranks(ns->s))
		h->unreported--;
	if (result && slot_state(slot) == SLOT_RESERVED)
		store_tree_drop(ns, at);
}

int store_report(struct store_ns *ns, const struct tutti_lease *reservation, uint32_t rank, size_t first, size_t n,
                 const int32_t *results)
{
	struct store *s = ns->s;
	struct hold *h = hold_find(ns, reservation);
	uint32_t at;

	if (!h && reported_before(s, reservation))
		return 0;
	if (!h || h->kind != HOLD_RESERVATION)
		return err_set(-ESTALE,
		               "the reservation is gone: released, expired, or given before the pool was opened anew");
	if (rank >= s->super.ranks)
		return err_set(-EINVAL, "rank %u of %u reports", rank, s->super.ranks);
	if (first > h->n_blocks || n > h->n_blocks - first)
		return err_set(-EINVAL, "blocks %zu to %zu of a reservation of %u are reported", first, first + n,
		               h->n_blocks);
	ns->clock++;
	at = h->slot;
	for (size_t i = h->published; i < first + n; at = slot_at(ns, at)->b, i++)
		if (i >= first)
			report_block(ns, h, at, rank, results[i - first]);
	store_hold_look(s, store_hold_index(s, h));
	store_hold_settle(s);
	return 0;
}

int store_release(struct store_ns *ns, const struct tutti_lease *lease, int at_once)
{
	struct hold *h = hold_find(ns, lease);

	if (!h)
		return 0;
	if (h->kind == HOLD_LEASE || at_once) {
		hold_expire(ns->s, h);
	} else if (!h->released) {
		h->released = 1;
		reservation_kill(h);
		store_hold_look(ns->s, store_hold_index(ns->s, h));
	}
	store_hold_settle(ns->s);
	return 0;
}

int store_drop(struct store_ns *ns, uint32_t slot, const struct tutti_key *key)
{
	const struct slot *s;

	if (slot >= ns->slots_max)
		return 0;
	s = slot_at(ns, slot);
	if (slot_state(s) != SLOT_COMMITTED || memcmp(&s->key, key, sizeof(*key)))
		return 0;
	store_tree_drop(ns, slot);
	store_hold_settle(ns->s);
	return 1;
}

int store_holds(const struct store_ns *ns, uint32_t slot, const struct tutti_key *key)
{
	return slot < ns->slots_max && slot_state(slot_at(ns, slot)) == SLOT_COMMITTED &&
	       !memcmp(&slot_at(ns, slot)->key, key, sizeof(*key));
}

void store_mark_sound(struct store_ns *ns, uint32_t slot, const struct tutti_key *key)
{
	struct slot *s;

	if (!store_holds(ns, slot, key))
		return;
	s = slot_at(ns, slot);
	if (block_flags(ns->s, s))
		return;
	s->commit = ns->s->sync_no;
	ns->s->dirty = 1;
}
