/* mover_ptx.cuh - what the movers need of the machine, on a CPU: see src/exec/mover_ptx.cuh, exec/sim.h. */
#ifndef TUTTI_EXEC_MOVER_PTX_CUH
#define TUTTI_EXEC_MOVER_PTX_CUH

#include "exec/sim.h"

#define MOVER_BULK 1

static inline uint32_t mover_load(const uint32_t *p)
{
	sim_yield();
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void mover_store(uint32_t *p, uint32_t v)
{
	sim_yield();
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline void mover_bar_init(uint64_t *bar, uint32_t n) { sim_bar_init(bar, n); }
static inline void mover_bar_arrive(uint64_t *bar) { sim_bar_arrive(bar, 0); }
static inline int mover_bar_passed(const uint64_t *bar, uint32_t parity) { return sim_bar_passed(bar, parity); }
static inline void mover_bar_wait(const uint64_t *bar, uint32_t parity) { sim_bar_wait(bar, parity); }
static inline void mover_summers_meet(void) { sim_meet(1, MOVER_SUMMERS); }

static inline void mover_bulk_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar)
{
	sim_copy_in(stage, src, bytes, bar);
}

static inline void mover_bulk_out(void *dst, const void *stage, uint32_t bytes) { sim_copy_out(dst, stage, bytes); }
static inline void mover_bulk_commit(void) { sim_copy_commit(); }
static inline void mover_bulk_wait_read(void) { sim_copy_wait(MOVER_READING, 0); }
static inline void mover_bulk_wait_some(void) { sim_copy_wait(MOVER_LANDING, 1); }
static inline void mover_bulk_wait_but(uint32_t n) { sim_copy_wait(n < 3 ? n : 3, 1); }
static inline void mover_bulk_wait_all(void) { sim_copy_wait(0, 1); }
static inline void mover_fence(void) { sim_yield(); }

#endif
