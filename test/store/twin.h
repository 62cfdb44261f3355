/*
 * twin.h - the naive twin of test_twin.c: what it knows, how it judges what the store has, and its own slow steps.
 */
#ifndef TUTTI_TEST_TWIN_H
#define TUTTI_TEST_TWIN_H

#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"

#define KEYS 240
#define SPACES 3
#define RESERVATIONS 24
#define LEASES 24
#define CHAIN 64

enum key_state { ABSENT, TAKEN, THERE };

struct twin_key {
	int parent, depth;
	enum key_state state;
	uint32_t slot;
};

enum block_state { LIVE, KILLED, OUT };

struct twin_reservation {
	int used, released, n;
	int key[CHAIN];
	struct store_block block[CHAIN];
	uint32_t mask[CHAIN];
	enum block_state state[CHAIN];
	struct store_hold_info info;
	struct tutti_lease lease;
};

struct twin_lease {
	int used, valid, key, n;
	uint32_t slot[CHAIN];
	struct tutti_lease lease;
};

struct twin {
	struct store_ns *ns;
	struct tutti_ns_spec spec;
	struct tutti_key name[KEYS];
	struct twin_key key[KEYS];
	struct twin_reservation r[RESERVATIONS];
	struct twin_lease l[LEASES];
};

static struct ram_media ram;
static struct store *store;
static struct twin twins[SPACES];
static int n_spaces;
static uint32_t ranks, all_ranks;
static uint64_t seed;
static struct {
	uint64_t reserve, evicted, killed, published, reopened, extra, dropped, short_count, cleared, by_checkpoint;
} did;

static uint32_t rnd(uint32_t below) { return (uint32_t)(check_random(&seed) % below); }

static int path_to(const struct twin *t, int key, int *path)
{
	int n = t->key[key].depth + 1;

	for (int i = n, at = key; i-- > 0; at = t->key[at].parent)
		path[i] = at;
	return n;
}

/* ---- what the store has, and whether it may ---- */

struct seen {
	struct twin *t;
	int there[KEYS];
	uint32_t slot[KEYS];
	int wrong;
};

static int see(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth, uint32_t slot)
{
	struct seen *s = arg;
	static const struct tutti_key none;

	for (int i = 0; i < KEYS; i++) {
		const struct twin_key *k = &s->t->key[i];

		if (memcmp(&s->t->name[i], key, sizeof(*key)))
			continue;
		s->wrong |= s->there[i] || (int)depth != k->depth ||
		            memcmp(parent, k->parent < 0 ? &none : &s->t->name[k->parent], sizeof(*parent));
		s->there[i] = 1;
		s->slot[i] = slot;
		return 0;
	}
	s->wrong = 1;
	return 0;
}

/* A key that must stay: itself or something below it is leased or reserved. */
static void mark_protected(const struct twin *t, int *kept)
{
	memset(kept, 0, KEYS * sizeof(*kept));
	for (int i = 0; i < LEASES; i++)
		for (int at = t->l[i].used && t->l[i].valid ? t->l[i].key : -1; at >= 0; at = t->key[at].parent)
			kept[at] = 1;
	for (int i = 0; i < KEYS; i++)
		for (int at = t->key[i].state == TAKEN ? i : -1; at >= 0; at = t->key[at].parent)
			kept[at] = 1;
}

/* Takes over what was evicted from t. */
static void adopt_evictions(struct twin *t)
{
	struct seen s = {.t = t};
	int kept[KEYS];

	mark_protected(t, kept);
	CHECK_EQ(store_ns_each(t->ns, see, &s), 0);
	CHECK(!s.wrong);
	for (int i = 0; i < KEYS; i++) {
		struct twin_key *k = &t->key[i];

		CHECK(!s.there[i] || (k->state == THERE && s.slot[i] == k->slot));
		if (k->state != THERE || s.there[i])
			continue;
		CHECK(!kept[i]);
		k->state = ABSENT;
		did.evicted++;
	}
	for (int i = 0; i < KEYS; i++)
		CHECK(t->key[i].state == ABSENT || t->key[i].parent < 0 || t->key[t->key[i].parent].state != ABSENT);
}

static int evictable(const struct twin *t)
{
	int kept[KEYS], n = 0;

	mark_protected(t, kept);
	/* What was dropped while leased keeps its slot, and so its parents, until the lease ends. */
	for (int i = 0; i < LEASES; i++)
		for (int at = t->l[i].used && !t->l[i].valid ? t->l[i].key : -1; at >= 0; at = t->key[at].parent)
			kept[at] = 1;
	for (int i = 0; i < KEYS; i++)
		n += t->key[i].state == THERE && !kept[i];
	return n;
}

static int slot_in_use(const struct twin *t, uint32_t slot)
{
	for (int i = 0; i < KEYS; i++)
		if (t->key[i].state == THERE && t->key[i].slot == slot)
			return 1;
	for (int i = 0; i < RESERVATIONS; i++)
		for (int k = 0; t->r[i].used && k < t->r[i].n; k++)
			if (t->r[i].state[k] != OUT && t->r[i].block[k].slot == slot)
				return 1;
	for (int i = 0; i < LEASES; i++)
		for (int k = 0; t->l[i].used && k < t->l[i].n; k++)
			if (t->l[i].slot[k] == slot)
				return 1;
	return 0;
}

static void compare_counts(struct twin *t)
{
	struct tutti_ns_info info;
	uint64_t there = 0, reserved = 0, leased = 0;

	for (int i = 0; i < KEYS; i++)
		there += t->key[i].state == THERE;
	for (int i = 0; i < RESERVATIONS; i++)
		for (int k = 0; t->r[i].used && k < t->r[i].n; k++)
			reserved += t->r[i].state[k] != OUT;
	for (int i = 0; i < LEASES; i++)
		leased += (uint64_t)t->l[i].used;
	store_ns_info(t->ns, &info);
	CHECK_EQ(info.committed, there);
	CHECK_EQ(info.reserved, reserved);
	CHECK_EQ(info.leased, leased);
}

/* ---- the twin's own steps ---- */

static void twin_end_if_done(struct twin *t)
{
	for (int i = 0; i < RESERVATIONS; i++) {
		struct twin_reservation *r = &t->r[i];
		int open = 0;

		for (int k = 0; r->used && k < r->n; k++)
			open += r->state[k] == LIVE || r->mask[k] != all_ranks;
		if (r->used && !open)
			r->used = 0;
	}
}

/* Key and all below it leave; reservations keep the places of theirs. */
static void twin_kill(struct twin *t, int key)
{
	for (int i = 0; i < KEYS; i++)
		if (t->key[i].parent == key && t->key[i].state != ABSENT)
			twin_kill(t, i);
	for (int i = 0; i < RESERVATIONS; i++)
		for (int k = 0; t->r[i].used && k < t->r[i].n; k++)
			if (t->r[i].key[k] == key && t->r[i].state[k] == LIVE) {
				t->r[i].state[k] = KILLED;
				did.killed++;
			}
	for (int i = 0; i < LEASES; i++)
		if (t->l[i].used && t->l[i].key == key)
			t->l[i].valid = 0;
	t->key[key].state = ABSENT;
}

static void twin_publish(struct twin *t)
{
	for (int again = 1; again;) {
		again = 0;
		for (int i = 0; i < RESERVATIONS; i++)
			for (int k = 0; t->r[i].used && k < t->r[i].n; k++) {
				struct twin_reservation *r = &t->r[i];
				struct twin_key *key = &t->key[r->key[k]];

				if (r->state[k] != LIVE || r->mask[k] != all_ranks ||
				    (key->parent >= 0 && t->key[key->parent].state != THERE))
					continue;
				r->state[k] = OUT;
				key->state = THERE;
				key->slot = r->block[k].slot;
				did.published++;
				again = 1;
			}
	}
	twin_end_if_done(t);
}

static void twin_end(struct twin *t, struct twin_reservation *r)
{
	for (int k = 0; k < r->n; k++)
		if (r->state[k] == LIVE)
			twin_kill(t, r->key[k]);
	r->used = 0;
	twin_end_if_done(t);
}

static void twin_expire(struct twin *t)
{
	for (int i = 0; i < RESERVATIONS; i++)
		if (t->r[i].used && t->r[i].lease.expiry_ns <= lane_now)
			twin_end(t, &t->r[i]);
	for (int i = 0; i < LEASES; i++)
		if (t->l[i].used && t->l[i].lease.expiry_ns <= lane_now)
			t->l[i].used = 0;
}

#endif
