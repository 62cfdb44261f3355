/* sim_small.c - the I/O kernel's small shape, compiled for exec/sim.h. */
#include "exec/sim/cuda_runtime.h"

#define io_small_kernel sim_io_small_kernel
#include "exec/io_small.cu"
