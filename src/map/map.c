/*
 * map.c - a sorted array of maximal runs, and of the holes between them.
 *
 * A run ends where the next entry begins, so that its length needs no place. What is inserted always lies in one hole
 * (or before the first run): that hole becomes at most a hole, the run and a hole.
 */
#include "map/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define GROW_MIN 16u
#define GROW_PART 8u /* by an eighth: a large map wastes little */

void map_init(struct map *m) { memset(m, 0, sizeof(*m)); }

void map_free(struct map *m)
{
	free(m->runs);
	map_init(m);
}

/* The number of entries that start at or before va. */
static uint32_t starts_to(const struct map *m, uint64_t va)
{
	uint32_t lo = 0, hi = m->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (m->runs[mid].va <= va)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* 1: (va, dma) goes on where r does. */
static int continues(const struct wire_run *r, uint64_t va, uint64_t dma)
{
	return r->dma != WIRE_MAP_HOLE && r->dma + (va - r->va) == dma;
}

/* Entries [at, at + out) become those of `in`. */
static int splice(struct map *m, uint32_t at, uint32_t out, const struct wire_run *in, uint32_t n_in)
{
	if (m->n - out + n_in > m->room) {
		uint64_t room = (uint64_t)m->n + m->n / GROW_PART + GROW_MIN;
		struct wire_run *grown = room > UINT32_MAX ? NULL : realloc(m->runs, room * sizeof(*grown));

		if (!grown)
			return err_set(-ENOMEM, "map: no memory for %llu runs", (unsigned long long)room);
		m->runs = grown;
		m->room = (uint32_t)room;
	}
	memmove(&m->runs[at + n_in], &m->runs[at + out], (m->n - at - out) * sizeof(*m->runs));
	if (n_in)
		memcpy(&m->runs[at], in, n_in * sizeof(*in));
	m->n = m->n - out + n_in;
	return 0;
}

int map_insert(struct map *m, uint64_t va, uint64_t bytes, uint64_t dma)
{
	uint64_t end = va + bytes;
	uint32_t next = starts_to(m, va), at = next, out = 0, n_in = 0;
	struct wire_run in[2];

	if (!bytes || end < va || dma + bytes < dma)
		return err_set(-EINVAL, "map: a region of %llu bytes at %#llx is empty or wraps around",
		               (unsigned long long)bytes, (unsigned long long)va);
	if ((next && m->runs[next - 1].dma != WIRE_MAP_HOLE) || (next < m->n && m->runs[next].va < end))
		return err_set(-EEXIST, "map: memory at %#llx is registered already", (unsigned long long)va);
	if (next && m->runs[next - 1].va == va) { /* the hole begins here: it goes */
		at--;
		out++;
	}
	if (!out || !continues(&m->runs[at - 1], va, dma))
		in[n_in++] = (struct wire_run){.va = va, .dma = dma};
	if (next == m->n || m->runs[next].va != end)
		in[n_in++] = (struct wire_run){.va = end, .dma = WIRE_MAP_HOLE};
	else if (m->runs[next].dma == dma + bytes)
		out++; /* what follows goes on from here */
	return splice(m, at, out, in, n_in);
}

int map_find(const struct map *m, uint64_t va, uint64_t bytes, uint64_t *dma)
{
	uint32_t next = starts_to(m, va);
	const struct wire_run *r = next ? &m->runs[next - 1] : NULL;

	if (!r || r->dma == WIRE_MAP_HOLE || m->runs[next].va - va < bytes)
		return -EFAULT;
	*dma = r->dma + (va - r->va);
	return 0;
}

void map_fit(struct map *m)
{
	struct wire_run *fitting = m->n && m->n < m->room ? realloc(m->runs, m->n * sizeof(*fitting)) : NULL;

	if (!fitting)
		return;
	m->runs = fitting;
	m->room = m->n;
}

size_t map_ram_bytes(const struct map *m) { return m->room * sizeof(*m->runs); }

struct wire_map map_view(const struct map *m)
{
	struct wire_map v = {.runs = m->runs, .n = m->n};

	return v;
}
