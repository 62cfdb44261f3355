/*
 * issue.h - makes one NVMe command from the front of a span: as many elements as are contiguous on disk, fit MDTS, and
 * fit the data pointer's list; or a part of one element that is larger than that.
 *
 * Data of a write is on its way to the bounce buffer, or to its place in the medium, when the command is made (move.h);
 * it is posted once it is there.
 * This is the only place where commands that move data are built, and so the only place where addresses on the medium
 * are checked against the pool's range.
 */
#ifndef TUTTI_DEV_ISSUE_H
#define TUTTI_DEV_ISSUE_H

#include "dev/move.h"

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
	c->busy = DEV_CMD_OURS;
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

PORT_FN void dev_span_advance(struct dev_span *span, uint32_t n)
{
	span->pos += n;
	span->n -= n;
	span->part_offset = 0;
}

/* How long a command may be that begins at byte `offset` of the device: MDTS, and up to the drive's next boundary. */
PORT_FN uint64_t dev_room(const struct dev_block *b, uint32_t dev, uint64_t offset)
{
	uint64_t boundary = b->dev[dev].boundary_bytes, room = b->mdts_bytes;

	if (boundary && boundary - (offset & (boundary - 1)) < room)
		room = boundary - (offset & (boundary - 1));
	return room;
}

/*
 * Direct: data pointer straight into registered memory, at most `room` bytes. Fills cut->n or cut->part_bytes; returns
 * bytes, or -errno.
 */
PORT_FN int64_t dev_fit_direct(const struct dev_block *b, const struct dev_step *s, const struct geom_place *place,
                               uint32_t n_max, uint64_t room, struct dev_dptr *d, const struct dev_list *list,
                               struct dev_span *cut)
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
		if (total + at.bytes > room)
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
	want = at.bytes - cut->part_offset < room ? at.bytes - cut->part_offset : room;
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

/* How many of the next n IOCTX are as long as the first. */
PORT_FN uint32_t dev_ioctx_alike(const struct wire_ioctx *c, uint32_t n)
{
	uint32_t i = 1;

	while (i < n && c[i].bytes == c->bytes)
		i++;
	return i;
}

/* Bounce: whole pitches, one after the other in one buffer. */
PORT_FN int64_t dev_fit_bounce(const struct dev_block *b, const struct dev_step *s, const struct geom_place *place,
                               uint32_t n_max, uint64_t room, struct dev_dptr *d, const struct dev_cmd *c,
                               struct dev_span *cut)
{
	struct dev_elem at = dev_run_elem(s, cut, place, cut->pos);
	uint64_t bytes, added;

	room = b->bounce_bytes < room ? b->bounce_bytes : room;
	if (at.pitch <= room && !cut->part_offset) {
		cut->n = (uint32_t)room / (uint32_t)at.pitch; /* below MDTS: 32 bits divide faster */
		if (cut->n > n_max)
			cut->n = n_max;
		if (s->kind == WIRE_STEP_EXPLICIT)
			cut->n = dev_ioctx_alike(dev_step_ioctx(s) + cut->first + cut->pos, cut->n);
		bytes = cut->n * at.pitch;
	} else {
		bytes = at.pitch - cut->part_offset < room ? at.pitch - cut->part_offset
		                                           : room / DEV_PAGE_BYTES * DEV_PAGE_BYTES;
		cut->n = 1;
		cut->part_bytes = (uint32_t)bytes;
	}
	dev_dptr_begin(d, &c->list, b->sgl_max);
	if (c->medium)
		return dev_dptr_add(d, c->medium, bytes) ? -EINVAL : (int64_t)bytes;
	if (b->bounce_dma)
		return dev_dptr_add(d, b->bounce_dma + c->bounce * b->bounce_bytes, bytes) ? -EINVAL : (int64_t)bytes;
	if (dev_add_memory(&b->map, d, (uint64_t)(uintptr_t)dev_bounce_at(b, c), bytes, &added) || added < bytes)
		return -EINVAL;
	return (int64_t)bytes;
}

/* Makes the command. -ERANGE when it would leave the pool's space. */
PORT_FN int dev_cmd_make(struct dev_block *b, struct dev_cmd *c, const struct dev_elem *at, uint64_t offset,
                         uint64_t bytes, const struct dev_dptr *d)
{
	const struct dev_target *t = &b->dev[at->dev];
	uint64_t lba = offset >> t->lba_shift;
	uint64_t mask = (1ull << t->lba_shift) - 1;
	struct nvme_sqe *e = &c->sqe;

	if (offset < t->first_byte || bytes > t->end_byte || offset > t->end_byte - bytes || (offset | bytes) & mask ||
	    !bytes)
		return -ERANGE;
	dev_zero(e, sizeof(*e));
	e->opcode = at->op == WIRE_WRITE ? NVME_CMD_WRITE : NVME_CMD_READ;
	e->cid = (uint16_t)(c - b->cmds);
	e->nsid = t->nsid;
	e->cdw10 = (uint32_t)lba;
	e->cdw11 = (uint32_t)(lba >> 32);
	e->cdw12 = (uint32_t)(bytes >> t->lba_shift) - 1;
	dev_dptr_finish(d, e);
	c->qp = (uint16_t)t->qp;
	dev_count(&b->stats.commands, 1);
	if (at->op == WIRE_WRITE)
		dev_count(&b->stats.bytes_written, bytes);
	else
		dev_count(&b->stats.bytes_read, bytes);
	return 0;
}

/* Queues the command that was made; dev_fill rings. */
PORT_FN void dev_cmd_post(struct dev_block *b, struct dev_cmd *c)
{
	c->busy = DEV_CMD_THEIRS;
	dev_qp_post(&b->qp[c->qp], &c->sqe);
	b->rung |= 1u << c->qp;
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
	int data = layer || s->kind == WIRE_STEP_EXPLICIT; /* else headers, which lie in bounce buffers anyway */
	int bounce = layer ? (s->plan->flags & DEV_PLAN_BOUNCE) != 0 : data ? b->bounce_ioctx != 0 : 1;
	struct geom_place place;
	struct dev_dptr d;
	struct dev_elem at;
	struct dev_cmd *c;
	uint64_t medium;
	struct dev_span *cut;
	int64_t bytes;
	uint64_t room;
	uint32_t n_max;
	int rc = 0;

	if (s->kind != WIRE_STEP_EXPLICIT)
		place = geom_place(&s->plan->geom, s->plan->entries[span->first].slot);
	else
		place.set_slots = 0;
	at = dev_run_elem(s, span, &place, span->pos);
	medium = data && bounce ? b->dev[at.dev].medium : 0;
	c = dev_cmd_take(b, bounce && !medium);
	if (!c)
		return 0;
	cut = &c->span;
	*cut = *span;
	cut->part_bytes = 0;
	c->kind = dev_step_cmd_kind(s);
	c->alone = (uint8_t)alone;
	c->medium = medium ? medium + at.offset + span->part_offset : 0;
	n_max = alone ? 1 : dev_run_contiguous(s, span, &place);
	room = dev_room(b, at.dev, at.offset + span->part_offset);
	bytes = bounce ? dev_fit_bounce(b, s, &place, n_max, room, &d, c, cut)
	               : dev_fit_direct(b, s, &place, n_max, room, &d, &c->list, cut);
	rc = bytes > 0 ? dev_cmd_make(b, c, &at, at.offset + span->part_offset, (uint64_t)bytes, &d) : (int)bytes;
	if (rc) {
		dev_elem_fail(b, s, span, span->pos, rc);
		dev_cmd_give(b, c);
		dev_span_advance(span, 1);
		return 1;
	}
	s->pending++;
	c->work = (uint8_t)(!bounce || at.op != WIRE_WRITE ? DEV_WORK_NONE
	                    : data                         ? DEV_WORK_OUT
	                                                   : DEV_WORK_HEADERS_OUT);
	if (!c->work || dev_work_start(b, s, c))
		dev_cmd_post(b, c);
	dev_count(&b->stats.elements, cut->part_bytes ? 0 : cut->n);
	if (cut->part_bytes && span->part_offset + cut->part_bytes < (bounce ? at.pitch : at.bytes))
		span->part_offset += cut->part_bytes;
	else
		dev_span_advance(span, cut->n);
	return 1;
}

#endif
