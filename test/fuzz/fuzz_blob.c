/*
 * fuzz_blob.c - plan and completion blobs from another process. The checksum would hide everything behind it from the
 * fuzzer, so half of the inputs get a right one.
 */
#include <stdlib.h>
#include <string.h>

#include "core/blob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const uint64_t magics[2] = {WIRE_BLOB_PLAN, WIRE_BLOB_COMPLETION};
	struct wire_blob *copy = malloc(bytes + sizeof(*copy)), b;
	uint32_t sum = 0;

	if (!copy)
		return 0;
	memcpy(copy, data, bytes);
	for (int k = 0; k < 2; k++) {
		if (bytes >= sizeof(*copy) && data[0] & 1 && bytes == blob_bytes(copy->n))
			blob_seal(copy, magics[k]);
		if (!blob_open(copy, bytes, magics[k], &b))
			for (uint32_t i = 0; i < b.n; i++)
				sum += blob_entry_at(copy, i).slot;
	}
	free(copy);
	__asm__ volatile("" ::"r"(sum)); /* so that the reads stay */
	return 0;
}
