/* fuzz_super.c - a superblock of any content with a right sum. First byte: bit 0 seals it, bit 1 changes the second
 * copy only. */
#include "fuzz/pool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct store_probe p;

	if (size < 1)
		return 0;
	pool_make(1);
	pool_restore();
	for (size_t copy = data[0] >> 1 & 1u; copy < 2; copy++) {
		uint8_t *at = pool.mem[0] + copy * sizeof(struct wire_super);

		pool_patch(at, sizeof(struct wire_super), data + 1, size - 1);
		if (data[0] & 1)
			pool_seal(at, sizeof(struct wire_super));
	}
	store_probe(&pool.m, 0, &p);
	pool_use();
	return 0;
}
