/* fuzz_checkpoint.c - a checkpoint of any content with a right sum, of the length that the first two bytes say (0: as
 * it was). */
#include "fuzz/pool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wire_super *w;
	uint64_t both[2] = {0, 0}, length;

	if (size < 2)
		return 0;
	pool_make(1);
	pool_restore();
	w = (struct wire_super *)(void *)pool.mem[0];
	if (w[1].sequence > w[0].sequence)
		w++;
	length = (uint64_t)data[0] | (uint64_t)data[1] << 8;
	if (!length || length > w->checkpoint_room_bytes)
		length = w->checkpoint_bytes;
	POOL_MUST(length && length <= WIRE_CHECKPOINT_BLOCK);
	pool_patch(pool.mem[0] + w->checkpoint_start_bytes, length, data + 2, size - 2);
	both[1] = hash_xxh3(pool.mem[0] + w->checkpoint_start_bytes, length);
	w->checkpoint_bytes = length;
	w->checkpoint_sum = hash_xxh3(both, sizeof(both));
	pool_seal((uint8_t *)w, sizeof(*w));
	pool_use();
	return 0;
}
