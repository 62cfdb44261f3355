/* sim_large.c - the I/O kernel with movers, compiled for exec/sim.h. */
#define DEV_MOVERS 1

#include "exec/sim/cuda_runtime.h"

#include "dev/io.h"

/* Between the loop and its movers: the time that a layer's comparison takes. */
#define mover_verify mover_verify_asked
int mover_verify_asked(struct dev_block *b, struct dev_step *s);
#include "exec/mover.cuh"
#undef mover_verify

int mover_verify(struct dev_block *b, struct dev_step *s)
{
	int asks = !s->verifying, done;

	if (asks)
		sim_asked();
	done = mover_verify_asked(b, s);
	if (done)
		sim_answered();
	return done;
}

#define io_kernel sim_io_kernel
#include "exec/io_kernel.cu"
