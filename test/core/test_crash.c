/*
 * test_crash.c - the power goes, or the process, after any event of a real workload: stores that fill and evict,
 * headers used again, a cleared namespace, syncs, a checkpoint. What the disk then holds is any subset of the last
 * unflushed writes. Reopened, every block that the index claims is read through a lane: exact bytes, or reported; never
 * wrong ones. What was acknowledged before a sync that completed is there.
 */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

#define N 6
#define CHAINS 12
#define LAST 6 /* unflushed writes of which any subset may be lost */
#define LOG_BYTES (96ull << 20)

/* Room for about half of the chains, so that slots are used again. */
static const struct rig_shape one_rank = {
    .layers = 2, .blocks = 16, .outer_count = 2, .segment_bytes = 4096, .order = "LoB", .pool_bytes = 3u << 19};
static const struct rig_shape two_ranks = {.ranks = 2,
                                           .layers = 2,
                                           .blocks = 16,
                                           .outer_count = 2,
                                           .segment_bytes = 4096,
                                           .order = "LoB",
                                           .pool_bytes = 3u << 20};
static const uint64_t blocks[N] = {3, 9, 1, 14, 7, 4};

/* What the world was told, and at which event of the log. */
struct told {
	uint64_t acked, synced; /* events when it was acknowledged; when a later sync had completed. UINT64_MAX: not */
	uint64_t gone;          /* events when it was evicted or cleared: from there on it may be missing */
};

static struct {
	struct fault_io *f;
	struct told chain[CHAINS];
	struct rig r;
} w;

static void chain_keys(int c, struct tutti_key *keys) { rig_keys(&w.r, (uint64_t)c + 1, N, keys); }

/* Chains that are no longer whole: from now on they may be missing. */
static void note_gone(void)
{
	struct tutti_key keys[N];
	size_t hit;

	for (int c = 0; c < CHAINS; c++) {
		chain_keys(c, keys);
		CHECK_EQ(tutti_lookup(w.r.ns, keys, N, 0, &hit, NULL), 0);
		if (w.chain[c].acked != UINT64_MAX && w.chain[c].gone == UINT64_MAX && hit < N)
			w.chain[c].gone = fault_io_events(w.f);
	}
}

static void put(int c)
{
	struct tutti_key keys[N];
	uint64_t before = fault_io_events(w.f);
	size_t stored, whole;

	chain_keys(c, keys);
	/* Whatever this store evicts may be missing from its first write on. */
	CHECK_EQ(rig_store(&w.r, keys, N, blocks, &stored), 0);
	for (int k = 0; k < CHAINS; k++)
		if (k != c && w.chain[k].acked != UINT64_MAX && w.chain[k].gone == UINT64_MAX) {
			size_t hit;

			chain_keys(k, keys);
			CHECK_EQ(tutti_lookup(w.r.ns, keys, N, 0, &hit, NULL), 0);
			if (hit < N)
				w.chain[k].gone = before;
		}
	w.chain[c] = (struct told){.acked = fault_io_events(w.f), .synced = UINT64_MAX, .gone = UINT64_MAX};
	chain_keys(c, keys);
	CHECK_EQ(tutti_lookup(w.r.ns, keys, N, 0, &whole, NULL), 0);
	CHECK(whole > 0);
	if (whole < N) /* there was no room for all of it */
		w.chain[c].acked = UINT64_MAX;
}

static void sync_all(void)
{
	CHECK_EQ(tutti_store_sync(w.r.store), 0);
	for (int c = 0; c < CHAINS; c++)
		if (w.chain[c].acked != UINT64_MAX && w.chain[c].gone == UINT64_MAX && w.chain[c].synced == UINT64_MAX)
			w.chain[c].synced = fault_io_events(w.f);
}

static void open_all(void)
{
	CHECK_EQ(rig_open_store(&w.r), 0);
	for (uint32_t rank = 0; rank < w.r.shape.ranks; rank++)
		CHECK_EQ(rig_open_lane(&w.r, rank), 0);
}

static void workload(void)
{
	for (int c = 0; c < 5; c++)
		put(c);
	sync_all();
	for (int c = 5; c < 9; c++)
		put(c);
	CHECK_EQ(rig_close_lanes(&w.r), 0);
	CHECK_EQ(tutti_store_close(w.r.store), 0); /* checkpoint */
	open_all();
	note_gone();
	put(9);
	put(1);
	sync_all();
	for (int c = 0; c < CHAINS; c++)
		if (w.chain[c].acked != UINT64_MAX && w.chain[c].gone == UINT64_MAX)
			w.chain[c].gone = fault_io_events(w.f);
	CHECK_EQ(tutti_ns_clear(w.r.ns), 0);
	put(10);
	put(2);
	sync_all();
	CHECK_EQ(rig_close_lanes(&w.r), 0);
	CHECK_EQ(tutti_store_close(w.r.store), 0);
}

/* Opens what a crash left. everything: all writes up to n were applied (a kill), else some are lost (power). */
static void look_at(const char *image, uint64_t n, int everything)
{
	struct rig g = w.r;
	struct tutti_key keys[N];
	size_t hit, bad;

	g.paths[0] = image;
	CHECK_EQ(rig_open_store(&g), 0);
	CHECK_EQ(store_check(g.store->st), 0);
	for (uint32_t rank = 0; rank < g.shape.ranks; rank++)
		CHECK_EQ(rig_open_lane(&g, rank), 0);
	for (int c = 0; c < CHAINS; c++) {
		const struct told *t = &w.chain[c];
		uint64_t since = everything ? t->acked : t->synced;

		chain_keys(c, keys);
		CHECK_EQ(rig_retrieve(&g, keys, N, blocks, 0, &hit, &bad), 0);
		/* Failed blocks were reported, and are gone; what is left must be exact. */
		if (bad) {

			CHECK(!everything);
			CHECK_EQ(rig_retrieve(&g, keys, N, blocks, 0, &hit, &bad), 0);
			CHECK_EQ(bad, 0);
		}
		for (uint32_t rank = 0; rank < g.shape.ranks; rank++)
			for (size_t i = 0; i < hit; i++)
				CHECK_EQ(rig_wrong(&g, rank, blocks[i], &keys[i]), 0);
		if (since <= n && n < t->gone && hit != N)
			printf("# chain %d, crash after event %llu (%s): acknowledged at %llu, synced at %llu, gone "
			       "from %llu\n",
			       c, (unsigned long long)n, everything ? "kill" : "power", (unsigned long long)t->acked,
			       (unsigned long long)t->synced, (unsigned long long)t->gone);
		if (since <= n && n < t->gone)
			CHECK_EQ(hit, N);
	}
	CHECK_EQ(rig_close_lanes(&g), 0);
	CHECK_EQ(tutti_store_close(g.store), 0);
}

static void crash_everywhere(const struct rig_shape *shape, uint64_t stride, uint64_t first)
{
	const char *base = scratch_path("base"), *image = scratch_path("image");
	uint64_t events, seed = 5;

	w.f = fault_io_new(LOG_BYTES);
	for (int c = 0; c < CHAINS; c++)
		w.chain[c] = (struct told){.acked = UINT64_MAX, .synced = UINT64_MAX, .gone = UINT64_MAX};
	rig_shape_memory(&w.r, shape);
	rig_format(&w.r);
	CHECK_EQ(fault_io_copy(w.r.paths[0], base), 0);
	pool_use_io(&fault_io_ops, w.f);
	open_all();
	workload();
	pool_use_io(NULL, NULL);
	events = fault_io_events(w.f);
	CHECK(events > 100);
	for (uint64_t n = first; n <= events; n += stride) {
		uint32_t k = fault_io_unflushed(w.f, n), all;

		k = k < LAST ? k : LAST;
		all = (1u << k) - 1;
		/* The process dies: every write is there. Then power: nothing of the last k, and two subsets of them,
		 * one torn in its newest write (which must be of the last k: what was flushed is whole). */
		for (int variant = 0; variant < 4; variant++) {
			uint32_t keep = variant == 0 ? all : variant == 1 ? 0 : (uint32_t)check_random(&seed) & all;

			CHECK_EQ(fault_io_copy(base, image), 0);
			CHECK_EQ(fault_io_replay(w.f, n, k, keep, variant == 3 && keep ? 512 : 0, &image, 1), 0);
			/* Writes of both are in order, so with all of them applied it is what a kill leaves. */
			look_at(image, n, variant == 0);
		}
	}
	fault_io_free(w.f);
	unlink(base);
	unlink(image);
	unlink(w.r.paths[0]);
}

static void every_subset(const struct rig_shape *shape, uint64_t at)
{
	const char *base = scratch_path("base"), *image = scratch_path("image");
	uint64_t n;
	uint32_t k;

	w.f = fault_io_new(LOG_BYTES);
	for (int c = 0; c < CHAINS; c++)
		w.chain[c] = (struct told){.acked = UINT64_MAX, .synced = UINT64_MAX, .gone = UINT64_MAX};
	rig_shape_memory(&w.r, shape);
	rig_format(&w.r);
	CHECK_EQ(fault_io_copy(w.r.paths[0], base), 0);
	pool_use_io(&fault_io_ops, w.f);
	open_all();
	workload();
	pool_use_io(NULL, NULL);
	n = fault_io_events(w.f) * at / 100;
	while (n > 1 && fault_io_unflushed(w.f, n) < LAST)
		n--;
	k = fault_io_unflushed(w.f, n) < LAST ? fault_io_unflushed(w.f, n) : LAST;
	CHECK(k == LAST);
	for (uint32_t keep = 0; keep < 1u << k; keep++) {
		CHECK_EQ(fault_io_copy(base, image), 0);
		CHECK_EQ(fault_io_replay(w.f, n, k, keep, 0, &image, 1), 0);
		look_at(image, n, 0);
	}
	fault_io_free(w.f);
	unlink(base);
	unlink(image);
	unlink(w.r.paths[0]);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRIDE 37
#else
#define STRIDE 3
#endif

static void one_rank_everywhere(void) { crash_everywhere(&one_rank, STRIDE, 1); }
static void two_ranks_everywhere(void) { crash_everywhere(&two_ranks, STRIDE + 2, 2); }
static void every_subset_while_filling(void) { every_subset(&one_rank, 15); }
static void every_subset_while_reusing(void) { every_subset(&one_rank, 60); }
static void every_subset_of_two_ranks(void) { every_subset(&two_ranks, 40); }

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(one_rank_everywhere);
	CHECK_RUN(two_ranks_everywhere);
	CHECK_RUN(every_subset_while_filling);
	CHECK_RUN(every_subset_while_reusing);
	CHECK_RUN(every_subset_of_two_ranks);
	scratch_end();
	return check_end();
}
