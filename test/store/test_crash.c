/*
 * test_crash.c - a crash after every single write that a store or a lane makes, each time with every subset of the last
 * six unflushed writes (and with the last one torn), then a reopen: exact bytes or a miss.
 *
 * The scenario runs once. At each write the state of the medium is copied as a power loss would leave it, a second
 * store is opened on the copy, and what it has is held against what must be there:
 *   - after a kill (all writes are there) every acknowledged block that the first store still has, and nothing but
 * right bytes;
 *   - after a power loss every block that a finished sync covered; others may be missing or be refused by their
 * checksums. Subsets without the last write were seen one write earlier, except the empty one.
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/state.h"
#include "store/store.h"

#define KEYS 400

enum phase { FORMATTING, RUNNING };

struct known {
	int acked, synced, cleared;
	int must; /* while no store is open: the last one had it */
};

struct space {
	struct tutti_ns_spec spec;
	struct store_ns *ns;
	struct known key[KEYS];
	uint64_t base;
};

static struct ram_media ram, scratch;
static struct store *store;
static struct space spaces[2];
static uint32_t ranks;
static enum phase phase;
static uint64_t points, images, right, missed, deallocated;
static int inside; /* a check is running: its own writes are not points */

static struct tutti_key key_of(const struct space *p, int i) { return lane_key(p->base + (uint64_t)i); }

static int number_of(const struct space *p, const struct tutti_key *key)
{
	for (int i = 0; i < KEYS; i++) {
		struct tutti_key k = key_of(p, i);

		if (!memcmp(&k, key, sizeof(k)))
			return i;
	}
	return -1;
}

struct seen {
	const struct space *p;
	struct store_ns *ns;
	int there[KEYS];
	uint32_t slot[KEYS];
	int unknown;
};

static int see(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth, uint32_t slot)
{
	struct seen *s = arg;
	int i = number_of(s->p, key);

	(void)parent;
	(void)depth;
	if (i < 0) {
		s->unknown = 1;
		return 0;
	}
	s->there[i] = 1;
	s->slot[i] = slot;
	return 0;
}

static void look(struct space *p, struct store_ns *ns, struct seen *s)
{
	memset(s, 0, sizeof(*s));
	s->p = p;
	s->ns = ns;
	store_ns_each(ns, see, s);
	CHECK(!s->unknown);
}

/* Which blocks the running store holds; while none is open, what the last one held. */
static void update_must(void)
{
	if (!store)
		return;
	for (int i = 0; i < 2; i++) {
		struct seen s;

		if (!spaces[i].ns)
			continue;
		look(&spaces[i], spaces[i].ns, &s);
		for (int k = 0; k < KEYS; k++)
			spaces[i].key[k].must = s.there[k] && spaces[i].key[k].acked;
	}
}

static void check_space(struct space *p, struct store_ns *ns, int kill)
{
	struct tutti_ns_info info;
	struct seen s;
	uint64_t n = 0;

	look(p, ns, &s);
	for (int k = 0; k < KEYS; k++) {
		struct tutti_key key = key_of(p, k);
		int all_right = 1;

		if (s.there[k]) {
			n++;
			for (uint32_t rank = 0; rank < ranks; rank++) {
				enum lane_verdict v = lane_read(&scratch.m, ns, rank, &key, s.slot[k]);

				CHECK(v != LANE_WRONG);
				all_right &= v == LANE_RIGHT;
			}
			CHECK(!p->key[k].cleared);
			CHECK(all_right || !kill);
			right += (uint64_t)all_right;
			missed += !all_right;
		}
		if (p->key[k].must && (kill || p->key[k].synced))
			CHECK(s.there[k] && all_right);
	}
	store_ns_info(ns, &info);
	CHECK_EQ(info.committed, n);
}

/* The recovered pool works: something new goes in, and a clean close keeps all. */
static void check_goes_on(struct store *after, struct store_ns *ns, struct space *p)
{
	struct store_open_opts o = lane_open_opts();
	struct tutti_key key = key_of(p, KEYS - 1);
	struct store_hold_info info;
	struct store_block b;
	struct tutti_lease l;
	struct seen s, again;
	size_t first, count;
	int32_t ok = 0;

	CHECK_EQ(store_reserve(ns, NULL, &key, 1, 1000, &first, &count, &l), 0);
	CHECK_EQ(count, 1);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, &b), 0);
	for (uint32_t rank = 0; rank < ranks; rank++) {
		CHECK_EQ(lane_write(&scratch.m, ns, rank, l.epoch, &info, &b, &info.parent, LANE_ALL), 0);
		CHECK_EQ(store_report(ns, &l, rank, 0, 1, &ok), 0);
	}
	look(p, ns, &s);
	CHECK(s.there[KEYS - 1]);
	CHECK_EQ(store_close(after), 0);
	CHECK_EQ(store_open(&scratch.m, &o, &after), 0);
	CHECK_EQ(store_check(after), 0);
	CHECK_EQ(store_ns_open(after, &p->spec, &ns, NULL), 0);
	look(p, ns, &again);
	CHECK(!memcmp(s.there, again.there, sizeof(s.there)));
	store_abandon(after);
}

static void check_image(int kill)
{
	struct store_open_opts o = lane_open_opts();
	struct store *after = NULL;
	int r = store_open(&scratch.m, &o, &after);

	images++;
	if (phase == FORMATTING) {
		/* Nothing, or the whole pool. */
		CHECK(r == 0 || r == -ENOMEDIUM || r == -EBADMSG);
		if (!r) {
			CHECK_EQ(store_check(after), 0);
			store_abandon(after);
		}
		return;
	}
	if (r)
		printf("# open: %s: %s\n", err_name(r), err_text());
	CHECK_EQ(r, 0);
	r = store_check(after);
	if (r)
		printf("# %s\n", err_text());
	CHECK_EQ(r, 0);
	for (int i = 0; i < 2; i++)
		for (uint32_t n = 0; n < STORE_NAMESPACES_MAX; n++) {
			struct store_ns *ns;

			if (!spaces[i].ns || store_ns_at(after, n, &ns))
				break;
			if (!memcmp(store_ns_digest(ns), store_ns_digest(spaces[i].ns), 32))
				check_space(&spaces[i], ns, kill);
		}
	for (uint32_t i = 0; i < 2; i++) {
		struct store_ns *ns;

		if (images % 31 || !spaces[i].ns || store_ns_at(after, i, &ns) ||
		    memcmp(store_ns_digest(ns), store_ns_digest(spaces[i].ns), 32))
			continue;
		check_goes_on(after, ns, &spaces[i]);
		return;
	}
	store_abandon(after);
}

static void crash_here(void *arg)
{
	uint32_t n = ram_open_writes(&ram), all = (1u << n) - 1;
	const struct ram_write *last = &ram.log[ram.n_log - 1];

	(void)arg;
	if (inside)
		return;
	inside = 1;
	points++;
	update_must();
	for (uint32_t subset = 0; subset <= all; subset++) {
		if (subset && !(subset >> (n - 1) & 1))
			continue;
		ram_crash(&ram, &scratch, subset, 1);
		check_image(subset == all);
	}
	/* Torn in the middle; the older ones are lost with it. */
	ram_crash(&ram, &scratch, 0, 0);
	memcpy(scratch.mem[last->dev] + last->offset, last->data, last->bytes / 2);
	check_image(0);
	inside = 0;
}

/* ---- the scenario ---- */

static void open_store(int n_spaces)
{
	struct store_open_opts o = lane_open_opts();
	struct store *opened;

	CHECK_EQ(store_open(&ram.m, &o, &opened), 0);
	for (int i = 0; i < n_spaces; i++) {
		struct store_ns *ns;

		CHECK_EQ(store_ns_open(opened, &spaces[i].spec, &ns, NULL), 0);
		spaces[i].ns = ns;
	}
	store = opened;
}

static void leave_store(int clean)
{
	struct store *leaving = store;

	update_must();
	store = NULL;
	/* The digests stay known through copies that outlive the store. */
	for (int i = 0; i < 2; i++)
		if (spaces[i].ns) {
			struct store_ns *kept = malloc(sizeof(*kept));

			memcpy(kept, spaces[i].ns, sizeof(*kept));
			spaces[i].ns = kept;
		}
	if (!clean) {
		store_abandon(leaving);
		return;
	}
	CHECK_EQ(store_close(leaving), 0);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < KEYS; k++)
			spaces[i].key[k].synced |= spaces[i].key[k].must;
}

static void reopen(int clean, int n_spaces)
{
	struct store_ns *kept[2];

	leave_store(clean);
	kept[0] = spaces[0].ns;
	kept[1] = spaces[1].ns;
	open_store(n_spaces);
	free(kept[0]);
	free(kept[1]);
	update_must();
}

/* Chain of keys[from .. from + n), with the parts of a lane's writes done in `upto`; acknowledged when all. */
static size_t put(struct space *p, int from, int n, int upto)
{
	struct tutti_key keys[KEYS];
	struct store_hold_info info;
	struct store_block b[64];
	struct tutti_lease l;
	int32_t ok[64] = {0};
	size_t first, count;

	for (int i = 0; i < n; i++)
		keys[i] = key_of(p, from + i);
	for (int i = 0; i < n; i++)
		p->key[from + i].cleared = 0;
	CHECK_EQ(store_reserve(p->ns, NULL, keys, (size_t)n, 1000, &first, &count, &l), 0);
	CHECK(count <= 64);
	if (!count)
		return first;
	CHECK_EQ(store_hold_blocks(p->ns, &l, 0, count, &info, b), 0);
	for (size_t i = 0; i < count; i++)
		p->key[from + (int)(first + i)].synced = 0;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		for (size_t i = 0; i < count; i++)
			CHECK_EQ(lane_write(&ram.m, p->ns, rank, l.epoch, &info, &b[i],
			                    i ? &b[i - 1].key : &info.parent, upto),
			         0);
		if (upto == LANE_ALL)
			CHECK_EQ(store_report(p->ns, &l, rank, 0, count, ok), 0);
	}
	if (upto == LANE_ALL)
		for (size_t i = 0; i < count; i++)
			p->key[from + (int)(first + i)].acked = 1;
	else
		CHECK_EQ(store_release(p->ns, &l, 1), 0);
	CHECK_EQ(store_check(store), 0);
	return first + count;
}

static void sync_all(void)
{
	uint64_t mark = store_sync_begin(store);

	update_must();
	for (uint32_t d = 0; d < ram.m.n_dev; d++)
		CHECK_EQ(ram.m.flush(ram.m.self, d), 0);
	store_sync_end(store, mark, 0);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < KEYS; k++)
			spaces[i].key[k].synced |= spaces[i].key[k].must;
}

static void clear(struct space *p)
{
	CHECK_EQ(store_ns_clear(p->ns), 0);
	for (int k = 0; k < KEYS; k++)
		p->key[k] = (struct known){.cleared = 1};
}

/*
 * All segments that a clear left, and a device did it at once, past its cache: the worst. What a crash leaves then must
 * be as right as before.
 */
static void deallocate(void)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	uint32_t segment, n = STORE_EXTENTS_MAX;

	for (; !store_deallocate_next(store, &segment, e, &n); n = STORE_EXTENTS_MAX) {
		for (uint32_t i = 0; i < n; i++) {
			memset(ram.mem[e[i].dev] + e[i].offset_bytes, 0, e[i].bytes);
			memset(ram.disk[e[i].dev] + e[i].offset_bytes, 0, e[i].bytes);
		}
		deallocated++;
		inside = 1;
		for (uint32_t subset = 0; subset < 1u << ram_open_writes(&ram); subset++) {
			ram_crash(&ram, &scratch, subset, 1);
			check_image(subset == (1u << ram_open_writes(&ram)) - 1);
		}
		inside = 0;
		CHECK_EQ(store_deallocate_done(store, segment, 0), 0);
	}
}

static void prewrite(void)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	uint32_t segment, n = STORE_EXTENTS_MAX;
	void *zeros = aligned_alloc(4096, 65536);

	memset(zeros, 0, 65536);
	if (!store_prewrite_next(store, 8, &segment, e, &n)) {
		for (uint32_t i = 0; i < n; i++)
			CHECK_EQ(lane_io(&ram.m, e[i].dev, 1, e[i].offset_bytes, zeros, e[i].bytes), 0);
		CHECK_EQ(store_prewrite_done(store, segment, 0), 0);
	}
	free(zeros);
}

static void scenario(uint32_t n_dev, uint32_t n_ranks, uint64_t pool, int chains)
{
	uint32_t parts = n_ranks > 1 && n_dev % n_ranks == 0 ? 1 : n_ranks;
	struct store_format_opts f = {
	    .ranks = n_ranks, .bytes = pool, .segment_bytes = 65536ull * n_dev * parts, .uuid = {5}};

	ranks = n_ranks;
	points = images = right = missed = deallocated = 0;
	inside = 0;
	store = NULL;
	memset(spaces, 0, sizeof(spaces));
	spaces[0].spec = lane_spec("a", 1, 2, 656, ranks);
	spaces[1].spec = lane_spec("b", 1, 1, 4097, ranks);
	spaces[1].base = 1000000;
	ram_init(&ram, n_dev, pool / n_dev, 1);
	ram_init(&scratch, n_dev, pool / n_dev, 0);
	phase = FORMATTING;
	ram.on_write = crash_here;
	CHECK_EQ(store_format(&ram.m, &f), 0);
	phase = RUNNING;
	open_store(0);
	CHECK_EQ(store_ns_open(store, &spaces[0].spec, &spaces[0].ns, NULL), 0);
	put(&spaces[0], 360, 12, LANE_ALL); /* three segments at once */
	for (int i = 0; i < chains; i++) { /* fills the pool, then evicts: headers are reused */
		put(&spaces[0], i * 8, 1 + i % 4, LANE_ALL);
		if (i % 3 == 0)
			sync_all();
		if (i % 4 == 1)
			put(&spaces[0], 300 + 3 * i, 2, i % 8 == 1 ? LANE_OBJECTS : LANE_ALL);
		if (i == 2)
			prewrite();
	}
	reopen(0, 1);
	CHECK_EQ(store_ns_open(store, &spaces[1].spec, &spaces[1].ns, NULL), 0);
	for (int i = 0; i < chains / 2; i++) /* takes segments from the other */
		put(&spaces[1], i * 8, 1 + i % 3, LANE_ALL);
	sync_all();
	reopen(1, 2);
	for (int i = 0; i < chains / 4; i++)
		put(&spaces[i % 2], 200 + i * 4, 3, LANE_ALL);
	reopen(1, 2);
	clear(&spaces[0]);
	deallocate();
	put(&spaces[0], 0, 4, LANE_ALL);
	put(&spaces[1], 250, 4, LANE_ALL);
	reopen(0, 2);
	put(&spaces[0], 8, 3, LANE_ALL);
	clear(&spaces[0]);
	reopen(0, 2); /* before any of it was deallocated: this open finds it */
	deallocate();
	put(&spaces[0], 0, 4, LANE_ALL);
	put(&spaces[1], 280, 4, LANE_ALL);
	deallocate();
	reopen(1, 2);
	CHECK(deallocated > 1);
	printf("# %u devices, %u ranks: %llu writes, %llu crashes; blocks found right %llu, refused %llu\n", n_dev,
	       ranks, (unsigned long long)points, (unsigned long long)images, (unsigned long long)right,
	       (unsigned long long)missed);
	CHECK(points > 100 && images > 10 * points && right > points);
	store_abandon(store);
	store = NULL;
	ram_free(&ram);
	ram_free(&scratch);
}

static void one_rank(void) { scenario(1, 1, 1000 << 10, 20); }
static void two_ranks_own_devices(void) { scenario(2, 2, 1800 << 10, 12); }
static void two_ranks_share(void) { scenario(1, 2, 1200 << 10, 12); }

int main(void)
{
	ram_keep_heap();
	CHECK_RUN(one_rank);
	CHECK_RUN(two_ranks_own_devices);
	CHECK_RUN(two_ranks_share);
	return check_end();
}
