/*
 * fork.c - see fork.h. A list of descriptors in pages that are mapped, never allocated: other threads of the parent may
 * have held any lock but the one that fork itself waits for, and an allocator's own fork handlers may wait for ours.
 *
 * Who waits for the lock has the gate meanwhile, and whoever lets the lock go finds the gate shut: so a thread that
 * forks again and again lets pass whoever came before its next fork. (A mutex alone goes to the first who asks for it,
 * and that is the one who just had it.)
 */
#include "base/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_FDS 1000
#define WAIT_S 5

/* Pages stay until the process ends: there are as many as were needed at once. */
struct page {
	int fd[PAGE_FDS]; /* 1 more than the descriptor; 0: free */
	struct page *next;
};

static struct page guarded;
static uint32_t depth;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
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
	taken = pthread_mutex_timedlock(&gate, &until) == 0;
	if (taken) {
		taken = pthread_mutex_timedlock(&lock, &until) == 0;
		pthread_mutex_unlock(&gate);
	}
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

/* As long as it may have the lock it holds: a signal handler that forks meanwhile asks for none. */
void fork_let(void)
{
	int state = cancel, had = got;

	if (holds > 1) {
		holds--;
		return;
	}
	got = 0;
	if (had)
		pthread_mutex_unlock(&lock);
	holds = 0;
	pthread_setcancelstate(state, NULL);
}

static struct page *next_page(const struct page *p) { return __atomic_load_n(&p->next, __ATOMIC_ACQUIRE); }

static void in_child(void)
{
	__atomic_store_n(&depth, depth + 1, __ATOMIC_RELAXED);
	for (struct page *p = &guarded; p; p = next_page(p)) {
		for (int i = 0; i < PAGE_FDS; i++) {
			int fd = __atomic_exchange_n(&p->fd[i], 0, __ATOMIC_RELAXED) - 1;

			if (fd >= 0)
				close(fd);
		}
	}
	/* Who has them is not here. */
	gate = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	if (!got)
		lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	stuck = 0;
	fork_let();
}

/* When the library is loaded: a fork that has begun calls no handlers that are named later. */
__attribute__((constructor)) static void watch(void) { pthread_atfork(fork_hold, fork_let, in_child); }

/* From now on `was` is `is`, in one place of the list. 0: there is none. */
static int swap(int was, int is)
{
	for (struct page *p = &guarded; p; p = next_page(p)) {
		for (int i = 0; i < PAGE_FDS; i++) {
			int old = was;

			if (__atomic_compare_exchange_n(&p->fd[i], &old, is, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
				return 1;
		}
	}
	return 0;
}

/* 0: there is no memory. The new page's first place has fd before others see it. */
static int add_page(int fd)
{
	struct page *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return 0;
	p->fd[0] = fd + 1;
	p->next = next_page(&guarded);
	while (!__atomic_compare_exchange_n(&guarded.next, &p->next, p, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
		;
	return 1;
}

int fork_guard(int fd)
{
	int kept = errno;

	if (fd >= 0 && !swap(0, fd + 1))
		add_page(fd);
	errno = kept;
	return fd;
}

int fork_unguard(int fd)
{
	if (fd >= 0)
		swap(fd + 1, 0);
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
