/*
 * sim.h - a thread block of the I/O kernels on a CPU: the very code that nvcc compiles (src/exec/io_kernel.cu and
 * io_small.cu, compiled by the C compiler with sim/cuda_runtime.h and sim/exec/mover_ptx.cuh in CUDA's place), each of
 * its threads a fiber, switched at every access to what threads share.
 *
 * Who runs next is drawn from a seed, and so is when a bulk copy happens: it reads its source and writes its
 * destination at any time between its issue and the wait that says it is over, and what it will overwrite is spoiled at
 * its issue. So an order that the code does not enforce is an order that some seed has. What it does not show: weak
 * ordering of memory (sim_threads.c is for that, as far as ThreadSanitizer sees it), the proxies' fences, speed. Blocks
 * of one kernel run one after the other.
 */
#ifndef TUTTI_TEST_EXEC_SIM_H
#define TUTTI_TEST_EXEC_SIM_H

#include <stdint.h>

#include "exec/io_kernel.h"

#define SIM_THREADS_MAX IO_THREADS

struct sim_opts {
	uint64_t seed;
	uint32_t stages, loads, stores; /* as io_params has them; 0: drawn from the seed */
	int small;
};

/* Of all kernels since sim_use. */
struct sim_counts {
	uint64_t kernels, switches;
	uint64_t copies_in, copies_out;
	uint64_t verified;          /* layers whose sums the summers compared */
	uint32_t most_in, most_out; /* bulk copies under way at once */
	uint32_t most_behind;       /* copies in between a layer's question whether its sums are right and the answer */
};

/* For all threads' kernels from now on. Not while one runs. */
void sim_use(const struct sim_opts *o);
void sim_counted(struct sim_counts *out);
/* Runs a kernel of n blocks to its end on this thread, and leaves exit_rc and first_open in them, as a GPU's would. */
void sim_kernel(struct dev_block *const *blocks, uint32_t n, uint32_t sq_first, uint32_t count, uint32_t *stop);

/* ---- for the code in CUDA's place: called by a kernel's thread ---- */

struct sim_index {
	uint32_t x;
};

struct sim_index sim_thread_index(void), sim_block_index(void), sim_block_size(void), sim_grid_size(void);
uint8_t *sim_dynamic(void);
/* Another thread's turn, perhaps. */
void sim_yield(void);
/* Until n threads are in the meeting of this number; of the warp's 32. */
void sim_meet(uint32_t number, uint32_t n);
void sim_meet_warp(void);
/* What the lane `by` away (its number: own xor by; or own plus by) gave. */
uint64_t sim_shuffle(uint64_t v, uint32_t by, int down);
/* mbarriers in their 64 bits. */
void sim_bar_init(uint64_t *bar, uint32_t n);
void sim_bar_arrive(uint64_t *bar, uint32_t expect_bytes);
int sim_bar_passed(const uint64_t *bar, uint32_t parity);
void sim_bar_wait(const uint64_t *bar, uint32_t parity);
/* Bulk copies. */
void sim_copy_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar);
void sim_copy_out(void *dst, const void *stage, uint32_t bytes);
void sim_copy_commit(void);
/* Until all but the newest n groups have been read (or have landed). */
void sim_copy_wait(uint32_t n, int landed);
/* A command is given back: no copy into this memory may be under way. */
void sim_landed(const void *p, uint64_t bytes);
/* A layer asks for its comparison; has its answer. */
void sim_asked(void);
void sim_answered(void);

/* The two kernels, compiled for this (sim_large.c, sim_small.c). */
void sim_io_kernel(const struct io_params p);
void sim_io_small_kernel(const struct io_params p);

#endif
