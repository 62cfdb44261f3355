/*
 * test_header.c - a sealed slot header is sound and its own; one with any bit flipped, or of anything else, is not.
 */
#include "geom/header.h"
#include "test/check.h"

#define OBJECTS 64u
#define BYTES (sizeof(struct wire_header) + 8 * OBJECTS)

static union {
	struct wire_header h;
	unsigned char b[4096];
} page;

static uint8_t ns[WIRE_KEY_BYTES], key[WIRE_KEY_BYTES];

static void make(uint64_t seed, uint32_t objects)
{
	memset(&page, 0, sizeof(page));
	for (int i = 0; i < WIRE_KEY_BYTES; i++) {
		ns[i] = (uint8_t)check_random(&seed);
		key[i] = (uint8_t)check_random(&seed);
		page.h.parent[i] = (uint8_t)check_random(&seed);
	}
	memcpy(page.h.ns_digest, ns, sizeof(ns));
	memcpy(page.h.key, key, sizeof(key));
	page.h.rank = 1;
	page.h.objects = objects;
	page.h.depth = 7;
	page.h.object_bytes = 131072;
	page.h.generation = 3;
	page.h.sequence = check_random(&seed);
	page.h.epoch = 12;
	for (uint32_t i = 0; i < objects; i++)
		geom_header_sums(&page.h)[i] = check_random(&seed);
	geom_header_seal(&page.h);
}

static enum geom_header_state match(void) { return geom_header_match(&page.h, ns, key, 3, 1); }

static void sealed_is_sound(void)
{
	for (uint32_t objects = 0; objects <= OBJECTS; objects++) {
		make(objects, objects);
		CHECK_EQ(geom_header_check(&page.h, objects), GEOM_HEADER_OK);
		CHECK_EQ(match(), GEOM_HEADER_OK);
		CHECK(geom_header_sums_const(&page.h) == (const uint64_t *)(const void *)(page.b + 192));
		CHECK_EQ(page.h.version, WIRE_HEADER_VERSION);
		CHECK(memcmp(page.b, "TUTIHDR1", 8) == 0);
	}
}

/* The sum is the plain object checksum of the header with its own field 0. */
static void the_sum_is_what_the_format_says(void)
{
	uint64_t sum;

	make(1, OBJECTS);
	sum = page.h.sum;
	page.h.sum = 0;
	CHECK(sum == objsum_seed(BYTES) + objsum_part_plain(page.b, BYTES, 0));
}

static void sealing_again_changes_nothing(void)
{
	uint64_t sum;

	make(2, OBJECTS);
	sum = page.h.sum;
	geom_header_seal(&page.h);
	CHECK(page.h.sum == sum);
}

static void every_flipped_bit_is_found(void)
{
	make(3, OBJECTS);
	for (uint32_t bit = 0; bit < BYTES * 8; bit++) {
		enum geom_header_state got;

		page.b[bit / 8] ^= (unsigned char)(1u << bit % 8);
		got = geom_header_check(&page.h, OBJECTS);
		CHECK_EQ(got, bit < 64 ? GEOM_HEADER_EMPTY : GEOM_HEADER_CORRUPT);
		page.b[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_OK);
}

static void torn_and_random_pages_are_found(void)
{
	static unsigned char whole[4096];
	uint64_t seed = 4;

	make(5, OBJECTS);
	memcpy(whole, page.b, sizeof(whole));
	for (uint32_t n = 16; n < BYTES; n += 8) { /* the first n bytes came, the rest is zeros or another header's */
		memset(page.b + n, 0, BYTES - n);
		CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_CORRUPT);
		make(6, OBJECTS);
		memcpy(page.b, whole, n);
		CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_CORRUPT);
		memcpy(page.b, whole, sizeof(whole));
	}
	for (int i = 0; i < 2000; i++) { /* right magic, version and count; all else random */
		for (uint32_t k = 8; k < BYTES; k++)
			page.b[k] = (unsigned char)check_random(&seed);
		page.h.version = WIRE_HEADER_VERSION;
		page.h.objects = OBJECTS;
		CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_CORRUPT);
	}
	memset(&page, 0, sizeof(page));
	CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_EMPTY);
	memset(&page, 0xff, sizeof(page));
	CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_EMPTY);
}

/* A count that claims more than the geometry has must not make the check read on. */
static void a_foreign_count_is_refused_unread(void)
{
	make(7, OBJECTS);
	CHECK_EQ(geom_header_check(&page.h, OBJECTS - 1), GEOM_HEADER_CORRUPT);
	CHECK_EQ(geom_header_check(&page.h, OBJECTS + 1), GEOM_HEADER_CORRUPT);
	page.h.objects = UINT32_MAX;
	CHECK_EQ(geom_header_check(&page.h, OBJECTS), GEOM_HEADER_CORRUPT);
}

static void sound_but_of_another_is_foreign(void)
{
	make(8, OBJECTS);
	CHECK_EQ(geom_header_match(&page.h, ns, key, 4, 1), GEOM_HEADER_FOREIGN);
	CHECK_EQ(geom_header_match(&page.h, ns, key, 3, 0), GEOM_HEADER_FOREIGN);
	CHECK_EQ(geom_header_match(&page.h, key, key, 3, 1), GEOM_HEADER_FOREIGN);
	for (uint32_t bit = 0; bit < 8 * WIRE_KEY_BYTES; bit++) {
		key[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK_EQ(match(), GEOM_HEADER_FOREIGN);
		key[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ns[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK_EQ(match(), GEOM_HEADER_FOREIGN);
		ns[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	CHECK_EQ(match(), GEOM_HEADER_OK);
}

int main(void)
{
	CHECK_RUN(sealed_is_sound);
	CHECK_RUN(the_sum_is_what_the_format_says);
	CHECK_RUN(sealing_again_changes_nothing);
	CHECK_RUN(every_flipped_bit_is_found);
	CHECK_RUN(torn_and_random_pages_are_found);
	CHECK_RUN(a_foreign_count_is_refused_unread);
	CHECK_RUN(sound_but_of_another_is_foreign);
	return check_end();
}
