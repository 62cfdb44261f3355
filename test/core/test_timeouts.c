/*
 * test_timeouts.c - a controller that stops answering: every wait ends, every layer is signalled exactly once, nothing
 * is reported as failed while it may still be written, and the lane is usable again or dead for good.
 */
#include <errno.h>
#include <time.h>

#include "check.h"
#include "core/lane.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

#define N 16
#define DEADLINE_NS 300000000ull /* of what is to miss it */
#define WAIT_NS 30000000000ull   /* ends a hang, nothing else */
#define LEASE_NS 60000000000ull

static const struct rig_shape shape = {
    .layers = 4, .blocks = 32, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};

static struct rig r;
static struct fault_io *f;
static struct tutti_key keys[N];
static uint64_t blocks[N];

static void begin(int stored)
{
	size_t n;

	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = (i * 5 + 1) % 32;
	if (stored)
		CHECK_EQ(rig_store(&r, keys, N, blocks, &n), 0);
}

static void end(void)
{
	fault_io_clear(f);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static struct tutti_plan *open_plan(enum tutti_op op, struct tutti_lease *lease, uint64_t lease_ns)
{
	uint8_t blob[8192];
	size_t first, n, bytes;
	struct tutti_plan *p;

	if (op == TUTTI_RETRIEVE)
		CHECK_EQ(tutti_lookup(r.ns, keys, N, lease_ns, &n, lease), 0);
	else
		CHECK_EQ(tutti_reserve(r.ns, NULL, keys, N, lease_ns, &first, &n, lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r.ns, lease, 0, N, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, N, &p), 0);
	return p;
}

static void rule(enum fault_kind kind, uint32_t ops, uint64_t nth)
{
	struct fault_rule x = {.kind = kind, .ops = ops, .nth = nth, .count = 1};

	CHECK_EQ(fault_io_rule(f, &x), 0);
}

static void works(void)
{
	size_t hit, bad, stored;

	rig_deadline(&r, 0, 0);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(bad, 0);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	CHECK_EQ(store_check(r.store->st), 0);
}

/* A retrieve whose nth read never completes, though a cancel ends it. */
static void retrieve_stops_at(uint64_t nth, enum fault_kind kind)
{
	uint64_t t0;
	uint8_t done[8192];
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t bytes, bad, hit;
	int failed = 0;

	begin(1);
	p = open_plan(TUTTI_RETRIEVE, &lease, LEASE_NS);
	rule(kind, FAULT_READ, nth);
	rig_deadline(&r, 0, DEADLINE_NS);
	t0 = rig_now();
	CHECK_EQ(tutti_retrieve(p), 0);
	for (uint32_t l = 0; l < shape.layers; l++) {
		int rc = tutti_wait_layer(p, l, t0 + WAIT_NS);

		CHECK(rc != -ETIMEDOUT || rig_now() - t0 >= DEADLINE_NS);
		failed += rc != 0;
	}
	CHECK(failed > 0);
	CHECK(rig_now() - t0 < WAIT_NS);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + WAIT_NS, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK(bad > 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	fault_io_clear(f);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, N); /* a timeout says nothing about the blocks on disk: they stay */
	works();
	end();
}

static void retrieve_loses_its_header_read(void) { retrieve_stops_at(1, FAULT_HANG); }
static void retrieve_loses_a_layer(void) { retrieve_stops_at(3, FAULT_HANG); }
static void retrieve_when_the_disk_stops(void) { retrieve_stops_at(2, FAULT_STOP); }

static void store_stops_at(uint64_t nth)
{
	uint8_t done[8192];
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t bytes, bad, hit;

	begin(0);
	p = open_plan(TUTTI_STORE, &lease, LEASE_NS);
	rule(FAULT_HANG, FAULT_WRITE, nth);
	rig_deadline(&r, 0, DEADLINE_NS);
	for (uint32_t l = 0; l < shape.layers; l++)
		CHECK_EQ(tutti_store_layer(p, l), 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + WAIT_NS, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK(bad > 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	fault_io_clear(f);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK(hit < N);
	works();
	end();
}

static void store_loses_its_first_write(void) { store_stops_at(1); }
static void store_loses_a_later_write(void) { store_stops_at(4); }

/* What a cancel can't end: the lane dies, says so from then on, and frees nothing that may still be written. */
static void stuck_for_ever(void)
{
	uint8_t done[8192];
	struct tutti_lease lease;
	struct tutti_plan *p, *q;
	size_t bytes;

	begin(1);
	p = open_plan(TUTTI_RETRIEVE, &lease, LEASE_NS);
	rule(FAULT_STUCK, FAULT_READ, 2);
	rig_deadline(&r, 0, DEADLINE_NS);
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK(tutti_wait_layer(p, shape.layers - 1, rig_now() + WAIT_NS) != 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + WAIT_NS, done, sizeof(done), &bytes), -ENOTRECOVERABLE);
	q = open_plan(TUTTI_RETRIEVE, &lease, LEASE_NS);
	CHECK_EQ(tutti_retrieve(q), -ENOTRECOVERABLE);
	CHECK_EQ(tutti_plan_finish(q, rig_now() + WAIT_NS, done, sizeof(done), &bytes), -ENOTRECOVERABLE);
	CHECK(strlen(tutti_error_message()) > 0);
	/* The store's own queue is another one: it goes on. The lane is left as it is, for ever, as documented. */
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(store_check(r.store->st), 0);
	CHECK(tutti_lane_close(r.lane[0]) != 0);
	fault_io_release(f);
	r.lane[0] = NULL;
	pool_use_io(NULL, NULL);
}

/* ---- leases in time ---- */

static void no_io_behind_the_lease(void)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint64_t reads;
	size_t bytes;
	uint8_t done[8192];

	begin(1);
	p = open_plan(TUTTI_RETRIEVE, &lease, SCHED_LEASE_MARGIN_NS); /* no more than what a reset may take */
	reads = fault_io_count(f, FAULT_READ);
	CHECK_EQ(tutti_retrieve(p), -ESTALE);
	CHECK_EQ(tutti_retrieve_layer(p, 0), -ESTALE);
	CHECK_EQ(fault_io_count(f, FAULT_READ), reads);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 1000000000ull, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	p = open_plan(TUTTI_RETRIEVE, &lease, LEASE_NS);
	CHECK_EQ(tutti_plan_finish(p, rig_now(), NULL, 0, NULL), 0); /* nothing was issued: nothing to wait for */
	end();
}

static void expired_reservation_comes_back(void)
{
	struct timespec nap = {.tv_nsec = 50000000};
	struct tutti_lease lease;
	struct tutti_ns_info i;
	size_t first, n;

	begin(0);
	CHECK_EQ(tutti_reserve(r.ns, NULL, keys, N, 10000000ull, &first, &n, &lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_release(r.ns, &lease), 0); /* a lane may still write: the slots are not free before the expiry */
	nanosleep(&nap, NULL);                    /* the expiry passes */
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &n, NULL), 0);
	CHECK_EQ(n, 0);
	CHECK_EQ(tutti_ns_get_info(r.ns, &i), 0);
	CHECK_EQ(i.reserved, 0);
	works();
	end();
}

static void other_epochs_are_refused(void)
{
	uint8_t blob[8192], done[8192];
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t n, bytes, done_bytes, bad;

	begin(1);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, LEASE_NS, &n, &lease), 0);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, N, &p), 0);
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 10000000000ull, done, sizeof(done), &done_bytes), 0);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, N, &p), -ESTALE);
	CHECK_EQ(tutti_complete(r.ns, done, done_bytes, &bad), -ESTALE);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &bytes), -ESTALE);
	CHECK_EQ(tutti_release(r.ns, &lease), 0); /* idempotent, also for what it never knew */
	works();
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(retrieve_loses_its_header_read);
	CHECK_RUN(retrieve_loses_a_layer);
	CHECK_RUN(retrieve_when_the_disk_stops);
	CHECK_RUN(store_loses_its_first_write);
	CHECK_RUN(store_loses_a_later_write);
	CHECK_RUN(no_io_behind_the_lease);
	CHECK_RUN(expired_reservation_comes_back);
	CHECK_RUN(other_epochs_are_refused);
	CHECK_RUN(stuck_for_ever); /* the last one: it leaves a dead lane behind */
	scratch_end();
	return check_end();
}
