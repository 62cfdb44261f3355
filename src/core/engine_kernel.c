/*
 * engine_kernel.c - what runs in the executor's streams, and how blocks are taken out of a kernel that gave up: their
 * queue pairs are reset before any of their failures is reported, because until then the controller may move data.
 */
#include "core/engine_int.h"

#include <errno.h>

#include "base/err.h"
#include "dev/io.h"

/* Was the controller reset for somebody else's sake since the last kernel? */
static int block_lost(struct engine *e, struct engine_block *b)
{
	for (uint32_t i = 0; i < b->dev.n_qps; i++)
		if (ctrl_qp_lost(e->o.ctrl_ops, e->o.ctrl, &b->dev.qp[i]))
			return 1;
	return 0;
}

void engine_kernel(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count)
{
	struct engine_stream *s = arg;
	struct engine_block *b = s->blocks[block];
	struct engine *e = s->engine;
	int rc;

	b->dev.index = block;
	b->dev.n_blocks = n_blocks;
	b->dev.map = map_view(&e->map);
	if (block_lost(e, b) && !engine_block_recover(e, b))
		dev_block_reset(&b->dev);
	if (port_load_acquire32(&e->dead)) {
		dev_steps_load(&b->dev, sq_first, count);
		dev_io_fail_rest(&b->dev, -ENOTRECOVERABLE);
		return;
	}
	rc = dev_io_run(&b->dev, sq_first, count);
	if (rc) {
		if (engine_block_recover(e, b))
			rc = -ENOTRECOVERABLE;
		dev_io_fail_rest(&b->dev, rc);
		if (rc != -ENOTRECOVERABLE)
			dev_block_reset(&b->dev);
	}
}

/* ---- kernels that another processor runs ---- */

/* Entries of a plan's step that have no result get rc, if `all`. Returns how many have failed. */
static uint32_t plan_fail(struct engine *e, uint32_t stream, struct dev_plan *p, int32_t rc, int all)
{
	uint32_t failed = 0;

	for (uint32_t i = 0; i < p->n; i++) {
		if (all && !p->results_host[i])
			__atomic_store_n(&p->results_host[i], rc, __ATOMIC_RELAXED);
		failed += p->results_host[i] != 0;
	}
	if (failed)
		dev_plan_fail(p, rc);
	if (all && rc != -ENOTRECOVERABLE) /* the plan's later steps leave these entries alone */
		e->exec_ops->copy_in(e->exec, stream, p->results, p->results_host, p->n * sizeof(*p->results));
	return failed;
}

static uint32_t ioctx_fail(struct wire_iocb *io, int32_t rc, int all)
{
	struct wire_ioctx *c = (struct wire_ioctx *)(uintptr_t)io->ioctx;
	uint32_t failed = 0;

	for (uint32_t i = 0; i < io->n; i++) {
		if (all && !c[i].status)
			c[i].status = rc;
		failed += c[i].status != 0;
	}
	return failed;
}

/*
 * IOCBs that their kernel left, from number `from` on. all: what has no result yet fails; else the kernel has said what
 * failed, and the rest is whole.
 */
static void steps_fail(struct engine_stream *s, uint32_t sq_first, uint32_t from, uint32_t count, int32_t rc, int all)
{
	struct engine *e = s->engine;
	struct wire_ring *r = ring_shared(e->ring);

	for (uint32_t i = from; i < count; i++) {
		uint32_t id = r->sq[s->index][(sq_first + i) & (r->entries - 1)], failed;
		struct wire_iocb *io = &r->iocb[id];

		failed = io->step == WIRE_STEP_EXPLICIT
		             ? ioctx_fail(io, rc, all)
		             : plan_fail(e, s->index, (struct dev_plan *)(uintptr_t)io->ioctx, rc, all);
		if (rc != -ENOTRECOVERABLE)
			e->exec_ops->copy_in(e->exec, s->index, &r->state[id], NULL, sizeof(r->state[id]));
		ring_complete(e->ring, id, rc, failed);
	}
}

/*
 * A kernel ended and some of its blocks gave up. Those that never began (-EINTR) did so because of one before, whose
 * reason is the better one.
 */
void engine_kernel_gave_up(void *arg, uint32_t sq_first, uint32_t count)
{
	struct engine_stream *s = arg;
	uint32_t from = count;
	int32_t rc = 0;
	int all = 0;

	for (uint32_t i = 0; i < s->engine->o.blocks; i++) { /* those that had no part have 0 */
		struct engine_block *b = s->blocks[i];
		int32_t exit_rc = b->dev.exit_rc;

		if (!exit_rc)
			continue;
		from = b->dev.first_open < from ? b->dev.first_open : from;
		all |= exit_rc == -EINTR;
		if (exit_rc != -EINTR && engine_block_recover(s->engine, b)) {
			rc = -ENOTRECOVERABLE;
			all = 1;
		} else if (!rc || rc == -ECANCELED) {
			rc = exit_rc == -EINTR ? -ECANCELED : exit_rc;
		}
		if (exit_rc != -EINTR && rc != -ENOTRECOVERABLE)
			dev_block_reset(&b->dev);
		b->dev.exit_rc = 0;
	}
	steps_fail(s, sq_first, from, count, rc, all);
}

/* What the kernel's stream may still wait for comes too late: it is to start, and to find its deadline passed. */
void engine_kernel_late(void *arg, uint32_t sq_first, uint32_t count)
{
	struct engine_stream *s = arg;
	struct wire_ring *r = ring_shared(s->engine->ring);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t id = r->sq[s->index][(sq_first + i) & (r->entries - 1)];

		if (r->iocb[id].event)
			ring_let(s->engine->ring, id);
	}
}

/* The watchdog: the kernel is not over. What it has signalled stays; the rest will never be. */
void engine_kernel_lost(void *arg, uint32_t sq_first, uint32_t count)
{
	struct engine_stream *s = arg;

	port_store_release32(&s->engine->dead, 1);
	log_warn("lane: an I/O kernel did not end by its deadline; the lane is dead, its memory stays");
	steps_fail(s, sq_first, 0, count, -ENOTRECOVERABLE, 1);
}

void engine_controller_awake(struct engine *e, int by)
{
	if (e->exec_ops->remote && e->o.ctrl_ops->awake)
		e->o.ctrl_ops->awake(e->o.ctrl, by);
}

void engine_kernel_ended(void *arg)
{
	struct engine_stream *s = arg;

	engine_controller_awake(s->engine, -1);
}
