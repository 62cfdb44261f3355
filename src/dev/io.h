/*
 * io.h - the I/O kernel's body: serves a list of IOCBs with one thread block's queue pairs, in order.
 *
 * The loop makes commands while there is room, rings, takes completions, signals the steps that are done, and waits
 * when nothing moves: a short spin, then (CPU threads only) parking. Commands of later layers are made while earlier
 * ones are in flight; steps are signalled in order, so no layer is signalled before its headers were checked. Two
 * barriers: data of a store waits for the wiping of old headers, new headers wait for everything before them.
 */
#ifndef TUTTI_DEV_IO_H
#define TUTTI_DEV_IO_H

#include "dev/finish.h"

#if defined(PORT_GPU)
#define DEV_ISSUE_BATCH 4u /* making one takes long there, and others wait to be rung for or taken */
#else
#define DEV_ISSUE_BATCH 32u
#endif
#define DEV_CLOCK_TURNS 16u

/* First entry of block `index`'s share, moved to the start of a set so that runs are not cut. */
PORT_FN uint32_t dev_share(const struct dev_step *s, uint32_t n, uint32_t index, uint32_t n_blocks)
{
	uint32_t i = (uint32_t)((uint64_t)n * index / n_blocks), most;

	if (!i || i == n || !dev_step_follows(s, i - 1))
		return i;
	if (s->kind != WIRE_STEP_EXPLICIT && !geom_place(&s->plan->geom, s->plan->entries[i].slot).index)
		return i;
	most = s->kind == WIRE_STEP_EXPLICIT ? n : dev_step_neighbours(s, i);
	for (uint32_t k = 0; k < most && i < n && dev_step_follows(s, i - 1); k++)
		i++;
	return i;
}

/* Step i of the kernel's; a GPU loads many at once. */
PORT_FN void dev_step_load(const struct dev_block *b, uint32_t sq_first, uint32_t i)
{
	struct dev_step *s = &b->steps[i];
	uint32_t n;

	s->id = b->ring->sq[b->stream][(sq_first + i) & (b->ring->entries - 1)];
	s->iocb = &b->ring->iocb[s->id];
	s->plan = (struct dev_plan *)(uintptr_t)s->iocb->plan;
	s->deadline_ns = s->iocb->deadline_ns;
	s->kind = s->iocb->step;
	n = s->kind == WIRE_STEP_EXPLICIT ? s->iocb->n : s->plan->n;
	s->lo = dev_share(s, n, b->index, b->n_blocks);
	s->hi = b->index + 1 == b->n_blocks ? n : dev_share(s, n, b->index + 1, b->n_blocks);
	s->next = s->lo;
	s->pending = s->failed = 0;
	s->status = 0;
	s->issued = s->done = s->verifying = 0;
}

PORT_FN void dev_steps_begin(struct dev_block *b, uint32_t count)
{
	b->n_steps = count;
	b->issuing = b->first_open = 0;
	b->run.n = 0;
	b->retry_head = b->n_retry = 0;
}

PORT_FN void dev_steps_load(struct dev_block *b, uint32_t sq_first, uint32_t count)
{
	dev_steps_begin(b, count);
	for (uint32_t i = 0; i < count; i++)
		dev_step_load(b, sq_first, i);
}

/* 1 if the step that is to make commands next must wait for steps before it. */
PORT_FN int dev_barrier(const struct dev_block *b)
{
	if (b->first_open == b->issuing)
		return 0;
	return b->steps[b->issuing].kind == WIRE_STEP_COMMIT || b->steps[b->issuing - 1].kind == WIRE_STEP_INVALIDATE;
}

/* Makes up to a batch of commands. Returns 1 if anything moved. */
PORT_FN int dev_fill(struct dev_block *b)
{
	uint32_t made = 0;

	while (made < DEV_ISSUE_BATCH) {
		struct dev_step *s;

		if (b->n_retry) {
			struct dev_span *r = &b->retry[b->retry_head];

			if (!dev_issue(b, r, 1))
				break;
			if (!r->n) {
				b->steps[r->step].pending--;
				b->retry_head = (b->retry_head + 1) % b->n_cmds;
				b->n_retry--;
			}
			made++;
			continue;
		}
		if (b->issuing == b->n_steps || dev_barrier(b))
			break;
		s = &b->steps[b->issuing];
		if (!b->run.n && !dev_run_next(s, b->issuing, &b->run)) {
			s->issued = 1;
			b->issuing++;
			made++;
			continue;
		}
		if (!dev_issue(b, &b->run, 0))
			break;
		made++;
	}
	for (uint32_t q = 0; b->rung; q++)
		if (b->rung & 1u << q) {
			b->rung &= ~(1u << q);
			dev_qp_ring(&b->qp[q]);
		}
	return made != 0;
}

/* Takes all completions that are there. Returns how many. An unknown command id is a controller gone wrong: -EPROTO. */
PORT_FN int dev_reap(struct dev_block *b)
{
	int n = 0;

	for (uint32_t q = 0; q < b->n_qps; q++) {
		struct nvme_cqe e;

		while (dev_qp_poll(&b->qp[q], &e)) {
			uint16_t cid = NVME_CID(e.cid_status);

			if (cid >= b->n_cmds || b->cmds[cid].busy != DEV_CMD_THEIRS)
				return -EPROTO;
			dev_cmd_done(b, &b->cmds[cid], (int32_t)NVME_STATUS(e.cid_status),
			             b->in_place ? e.dw0 | (uint64_t)e.dw1 << 32 : 0);
			n++;
		}
		dev_qp_release(&b->qp[q]);
	}
	return n;
}

/* Does the step compare sums before it is done? */
PORT_FN int dev_step_verifies(const struct dev_step *s)
{
	return dev_step_is_layer(s) && s->plan->op == WIRE_READ && (s->plan->flags & DEV_PLAN_VERIFY);
}

/* Signals the steps at the front that are done. Returns 1 if one was. */
PORT_FN int dev_advance(struct dev_block *b)
{
	int moved = 0;

	while (b->first_open < b->n_steps) {
		struct dev_step *s = &b->steps[b->first_open];

		if (!s->issued || s->pending)
			break;
		if (dev_step_verifies(s) && !dev_verify(b, s))
			break;
		dev_step_signal(b, s);
		b->first_open++;
		moved = 1;
	}
	return moved;
}

PORT_FN int dev_cq_ready(const struct dev_block *b)
{
	for (uint32_t q = 0; q < b->n_qps; q++)
		if (NVME_PHASE(port_load_acquire32(&b->qp[q].cq[b->qp[q].head].cid_status)) == b->qp[q].phase)
			return 1;
	return 0;
}

/* Waits for a completion: spins, then parks. 0, or -ETIMEDOUT. */
PORT_FN int dev_wait(struct dev_block *b, uint64_t deadline_ns)
{
	uint64_t start = dev_now_ns(b);

	for (;;) {
		uint64_t now;

		for (int i = 0; i < 16; i++) {
			if (dev_work_ready(b) || dev_cq_ready(b))
				return 0;
			port_pause();
		}
		now = dev_now_ns(b);
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		if (b->abort && port_load_acquire32(b->abort))
			return -ECANCELED;
#if !defined(PORT_GPU)
		if (b->parker && now - start >= b->spin_ns) {
			port_park_announce(b->parker);
			/* Orders the announcement before this look (pairs with the controller's store, then its look at
			 * asleep). */
			if (dev_cq_ready(b)) {
				port_park_cancel(b->parker);
				return 0;
			}
			port_park_wait(b->parker, deadline_ns);
		}
#endif
	}
}

/*
 * The kernel's body for one thread block: serves the steps that were loaded. No command is made behind the deadline,
 * however late the kernel started and however busy it is: a lease ends soon after it, and then the slots may be
 * another's. 0: all steps were signalled. -ETIMEDOUT, -ECANCELED (abort word), -EPROTO: steps from b->first_open on
 * were not; commands may still be in flight, so the caller resets the queue pairs, then calls dev_io_fail_rest and
 * dev_block_reset. Nothing is reported as failed before that.
 */
PORT_FN int dev_io_serve(struct dev_block *b)
{
	uint64_t deadline_ns = ~0ull;
	uint32_t turns = 0; /* until the clock is looked at again */

	for (uint32_t i = 0; i < b->n_steps; i++)
		if (b->steps[i].deadline_ns < deadline_ns)
			deadline_ns = b->steps[i].deadline_ns;
	while (b->first_open < b->n_steps) {
		int moved, n;

		if (!turns--) {
			if (dev_now_ns(b) >= deadline_ns)
				return -ETIMEDOUT;
			turns = DEV_CLOCK_TURNS;
		}
		moved = dev_work_reap(b);
		moved |= dev_fill(b);
		n = dev_reap(b);
		if (n < 0)
			return n;
		if (dev_advance(b) || moved || n)
			continue;
		n = dev_wait(b, deadline_ns);
		if (n)
			return n;
		turns = 0; /* time has passed */
	}
	return 0;
}

/* For IOCBs sq[sq_first .. sq_first + count), count <= DEV_STEPS_MAX; b->index and b->n_blocks are set. */
PORT_FN int dev_io_run(struct dev_block *b, uint32_t sq_first, uint32_t count)
{
	dev_steps_load(b, sq_first, count);
	return dev_io_serve(b);
}

/* After the queue pairs were reset: every command id and bounce buffer is free again. */
PORT_FN void dev_block_reset(struct dev_block *b)
{
	b->free_cmd = b->free_bounce = DEV_NONE;
	b->in_flight = 0;
	b->n_retry = 0;
	b->run.n = 0;
	b->rung = 0;
	for (uint32_t i = b->n_cmds; i-- > 0;) {
		b->cmds[i].busy = 0;
		b->cmds[i].next_free = b->free_cmd;
		b->free_cmd = (uint16_t)i;
	}
	for (uint32_t i = b->n_bounce; i-- > 0;) {
		b->bounce_next[i] = b->free_bounce;
		b->free_bounce = (uint16_t)i;
	}
}

PORT_FN void dev_span_fail(struct dev_step *s, const struct dev_span *span, int32_t status)
{
	for (uint32_t e = span->pos; e < span->pos + span->n; e++)
		dev_entry_fail(s, dev_span_entry(s, span, e), status);
}

/*
 * Of a step that dev_io_serve left: entries that a command is out for, or waits to be tried again, or was not made yet,
 * fail. All others are whole, but for what dev_step_verify finds.
 */
PORT_FN void dev_step_fail_open(struct dev_block *b, uint32_t index, int32_t status)
{
	struct dev_step *s = &b->steps[index];

	for (uint32_t i = 0; i < b->n_cmds; i++)
		if (b->cmds[i].busy && b->cmds[i].span.step == index)
			dev_span_fail(s, &b->cmds[i].span, status);
	for (uint32_t i = 0; i < b->n_retry; i++) {
		const struct dev_span *r = &b->retry[(b->retry_head + i) % b->n_cmds];

		if (r->step == index)
			dev_span_fail(s, r, status);
	}
	if (b->run.n && b->run.step == index)
		dev_span_fail(s, &b->run, status);
	for (uint32_t i = s->issued ? s->hi : s->next; i < s->hi; i++)
		if (dev_step_takes(s, i))
			dev_entry_fail(s, i, status);
}

/*
 * Signals the steps that dev_io_serve left, with `status` for what it left of them; everything of this block's share
 * that has no result yet, if that is -ENOTRECOVERABLE. Then dev_block_reset.
 */
PORT_FN void dev_io_fail_rest(struct dev_block *b, int32_t status)
{
	for (; b->first_open < b->n_steps; b->first_open++) {
		struct dev_step *s = &b->steps[b->first_open];

		if (status != -ENOTRECOVERABLE) {
			dev_step_fail_open(b, b->first_open, status);
			if (dev_step_verifies(s))
				dev_step_verify(s);
		}
		for (uint32_t i = s->lo; i < s->hi && status == -ENOTRECOVERABLE; i++)
			dev_entry_fail(s, i, status);
		s->status = status; /* also of a block whose share is empty */
		dev_step_signal(b, s);
	}
}

#endif
