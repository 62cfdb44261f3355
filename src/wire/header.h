/*
 * header.h - the header of a slot's share, as it lies on disk. Written last; it is the commit.
 *
 * Little endian. The fixed part is followed by one 64-bit checksum per object, ordered
 * [layer][object of the layer]. The whole is padded with zeros to geom.header_bytes (a multiple of 4096).
 */
#ifndef TUTTI_WIRE_HEADER_H
#define TUTTI_WIRE_HEADER_H

#include <stdint.h>

#ifdef __cplusplus
#define HEADER_ASSERT(c, m) static_assert(c, m)
#else
#define HEADER_ASSERT(c, m) _Static_assert(c, m)
#endif

#define WIRE_HEADER_MAGIC 0x3152444849545554ull /* "TUTIHDR1" */
#define WIRE_HEADER_VERSION 1u
#define WIRE_KEY_BYTES 32

struct wire_header {
	uint64_t magic;
	uint64_t sum; /* object checksum of the fixed part and the sums, with this field 0 */
	uint32_t version;
	uint32_t rank;
	uint32_t objects; /* number of sums that follow */
	uint32_t depth;   /* 0: first block of a chain */
	uint64_t object_bytes;
	uint64_t generation; /* the namespace's; a bump empties the namespace */
	uint64_t sequence;   /* one per reservation of a slot, the same in all shares, never reused in a pool */
	uint64_t epoch;      /* the store's epoch when it was written */
	uint8_t ns_digest[WIRE_KEY_BYTES];
	uint8_t key[WIRE_KEY_BYTES];
	uint8_t parent[WIRE_KEY_BYTES]; /* zeros: none */
	uint64_t rsvd[4];
};
HEADER_ASSERT(sizeof(struct wire_header) == 192, "slot header, fixed part");

#endif
