/*
 * fork.c - see fork.h. A bit for each descriptor, so that the child's handler allocates nothing: other threads of the
 * parent may have held any lock but the one that fork itself waits for.
 */
#include "base/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define FDS 65536
#define WORD 64
#define WAIT_S 5

static uint64_t guarded[FDS / WORD];
static uint32_t depth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of this thread: a signal handler may fork in the middle of an open. */
static _Thread_local int holds, got, cancel;
/* Somebody waited in vain: nobody waits again before the lock was free once. */
static int stuck;

static int take(void)
{
	struct timespec until = {0};
	int taken;

	if (!__atomic_load_n(&stuck, __ATOMIC_RELAXED)) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += WAIT_S;
	}
	taken = pthread_mutex_timedlock(&lock, &until) == 0;
	__atomic_store_n(&stuck, !taken, __ATOMIC_RELAXED);
	return taken;
}

void fork_hold(void)
{
	if (holds++)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* open and close are places where a thread may end */
	got = take();
}

void fork_let(void)
{
	int state = cancel;

	if (--holds)
		return;
	if (got)
		pthread_mutex_unlock(&lock);
	pthread_setcancelstate(state, NULL);
}

static void in_child(void)
{
	__atomic_store_n(&depth, depth + 1, __ATOMIC_RELAXED);
	for (int i = 0; i < FDS / WORD; i++) {
		uint64_t bits = __atomic_exchange_n(&guarded[i], 0, __ATOMIC_RELAXED);

		for (; bits; bits &= bits - 1)
			close(i * WORD + __builtin_ctzll(bits));
	}
	if (!got) /* its holder is not here */
		lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	stuck = 0;
	fork_let();
}

/* When the library is loaded: a fork that has begun calls no handlers that are named later. */
__attribute__((constructor)) static void watch(void) { pthread_atfork(fork_hold, fork_let, in_child); }

int fork_guard(int fd)
{
	if (fd >= 0 && fd < FDS)
		__atomic_fetch_or(&guarded[fd / WORD], 1ull << fd % WORD, __ATOMIC_RELAXED);
	return fd;
}

int fork_unguard(int fd)
{
	if (fd >= 0 && fd < FDS)
		__atomic_fetch_and(&guarded[fd / WORD], ~(1ull << fd % WORD), __ATOMIC_RELAXED);
	return fd;
}

int fork_open(const char *path, int flags, mode_t mode)
{
	int fd;

	fork_hold();
	fd = fork_guard(open(path, flags | O_CLOEXEC, mode));
	fork_let();
	return fd;
}

void fork_close(int fd)
{
	fork_hold();
	close(fork_unguard(fd));
	fork_let();
}

uint32_t fork_depth(void) { return __atomic_load_n(&depth, __ATOMIC_RELAXED); }
