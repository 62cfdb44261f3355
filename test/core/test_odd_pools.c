/*
 * test_odd_pools.c - pools that are not what they should be: foreign, cut short, of one device twice, without room; and
 * formats that fail, and then have touched nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"
#include "core/helps.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "tutti/gio_uring.h"

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void foreign_truncated_and_missing(void)
{
	const char *path = scratch_path("odd");
	char text[64];
	struct stat st;
	FILE *f;

	helps(rig_try_open(scratch_path("none")), -ENOENT, "tutti format");
	CHECK(rig_try_open(scratch_dir) < 0);
	write_file(path, "not a pool, but somebody's letter");
	helps(format_at(path, 16 << 20, 0), -EEXIST, "nothing was touched");
	f = fopen(path, "r");
	CHECK(f && fgets(text, sizeof(text), f) && !strcmp(text, "not a pool, but somebody's letter") && !fclose(f));
	CHECK(rig_try_open(path) < 0);
	CHECK_EQ(format_at(path, 16 << 20, 1), 0);
	CHECK_EQ(rig_try_open(path), 0);
	CHECK(truncate(path, 8 << 20) == 0);
	helps(rig_try_open(path), -ENODEV, path);
	unlink(path);
	helps(format_at(path, 0, 0), -EINVAL, "needs a size");
	helps(format_at(path, UINT64_MAX, 0), -EINVAL, "too many");
	CHECK(format_at(path, 4096, 0) < 0);
	CHECK(stat(path, &st) < 0); /* a format that failed leaves nothing behind */
	CHECK(format_at(scratch_path("no/such/folder"), 16 << 20, 0) < 0);
}

static void a_full_disk(void)
{
	struct rlimit old, small = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
	const char *path = scratch_path("full");
	struct stat st;

	CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
	small.rlim_max = old.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	CHECK(format_at(path, 16 << 20, 0) < 0);
	CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
	CHECK(stat(path, &st) < 0);
	/* More than any disk holds: the reservation fails, and says how much was asked. */
	CHECK(format_at(path, 1ull << 52, 0) < 0);
	CHECK(strlen(tutti_error_message()) > 20);
	CHECK(stat(path, &st) < 0);
}

static int opens(const char *a, const char *b)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	const char *paths[2] = {a, b};
	struct tutti_store *s;
	int rc;

	o.paths = paths;
	o.n_paths = b ? 2 : 1;
	rc = tutti_store_open(&o, &s);
	return rc ? rc : tutti_store_close(s);
}

/* A device that is not there, that is none, and one under two names. */
static void devices_are_told_apart(void)
{
	const char *paths[2] = {scratch_path("dev0"), scratch_path("dev1")}, *other = scratch_path("other");
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	struct gio_opts go = GIO_OPTS_INIT;
	struct gio *g;
	char name[300];

	o.paths = paths;
	o.n_paths = 2;
	o.bytes = 32u << 20;
	o.prewrite = TUTTI_PREWRITE_NONE;
	CHECK_EQ(tutti_format(&o), 0);
	CHECK_EQ(opens(paths[0], NULL), 0);
	CHECK_EQ(link(paths[0], other), 0);
	helps(opens(paths[0], other), -EINVAL, "one and the same");
	CHECK_EQ(unlink(other), 0);
	CHECK_EQ(symlink(paths[0], other), 0);
	helps(opens(paths[0], other), -EINVAL, "one and the same");
	o.overwrite = 1;
	paths[1] = other;
	helps(tutti_format(&o), -EINVAL, "one and the same");
	snprintf(name, sizeof(name), "%s/./dev0", scratch_dir);
	paths[1] = name;
	helps(tutti_format(&o), -EINVAL, "one and the same");
	go.paths = paths;
	go.n_paths = 2;
	helps(gio_init_queue(&go, &g), -EINVAL, "one and the same");
	CHECK_EQ(unlink(other), 0);
	CHECK_EQ(rename(scratch_path("dev1"), other), 0);
	helps(opens(paths[0], NULL), -ENODEV, "is not there");
	CHECK_EQ(opens(paths[0], other), 0); /* all named, where they are now */
	helps(opens(paths[0], scratch_path("dev1")), -ENOENT, "no file");
	helps(opens("/dev/none", NULL), -ENODEV, "no device");
	helps(opens("/dev/null", NULL), -ENOMEDIUM, "character device");
	paths[0] = "/dev/null";
	go.n_paths = 1;
	CHECK_EQ(gio_init_queue(&go, &g), -ENOTBLK);
	CHECK_EQ(unlink(other), 0);
	CHECK_EQ(unlink(scratch_path("dev0")), 0);
	/* Two names of what is not there yet. */
	paths[0] = other;
	snprintf(name, sizeof(name), "%s/./other", scratch_dir);
	o.overwrite = 0;
	helps(tutti_format(&o), -EINVAL, "one and the same");
	CHECK(access(other, F_OK) != 0);
}

/* Whatever is wrong with a format over a pool, the pool is there afterwards. */
static void a_format_that_fails_touches_nothing(void)
{
	const char *two[2] = {scratch_path("kept"), scratch_path("kept2")};
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	struct stat before, after;

	CHECK_EQ(format_at(two[0], 16 << 20, 0), 0);
	CHECK_EQ(rig_try_open(two[0]), 0);
	CHECK(!stat(two[0], &before));
	o.paths = two;
	o.overwrite = 1;
	for (int i = 0; i < 6; i++) {
		o.n_paths = i < 3 ? 1 : 2;
		o.ranks = i == 0 ? TUTTI_RANKS_MAX : 1;
		o.segment_bytes = i == 1 || i == 3 ? 1 : 0;
		o.bytes = i == 2 || i == 4 ? 1ull << 52 : i == 5 ? 8192 : 560 << 10;
		CHECK(tutti_format(&o) < 0);
		CHECK(!stat(two[0], &after) && after.st_size == before.st_size && after.st_blocks == before.st_blocks);
		CHECK(access(two[1], F_OK) < 0);
		CHECK_EQ(rig_try_open(two[0]), 0);
		CHECK(!stat(two[0], &before));
	}
	unlink(two[0]);
}

/* From now on the system call ends with that errno. */
static int refuse_syscall(long number, uint32_t error)
{
	struct sock_filter filter[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = filter};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* In a process of its own: a format over the pool, larger or smaller, where the system call is refused. */
static int format_without(long number, uint32_t error, const char *path, uint64_t bytes, enum tutti_prewrite prewrite)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	const char *paths[2] = {path, scratch_path("kept too")};
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (refuse_syscall(number, error))
			_exit(7);
		o.paths = paths;
		o.n_paths = 2;
		o.bytes = 2 * bytes;
		o.overwrite = 1;
		o.prewrite = prewrite;
		_exit(tutti_format(&o) < 0 && tutti_error_message()[0] ? 1 : 0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* No io_uring, no fallocate: format finds out before it changes anything. */
static void a_format_that_can_not_work_loses_nothing(void)
{
	const char *path = scratch_path("kept");
	struct stat before, after;

	CHECK_EQ(format_at(path, 16 << 20, 0), 0);
	CHECK_EQ(rig_try_open(path), 0);
	CHECK(!stat(path, &before));
	for (uint64_t bytes = 8 << 20; bytes <= 32 << 20; bytes *= 2) {
		for (int prewrite = TUTTI_PREWRITE_SEGMENT; prewrite <= TUTTI_PREWRITE_NONE; prewrite++)
			CHECK_EQ(format_without(SYS_io_uring_setup, EPERM, path, bytes, prewrite), 1);
		CHECK_EQ(format_without(SYS_fallocate, EOPNOTSUPP, path, bytes, TUTTI_PREWRITE_SEGMENT), 1);
		CHECK_EQ(format_without(SYS_fallocate, ENOSPC, path, bytes, TUTTI_PREWRITE_ALL), 1);
		CHECK(!stat(path, &after) && after.st_size == before.st_size);
		CHECK(access(scratch_path("kept too"), F_OK) < 0);
		CHECK_EQ(rig_try_open(path), 0);
	}
	CHECK_EQ(format_without(SYS_fallocate, EOPNOTSUPP, path, 8 << 20, TUTTI_PREWRITE_ALL), 0);
	CHECK(!stat(path, &after) && after.st_size == 8 << 20);
	CHECK_EQ(rig_try_open(path), 0);
	unlink(path);
	unlink(scratch_path("kept too"));
}

int main(void)
{
	rig_dir(scratch_begin());
	CHECK_RUN(foreign_truncated_and_missing);
	CHECK_RUN(devices_are_told_apart);
	CHECK_RUN(a_full_disk);
	CHECK_RUN(a_format_that_fails_touches_nothing);
	CHECK_RUN(a_format_that_can_not_work_loses_nothing);
	scratch_end();
	return check_end();
}
