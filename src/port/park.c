/* park.c - parking on a futex: the host half of port.h. */
#include "port/port.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static long futex(uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, value, timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

void port_park_announce(struct port_parker *p)
{
	/* Orders this store before the owner's second look, which is an acquire load (pairs with port_store_wake32). */
	__atomic_store_n(&p->asleep, 1u, __ATOMIC_SEQ_CST);
#if !defined(__x86_64__)
	/* There the store is no full barrier for a later acquire load; on x86-64 it is. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

void port_park_cancel(struct port_parker *p) { __atomic_store_n(&p->asleep, 0u, __ATOMIC_RELAXED); }

int port_park_wait(struct port_parker *p, uint64_t deadline_ns)
{
	struct timespec t = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
	const struct timespec *until = deadline_ns ? &t : NULL;
	int rc = 0;

	/* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so a signal does not stretch the wait. */
	if (__atomic_load_n(&p->asleep, __ATOMIC_SEQ_CST) == 1 &&
	    futex(&p->asleep, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 1, until) < 0 && errno == ETIMEDOUT)
		rc = -ETIMEDOUT;
	port_park_cancel(p);
	return rc;
}

void port_unpark(struct port_parker *p)
{
	/* Exchange only when needed: the common case is an awake peer and a shared, clean cache line. */
	if (__atomic_load_n(&p->asleep, __ATOMIC_SEQ_CST) == 1 &&
	    __atomic_exchange_n(&p->asleep, 0u, __ATOMIC_SEQ_CST) == 1)
		futex(&p->asleep, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL);
}
