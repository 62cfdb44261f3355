/*
 * test_completions.c - a controller whose completions are wrong: repeated, of commands that nobody sent, or that does
 * not answer at all because its service thread stands still. The kernel gives up, what is lost fails, and the lane goes
 * on; or, where nobody says that memory is safe again, the lane is dead and says so, and the next one works.
 */
#include <errno.h>
#include <time.h>

#include "check.h"
#include "core/lane.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "ctrl/fault_io.h"
#include "ctrl/soft_int.h"

#define N 24
#define LAYERS 4u
#define DEADLINE_NS 400000000ull /* of what is to miss it */
#define PATIENCE_NS 20000000000ull
#define LEASE_NS 60000000000ull

static struct fault_io *faults;

/* ---- a backend whose thread can be stopped: anywhere, or where it has given back all that is done ---- */

enum { OPEN, CLOSED, CLOSED_WHEN_IDLE };

static struct {
	struct ctrl_io_ops ops;
	uint32_t closed, stands;
} gate;

static const struct timespec nap = {.tv_nsec = 1000000};

/* Called on the service thread. */
static void gate_pass(uint32_t when)
{
	while (port_load_acquire32(&gate.closed) == when) {
		port_store_release32(&gate.stands, 1);
		nanosleep(&nap, NULL); /* the test opens the gate */
	}
}

static void gate_submit(void *self, struct ctrl_io *io)
{
	gate_pass(CLOSED);
	fault_io_ops.submit(self, io);
}

static uint32_t gate_reap(void *self, struct ctrl_io **done, uint32_t max)
{
	uint32_t n;

	gate_pass(CLOSED);
	n = fault_io_ops.reap(self, done, max);
	if (!n)
		gate_pass(CLOSED_WHEN_IDLE);
	return n;
}

static void gate_open(void)
{
	port_store_release32(&gate.stands, 0);
	port_store_release32(&gate.closed, OPEN);
}

/* ---- the stack ---- */

static void up(struct rig *r, struct tutti_key *keys, uint64_t *blocks)
{
	struct rig_shape shape = {.layers = LAYERS,
	                          .blocks = 32,
	                          .outer_count = 2,
	                          .segment_bytes = 16384,
	                          .order = "LoB"};
	size_t stored;

	faults = fault_io_new(0);
	gate.ops = fault_io_ops;
	gate.ops.submit = gate_submit;
	gate.ops.reap = gate_reap;
	gate.closed = gate.stands = 0;
	pool_use_io(&gate.ops, faults);
	rig_up(r, &shape);
	rig_keys(r, 1, N, keys);
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = (i * 5 + 1) % 32;
	CHECK_EQ(rig_store(r, keys, N, blocks, &stored), 0);
	rig_wipe(r, 0);
}

static void down(struct rig *r)
{
	rig_down(r);
	pool_use_io(NULL, NULL);
	fault_io_free(faults);
}

/* A retrieve whose kernel has so long. */
static struct tutti_plan *begin(struct rig *r, const struct tutti_key *keys, const uint64_t *blocks,
                                struct tutti_lease *lease, uint64_t deadline_ns)
{
	uint8_t blob[8192];
	size_t n, bytes;
	struct tutti_plan *p;

	CHECK_EQ(tutti_lookup(r->ns, keys, N, LEASE_NS, &n, lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r->ns, lease, 0, n, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r->lane[0], blob, bytes, blocks, n, &p), 0);
	rig_deadline(r, 0, deadline_ns);
	CHECK_EQ(tutti_retrieve(p), 0);
	return p;
}

static void goes_on(struct rig *r, const struct tutti_key *keys, const uint64_t *blocks)
{
	size_t hit, bad;

	rig_deadline(r, 0, 0);
	for (int round = 0; round < 3; round++) {
		rig_wipe(r, 0);
		CHECK_EQ(rig_retrieve(r, keys, N, blocks, round & 1, &hit, &bad), 0);
		CHECK_EQ(hit, N);
		CHECK_EQ(bad, 0);
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(r, 0, blocks[i], &keys[i]), 0);
	}
}

/* ---- completions that nobody asked for ---- */

/*
 * Stops the service thread, whose queues are the test's until gate_open, and gives the queue pair that has commands at
 * the backend: FAULT_STOP keeps them there.
 */
static struct soft_qp *stopped_qp(struct rig *r)
{
	struct ctrl *c = r->lane[0]->pool.ctrl;
	uint64_t end_ns = rig_now() + PATIENCE_NS;

	while (!fault_io_struck(faults) && rig_now() < end_ns)
		nanosleep(&nap, NULL); /* until the kernel has come so far */
	CHECK(fault_io_struck(faults));
	port_store_release32(&gate.closed, CLOSED_WHEN_IDLE);
	while (!port_load_acquire32(&gate.stands) && rig_now() < end_ns) {
		port_unpark(&c->parker);
		nanosleep(&nap, NULL); /* until it has come to the gate */
	}
	CHECK(port_load_acquire32(&gate.stands));
	for (uint32_t i = 0; i < CTRL_QPS_MAX; i++)
		if (c->qps[i].memory && c->qps[i].inflight)
			return &c->qps[i];
	CHECK(!"a queue pair with commands in flight");
	return NULL;
}

static void wrong_completion(int repeated)
{
	struct fault_rule stop = {.kind = FAULT_STOP, .ops = FAULT_READ, .nth = 6};
	struct tutti_key keys[N];
	struct tutti_lease lease;
	uint64_t blocks[N];
	struct tutti_plan *p;
	struct soft_qp *q;
	struct rig r;
	uint32_t cid;
	int rc;

	up(&r, keys, blocks);
	CHECK_EQ(fault_io_rule(faults, &stop), 0);
	p = begin(&r, keys, blocks, &lease, repeated ? 5 * DEADLINE_NS : 0);
	q = stopped_qp(&r);
	/* As the service thread would, which has nothing to post. */
	cid = repeated ? NVME_CID(q->cq[(q->cq_tail + q->depth - 1) % q->depth].cid_status) : 0xfff0u;
	port_store_wake32(&q->cq[q->cq_tail].cid_status, cid | q->phase << 16, q->cq_parker);
	gate_open();
	rc = tutti_wait_layer(p, LAYERS - 1, rig_now() + LEASE_NS);
	/* A repeated id may be in use again by now: then data is missing, and its checksum tells. */
	CHECK(rc == -EPROTO || (repeated && (rc == -ETIMEDOUT || rc == -EBADMSG)));
	rig_pull(&r, 0);
	for (size_t i = 0; i < N; i++)
		CHECK(tutti_plan_failed(p, i) || !rig_wrong(&r, 0, blocks[i], &keys[i]));
	fault_io_clear(faults);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LEASE_NS, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	goes_on(&r, keys, blocks);
	down(&r);
}

static void unknown_id(void) { wrong_completion(0); }
static void repeated_id(void) { wrong_completion(1); }

static void one_is_lost(void)
{
	struct fault_rule hang = {.kind = FAULT_HANG, .ops = FAULT_READ, .nth = 6, .count = 1};
	struct tutti_key keys[N];
	struct tutti_lease lease;
	uint64_t blocks[N];
	struct tutti_plan *p;
	struct rig r;

	up(&r, keys, blocks);
	CHECK_EQ(fault_io_rule(faults, &hang), 0);
	p = begin(&r, keys, blocks, &lease, DEADLINE_NS);
	CHECK_EQ(tutti_wait_layer(p, LAYERS - 1, rig_now() + LEASE_NS), -ETIMEDOUT);
	CHECK_EQ(tutti_plan_poll(p), 1); /* it was the kernel that gave up, not this wait */
	fault_io_clear(faults);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LEASE_NS, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	goes_on(&r, keys, blocks);
	down(&r);
}

/* ---- nobody answers ---- */

static void service_thread_stands_still(void)
{
	struct tutti_key keys[N];
	struct tutti_lease lease;
	uint64_t blocks[N], t0;
	struct tutti_plan *p;
	struct rig r;

	up(&r, keys, blocks);
	port_store_release32(&gate.closed, CLOSED);
	t0 = rig_now();
	p = begin(&r, keys, blocks, &lease, DEADLINE_NS);
	CHECK_EQ(tutti_wait_layer(p, LAYERS - 1, t0 + LEASE_NS), -ENOTRECOVERABLE);
	CHECK(rig_now() - t0 < LEASE_NS / 2);
	CHECK_EQ(port_load_acquire32(&gate.stands), 1);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LEASE_NS, NULL, 0, NULL), -ENOTRECOVERABLE);
	CHECK_EQ(tutti_lane_close(r.lane[0]), -ENOTRECOVERABLE); /* all that it has stays */
	gate_open();
	nanosleep(&nap, NULL); /* the thread goes on */
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	goes_on(&r, keys, blocks);
	down(&r);
}

int main(int argc, char **argv)
{
	check_only = argc > 1 ? argv[1] : NULL;
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(unknown_id);
	CHECK_RUN(repeated_id);
	CHECK_RUN(one_is_lost);
	CHECK_RUN(service_thread_stands_still);
	scratch_end();
	return check_end();
}
