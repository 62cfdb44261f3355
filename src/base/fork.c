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
static _Thread_local int holds, got;

void fork_hold(void)
{
	struct timespec until;

	if (holds++)
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	got = pthread_mutex_timedlock(&lock, &until) == 0;
}

void fork_let(void)
{
	if (--holds == 0 && got)
		pthread_mutex_unlock(&lock);
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
