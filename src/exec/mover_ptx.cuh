/*
 * mover_ptx.cuh - what the movers need of the machine: words between the warps of a block, its mbarriers, bulk copies
 * (TMA). Nothing else of theirs is written in PTX; test/exec/sim has the same for a CPU.
 */
#ifndef TUTTI_EXEC_MOVER_PTX_CUH
#define TUTTI_EXEC_MOVER_PTX_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t mover_load(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void mover_store(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t mover_smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void mover_bar_init(uint64_t *bar, uint32_t n)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mover_smem(bar)), "r"(n) : "memory");
}

static __device__ __forceinline__ void mover_bar_arrive(uint64_t *bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mover_smem(bar)) : "memory");
}

static __device__ __forceinline__ int mover_bar_passed(uint64_t *bar, uint32_t parity)
{
	uint32_t passed;
	asm volatile("{ .reg .pred p;\n"
	             "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
	             "selp.u32 %0, 1, 0, p; }"
	             : "=r"(passed)
	             : "r"(mover_smem(bar)), "r"(parity)
	             : "memory");
	return (int)passed;
}

static __device__ __forceinline__ void mover_bar_wait(uint64_t *bar, uint32_t parity)
{
	while (!mover_bar_passed(bar, parity))
		__nanosleep(20);
}

/* All summers, no one else. */
static __device__ __forceinline__ void mover_summers_meet(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(MOVER_SUMMERS) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MOVER_BULK 1

static __device__ __forceinline__ void mover_bulk_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mover_smem(bar)), "r"(bytes)
	             : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
	                 mover_smem(stage)),
	             "l"(src), "r"(bytes), "r"(mover_smem(bar))
	             : "memory");
}

static __device__ __forceinline__ void mover_bulk_out(void *dst, const void *stage, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(mover_smem(stage)),
	             "r"(bytes)
	             : "memory");
}

static __device__ __forceinline__ void mover_bulk_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* All but the newest MOVER_READING copies out have read their stages; all but MOVER_LANDING have landed; all have. */
static __device__ __forceinline__ void mover_bulk_wait_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(MOVER_READING) : "memory");
}
static __device__ __forceinline__ void mover_bulk_wait_some(void)
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(MOVER_LANDING) : "memory");
}
/* All but the newest n copies out have landed; n is below IO_STORES_MAX. */
static __device__ __forceinline__ void mover_bulk_wait_but(uint32_t n)
{
	if (n == 0)
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
	else if (n == 1)
		asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
	else if (n == 2)
		asm volatile("cp.async.bulk.wait_group 2;" ::: "memory");
	else
		asm volatile("cp.async.bulk.wait_group 3;" ::: "memory");
}
static __device__ __forceinline__ void mover_bulk_wait_all(void)
{
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Between ordinary accesses to memory and those of the copy engine, either way. */
static __device__ __forceinline__ void mover_fence(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

#else
#define MOVER_BULK 0
static __device__ __forceinline__ void mover_bulk_in(void *, const void *, uint32_t, uint64_t *) {}
static __device__ __forceinline__ void mover_bulk_out(void *, const void *, uint32_t) {}
static __device__ __forceinline__ void mover_bulk_commit(void) {}
static __device__ __forceinline__ void mover_bulk_wait_read(void) {}
static __device__ __forceinline__ void mover_bulk_wait_some(void) {}
static __device__ __forceinline__ void mover_bulk_wait_but(uint32_t) {}
static __device__ __forceinline__ void mover_bulk_wait_all(void) {}
static __device__ __forceinline__ void mover_fence(void) {}
#endif

#endif
