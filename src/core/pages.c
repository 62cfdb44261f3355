/* pages.c - see pages.h. */
#include "core/pages.h"

#include <stddef.h>
#include <sys/mman.h>

#define HUGE_BYTES (2ull << 20)

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

void pages_advise(void *p, uint64_t bytes)
{
	uint64_t start = (uint64_t)(uintptr_t)p / HUGE_BYTES * HUGE_BYTES;
	uint64_t end = round_up((uint64_t)(uintptr_t)p + bytes, HUGE_BYTES);

	if (bytes >= HUGE_BYTES)
		madvise((void *)(uintptr_t)start, end - start, MADV_HUGEPAGE); /* refused, or in part, is fine */
}

void *pages_alloc(uint64_t bytes)
{
	uint64_t size = bytes < HUGE_BYTES ? bytes : round_up(bytes, HUGE_BYTES),
	         slack = bytes < HUGE_BYTES ? 0 : HUGE_BYTES;
	uint8_t *p, *start;

	/* Not for children, who may use nothing of it: a fork copies at once what is pinned for I/O. */
	p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size + slack, MADV_DONTFORK);
	if (!slack)
		return p;
	/* A huge page begins at a multiple of its size: keep such a piece, give the rest back. */
	start = (uint8_t *)(uintptr_t)round_up((uint64_t)(uintptr_t)p, HUGE_BYTES);
	if (start > p)
		munmap(p, (size_t)(start - p));
	if (start < p + slack)
		munmap(start + size, (size_t)(p + slack - start));
	pages_advise(start, size);
	return start;
}

void pages_free(void *p, uint64_t bytes)
{
	if (p)
		munmap(p, bytes < HUGE_BYTES ? bytes : round_up(bytes, HUGE_BYTES));
}
