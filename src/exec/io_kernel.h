/*
 * io_kernel.h - what the host and the I/O kernel (io_kernel.cu) know of each other: how it is launched, what it leaves.
 *
 * The kernel tells its own end: the last thing that each of its thread blocks writes is `over`, in memory that the host
 * looks at. So a launch is one call to the driver, without an event behind it.
 */
#ifndef TUTTI_EXEC_IO_KERNEL_H
#define TUTTI_EXEC_IO_KERNEL_H

#include <stdint.h>

#include "dev/plan.h"

#define IO_BLOCKS_MAX 16u
#define IO_CLOCK_ROUNDS 32u
#define IO_STAGE_BYTES 32768u
#define IO_STAGES_MAX 6u
#define IO_STAGES_MIN 2u
/*
 * Chunks on the link of all thread blocks together. What waits there for the link waits in the GPU's L2, before
 * everything else that goes through it: with 4 blocks of 6 chunks decoding beside them takes 1.7 times as long, with 3
 * each the rate is the same (docs/performance.md). Gentle: the product of the link's rate and latency, about.
 */
#define IO_LOADS_FULL 12u
#define IO_STORES_FULL 8u
#define IO_GENTLE 4u
#define IO_STORES_MAX 4u
#ifndef IO_SUMMER_WARPS /* fewer where each thread is a fiber (test/exec/sim.h) */
#define IO_SUMMER_WARPS 8u
#endif
#define IO_THREADS (64u + 32u * IO_SUMMER_WARPS)
#define IO_SMALL_THREADS 32u
#define IO_NEAR_STEPS 64u /* a kernel of so many steps has them, and its first plans, in shared memory */
#define IO_NEAR_PLANS 2u
#define IO_QUEUE 512u /* power of two, above the largest number of commands */

/* Of one thread block. */
struct io_exit {
	int32_t rc;
	uint32_t first_open;
	uint64_t begin, end; /* GPU's clock */
	uint32_t over;       /* number of the launch, written last with release */
	uint32_t rsvd;
};

struct io_params {
	struct dev_block *blocks[IO_BLOCKS_MAX];
	uint32_t sq_first, count;
	int64_t clock_ns;
	struct io_exit *exits; /* of this launch, one per block */
	uint32_t *stop;        /* not 0: a kernel before gave up, end at once */
	uint32_t n_stages;
	uint32_t loads, stores; /* chunks (stages) that a thread block has on the link at once, at most; from 1 */
	uint32_t launch; /* what to write to `over` */
	uint32_t near;   /* not 0: steps and plans have room in shared memory */
};

/* The host asks for the GPU's time. */
struct io_clock {
	uint32_t ask, pad[31];
	uint32_t answer, pad1[29];
	uint64_t time;
};

/* What lies behind the stages in dynamic shared memory: commands, spans to retry, bits of bad headers, free buffers. */
PORT_FN uint32_t io_extra_bytes(uint32_t n_cmds, uint32_t n_bounce)
{
	return n_cmds * (uint32_t)(sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8) + (n_bounce + 8u) / 4 * 8;
}

/* And behind those: steps, then plans, which the loop reads at each command. 0: they stay where they are. */
PORT_FN uint32_t io_near_bytes(uint32_t n_steps)
{
	return n_steps <= IO_NEAR_STEPS
	           ? n_steps * (uint32_t)sizeof(struct dev_step) + IO_NEAR_PLANS * (uint32_t)sizeof(struct dev_plan)
	           : 0;
}

#ifdef __cplusplus
extern "C" {
#endif
#if !defined(__CUDACC__)
/* The kernels' handles, for cudaLaunchKernel. */
void io_kernel(struct io_params p);
void io_small_kernel(struct io_params p); /* the small shape: no stages */
void io_clock_kernel(struct io_clock *w);
#endif
#ifdef __cplusplus
}
#endif

#endif
