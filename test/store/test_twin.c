/*
 * test_twin.c - the store against a naive twin, through random operations.
 *
 * Keys form a fixed random forest, as digests do. The twin knows for each key whether it is absent, reserved or
 * committed, for each reservation which rank reported what, and who holds what until when; it searches where the store
 * links. What the store evicts is its own choice: the twin asks what is left and judges whether that was allowed.
 * Headers are real, so that a reopen without a close finds what lies on the medium.
 *
 *     test_twin [operations] [seed]
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/state.h"
#include "store/store.h"
#include "store/twin.h"

/* ---- operations ---- */

static void op_lookup(struct twin *t)
{
	int path[KEYS], n = path_to(t, (int)rnd(KEYS), path), want = 0, free = 0;
	struct tutti_key keys[KEYS];
	struct store_block b[CHAIN];
	struct store_hold_info info;
	struct twin_lease *l = NULL;
	size_t m, first;

	for (int i = 0; i < n; i++)
		keys[i] = t->name[path[i]];
	while (want < n && t->key[path[want]].state == THERE)
		want++;
	while (free < LEASES && t->l[free].used)
		free++;
	if (free < LEASES && rnd(2) && want <= CHAIN)
		l = &t->l[free];
	CHECK_EQ(store_lookup(t->ns, keys, (size_t)n, rnd(5000), &m, l ? &l->lease : NULL), 0);
	CHECK_EQ(m, want);
	if (!l || !m)
		return;
	CHECK(l->lease.id);
	*l = (struct twin_lease){.used = 1, .valid = 1, .key = path[want - 1], .n = want, .lease = l->lease};
	if (l->lease.expiry_ns <= lane_now) {
		l->used = 0;
		return;
	}
	first = rnd((uint32_t)want);
	CHECK_EQ(store_hold_blocks(t->ns, &l->lease, 0, (size_t)want, &info, b), 0);
	for (int i = 0; i < want; i++) {
		CHECK(b[i].slot == t->key[path[i]].slot && !memcmp(&b[i].key, &keys[i], 32) && (int)b[i].depth == i);
		l->slot[i] = b[i].slot;
	}
	CHECK_EQ(store_hold_blocks(t->ns, &l->lease, first, (size_t)want - first, &info, b), 0);
	CHECK(b[0].slot == l->slot[first] && (!first || !memcmp(&info.parent, &keys[first - 1], 32)));
}

/* A slot that is given out without the flag has no header that a recovery would admit. */
static void check_header_flag(const struct twin *t, const struct store_block *b)
{
	uint8_t *page;

	if (b->flags & STORE_BLOCK_HEADER_VALID)
		return;
	page = aligned_alloc(4096, 4096);
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct wire_header *h = (struct wire_header *)(void *)page;
		struct geom g;
		struct geom_place p;

		store_ns_geom(t->ns, rank, &g);
		p = geom_place(&g, b->slot);
		CHECK_EQ(lane_io(&ram.m, g.dev[p.dev], 0, geom_header_offset(&g, &p), page, 4096), 0);
		CHECK(geom_header_check(h, geom_objects(&g)) != GEOM_HEADER_OK ||
		      memcmp(h->ns_digest, store_ns_digest(t->ns), 32) || h->generation != store_ns_generation(t->ns) ||
		      h->sequence < segment_of(t->ns, b->slot)->first_sequence);
	}
	free(page);
}

/* What was evicted since then leaves less free than 1 in 24 slots, or than a set. */
static void check_evicted_enough_only(const struct store_ns *ns, uint64_t n_segments, uint64_t n_evicted)
{
	uint64_t slots = ns->n_segments * ns->geom.slots_per_segment;

	CHECK(ns->n_evicted == n_evicted || ns->n_segments != n_segments ||
	      ns->n_free < (slots / 24 > ns->geom.g ? slots / 24 : ns->geom.g));
}

static void op_reserve(struct twin *t)
{
	int path[KEYS], n = path_to(t, (int)rnd(KEYS), path), start = rnd(2) ? 0 : (int)rnd((uint32_t)n), free = 0;
	int want_first = 0, run = 0, result = 0, r;
	struct twin_reservation *v;
	struct tutti_key keys[KEYS];
	uint64_t segments = t->ns->n_segments, evicted = t->ns->n_evicted;
	size_t first, count;

	while (free < RESERVATIONS && t->r[free].used)
		free++;
	if (free == RESERVATIONS)
		return;
	v = &t->r[free];
	n -= start;
	for (int i = 0; i < n; i++)
		keys[i] = t->name[path[start + i]];
	if (start && t->key[path[start - 1]].state == ABSENT)
		result = -ENOENT;
	while (want_first < n && t->key[path[start + want_first]].state == THERE)
		want_first++;
	while (want_first + run < n && t->key[path[start + want_first + run]].state == ABSENT)
		run++;
	did.reserve++;
	r = store_reserve(t->ns, start ? &t->name[path[start - 1]] : NULL, keys, (size_t)n, 1 + rnd(4000), &first,
	                  &count, &v->lease);
	if (result) {
		CHECK_EQ(r, result);
		return;
	}
	CHECK(r == 0 || r == -ENOSPC);
	check_evicted_enough_only(t->ns, segments, evicted);
	CHECK_EQ(first, want_first);
	CHECK(count <= (size_t)run && (count != 0) == (v->lease.id != 0) && (r == 0 || (run && !count)));
	v->n = (int)count;
	v->used = count != 0;
	v->released = 0;
	/* Protects its parents in the judgement of evictions. */
	for (size_t i = 0; i < count; i++) {
		v->key[i] = path[start + want_first + (int)i];
		v->mask[i] = 0;
		v->state[i] = LIVE;
	}
	if (count)
		CHECK_EQ(store_hold_blocks(t->ns, &v->lease, 0, count, &v->info, v->block), 0);
	for (size_t i = 0; i < count; i++)
		t->key[v->key[i]].state = TAKEN;
	for (int i = 0; i < n_spaces; i++)
		adopt_evictions(&twins[i]);
	v->used = 0;
	for (size_t i = 0; i < count; i++) {
		CHECK(!slot_in_use(t, v->block[i].slot));
		for (size_t k = 0; k < i; k++)
			CHECK(v->block[i].slot != v->block[k].slot);
		CHECK((int)v->block[i].depth == t->key[v->key[i]].depth &&
		      !memcmp(&v->block[i].key, &t->name[v->key[i]], 32));
		check_header_flag(t, &v->block[i]);
	}
	v->used = count != 0;
	if ((int)count < run) {
		/* Less than asked: then nothing of its own can be evicted, but for the parent that the call itself
		 * needs. */
		int spare = evictable(t), last = want_first + start ? path[start + want_first - 1] : -1;

		did.short_count++;
		for (int at = count ? -1 : last; at >= 0 && t->key[at].state == THERE; at = t->key[at].parent)
			spare--;
		CHECK(spare <= 0);
	}
}

static void write_block(struct twin *t, struct twin_reservation *v, int k, uint32_t rank)
{
	CHECK_EQ(lane_write(&ram.m, t->ns, rank, v->lease.epoch, &v->info, &v->block[k],
	                    k ? &t->name[v->key[k - 1]] : &v->info.parent, LANE_HEADER_ONLY),
	         0);
}

/* One rank's report of some of the reservation's blocks. */
static void report(struct twin *t, struct twin_reservation *v, uint32_t rank, int all)
{
	int32_t results[CHAIN] = {0};
	int first = all || rnd(3) ? 0 : (int)rnd((uint32_t)v->n);
	int n = all || rnd(3) ? v->n - first : 1 + (int)rnd((uint32_t)(v->n - first));

	for (int i = 0; i < n; i++) {
		int k = first + i, again = (int)(v->mask[k] >> rank & 1) || v->state[k] == OUT;

		results[i] = rnd(100) ? 0 : -EIO;
		if (!again && (!results[i] || rnd(2)))
			write_block(t, v, k, rank);
	}
	CHECK_EQ(store_report(t->ns, &v->lease, rank, (size_t)first, (size_t)n, results), 0);
	for (int i = 0; i < n; i++) {
		int k = first + i;

		if (v->state[k] == OUT || v->mask[k] >> rank & 1)
			continue;
		v->mask[k] |= 1u << rank;
		if (results[i] && v->state[k] == LIVE)
			twin_kill(t, v->key[k]);
	}
	twin_publish(t);
}

static void op_report(struct twin *t)
{
	uint32_t at = rnd(RESERVATIONS), turn = rnd(ranks);
	struct twin_reservation *v = &t->r[at];

	for (int i = 0; i < RESERVATIONS && !v->used; i++)
		v = &t->r[++at % RESERVATIONS];
	if (!v->used)
		return;
	if (rnd(2)) {
		report(t, v, turn, 0);
		return;
	}
	for (uint32_t rank = 0; v->used && rank < ranks; rank++)
		report(t, v, (rank + turn) % ranks, 1);
}

static void op_release(struct twin *t)
{
	struct twin_reservation *v = &t->r[rnd(RESERVATIONS)];
	struct twin_lease *l = &t->l[rnd(LEASES)];
	int at_once = (int)rnd(2);

	if (l->used) {
		CHECK_EQ(store_release(t->ns, &l->lease, at_once), 0);
		l->used = 0;
	}
	if (!v->used || rnd(4))
		return;
	CHECK_EQ(store_release(t->ns, &v->lease, at_once), 0);
	CHECK_EQ(store_release(t->ns, &v->lease, at_once), 0);
	if (at_once) {
		twin_end(t, v);
		return;
	}
	v->released = 1;
	for (int k = 0; k < v->n; k++)
		if (v->state[k] == LIVE)
			twin_kill(t, v->key[k]);
	/* A lane that has not heard of it goes on. */
	for (int k = 0; k < v->n; k++)
		for (uint32_t rank = 0; rank < ranks; rank++)
			if (v->state[k] == KILLED && !(v->mask[k] >> rank & 1) && rnd(2))
				write_block(t, v, k, rank);
	twin_end_if_done(t);
}

static void op_drop(struct twin *t)
{
	int key = (int)rnd(KEYS);
	uint32_t slot = t->key[key].slot;
	int there = t->key[key].state == THERE;

	if (!there && rnd(4))
		return;
	CHECK_EQ(store_drop(t->ns, slot, &t->name[key]), there);
	if (there) {
		twin_kill(t, key);
		twin_end_if_done(t);
		did.dropped++;
	}
}

static void op_time(void)
{
	lane_now += rnd(400);
	for (int i = 0; i < n_spaces; i++)
		twin_expire(&twins[i]);
}

static void op_clear(struct twin *t)
{
	int held = 0;

	for (int i = 0; i < LEASES; i++)
		held += t->l[i].used;
	for (int i = 0; i < RESERVATIONS; i++)
		held += t->r[i].used;
	CHECK_EQ(store_ns_clear(t->ns), held ? -EBUSY : 0);
	for (int i = 0; !held && i < KEYS; i++)
		t->key[i].state = ABSENT;
	did.cleared += !held;
}

static void open_all(void)
{
	struct store_open_opts o = lane_open_opts();

	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	for (int i = 0; i < n_spaces; i++) {
		int created;

		CHECK_EQ(store_ns_open(store, &twins[i].spec, &twins[i].ns, &created), 0);
		memset(twins[i].r, 0, sizeof(twins[i].r));
		memset(twins[i].l, 0, sizeof(twins[i].l));
		for (int k = 0; k < KEYS; k++)
			if (twins[i].key[k].state == TAKEN)
				twins[i].key[k].state = ABSENT;
	}
}

/* The newer superblock names a checkpoint: there may be none, if the index does not fit its room. */
static int has_checkpoint(void)
{
	const struct wire_super *w = (const struct wire_super *)(const void *)ram.mem[0];

	return w[w[1].sequence > w[0].sequence].checkpoint_bytes != 0;
}

static void op_reopen(int clean)
{
	if (clean)
		CHECK_EQ(store_close(store), 0);
	else
		store_abandon(store);
	clean = has_checkpoint();
	open_all();
	did.by_checkpoint += (uint64_t)clean;
	did.reopened++;
	for (int i = 0; i < n_spaces; i++) {
		struct twin *t = &twins[i];
		struct seen s = {.t = t};

		CHECK_EQ(store_ns_each(t->ns, see, &s), 0);
		CHECK(!s.wrong);
		for (int k = 0; k < KEYS; k++) {
			struct twin_key *key = &t->key[k];

			CHECK(s.there[k] || key->state != THERE);
			if (clean)
				CHECK(s.there[k] == (key->state == THERE) && (!s.there[k] || s.slot[k] == key->slot));
			did.extra += s.there[k] && key->state != THERE;
			if (!s.there[k])
				continue;
			/* Known or not: its headers are on the medium, in the slot that the index says. */
			key->state = THERE;
			key->slot = s.slot[k];
			for (uint32_t rank = 0; rank < ranks; rank++) {
				uint8_t *page = aligned_alloc(4096, 4096);
				struct wire_header *h = (struct wire_header *)(void *)page;
				struct geom g;
				struct geom_place p;

				store_ns_geom(t->ns, rank, &g);
				p = geom_place(&g, key->slot);
				CHECK_EQ(lane_io(&ram.m, g.dev[p.dev], 0, geom_header_offset(&g, &p), page, 4096), 0);
				CHECK_EQ(geom_header_check(h, geom_objects(&g)), GEOM_HEADER_OK);
				CHECK_EQ(geom_header_match(h, store_ns_digest(t->ns)->b, t->name[k].b,
				                           store_ns_generation(t->ns), rank),
				         GEOM_HEADER_OK);
				free(page);
			}
		}
	}
}

static void twin_init(struct twin *t, int number, const char *model, uint64_t object_bytes)
{
	memset(t, 0, sizeof(*t));
	t->spec = lane_spec(model, 1, 1, object_bytes, ranks);
	for (int i = 0; i < KEYS; i++) {
		t->name[i] = lane_key((uint64_t)number * 1000003 + (uint64_t)i);
		t->key[i].parent = i && rnd(10) ? (rnd(3) ? i - 1 : (int)rnd((uint32_t)i)) : -1;
		if (t->key[i].parent >= 0 && t->key[t->key[i].parent].depth == CHAIN - 1)
			t->key[i].parent = -1;
		t->key[i].depth = t->key[i].parent < 0 ? 0 : t->key[t->key[i].parent].depth + 1;
	}
}

static void step(struct twin *t, uint64_t i)
{
	uint32_t dice = rnd(1000);

	if (dice < 300)
		op_lookup(t);
	else if (dice < 550)
		op_reserve(t);
	else if (dice < 830)
		op_report(t);
	else if (dice < 900)
		op_release(t);
	else if (dice < 960)
		op_time();
	else if (dice < 985)
		op_drop(t);
	else if (dice < 990)
		store_sync_end(store, store_sync_begin(store), 0);
	else if (dice < 996)
		op_clear(t);
	else
		op_reopen((int)rnd(2));
	if (i % 8 == 0 || dice >= 960)
		CHECK_EQ(store_check(store), 0);
	compare_counts(t);
}

static void run(uint32_t n_dev, uint32_t n_ranks, int spaces, uint64_t pool, uint64_t operations)
{
	struct store_format_opts f = {.ranks = n_ranks, .bytes = pool, .uuid = {1, (uint8_t)n_dev, (uint8_t)n_ranks}};
	uint32_t parts = n_ranks > 1 && n_dev % n_ranks == 0 ? 1 : n_ranks;
	static const uint64_t object_bytes[SPACES] = {656, 4097, 10496};
	static const char *const models[SPACES] = {"a", "b", "c"};

	ranks = n_ranks;
	all_ranks = (1u << ranks) - 1;
	n_spaces = spaces;
	ram_init(&ram, n_dev, pool / n_dev, 0);
	f.segment_bytes = 65536ull * n_dev * parts;
	CHECK_EQ(store_format(&ram.m, &f), 0);
	for (int i = 0; i < spaces; i++)
		twin_init(&twins[i], i, models[i], object_bytes[i]);
	open_all();
	memset(&did, 0, sizeof(did));
	for (uint64_t i = 0; i < operations; i++) {
		uint64_t before = seed;

		if (setjmp(check_state.leave)) {
			printf("# operation %llu, seed before it %llu: %s\n", (unsigned long long)i,
			       (unsigned long long)before, err_text());
			exit(1);
		}
		step(&twins[rnd((uint32_t)spaces)], i);
	}
	printf("# %u devices, %u ranks, %d namespaces: reserved %llu published %llu killed %llu evicted %llu dropped "
	       "%llu short %llu "
	       "cleared %llu reopened %llu brought back %llu\n",
	       n_dev, ranks, spaces, (unsigned long long)did.reserve, (unsigned long long)did.published,
	       (unsigned long long)did.killed, (unsigned long long)did.evicted, (unsigned long long)did.dropped,
	       (unsigned long long)did.short_count, (unsigned long long)did.cleared, (unsigned long long)did.reopened,
	       (unsigned long long)did.extra);
	CHECK(did.published && did.evicted && did.killed && did.dropped && did.short_count && did.reopened &&
	      did.extra && did.by_checkpoint > 10);
	store_abandon(store);
	ram_free(&ram);
}

static uint64_t operations = 1000000;

static void one_device_one_namespace(void) { run(1, 1, 1, 1300 << 10, operations / 4); }
static void two_ranks_two_namespaces(void) { run(2, 2, 2, 2400 << 10, operations / 4); }
static void ranks_share_a_device(void) { run(1, 4, 2, 2600 << 10, operations / 4); }
static void three_namespaces_three_devices(void) { run(3, 1, 3, 4800 << 10, operations / 4); }

int main(int argc, char **argv)
{
	ram_keep_heap();
	if (argc > 1)
		operations = strtoull(argv[1], NULL, 0);
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 20240601;
	CHECK_RUN(one_device_one_namespace);
	CHECK_RUN(two_ranks_two_namespaces);
	CHECK_RUN(ranks_share_a_device);
	CHECK_RUN(three_namespaces_three_devices);
	return check_end();
}
