/*
 * test_fork.c - which descriptors children close, and the lock that forks, opens and closes share: it goes round, and
 * nobody is left with it or without it. (test/core/test_fork.c: what that does for a pool.)
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include "base/fork.h"
#include "check.h"
#include "port/port.h"

#if defined(__SANITIZE_THREAD__)
#define WITHOUT_TSAN() CHECK_SKIP("ThreadSanitizer follows no threads that a child of many threads makes")
#else
#define WITHOUT_TSAN() ((void)0)
#endif

#define ROUNDS 200
#define GIVES_UP_NS 5000000000ull /* so long a fork or an open waits for the lock at most: base/fork.c */

struct asker {
	pid_t tid;
	int served;
};

static void *ask_once(void *arg)
{
	struct asker *a = arg;

	__atomic_store_n(&a->tid, gettid(), __ATOMIC_RELEASE);
	fork_hold();
	a->served = 1;
	fork_let();
	return NULL;
}

/* Does the thread sleep? Of one that has told its number: it waits to be served. */
static int sleeps(const struct asker *a)
{
	pid_t tid = __atomic_load_n(&a->tid, __ATOMIC_ACQUIRE);
	char name[64], state = 0;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/self/task/%d/stat", (int)tid);
	f = tid ? fopen(name, "r") : NULL;
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	if (f)
		fclose(f);
	return state == 'S';
}

/* Whoever lets go and asks again, as a thread that forks and forks does, finds the other one served. */
static void who_waits_is_served_before_who_asks_again(void)
{
	int passed_over = 0;

	for (int i = 0; i < ROUNDS; i++) {
		struct asker a = {0};
		pthread_t t;

		fork_hold();
		CHECK_EQ(pthread_create(&t, NULL, ask_once, &a), 0);
		while (!sleeps(&a))
			sched_yield();
		fork_let();
		fork_hold();
		passed_over += !a.served;
		fork_let();
		CHECK_EQ(pthread_join(t, NULL), 0);
	}
	CHECK_EQ(passed_over, 0);
}

#define MANY 2500
#define HIGH 70000

/* Only root may, above the hard one. */
static int raise_the_limit(rlim_t files)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= files)
		return 0;
	r.rlim_cur = files;
	if (r.rlim_max < files)
		r.rlim_max = files;
	return setrlimit(RLIMIT_NOFILE, &r);
}

/* In a child: how many of the descriptors are open. */
static int open_in_a_child(const int *fds, int n)
{
	int status = -1, left = 0;
	pid_t child = fork();

	if (!child) {
		for (int i = 0; i < n; i++)
			left += fcntl(fds[i], F_GETFD) >= 0;
		_exit(left < 255 ? left : 255);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	return status >> 8;
}

/* Half of them from `high` on. */
static void guard_and_forget(int high)
{
	int fds[MANY];

	for (int round = 0; round < 2; round++) { /* the second finds the places of the first */
		for (int i = 0; i < MANY; i++) {
			fork_hold();
			fds[i] = fork_guard(fcntl(STDERR_FILENO, F_DUPFD, i % 2 ? high : 0));
			fork_let();
		}
		CHECK(fds[MANY - 1] >= high);
		CHECK_EQ(open_in_a_child(fds, MANY), 0);
		for (int i = 0; i < MANY; i++) {
			CHECK(fcntl(fds[i], F_GETFD) >= 0);
			fork_close(fds[i]);
		}
		/* Nobody closes what was forgotten. */
		fds[0] = open("/dev/null", O_RDONLY);
		CHECK_EQ(open_in_a_child(fds, 1), 1);
		close(fds[0]);
	}
}

static void children_close_as_many_as_there_are(void)
{
	WITHOUT_TSAN();
	if (raise_the_limit(2 * MANY))
		CHECK_SKIP("the limit of open files is too low here for thousands of them");
	guard_and_forget(0);
}

static void children_close_descriptors_of_any_number(void)
{
	WITHOUT_TSAN();
	if (raise_the_limit(HIGH + MANY))
		CHECK_SKIP("the limit of open files is too low here for a descriptor above 65535");
	guard_and_forget(HIGH);
}

static void *open_for_ever(void *arg)
{
	for (;;) {
		int fd = fork_open("/dev/null", O_RDONLY, 0);

		__atomic_store_n((int *)arg, 1, __ATOMIC_RELAXED);
		fork_close(fd);
		pthread_testcancel();
	}
	return NULL;
}

/* open and close are places where a thread may end. */
static void a_cancelled_thread_keeps_no_lock(void)
{
	uint64_t begun;

	for (int i = 0; i < 200; i++) {
		int runs = 0;
		pthread_t t;

		CHECK_EQ(pthread_create(&t, NULL, open_for_ever, &runs), 0);
		while (!__atomic_load_n(&runs, __ATOMIC_RELAXED))
			sched_yield();
		CHECK_EQ(pthread_cancel(t), 0);
		CHECK_EQ(pthread_join(t, NULL), 0);
	}
	begun = port_now_ns();
	fork_hold();
	fork_let();
	CHECK(port_now_ns() - begun < GIVES_UP_NS); /* nobody waited to a deadline */
}

/* *longest_ns: of the forks until now, their children's work not counted. */
static pid_t timed_fork(uint64_t *longest_ns)
{
	uint64_t begun = port_now_ns(), took;
	pid_t child = fork();

	took = port_now_ns() - begun;
	*longest_ns = took > *longest_ns ? took : *longest_ns;
	return child;
}

/* Two forks at once, one of them from a thread that is just opening, as a signal handler's is. */
static void *fork_too(void *arg)
{
	uint64_t longest_ns = 0;
	int status = -1;

	for (int i = 0; i < 20; i++) {
		pid_t child;

		fork_hold();
		child = timed_fork(&longest_ns);
		if (!child)
			_exit(0);
		fork_let();
		if (waitpid(child, &status, 0) != child || status)
			*(int *)arg = 1;
	}
	if (longest_ns >= GIVES_UP_NS)
		*(int *)arg = 1;
	return NULL;
}

static void forks_wait_for_nobody_who_waits_for_them(void)
{
	uint64_t longest_ns = 0;
	int failed = 0, status;
	pthread_t t;

	WITHOUT_TSAN();
	CHECK_EQ(pthread_create(&t, NULL, fork_too, &failed), 0);
	for (int i = 0; i < 20; i++) {
		pid_t child = timed_fork(&longest_ns);

		if (!child) { /* the lock is free in a child, and its own forks are forks */
			fork_hold();
			fork_let();
			child = fork();
			_exit(!child ? 0 : waitpid(child, &status, 0) == child ? status != 0 : 1);
		}
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK_EQ(status, 0);
	}
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(failed, 0);
	CHECK(longest_ns < GIVES_UP_NS); /* nobody waited to a deadline */
}

/* The processor stops after each instruction (its trap flag), and after one of them the handler forks. */
static int steps, fork_after;
static uint64_t fork_took_ns;

static void on_step(int number)
{
	uint64_t longest_ns = 0;
	pid_t child;

	(void)number;
	if (steps++ != fork_after)
		return;
	child = timed_fork(&longest_ns);
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	fork_took_ns = longest_ns;
}

#define TRAP_FLAG 0x100ull

/* A handler that forks, wherever in an open or a close its signal comes, waits for nobody: who has the lock is itself.
 */
static void a_signal_handler_forks_anywhere(void)
{
	struct sigaction sa = {.sa_handler = on_step}, was;

	WITHOUT_TSAN();
	fork_hold(); /* a stepped call looks up no symbol */
	fork_let();
	fork_took_ns = 0;
	CHECK_EQ(sigaction(SIGTRAP, &sa, &was), 0);
	for (fork_after = 0, steps = 1; fork_after < steps && fork_took_ns < GIVES_UP_NS; fork_after += 2) {
		steps = 0;
		__writeeflags(__readeflags() | TRAP_FLAG);
		fork_hold();
		fork_let();
		__writeeflags(__readeflags() & ~TRAP_FLAG);
	}
	sigaction(SIGTRAP, &was, NULL);
	CHECK(steps > 20);
	CHECK(fork_took_ns < GIVES_UP_NS);
}

int main(void)
{
	CHECK_RUN(who_waits_is_served_before_who_asks_again);
	CHECK_RUN(children_close_as_many_as_there_are);
	CHECK_RUN(children_close_descriptors_of_any_number);
	CHECK_RUN(a_cancelled_thread_keeps_no_lock);
	CHECK_RUN(forks_wait_for_nobody_who_waits_for_them);
	CHECK_RUN(a_signal_handler_forks_anywhere);
	return check_end();
}
