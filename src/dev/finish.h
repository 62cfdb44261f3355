/*
 * finish.h - what a completion means: data checked, headers matched, failures kept per element, failed commands of
 * several elements taken apart.
 */
#ifndef TUTTI_DEV_FINISH_H
#define TUTTI_DEV_FINISH_H

#include "dev/issue.h"

/* Sums data that the controller moved straight from or to the engine's memory. */
PORT_FN void dev_sum_direct(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	const struct dev_plan *p = s->plan;
	const struct dev_span *sp = &c->span;
	uint64_t t0 = port_now_ns();

	for (uint32_t k = 0; k < sp->n; k++) {
		uint32_t object = (sp->pos + k) / sp->len, entry = dev_span_entry(s, sp, sp->pos + k);
		uint64_t offset = sp->part_bytes ? sp->part_offset : 0;
		uint64_t bytes = sp->part_bytes ? sp->part_bytes : p->geom.object_bytes;
		const uint8_t *mem = (const uint8_t *)(uintptr_t)dev_plan_mem(p, s->kind, object, entry) + offset;
		uint64_t part = 0;

		if (p->op == WIRE_WRITE || (p->flags & DEV_PLAN_VERIFY)) {
			part = dev_sum(mem, bytes, offset);
			dev_count(&b->stats.sum_bytes, bytes);
		}
		*dev_plan_sum(p, s->kind, entry, object) += p->op == WIRE_WRITE ? part : 0 - part;
		dev_count(&b->stats.direct_bytes, bytes);
	}
	dev_count(&b->stats.sum_ns, port_now_ns() - t0);
}

/* Checks headers that were read and keeps their checksums. */
PORT_FN void dev_headers_read(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	const struct dev_plan *p = s->plan;

	for (uint32_t k = 0; k < c->span.n; k++) {
		uint32_t e = c->span.pos + k, entry = c->span.first + e;
		const struct wire_header *h =
		    (const struct wire_header *)(const void *)(dev_bounce_at(b, c) + k * p->geom.header_bytes);
		const uint64_t *sums = geom_header_sums_const(h);
		enum geom_header_state state = geom_header_check(h, geom_objects(&p->geom));

		if (state == GEOM_HEADER_OK)
			state = geom_header_match(h, p->ns_digest, p->keys[entry], p->generation, p->rank);
		if (state != GEOM_HEADER_OK) {
			dev_elem_fail(b, s, &c->span, e, state == GEOM_HEADER_CORRUPT ? -EBADMSG : -ESTALE);
			continue;
		}
		for (uint32_t layer = 0; layer < p->geom.layers; layer++)
			for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
				*dev_plan_sum(p, layer, entry, o) += *sums++ - objsum_seed(p->geom.object_bytes);
	}
}

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

PORT_FN void dev_cmd_done(struct dev_block *b, struct dev_cmd *c, int32_t status)
{
	struct dev_step *s = &b->steps[c->span.step];

	s->pending--;
	if (status) {
		dev_cmd_failed(b, s, c, status);
	} else if (c->kind == DEV_CMD_DATA) {
		if (c->bounce == DEV_NONE)
			dev_sum_direct(b, s, c);
		else if (s->plan->op == WIRE_READ)
			dev_bounce_move(b, s, c, 1);
	} else if (c->kind == DEV_CMD_HEADER_READ) {
		dev_headers_read(b, s, c);
	}
	dev_cmd_give(b, c);
}

/* Layer of a retrieve: data and headers are all in. What does not sum up to zero is damaged. */
PORT_FN void dev_step_verify(struct dev_step *s)
{
	const struct dev_plan *p = s->plan;

	for (uint32_t i = s->lo; i < s->hi; i++) {
		uint64_t diff = 0;

		for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
			diff |= *dev_plan_sum(p, s->kind, i, o);
		if (diff && !p->results[i])
			dev_entry_fail(s, i, -EBADMSG);
	}
}

/* The kernel's side of the CQ: claims an entry, fills it, publishes it, wakes the host. Any block, any time. */
PORT_FN void dev_ring_post(struct wire_ring *r, uint32_t id, int32_t status, uint32_t failed)
{
	uint32_t at = port_add_acqrel32(&r->cq_tail, 1);
	struct wire_ring_cqe *e = &r->cq[at & (r->entries - 1)];

	e->id = id;
	e->status = status;
	e->failed = failed;
	/* Orders the entry, and all results and data before it, before its number (pairs with the acquire in
	 * ring/ring.c). */
	port_store_wake32(&e->seq, at + 1, r->host);
}

/* This block's share of a step is done; the last block to say so posts the completion. */
PORT_FN void dev_step_signal(struct dev_block *b, struct dev_step *s)
{
	struct wire_iocb *io = s->iocb;
	uint32_t id = io->id;

	s->done = 1;
	if (s->failed)
		port_add_acqrel32(&io->failed, s->failed);
	if (s->status)
		port_store_release32((uint32_t *)&io->status, (uint32_t)s->status);
	/* Orders this block's results before the last block's completion entry (acquire and release in one). */
	if (port_add_acqrel32(&io->blocks_left, 0xffffffffu) == 1)
		dev_ring_post(b->ring, id, io->status, io->failed);
}

#endif
