/*
 * test_fork.c - children that live on: one made by fork holds nothing of its parent's pool, can't harm it, and may open
 * a pool of its own; one that escaped fork's handlers holds the pool, and the next opener is told what to look for.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "tutti/gio_uring.h"

#if defined(__SANITIZE_THREAD__)
#define WITHOUT_TSAN() CHECK_SKIP("ThreadSanitizer follows no threads that a child of many threads makes")
#else
#define WITHOUT_TSAN() ((void)0)
#endif

static const struct rig_shape shape = {
    .layers = 2, .blocks = 8, .outer_count = 2, .segment_bytes = 8192, .order = "LoB", .pool_bytes = 16u << 20};

/* Descriptors of a process that lead to the pool or to a ring. */
static int fds_of_ours(pid_t pid, const char *pool)
{
	char folder[64], name[400], to[400];
	const struct dirent *e;
	int found = 0;
	DIR *d;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)pid);
	d = opendir(folder);
	while (d && (e = readdir(d))) {
		ssize_t n;

		snprintf(name, sizeof(name), "%s/%s", folder, e->d_name);
		n = readlink(name, to, sizeof(to) - 1);
		to[n > 0 ? n : 0] = 0;
		found += strcmp(to, pool) == 0 || strstr(to, "io_uring") != NULL;
	}
	if (d)
		closedir(d);
	return d ? found : -1;
}

static void live_on(void)
{
	for (;;)
		pause();
}

/* In a process of its own: opens it all, makes a child that lives on, by fork or past its handlers, and tells its pid.
 */
static void open_and_make(int tell, int handlers)
{
	struct rig r;
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rig_up(&r, &shape);
	child = handlers ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (!child)
		live_on();
	if (write(tell, &child, sizeof(child)) != sizeof(child))
		_exit(1);
	live_on();
}

struct family {
	pid_t parent, child;
	const char *pool;
};

static void family_up(struct family *f, int handlers)
{
	int pipes[2];

	CHECK_EQ(pipe(pipes), 0);
	f->pool = scratch_path("rig0");
	f->parent = fork();
	if (!f->parent)
		open_and_make(pipes[1], handlers);
	CHECK(f->parent > 0);
	CHECK_EQ(read(pipes[0], &f->child, sizeof(f->child)), (ssize_t)sizeof(f->child));
	close(pipes[0]);
	close(pipes[1]);
}

static void kill_parent(const struct family *f)
{
	CHECK_EQ(kill(f->parent, SIGKILL), 0);
	CHECK_EQ(waitpid(f->parent, NULL, 0), f->parent);
}

static void a_child_that_lives_on_holds_nothing(void)
{
	struct family f;

	WITHOUT_TSAN();
	family_up(&f, 1);
	CHECK_EQ(rig_try_open(f.pool), -EBUSY);
	CHECK(fds_of_ours(f.parent, f.pool) > 0);
	CHECK_EQ(fds_of_ours(f.child, f.pool), 0);
	kill_parent(&f);
	CHECK_EQ(rig_try_open(f.pool), 0);
	CHECK_EQ(kill(f.child, SIGKILL), 0); /* it was there all the time */
}

static void a_child_past_the_handlers_is_spoken_of(void)
{
	struct family f;
	char pid[64];

	WITHOUT_TSAN();
	family_up(&f, 0);
	kill_parent(&f);
	snprintf(pid, sizeof(pid), "process %d ", (int)f.parent);
	CHECK_EQ(rig_try_open(f.pool), -EBUSY);
	CHECK(strstr(tutti_error_message(), pid));
	CHECK(strstr(tutti_error_message(), "a process that it made holds the pool on"));
	CHECK(strstr(tutti_error_message(), "fuser"));
	CHECK_EQ(kill(f.child, SIGKILL), 0);
	for (int i = 0; rig_try_open(f.pool) && i < 200; i++)
		usleep(20000); /* nobody tells us when it is gone */
	CHECK_EQ(rig_try_open(f.pool), 0);
}

static int format_one(const char *path)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	o.paths = &path;
	o.n_paths = 1;
	o.bytes = 16u << 20;
	o.prewrite = TUTTI_PREWRITE_NONE;
	return tutti_format(&o);
}

/* What a child's destructors do, and a pool of its own. */
static int as_child(struct rig *r)
{
	const char *own = scratch_path("own");

	if (tutti_lane_close(r->lane[0]) != -EINVAL || !strstr(tutti_error_message(), "before a fork"))
		return 1;
	if (tutti_store_close(r->store) != -EINVAL || !strstr(tutti_error_message(), "before a fork"))
		return 2;
	if (rig_try_open(r->paths[0]) != -EBUSY)
		return 3;
	return format_one(own) || rig_try_open(own) || unlink(own) ? 4 : 0;
}

static void a_child_cannot_harm_its_parents_pool(void)
{
	struct tutti_key keys[4];
	const uint64_t blocks[4] = {1, 3, 5, 7};
	size_t stored, hit, bad;
	int status;
	struct rig r;
	pid_t child;

	WITHOUT_TSAN();
	rig_up(&r, &shape);
	rig_keys(&r, 1, 4, keys);
	CHECK_EQ(rig_store(&r, keys, 4, blocks, &stored), 0);
	child = fork();
	if (!child)
		_exit(as_child(&r));
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
	/* The child's end took nothing with it. */
	CHECK_EQ(rig_try_open(r.paths[0]), -EBUSY);
	CHECK_EQ(rig_retrieve(&r, keys, 4, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, 4);
	CHECK_EQ(bad, 0);
	rig_down(&r);
}

/* ---- closing beside a child that has not let go yet ---- */

static pid_t past_the_handlers(void)
{
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (!child)
		live_on();
	return child;
}

static void a_close_lets_the_pool_go_whatever_children_there_are(void)
{
	struct rig r;
	pid_t child;

	WITHOUT_TSAN();
	rig_up(&r, &shape);
	child = past_the_handlers();
	CHECK(child > 0);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	rig_down(&r);
	CHECK_EQ(kill(child, SIGKILL), 0); /* it was there all the time */
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void *kill_soon(void *arg)
{
	usleep(50000); /* the opener is at it */
	kill(*(const pid_t *)arg, SIGKILL);
	return NULL;
}

static void a_child_that_soon_lets_go_is_waited_for(void)
{
	struct family f;
	pthread_t t;

	WITHOUT_TSAN();
	family_up(&f, 0);
	kill_parent(&f);
	CHECK_EQ(pthread_create(&t, NULL, kill_soon, &f.child), 0);
	CHECK_EQ(rig_try_open(f.pool), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
}

/* ---- calls in a child ---- */

#define REFUSED(call) \
	do { \
		if ((call) != -EINVAL || !strstr(tutti_error_message(), "before a fork")) { \
			fprintf(stderr, "not refused in a child: %s (%s)\n", #call, tutti_error_message()); \
			return 1; \
		} \
	} while (0)

struct handles {
	struct rig r;
	struct tutti_key keys[4], more[4];
	struct tutti_lease lease, reservation;
	struct tutti_plan *read, *write;
	struct gio *gio;
	struct gio_ioctx *ioctx;
	uint32_t iocb;
	char done[4096], blob[4096];
	size_t done_bytes, blob_bytes;
};

static int on_block(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                    uint32_t slot)
{
	(void)arg, (void)key, (void)parent, (void)depth, (void)slot;
	return 0;
}

static int store_calls(struct handles *h)
{
	struct tutti_store *s = h->r.store;
	struct tutti_ns *ns = h->r.ns, *other;
	struct tutti_pool_info pool;
	struct tutti_ns_info info;
	struct tutti_lease lease;
	uint64_t n, bad64;
	size_t a, b;

	REFUSED(tutti_store_sync(s));
	REFUSED(tutti_store_info(s, &pool));
	REFUSED(tutti_store_repair(s, &n));
	REFUSED(tutti_ns_open(s, &h->r.spec, &other));
	REFUSED(tutti_ns_at(s, 0, &other));
	REFUSED(tutti_ns_get_info(ns, &info));
	REFUSED(tutti_ns_clear(ns));
	REFUSED(tutti_ns_remove(ns));
	REFUSED(tutti_ns_each(ns, on_block, NULL));
	REFUSED(tutti_verify(ns, 0, NULL, NULL, &n, &bad64));
	REFUSED(tutti_lookup(ns, h->keys, 4, 1, &a, &lease));
	REFUSED(tutti_reserve(ns, NULL, h->more, 4, 1, &a, &b, &lease));
	REFUSED(tutti_plan_blob(ns, &h->lease, 0, 4, h->blob, sizeof(h->blob), &a));
	REFUSED(tutti_complete(ns, h->done, h->done_bytes, &a));
	REFUSED(tutti_release(ns, &h->lease));
	REFUSED(tutti_cancel(ns, &h->reservation));
	REFUSED(tutti_store_close(s));
	return 0;
}

static int lane_calls(struct handles *h)
{
	const uint64_t blocks[4] = {0, 1, 2, 3};
	struct tutti_lane *l = h->r.lane[0];
	struct tutti_lane_stats stats;
	struct tutti_lane_info info;
	struct tutti_plan *p;
	size_t bad;

	REFUSED(tutti_lane_register(l, &h->r.kv[0]));
	REFUSED(tutti_lane_get_info(l, &info));
	REFUSED(tutti_lane_stats(l, &stats));
	REFUSED(tutti_lane_pace(l, TUTTI_STORE, 1));
	REFUSED(tutti_plan_open(l, h->blob, h->blob_bytes, blocks, 4, &p));
	REFUSED(tutti_retrieve(h->read));
	REFUSED(tutti_retrieve_layer(h->read, 1));
	REFUSED(tutti_store_layer(h->write, 1));
	REFUSED(tutti_plan_poll(h->read));
	REFUSED(tutti_plan_failed(h->read, 0));
	REFUSED(tutti_plan_finish(h->read, rig_now() + 1, NULL, 0, NULL));
	REFUSED(tutti_move(h->r.ns, l, &h->lease, blocks, 4, &bad));
	REFUSED(tutti_lane_close(l));
	return 0;
}

static int issued_layer_calls(struct handles *h)
{
	REFUSED(tutti_wait_layer(h->write, 0, rig_now() + 1));
	REFUSED(tutti_wait_layer_stream(h->write, 0, NULL));
	return 0;
}

static int gio_calls(struct handles *h)
{
	struct gio_ioctx *ioctx;
	struct gio_info info;
	uint32_t id;

	REFUSED(gio_get_info(h->gio, &info));
	REFUSED(gio_register(h->gio, h->r.memory[0], 4096));
	REFUSED(gio_get_iocb(h->gio, 1, NULL, &id, &ioctx));
	REFUSED(gio_issue_io(h->gio, &h->iocb, 1, 0));
	gio_put_iocb(h->gio, h->iocb); /* does nothing */
	REFUSED(gio_close(h->gio));
	return 0;
}

static void plan_open(struct handles *h, const struct tutti_lease *lease, const uint64_t *blocks,
                      struct tutti_plan **out)
{
	CHECK_EQ(tutti_plan_blob(h->r.ns, lease, 0, 4, h->blob, sizeof(h->blob), &h->blob_bytes), 0);
	CHECK_EQ(tutti_plan_open(h->r.lane[0], h->blob, h->blob_bytes, blocks, 4, out), 0);
}

static void handles_up(struct handles *h)
{
	const uint64_t blocks[4] = {0, 1, 2, 3}, others[4] = {4, 5, 6, 7};
	const char *path = scratch_path("raw");
	struct gio_opts o = GIO_OPTS_INIT;
	size_t n, first;

	rig_up(&h->r, &shape);
	rig_keys(&h->r, 1, 4, h->keys);
	rig_keys(&h->r, 2, 4, h->more);
	CHECK_EQ(rig_store(&h->r, h->keys, 4, blocks, &n), 0);
	CHECK_EQ(tutti_lookup(h->r.ns, h->keys, 4, 60000000000ull, &n, &h->lease), 0);
	plan_open(h, &h->lease, blocks, &h->read);
	CHECK_EQ(tutti_retrieve(h->read), 0);
	CHECK_EQ(tutti_plan_finish(h->read, rig_now() + 10000000000ull, h->done, sizeof(h->done), &h->done_bytes), 0);
	CHECK_EQ(tutti_reserve(h->r.ns, NULL, h->more, 4, 60000000000ull, &first, &n, &h->reservation), 0);
	plan_open(h, &h->reservation, others, &h->write);
	CHECK_EQ(tutti_store_layer(h->write, 0), 0);
	plan_open(h, &h->lease, blocks, &h->read);
	CHECK_EQ(format_one(path), 0);
	o.paths = &path;
	o.n_paths = 1;
	CHECK_EQ(gio_init_queue(&o, &h->gio), 0);
	CHECK_EQ(gio_get_iocb(h->gio, 1, NULL, &h->iocb, &h->ioctx), 0);
}

static void handles_down(struct handles *h)
{
	CHECK_EQ(tutti_plan_finish(h->read, rig_now() + 10000000000ull, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_plan_finish(h->write, rig_now() + 10000000000ull, NULL, 0, NULL), 0);
	CHECK_EQ(gio_close(h->gio), 0);
	rig_down(&h->r);
}

static void each_call_in_a_child_is_refused_and_none_waits(void)
{
	int (*const calls[])(struct handles *) = {store_calls, lane_calls, issued_layer_calls, gio_calls};
	struct handles *h = calloc(1, sizeof(*h));

	WITHOUT_TSAN();
	handles_up(h);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		int status = -1;
		pid_t child = fork();

		if (!child) {
			alarm(10); /* a wait ends it */
			_exit(calls[i](h));
		}
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK_EQ(status, 0);
	}
	handles_down(h);
	free(h);
}

/* ---- forks beside opens ---- */

#define RACES 200

struct opener {
	const char *path;
	int stop, failed;
	unsigned opens;
};

/* What opens and closes a file, a pool and its controller's ring, as often as it can. */
static void *open_and_close(void *arg)
{
	struct opener *o = arg;

	while (!__atomic_load_n(&o->stop, __ATOMIC_RELAXED)) {
		const struct pool_opts po = {.paths = &o->path, .n_paths = 1};
		struct pool p;

		o->failed |= pool_open(&po, &p);
		if (!o->failed)
			pool_close(&p);
		__atomic_fetch_add(&o->opens, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void a_fork_beside_an_open_or_a_close_leaves_nothing(void)
{
	const char *path = scratch_path("raced");
	struct opener o = {.path = path};
	pthread_t t;
	int left = 0;

	WITHOUT_TSAN();
	CHECK_EQ(format_one(path), 0);
	CHECK_EQ(pthread_create(&t, NULL, open_and_close, &o), 0);
	for (int i = 0; i < RACES || (__atomic_load_n(&o.opens, __ATOMIC_RELAXED) <= 10 && i < 100 * RACES); i++) {
		int status = -1;
		pid_t child = fork();

		if (!child)
			_exit(fds_of_ours(getpid(), path) != 0);
		CHECK_EQ(waitpid(child, &status, 0), child);
		left += status != 0;
	}
	__atomic_store_n(&o.stop, 1, __ATOMIC_RELAXED);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(o.failed, 0);
	CHECK(o.opens > 10);
	CHECK_EQ(left, 0);
	CHECK_EQ(unlink(path), 0);
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(a_child_cannot_harm_its_parents_pool);
	CHECK_RUN(a_child_that_lives_on_holds_nothing);
	CHECK_RUN(a_child_past_the_handlers_is_spoken_of);
	CHECK_RUN(a_close_lets_the_pool_go_whatever_children_there_are);
	CHECK_RUN(a_child_that_soon_lets_go_is_waited_for);
	CHECK_RUN(each_call_in_a_child_is_refused_and_none_waits);
	CHECK_RUN(a_fork_beside_an_open_or_a_close_leaves_nothing);
	scratch_end();
	return check_end();
}
