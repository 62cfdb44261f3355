/*
 * mover.cuh - the warps of a thread block that move and sum data, while its first thread runs the loop of dev/io.h.
 *
 *   warp 0   the loop: posts commands' numbers in work[], takes them back from done[]
 *   warp 1   the copier: cuts a command's data into chunks, starts a bulk copy (TMA) into a stage of shared memory for
 *            each, and another one out of it when it has landed
 *   warps 2+ the summers: sum a stage while the copy out of it runs; check and make headers; compare sums. What bulk
 *            copies can't do (addresses or lengths that are no multiples of 16, GPUs before Hopper) they copy themselves
 *
 * Chunks have numbers; chunk k lies in stage k % n_stages. They are begun, copied out, retired and landed in order: a
 * chunk is retired, its stage free and its part added to the object's sum, when the copy out has read the stage and
 * the summers have left it; it has landed when the copy out has completed. A command is given back with its last. Two mbarriers a stage: `full` (data is there) and `empty` (all summers are
 * through), each flips once a chunk.
 */
#ifndef TUTTI_EXEC_MOVER_CUH
#define TUTTI_EXEC_MOVER_CUH

#include "dev/io.h"
#include "exec/io_kernel.h"

#define MOVER_SUMMERS (32u * IO_SUMMER_WARPS)
#define MOVER_READING 1u /* copies out that may still read their stage when older stages are taken again */
#define MOVER_LANDING 4u /* copies out that are not waited for */
#define MOVER_ENDS 16u   /* power of two, above MOVER_LANDING: commands whose last chunk has not landed */

enum mover_op { MOVER_STOP = 1, MOVER_SUM, MOVER_COPY, MOVER_TAKE_HEADERS, MOVER_MAKE_HEADERS, MOVER_COMPARE };

struct mover_chunk {
	uint8_t op;     /* enum mover_op */
	uint8_t out;    /* copy the stage to dst */
	uint8_t last;   /* of the command */
	uint8_t negate; /* the sum is taken away */
	uint8_t store;  /* the copy out goes to the medium, over the link */
	uint32_t bytes;
	uint32_t what;  /* number of the command */
	uint32_t first; /* headers: number of the first in the command; how many: n */
	uint32_t n;
	uint64_t offset; /* of the bytes in the object */
	const uint8_t *src;
	uint8_t *dst;
	uint64_t *sum; /* NULL: none */
	const struct dev_step *step;
};

struct dev_mover {
	uint32_t work_tail, work_head, done_tail, done_head;
	uint32_t stop;
	uint32_t n_stages;
	uint32_t loads, stores; /* as io_params has them */
	/* Comparisons of the step in front: the loop asks, the copier takes, and says when the summers have compared. */
	uint32_t asking; /* the loop's own: one was asked for, and its answer not seen */
	uint32_t asked, taken, compared;
	uint32_t bad; /* entries whose sums differ, of the step that was compared */
	uint8_t *stages;
	uint32_t *header_bad; /* [command * 2]: bits of its headers that are none */
	uint64_t moved_bytes;
	unsigned long long part[IO_STAGES_MAX];
	uint64_t full[IO_STAGES_MAX], empty[IO_STAGES_MAX];
	struct mover_chunk chunk[IO_STAGES_MAX];
	uint32_t end_chunk[MOVER_ENDS], end_what[MOVER_ENDS]; /* see mover_land */
	uint32_t work[IO_QUEUE], done[IO_QUEUE];
};

#include "exec/mover_ptx.cuh"

/* ---- the loop's side (dev/move.h) ---- */

__device__ int mover_start(struct dev_block *b, struct dev_step *s, struct dev_cmd *c)
{
	struct dev_mover *m = b->mover;

	if (c->work == DEV_WORK_SUM && !dev_sums_direct(s->plan))
		return 1;
	m->work[m->work_tail & (IO_QUEUE - 1)] = (uint32_t)(c - b->cmds);
	mover_store(&m->work_tail, m->work_tail + 1);
	return 0;
}

__device__ int mover_ready(const struct dev_block *b)
{
	const struct dev_mover *m = b->mover;

	return mover_load(&m->done_tail) != m->done_head || (m->asking && mover_load(&m->compared) == m->asked);
}

/* Headers that are none: said by the summers as bits, told here, where failures are kept. */
static __device__ void mover_headers_failed(struct dev_block *b, struct dev_cmd *c, uint32_t number)
{
	struct dev_step *s = &b->steps[c->span.step];

	for (uint32_t k = 0; k < c->span.n; k++) {
		const struct wire_header *h = (const struct wire_header *)(const void *)dev_header_at(b, s, c, k);

		if (b->mover->header_bad[2 * number + k / 32] & 1u << k % 32)
			dev_elem_fail(b, s, &c->span, c->span.pos + k,
			              geom_header_check(h, geom_objects(&s->plan->geom)) == GEOM_HEADER_CORRUPT
			                  ? -EBADMSG
			                  : -ESTALE);
	}
	b->mover->header_bad[2 * number] = b->mover->header_bad[2 * number + 1] = 0;
}

__device__ struct dev_cmd *mover_next(struct dev_block *b)
{
	struct dev_mover *m = b->mover;

	struct dev_cmd *c;
	uint32_t number;

	if (mover_load(&m->done_tail) == m->done_head)
		return NULL;
	number = m->done[m->done_head++ & (IO_QUEUE - 1)];
	c = &b->cmds[number];
	if (c->work == DEV_WORK_HEADERS_IN && (m->header_bad[2 * number] | m->header_bad[2 * number + 1]))
		mover_headers_failed(b, c, number);
	return c;
}

__device__ int mover_verify(struct dev_block *b, struct dev_step *s)
{
	struct dev_mover *m = b->mover;

	if (!s->verifying) {
		s->verifying = 1;
		m->bad = 0;
		m->asking = 1;
		mover_store(&m->asked, m->asked + 1);
		return 0;
	}
	if (mover_load(&m->compared) != m->asked)
		return 0;
	m->asking = 0;
	if (m->bad)
		dev_step_verify(s); /* rare: finds out which */
	return 1;
}

#endif
