/*
 * fork.c - see fork.h. A bit for each descriptor, so that the child's handler allocates nothing and takes no lock:
 * other threads of the parent may have held any.
 */
#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#define FDS 65536
#define WORD 64

static uint64_t guarded[FDS / WORD];
static uint32_t depth;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
	__atomic_store_n(&depth, depth + 1, __ATOMIC_RELAXED);
	for (int i = 0; i < FDS / WORD; i++) {
		uint64_t bits = __atomic_exchange_n(&guarded[i], 0, __ATOMIC_RELAXED);

		for (; bits; bits &= bits - 1)
			close(i * WORD + __builtin_ctzll(bits));
	}
}

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

int fork_guard(int fd)
{
	if (fd < 0 || fd >= FDS)
		return fd;
	pthread_once(&once, watch);
	__atomic_fetch_or(&guarded[fd / WORD], 1ull << fd % WORD, __ATOMIC_RELAXED);
	return fd;
}

int fork_unguard(int fd)
{
	if (fd >= 0 && fd < FDS)
		__atomic_fetch_and(&guarded[fd / WORD], ~(1ull << fd % WORD), __ATOMIC_RELAXED);
	return fd;
}

uint32_t fork_depth(void) { return __atomic_load_n(&depth, __ATOMIC_RELAXED); }
