/*
 * move.h - the work on a command's data that is ours: copying between bounce buffers and the engine's memory, sums,
 * headers.
 *
 * A CPU thread does it on the spot. A thread block of a GPU has warps for it (DEV_MOVERS: exec/mover.cuh): work is
 * handed to them and comes back through dev_work_next, while the thread that runs the I/O loop goes on. Either way the
 * same arithmetic says what belongs where.
 */
#ifndef TUTTI_DEV_MOVE_H
#define TUTTI_DEV_MOVE_H

#include <errno.h>

#include "dev/run.h"

PORT_FN void dev_copy(void *dst, const void *src, uint64_t bytes) { __builtin_memcpy(dst, src, bytes); }
PORT_FN void dev_zero(void *dst, uint64_t bytes) { __builtin_memset(dst, 0, bytes); }

#if defined(DEV_WARP)
/* exec/io_small.cu: a warp copies (dst NULL: does not) and sums. */
static __device__ uint64_t warp_move(void *dst, const void *src, uint64_t bytes, uint64_t offset);
/* A copy of the header that is near, or the header; makes one near, then moves it. */
static __device__ const struct wire_header *warp_header_near(const struct wire_header *h, uint32_t objects);
static __device__ void warp_header_make(const struct dev_plan *p, uint32_t entry, struct wire_header *h);
#endif
#if defined(PORT_GPU) && defined(DEV_WARP)
#define DEV_HEADER_NEAR(h, objects) warp_header_near(h, objects)
#define DEV_HEADER_MAKE(p, entry, h) warp_header_make(p, entry, h)
#else
#define DEV_HEADER_NEAR(h, objects) (h)
#define DEV_HEADER_MAKE(p, entry, h) dev_header_make(p, entry, h)
#endif

/* The part of the checksum that the bytes contribute. */
PORT_FN uint64_t dev_sum(const void *data, uint64_t bytes, uint64_t offset)
{
#if defined(PORT_GPU) && defined(DEV_WARP)
	return warp_move(NULL, data, bytes, offset);
#elif defined(PORT_GPU)
	return objsum_part_plain(data, bytes, offset);
#else
	return objsum_part(data, bytes, offset);
#endif
}

PORT_FN uint64_t dev_copy_sum(void *dst, const void *src, uint64_t bytes, uint64_t offset)
{
#if defined(PORT_GPU) && defined(DEV_WARP)
	return warp_move(dst, src, bytes, offset);
#elif defined(PORT_GPU)
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

/* Sums have several writers on a GPU, which do not go through this thread's cache. */
PORT_FN uint64_t dev_sum_get(const uint64_t *sum)
{
#if defined(PORT_GPU)
	return __ldcg((const unsigned long long *)sum);
#else
	return *sum;
#endif
}

PORT_FN void dev_sum_add(uint64_t *sum, uint64_t part)
{
#if defined(PORT_GPU)
	atomicAdd((unsigned long long *)sum, (unsigned long long)part);
#else
	*sum += part;
#endif
}

/* Entry that element e of a span belongs to. */
PORT_FN uint32_t dev_span_entry(const struct dev_step *s, const struct dev_span *span, uint32_t e)
{
	return span->first + (dev_step_is_layer(s) ? e % span->len : e);
}

/* A plan keeps its first reason; that its lane is dead outdoes every other. Ordered before the step's completion. */
PORT_FN void dev_plan_fail(const struct dev_plan *p, int32_t status)
{
	if (status == -ENOTRECOVERABLE || !port_load_acquire32(p->first_error))
		port_store_release32(p->first_error, (uint32_t)status);
}

/* Entry (or IOCTX) i failed; it keeps its first reason. */
PORT_FN void dev_entry_fail(struct dev_step *s, uint32_t i, int32_t status)
{
	int32_t *result = s->kind == WIRE_STEP_EXPLICIT ? &dev_step_ioctx(s)[i].status : &s->plan->results[i];

	if (*result == 0) {
		*result = status;
		s->failed++;
		if (s->kind != WIRE_STEP_EXPLICIT)
			s->plan->results_host[i] = status;
	}
	if (s->status == 0)
		s->status = status;
	if (s->plan)
		dev_plan_fail(s->plan, status);
}

/* Element e of a span failed for good. */
PORT_FN void dev_elem_fail(struct dev_block *b, struct dev_step *s, const struct dev_span *span, uint32_t e,
                           int32_t status)
{
	dev_count(&b->stats.failed_elements, 1);
	dev_entry_fail(s, dev_span_entry(s, span, e), status);
}

/* ---- one element of a command's data ---- */

struct dev_piece {
	uint32_t object, entry; /* of explicit IOCTX: 0, and its number */
	uint64_t offset; /* in the object */
	uint64_t bytes;  /* of data; the rest of pitch is padding */
	uint64_t pitch;  /* of the element (or part) in the buffer */
	uint8_t *buf;    /* NULL: direct */
	uint8_t *mem;
	uint64_t *sum; /* NULL: none is kept (explicit IOCTX) */
};

PORT_FN uint8_t *dev_piece_buf(const struct dev_block *b, const struct dev_cmd *c, uint64_t at)
{
	if (c->medium)
		return (uint8_t *)(uintptr_t)c->medium + at;
	return c->bounce == DEV_NONE ? NULL : dev_bounce_at(b, c) + at;
}

/* Explicit IOCTX k of the command; all of one command are equally long. */
PORT_FN struct dev_piece dev_piece_ioctx(const struct dev_block *b, const struct dev_step *s, const struct dev_cmd *c,
                                         uint32_t k)
{
	const struct dev_span *sp = &c->span;
	struct dev_piece at;

	at.object = 0;
	at.entry = sp->first + sp->pos + k;
	at.offset = sp->part_bytes ? sp->part_offset : 0;
	at.bytes = at.pitch = sp->part_bytes ? sp->part_bytes : dev_step_ioctx(s)[at.entry].bytes;
	at.buf = dev_piece_buf(b, c, k * at.pitch);
	at.mem = (uint8_t *)(uintptr_t)dev_step_ioctx(s)[at.entry].mem + at.offset;
	at.sum = NULL;
	return at;
}

/* Element k of the command. */
PORT_FN struct dev_piece dev_piece_at(const struct dev_block *b, const struct dev_step *s, const struct dev_cmd *c,
                                      uint32_t k)
{
	const struct dev_plan *p = s->plan;
	const struct dev_span *sp = &c->span;
	uint64_t left;
	struct dev_piece at;

	if (s->kind == WIRE_STEP_EXPLICIT)
		return dev_piece_ioctx(b, s, c, k);
	at.object = (sp->pos + k) / sp->len;
	at.entry = dev_span_entry(s, sp, sp->pos + k);
	at.offset = sp->part_bytes ? sp->part_offset : 0;
	at.pitch = sp->part_bytes ? sp->part_bytes : p->geom.pitch_bytes;
	left = at.offset < p->geom.object_bytes ? p->geom.object_bytes - at.offset : 0;
	at.bytes = left < at.pitch ? left : at.pitch;
	at.buf = dev_piece_buf(b, c, k * at.pitch);
	at.mem = (uint8_t *)(uintptr_t)dev_plan_mem(p, s->kind, at.object, at.entry) + at.offset;
	at.sum = dev_plan_sum(p, s->kind, at.entry, at.object);
	return at;
}

/*
 * What sums cost is CPU time, and reading that takes a system call: the first command is timed, then one in DEV_TIMED,
 * and they stand for all. Begin gives 0 for a command that is not timed.
 */
#if defined(PORT_GPU)
#define DEV_TIMED 1u
#else
#define DEV_TIMED 8u
#endif

PORT_FN uint64_t dev_timed_begin(struct dev_block *b)
{
	if (!b->untimed)
		return port_cpu_ns();
	b->untimed--;
	return 0;
}

PORT_FN void dev_timed_end(struct dev_block *b, uint64_t begin_ns, uint64_t bytes)
{
	dev_count(&b->stats.own_sum_bytes, bytes);
	if (!begin_ns || !bytes)
		return;
	dev_count(&b->stats.timed_sum_ns, port_cpu_ns() - begin_ns);
	dev_count(&b->stats.timed_sum_bytes, bytes);
	b->untimed = DEV_TIMED - 1;
}

PORT_FN void dev_move_pieces(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	uint64_t begin_ns = dev_timed_begin(b), before = b->stats.sum_bytes;

	for (uint32_t k = 0; k < c->span.n; k++) {
		struct dev_piece at = dev_piece_at(b, s, c, k);
		uint64_t part = 0;

		if (c->work == DEV_WORK_IN) {
			part = 0 - dev_copy_sum(at.mem, at.buf, at.bytes, at.offset);
		} else {
			part = dev_copy_sum(at.buf, at.mem, at.bytes, at.offset);
			dev_zero(at.buf + at.bytes, at.pitch - at.bytes); /* nothing of ours leaks to the medium */
			if (c->alone)
				part = 0; /* a retry: summed when the whole command was made */
		}
		if (at.sum)
			dev_sum_add(at.sum, part);
		dev_count(&b->stats.sum_bytes, at.bytes);
		dev_count(&b->stats.bounced_bytes, at.bytes);
	}
	dev_timed_end(b, begin_ns, b->stats.sum_bytes - before);
}

/* Must data that the controller moved by itself be summed? */
PORT_FN int dev_sums_direct(const struct dev_plan *p) { return p->op == WIRE_WRITE || (p->flags & DEV_PLAN_VERIFY); }

/* Sums data that the controller moved straight from or to the engine's memory. */
PORT_FN void dev_sum_pieces(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	const struct dev_plan *p = s->plan;
	uint64_t begin_ns = dev_sums_direct(p) ? dev_timed_begin(b) : 0, before = b->stats.sum_bytes;

	for (uint32_t k = 0; k < c->span.n; k++) {
		struct dev_piece at = dev_piece_at(b, s, c, k);
		uint64_t part = 0;

		if (dev_sums_direct(p)) {
			part = dev_sum(at.mem, at.bytes, at.offset);
			dev_count(&b->stats.sum_bytes, at.bytes);
		}
		dev_sum_add(at.sum, p->op == WIRE_WRITE ? part : 0 - part);
		dev_count(&b->stats.direct_bytes, at.bytes);
	}
	dev_timed_end(b, begin_ns, b->stats.sum_bytes - before);
}

/* ---- headers ---- */

/* Makes the header of an entry at h, which is zeroed and has header_bytes. */
PORT_FN void dev_header_make(const struct dev_plan *p, uint32_t entry, struct wire_header *h)
{
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
			*sums++ = objsum_seed(p->geom.object_bytes) + dev_sum_get(dev_plan_sum(p, layer, entry, o));
	geom_header_seal(h);
}

/* Checks the header of an entry and keeps its sums. 0, or why it is none. */
PORT_FN int dev_header_take(const struct dev_plan *p, uint32_t entry, const struct wire_header *h)
{
	const uint64_t *sums = geom_header_sums_const(h);
	enum geom_header_state state = geom_header_check(h, geom_objects(&p->geom));

	if (state == GEOM_HEADER_OK)
		state = geom_header_match(h, p->ns_digest, p->keys[entry], p->generation, p->rank);
	if (state != GEOM_HEADER_OK)
		return state == GEOM_HEADER_CORRUPT ? -EBADMSG : -ESTALE;
	for (uint32_t layer = 0; layer < p->geom.layers; layer++)
		for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
			dev_sum_add(dev_plan_sum(p, layer, entry, o), *sums++ - objsum_seed(p->geom.object_bytes));
	return 0;
}

PORT_FN uint8_t *dev_header_at(const struct dev_block *b, const struct dev_step *s, const struct dev_cmd *c, uint32_t k)
{
	uint8_t *at = c->medium ? (uint8_t *)(uintptr_t)c->medium : dev_bounce_at(b, c);

	return at + k * s->plan->geom.header_bytes;
}

/* Fills the bounce buffer of a header command before it is written. */
PORT_FN void dev_headers_out(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	dev_zero(dev_bounce_at(b, c), c->span.n * s->plan->geom.header_bytes);
	for (uint32_t k = 0; k < c->span.n && s->kind != WIRE_STEP_INVALIDATE; k++)
		DEV_HEADER_MAKE(s->plan, c->span.first + c->span.pos + k,
		                (struct wire_header *)(void *)dev_header_at(b, s, c, k));
}

/* Checks headers that were read and keeps their checksums. */
PORT_FN void dev_headers_in(struct dev_block *b, struct dev_step *s, const struct dev_cmd *c)
{
	for (uint32_t k = 0; k < c->span.n; k++) {
		uint32_t e = c->span.pos + k;
		const struct wire_header *h = (const struct wire_header *)(const void *)dev_header_at(b, s, c, k);
		int rc = dev_header_take(s->plan, c->span.first + e, DEV_HEADER_NEAR(h, geom_objects(&s->plan->geom)));

		if (rc)
			dev_elem_fail(b, s, &c->span, e, rc);
	}
}

/* Layer of a retrieve, data and header of the entry are in: what does not sum up to zero is damaged. */
PORT_FN int dev_entry_differs(const struct dev_step *s, uint32_t entry)
{
	const struct dev_plan *p = s->plan;
	uint64_t diff = 0;

	for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
		diff |= dev_sum_get(dev_plan_sum(p, s->kind, entry, o));
	return diff != 0;
}

PORT_FN void dev_step_verify(struct dev_step *s)
{
	for (uint32_t i = s->lo; i < s->hi; i++)
		if (!s->plan->results[i] && dev_entry_differs(s, i))
			dev_entry_fail(s, i, -EBADMSG);
}

/* ---- who does it ---- */

#if defined(DEV_MOVERS)
/* exec/mover.cuh */
__device__ int mover_start(struct dev_block *b, struct dev_step *s, struct dev_cmd *c);
__device__ struct dev_cmd *mover_next(struct dev_block *b);
__device__ int mover_ready(const struct dev_block *b);
__device__ int mover_verify(struct dev_block *b, struct dev_step *s);
#endif
#if defined(PORT_GPU) && defined(DEV_MOVERS)
#define DEV_HAND_OVER 1
#endif

/* Starts c->work. 1: it is done; 0: dev_work_next will give c back. */
PORT_FN int dev_work_start(struct dev_block *b, struct dev_step *s, struct dev_cmd *c)
{
#if defined(DEV_HAND_OVER)
	return mover_start(b, s, c);
#else
	switch (c->work) {
	case DEV_WORK_IN:
	case DEV_WORK_OUT:
		dev_move_pieces(b, s, c);
		break;
	case DEV_WORK_SUM:
		dev_sum_pieces(b, s, c);
		break;
	case DEV_WORK_HEADERS_IN:
		dev_headers_in(b, s, c);
		break;
	case DEV_WORK_HEADERS_OUT:
		dev_headers_out(b, s, c);
		break;
	}
	return 1;
#endif
}

/* A command whose work is done; NULL: none. */
PORT_FN struct dev_cmd *dev_work_next(struct dev_block *b)
{
#if defined(DEV_HAND_OVER)
	return mover_next(b);
#else
	(void)b;
	return NULL;
#endif
}

/* 1: dev_work_next or dev_verify has news. */
PORT_FN int dev_work_ready(const struct dev_block *b)
{
#if defined(DEV_HAND_OVER)
	return mover_ready(b);
#else
	(void)b;
	return 0;
#endif
}

/* Compares the step's sums and fails the entries that differ. 0: not done yet, call again. */
PORT_FN int dev_verify(struct dev_block *b, struct dev_step *s)
{
#if defined(DEV_HAND_OVER)
	return mover_verify(b, s);
#else
	(void)b;
	dev_step_verify(s);
	return 1;
#endif
}

#endif
