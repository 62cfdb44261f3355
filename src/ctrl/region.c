/* region.c - the memory that commands may name: a sorted table. */
#include "ctrl/decode.h"

#include <errno.h>
#include <string.h>

/* Index of the first region that ends behind addr. */
static uint32_t find(const struct ctrl_regions *t, uint64_t addr)
{
	uint32_t low = 0, high = t->n;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (t->r[mid].end <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

int ctrl_regions_add(struct ctrl_regions *t, uint64_t va, uint64_t bytes, int32_t buf)
{
	uint32_t i;

	if (!va || !bytes || va + bytes < va)
		return -EINVAL;
	i = find(t, va);
	if (i < t->n && t->r[i].va < va + bytes)
		return -EEXIST;
	if (t->n == CTRL_REGIONS_MAX)
		return -ENOSPC;
	memmove(&t->r[i + 1], &t->r[i], (t->n - i) * sizeof(t->r[0]));
	t->r[i] = (struct ctrl_region){.va = va, .end = va + bytes, .buf = buf};
	t->n++;
	return 0;
}

int ctrl_regions_remove(struct ctrl_regions *t, uint64_t va, uint64_t bytes, int32_t *buf)
{
	uint32_t i = find(t, va);

	if (i == t->n || t->r[i].va != va || t->r[i].end - va != bytes)
		return -ENOENT;
	*buf = t->r[i].buf;
	t->n--;
	memmove(&t->r[i], &t->r[i + 1], (t->n - i) * sizeof(t->r[0]));
	t->last = 0;
	return 0;
}

static int32_t piece_of(const struct ctrl_region *r, uint64_t addr, uint64_t bytes)
{
	uint64_t first = (addr - r->va) >> CTRL_BUF_SHIFT, last = (addr + bytes - 1 - r->va) >> CTRL_BUF_SHIFT;

	return r->buf < 0 || first != last ? -1 : r->buf + (int32_t)first;
}

int ctrl_regions_cover(struct ctrl_regions *t, uint64_t addr, uint64_t bytes, int32_t *piece)
{
	const struct ctrl_region *r = &t->r[t->last];
	uint32_t i;

	if (t->last < t->n && addr >= r->va && addr < r->end && bytes <= r->end - addr) {
		*piece = piece_of(r, addr, bytes);
		return 1;
	}
	i = find(t, addr);
	if (i == t->n || t->r[i].va > addr || addr + bytes < addr)
		return 0;
	t->last = i;
	r = &t->r[i];
	*piece = bytes <= r->end - addr ? piece_of(r, addr, bytes) : -1;
	/* Device code merges runs that touch, also where two regions touch. */
	for (; bytes > r->end - addr; r = &t->r[i]) {
		bytes -= r->end - addr;
		addr = r->end;
		if (++i == t->n || t->r[i].va != addr)
			return 0;
	}
	return 1;
}
