/*
 * test_repair.c - metadata that is damaged: told by the open that finds it, written again where the other copy is
 * there, lost and told until repair where it is not; and nothing called damaged that is none.
 */
#include "store/small_pool.h"
#include "wire/disk.h"
#include "wire/header.h"

#define COPY 4096u
#define NS_RECORDS 16384u
#define SEGMENT_RECORDS (NS_RECORDS + 64u * 2 * COPY)

static struct tutti_key keys[3];

static struct tutti_pool_info found(int clean)
{
	struct tutti_pool_info info;

	reopen(clean);
	store_info(store, &info);
	return info;
}

static void a_pool(uint32_t n_dev)
{
	lane_now = 1000;
	pool_format(n_dev, 1, n_dev * (2ull << 20), 65536);
	pool_open();
	ns_open("m", 1, 4096, 1);
	chain_keys(keys, 1, 3);
	CHECK_EQ(commit(NULL, keys, 3, 1), 3);
	CHECK_EQ(found(1).healed_copies, 0);
	CHECK_EQ(store_ns_at(store, 0, &ns), 0);
}

static int all_there(void) { return !store_ns_at(store, 0, &ns) && matched(keys, 3) == 3; }

static void flip(uint32_t dev, uint64_t at) { ram.mem[dev][at] ^= 1; }

static void a_damaged_copy_is_told_once(void)
{
	struct {
		uint32_t dev;
		uint64_t first, second;
	} places[] = {{0, 0, 8192},
	              {1, 0, 8192},
	              {0, NS_RECORDS, NS_RECORDS + COPY},
	              {0, SEGMENT_RECORDS, SEGMENT_RECORDS + COPY},
	              {0, SEGMENT_RECORDS + 6 * COPY, SEGMENT_RECORDS + 7 * COPY}};

	for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		for (int clean = 0; clean < 2; clean++) {
			uint64_t at = 100 + (clean ? places[i].first : places[i].second);
			struct tutti_pool_info info;

			a_pool(2);
			if (clean) {
				CHECK_EQ(store_close(store), 0);
				flip(places[i].dev, at);
				pool_open();
				store_info(store, &info);
			} else {
				flip(places[i].dev, at);
				info = found(0);
			}
			CHECK_EQ(info.healed_copies, 1);
			CHECK_EQ(info.damaged_records, 0);
			CHECK(all_there());
			CHECK_EQ(found(clean).healed_copies, 0);
			/* It was written again: now the other one may be lost. */
			flip(places[i].dev, 100 + (clean ? places[i].second : places[i].first));
			CHECK_EQ(found(0).healed_copies, 1);
			CHECK(all_there());
			done();
		}
}

static void a_lost_record_is_told_until_it_is_repaired(void)
{
	uint64_t records[] = {NS_RECORDS, SEGMENT_RECORDS};

	for (int i = 0; i < 2; i++) {
		uint64_t wiped = 0;

		a_pool(1);
		flip(0, records[i] + 100);
		flip(0, records[i] + COPY + 100);
		CHECK_EQ(found(0).damaged_records, 1);
		CHECK(!all_there());
		CHECK_EQ(found(0).damaged_records, 1);
		CHECK_EQ(found(1).damaged_records, 1);
		CHECK_EQ(found(1).damaged_records, 1);
		CHECK_EQ(store_repair_records(store, &wiped), 0);
		CHECK_EQ(wiped, 1);
		CHECK_EQ(store_repair_records(store, &wiped), 0);
		CHECK_EQ(wiped, 1);
		CHECK_EQ(found(0).damaged_records, 0);
		ns_open("m", 1, 4096, 1); /* and its place is used again */
		CHECK_EQ(commit(NULL, keys, 3, 1), 3);
		CHECK_EQ(found(0).damaged_records, 0);
		CHECK(all_there());
		CHECK_EQ(found(1).damaged_records, 0);
		done();
	}
}

/* Garbage where nothing was kept is no loss. */
static void a_record_that_nobody_used_is_not_lost(void)
{
	for (int clean = 0; clean < 2; clean++) {
		struct tutti_pool_info info;

		a_pool(1);
		if (clean)
			CHECK_EQ(store_close(store), 0);
		else
			store_abandon(store);
		memset(ram.mem[0] + NS_RECORDS + 60 * 2 * COPY, 0x5a, 2 * COPY);
		if (clean) /* the checkpoint says that segment 9 was nobody's; without one, nobody knows */
			memset(ram.mem[0] + SEGMENT_RECORDS + 9 * 2 * COPY, 0x5a, 2 * COPY);
		pool_open();
		store_info(store, &info);
		CHECK_EQ(info.damaged_records, 0);
		CHECK_EQ(info.healed_copies, clean ? 2 : 1);
		CHECK(all_there());
		CHECK_EQ(found(0).healed_copies, 0);
		done();
	}
}

static void a_damaged_header_is_wiped_by_repair(void)
{
	struct store_view view;
	struct tutti_key digest;
	uint64_t wiped = 0, at;
	struct geom_place p;

	a_pool(1);
	digest = *store_ns_digest(ns);
	CHECK_EQ(store_view(&ram.m, &digest, 0, &view), 0);
	p = geom_place(&view.geom, 0);
	at = geom_header_offset(&view.geom, &p);
	flip(0, at + 70);
	CHECK_EQ(found(0).recovered_bad, 1);
	CHECK_EQ(found(0).recovered_bad, 1);
	for (uint32_t i = 0; i < 4; i++)
		CHECK_EQ(store_repair_headers(store, i, &wiped), 0);
	CHECK_EQ(wiped, 1);
	CHECK_EQ(found(0).recovered_bad, 0);
	done();
}

/* Headers that an earlier owner of another geometry left in a segment are void, not damaged. */
static void an_earlier_owners_headers_are_not_damaged(void)
{
	struct tutti_pool_info info;
	uint64_t wiped = 0;

	a_pool(1);
	for (uint64_t chain = 2; chain < 80; chain++) {
		struct tutti_key k[5];

		chain_keys(k, chain, 5);
		commit(NULL, k, 5, 1);
	}
	store_info(store, &info);
	CHECK_EQ(info.segments_free, 0);
	ns_open("other", 3, 4096, 1);
	chain_keys(keys, 100, 1);
	CHECK_EQ(commit(NULL, keys, 1, 1), 1); /* in a segment that was taken from the first */
	info = found(0);
	CHECK_EQ(info.recovered_bad, 0);
	for (uint32_t i = 0; i < info.segments; i++)
		CHECK_EQ(store_repair_headers(store, i, &wiped), 0);
	CHECK_EQ(wiped, 0);
	done();
}

int main(void)
{
	CHECK_RUN(a_damaged_copy_is_told_once);
	CHECK_RUN(a_lost_record_is_told_until_it_is_repaired);
	CHECK_RUN(a_record_that_nobody_used_is_not_lost);
	CHECK_RUN(a_damaged_header_is_wiped_by_repair);
	CHECK_RUN(an_earlier_owners_headers_are_not_damaged);
	if (ram.m.n_dev)
		ram_free(&ram);
	return check_end();
}
