/*
 * test_dead.c - a device that answers no more, seen from every side: a dead lane says so at once wherever it is asked
 * and frees nothing; metadata whose transfer hangs is an error, never something that was read; verify blames no block
 * for it.
 */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

#define N 12
#define SECOND 1000000000ull
#define LONG (60 * SECOND)
#define SHORT_NS 200000000ull /* of what is to miss it */

static const struct rig_shape shape = {.layers = 3,
                                       .blocks = 32,
                                       .outer_count = 2,
                                       .segment_bytes = 8192,
                                       .order = "LoB",
                                       .pool_bytes = 16u << 20};

static struct rig r;
static struct fault_io *f;
static struct tutti_key keys[N], more[N];
static uint64_t blocks[N];

static void begin(const struct rig_shape *s, size_t n)
{
	size_t stored;

	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, s);
	rig_keys(&r, 1, N, keys);
	rig_keys(&r, 2, N, more);
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = (i * 5 + 1) % s->blocks;
	CHECK_EQ(rig_store(&r, keys, n, blocks, &stored), 0);
	CHECK_EQ(stored, n);
}

static void end(void)
{
	fault_io_clear(f);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void rule(enum fault_kind kind, uint32_t ops, uint64_t nth, uint64_t count, uint64_t value)
{
	struct fault_rule x = {.kind = kind, .ops = ops, .nth = nth, .count = count, .value = value};

	CHECK_EQ(fault_io_rule(f, &x), 0);
}

static void all_is_there(size_t n)
{
	size_t hit, bad;

	CHECK_EQ(store_check(r.store->st), 0);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, n, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, n);
	CHECK_EQ(bad, 0);
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
}

/* ---- a dead lane ---- */

static struct tutti_plan *plan(enum tutti_op op, struct tutti_lease *lease)
{
	uint8_t blob[4096];
	struct tutti_plan *p;
	size_t first, n, bytes;

	if (op == TUTTI_RETRIEVE)
		CHECK_EQ(tutti_lookup(r.ns, keys, N, LONG, &n, lease), 0);
	else
		CHECK_EQ(tutti_reserve(r.ns, NULL, more, N, LONG, &first, &n, lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r.ns, lease, 0, N, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, N, &p), 0);
	return p;
}

static void a_dead_lane_says_so(void)
{
	struct tutti_lease lease[2];
	struct tutti_plan *reads, *writes;
	struct tutti_lane_stats st;
	uint64_t t0;

	begin(&shape, N);
	reads = plan(TUTTI_RETRIEVE, &lease[0]);
	writes = plan(TUTTI_STORE, &lease[1]);
	rule(FAULT_STUCK, FAULT_READ, 2, 1, 0);
	rig_deadline(&r, 0, SHORT_NS);
	CHECK_EQ(tutti_retrieve(reads), 0);
	CHECK_EQ(tutti_store_layer(writes, 0), 0); /* waits behind the reads, for ever */
	CHECK(tutti_wait_layer(reads, shape.layers - 1, rig_now() + LONG) != 0);
	t0 = rig_now();
	/* Each of these would have up to a minute. */
	CHECK_EQ(tutti_wait_layer(writes, 0, rig_now() + LONG), -ENOTRECOVERABLE);
	CHECK_EQ(tutti_plan_finish(writes, rig_now() + LONG, NULL, 0, NULL), -ENOTRECOVERABLE);
	CHECK_EQ(tutti_plan_finish(reads, rig_now() + LONG, NULL, 0, NULL), -ENOTRECOVERABLE);
	CHECK(rig_now() - t0 < LONG / 2);
	CHECK_EQ(tutti_lane_stats(r.lane[0], &st), 0);
	/* Both plans can never be finished: that must not hide what is the matter. */
	CHECK_EQ(tutti_lane_close(r.lane[0]), -ENOTRECOVERABLE);
	CHECK(strstr(tutti_error_message(), "still write"));
	CHECK_EQ(tutti_lane_close(r.lane[0]), -ENOTRECOVERABLE); /* and once more: nothing is freed twice */
	CHECK_EQ(tutti_lane_stats(r.lane[0], &st), 0);
	CHECK_EQ(tutti_release(r.ns, &lease[0]), 0);
	CHECK_EQ(tutti_release(r.ns, &lease[1]), 0);
	CHECK_EQ(store_check(r.store->st), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	fault_io_release(f); /* the lane stays, as documented; so does what it stands on */
	unlink(r.paths[0]);
	pool_use_io(NULL, NULL);
}

/* ---- the store's own I/O ---- */

static void metadata_that_hangs(void)
{
	uint64_t t0;

	begin(&shape, N);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	rule(FAULT_HANG, FAULT_FLUSH, 1, 1, 0);
	t0 = rig_now();
	media_use_deadline(SHORT_NS);
	CHECK_EQ(tutti_store_sync(r.store), -ETIMEDOUT);
	media_use_deadline(0);
	CHECK(rig_now() - t0 < 15 * SECOND); /* half of what it has unless told otherwise */
	CHECK_EQ(tutti_store_sync(r.store), 0); /* the queue was reset: it goes on */
	fault_io_clear(f);
	rule(FAULT_HANG, FAULT_WRITE, 1, 1, 0);
	media_use_deadline(SHORT_NS);
	CHECK_EQ(tutti_ns_clear(r.ns), -ETIMEDOUT);
	media_use_deadline(0);
	fault_io_clear(f);
	CHECK_EQ(store_check(r.store->st), 0);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	end();
}

/* What recovery could not read is no header: the nth read of an open hangs, for each n. */
static void recovery_that_hangs(void)
{
	const char *image = scratch_path("image"), *pool;
	uint64_t reads, before;
	struct rig g;
	size_t hit;
	int rc;

	begin(&shape, N);
	CHECK_EQ(fault_io_copy(r.paths[0], image), 0); /* as a kill would leave it */
	end();
	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_shape_memory(&r, &shape);
	pool = r.paths[0];
	CHECK_EQ(fault_io_copy(image, pool), 0);
	before = fault_io_count(f, FAULT_READ);
	CHECK_EQ(rig_open_store(&r), 0);
	reads = fault_io_count(f, FAULT_READ) - before;
	CHECK_EQ(tutti_store_close(r.store), 0);
	CHECK(reads > 3);
	for (uint64_t n = 1; n <= reads; n++) {
		CHECK_EQ(fault_io_copy(image, pool), 0);
		rule(FAULT_HANG, FAULT_READ, n, 1, 0);
		g = r;
		media_use_deadline(SHORT_NS);
		rc = rig_open_store(&g);
		media_use_deadline(0);
		fault_io_clear(f);
		CHECK(rc == 0 || rc == -ETIMEDOUT);
		if (!rc) { /* it could do without that read */
			CHECK_EQ(store_check(g.store->st), 0);
			CHECK_EQ(tutti_lookup(g.ns, keys, N, 0, &hit, NULL), 0);
			CHECK_EQ(hit, N);
			CHECK_EQ(tutti_store_close(g.store), 0);
		}
	}
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	all_is_there(N);
	end();
	unlink(image);
}

/* ---- verify ---- */

static void verify_blames_no_block_for_the_way(void)
{
	/* Not a medium's error. */
	struct fault_rule x = {.kind = FAULT_ERROR,
	                       .ops = FAULT_READ,
	                       .nth = 2,
	                       .count = UINT64_MAX,
	                       .value = ENOMEM,
	                       .offset_to = UINT64_MAX};
	uint64_t checked, bad;
	struct geom g;

	begin(&shape, N);
	store_ns_geom(r.ns->ns, 0, &g);
	x.offset_from = g.start_bytes[0]; /* blocks, not the pool's metadata */
	CHECK_EQ(fault_io_rule(f, &x), 0);
	CHECK(tutti_verify(r.ns, 1, NULL, NULL, &checked, &bad) != 0);
	CHECK(strstr(tutti_error_message(), "verify"));
	CHECK_EQ(bad, 0);
	fault_io_clear(f);
	all_is_there(N);
	CHECK_EQ(tutti_verify(r.ns, 1, NULL, NULL, &checked, &bad), 0);
	CHECK_EQ(checked, N);
	CHECK_EQ(bad, 0);
	end();
}

/* A block of 68 MiB: larger than verify's usual batch. */
static void verify_takes_large_blocks(void)
{
	static const struct rig_shape large = {.layers = 2,
	                                       .blocks = 2,
	                                       .outer_count = 2,
	                                       .segment_bytes = 17u << 20,
	                                       .order = "LoB",
	                                       .pool_bytes = 512u << 20,
	                                       .segment_pool_bytes = 128u << 20};
	uint64_t checked, bad;

	begin(&large, 1);
	CHECK_EQ(tutti_verify(r.ns, 0, NULL, NULL, &checked, &bad), 0);
	CHECK_EQ(checked, 1);
	CHECK_EQ(bad, 0);
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(metadata_that_hangs);
	CHECK_RUN(recovery_that_hangs);
	CHECK_RUN(verify_blames_no_block_for_the_way);
	CHECK_RUN(verify_takes_large_blocks);
	CHECK_RUN(a_dead_lane_says_so); /* the last one: it leaves a dead lane behind */
	scratch_end();
	return check_end();
}
