/* map.c - a sorted array of maximal runs. */
#include "map/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void map_init(struct map *m) { memset(m, 0, sizeof(*m)); }

void map_free(struct map *m)
{
	free(m->regions);
	map_init(m);
}

static int continues(const struct wire_region *a, const struct wire_region *b)
{
	return a->va + a->bytes == b->va && a->dma + a->bytes == b->dma;
}

static void remove_at(struct map *m, uint32_t at)
{
	memmove(&m->regions[at], &m->regions[at + 1], (m->n - at - 1) * sizeof(*m->regions));
	m->n--;
}

/* The number of regions that start at or before va. */
static uint32_t regions_to(const struct map *m, uint64_t va)
{
	uint32_t lo = 0, hi = m->n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (m->regions[mid].va <= va)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

int map_insert(struct map *m, uint64_t va, uint64_t bytes, uint64_t dma)
{
	struct wire_region r = {.va = va, .bytes = bytes, .dma = dma};
	uint32_t at;

	if (!bytes || va + bytes < va || dma + bytes < dma)
		return err_set(-EINVAL, "map: a region of %llu bytes at %#llx is empty or wraps around",
		               (unsigned long long)bytes, (unsigned long long)va);
	at = regions_to(m, va);
	if ((at < m->n && va + bytes > m->regions[at].va) ||
	    (at && m->regions[at - 1].va + m->regions[at - 1].bytes > va))
		return err_set(-EEXIST, "map: memory at %#llx is registered already", (unsigned long long)va);
	if (m->n == m->room) {
		uint32_t room = m->room ? m->room * 2 : 16;
		struct wire_region *grown = realloc(m->regions, room * sizeof(*grown));

		if (!grown)
			return err_set(-ENOMEM, "map: no memory for %u regions", room);
		m->regions = grown;
		m->room = room;
	}
	memmove(&m->regions[at + 1], &m->regions[at], (m->n - at) * sizeof(*m->regions));
	m->regions[at] = r;
	m->n++;
	if (at + 1 < m->n && continues(&m->regions[at], &m->regions[at + 1])) {
		m->regions[at].bytes += m->regions[at + 1].bytes;
		remove_at(m, at + 1);
	}
	if (at && continues(&m->regions[at - 1], &m->regions[at])) {
		m->regions[at - 1].bytes += m->regions[at].bytes;
		remove_at(m, at);
	}
	return 0;
}

int map_find(const struct map *m, uint64_t va, uint64_t bytes, uint64_t *dma)
{
	uint32_t i = regions_to(m, va);
	const struct wire_region *r = i ? &m->regions[i - 1] : NULL;

	if (!r || va - r->va >= r->bytes || r->bytes - (va - r->va) < bytes)
		return -EFAULT;
	*dma = r->dma + (va - r->va);
	return 0;
}

size_t map_ram_bytes(const struct map *m) { return m->room * sizeof(*m->regions); }

struct wire_map map_view(const struct map *m)
{
	struct wire_map v = {.regions = m->regions, .n = m->n};

	return v;
}
