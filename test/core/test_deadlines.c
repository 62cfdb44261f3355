/*
 * test_deadlines.c - time as a bound: no I/O begins behind a plan's lease, nor behind a kernel's deadline; whoever is
 * late costs nobody else anything; a wait whose deadline is over returns.
 */
#include <errno.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "core/blob.h"
#include "core/lane.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"
#include <tutti/gio_uring.h>

#define N 4
#define CHAINS 3
#define SECOND 1000000000ull
#define LONG (60 * SECOND)
/* Core keeps SCHED_LEASE_MARGIN_NS between a kernel's deadline and the lease's end: this leaves a plan 2 s. */
#define SHORT (SCHED_LEASE_MARGIN_NS + 2 * SECOND)

static const struct rig_shape shape = {
    .layers = 4, .blocks = 32, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};

static struct rig r;
static struct fault_io *f;

struct job {
	struct tutti_key keys[N];
	uint64_t blocks[N];
	struct tutti_lease lease;
	struct tutti_plan *plan;
	uint8_t done[4096];
	size_t bytes, bad;
};

static void begin(void)
{
	f = fault_io_new(64u << 20);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &shape);
}

static void end(void)
{
	fault_io_clear(f);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void slow(uint32_t ops, uint64_t count, uint64_t ns)
{
	struct fault_rule rule = {.kind = FAULT_DELAY, .ops = ops, .count = count, .value = ns};

	CHECK_EQ(fault_io_rule(f, &rule), 0);
}

/* All I/O of this kind waits from now on, until let_go. */
static void hold(uint32_t ops)
{
	struct fault_rule rule = {.kind = FAULT_HANG, .ops = ops, .count = UINT64_MAX};

	CHECK_EQ(fault_io_rule(f, &rule), 0);
}

static void let_go(void)
{
	fault_io_clear(f);
	fault_io_release(f);
}

static void sleep_to(uint64_t ns)
{
	const struct timespec until = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};

	/* Time itself is what is waited for. */
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {
	}
}

static void open_store_job(struct job *j, uint64_t seed, uint64_t lease_ns)
{
	uint8_t blob[4096];
	size_t first, n, bytes;

	rig_keys(&r, seed, N, j->keys);
	for (uint32_t i = 0; i < N; i++) {
		j->blocks[i] = (seed * N + i) % shape.blocks;
		rig_fill(&r, 0, j->blocks[i], &j->keys[i]);
	}
	CHECK_EQ(tutti_reserve(r.ns, NULL, j->keys, N, lease_ns, &first, &n, &j->lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r.ns, &j->lease, 0, N, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, j->blocks, N, &j->plan), 0);
}

static void finish(struct job *j)
{
	CHECK_EQ(tutti_plan_finish(j->plan, rig_now() + 30 * SECOND, j->done, sizeof(j->done), &j->bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, j->done, j->bytes, &j->bad), 0);
	CHECK_EQ(tutti_release(r.ns, &j->lease), 0);
}

/* Writes of the log that lie in a slot of the plan. */
static unsigned writes_into(const struct job *j)
{
	struct fault_event e;
	struct geom g;
	unsigned n = 0;

	store_ns_geom(r.ns->ns, 0, &g);
	for (uint64_t i = 0; !fault_io_event(f, i, &e); i++)
		for (uint32_t b = 0; b < N && !e.flush; b++) {
			struct geom_place p = geom_place(&g, blob_entry_at(j->done, b).slot);

			for (uint32_t l = 0; l < shape.layers; l++)
				for (uint32_t o = 0; o < shape.outer_count; o++) {
					uint64_t at = geom_object_offset(&g, &p, l, o);

					n += at >= e.offset_bytes && at < e.offset_bytes + e.bytes;
				}
		}
	return n;
}

/* The first store's writes are held; the second one waits behind it, on a lease whose time they outlast. */
static void a_late_store_writes_nothing_and_harms_nobody(void)
{
	static struct job j[CHAINS];

	begin();
	open_store_job(&j[0], 1, LONG);
	open_store_job(&j[2], 3, LONG);
	open_store_job(&j[1], 2, SHORT);
	hold(FAULT_WRITE);
	for (int k = 0; k < CHAINS; k++)
		for (uint32_t l = 0; l < shape.layers; l++)
			CHECK_EQ(tutti_store_layer(j[k].plan, l), 0);
	sleep_to(j[1].lease.expiry_ns - SCHED_LEASE_MARGIN_NS);
	let_go();
	for (int k = 0; k < CHAINS; k++)
		finish(&j[k]);
	CHECK_EQ(j[0].bad, 0);
	CHECK_EQ(j[1].bad, N);
	CHECK_EQ(j[2].bad, 0); /* it had all the time */
	CHECK(writes_into(&j[0]) > 0);
	CHECK_EQ(writes_into(&j[1]), 0);
	CHECK_EQ(store_check(r.store->st), 0);
	end();
}

/* Likewise when the late one is in the executor's queue already: launched in time, its turn comes too late. */
static void a_kernel_whose_turn_comes_too_late(void)
{
	static struct job j[2];

	begin();
	open_store_job(&j[0], 1, LONG);
	open_store_job(&j[1], 2, SHORT);
	hold(FAULT_WRITE);
	CHECK_EQ(tutti_store_layer(j[0].plan, 0), 0);
	CHECK_EQ(tutti_store_layer(j[1].plan, 0), 0); /* two kernels may be out: this one is */
	for (uint32_t l = 1; l < shape.layers; l++) {
		CHECK_EQ(tutti_store_layer(j[0].plan, l), 0);
		CHECK_EQ(tutti_store_layer(j[1].plan, l), 0);
	}
	sleep_to(j[1].lease.expiry_ns - SCHED_LEASE_MARGIN_NS);
	let_go();
	finish(&j[0]);
	finish(&j[1]);
	CHECK_EQ(j[0].bad, 0);
	CHECK_EQ(j[1].bad, N);
	CHECK_EQ(writes_into(&j[1]), 0);
	end();
}

/* A kernel that is busy all the time stops at its deadline too: here reads keep completing, 20 ms apart. */
static void a_busy_kernel_stops_at_its_deadline(void)
{
	struct rig_shape s = shape;
	uint64_t blocks[24], t0, reads;
	struct tutti_key keys[24];
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint8_t blob[4096];
	size_t n, bytes;

	s.queue_depth = 2;
	s.layers = 16;
	s.segment_bytes = 10000;
	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &s);
	rig_keys(&r, 1, 24, keys);
	for (uint32_t i = 0; i < 24; i++)
		blocks[i] = i;
	CHECK_EQ(rig_store(&r, keys, 24, blocks, &n), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, 24, LONG, &n, &lease), 0);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, n, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, n, &p), 0);
	reads = fault_io_count(f, FAULT_READ);
	slow(FAULT_READ, UINT64_MAX, 20000000);
	rig_deadline(&r, 0, 300 * (SECOND / 1000));
	t0 = rig_now();
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK(tutti_wait_layer(p, s.layers - 1, rig_now() + LONG) != 0);
	CHECK(rig_now() - t0 < LONG);
	CHECK(fault_io_count(f, FAULT_READ) - reads < 64); /* 300 ms, 2 at a time, 20 ms each: about 30 */
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	end();
}

/* Zero is a time that has passed, not "no deadline". */
static void a_deadline_of_zero_is_over(void)
{
	static struct job j;

	begin();
	open_store_job(&j, 1, LONG);
	hold(FAULT_WRITE);
	CHECK_EQ(tutti_store_layer(j.plan, 0), 0);
	CHECK_EQ(tutti_wait_layer(j.plan, 0, 0), -ETIMEDOUT);
	CHECK_EQ(tutti_plan_poll(j.plan), 0);
	CHECK_EQ(tutti_plan_finish(j.plan, 0, NULL, 0, NULL), -ETIMEDOUT);
	let_go(); /* neither has waited for the kernel's own deadline: it still succeeds */
	CHECK_EQ(tutti_wait_layer(j.plan, 0, UINT64_MAX), 0); /* and this one is far away */
	finish(&j);
	CHECK_EQ(j.bad, N); /* three layers are missing */
	end();
}

/* An I/O kernel waits for an event that never comes: at its deadline it fails, and has not touched the medium. */
static void an_event_that_never_comes(void)
{
	uint8_t *mem = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const char *path = scratch_path("raw");
	uint32_t word = 0, id;
	struct gio_event event = {.word = &word, .value = 1};
	struct gio_opts o = GIO_OPTS_INIT;
	struct gio_ioctx *c;
	struct gio_result res;
	struct gio *g;
	FILE *file = fopen(path, "w");

	CHECK(file && fclose(file) == 0 && truncate(path, 1 << 20) == 0 && mem != MAP_FAILED);
	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	o.paths = &path;
	o.n_paths = 1;
	o.deadline_ns = 200000000;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_register(g, mem, 65536), 0);
	CHECK_EQ(gio_get_iocb(g, 1, &event, &id, &c), 0);
	c->mem = (uint64_t)(uintptr_t)mem;
	c->bytes = 4096;
	c->op = GIO_WRITE;
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
	CHECK_EQ(gio_wait_cqe(g, id, rig_now() + LONG, &res), 0);
	CHECK_EQ(res.status, -ETIMEDOUT);
	CHECK_EQ(c->status, -ETIMEDOUT);
	CHECK_EQ(fault_io_count(f, FAULT_WRITE), 0);
	gio_put_iocb(g, id);
	CHECK_EQ(gio_close(g), 0);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
	munmap(mem, 65536);
}

/* Reservations come all the time; the sync after a commit still comes when it is due. */
static void a_busy_store_still_syncs(void)
{
	const struct timespec nap = {.tv_nsec = 20000000};
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	uint64_t blocks[N] = {0, 1, 2, 3}, flushes, end_ns;
	struct tutti_key keys[N], other[N], more[N];
	struct tutti_pool_info before, after;
	struct tutti_lease l;
	size_t n, first;

	begin();
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	o.paths = r.paths;
	o.n_paths = 1;
	o.sync_interval_ns = 200000000;
	CHECK_EQ(tutti_store_open(&o, &r.store), 0);
	CHECK_EQ(tutti_ns_open(r.store, &r.spec, &r.ns), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	rig_keys(&r, 1, N, keys);
	rig_keys(&r, 2, N, other);
	rig_keys(&r, 3, N, more);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &n), 0); /* takes a segment, which flushes */
	CHECK_EQ(tutti_store_sync(r.store), 0);
	CHECK_EQ(tutti_store_info(r.store, &before), 0);
	flushes = fault_io_count(f, FAULT_FLUSH);
	CHECK_EQ(rig_store(&r, more, N, blocks, &n), 0);
	CHECK_EQ(tutti_store_info(r.store, &after), 0);
	CHECK_EQ(after.segments_free, before.segments_free);
	for (end_ns = rig_now() + 30 * SECOND; rig_now() < end_ns && fault_io_count(f, FAULT_FLUSH) == flushes;) {
		CHECK_EQ(tutti_reserve(r.ns, NULL, other, N, LONG, &first, &n, &l), 0);
		CHECK_EQ(tutti_cancel(r.ns, &l), 0);
		nanosleep(&nap, NULL); /* a scheduler's step */
	}
	CHECK(fault_io_count(f, FAULT_FLUSH) > flushes);
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(a_late_store_writes_nothing_and_harms_nobody);
	CHECK_RUN(a_kernel_whose_turn_comes_too_late);
	CHECK_RUN(a_busy_kernel_stops_at_its_deadline);
	CHECK_RUN(a_deadline_of_zero_is_over);
	CHECK_RUN(an_event_that_never_comes);
	CHECK_RUN(a_busy_store_still_syncs);
	scratch_end();
	return check_end();
}
