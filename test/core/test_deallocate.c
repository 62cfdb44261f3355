/*
 * test_deallocate.c - what a clear leaves is told to the drive: nothing else, not before the record that frees it is
 * durable, never what a next owner may have; and a drive that refuses, or dies of it, costs nothing.
 */
#include <errno.h>
#include <time.h>

#include "base/err.h"
#include "check.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/mock_nvme.h"
#include "store/state.h"

#define N 24
#define NS_BYTES (16ull << 20)
#define POOL_BYTES (12ull << 20) /* of each namespace */
#define PATIENCE_NS 30000000000ull

static struct rig r;
static struct mock *mock;
static struct tutti_ns *other;
static uint8_t *before, *image;
static int warnings;

static void count(void *arg, int level, const char *message)
{
	(void)arg;
	if (level == LOG_WARN && strstr(message, "deallocate"))
		__atomic_add_fetch(&warnings, 1, __ATOMIC_RELAXED);
}

static struct tutti_pool_info info(void)
{
	struct tutti_pool_info i;

	CHECK_EQ(tutti_store_info(r.store, &i), 0);
	return i;
}

/* Between two looks at what another thread does. */
static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

/* The background thread has told all that there was. */
static void settle(void)
{
	int busy = 1;

	for (uint64_t end_ns = rig_now() + PATIENCE_NS; busy && rig_now() < end_ns;) {
		nap();
		pthread_mutex_lock(&r.store->lock);
		busy = r.store->deallocate_asked || r.store->lent;
		pthread_mutex_unlock(&r.store->lock);
	}
	CHECK(!busy);
}

static void put(uint64_t seed)
{
	uint64_t blocks[N];
	struct tutti_key keys[N];
	size_t stored;

	for (uint64_t i = 0; i < N; i++)
		blocks[i] = i;
	rig_keys(&r, seed, N, keys);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	CHECK_EQ(stored, N);
}

/* Blocks of the chain that are there: all of them exact. */
static size_t get(uint64_t seed)
{
	uint64_t blocks[N];
	struct tutti_key keys[N];
	size_t hit, bad;

	for (uint64_t i = 0; i < N; i++)
		blocks[i] = i;
	rig_keys(&r, seed, N, keys);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(bad, 0);
	for (size_t i = 0; i < hit; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	return hit;
}

static struct rig_shape shape(void)
{
	struct rig_shape s = {.layers = 3,
	                      .blocks = N,
	                      .outer_count = 2,
	                      .segment_bytes = 4096,
	                      .order = "LoB",
	                      .devices = 2,
	                      .pool_bytes = 2 * POOL_BYTES,
	                      .segment_pool_bytes = 256 << 10,
	                      .erase_serial = "MOCK0001",
	                      .drives = {mock_path(0, 1), mock_path(0, 2)}};

	return s;
}

static void up(const struct mock_opts *o)
{
	struct mock_opts m = *o;
	struct rig_shape s = shape();

	mock_begin();
	m.n_ns = 2;
	m.ns_bytes = NS_BYTES;
	m.mdts = 5;
	m.vectors = 3;
	m.queues = 32;
	m.volatile_cache = 1;
	mock = mock_new(&m);
	CHECK(mock != NULL);
	rig_up(&r, &s);
}

static void down(void)
{
	rig_down(&r);
	CHECK_EQ(mock_mapped_bytes(mock), 0);
	mock_free(mock);
}

/* A second namespace with segments of its own, in which nothing ever changes: by hand, it has no lane. */
static void put_other(void)
{
	struct tutti_ns_spec spec = r.spec;
	struct tutti_key keys[N];
	struct tutti_lease l;
	size_t first, n;

	spec.model = "other";
	CHECK_EQ(tutti_ns_open(r.store, &spec, &other), 0);
	rig_keys(&r, 99, N, keys);
	CHECK_EQ(tutti_reserve(other, NULL, keys, N, 50000000ull, &first, &n, &l), 0);
	tutti_release(other, &l); /* a lane might still write: until it expires */
}

/* Format tells the drive of all that the pool is to have, and of no more, before it writes. */
static void format_forgets_what_was(void)
{
	struct mock_opts m = {.n_ns = 2, .ns_bytes = NS_BYTES, .mdts = 5, .vectors = 3, .queues = 32, .dsm = 1};
	struct rig_shape s = shape();

	mock_begin();
	mock = mock_new(&m);
	CHECK(mock != NULL);
	memset(mock_medium(mock, 1), 0xa5, 2 * NS_BYTES);
	rig_up(&r, &s);
	CHECK_EQ(mock_count(mock).deallocated_bytes, 2 * POOL_BYTES);
	for (uint32_t dev = 0; dev < 2; dev++) {
		const uint8_t *medium = mock_medium(mock, dev + 1);

		for (uint64_t at = r.store->st->super.data_start_bytes[dev]; at < NS_BYTES; at++)
			if (medium[at] != (at < POOL_BYTES ? 0 : 0xa5))
				CHECK(0);
	}
	put(1);
	CHECK_EQ(get(1), N);
	down();
}

/* 1: the byte lies in a segment that is marked in `of`. */
static int in_segments(const struct store *s, uint32_t dev, uint64_t at, const uint8_t *of)
{
	uint64_t start = s->super.data_start_bytes[dev], chunk = s->super.chunk_bytes;

	return at >= start && (at - start) / chunk < s->n_segments && of[(at - start) / chunk];
}

/* Exactly what the clear left is empty on the medium; of the rest of the data nothing has changed. */
static void tells_the_drive_exactly(void)
{
	uint64_t end_ns;
	uint8_t left[4096] = {0}, now[4096] = {0};
	struct mock_counts told;
	uint32_t n = 0;
	int rc;

	up(&(struct mock_opts){.dsm = 1});
	put(1);
	put_other();
	told = mock_count(mock);
	memcpy(before, mock_medium(mock, 1), 2 * NS_BYTES);
	for (uint32_t i = 0; i < r.store->st->n_segments; i++) {
		left[i] = r.store->st->segments[i].state == SEGMENT_OWNED &&
		          r.store->st->segments[i].owner == r.ns->ns->number;
		n += left[i];
	}
	CHECK(n > 1);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	settle();
	CHECK_EQ(info().deallocated_segments, n);
	CHECK_EQ(info().failed_deallocations, 0);
	CHECK_EQ(mock_count(mock).deallocations - told.deallocations, 2 * n);
	CHECK_EQ(mock_count(mock).deallocated_bytes - told.deallocated_bytes, n * info().segment_bytes);
	for (uint32_t dev = 0; dev < 2; dev++)
		for (uint64_t at = r.store->st->super.data_start_bytes[dev]; at < NS_BYTES; at++) {
			uint8_t is = mock_medium(mock, dev + 1)[at], was = before[dev * NS_BYTES + at];

			if (is != (in_segments(r.store->st, dev, at, left) ? 0 : was))
				CHECK(0);
		}
	CHECK_EQ(get(1), 0);
	put(2);
	CHECK_EQ(get(2), N);
	/* The pool is used as before: the next clear tells again, and so does removing. */
	for (uint32_t i = 0; i < r.store->st->n_segments; i++)
		now[i] = r.store->st->segments[i].state == SEGMENT_OWNED;
	end_ns = rig_now() + PATIENCE_NS;
	for (rc = -EBUSY; rc == -EBUSY && rig_now() < end_ns; nap())
		rc = tutti_ns_remove(other);
	CHECK_EQ(rc, 0);
	settle();
	CHECK(info().deallocated_segments > n);
	for (uint32_t i = 0; i < r.store->st->n_segments; i++)
		CHECK(!now[i] || !r.store->st->segments[i].left);
	CHECK_EQ(get(2), N);
	down();
}

static void says_nothing_to_who_does_not_know(void)
{
	up(&(struct mock_opts){.dsm = 0});
	put(1);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	settle();
	put(2);
	CHECK_EQ(get(2), N);
	CHECK_EQ(info().deallocated_segments + info().failed_deallocations, 0);
	CHECK_EQ(mock_count(mock).deallocations, 0);
	down();
}

/* Of 1000 segments that fail one is told of. */
static void a_refusal_is_counted_and_told_once(void)
{
	uint64_t owned;

	up(&(struct mock_opts){.dsm = 1});
	put(1);
	owned = info().segments - info().segments_free;
	mock_script(mock, MOCK_STATUS, NVME_SC_INVALID_FIELD, 1, NVME_CMD_DSM, 0, 1000);
	warnings = 0;
	log_set(count, NULL);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	settle();
	log_set(NULL, NULL);
	CHECK_EQ(warnings, 1);
	CHECK_EQ(info().failed_deallocations, owned);
	CHECK_EQ(info().deallocated_segments, 0);
	put(2);
	CHECK_EQ(get(2), N);
	mock_calm(mock);
	down();
}

/* The queue pair is deleted, after which the drive has let go of the command; the segment is free again. */
static void one_that_is_lost_ends(void)
{
	up(&(struct mock_opts){.dsm = 1});
	put(1);
	mock_script(mock, MOCK_LOST, 0, 1, NVME_CMD_DSM, 0, 1);
	media_use_deadline(1500000000); /* all but the lost one are to be done by then */
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	settle();
	media_use_deadline(0);
	CHECK_EQ(info().failed_deallocations, 1);
	CHECK(info().deallocated_segments > 0);
	put(2);
	CHECK_EQ(get(2), N);
	down();
}

/* All of the pool is wanted while a slow drive is being told: what is stored then is not taken away afterwards. */
static void a_next_owner_is_safe(void)
{
	up(&(struct mock_opts){.dsm = 1});
	for (uint64_t seed = 1; seed <= 10; seed++)
		put(seed);
	mock_script(mock, MOCK_LATE, 30, 1, NVME_CMD_DSM, 0, 100);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	for (uint64_t seed = 21; seed <= 44; seed++) /* more than it holds */
		put(seed);
	CHECK(mock_count(mock).deallocations > 2);
	settle();
	mock_settle(mock);
	CHECK_EQ(get(44), N);
	for (uint64_t seed = 21; seed <= 44; seed++)
		get(seed);
	CHECK_EQ(info().failed_deallocations, 0);
	mock_calm(mock);
	down();
}

/* A drive that is deaf from the first deallocation on, and can't be stopped: the segment is nobody's. */
static void one_that_may_still_come_keeps_its_segment(void)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	uint32_t segment, n = STORE_EXTENTS_MAX, again;
	uint64_t free_before;

	up(&(struct mock_opts){.dsm = 0}); /* by hand: nothing asks for it */
	put(1);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	free_before = info().segments_free;
	CHECK_EQ(store_deallocate_next(r.store->st, &segment, e, &n), 0);
	CHECK_EQ(info().segments_free, free_before - 1);
	CHECK_EQ(store_deallocate_done(r.store->st, segment, -ENOTRECOVERABLE), 0);
	CHECK_EQ(info().segments_free, free_before - 1);
	CHECK_EQ(store_deallocate_done(r.store->st, segment, 0), -EINVAL);
	while (!store_deallocate_next(r.store->st, &again, e, &n)) {
		CHECK(again != segment);
		CHECK_EQ(store_deallocate_done(r.store->st, again, 0), 0);
	}
	for (uint64_t seed = 2; seed <= 20; seed++)
		put(seed);
	CHECK_EQ(r.store->st->segments[segment].state, SEGMENT_BAD);
	down();
}

/* Outside of segments nothing can be deallocated, whoever asks. */
static void the_range_is_checked(void)
{
	uint64_t first, end;

	up(&(struct mock_opts){.dsm = 1});
	put(1);
	store_data_range(r.store->st, 0, &first, &end);
	CHECK(first > 0 && end <= POOL_BYTES);
	CHECK_EQ(media_deallocate(r.store->background, 0, 0, 4096, NULL), -ERANGE);
	CHECK_EQ(media_deallocate(r.store->background, 0, first - 4096, 8192, NULL), -ERANGE);
	CHECK_EQ(media_deallocate(r.store->background, 0, end - 4096, 8192, NULL), -ERANGE);
	CHECK_EQ(media_deallocate(r.store->background, 0, end, 4096, NULL), -ERANGE);
	CHECK_EQ(media_deallocate(r.store->background, 0, first, 4096 + 256, NULL), -ERANGE);
	CHECK_EQ(media_deallocate(r.store->media, 0, first, 4096, NULL), -ERANGE); /* it was told of no data */
	CHECK_EQ(mock_count(mock).deallocations, 2); /* of format */
	CHECK_EQ(get(1), N);
	down();
}

static int images;

static void keep_image(void *arg)
{
	(void)arg;
	if (images++ == 0)
		memcpy(image, mock_power_cut(mock), 2 * NS_BYTES);
}

/* The power fails at the very first deallocation: what is on the medium then says that the blocks are gone. */
static void the_record_comes_first(void)
{
	struct tutti_ns_info i;

	up(&(struct mock_opts){.dsm = 1, .durable = 1});
	put(1);
	put_other();
	CHECK_EQ(tutti_store_sync(r.store), 0);
	images = 0;
	mock_on_deallocation(mock, keep_image, NULL);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	settle();
	CHECK(images > 1);
	mock_on_deallocation(mock, NULL, NULL);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	memcpy(mock_medium(mock, 1), image, 2 * NS_BYTES);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(tutti_ns_get_info(r.ns, &i), 0);
	CHECK_EQ(i.segments, 0);
	CHECK_EQ(i.committed, 0);
	/* And what the crash left undone is done now. */
	settle();
	CHECK(info().deallocated_segments > 1);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	put(3);
	CHECK_EQ(get(3), N);
	down();
}

int main(void)
{
	rig_dir(scratch_begin());
	nvme_claim_by(mock_claim, NULL);
	before = malloc(2 * NS_BYTES);
	image = malloc(2 * NS_BYTES);
	CHECK_RUN(format_forgets_what_was);
	CHECK_RUN(tells_the_drive_exactly);
	CHECK_RUN(says_nothing_to_who_does_not_know);
	CHECK_RUN(a_refusal_is_counted_and_told_once);
	CHECK_RUN(one_that_is_lost_ends);
	CHECK_RUN(a_next_owner_is_safe);
	CHECK_RUN(one_that_may_still_come_keeps_its_segment);
	CHECK_RUN(the_range_is_checked);
	CHECK_RUN(the_record_comes_first);
	free(before);
	free(image);
	scratch_end();
	return check_end();
}
