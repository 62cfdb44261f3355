/*
 * test_fork.c - children that live on: one made by fork holds nothing of its parent's pool, can't harm it, and may open
 * a pool of its own; one that escaped fork's handlers holds the pool, and the next opener is told what to look for.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"
#include "core/rig.h"
#include "core/scratch.h"

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

/* What a child's destructors do, and a pool of its own. */
static int as_child(struct rig *r)
{
	const char *own = scratch_path("own");
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	if (tutti_lane_close(r->lane[0]) != -EINVAL || !strstr(tutti_error_message(), "before a fork"))
		return 1;
	if (tutti_store_close(r->store) != -EINVAL || !strstr(tutti_error_message(), "before a fork"))
		return 2;
	if (rig_try_open(r->paths[0]) != -EBUSY)
		return 3;
	o.paths = &own;
	o.n_paths = 1;
	o.bytes = 16u << 20;
	o.prewrite = TUTTI_PREWRITE_NONE;
	return tutti_format(&o) || rig_try_open(own) || unlink(own) ? 4 : 0;
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

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(a_child_cannot_harm_its_parents_pool);
	CHECK_RUN(a_child_that_lives_on_holds_nothing);
	CHECK_RUN(a_child_past_the_handlers_is_spoken_of);
	scratch_end();
	return check_end();
}
