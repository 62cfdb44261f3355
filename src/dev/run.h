/*
 * run.h - from a step to commands: which entries are neighbours on disk, and how many of them one command takes.
 */
#ifndef TUTTI_DEV_RUN_H
#define TUTTI_DEV_RUN_H

#include "dev/plan.h"
#include "geom/header.h"

/* One element's place. */
struct dev_elem {
	uint32_t dev;
	uint32_t op;
	uint64_t offset; /* on the device */
	uint64_t bytes;  /* of data */
	uint64_t pitch;  /* to the next element on disk */
	uint64_t mem;
};

PORT_FN int dev_step_is_layer(const struct dev_step *s) { return s->kind < WIRE_STEP_HEADERS; }

PORT_FN struct wire_ioctx *dev_step_ioctx(const struct dev_step *s)
{
	return (struct wire_ioctx *)(uintptr_t)s->iocb->ioctx;
}

PORT_FN uint64_t dev_plan_mem(const struct dev_plan *p, uint32_t layer, uint32_t object, uint32_t entry)
{
	const struct dev_layout *m = &p->mem;

	return m->layer_base[layer] + p->entries[entry].block * m->block_stride +
	       object / m->inner_count * m->outer_stride + object % m->inner_count * m->inner_stride;
}

PORT_FN uint64_t *dev_plan_sum(const struct dev_plan *p, uint32_t layer, uint32_t entry, uint32_t object)
{
	return &p->sums[((uint64_t)layer * p->n + entry) * p->geom.objects_per_layer + object];
}

/* Does this step do anything with entry i? Failed entries are left alone; only some headers need wiping. */
PORT_FN int dev_step_takes(const struct dev_step *s, uint32_t i)
{
	if (s->kind == WIRE_STEP_EXPLICIT)
		return 1;
	if (s->plan->results[i])
		return 0;
	return s->kind != WIRE_STEP_INVALIDATE || s->plan->entries[i].header_valid;
}

/* Is entry (or IOCTX) i + 1 the slot (or the bytes) behind i's? Of slots: perhaps in the next set. */
PORT_FN int dev_step_follows(const struct dev_step *s, uint32_t i)
{
	const struct dev_plan *p = s->plan;

	if (s->kind == WIRE_STEP_EXPLICIT) {
		const struct wire_ioctx *c = dev_step_ioctx(s);

		return c[i].dev == c[i + 1].dev && c[i].op == c[i + 1].op &&
		       c[i].offset_bytes + c[i].bytes == c[i + 1].offset_bytes;
	}
	return p->entries[i].slot + 1 == p->entries[i + 1].slot;
}

/*
 * How many entries from i on can be neighbours on disk, if each follows the one before: what is left of i's set. One
 * division for all of them, which is what finding neighbours costs a GPU's thread. Explicit IOCTX have no sets.
 */
PORT_FN uint32_t dev_step_neighbours(const struct dev_step *s, uint32_t i)
{
	struct geom_place at;

	if (s->kind == WIRE_STEP_EXPLICIT)
		return GEOM_SET_SLOTS_MAX;
	at = geom_place(&s->plan->geom, s->plan->entries[i].slot);
	return at.set_slots - at.index;
}

/* Elements of a whole run of `len` entries. */
PORT_FN uint32_t dev_step_elements(const struct dev_step *s, uint32_t len)
{
	return dev_step_is_layer(s) ? len * s->plan->geom.objects_per_layer : len;
}

/* Finds the step's next run. 0: there is none, all commands of the step are made. */
PORT_FN int dev_run_next(struct dev_step *s, uint32_t step_index, struct dev_span *run)
{
	uint32_t i = s->next, end, most;

	while (i < s->hi && !dev_step_takes(s, i))
		i++;
	if (i == s->hi) {
		s->next = i;
		return 0;
	}
	most = dev_step_neighbours(s, i); /* bounds a run, so that finding it is O(set) */
	for (end = i + 1; end < s->hi && end - i < most && dev_step_takes(s, end) && dev_step_follows(s, end - 1);)
		end++;
	s->next = end;
	run->step = step_index;
	run->first = i;
	run->len = end - i;
	run->pos = 0;
	run->n = dev_step_elements(s, end - i);
	run->part_offset = 0;
	run->part_bytes = 0;
	return 1;
}

/* Where element `e` of a run lies. place: of the run's first entry (ignored for explicit IOCTX). */
PORT_FN struct dev_elem dev_run_elem(const struct dev_step *s, const struct dev_span *run,
                                     const struct geom_place *place, uint32_t e)
{
	struct dev_elem at;
	const struct dev_plan *p = s->plan;

	if (s->kind == WIRE_STEP_EXPLICIT) {
		const struct wire_ioctx *c = dev_step_ioctx(s) + run->first + e;

		at.dev = c->dev;
		at.op = c->op;
		at.offset = c->offset_bytes;
		at.bytes = at.pitch = c->bytes;
		at.mem = c->mem;
		return at;
	}
	at.dev = p->geom.dev[place->dev];
	if (dev_step_is_layer(s)) {
		uint32_t object = e / run->len, entry = e % run->len;

		at.op = p->op;
		at.offset = geom_object_offset(&p->geom, place, s->kind, object) + entry * p->geom.pitch_bytes;
		at.bytes = p->geom.object_bytes;
		at.pitch = p->geom.pitch_bytes;
		at.mem = dev_plan_mem(p, s->kind, object, run->first + entry);
		return at;
	}
	at.op = s->kind == WIRE_STEP_HEADERS ? WIRE_READ : WIRE_WRITE;
	at.offset = geom_header_offset(&p->geom, place) + e * p->geom.header_bytes;
	at.bytes = at.pitch = p->geom.header_bytes;
	at.mem = 0; /* headers live in bounce buffers */
	return at;
}

/* Elements from `pos` on that are contiguous on disk: to the end of the object's row, or of the run if it is a whole
 * set. */
PORT_FN uint32_t dev_run_contiguous(const struct dev_step *s, const struct dev_span *run,
                                    const struct geom_place *place)
{
	if (!dev_step_is_layer(s) || run->len == place->set_slots)
		return run->n;
	return run->len - run->pos % run->len < run->n ? run->len - run->pos % run->len : run->n;
}

/*
 * Adds memory [va, va + bytes) to the data pointer, run by run of the map. *added: how much fitted. 0, or -EFAULT (14)
 * when the memory is not mapped.
 */
PORT_FN int dev_add_memory(const struct wire_map *m, struct dev_dptr *d, uint64_t va, uint64_t bytes, uint64_t *added)
{
	uint32_t lo = 0, hi = m->n;

	*added = 0;
	while (lo < hi) { /* the number of entries that start at or before va */
		uint32_t mid = (lo + hi) / 2;

		if (m->runs[mid].va <= va)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; bytes; lo++) {
		const struct wire_run *r = lo ? &m->runs[lo - 1] : 0;
		uint64_t len;

		if (!r || r->dma == WIRE_MAP_HOLE)
			return -14;
		len = m->runs[lo].va - va; /* behind a run there is always another entry */
		len = len < bytes ? len : bytes;
		if (dev_dptr_add(d, r->dma + (va - r->va), len))
			return 0;
		*added += len;
		va += len;
		bytes -= len;
	}
	return 0;
}

#endif
