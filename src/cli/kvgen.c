#include <string.h>

#include "cli/kvgen.h"
#include "cli/trace.h"

#define STEP 0x9E3779B97F4A7C15ull
#define RUN_WORDS 512u /* compared before looking whether something differed */

/* Adds, shifts, exclusive-ors: a compiler makes SIMD of it on any x86-64. */
static inline uint64_t word_of(uint64_t seed, uint64_t i)
{
	uint64_t x = seed + i * STEP;

	return x ^ (x >> 29);
}

uint64_t kvgen_seed(const struct tutti_key *key, uint32_t layer)
{
	uint64_t k;

	memcpy(&k, key->b, sizeof(k));
	return trace_mix(k + trace_mix(layer + 1u));
}

static uint8_t byte_of(uint64_t seed, uint64_t offset)
{
	uint64_t w = word_of(seed, offset / 8);
	uint8_t bytes[8];

	memcpy(bytes, &w, sizeof(w));
	return bytes[offset % 8];
}

void kvgen_fill(uint64_t seed, uint64_t offset, void *to, size_t bytes)
{
	uint8_t *p = to;
	uint64_t x, words;

	for (; bytes && offset % 8; bytes--)
		*p++ = byte_of(seed, offset++);
	words = bytes / 8;
	x = seed + offset / 8 * STEP;
	for (uint64_t i = 0; i < words; i++, x += STEP) {
		uint64_t w = x ^ (x >> 29);

		memcpy(p + i * 8, &w, sizeof(w));
	}
	p += words * 8;
	offset += words * 8;
	for (bytes -= words * 8; bytes; bytes--)
		*p++ = byte_of(seed, offset++);
}

static uint64_t mismatches_bytewise(uint64_t seed, uint64_t offset, const uint8_t *p, size_t bytes)
{
	uint64_t n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += p[i] != byte_of(seed, offset + i);
	return n;
}

/* 1 if one of the words differs. */
static int differs(uint64_t seed, uint64_t first, const uint8_t *p, size_t words)
{
	uint64_t x = seed + first * STEP, bad = 0;

	for (size_t i = 0; i < words; i++, x += STEP) {
		uint64_t w;

		memcpy(&w, p + i * 8, sizeof(w));
		bad |= w ^ x ^ (x >> 29);
	}
	return bad != 0;
}

uint64_t kvgen_mismatches(uint64_t seed, uint64_t offset, const void *from, size_t bytes)
{
	const uint8_t *p = from;
	size_t head = (size_t)(-offset % 8);
	uint64_t n;

	if (head > bytes)
		head = bytes;
	n = mismatches_bytewise(seed, offset, p, head);
	p += head;
	offset += head;
	bytes -= head;
	while (bytes >= 8) {
		size_t words = bytes / 8 < RUN_WORDS ? bytes / 8 : RUN_WORDS;

		if (differs(seed, offset / 8, p, words))
			n += mismatches_bytewise(seed, offset, p, words * 8);
		p += words * 8;
		offset += words * 8;
		bytes -= words * 8;
	}
	return n + mismatches_bytewise(seed, offset, p, bytes);
}
