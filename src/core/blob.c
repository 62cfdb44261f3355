/* blob.c - sealing and opening wire/blob.h. */
#include "core/blob.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"

#define SUMMED_FROM (2 * sizeof(uint64_t)) /* behind magic and sum */

size_t blob_bytes(size_t n) { return sizeof(struct wire_blob) + n * sizeof(struct wire_blob_entry); }

struct wire_blob_entry *blob_entries(struct wire_blob *b) { return (struct wire_blob_entry *)(b + 1); }

void blob_seal(void *data, uint64_t magic)
{
	struct wire_blob b;

	memcpy(&b, data, sizeof(b));
	b.magic = magic;
	b.bytes = blob_bytes(b.n);
	memcpy(data, &b, sizeof(b));
	b.sum = hash_xxh3((const char *)data + SUMMED_FROM, b.bytes - SUMMED_FROM);
	memcpy(data, &b, sizeof(b));
}

int blob_open(const void *data, size_t bytes, uint64_t magic, struct wire_blob *out)
{
	const char *what = magic == WIRE_BLOB_PLAN ? "plan" : "completion";

	if (!data || bytes < sizeof(*out))
		return err_set(-EBADMSG, "%s blob: %zu bytes are too few", what, bytes);
	memcpy(out, data, sizeof(*out));
	if (out->magic != magic)
		return err_set(-EBADMSG, "%s blob: these bytes are something else", what);
	if (out->bytes != bytes || out->bytes != blob_bytes(out->n))
		return err_set(-EBADMSG, "%s blob: says %llu bytes and %u entries, has %zu bytes", what,
		               (unsigned long long)out->bytes, out->n, bytes);
	if (hash_xxh3((const char *)data + SUMMED_FROM, bytes - SUMMED_FROM) != out->sum)
		return err_set(-EBADMSG, "%s blob: damaged on its way (checksum)", what);
	return 0;
}

void blob_entry_put(void *data, size_t i, const struct wire_blob_entry *e)
{
	memcpy((char *)data + blob_bytes(i), e, sizeof(*e));
}

struct wire_blob_entry blob_entry_at(const void *data, size_t i)
{
	struct wire_blob_entry e;

	memcpy(&e, (const char *)data + blob_bytes(i), sizeof(e));
	return e;
}
