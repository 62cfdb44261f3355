/* sim_large.c - the I/O kernel with movers, compiled for exec/sim.h. */
#define DEV_MOVERS 1

#include "exec/sim/cuda_runtime.h"

#include "dev/io.h"

/* Between the loop and its movers: what they give back, and the time that a layer's comparison takes. */
#define mover_verify mover_verify_asked
#define mover_next mover_next_given
int mover_verify_asked(struct dev_block *b, struct dev_step *s);
struct dev_cmd *mover_next_given(struct dev_block *b);
#include "exec/mover.cuh"
#undef mover_verify
#undef mover_next

struct dev_cmd *mover_next(struct dev_block *b)
{
	struct dev_cmd *c = mover_next_given(b);
	const struct dev_step *s = c ? &b->steps[c->span.step] : NULL;

	for (uint32_t k = 0; c && k < c->span.n; k++) {
		if (c->work == DEV_WORK_HEADERS_OUT) {
			sim_landed(dev_header_at(b, s, c, k), s->plan->geom.header_bytes);
		} else if (c->work == DEV_WORK_IN || c->work == DEV_WORK_OUT) {
			struct dev_piece at = dev_piece_at(b, s, c, k);

			sim_landed(c->work == DEV_WORK_IN ? at.mem : at.buf, at.bytes);
		}
	}
	return c;
}

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
