/*
 * fuzz_table.c - records of namespaces and segments of any content with right sums. First byte: bit 0 seals, bit 1 an
 * unclean pool would be scanned (the checkpoint does not fit then); then pieces: number of the record, count of
 * patches, patches.
 */
#include "fuzz/pool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size, *at = data + 1;
	const struct wire_super *w;

	if (size < 1)
		return 0;
	pool_make(1);
	pool_restore();
	w = (const struct wire_super *)(const void *)pool.mem[0];
	while (end - at >= 2) {
		/* The first four namespaces, then segments; both copies alike. */
		uint32_t record = at[0] % (4 + w->n_segments);
		size_t n = (size_t)(at[1] % 32) * 3;
		uint8_t *page =
		    pool.mem[0] + 16384 + 8192ull * (record < 4 ? record : record - 4 + STORE_NAMESPACES_MAX);

		at += 2;
		if (n > (size_t)(end - at))
			n = (size_t)(end - at);
		for (int copy = 0; copy < 2; copy++) {
			pool_patch(page + 4096 * copy, 4096, at, n);
			if (data[0] & 1)
				pool_seal(page + 4096 * copy, 4096);
		}
		at += n;
	}
	pool_use();
	return 0;
}
