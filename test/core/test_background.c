/*
 * test_background.c - the store's own thread on a disk that fails: a sync that failed is tried again without anyone's
 * doing, and segments are written ahead of use, past one that can't be.
 */
#include <errno.h>
#include <time.h>

#include "base/err.h"
#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"
#include "store/state.h"

#define N 8
#define MANY 64
#define PATIENCE_NS 30000000000ull

static struct rig r;
static struct fault_io *disk;
static int warnings, notes;

static void count(void *arg, int level, const char *message)
{
	(void)arg;
	if (strstr(message, "sync"))
		__atomic_add_fetch(level == LOG_WARN ? &warnings : &notes, 1, __ATOMIC_RELEASE);
}

/* Of another thread, which logs without a lock that the test has. */
static int counted(const int *n) { return __atomic_load_n(n, __ATOMIC_ACQUIRE); }

static struct tutti_pool_info info(void)
{
	struct tutti_pool_info i;

	CHECK_EQ(tutti_store_info(r.store, &i), 0);
	return i;
}

/* Between two looks at what another thread does. */
static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

static void begin(const struct rig_shape *shape)
{
	disk = fault_io_new(0);
	CHECK(disk != NULL);
	pool_use_io(&fault_io_ops, disk);
	rig_up(&r, shape);
}

static void end(void)
{
	fault_io_clear(disk);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(disk);
}

static void commit(uint64_t seed)
{
	uint64_t blocks[N] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct tutti_key keys[N];
	size_t stored;

	rig_keys(&r, seed, N, keys);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	CHECK_EQ(stored, N);
}

static const struct rig_shape two_devices = {
    .devices = 2, .layers = 2, .blocks = 16, .segment_bytes = 8192, .order = "LB"};

/* One commit, then nothing: three syncs fail, the fourth works, each later than the one before. */
static void a_failed_sync_is_tried_again(void)
{
	struct fault_rule rule = {.kind = FAULT_ERROR, .ops = FAULT_FLUSH, .count = 3, .value = EIO};
	uint64_t start, end_ns;

	begin(&two_devices);
	log_set(count, NULL);
	warnings = notes = 0;
	pthread_mutex_lock(&r.store->lock);
	r.store->sync_interval_ns = 10000000;
	pthread_mutex_unlock(&r.store->lock);
	commit(1); /* takes a segment, which flushes */
	CHECK_EQ(tutti_store_sync(r.store), 0);
	CHECK(info().failed_syncs == 0 && !info().sync_failing);
	CHECK_EQ(fault_io_rule(disk, &rule), 0);
	start = rig_now();
	commit(2);
	for (end_ns = start + PATIENCE_NS; rig_now() < end_ns && (info().failed_syncs < 2 || info().sync_failing);)
		nap();
	CHECK(info().failed_syncs >= 2 && info().failed_syncs <= 3);
	CHECK(!info().sync_failing);
	/* After 10 ms, after 10 more, and after 20 more. */
	CHECK(rig_now() - start >= 40000000);
	for (end_ns = rig_now() + PATIENCE_NS; rig_now() < end_ns && !counted(&notes);)
		nap();
	CHECK_EQ(counted(&warnings), info().failed_syncs);
	CHECK_EQ(counted(&notes), 1);
	CHECK_EQ(store_dirty(r.store->st), 0);
	log_set(NULL, NULL);
	end();
}

/* Both devices are flushed, though the first one fails; the caller is told. */
static void one_device_fails_the_other_is_flushed(void)
{
	struct fault_rule rule = {.kind = FAULT_ERROR, .ops = FAULT_FLUSH, .count = 1, .value = EIO};
	uint64_t before;

	begin(&two_devices);
	log_set(count, NULL);
	pthread_mutex_lock(&r.store->lock);
	r.store->sync_interval_ns = UINT64_MAX;
	pthread_mutex_unlock(&r.store->lock);
	commit(1);
	CHECK_EQ(tutti_store_sync(r.store), 0);
	before = fault_io_count(disk, FAULT_FLUSH);
	CHECK_EQ(fault_io_rule(disk, &rule), 0);
	CHECK(tutti_store_sync(r.store) != 0);
	CHECK_EQ(fault_io_count(disk, FAULT_FLUSH) - before, 2);
	CHECK(info().sync_failing && info().failed_syncs == 1);
	CHECK_EQ(tutti_store_sync(r.store), 0);
	CHECK(!info().sync_failing && info().failed_syncs == 1);
	log_set(NULL, NULL);
	end();
}

static const struct rig_shape ahead = {.layers = 2,
                                       .blocks = 16,
                                       .segment_bytes = 8192,
                                       .order = "LB",
                                       .prewrite_segments = 1,
                                       .segment_pool_bytes = 1 << 20};

static void wait_prewritten(uint64_t n)
{
	for (uint64_t end_ns = rig_now() + PATIENCE_NS; rig_now() < end_ns && info().segments_prewritten < n;)
		nap();
	CHECK(info().segments_prewritten >= n);
}

/* One segment is always written ahead; when it is taken, the next. */
static void segments_are_written_ahead(void)
{
	begin(&ahead);
	wait_prewritten(1);
	commit(1);
	wait_prewritten(2);
	CHECK(info().segments - info().segments_free == 1);
	end();
}

static void a_segment_that_fails_is_passed_by(void)
{
	struct fault_rule rule = {.kind = FAULT_ERROR, .ops = FAULT_WRITE, .count = 1, .value = EIO};

	begin(&ahead);
	wait_prewritten(1);
	rule.offset_from = r.store->st->super.data_start_bytes[0] + r.store->st->super.chunk_bytes;
	rule.offset_to = rule.offset_from + r.store->st->super.chunk_bytes;
	log_set(count, NULL);
	CHECK_EQ(fault_io_rule(disk, &rule), 0);
	commit(1);
	wait_prewritten(2);
	log_set(NULL, NULL);
	CHECK(!r.store->st->segments[1].prewritten && r.store->st->segments[2].prewritten);
	end();
}

static int is_writing_ahead(void)
{
	int is;

	pthread_mutex_lock(&r.store->lock);
	is = r.store->lent;
	pthread_mutex_unlock(&r.store->lock);
	return is;
}

/* A segment that is being written ahead, on a slow disk, can be had like all others. */
static void what_is_written_ahead_can_be_had(void)
{
	/* The first segment long enough to be seen at it. */
	struct fault_rule slow[2] = {{.kind = FAULT_DELAY, .ops = FAULT_WRITE, .count = 4, .value = 3000000000},
	                             {.kind = FAULT_DELAY, .ops = FAULT_WRITE, .value = 200000000}};
	struct rig_shape shape = ahead;
	struct tutti_ns_info full;
	struct tutti_key keys[MANY];
	struct tutti_lease hold;
	size_t first, count;
	int rc = 0, is = 0;

	shape.pool_bytes = 16 << 20;
	begin(&shape);
	slow[1].count = UINT64_MAX;
	for (int i = 0; i < 2; i++) {
		slow[i].offset_from = r.store->st->super.data_start_bytes[0];
		slow[i].offset_to = UINT64_MAX;
		CHECK_EQ(fault_io_rule(disk, &slow[i]), 0);
	}
	for (uint64_t seed = 1; !rc; seed++) {
		rig_keys(&r, seed, MANY, keys);
		rc = tutti_reserve(r.ns, NULL, keys, MANY, 60000000000ull, &first, &count, &hold);
		if (seed > 1)
			continue;
		for (uint64_t end_ns = rig_now() + PATIENCE_NS; rig_now() < end_ns && !is;) {
			is = is_writing_ahead();
			nap();
		}
		CHECK(is);
	}
	CHECK_EQ(rc, -ENOSPC);
	CHECK_EQ(tutti_ns_get_info(r.ns, &full), 0);
	CHECK_EQ(full.segments, info().segments);
	CHECK_EQ(full.reserved, full.slots);
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(a_failed_sync_is_tried_again);
	CHECK_RUN(one_device_fails_the_other_is_flushed);
	CHECK_RUN(segments_are_written_ahead);
	CHECK_RUN(a_segment_that_fails_is_passed_by);
	CHECK_RUN(what_is_written_ahead_can_be_had);
	scratch_end();
	return check_end();
}
