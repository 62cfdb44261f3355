/*
 * objsum.h - the checksum of an object: 64 bits, the same on one SIMD core and on 256 GPU threads.
 *
 * An object is read as little-endian 64-bit lanes, the last one padded with zeros. Lane i contributes
 *
 *     x = lane ^ (i + 1) * C,    term = x + low32(x) * high32(x)      (mod 2^64)
 *
 * and the checksum is seed(length) + the sum of all terms. A sum has no order, so any split at 16-byte
 * boundaries (MDTS, copy stages, merged I/O, GPU threads) adds up, in any order. Because the key C * (i + 1)
 * differs for each lane, moved, swapped and zeroed pieces change it. A change inside one 32-bit half of a
 * lane is always found: it changes the term by d * (high + 1) or d * (low + 2^32) with 0 < |d| < 2^32, and
 * neither is a multiple of 2^64. It is no defence against someone who chooses the bytes.
 */
#ifndef TUTTI_GEOM_OBJSUM_H
#define TUTTI_GEOM_OBJSUM_H

#include "port/port.h"

#define OBJSUM_LANE_KEY 0x9E3779B97F4A7C15ull
#define OBJSUM_LENGTH_KEY 0xC2B2AE3D27D4EB4Full
#define OBJSUM_SEED 0x165667B19E3779F9ull

PORT_FN uint64_t objsum_seed(uint64_t length_bytes) { return OBJSUM_SEED + length_bytes * OBJSUM_LENGTH_KEY; }

PORT_FN uint64_t objsum_term(uint64_t lane, uint64_t index)
{
	uint64_t x = lane ^ ((index + 1) * OBJSUM_LANE_KEY);

	return x + (x & 0xffffffffull) * (x >> 32);
}

/*
 * The part of the sum that `bytes` bytes at byte offset `offset_bytes` of the object contribute. offset_bytes
 * is a multiple of 16; bytes is too, except for the last piece of an object. Slow and plain: the reference,
 * and what a GPU thread runs on its share.
 */
PORT_FN uint64_t objsum_part_plain(const void *data, uint64_t bytes, uint64_t offset_bytes)
{
	const unsigned char *p = (const unsigned char *)data;
	uint64_t index = offset_bytes / 8, sum = 0;

	for (uint64_t at = 0; at < bytes; at += 8, index++) {
		uint64_t lane = 0;
		uint64_t n = bytes - at < 8 ? bytes - at : 8;

		for (uint64_t k = 0; k < n; k++)
			lane |= (uint64_t)p[at + k] << (8 * k);
		sum += objsum_term(lane, index);
	}
	return sum;
}

#ifdef __cplusplus
extern "C" {
#endif
/* Host only. The same value at memory speed; by AVX2 where the CPU has it, SSE2 otherwise. Thread-safe. */
uint64_t objsum_part(const void *data, uint64_t bytes, uint64_t offset_bytes);
/*
 * Host only. Copies and sums in one pass. dst and src do not overlap. A large piece is written past the caches, at
 * best where dst is a multiple of 32.
 */
uint64_t objsum_copy_part(void *dst, const void *src, uint64_t bytes, uint64_t offset_bytes);

/* The ways in which the host can compute it; for tests, bench and reports. */
enum objsum_isa { OBJSUM_SCALAR = 0, OBJSUM_SSE2 = 1, OBJSUM_AVX2 = 2, OBJSUM_ISAS = 3 };
/* The one that objsum_part and objsum_copy_part use on this machine. */
enum objsum_isa objsum_isa_best(void);
/* "scalar", "sse2", "avx2". */
const char *objsum_isa_name(enum objsum_isa isa);
/* By a certain one, which must not be above objsum_isa_best(). dst NULL: sums only. */
uint64_t objsum_isa_part(enum objsum_isa isa, void *dst, const void *src, uint64_t bytes, uint64_t offset_bytes);
#ifdef __cplusplus
}
#endif

/* The whole object's checksum. */
PORT_FN uint64_t objsum(const void *data, uint64_t bytes)
{
#if defined(__CUDA_ARCH__)
	return objsum_seed(bytes) + objsum_part_plain(data, bytes, 0);
#else
	return objsum_seed(bytes) + objsum_part(data, bytes, 0);
#endif
}

#endif
