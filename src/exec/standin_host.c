/* standin_host.c - the stand-in for an engine on the host: the calling thread computes, at memory speed. */
#include "exec/standin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

#define HUGE_BYTES (2ull << 20)
#define RUN_WORDS 512u /* compared before looking whether something differed */

/* ---- bytes ---- */

void standin_fill(uint64_t seed, uint64_t offset, void *to, size_t bytes)
{
	uint8_t *p = to;
	uint64_t x, words;

	for (; bytes && offset % 8; bytes--)
		*p++ = standin_byte(seed, offset++);
	words = bytes / 8;
	x = seed + offset / 8 * STANDIN_STEP;
	for (uint64_t i = 0; i < words; i++, x += STANDIN_STEP) {
		uint64_t w = x ^ (x >> 29);

		memcpy(p + i * 8, &w, sizeof(w));
	}
	p += words * 8;
	offset += words * 8;
	for (bytes -= words * 8; bytes; bytes--)
		*p++ = standin_byte(seed, offset++);
}

static uint64_t differ_bytewise(uint64_t seed, uint64_t offset, const uint8_t *p, size_t bytes, uint64_t *first)
{
	uint64_t n = 0;

	for (size_t i = 0; i < bytes; i++) {
		int wrong = p[i] != standin_byte(seed, offset + i);

		if (wrong && offset + i < *first)
			*first = offset + i;
		n += (uint64_t)wrong;
	}
	return n;
}

/* 1 if one of the words differs. */
static int words_differ(uint64_t seed, uint64_t from, const uint8_t *p, size_t words)
{
	uint64_t x = seed + from * STANDIN_STEP, bad = 0;

	for (size_t i = 0; i < words; i++, x += STANDIN_STEP) {
		uint64_t w;

		memcpy(&w, p + i * 8, sizeof(w));
		bad |= w ^ x ^ (x >> 29);
	}
	return bad != 0;
}

uint64_t standin_differ(uint64_t seed, uint64_t offset, const void *from, size_t bytes, uint64_t *first)
{
	const uint8_t *p = from;
	size_t head = (size_t)(-offset % 8);
	uint64_t n;

	if (head > bytes)
		head = bytes;
	n = differ_bytewise(seed, offset, p, head, first);
	p += head;
	offset += head;
	bytes -= head;
	while (bytes >= 8) {
		size_t words = bytes / 8 < RUN_WORDS ? bytes / 8 : RUN_WORDS;

		if (words_differ(seed, offset / 8, p, words))
			n += differ_bytewise(seed, offset, p, words * 8, first);
		p += words * 8;
		offset += words * 8;
		bytes -= words * 8;
	}
	return n + differ_bytewise(seed, offset, p, bytes, first);
}

/* ---- memory ---- */

static int host_open(struct standin *s)
{
	uint8_t *p, *aligned;

	p = mmap(NULL, s->bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	         0);
	if (p == MAP_FAILED)
		return err_set(-errno, "KV memory of %llu bytes: %s", (unsigned long long)s->bytes, strerror(errno));
	aligned = (uint8_t *)(((uintptr_t)p + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
	if (aligned > p)
		munmap(p, (size_t)(aligned - p));
	if (p + HUGE_BYTES > aligned)
		munmap(aligned + s->bytes, (size_t)(p + HUGE_BYTES - aligned));
	(void)madvise(aligned, s->bytes, MADV_HUGEPAGE); /* only makes it faster */
	s->memory = aligned;
	snprintf(s->text, sizeof(s->text), "host memory");
	return 0;
}

static void host_close(struct standin *s)
{
	if (s->memory)
		munmap(s->memory, s->bytes);
}

static int host_clear(struct standin *s)
{
	memset(s->memory, 0, s->bytes);
	return 0;
}

/* ---- a worker ---- */

static int host_worker_open(struct standin_worker *w)
{
	w->blocks = calloc(w->blocks_max, sizeof(*w->blocks));
	w->found = calloc(w->blocks_max, sizeof(*w->found));
	w->stamps = calloc(w->layout.layers, 2 * sizeof(*w->stamps));
	snprintf(w->text, sizeof(w->text), "the calling thread");
	return w->blocks && w->found && w->stamps ? 0 : err_set(-ENOMEM, "no memory for %zu blocks", w->blocks_max);
}

static void host_worker_close(struct standin_worker *w)
{
	free(w->blocks);
	free(w->found);
	free(w->stamps);
}

static int host_begin(struct standin_worker *w)
{
	for (size_t i = 0; i < w->n; i++)
		w->found[i] = (struct standin_found){0, UINT64_MAX};
	return 0;
}

static int host_stamp(struct standin_worker *w, uint64_t *at)
{
	(void)w;
	*at = port_now_ns();
	return 0;
}

static void segment_run(const struct standin_job *j, const struct standin_block *b, struct standin_found *f,
                        uint32_t segment)
{
	uint8_t *p = j->layer_base + b->block * j->block_stride + segment / j->inner_count * j->outer_stride +
	             segment % j->inner_count * j->inner_stride;
	uint64_t seed = standin_seed(b->key, j->layer), offset = segment * j->segment_bytes, first = UINT64_MAX;

	if (j->what == STANDIN_COMPUTE) {
		standin_fill(seed, offset, p, j->segment_bytes);
		return;
	}
	f->wrong += standin_differ(seed, offset, p, j->segment_bytes, &first);
	first += first < UINT64_MAX ? (uint64_t)j->layer * j->outer_count * j->inner_count * j->segment_bytes : 0;
	if (first < f->first)
		f->first = first;
}

static int host_run(struct standin_worker *w, struct standin_job *j, size_t first)
{
	for (size_t i = first; i < first + j->n; i++)
		for (uint32_t s = 0; s < j->outer_count * j->inner_count; s++)
			segment_run(j, &w->blocks[i], &w->found[i], s);
	return 0;
}

static int host_end(struct standin_worker *w, uint64_t deadline_ns)
{
	(void)w;
	(void)deadline_ns;
	return 0;
}

const struct standin_ops standin_host = {
    .executor = TUTTI_EXEC_HOST,
    .open = host_open,
    .close = host_close,
    .clear = host_clear,
    .worker_open = host_worker_open,
    .worker_close = host_worker_close,
    .begin = host_begin,
    .stamp = host_stamp,
    .run = host_run,
    .end = host_end,
};
