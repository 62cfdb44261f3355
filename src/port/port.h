/*
 * port.h - the little that differs between a CPU thread and a GPU thread.
 *
 * Device code (src/dev) is written once and compiled by gcc, clang and nvcc. Everything it needs from
 * the machine is here: ordered accesses, a clock, a pause, and parking (sleep until the peer has news).
 * Ordering is by acquire and release accesses only; bare fences are not used, because gcc's
 * ThreadSanitizer cannot follow them. The comment beside each use names the two accesses it orders.
 */
#ifndef TUTTI_PORT_H
#define TUTTI_PORT_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__CUDACC__)
#define PORT_FN static __forceinline__ __host__ __device__
#else
#define PORT_FN static inline
#endif

#ifdef __cplusplus
#define PORT_C extern "C"
#define PORT_ASSERT(c, m) static_assert(c, m)
#else
#define PORT_C
#define PORT_ASSERT(c, m) _Static_assert(c, m)
#endif

/* Device code in the form that a GPU's threads run: compiled for one, or for a CPU in its place (test/exec/sim.h). */
#if defined(__CUDA_ARCH__) && !defined(PORT_GPU)
#define PORT_GPU 1
#endif

#if defined(__CUDA_ARCH__)

PORT_FN uint32_t port_load_acquire32(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PORT_FN void port_store_release32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

PORT_FN uint32_t port_load_relaxed32(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PORT_FN uint32_t port_add_acqrel32(uint32_t *p, uint32_t v)
{
	uint32_t old;
	asm volatile("atom.add.acq_rel.sys.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
	return old;
}

PORT_FN uint64_t port_now_ns(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

PORT_FN uint64_t port_cpu_ns(void) { return port_now_ns(); }

PORT_FN void port_pause(void) { __nanosleep(100); }

#else

PORT_FN uint32_t port_load_acquire32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
PORT_FN void port_store_release32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
PORT_FN uint32_t port_load_relaxed32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
/* Returns the value before the addition. */
PORT_FN uint32_t port_add_acqrel32(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }

/* Monotonic nanoseconds. All deadlines of the project are absolute values of this clock. */
PORT_FN uint64_t port_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CPU time of the calling thread: what else ran meanwhile is not in it. A system call, 0.4 us or more. */
PORT_FN uint64_t port_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

PORT_FN void port_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif

/*
 * Parking. A parker belongs to one waiting thread; any number of peers may wake it. The waiter
 *   1. spins for a bounded time on the memory that its peers write (a doorbell, a CQ's phase bit);
 *   2. port_park_announce(), then looks at that memory once more;
 *   3. port_park_wait() if there is still nothing, which returns on a wake, a signal or the deadline.
 * A peer first writes the memory, then calls port_unpark(). Announce and the peer's write are both
 * followed by a load of what the other side wrote, so both are sequentially consistent: one of the two
 * always sees the other. A GPU never parks (it polls), and wakes nobody: its peer spins while a kernel
 * is resident.
 */
struct port_parker {
	uint32_t asleep; /* 1: the owner is in, or about to enter, port_park_wait */
	uint32_t pad[15]; /* own cache line */
};
PORT_ASSERT(sizeof(struct port_parker) == 64, "one cache line");

#ifdef __cplusplus
extern "C" {
#endif
/* Host only, the four. From here on a peer's write is either seen by the owner's next look, or wakes it. */
void port_park_announce(struct port_parker *p);
/* The owner looked again and found work: it will not sleep. */
void port_park_cancel(struct port_parker *p);
/* Returns 0 on a wake (or a spurious one), -ETIMEDOUT when deadline_ns (absolute, 0 = none) passed. */
int port_park_wait(struct port_parker *p, uint64_t deadline_ns);
/* Wakes the owner if it sleeps; one load when it does not. */
void port_unpark(struct port_parker *p);
#ifdef __cplusplus
}
#endif

/*
 * Stores v to *p so that all earlier writes are seen with it, then wakes the peer (may be NULL) if it sleeps. From a
 * GPU it is a plain release store; the peer spins.
 */
PORT_FN void port_store_wake32(uint32_t *p, uint32_t v, struct port_parker *peer)
{
#if defined(__CUDA_ARCH__)
	(void)peer;
	port_store_release32(p, v);
#else
	/* Orders this store before the load of asleep in port_unpark (pairs with port_park_announce). */
	__atomic_store_n(p, v, __ATOMIC_SEQ_CST);
	if (peer)
		port_unpark(peer);
#endif
}

#endif
