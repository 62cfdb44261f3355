/*
 * hash.h - digests and checksums by well-kept libraries: SHA-256 (OpenSSL) for keys, XXH3 (xxhash) for metadata.
 * Checksums of objects and slot headers are not here: they are computed by device code too (geom/objsum.h).
 */
#ifndef TUTTI_BASE_HASH_H
#define TUTTI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_DIGEST_BYTES 32

struct hash; /* a SHA-256 in progress; reusable, one thread at a time */

/* NULL: no memory. */
struct hash *hash_new(void);
void hash_free(struct hash *h);
void hash_begin(struct hash *h);
void hash_add(struct hash *h, const void *data, size_t bytes);
void hash_end(struct hash *h, uint8_t digest[HASH_DIGEST_BYTES]);

/* XXH3, 64 bits. */
uint64_t hash_xxh3(const void *data, size_t bytes);

#endif
