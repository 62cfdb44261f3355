/*
 * issue.h - makes one NVMe command from the front of a span: as many elements as are contiguous on disk, fit MDTS, and
 * fit the data pointer's list; or a part of one element that is larger than that.
 *
 * This is the only place where commands that move data are built, and so the only place where addresses on the medium
 * are checked against the pool's range.
 */
#ifndef TUTTI_DEV_ISSUE_H
#define TUTTI_DEV_ISSUE_H

#include <errno.h>

#include "dev/run.h"

PORT_FN void dev_copy(void *dst, const void *src, uint64_t bytes) { __builtin_memcpy(dst, src, bytes); }
PORT_FN void dev_zero(void *dst, uint64_t bytes) { __builtin_memset(dst, 0, bytes); }

/* The part of the checksum that the bytes contribute. */
PORT_FN uint64_t dev_sum(const void *data, uint64_t bytes, uint64_t offset)
{
#if defined(__CUDA_ARCH__)
	return objsum_part_plain(data, bytes, offset);
#else
	return objsum_part(data, bytes, offset);
#endif
}

PORT_FN uint64_t dev_copy_sum(void *dst, const void *src, uint64_t bytes, uint64_t offset)
{
#if defined(__CUDA_ARCH__)
	dev_copy(dst, src, bytes);
	return objsum_part_plain(src, bytes, offset);
#else
	return objsum_copy_part(dst, src, bytes, offset);
#endif
}

PORT_FN uint8_t *dev_bounce_at(const struct dev_block *b, const struct dev_cmd *c)
{
	return b->bounce + c->bounce * b->bounce_bytes;
}

PORT_FN struct dev_cmd *dev_cmd_take(struct dev_block *b, int bounce)
{
	struct dev_cmd *c;

	if (b->free_cmd == DEV_NONE || (bounce && b->free_bounce == DEV_NONE))
		return NULL;
	c = &b->cmds[b->free_cmd];
	b->free_cmd = c->next_free;
	c->bounce = DEV_NONE;
	if (bounce) {
		c->bounce = b->free_bounce;
		b->free_bounce = b->bounce_next[c->bounce];
	}
	c->busy = 1;
	b->in_flight++;
	return c;
}

PORT_FN void dev_cmd_give(struct dev_block *b, struct dev_cmd *c)
{
	if (c->bounce != DEV_NONE) {
		b->bounce_next[c->bounce] = b->free_bounce;
		b->free_bounce = c->bounce;
	}
	c->busy = 0;
	c->next_free = b->free_cmd;
	b->free_cmd = (uint16_t)(c - b->cmds);
	b->in_flight--;
}

/* Entry that element e of a span belongs to. */
PORT_FN uint32_t dev_span_entry(const struct dev_step *s, const struct dev_span *span, uint32_t e)
{
	return span->first + (dev_step_is_layer(s) ? e % span->len : e);
}

/* Entry (or IOCTX) i failed; it keeps its first reason. */
PORT_FN void dev_entry_fail(struct dev_step *s, uint32_t i, int32_t status)
{
	int32_t *result = s->kind == WIRE_STEP_EXPLICIT ? &dev_step_ioctx(s)[i].status : &s->plan->results[i];

	if (*result == 0) {
		*result = status;
		s->failed++;
	}
	if (s->status == 0)
		s->status = status;
	/* Other blocks may do the same: any of their reasons will do. Ordered before the step's completion. */
	if (s->plan)
		port_store_release32(&s->plan->first_error, (uint32_t)status);
}

/* Element e of a span failed for good. */
PORT_FN void dev_elem_fail(struct dev_block *b, struct dev_step *s, const struct dev_span *span, uint32_t e,
                           int32_t status)
{
	dev_count(&b->stats.failed_elements, 1);
	dev_entry_fail(s, dev_span_entry(s, span, e), status);
}

PORT_FN void dev_span_advance(struct dev_span *span, uint32_t n)
{
	span->pos += n;
	span->n -= n;
	span->part_offset = 0;
}

/* Direct: data pointer straight into registered memory. Fills cut->n or cut->part_bytes; returns bytes, or -errno. */
PORT_FN int64_t dev_fit_direct(const struct dev_block *b, const struct dev_step *s, const struct geom_place *place,
                               uint32_t n_max, struct dev_dptr *d, const struct dev_list *list, struct dev_span *cut)
{
	uint64_t total = 0, added, want;
	struct dev_elem at = dev_run_elem(s, cut, place, cut->pos);
	int rc;

	dev_dptr_begin(d, list, b->sgl_max);
	if (at.bytes != at.pitch)
		n_max = 1; /* a gap on disk behind each object */
	for (cut->n = 0; cut->n < n_max && !cut->part_offset; cut->n++) {
		struct dev_dptr before = *d;

		if (cut->n)
			at = dev_run_elem(s, cut, place, cut->pos + cut->n);
		if (total + at.bytes > b->mdts_bytes)
			break;
		rc = dev_add_memory(&b->map, d, at.mem, at.bytes, &added);
		if (rc && !cut->n)
			return rc;
		if (rc || added < at.bytes) {
			*d = before;
			break;
		}
		total += at.bytes;
	}
	if (cut->n)
		return (int64_t)total;
	/* One element is too large: take a part, at a page boundary, so that parts of its checksum add up. */
	want = at.bytes - cut->part_offset < b->mdts_bytes ? at.bytes - cut->part_offset : b->mdts_bytes;
	for (int again = 0; again < 2; again++) {
		dev_dptr_begin(d, list, b->sgl_max);
		rc = dev_add_memory(&b->map, d, at.mem + cut->part_offset, want, &added);
		if (rc)
			return rc;
		if (added == want)
			break;
		want = added / DEV_PAGE_BYTES * DEV_PAGE_BYTES;
		if (!want)
			return -EINVAL;
	}
	cut->n = 1;
	cut->part_bytes = (uint32_t)want;
	return (int64_t)want;
}

/* Bounce: whole pitches, one after the other in one buffer. */
PORT_FN int64_t dev_fit_bounce(const struct dev_block *b, const struct dev_step *s, const struct geom_place *place,
                               uint32_t n_max, struct dev_dptr *d, const struct dev_cmd *c, struct dev_span *cut)
{
	struct dev_elem at = dev_run_elem(s, cut, place, cut->pos);
	uint64_t room = b->bounce_bytes < b->mdts_bytes ? b->bounce_bytes : b->mdts_bytes, bytes, added;
	int rc;

	if (at.pitch <= room && !cut->part_offset) {
		cut->n = (uint32_t)(room / at.pitch) < n_max ? (uint32_t)(room / at.pitch) : n_max;
		bytes = cut->n * at.pitch;
	} else {
		bytes = at.pitch - cut->part_offset < room ? at.pitch - cut->part_offset
		                                           : room / DEV_PAGE_BYTES * DEV_PAGE_BYTES;
		cut->n = 1;
		cut->part_bytes = (uint32_t)bytes;
	}
	dev_dptr_begin(d, &c->list, b->sgl_max);
	rc = dev_add_memory(&b->map, d, (uint64_t)(uintptr_t)dev_bounce_at(b, c), bytes, &added);
	if (rc || added != bytes)
		return rc ? rc : -EINVAL;
	return (int64_t)bytes;
}

/* Moves data between engine memory and the command's bounce buffer, summing on the way. in: 1 is towards the engine. */
PORT_FN void dev_bounce_move(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c, int in)
{
	const struct dev_plan *p = s->plan;
	const struct dev_span *sp = &c->span;
	uint64_t t0 = port_now_ns();

	for (uint32_t k = 0; k < sp->n; k++) {
		uint32_t object = (sp->pos + k) / sp->len, entry = dev_span_entry(s, sp, sp->pos + k);
		uint64_t offset = sp->part_bytes ? sp->part_offset : 0;
		uint64_t pitch = sp->part_bytes ? sp->part_bytes : p->geom.pitch_bytes;
		uint64_t left = offset < p->geom.object_bytes ? p->geom.object_bytes - offset : 0;
		uint64_t bytes = left < pitch ? left : pitch, part;
		uint8_t *buf = dev_bounce_at(b, c) + k * pitch;
		uint8_t *mem = (uint8_t *)(uintptr_t)dev_plan_mem(p, s->kind, object, entry) + offset;

		part = in ? dev_copy_sum(mem, buf, bytes, offset) : dev_copy_sum(buf, mem, bytes, offset);
		if (in)
			part = 0 - part;
		else
			dev_zero(buf + bytes, pitch - bytes); /* nothing of ours leaks to the medium */
		if (!in && c->alone)
			part = 0; /* a retry: summed when the whole command was made */
		*dev_plan_sum(p, s->kind, entry, object) += part;
		dev_count(&b->stats.sum_bytes, bytes);
		dev_count(&b->stats.bounced_bytes, bytes);
	}
	dev_count(&b->stats.sum_ns, port_now_ns() - t0);
}

/* Fills the bounce buffer of a header command before it is written. */
PORT_FN void dev_headers_fill(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	const struct dev_plan *p = s->plan;

	dev_zero(dev_bounce_at(b, c), c->span.n * p->geom.header_bytes);
	if (s->kind == WIRE_STEP_INVALIDATE)
		return;
	for (uint32_t k = 0; k < c->span.n; k++) {
		uint32_t entry = c->span.first + c->span.pos + k;
		struct wire_header *h = (struct wire_header *)(void *)(dev_bounce_at(b, c) + k * p->geom.header_bytes);
		uint64_t *sums = geom_header_sums(h);

		h->rank = p->rank;
		h->objects = geom_objects(&p->geom);
		h->depth = p->depth + entry;
		h->object_bytes = p->geom.object_bytes;
		h->generation = p->generation;
		h->sequence = p->sequence;
		h->epoch = p->epoch;
		dev_copy(h->ns_digest, p->ns_digest, WIRE_KEY_BYTES);
		dev_copy(h->key, p->keys[entry], WIRE_KEY_BYTES);
		dev_copy(h->parent, entry ? p->keys[entry - 1] : p->parent, WIRE_KEY_BYTES);
		for (uint32_t layer = 0; layer < p->geom.layers; layer++)
			for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
				*sums++ = objsum_seed(p->geom.object_bytes) + *dev_plan_sum(p, layer, entry, o);
		geom_header_seal(h);
	}
}

/* Queues the command. -ERANGE when it would leave the pool's space: nothing was queued. */
PORT_FN int dev_cmd_post(struct dev_block *b, struct dev_cmd *c, const struct dev_elem *at, uint64_t offset,
                         uint64_t bytes, const struct dev_dptr *d)
{
	const struct dev_target *t = &b->dev[at->dev];
	uint64_t lba = offset >> t->lba_shift;
	uint64_t mask = (1ull << t->lba_shift) - 1;
	struct nvme_sqe e;

	if (offset < t->first_byte || offset + bytes > t->end_byte || (offset | bytes) & mask || !bytes)
		return -ERANGE;
	dev_zero(&e, sizeof(e));
	e.opcode = at->op == WIRE_WRITE ? NVME_CMD_WRITE : NVME_CMD_READ;
	e.cid = (uint16_t)(c - b->cmds);
	e.nsid = t->nsid;
	e.cdw10 = (uint32_t)lba;
	e.cdw11 = (uint32_t)(lba >> 32);
	e.cdw12 = (uint32_t)(bytes >> t->lba_shift) - 1;
	dev_dptr_finish(d, &e);
	dev_qp_post(&b->qp[t->qp], &e);
	b->rung |= 1u << t->qp;
	dev_count(&b->stats.commands, 1);
	if (at->op == WIRE_WRITE)
		dev_count(&b->stats.bytes_written, bytes);
	else
		dev_count(&b->stats.bytes_read, bytes);
	return 0;
}

PORT_FN uint8_t dev_step_cmd_kind(const struct dev_step *s)
{
	switch (s->kind) {
	case WIRE_STEP_EXPLICIT:
		return DEV_CMD_IOCTX;
	case WIRE_STEP_HEADERS:
		return DEV_CMD_HEADER_READ;
	case WIRE_STEP_INVALIDATE:
		return DEV_CMD_HEADER_WIPE;
	case WIRE_STEP_COMMIT:
		return DEV_CMD_HEADER_WRITE;
	default:
		return DEV_CMD_DATA;
	}
}

/*
 * Makes a command from the front of `span` and takes that front off. 1: posted (or its element failed at once); 0: no
 * free command or bounce buffer, span untouched. alone: one element at a time.
 */
PORT_FN int dev_issue(struct dev_block *b, struct dev_span *span, int alone)
{
	struct dev_step *s = &b->steps[span->step];
	int layer = dev_step_is_layer(s);
	int bounce = s->kind != WIRE_STEP_EXPLICIT && (!layer || (s->plan->flags & DEV_PLAN_BOUNCE));
	struct dev_cmd *c = dev_cmd_take(b, bounce);
	struct geom_place place;
	struct dev_dptr d;
	struct dev_elem at;
	struct dev_span *cut;
	int64_t bytes;
	uint32_t n_max;
	int rc = 0;

	if (!c)
		return 0;
	cut = &c->span;
	*cut = *span;
	cut->part_bytes = 0;
	c->kind = dev_step_cmd_kind(s);
	c->alone = (uint8_t)alone;
	if (s->kind != WIRE_STEP_EXPLICIT)
		place = geom_place(&s->plan->geom, s->plan->entries[span->first].slot);
	else
		place.set_slots = 0;
	n_max = alone ? 1 : dev_run_contiguous(s, span, &place);
	at = dev_run_elem(s, span, &place, span->pos);
	bytes = bounce ? dev_fit_bounce(b, s, &place, n_max, &d, c, cut)
	               : dev_fit_direct(b, s, &place, n_max, &d, &c->list, cut);
	if (bytes > 0) {
		if (bounce && at.op == WIRE_WRITE) {
			if (layer)
				dev_bounce_move(b, s, c, 0);
			else
				dev_headers_fill(b, s, c);
		}
		rc = dev_cmd_post(b, c, &at, at.offset + span->part_offset, (uint64_t)bytes, &d);
	} else {
		rc = (int)bytes;
	}
	if (rc) {
		dev_elem_fail(b, s, span, span->pos, rc);
		dev_cmd_give(b, c);
		dev_span_advance(span, 1);
		return 1;
	}
	s->pending++;
	dev_count(&b->stats.elements, cut->part_bytes ? 0 : cut->n);
	if (cut->part_bytes && span->part_offset + cut->part_bytes < (bounce ? at.pitch : at.bytes))
		span->part_offset += cut->part_bytes;
	else
		dev_span_advance(span, cut->n);
	return 1;
}

#endif
