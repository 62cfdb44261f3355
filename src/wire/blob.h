/*
 * blob.h - plans and completions as bytes that an engine carries between its scheduler and its workers.
 *
 * Little endian, versioned, length-checked, with a checksum: a damaged or foreign blob is refused, never believed. Both
 * ends are processes of one host (times are its CLOCK_MONOTONIC).
 */
#ifndef TUTTI_WIRE_BLOB_H
#define TUTTI_WIRE_BLOB_H

#include <stdint.h>

#ifdef __cplusplus
#define BLOB_ASSERT(c, m) static_assert(c, m)
#else
#define BLOB_ASSERT(c, m) _Static_assert(c, m)
#endif

#define WIRE_BLOB_PLAN 0x314e4c5054545554ull       /* "TUTTPLN1" */
#define WIRE_BLOB_COMPLETION 0x31504d4354545554ull /* "TUTTCMP1" */

enum { WIRE_BLOB_SYNCED = 1 }; /* flags: all blocks were synced; may be read without checksums */

struct wire_blob {
	uint64_t magic;
	uint64_t sum;   /* XXH3 of everything behind this field */
	uint64_t bytes; /* of the whole blob */
	uint64_t epoch;
	uint64_t lease;
	uint64_t expiry_ns;
	uint64_t generation;
	uint64_t sequence;
	uint32_t op; /* enum tutti_op */
	uint32_t flags;
	uint32_t n;     /* entries that follow */
	uint32_t rank;  /* of a completion */
	uint64_t first; /* entry 0's place in the lease or reservation */
	uint32_t depth; /* of entry 0 */
	uint32_t rsvd;
	uint8_t ns_digest[32];
	uint8_t parent[32]; /* key before entry 0 */
};
BLOB_ASSERT(sizeof(struct wire_blob) == 160, "blob header");

struct wire_blob_entry {
	uint32_t slot;
	int32_t value; /* plan: 1 if the header on disk may be valid; completion: the result */
	uint8_t key[32];
};
BLOB_ASSERT(sizeof(struct wire_blob_entry) == 40, "blob entry");

#endif
