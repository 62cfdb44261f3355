/* test_blob.c - plans and completions that were damaged on their way: refused, every one of them. */
#include <errno.h>

#include "check.h"
#include "core/blob.h"

#define N 5

static size_t make(uint8_t *out, uint64_t magic)
{
	struct {
		struct wire_blob b;
		struct wire_blob_entry e[N];
	} x;

	memset(&x, 0, sizeof(x));
	x.b.epoch = 3;
	x.b.n = N;
	x.b.op = 1;
	for (uint32_t i = 0; i < N; i++) {
		x.e[i].slot = 100 + i;
		memset(x.e[i].key, (int)i + 1, sizeof(x.e[i].key));
	}
	blob_seal(&x.b, magic);
	memcpy(out, &x, blob_bytes(N));
	return blob_bytes(N);
}

static void sound_ones_are_read(void)
{
	uint8_t bytes[1024];
	struct wire_blob b;
	size_t n = make(bytes + 1, WIRE_BLOB_PLAN); /* unaligned on purpose */

	CHECK_EQ(blob_open(bytes + 1, n, WIRE_BLOB_PLAN, &b), 0);
	CHECK_EQ(b.n, N);
	CHECK_EQ(b.epoch, 3);
	for (uint32_t i = 0; i < N; i++) {
		CHECK_EQ(blob_entry_at(bytes + 1, i).slot, 100 + i);
		CHECK_EQ(blob_entry_at(bytes + 1, i).key[31], i + 1);
	}
	CHECK_EQ(blob_open(bytes + 1, n, WIRE_BLOB_COMPLETION, &b), -EBADMSG);
}

static void every_flipped_bit_is_found(void)
{
	uint8_t bytes[1024];
	struct wire_blob b;
	size_t n = make(bytes, WIRE_BLOB_COMPLETION);

	for (size_t i = 0; i < n * 8; i++) {
		bytes[i / 8] ^= (uint8_t)(1u << i % 8);
		CHECK_EQ(blob_open(bytes, n, WIRE_BLOB_COMPLETION, &b), -EBADMSG);
		bytes[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	CHECK_EQ(blob_open(bytes, n, WIRE_BLOB_COMPLETION, &b), 0);
}

static void cut_stretched_and_random(void)
{
	uint8_t bytes[1024] = {0};
	struct wire_blob b;
	uint64_t seed = 3;
	size_t n = make(bytes, WIRE_BLOB_PLAN);

	for (size_t i = 0; i < sizeof(bytes); i++)
		if (i != n)
			CHECK_EQ(blob_open(bytes, i, WIRE_BLOB_PLAN, &b), -EBADMSG);
	for (int round = 0; round < 10000; round++) {
		for (size_t i = 8; i < n; i += 8) {
			uint64_t v = check_random(&seed);

			memcpy(bytes + i, &v, 8);
		}
		CHECK_EQ(blob_open(bytes, n, WIRE_BLOB_PLAN, &b), -EBADMSG);
	}
	CHECK_EQ(blob_open(NULL, 0, WIRE_BLOB_PLAN, &b), -EBADMSG);
}

int main(void)
{
	CHECK_RUN(sound_ones_are_read);
	CHECK_RUN(every_flipped_bit_is_found);
	CHECK_RUN(cut_stretched_and_random);
	return check_end();
}
