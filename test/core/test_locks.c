/*
 * test_locks.c - who may: a lane that slips in while a new store opens, between its look at the locks and its new
 * epoch; a format of several devices of which one is somebody's; a look at a pool that a store has.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

static const struct rig_shape shape = {
    .layers = 2, .blocks = 8, .outer_count = 2, .segment_bytes = 8192, .order = "LoB", .pool_bytes = 16u << 20};

struct opener {
	struct rig r;
	int rc;
	char message[300];
};

static void *open_store(void *arg)
{
	struct opener *o = arg;

	o->rc = rig_open_store(&o->r);
	snprintf(o->message, sizeof(o->message), "%s", tutti_error_message());
	return NULL;
}

/* Reads of an open on this machine, and those before it looks at the locks. */
static uint64_t reads_of_an_open(struct rig *r, struct fault_io *f)
{
	uint64_t before = fault_io_count(f, FAULT_READ), n;

	CHECK_EQ(rig_open_store(r), 0);
	n = fault_io_count(f, FAULT_READ) - before;
	CHECK_EQ(tutti_store_close(r->store), 0);
	return n;
}

static void a_lane_slips_in(void)
{
	const struct timespec nap = {.tv_nsec = 5000000};
	struct fault_rule held = {.kind = FAULT_HANG, .ops = FAULT_READ, .count = 1};
	struct fault_io *f = fault_io_new(0);
	uint64_t before, reads;
	struct opener o = {0};
	struct rig r;
	pthread_t t;
	char pid[40];

	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &shape);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	reads = reads_of_an_open(&r, f);
	CHECK(reads >= 3);
	before = fault_io_count(f, FAULT_READ);
	held.nth = reads; /* its last read: the locks were looked at long ago, the epoch is not written yet */
	CHECK_EQ(fault_io_rule(f, &held), 0);
	o.r = r;
	CHECK_EQ(pthread_create(&t, NULL, open_store, &o), 0);
	while (fault_io_count(f, FAULT_READ) < before + reads)
		nanosleep(&nap, NULL); /* until it is there */
	pool_use_io(NULL, NULL);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	fault_io_release(f);
	pthread_join(t, NULL);
	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	CHECK_EQ(o.rc, -EBUSY);
	CHECK(strstr(o.message, pid));
	/* The lane goes, and the way is free; lanes of the new epoch are no obstacle. */
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	rig_down(&r);
	fault_io_free(f);
}

static void lanes_of_an_epoch_are_told_apart(void)
{
	const char *path = scratch_path("locked");
	int a = open(path, O_RDWR | O_CREAT, 0600), b = open(path, O_RDWR), pid;
	static const uint64_t epochs[] = {1, 2, 7, 65535, 65536 + 7};

	CHECK(a >= 0 && b >= 0);
	for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
		CHECK_EQ(lock_lane(a, epochs[i]), 0);
		CHECK_EQ(lock_wait_lanes(b, epochs[i], 0, &pid), 0);
		CHECK_EQ(lock_wait_lanes(b, 0, 0, &pid), -EBUSY);
		CHECK_EQ(pid, getpid());
		CHECK_EQ(lock_wait_lanes(b, epochs[i] + 1, 0, &pid), -EBUSY);
		CHECK_EQ(lock_wait_lanes(b, epochs[i] - 1 ? epochs[i] - 1 : 9, 0, &pid), -EBUSY);
		lock_lane_release(a, epochs[i]);
		CHECK_EQ(lock_wait_lanes(b, 0, 0, &pid), 0);
	}
	close(a);
	close(b);
	unlink(path);
}

static void a_format_touches_all_or_none(void)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	const char *paths[3] = {scratch_path("letter"), NULL, scratch_path("new")};
	char text[32] = "";
	struct rig r;
	FILE *f;

	rig_up(&r, &shape);
	f = fopen(paths[0], "w");
	CHECK(f && fputs("dear reader", f) >= 0 && fclose(f) == 0);
	paths[1] = r.paths[0]; /* a store has it open */
	o.paths = paths;
	o.n_paths = 3;
	o.bytes = 64u << 20;
	o.overwrite = 1;
	o.prewrite = TUTTI_PREWRITE_NONE;
	CHECK_EQ(tutti_format(&o), -EBUSY);
	f = fopen(paths[0], "r");
	CHECK(f && fgets(text, sizeof(text), f) && fclose(f) == 0);
	CHECK(!strcmp(text, "dear reader"));
	CHECK(access(paths[2], F_OK) != 0);
	CHECK_EQ(store_check(r.store->st), 0);
	rig_down(&r);
	unlink(paths[0]);
}

struct seen {
	struct tutti_pool_info pool;
	struct tutti_ns_info ns;
	int calls, held, pid, lane_pid;
	char host[64];
};

static int see(void *arg, const struct tutti_pool_look *l)
{
	struct seen *s = arg;

	s->calls++;
	s->pool = *l->pool;
	if (l->pool->n_namespaces)
		s->ns = l->ns[0];
	s->held = l->held;
	s->pid = l->pid;
	s->lane_pid = l->lane_pid;
	snprintf(s->host, sizeof(s->host), "%s", l->host);
	return 7;
}

static void a_look_from_outside(void)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct fault_io *f = fault_io_new(0);
	struct tutti_pool_info info;
	struct tutti_ns_info ns;
	struct seen s = {0};
	uint64_t writes;
	char host[64];
	struct rig r;

	CHECK_EQ(gethostname(host, sizeof(host)), 0);
	rig_up(&r, &shape);
	o.paths = r.paths;
	o.n_paths = 1;
	pool_use_io(&fault_io_ops, f);
	for (int round = 0; round < 3; round++) {
		writes = fault_io_count(f, FAULT_WRITE);
		CHECK_EQ(tutti_pool_look(&o, see, &s), 7);
		CHECK_EQ(fault_io_count(f, FAULT_WRITE), writes);
		CHECK_EQ(s.calls, round + 1);
		CHECK_EQ(s.held, round < 2);
		CHECK_EQ(s.pid, round < 2 ? getpid() : 0);
		CHECK_EQ(s.lane_pid, round < 1 ? getpid() : 0);
		CHECK(!strcmp(s.host, round < 2 ? host : ""));
		CHECK_EQ(s.pool.clean, -1);
		CHECK_EQ(s.pool.index_bytes, TUTTI_UNKNOWN);
		CHECK_EQ(s.pool.n_namespaces, 1);
		CHECK_EQ(s.ns.committed, TUTTI_UNKNOWN);
		CHECK(!memcmp(s.ns.digest, r.digest.b, sizeof(s.ns.digest)));
		if (round < 2) {
			CHECK_EQ(tutti_store_info(r.store, &info), 0);
			CHECK_EQ(tutti_ns_get_info(r.ns, &ns), 0);
			CHECK_EQ(s.pool.epoch, info.epoch);
			CHECK_EQ(s.pool.segments_free, info.segments_free);
			CHECK_EQ(s.ns.slots, ns.slots);
		}
		if (!round)
			CHECK_EQ(rig_close_lanes(&r), 0);
		if (round == 1)
			CHECK_EQ(tutti_store_close(r.store), 0);
	}
	CHECK_EQ(tutti_pool_look(&o, NULL, NULL), -EINVAL);
	pool_use_io(NULL, NULL);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	rig_down(&r);
	fault_io_free(f);
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(lanes_of_an_epoch_are_told_apart);
	CHECK_RUN(a_lane_slips_in);
	CHECK_RUN(a_format_touches_all_or_none);
	CHECK_RUN(a_look_from_outside);
	scratch_end();
	return check_end();
}
