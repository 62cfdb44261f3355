/* test_hold.c - lookups, leases, reservations, reports, drops: who holds what until when. */
#include "store/small_pool.h"

static void blocks_are_found_after_commit_only(void)
{
	struct tutti_key k[8];
	struct tutti_lease r;
	size_t first, count;
	int32_t ok[8] = {0};

	simple_pool();
	chain_keys(k, 1, 8);
	CHECK_EQ(matched(k, 8), 0);
	CHECK_EQ(store_reserve(ns, NULL, k, 8, 1000, &first, &count, &r), 0);
	CHECK(first == 0 && count == 8 && r.id && r.expiry_ns == 2000);
	CHECK_EQ(matched(k, 8), 0);
	CHECK_EQ(store_report(ns, &r, 0, 4, 4, ok), 0); /* parents first: nothing is published yet */
	CHECK_EQ(matched(k, 8), 0);
	CHECK_EQ(store_report(ns, &r, 0, 0, 2, ok), 0);
	CHECK_EQ(matched(k, 8), 2);
	CHECK_EQ(store_report(ns, &r, 0, 2, 2, ok), 0);
	CHECK_EQ(matched(k, 8), 8);
	CHECK_EQ(store_report(ns, &r, 0, 2, 2, ok), 0); /* again: ignored */
	CHECK_EQ(store_report(ns, &r, 1, 2, 2, ok), 0);
	CHECK_EQ(store_release(ns, &r, 0), 0);
	CHECK(info_of(ns).committed == 8 && info_of(ns).reserved == 0);
	CHECK_EQ(store_reserve(ns, NULL, k, 8, 1000, &first, &count, &r), 0);
	CHECK(first == 8 && count == 0 && r.id == 0);
	done();
}

static void two_ranks_both_report(void)
{
	struct tutti_key k[4];
	struct tutti_lease r;
	size_t first, count;
	int32_t ok[4] = {0}, bad[4] = {0, 0, -EIO, 0};

	lane_now = 1000;
	pool_format(2, 2, 4 << 20, 65536);
	pool_open();
	ns_open("m", 1, 4096, 2);
	chain_keys(k, 1, 4);
	CHECK_EQ(store_reserve(ns, NULL, k, 4, 1000, &first, &count, &r), 0);
	CHECK_EQ(store_report(ns, &r, 0, 0, 4, ok), 0);
	CHECK_EQ(matched(k, 4), 0);
	CHECK_EQ(store_report(ns, &r, 2, 0, 4, ok), -EINVAL);
	CHECK_EQ(store_report(ns, &r, 1, 0, 5, ok), -EINVAL);
	CHECK_EQ(store_report(ns, &r, 1, 0, 4, bad), 0);
	CHECK_EQ(matched(k, 4), 2);
	CHECK(info_of(ns).committed == 2 && info_of(ns).reserved == 0);
	done();
}

static void failed_blocks_stay_until_all_ranks_reported(void)
{
	struct tutti_key k[4];
	struct tutti_lease r;
	size_t first, count;
	int32_t ok[4] = {0}, bad[4] = {-EIO, 0, 0, 0};

	lane_now = 1000;
	pool_format(2, 2, 4 << 20, 65536);
	pool_open();
	ns_open("m", 1, 4096, 2);
	chain_keys(k, 1, 4);
	CHECK_EQ(store_reserve(ns, NULL, k, 4, 1000, &first, &count, &r), 0);
	CHECK_EQ(store_report(ns, &r, 0, 0, 4, bad), 0);
	CHECK_EQ(info_of(ns).reserved, 4);
	CHECK_EQ(store_check(store), 0);
	/* The keys may be reserved anew at once, in other slots. */
	CHECK_EQ(commit(NULL, k, 4, 2), 4);
	CHECK_EQ(info_of(ns).reserved, 4);
	CHECK_EQ(store_report(ns, &r, 1, 0, 4, ok), 0);
	CHECK(info_of(ns).reserved == 0 && info_of(ns).committed == 4);
	CHECK_EQ(store_report(ns, &r, 1, 0, 4, ok), 0); /* ended by its reports: still no error */
	done();
}

static void chunked_prefill_publishes_in_order(void)
{
	struct tutti_key k[6];
	struct tutti_lease a, b, c;
	size_t first, count;
	int32_t ok[6] = {0};

	simple_pool();
	chain_keys(k, 1, 6);
	CHECK_EQ(store_reserve(ns, NULL, k, 2, 1000, &first, &count, &a), 0);
	CHECK_EQ(store_reserve(ns, &k[1], k + 2, 2, 1000, &first, &count, &b), 0);
	CHECK_EQ(store_reserve(ns, &k[3], k + 4, 2, 1000, &first, &count, &c), 0);
	CHECK_EQ(store_reserve(ns, NULL, k, 2, 1000, &first, &count, &(struct tutti_lease){0}), 0);
	CHECK_EQ(count, 0); /* someone else writes it */
	CHECK_EQ(store_report(ns, &c, 0, 0, 2, ok), 0);
	CHECK_EQ(store_report(ns, &b, 0, 0, 2, ok), 0);
	CHECK_EQ(matched(k, 6), 0);
	CHECK_EQ(store_report(ns, &a, 0, 0, 2, ok), 0);
	CHECK_EQ(matched(k, 6), 6);
	CHECK_EQ(info_of(ns).reserved, 0);
	done();
	simple_pool();
	CHECK_EQ(store_reserve(ns, NULL, k, 2, 1000, &first, &count, &a), 0);
	CHECK_EQ(store_reserve(ns, &k[1], k + 2, 2, 1000, &first, &count, &b), 0);
	CHECK_EQ(store_reserve(ns, &k[3], k + 4, 2, 1000, &first, &count, &c), 0);
	ok[1] = -EIO;
	CHECK_EQ(store_report(ns, &a, 0, 0, 2, ok), 0);
	CHECK_EQ(matched(k, 6), 1);
	CHECK_EQ(info_of(ns).reserved, 4); /* those of b and c wait for their lanes */
	CHECK_EQ(store_release(ns, &b, 1), 0);
	ok[1] = 0;
	CHECK_EQ(store_report(ns, &c, 0, 0, 2, ok), 0);
	CHECK(info_of(ns).reserved == 0 && info_of(ns).committed == 1);
	done();
}

static void leases_hold_against_eviction(void)
{
	struct tutti_key a[5], b[5];
	struct tutti_lease l, l2;
	size_t m, total = 0;

	simple_pool();
	chain_keys(a, 1, 5);
	CHECK_EQ(commit(NULL, a, 5, 1), 5);
	CHECK_EQ(store_lookup(ns, a, 5, 5000, &m, &l), 0);
	CHECK(m == 5 && l.id);
	for (uint64_t i = 2; i < 200; i++) {
		chain_keys(b, i, 5);
		total += commit(NULL, b, 5, 1);
		CHECK_EQ(store_check(store), 0);
	}
	CHECK(total == 198 * 5 && info_of(ns).evicted > 700);
	CHECK_EQ(matched(a, 5), 5);
	CHECK_EQ(store_lookup(ns, a, 3, 5000, &m, &l2), 0);
	CHECK_EQ(store_release(ns, &l, 0), 0);
	CHECK_EQ(store_release(ns, &l, 0), 0);
	for (uint64_t i = 200; i < 400; i++) {
		chain_keys(b, i, 5);
		commit(NULL, b, 5, 1);
	}
	CHECK_EQ(matched(a, 5), 3);
	lane_now += 5000;
	CHECK_EQ(info_of(ns).leased, 0);
	for (uint64_t i = 400; i < 600; i++) {
		chain_keys(b, i, 5);
		commit(NULL, b, 5, 1);
	}
	CHECK_EQ(matched(a, 5), 0);
	done();
}

static void reservations_expire(void)
{
	struct tutti_key k[4];
	struct tutti_lease r;
	size_t first, count;
	int32_t ok[4] = {0};

	simple_pool();
	chain_keys(k, 1, 4);
	CHECK_EQ(store_reserve(ns, NULL, k, 4, 1000, &first, &count, &r), 0);
	CHECK_EQ(store_report(ns, &r, 0, 0, 1, ok), 0);
	CHECK_EQ(store_release(ns, &r, 0), 0); /* a lane may still write: the slots wait */
	CHECK(info_of(ns).reserved == 3 && info_of(ns).committed == 1);
	CHECK_EQ(store_ns_clear(ns), -EBUSY);
	lane_now += 999;
	CHECK_EQ(info_of(ns).reserved, 3);
	lane_now += 1;
	CHECK_EQ(info_of(ns).reserved, 0);
	CHECK_EQ(store_report(ns, &r, 0, 1, 3, ok), -ESTALE);
	CHECK_EQ(store_reserve(ns, &k[0], k + 1, 3, 1000, &first, &count, &r), 0);
	CHECK_EQ(store_release(ns, &r, 1), 0);
	CHECK_EQ(info_of(ns).reserved, 0);
	done();
}

static void leases_run_out_and_come_back(void)
{
	struct tutti_key k[1];
	struct tutti_lease l[STORE_LEASES_MAX], more;
	size_t m, first, count;

	simple_pool();
	chain_keys(k, 1, 1);
	CHECK_EQ(commit(NULL, k, 1, 1), 1);
	for (uint32_t i = 0; i < STORE_LEASES_MAX; i++)
		CHECK_EQ(store_lookup(ns, k, 1, 100 + i, &m, &l[i]), 0);
	CHECK_EQ(store_lookup(ns, k, 1, 100, &m, &more), -EAGAIN);
	CHECK(m == 1 && more.id == 0);
	chain_keys(k, 2, 1);
	CHECK_EQ(store_reserve(ns, NULL, k, 1, 100, &first, &count, &more), -EAGAIN);
	lane_now += 100;
	CHECK_EQ(store_reserve(ns, NULL, k, 1, 100, &first, &count, &more), 0);
	CHECK_EQ(info_of(ns).leased, STORE_LEASES_MAX - 1);
	for (uint32_t i = 0; i < STORE_LEASES_MAX; i++)
		CHECK_EQ(store_release(ns, &l[i], 0), 0);
	CHECK_EQ(info_of(ns).leased, 0);
	done();
}

static void bad_calls_are_refused(void)
{
	struct tutti_key a[3], b[3], zero = {{0}};
	struct tutti_lease r;
	size_t first, count;

	simple_pool();
	chain_keys(a, 1, 3);
	chain_keys(b, 2, 3);
	CHECK_EQ(store_reserve(ns, &a[0], a + 1, 2, 1000, &first, &count, &r), -ENOENT);
	CHECK_EQ(store_reserve(ns, NULL, &zero, 1, 1000, &first, &count, &r), -EINVAL);
	CHECK_EQ(commit(NULL, a, 3, 1), 3);
	CHECK_EQ(commit(NULL, b, 3, 1), 3);
	CHECK_EQ(store_reserve(ns, &a[0], b + 1, 1, 1000, &first, &count, &r), -EINVAL);
	CHECK_EQ(store_reserve(ns, &zero, a, 0, 1000, &first, &count, &r), 0);
	CHECK(!count && !r.id);
	b[1] = a[1];
	CHECK_EQ(matched(b, 3), 1); /* not a chain: the match ends */
	r = (struct tutti_lease){.epoch = 99, .id = 77};
	CHECK_EQ(store_release(ns, &r, 1), 0);
	CHECK_EQ(store_report(ns, &r, 0, 0, 0, NULL), -ESTALE);
	CHECK_EQ(store_drop(ns, 0xfffffff0u, &a[0]), 0);
	done();
}

/* An engine that has the first blocks asks for what follows them: its lease counts from there. */
static void a_lease_begins_where_the_keys_do(void)
{
	struct tutti_key k[6];
	struct store_block b[6];
	struct store_hold_info info;
	struct tutti_lease l;
	size_t m;

	simple_pool();
	chain_keys(k, 1, 6);
	CHECK_EQ(commit(NULL, k, 6, 1), 6);
	CHECK_EQ(store_lookup(ns, k + 2, 4, 1000, &m, &l), 0);
	CHECK_EQ(m, 4);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 4, &info, b), 0);
	CHECK_EQ(info.n_blocks, 4);
	CHECK(!memcmp(&info.parent, &k[1], 32));
	for (int i = 0; i < 4; i++)
		CHECK(b[i].depth == (uint32_t)i + 2 && !memcmp(&b[i].key, &k[i + 2], 32));
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 5, &info, b), -EINVAL);
	CHECK_EQ(store_release(ns, &l, 1), 0);
	CHECK_EQ(store_lease_block(ns, b[1].slot, &k[3], 1000, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 1, &info, b), 0);
	CHECK(info.n_blocks == 1 && !memcmp(&b[0].key, &k[3], 32));
	CHECK_EQ(store_release(ns, &l, 1), 0);
	CHECK_EQ(store_lease_block(ns, b[0].slot, &k[4], 1000, &l), -ESTALE);
	CHECK_EQ(store_check(store), 0);
	done();
}

static void drop_takes_descendants(void)
{
	struct tutti_key k[6], branch[3];
	struct store_block b[6];
	struct store_hold_info info;
	struct tutti_lease l, r;
	size_t m, first, count;
	int32_t ok[3] = {0};

	simple_pool();
	chain_keys(k, 1, 6);
	chain_keys(branch, 2, 3);
	CHECK_EQ(commit(NULL, k, 6, 1), 6);
	CHECK_EQ(commit(&k[2], branch, 2, 1), 2);
	CHECK_EQ(store_reserve(ns, &branch[1], branch + 2, 1, 1000, &first, &count, &r), 0);
	CHECK_EQ(store_lookup(ns, k, 5, 1000, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 5, &info, b), 0);
	CHECK(info.op == TUTTI_RETRIEVE && info.n_blocks == 5 && b[4].depth == 4 && !memcmp(&b[4].key, &k[4], 32));
	CHECK_EQ(store_drop(ns, b[1].slot, &k[2]), 0); /* another key */
	CHECK_EQ(store_drop(ns, b[1].slot, &k[1]), 1);
	CHECK_EQ(store_drop(ns, b[1].slot, &k[1]), 0);
	CHECK_EQ(store_check(store), 0);
	CHECK_EQ(matched(k, 6), 1);
	CHECK_EQ(info_of(ns).committed, 1);
	CHECK_EQ(info_of(ns).reserved, 1);
	CHECK_EQ(store_report(ns, &r, 0, 0, 1, ok), 0);
	CHECK_EQ(info_of(ns).reserved, 0);
	/* The leased blocks keep their slots, and the lease its list, until it ends. */
	CHECK_EQ(store_hold_blocks(ns, &l, 2, 3, &info, b), 0);
	CHECK(!memcmp(&info.parent, &k[1], 32) && !memcmp(&b[2].key, &k[4], 32));
	CHECK_EQ(commit(&k[0], k + 1, 5, 1), 5);
	CHECK_EQ(store_check(store), 0);
	CHECK_EQ(matched(k, 6), 6);
	CHECK_EQ(store_release(ns, &l, 0), 0);
	CHECK_EQ(store_check(store), 0);
	CHECK(info_of(ns).committed == 6);
	done();
}

static void sync_and_flags(void)
{
	struct tutti_key k[3];
	struct store_block b[3];
	struct store_hold_info info;
	struct tutti_lease l;
	uint64_t mark;
	size_t m;

	simple_pool();
	chain_keys(k, 1, 3);
	CHECK_EQ(store_dirty(store), 0);
	CHECK_EQ(commit(NULL, k, 1, 1), 1);
	CHECK_EQ(store_dirty(store), 1);
	mark = store_sync_begin(store);
	CHECK_EQ(store_dirty(store), 0);
	CHECK_EQ(commit(&k[0], k + 1, 1, 1), 1);
	store_sync_end(store, mark, 0);
	CHECK_EQ(store_lookup(ns, k, 2, 1000, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 2, &info, b), 0);
	CHECK(b[0].flags == STORE_BLOCK_SYNCED && b[1].flags == 0);
	store_sync_end(store, store_sync_begin(store), -EIO); /* that flush failed: k[1] is never sure */
	CHECK_EQ(commit(&k[1], k + 2, 1, 1), 1);
	store_sync_end(store, store_sync_begin(store), 0);
	CHECK_EQ(store_lookup(ns, k, 3, 1000, &m, &l), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 3, &info, b), 0);
	CHECK(b[0].flags == STORE_BLOCK_SYNCED && b[1].flags == 0 && b[2].flags == STORE_BLOCK_SYNCED);
	store_mark_sound(ns, b[1].slot, &k[1]);
	CHECK_EQ(store_dirty(store), 1);
	store_sync_end(store, store_sync_begin(store), 0);
	CHECK_EQ(store_hold_blocks(ns, &l, 0, 3, &info, b), 0);
	CHECK(b[1].flags == STORE_BLOCK_SYNCED);
	done();
}

int main(void)
{
	CHECK_RUN(blocks_are_found_after_commit_only);
	CHECK_RUN(two_ranks_both_report);
	CHECK_RUN(failed_blocks_stay_until_all_ranks_reported);
	CHECK_RUN(chunked_prefill_publishes_in_order);
	CHECK_RUN(leases_hold_against_eviction);
	CHECK_RUN(reservations_expire);
	CHECK_RUN(leases_run_out_and_come_back);
	CHECK_RUN(bad_calls_are_refused);
	CHECK_RUN(a_lease_begins_where_the_keys_do);
	CHECK_RUN(drop_takes_descendants);
	CHECK_RUN(sync_and_flags);
	return check_end();
}
