/*
 * finish.h - what a completion means: data checked, headers matched, failures kept per element, failed commands of
 * several elements taken apart.
 */
#ifndef TUTTI_DEV_FINISH_H
#define TUTTI_DEV_FINISH_H

#include "dev/issue.h"

/* A command failed. Several elements: each is tried alone, once. One element: that is final. */
PORT_FN void dev_cmd_failed(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c, int32_t status)
{
	if (c->span.n == 1) {
		dev_elem_fail(b, s, &c->span, c->span.pos, status);
		return;
	}
	b->retry[(b->retry_head + b->n_retry) % b->n_cmds] = c->span;
	b->n_retry++;
	s->pending++; /* until all of the span was issued again */
	dev_count(&b->stats.retries, 1);
}

/* The command has ended, and so has all work on its data. */
PORT_FN void dev_cmd_end(struct dev_block *b, struct dev_cmd *c)
{
	b->steps[c->span.step].pending--;
	dev_cmd_give(b, c);
}

/* The controller's answer. medium: 0, or where it says that the data lies. */
PORT_FN void dev_cmd_done(struct dev_block *b, struct dev_cmd *c, int32_t status, uint64_t medium)
{
	struct dev_step *s = &b->steps[c->span.step];
	int direct = c->bounce == DEV_NONE && !c->medium;

	c->busy = DEV_CMD_OURS;
	c->work = DEV_WORK_NONE;
	c->medium = medium;
	if (status)
		dev_cmd_failed(b, s, c, status);
	else if (c->kind == DEV_CMD_HEADER_READ)
		c->work = DEV_WORK_HEADERS_IN;
	else if (c->kind == DEV_CMD_DATA && direct)
		c->work = DEV_WORK_SUM;
	else if (!direct && c->sqe.opcode == NVME_CMD_READ)
		c->work = DEV_WORK_IN;
	if (!c->work || dev_work_start(b, s, c))
		dev_cmd_end(b, c);
}

/* Takes what the movers have finished: a write is posted, anything else has ended. Returns how many. */
PORT_FN int dev_work_reap(struct dev_block *b)
{
	struct dev_cmd *c;
	int n = 0;

	while ((c = dev_work_next(b)) != NULL) {
		if (c->work == DEV_WORK_OUT || c->work == DEV_WORK_HEADERS_OUT)
			dev_cmd_post(b, c);
		else
			dev_cmd_end(b, c);
		n++;
	}
	return n;
}

/* The kernel's side of the CQ: claims an entry, fills it, publishes it, wakes the host. Any block, any time. */
PORT_FN void dev_ring_post(struct wire_ring *r, uint32_t id, int32_t status, uint32_t failed)
{
	uint32_t at = port_add_acqrel32(r->cq_tail, 1);
	struct wire_ring_cqe *e = &r->cq[at & (r->entries - 1)];

	e->id = id;
	e->status = status;
	e->failed = failed;
	/* Orders the entry, and all results and data before it, before its number (pairs with the acquire in
	 * ring/ring.c). */
	port_store_wake32(&e->seq, at + 1, r->host);
}

/* This block's share of a step is done; the last block to say so raises the flag and posts the completion. */
PORT_FN void dev_step_signal(struct dev_block *b, struct dev_step *s)
{
	struct wire_iocb_state *st = &b->ring->state[s->id];
	uint32_t failed;
	int32_t status;

	s->done = 1;
	if (s->failed)
		port_add_acqrel32(&st->failed, s->failed);
	if (s->status)
		port_store_release32((uint32_t *)&st->status, (uint32_t)s->status);
	/* Orders this block's results before the last block's completion entry (acquire and release in one). */
	if (port_add_acqrel32(&st->blocks_done, 1) + 1 != b->n_blocks)
		return;
	failed = port_load_acquire32(&st->failed);
	status = (int32_t)port_load_acquire32((uint32_t *)&st->status);
	st->failed = 0;
	st->status = 0;
	st->blocks_done = 0; /* for the next use; the completion orders it */
	/* Orders the data before the flag (pairs with the wait of a stream, or of whoever looks). */
	port_store_release32((uint32_t *)(uintptr_t)s->iocb->flag, s->iocb->flag_value);
	dev_ring_post(b->ring, s->id, status, failed);
}

#endif
