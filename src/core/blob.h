/* blob.h - sealing and opening wire/blob.h. */
#ifndef TUTTI_CORE_BLOB_H
#define TUTTI_CORE_BLOB_H

#include <stddef.h>

#include "wire/blob.h"

size_t blob_bytes(size_t n);
struct wire_blob_entry *blob_entries(struct wire_blob *b);
/* A caller's buffer, which may be unaligned: entries are written and read with these. */
void blob_entry_put(void *data, size_t i, const struct wire_blob_entry *e);
struct wire_blob_entry blob_entry_at(const void *data, size_t i);
/* Sets magic, bytes and sum; everything else, entries included, is filled. data may be unaligned. */
void blob_seal(void *data, uint64_t magic);
/*
 * Checks data (which may be unaligned) against `magic`; *out is a copy of the header. -EBADMSG: not such a blob, or
 * damaged.
 */
int blob_open(const void *data, size_t bytes, uint64_t magic, struct wire_blob *out);

#endif
