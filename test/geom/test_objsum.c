/*
 * test_objsum.c - the object checksum: all ways to compute it agree with the plain one and with one written here from
 * the definition alone; splits add up in any order; damage that storage really does is found.
 */
#include "geom/objsum.h"
#include "test/check.h"

#define BUF_BYTES (1u << 20)

static unsigned char data[BUF_BYTES + 64], copy[BUF_BYTES + 64] __attribute__((aligned(64))), other[BUF_BYTES];

static void fill_random(uint64_t seed)
{
	for (uint32_t i = 0; i < BUF_BYTES; i += 8) {
		uint64_t v = check_random(&seed);

		memcpy(data + i, &v, 8);
	}
}

/* From the definition, byte by byte, in 128-bit arithmetic; knows nothing of lanes that fit a register. */
static uint64_t slow_part(const unsigned char *p, uint64_t bytes, uint64_t offset)
{
	const unsigned __int128 two64 = (unsigned __int128)1 << 64;
	unsigned __int128 sum = 0;

	for (uint64_t lane = 0; lane * 8 < bytes; lane++) {
		unsigned __int128 key = (unsigned __int128)(offset / 8 + lane + 1) * 0x9E3779B97F4A7C15ull % two64;
		uint64_t x = 0;

		for (int byte = 7; byte >= 0; byte--) {
			uint64_t at = lane * 8 + (uint64_t)byte;

			x = x * 256 + (at < bytes ? p[at] : 0);
		}
		x ^= (uint64_t)key;
		sum += (unsigned __int128)(x % 4294967296u) * (x / 4294967296u) + x;
	}
	return (uint64_t)(sum % two64);
}

static uint64_t slow(const unsigned char *p, uint64_t bytes)
{
	return 0x165667B19E3779F9ull + bytes * 0xC2B2AE3D27D4EB4Full + slow_part(p, bytes, 0);
}

/* Every way, summing and copying; the copy must be exact and must not touch a byte more. */
static void all_ways(uint32_t from, uint32_t to, uint64_t bytes, uint64_t offset)
{
	uint64_t want = slow_part(data + from, bytes, offset);

	CHECK(objsum_part_plain(data + from, bytes, offset) == want);
	CHECK(objsum_part(data + from, bytes, offset) == want);
	for (int isa = 0; isa <= (int)objsum_isa_best(); isa++) {
		CHECK(objsum_isa_part((enum objsum_isa)isa, NULL, data + from, bytes, offset) == want);
		memset(copy + to, 0x77, bytes + 1);
		copy[to ? to - 1 : BUF_BYTES] = 0x77;
		CHECK(objsum_isa_part((enum objsum_isa)isa, copy + to, data + from, bytes, offset) == want);
		CHECK(memcmp(copy + to, data + from, bytes) == 0);
		CHECK_EQ(copy[to + bytes], 0x77);
		CHECK_EQ(copy[to ? to - 1 : BUF_BYTES], 0x77);
	}
	memset(copy + to, 0x77, bytes);
	CHECK(objsum_copy_part(copy + to, data + from, bytes, offset) == want);
	CHECK(memcmp(copy + to, data + from, bytes) == 0);
}

static void every_short_length(void)
{
	fill_random(1);
	for (uint64_t bytes = 0; bytes <= 700; bytes++)
		all_ways((uint32_t)bytes % 33, (uint32_t)bytes % 17, bytes, bytes % 5 * 16);
}

static void random_lengths_offsets_alignments(void)
{
	uint64_t seed = 2;

	fill_random(3);
	for (int i = 0; i < 400; i++) {
		uint64_t bytes = check_random(&seed) % (i % 10 ? 20000 : 300000);
		uint64_t offset = check_random(&seed) >> (check_random(&seed) % 40) << 4;

		all_ways((uint32_t)(check_random(&seed) % 64), (uint32_t)(check_random(&seed) % 32), bytes, offset);
	}
}

/* Large copies to aligned memory may take another way than the rest. */
static void large_copies_to_aligned_memory(void)
{
	fill_random(12);
	for (uint64_t bytes = 32768 - 260; bytes < 32768 + 260; bytes += 13)
		for (uint32_t to = 0; to <= 64; to += 16)
			all_ways((uint32_t)(bytes % 7 * 5), to, bytes, 4096);
	for (uint32_t to = 0; to <= 32; to += 8)
		all_ways(3, to, BUF_BYTES - 100, 0);
}

static void all_zeros_and_all_ones(void)
{
	for (int byte = 0; byte < 256; byte += 255) {
		memset(data, byte, BUF_BYTES);
		for (uint64_t bytes = 0; bytes < 9000; bytes += 411)
			all_ways(1, 3, bytes, 1u << 20);
	}
}

static void the_length_counts(void)
{
	memset(data, 0, 4096);
	for (uint64_t bytes = 1; bytes < 4096; bytes++)
		CHECK(objsum(data, bytes) != objsum(data, bytes - 1));
	fill_random(4);
	CHECK(objsum(data, 5000) == slow(data, 5000));
	CHECK(objsum(data, 0) == objsum_seed(0));
}

static void splits_add_up_in_any_order(void)
{
	uint64_t seed = 5, at[65];

	fill_random(6);
	for (int i = 0; i < 300; i++) {
		uint64_t bytes = 1 + check_random(&seed) % 200000, sum = objsum_seed(bytes);
		uint32_t n = 1 + (uint32_t)(check_random(&seed) % 64), order[64];

		for (uint32_t k = 1; k < n; k++)
			at[k] = check_random(&seed) % (bytes + 1) / 16 * 16;
		at[0] = 0;
		at[n] = bytes;
		for (uint32_t k = 1; k < n; k++) /* sort the cuts */
			for (uint32_t j = k; j > 1 && at[j] < at[j - 1]; j--) {
				uint64_t t = at[j];

				at[j] = at[j - 1];
				at[j - 1] = t;
			}
		for (uint32_t k = 0; k < n; k++) { /* a random order of the pieces */
			uint32_t j = (uint32_t)(check_random(&seed) % (k + 1));

			order[k] = order[j];
			order[j] = k;
		}
		for (uint32_t k = 0; k < n; k++)
			sum += objsum_part(data + at[order[k]], at[order[k] + 1] - at[order[k]], at[order[k]]);
		CHECK(sum == objsum(data, bytes));
	}
}

static void every_flipped_bit_is_found(void)
{
	for (int content = 0; content < 3; content++) {
		uint64_t bytes = 656, whole;

		fill_random(7);
		if (content < 2)
			memset(data, content ? 0xff : 0, bytes);
		whole = objsum(data, bytes);
		for (uint32_t bit = 0; bit < bytes * 8; bit++) {
			data[bit / 8] ^= (unsigned char)(1u << bit % 8);
			CHECK(objsum(data, bytes) != whole);
			data[bit / 8] ^= (unsigned char)(1u << bit % 8);
		}
		CHECK(objsum(data, bytes) == whole);
	}
}

/* The header promises it for any change inside one half of a lane; here the worst differences and many random ones. */
static void any_change_inside_half_a_lane_is_found(void)
{
	uint64_t seed = 8;

	for (int i = 0; i < 2000000; i++) {
		uint64_t r = check_random(&seed), lane = check_random(&seed), index = check_random(&seed) % 65536;
		uint64_t key = (index + 1) * OBJSUM_LANE_KEY;
		uint32_t diff = i % 3 == 0 ? 1u << r % 32 : i % 3 == 1 ? 0xffffffffu << r % 32 : (uint32_t)(r | 1);

		if (i % 5 == 0) /* halves that the key turns into 0 and ~0 */
			lane = key ^ (i % 2 ? 0xffffffff00000000ull : 0xffffffffull);
		CHECK(objsum_term(lane, index) != objsum_term(lane ^ diff, index));
		CHECK(objsum_term(lane, index) != objsum_term(lane ^ (uint64_t)diff << 32, index));
	}
}

static void swap_pieces(uint64_t a, uint64_t b, uint64_t bytes)
{
	memcpy(other, data + a, bytes);
	memmove(data + a, data + b, bytes);
	memcpy(data + b, other, bytes);
}

static void zeroed_and_swapped_pieces_are_found(void)
{
	static const uint32_t pieces[] = {8, 16, 512, 4096, 16384};
	const uint64_t bytes = 128 << 10;
	uint64_t whole, seed = 9;

	fill_random(10);
	whole = objsum(data, bytes);
	for (uint32_t p = 0; p < 5; p++)
		for (int i = 0; i < 60; i++) {
			uint64_t n = pieces[p], a = check_random(&seed) % (bytes / n) * n;
			uint64_t b = (a + n + check_random(&seed) % (bytes / n - 1) * n) % bytes;

			memcpy(copy, data + a, n);
			memset(data + a, 0, n);
			CHECK(objsum(data, bytes) != whole);
			memcpy(data + a, data + b, n); /* the right bytes of another place */
			CHECK(objsum(data, bytes) != whole);
			memcpy(data + a, copy, n);
			swap_pieces(a, b, n);
			CHECK(objsum(data, bytes) != whole);
			swap_pieces(a, b, n);
		}
	CHECK(objsum(data, bytes) == whole);
}

static void shifted_and_cut_objects_are_found(void)
{
	const uint64_t bytes = 10496;
	uint64_t whole;

	fill_random(11);
	whole = objsum(data, bytes);
	for (uint64_t shift = 1; shift < 600; shift++)
		CHECK(objsum(data + shift, bytes) != whole);
	for (uint64_t n = 0; n < bytes; n++) /* the length that the header promises is summed in */
		CHECK(objsum(data, n) != whole);
	/* Only the first `from` bytes came, the rest is old: zeros, ones. */
	for (uint64_t from = 0; from < bytes; from += 64) {
		memcpy(other, data, from);
		memset(other + from, 0, bytes - from);
		CHECK(objsum(other, bytes) != whole);
		memset(other + from, 0xff, bytes - from);
		CHECK(objsum(other, bytes) != whole);
	}
}

/* Repeated content, as padding and constant tensors are: each page counts for another place, and so differently. */
static void repeated_content_at_another_place_is_found(void)
{
	uint64_t a, b;

	for (uint32_t i = 0; i < BUF_BYTES; i++)
		data[i] = (unsigned char)(i % 4096 / 16);
	a = objsum_part(data, 4096, 0);
	for (uint64_t page = 1; page < 256; page++) {
		b = objsum_part(data, 4096, page * 4096);
		CHECK(b != a);
		a = b;
	}
}

int main(void)
{
	printf("# fastest here: %s\n", objsum_isa_name(objsum_isa_best()));
	CHECK_RUN(every_short_length);
	CHECK_RUN(random_lengths_offsets_alignments);
	CHECK_RUN(large_copies_to_aligned_memory);
	CHECK_RUN(all_zeros_and_all_ones);
	CHECK_RUN(the_length_counts);
	CHECK_RUN(splits_add_up_in_any_order);
	CHECK_RUN(every_flipped_bit_is_found);
	CHECK_RUN(any_change_inside_half_a_lane_is_found);
	CHECK_RUN(zeroed_and_swapped_pieces_are_found);
	CHECK_RUN(shifted_and_cut_objects_are_found);
	CHECK_RUN(repeated_content_at_another_place_is_found);
	return check_end();
}
