/* cuda_runtime.h - the part of CUDA's that the I/O kernels use, for a CPU: see exec/sim.h. */
#ifndef TUTTI_TEST_EXEC_SIM_CUDA_RUNTIME_H
#define TUTTI_TEST_EXEC_SIM_CUDA_RUNTIME_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define PORT_GPU 1

#include "exec/sim.h"

#define __device__
#define __global__
#define __host__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#if defined(__SANITIZE_THREAD__)
#define __shared__ static
#else
#define __shared__ static _Thread_local /* a block is one thread of the system's */
#endif
#define IO_DYNAMIC(name) uint8_t *name = sim_dynamic()

#define threadIdx sim_thread_index()
#define blockIdx sim_block_index()
#define blockDim sim_block_size()
#define gridDim sim_grid_size()

#define __nanosleep(ns) sim_yield()
#define __syncthreads() sim_meet(0, sim_block_size().x)
#define __syncwarp() sim_meet_warp()
#define __threadfence() sim_yield()
#define __threadfence_system() sim_yield()
#define __ldcg(p) (*(p))
#define atomicAdd(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
#define atomicOr(p, v) __atomic_fetch_or(p, v, __ATOMIC_RELAXED)
#define atomicExch(p, v) __atomic_exchange_n(p, v, __ATOMIC_RELAXED)
#define __shfl_xor_sync(mask, v, by) sim_shuffle(v, (uint32_t)(by), 0)
#define __shfl_down_sync(mask, v, by) sim_shuffle(v, (uint32_t)(by), 1)

typedef struct {
	unsigned long long x, y;
} __attribute__((aligned(16))) ulonglong2;

#endif
