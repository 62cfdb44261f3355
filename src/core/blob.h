/* blob.h - sealing and opening wire/blob.h. */
#ifndef TUTTI_CORE_BLOB_H
#define TUTTI_CORE_BLOB_H

#include <stddef.h>

#include "wire/blob.h"

size_t blob_bytes(size_t n);
struct wire_blob_entry *blob_entries(struct wire_blob *b);
/* Sets magic, bytes and sum; everything else, entries included, is filled. */
void blob_seal(struct wire_blob *b, uint64_t magic);
/*
 * Checks data against `magic`; *out points to a copy of the header, *entries into data (which may be unaligned; entries
 * are read with blob_entry_at). -EBADMSG: not such a blob, or damaged.
 */
int blob_open(const void *data, size_t bytes, uint64_t magic, struct wire_blob *out);
struct wire_blob_entry blob_entry_at(const void *data, size_t i);

#endif
