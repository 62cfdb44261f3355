/*
 * test_limits.c - every bound holds, idle costs nothing, nothing leaks, bad input gets a message that helps.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "core/helps.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"
#include <tutti/gio_uring.h>

#define N 16
#define LEASE_NS 60000000000ull

static const struct rig_shape shape = {
    .layers = 8, .blocks = 32, .outer_count = 2, .segment_bytes = 8192, .order = "LoB"};
static struct tutti_key keys[N];
static uint64_t blocks[N];
static struct rig r;

static void begin(const struct rig_shape *s)
{
	rig_up(&r, s);
	rig_keys(&r, 1, N, keys);
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = (i * 5 + 1) % 32;
}

static struct tutti_plan *store_plan(struct tutti_lease *lease)
{
	uint8_t blob[4096];
	struct tutti_plan *p;
	size_t first, n, bytes;

	CHECK_EQ(tutti_reserve(r.ns, NULL, keys, N, LEASE_NS, &first, &n, lease), 0);
	CHECK_EQ(tutti_plan_blob(r.ns, lease, 0, n, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, n, &p), 0);
	return p;
}

/* ---- the bounded queue of stores ---- */

static void full_queue_drops_the_whole_store(void)
{
	struct rig_shape s = shape;
	struct fault_rule hang = {.kind = FAULT_HANG, .ops = FAULT_WRITE, .count = UINT64_MAX};
	struct fault_io *f = fault_io_new(0);
	struct tutti_lane_stats st;
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint8_t done[4096];
	size_t bytes, bad, hit;
	int rc = 0;

	s.store_queue_layers = 2;
	pool_use_io(&fault_io_ops, f);
	begin(&s);
	p = store_plan(&lease);
	CHECK_EQ(fault_io_rule(f, &hang), 0);
	for (uint32_t l = 0; l < s.layers && !rc; l++)
		rc = tutti_store_layer(p, l);
	CHECK_EQ(rc, -EAGAIN); /* it never waits for room: there is none before the writes are let go */
	CHECK_EQ(tutti_store_layer(p, s.layers - 1), -ECANCELED);
	fault_io_clear(f);
	fault_io_release(f);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 20000000000ull, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK_EQ(bad, N);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, 0);
	CHECK_EQ(tutti_lane_stats(r.lane[0], &st), 0);
	CHECK_EQ(st.stores_dropped, 1);
	CHECK_EQ(store_check(r.store->st), 0);
	fault_io_clear(f);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void a_layer_missing_publishes_nothing(void)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint8_t done[4096];
	size_t bytes, bad, hit;

	begin(&shape);
	p = store_plan(&lease);
	for (uint32_t l = 0; l < shape.layers; l++)
		if (l != 3)
			CHECK_EQ(tutti_store_layer(p, l), 0);
	CHECK_EQ(tutti_store_layer(p, 0), -EINVAL); /* each layer once */
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 20000000000ull, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK_EQ(bad, N);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, 0);
	CHECK_EQ(store_check(r.store->st), 0);
	rig_down(&r);
}

/* ---- idle costs nothing ---- */

static uint64_t switches_of(const char *task)
{
	char path[300], line[200];
	unsigned long long n;
	uint64_t sum = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "Name:\tiou-", 10))
			break; /* the kernel's, of io_uring: comes and goes as it likes */
		if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
		    sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1)
			sum += n;
	}
	if (f)
		fclose(f);
	return sum;
}

/* Context switches of all threads of this process but the calling one. */
static uint64_t switches(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	uint64_t sum = 0;

	while (d && (e = readdir(d)) != NULL)
		if (e->d_name[0] != '.' && atoi(e->d_name) != getpid())
			sum += switches_of(e->d_name);
	if (d)
		closedir(d);
	return sum;
}

static void idle_store_and_lane_sleep(void)
{
	const struct timespec settle = {.tv_sec = 1, .tv_nsec = 200000000}, idle = {.tv_sec = 2};
	uint64_t before;
	size_t n;
	int tries = 0;

	begin(&shape);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &n), 0);
	do { /* the background sync, 1 s after a commit, as long as a busy disk makes it take */
		before = switches();
		nanosleep(&settle, NULL); /* nobody says when it is done */
	} while (switches() != before && ++tries < 10);
	before = switches();
	nanosleep(&idle, NULL); /* time in which nothing may happen */
#if defined(__SANITIZE_THREAD__)
	CHECK(switches() - before < 1000); /* ThreadSanitizer has a thread of its own */
#else
	CHECK_EQ(switches() - before, 0);
#endif
	rig_down(&r);
}

/* ---- nothing leaks ---- */

static unsigned open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void two_thousand_plans_leak_nothing(void)
{
	size_t hit, bad, n, used = 0;
	unsigned fds = 0;

	begin(&shape);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &n), 0);
	for (int i = 0; i < 2000; i++) {
		CHECK_EQ(rig_retrieve(&r, keys, 4, blocks, i & 1, &hit, &bad), 0);
		if (i == 200) {
			used = mallinfo2().uordblks;
			fds = open_fds();
		}
	}
	CHECK(mallinfo2().uordblks <= used + 4096);
	CHECK_EQ(open_fds(), fds);
	rig_down(&r);
}

static void open_and_close_leak_nothing(void)
{
	unsigned fds = 0;

	begin(&shape);
	for (int i = 0; i < 12; i++) {
		CHECK_EQ(rig_close_lanes(&r), 0);
		CHECK_EQ(tutti_store_close(r.store), 0);
		CHECK_EQ(rig_open_store(&r), 0);
		CHECK_EQ(rig_open_lane(&r, 0), 0);
		if (i == 2)
			fds = open_fds();
	}
	CHECK_EQ(open_fds(), fds);
	rig_down(&r);
}

/* ---- bad arguments: an error each, a message that says something, nothing changed ---- */

static void bad_arguments(void)
{
	struct tutti_store_opts so = TUTTI_STORE_OPTS_INIT;
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	struct tutti_kv_layout kv;
	struct tutti_ns_spec spec;
	struct tutti_ns *ns;
	struct tutti_store *s;
	struct tutti_lane *l;
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint8_t blob[4096];
	size_t n, first, bytes;
	uint64_t far = 32;

	begin(&shape);
	helps(tutti_store_open(&so, &s), -EINVAL, "paths");
	so.size = 3;
	helps(tutti_store_open(&so, &s), -EINVAL, "TUTTI_STORE_OPTS_INIT");
	helps(tutti_lane_open(&lo, &r.digest, &l), -EINVAL, "paths");
	lo.paths = r.paths;
	lo.n_paths = 1;
	helps(tutti_lane_open(&lo, &keys[0], &l), -ENOENT, "namespace");
	lo.rank = 1;
	CHECK(tutti_lane_open(&lo, &r.digest, &l) < 0);
	spec = r.spec;
	spec.model = NULL;
	helps(tutti_ns_open(r.store, &spec, &ns), -EINVAL, "model");
	spec = r.spec;
	spec.tp_size = 2;
	helps(tutti_ns_open(r.store, &spec, &ns), -EINVAL, "rank");
	spec = r.spec;
	memset(spec.weights, 0, sizeof(spec.weights));
	helps(tutti_ns_open(r.store, &spec, &ns), -EINVAL, "weights");
	kv = r.kv[0];
	kv.block_stride = 100;
	helps(tutti_kv_layout_objects(&kv, &spec), -EINVAL, "overlap");
	helps(tutti_lane_register(r.lane[0], &r.kv[0]), -EEXIST, "registered");
	helps(tutti_lookup(NULL, keys, 1, 0, &n, NULL), -EINVAL, "NULL");
	helps(tutti_reserve(r.ns, &keys[3], keys, 2, LEASE_NS, &first, &n, &lease), -ENOENT, "parent");
	CHECK_EQ(tutti_reserve(r.ns, NULL, keys, 2, LEASE_NS, &first, &n, &lease), 0);
	helps(tutti_plan_blob(r.ns, &lease, 0, 2, blob, 10, &bytes), -ENOBUFS, "bytes");
	helps(tutti_plan_blob(r.ns, &lease, 1, 2, blob, sizeof(blob), &bytes), -EINVAL, "lease");
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, 1, blob, sizeof(blob), &bytes), 0);
	helps(tutti_plan_open(r.lane[0], blob, bytes, &far, 1, &p), -EINVAL, "block number");
	helps(tutti_plan_open(r.lane[0], blob, bytes, blocks, 2, &p), -EINVAL, "block numbers");
	helps(tutti_plan_open(r.lane[0], blob, bytes - 1, blocks, 1, &p), -EBADMSG, "blob");
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, blocks, 1, &p), 0);
	helps(tutti_retrieve(p), -EINVAL, "retrieve");
	helps(tutti_store_layer(p, 8), -EINVAL, "layer");
	helps(tutti_wait_layer(p, 0, 0), -EINVAL, "issued");
	helps(tutti_lane_close(r.lane[0]), -EBUSY, "plans");
	helps(tutti_plan_finish(p, rig_now(), blob, 3, &bytes), -ENOBUFS, "bytes");
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 1000000000, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_cancel(r.ns, &lease), 0);
	helps(tutti_ns_at(r.store, 7, &ns), -ENOENT, "namespace");
	CHECK(strcmp(tutti_strerror(-12345678), "") != 0);
	CHECK(strstr(tutti_strerror(0x281), "read error"));
	rig_down(&r);
}

static void sizes_in_words(void)
{
	static const struct {
		const char *text;
		int rc;
		uint64_t bytes;
	} t[] = {{"4G", 0, 4ull << 30},
	         {"512MiB", 0, 512 << 20},
	         {"64k", 0, 65536},
	         {"64K", 0, 65536},
	         {"1TB", 0, 1ull << 40},
	         {"7", 0, 7},
	         {"7B", 0, 7},
	         {"0", 0, 0},
	         {"", -EINVAL, 0},
	         {"-1", -EINVAL, 0},
	         {" 1", -EINVAL, 0},
	         {"1.5G", 0, 3ull << 29},
	         {"1.38GiB", 0, 1481763717},
	         {"0.25k", 0, 256},
	         {"1.5", -EINVAL, 0},
	         {"1.G", -EINVAL, 0},
	         {"1.2345G", -EINVAL, 0},
	         {".5G", -EINVAL, 0},
	         {"15.999E", 0, 18445591152204944769ull},
	         {"4Gx", -EINVAL, 0},
	         {"4Q", -EINVAL, 0},
	         {"G", -EINVAL, 0},
	         {"16E", -ERANGE, 0},
	         {"99999999999999999999", -ERANGE, 0}};
	char buf[16];

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint64_t bytes = 0;

		CHECK_EQ(tutti_parse_bytes(t[i].text, &bytes), t[i].rc);
		CHECK_EQ(bytes, t[i].bytes);
	}
	CHECK(!strcmp(tutti_format_bytes(4ull << 30, buf), "4GiB"));
	CHECK(!strcmp(tutti_format_bytes(UINT64_MAX, buf), "16.00EiB"));
	CHECK(!strcmp(tutti_format_bytes(1000, buf), "1000"));
}

static void second_openers_are_told_who(void)
{
	char pid[32];
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct tutti_store *s;

	begin(&shape);
	snprintf(pid, sizeof(pid), "process %d on host", (int)getpid());
	o.paths = r.paths;
	o.n_paths = 1;
	helps(tutti_store_open(&o, &s), -EBUSY, pid);
	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	helps(format_at(r.paths[0], 16 << 20, 1), -EBUSY, pid);
	CHECK_EQ(tutti_store_close(r.store), 0); /* the lane stays */
	o.lock_wait_ns = 50000000;
	helps(tutti_store_open(&o, &s), -EBUSY, pid);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	rig_down(&r);
}

/* In a child that has given up root: the memlock limit is for the rings, not for the KV memory; then for nothing. */
static int as_nobody(void)
{
	struct rlimit small = {.rlim_cur = 2 << 20, .rlim_max = 2 << 20}, none = {0};
	struct tutti_lane_info info;
	size_t hit, bad, n;

	if (setrlimit(RLIMIT_MEMLOCK, &small) || setgid(65534) || setuid(65534))
		return 2;
	if (rig_open_store(&r) || rig_open_lane(&r, 0) || tutti_lane_get_info(r.lane[0], &info)) {
		printf("# %s\n", tutti_error_message());
		fflush(stdout);
		return 3;
	}
	if (rig_store(&r, keys, N, blocks, &n))
		return 4;
	rig_wipe(&r, 0);
	if (rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad) || hit != N || bad)
		return 5;
	for (uint32_t i = 0; i < N; i++)
		if (rig_wrong(&r, 0, blocks[i], &keys[i]))
			return 6;
	if (!info.registered && !info.why[0])
		return 7;
	rig_close_lanes(&r);
	tutti_store_close(r.store);
	if (rig_try_open(scratch_path("secret")) != -EACCES)
		return 8;
	/* Not even rings: refused with the command that mends it, where the kernel accounts them at all. */
	return setrlimit(RLIMIT_MEMLOCK, &none) ||
	               (rig_try_open(r.paths[0]) && !strstr(tutti_error_message(), "ulimit -l"))
	           ? 9
	           : 0;
}

static void without_root_and_memlock(void)
{
	int status = 0;
	pid_t child;

	if (getuid())
		CHECK_SKIP("needs root to become somebody else");
	rig_shape_memory(&r, &shape);
	rig_format(&r);
	rig_keys(&r, 1, N, keys);
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = i;
	CHECK(close(creat(scratch_path("secret"), 0600)) == 0 && chmod(scratch_dir, 0755) == 0 &&
	      chmod(r.paths[0], 0666) == 0);
	fflush(stdout);
	child = fork();
	if (!child)
		_exit(as_nobody());
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 100, 0);
}

int main(void)
{
	rig_dir(scratch_begin());
	CHECK_RUN(without_root_and_memlock); /* first: it forks, and no thread is there yet */
	CHECK_RUN(full_queue_drops_the_whole_store);
	CHECK_RUN(a_layer_missing_publishes_nothing);
	CHECK_RUN(idle_store_and_lane_sleep);
	CHECK_RUN(two_thousand_plans_leak_nothing);
	CHECK_RUN(open_and_close_leak_nothing);
	CHECK_RUN(bad_arguments);
	CHECK_RUN(sizes_in_words);
	CHECK_RUN(second_openers_are_told_who);
	scratch_end();
	return check_end();
}
