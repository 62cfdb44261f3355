/*
 * header.h - fill and check a slot's header (wire/header.h). Pure; GPU and CPU compile the same lines.
 */
#ifndef TUTTI_GEOM_HEADER_H
#define TUTTI_GEOM_HEADER_H

#include "geom/objsum.h"
#include "wire/header.h"

enum geom_header_state {
	GEOM_HEADER_OK = 0,
	GEOM_HEADER_EMPTY,     /* no magic: never written, or invalidated */
	GEOM_HEADER_CORRUPT,   /* magic, but its own checksum or a count is wrong */
	GEOM_HEADER_FOREIGN,   /* sound, but of another key, namespace, generation or rank than expected */
};

PORT_FN uint64_t *geom_header_sums(struct wire_header *h) { return (uint64_t *)(h + 1); }
PORT_FN const uint64_t *geom_header_sums_const(const struct wire_header *h) { return (const uint64_t *)(h + 1); }

PORT_FN uint64_t geom_header_sum(const struct wire_header *h)
{
	uint64_t bytes = sizeof(*h) + 8ull * h->objects;

	/* The sum field is lane 1: take its own term out and a zero's in. */
	return objsum(h, bytes) - objsum_term(h->sum, 1) + objsum_term(0, 1);
}

/* Sets magic, version and own checksum; the caller has filled everything else, sums included. */
PORT_FN void geom_header_seal(struct wire_header *h)
{
	h->magic = WIRE_HEADER_MAGIC;
	h->version = WIRE_HEADER_VERSION;
	h->sum = geom_header_sum(h);
}

/* EMPTY, CORRUPT or OK. `objects` is what the geometry says; a header that claims another number is corrupt. */
PORT_FN enum geom_header_state geom_header_check(const struct wire_header *h, uint32_t objects)
{
	if (h->magic != WIRE_HEADER_MAGIC)
		return GEOM_HEADER_EMPTY;
	if (h->version != WIRE_HEADER_VERSION || h->objects != objects || geom_header_sum(h) != h->sum)
		return GEOM_HEADER_CORRUPT;
	return GEOM_HEADER_OK;
}

PORT_FN int geom_key_equal(const uint8_t *a, const uint8_t *b)
{
	uint32_t diff = 0;

	for (int i = 0; i < WIRE_KEY_BYTES; i++)
		diff |= (uint32_t)(a[i] ^ b[i]);
	return diff == 0;
}

/* FOREIGN unless the sound header h is the one that a reader expects in this slot. */
PORT_FN enum geom_header_state geom_header_match(const struct wire_header *h, const uint8_t *ns_digest,
                                                 const uint8_t *key, uint64_t generation, uint32_t rank)
{
	if (h->rank != rank || h->generation != generation || !geom_key_equal(h->key, key) ||
	    !geom_key_equal(h->ns_digest, ns_digest))
		return GEOM_HEADER_FOREIGN;
	return GEOM_HEADER_OK;
}

#endif
