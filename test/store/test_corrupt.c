/*
 * test_corrupt.c - metadata that lies: bits flipped, pages of garbage or zeros, pages swapped, in every block of
 * metadata and in slot headers. The next open says clearly that there is no pool, or has a sound index of right blocks
 * and misses.
 */
#include "base/err.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"

#define POOL (1200u << 10)

static struct ram_media ram;
static uint8_t *image; /* of the sound pool */
static struct store *store;
static struct store_ns *ns;
static uint64_t seed = 99, meta_bytes, segments_end, right, miss, refused;
static uint64_t blocks_there, damaged_records;

static void put(int from, int n)
{
	struct tutti_key keys[8];
	struct store_hold_info info;
	struct store_block b[8];
	struct tutti_lease l;
	int32_t ok[8] = {0};
	size_t first, count;

	for (int i = 0; i < n; i++)
		keys[i] = lane_key((uint64_t)(from + i));
	CHECK_EQ(store_reserve(ns, NULL, keys, (size_t)n, 1000, &first, &count, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, count, &info, b), 0);
	for (size_t i = 0; i < count; i++)
		CHECK_EQ(lane_write(&ram.m, ns, 0, l.epoch, &info, &b[i], i ? &b[i - 1].key : &info.parent, LANE_ALL),
		         0);
	CHECK_EQ(store_report(ns, &l, 0, 0, count, ok), 0);
}

static void ns_of(const char *model)
{
	struct tutti_ns_spec spec = lane_spec(model, 1, 2, 656, 1);

	CHECK_EQ(store_ns_open(store, &spec, &ns, NULL), 0);
}

static int read_one(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                    uint32_t slot)
{
	enum lane_verdict v = lane_read(&ram.m, arg, 0, key, slot);

	(void)parent;
	(void)depth;
	right += v == LANE_RIGHT;
	miss += v == LANE_MISS;
	return v == LANE_WRONG;
}

/* Two namespaces with blocks, segments that changed hands, a generation that was raised; closed or not. */
static void make_pool(int clean)
{
	struct store_open_opts o = lane_open_opts();
	struct store_format_opts f = {.ranks = 1, .bytes = POOL, .segment_bytes = 65536, .uuid = {8}};
	struct store_probe p;

	if (ram.m.n_dev)
		ram_free(&ram);
	ram_init(&ram, 1, POOL, 0);
	CHECK_EQ(store_format(&ram.m, &f), 0);
	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	ns_of("a");
	for (int i = 0; i < 25; i++)
		put(i * 8, 3);
	CHECK_EQ(store_ns_clear(ns), 0);
	for (int i = 0; i < 25; i++)
		put(i * 8, 3);
	ns_of("b");
	for (int i = 0; i < 8; i++)
		put(1000 + i * 8, 3);
	CHECK_EQ(store_close(store), 0);
	CHECK_EQ(store_open(&ram.m, &o, &store), 0);
	right = miss = 0;
	for (uint32_t i = 0; i < 2; i++) {
		CHECK_EQ(store_ns_at(store, i, &ns), 0);
		CHECK_EQ(store_ns_each(ns, read_one, ns), 0);
	}
	blocks_there = right;
	CHECK(right > 30 && !miss);
	if (clean)
		CHECK_EQ(store_close(store), 0);
	else
		store_abandon(store);
	store = NULL;
	CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
	meta_bytes = p.device_bytes - p.n_segments * p.chunk_bytes;
	segments_end = 16384 + 2ull * (STORE_NAMESPACES_MAX + p.n_segments) * 4096;
	image = realloc(image, POOL);
	memcpy(image, ram.mem[0], POOL);
}

/* Opens what is there. */
static void judge(void)
{
	struct store_open_opts o = lane_open_opts();
	struct tutti_pool_info info;
	int r = store_open(&ram.m, &o, &store);

	if (r) {
		CHECK(r == -EBADMSG || r == -ENOMEDIUM || r == -EPROTONOSUPPORT || r == -ENODEV);
		CHECK(err_text()[0]);
		refused++;
		return;
	}
	CHECK_EQ(store_check(store), 0);
	store_info(store, &info);
	damaged_records = info.damaged_records;
	right = miss = 0;
	for (uint32_t i = 0; !store_ns_at(store, i, &ns); i++)
		CHECK_EQ(store_ns_each(ns, read_one, ns), 0);
	store_abandon(store);
	store = NULL;
}

static void restore(void) { memcpy(ram.mem[0], image, POOL); }

static void damage_page(uint8_t *page)
{
	switch (check_random(&seed) % 4) {
	case 0:
		page[check_random(&seed) % 4096] ^= (uint8_t)(1u << check_random(&seed) % 8);
		break;
	case 1:
		memset(page, 0, 4096);
		break;
	case 2:
		for (int i = 0; i < 4096; i++)
			page[i] = (uint8_t)check_random(&seed);
		break;
	default:
		memcpy(page, ram.mem[0] + check_random(&seed) % (meta_bytes / 4096) * 4096, 4096);
		break;
	}
}

/* One page, anywhere in the metadata: the other copy is there, says the same, and not one block is lost. */
static void one_page_damaged(void)
{
	for (int clean = 0; clean < 2; clean++) {
		make_pool(clean);
		refused = 0;
		for (uint64_t page = 0; page < meta_bytes; page += 4096)
			for (int i = 0; i < 4; i++) {
				restore();
				damage_page(ram.mem[0] + page);
				judge();
				CHECK_EQ(right, blocks_there);
				CHECK_EQ(damaged_records, 0);
				/* What was damaged was written again: the other copy may go now. */
				memset(ram.mem[0] + (page ^ 4096), 0xa5, 4096);
				if (page >= 16384 + 2 * 64 * 4096 && page < segments_end) {
					judge();
					CHECK_EQ(right, blocks_there);
				}
			}
		CHECK_EQ(refused, 0);
	}
}

/* Both copies of a record: what it held is lost, and that is said; one bit in pages that were never used is nothing. */
static void both_copies_damaged(void)
{
	uint64_t lost = 0;

	make_pool(0);
	for (uint64_t record = 16384; record < segments_end; record += 8192) {
		restore();
		memset(ram.mem[0] + record, 0x5a, 8192);
		judge();
		CHECK(damaged_records == 1 || damaged_records == 0);
		lost += right < blocks_there;
		if (right < blocks_there)
			CHECK_EQ(damaged_records, 1);
	}
	CHECK(lost > 10);
	restore();
	ram.mem[0][16384 + 60 * 8192 + 5] ^= 1; /* a namespace's record that was never written */
	ram.mem[0][16384 + 60 * 8192 + 5000] ^= 1;
	judge();
	CHECK_EQ(right, blocks_there);
	CHECK_EQ(damaged_records, 0);
}

/* A flipped bit in the checkpoint, in a superblock or in a newer record costs nothing: all blocks are found, by
 * reading. */
static void checkpoint_flips_cost_nothing(void)
{
	struct store_probe p;
	uint64_t start;

	make_pool(1);
	CHECK_EQ(store_probe(&ram.m, 0, &p), 0);
	start = 16384 + 2 * 64 * 4096 + 2ull * p.n_segments * 4096;
	for (uint64_t at = start; at < start + 3000; at++) {
		restore();
		ram.mem[0][at] ^= (uint8_t)(1u << at % 8);
		judge();
		CHECK_EQ(right, blocks_there);
		CHECK_EQ(miss, 0);
	}
	for (uint64_t at = 0; at < 16384; at += 7) {
		restore();
		ram.mem[0][at] ^= (uint8_t)(1u << at % 8);
		judge();
		CHECK_EQ(right, blocks_there);
	}
}

static void many_pages_damaged(void)
{
	make_pool(0);
	for (int i = 0; i < 4000; i++) {
		uint64_t n = 1 + check_random(&seed) % 40;

		if (i == 2000)
			make_pool(1);
		restore();
		while (n--) {
			/* Mostly where something is written. */
			uint64_t page = check_random(&seed) % (check_random(&seed) % 2 ? 10 : meta_bytes / 4096);

			damage_page(ram.mem[0] + page * 4096);
		}
		judge();
	}
	CHECK(refused > 10);
}

static void header_bits(void)
{
	uint64_t most = 0;

	make_pool(0);
	for (uint64_t at = meta_bytes; at < POOL; at += 4096)
		for (int i = 0; i < 40; i++) {
			uint64_t magic;

			memcpy(&magic, image + at, 8);
			if (magic != WIRE_HEADER_MAGIC)
				break;
			restore();
			ram.mem[0][at + check_random(&seed) % 208] ^= (uint8_t)(1u << check_random(&seed) % 8);
			judge();
			/* Its chain may be lost with it; what is listed is right. */
			CHECK(right <= blocks_there && right + 3 >= blocks_there && !miss);
			most += right < blocks_there;
		}
	CHECK(most > 500);
}

static void foreign_and_other_versions(void)
{
	struct store_open_opts o = lane_open_opts();
	uint32_t two = 2;

	make_pool(1);
	memcpy(ram.mem[0] + 16, &two, 4);
	memcpy(ram.mem[0] + 8192 + 16, &two, 4);
	CHECK_EQ(store_open(&ram.m, &o, &store), -EPROTONOSUPPORT);
	CHECK(strstr(err_text(), "version 2"));
	memset(ram.mem[0], 0xff, 16384);
	CHECK_EQ(store_open(&ram.m, &o, &store), -ENOMEDIUM);
	restore();
	ram.mem[0][100] ^= 1;
	ram.mem[0][8192 + 100] ^= 1;
	CHECK_EQ(store_open(&ram.m, &o, &store), -EBADMSG);
	CHECK(strstr(err_text(), "damaged"));
}

int main(void)
{
	ram_keep_heap();
	CHECK_RUN(one_page_damaged);
	CHECK_RUN(both_copies_damaged);
	CHECK_RUN(checkpoint_flips_cost_nothing);
	CHECK_RUN(many_pages_damaged);
	CHECK_RUN(header_bits);
	CHECK_RUN(foreign_and_other_versions);
	free(image);
	if (ram.m.n_dev)
		ram_free(&ram);
	return check_end();
}
