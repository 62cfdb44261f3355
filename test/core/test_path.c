/*
 * test_path.c - store and retrieve through the whole stack: every layout that engines use, every awkward object size,
 * aligned and not, one rank and two, SGL and PRP, several devices; every byte compared, copies counted.
 */
#include <errno.h>
#include <fcntl.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"

#define N 37 /* blocks of a chain: several sets, and not a multiple of any */

static void scatter(uint64_t *blocks, size_t n, uint64_t of, uint64_t seed)
{
	uint64_t all[512];

	for (uint64_t i = 0; i < of; i++)
		all[i] = i;
	for (size_t i = 0; i < n; i++) {
		size_t k = i + (size_t)(check_random(&seed) % (of - i));
		uint64_t t = all[i];

		all[i] = all[k];
		all[k] = t;
		blocks[i] = all[i];
	}
}

/* Stores a chain, wipes the memory, retrieves it elsewhere, both ways; then the same after a clean reopen. */
static void round_trip(const struct rig_shape *shape, int zero_copy)
{
	struct tutti_key keys[N];
	struct tutti_lane_stats st;
	struct tutti_lane_info info;
	uint64_t from[N], to[N];
	uint64_t checked, damaged;
	size_t stored, hit, bad;
	struct rig r;

	rig_up(&r, shape);
	rig_keys(&r, 1, N, keys);
	scatter(from, N, shape->blocks, 5);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	CHECK_EQ(stored, N);
	for (int again = 0; again < 2; again++) {
		for (int per_layer = 0; per_layer < 2; per_layer++) {
			for (uint32_t rank = 0; rank < r.shape.ranks; rank++)
				rig_wipe(&r, rank);
			scatter(to, N, shape->blocks, 6 + (uint64_t)per_layer);
			CHECK_EQ(rig_retrieve(&r, keys, N, to, per_layer, &hit, &bad), 0);
			CHECK_EQ(hit, N);
			CHECK_EQ(bad, 0);
			for (uint32_t rank = 0; rank < r.shape.ranks; rank++)
				for (size_t i = 0; i < N; i++)
					CHECK_EQ(rig_wrong(&r, rank, to[i], &keys[i]), 0);
		}
		CHECK_EQ(tutti_lane_stats(r.lane[0], &st), 0);
		CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
		CHECK_EQ(info.zero_copy, zero_copy);
		CHECK_EQ(st.failed_objects, 0);
		CHECK(zero_copy ? st.bounced_bytes == 0 && st.direct_bytes > 0
		                : st.direct_bytes == 0 && st.bounced_bytes > 0);
		CHECK(zero_copy || info.why[0]);
		if (again == 0) {
			CHECK_EQ(rig_close_lanes(&r), 0);
			CHECK_EQ(tutti_store_close(r.store), 0);
			CHECK_EQ(rig_open_store(&r), 0);
			for (uint32_t rank = 0; rank < r.shape.ranks; rank++)
				CHECK_EQ(rig_open_lane(&r, rank), 0);
		}
	}
	CHECK_EQ(tutti_verify(r.ns, 0, NULL, NULL, &checked, &damaged), 0); /* all ranks' shares */
	CHECK_EQ(checked, N);
	CHECK_EQ(damaged, 0);
	rig_down(&r);
}

/* ---- layouts: 16 tokens x 2 KV heads x 64 x 2 bytes, K and V: 4 KiB each ---- */

static void fused(void)
{
	round_trip(&(struct rig_shape){.layers = 4, .blocks = 64, .segment_bytes = 8192, .order = "LB"}, 1);
}

static void reserved_and_written_ahead(void)
{
	round_trip(
	    &(struct rig_shape){
	        .prewrite_segments = 1, .layers = 4, .blocks = 64, .segment_bytes = 8192, .order = "LB"},
	    1);
}

static void split_k_and_v(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB"}, 1);
}

static void heads_outermost(void)
{
	round_trip(
	    &(struct rig_shape){
	        .layers = 3, .blocks = 64, .outer_count = 2, .inner_count = 4, .segment_bytes = 4096, .order = "LoiB"},
	    1);
}

static void fused_heads_inside(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 3, .blocks = 64, .inner_count = 4, .segment_bytes = 4096, .order = "LBi"}, 1);
}

static void kernel_blocks_in_one(void)
{
	/* (2, blocks * k, ...): the k kernel blocks touch and become one object. */
	struct rig_shape s = {
	    .layers = 3, .blocks = 64, .outer_count = 2, .inner_count = 4, .segment_bytes = 4096, .order = "LoBi"};
	struct rig r;

	rig_shape_memory(&r, &s);
	CHECK_EQ(r.spec.objects_per_layer, 2);
	CHECK_EQ(r.spec.object_bytes, 16384);
	round_trip(&s, 1);
}

static void kernel_blocks_split_inside(void)
{
	/* (blocks * k, 2, ...) seen block by block: everything of a block touches: one object. */
	struct rig_shape s = {
	    .layers = 2, .blocks = 64, .outer_count = 4, .inner_count = 2, .segment_bytes = 4096, .order = "LBoi"};
	struct rig r;

	rig_shape_memory(&r, &s);
	CHECK_EQ(r.spec.objects_per_layer, 1);
	CHECK_EQ(r.spec.object_bytes, 32768);
	round_trip(&s, 1);
}

static void all_layers_of_a_block_together(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "BLo"}, 1);
}

static void tokens_128(void)
{
	round_trip(&(struct rig_shape){.layers = 3,
	                               .blocks = 48,
	                               .outer_count = 2,
	                               .segment_bytes = 32768,
	                               .order = "LoB",
	                               .block_tokens = 128,
	                               .pool_bytes = 96u << 20},
	           1);
}

/* ---- object sizes; gaps keep objects from merging in memory ---- */

#if !defined(__SANITIZE_THREAD__)
static void object_80_kib(void)
{
	round_trip(&(struct rig_shape){.layers = 2,
	                               .blocks = 40,
	                               .outer_count = 2,
	                               .segment_bytes = 80 << 10,
	                               .order = "LoB",
	                               .pool_bytes = 96u << 20},
	           1);
}

static void object_10496(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 10496, .order = "LoB"},
	    0);
}

static void object_656(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 656, .order = "LoB"}, 0);
}

static void object_page_and_a_byte(void)
{
	round_trip(
	    &(struct rig_shape){.layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4097, .order = "LoB"}, 0);
}

static void object_above_mdts(void)
{
	round_trip(&(struct rig_shape){.layers = 2,
	                               .blocks = 40,
	                               .segment_bytes = (5u << 20) + 8192,
	                               .order = "LB",
	                               .pool_bytes = 640u << 20,
	                               .segment_pool_bytes = 64u << 20},
	           1);
}

static void object_above_mdts_bounced(void)
{
	round_trip(&(struct rig_shape){.layers = 1,
	                               .blocks = 40,
	                               .segment_bytes = (3u << 20) + 100,
	                               .order = "LB",
	                               .pool_bytes = 320u << 20,
	                               .segment_pool_bytes = 64u << 20},
	           0);
}

#endif

static void memory_off_by(uint32_t offset, int zero_copy)
{
	struct rig_shape s = {.layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB"};

	s.misalign = offset;
	round_trip(&s, zero_copy);
}

static void memory_off_by_1(void) { memory_off_by(1, 0); }
static void memory_off_by_64(void) { memory_off_by(64, 0); }

static void memory_off_by_512(void)
{
	/* Direct where the device takes 512-byte aligned addresses, bounced where it wants whole blocks: both are
	 * right. */
	struct rig_shape s = {
	    .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB", .misalign = 512};
	struct tutti_lane_info info;
	struct rig r;

	rig_up(&r, &s);
	CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
	rig_down(&r);
	round_trip(&s, info.mem_align_bytes <= 512);
}

/* ---- ways through the stack ---- */

static void prp_lists(void)
{
	round_trip(
	    &(struct rig_shape){
	        .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 12288, .order = "LoB", .no_sgl = 1},
	    1);
}

static void prp_small_objects_bounced(void)
{
	round_trip(
	    &(struct rig_shape){
	        .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 656, .order = "LoB", .no_sgl = 1},
	    0);
}

static void two_ranks(void)
{
	round_trip(
	    &(struct rig_shape){
	        .ranks = 2, .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB"},
	    1);
}

static void two_ranks_two_devices(void)
{
	round_trip(&(struct rig_shape){.ranks = 2,
	                               .devices = 2,
	                               .layers = 3,
	                               .blocks = 64,
	                               .outer_count = 2,
	                               .segment_bytes = 4096,
	                               .order = "LoB"},
	           1);
}

static void three_devices_round_robin(void)
{
	round_trip(&(struct rig_shape){.devices = 3,
	                               .layers = 3,
	                               .blocks = 64,
	                               .outer_count = 2,
	                               .segment_bytes = 16384,
	                               .order = "LoB",
	                               .pool_bytes = 96u << 20},
	           1);
}

static void four_executor_blocks(void)
{
	round_trip(&(struct rig_shape){.sms = 4,
	                               .queue_depth = 8,
	                               .layers = 3,
	                               .blocks = 64,
	                               .outer_count = 2,
	                               .segment_bytes = 4096,
	                               .order = "LoB"},
	           1);
}

static void queue_depth_one(void)
{
	round_trip(
	    &(struct rig_shape){
	        .queue_depth = 1, .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB"},
	    1);
}

static void model_controller(void)
{
	round_trip(&(struct rig_shape){.controller = TUTTI_CTRL_MODEL,
	                               .layers = 3,
	                               .blocks = 64,
	                               .outer_count = 2,
	                               .segment_bytes = 4096,
	                               .order = "LoB"},
	           1);
}

#if !defined(__SANITIZE_THREAD__)
/* ---- other drives: 4096-byte blocks, small transfers ---- */

static void odd_objects_on(uint32_t lba_bytes, uint32_t mdts_bytes)
{
	static const uint64_t bytes[] = {80 << 10, 10496, 656, 4097};

	pool_use_blocks(lba_bytes, mdts_bytes);
	for (int i = 0; i < 4; i++) {
		struct rig_shape s = {
		    .layers = 2, .blocks = 40, .outer_count = 2, .order = "LoB", .pool_bytes = 96u << 20};

		s.segment_bytes = bytes[i];
		/* 10,496 is 20.5 x 512: whole blocks of a 512-byte drive, but the memory behind it is aligned to 256
		 * only. */
		round_trip(&s, bytes[i] == 80 << 10);
		s.no_sgl = 1;
		round_trip(&s, bytes[i] == 80 << 10);
	}
	pool_use_blocks(0, 0);
}

static void blocks_of_512(void) { odd_objects_on(512, 0); }
static void blocks_of_4096(void) { odd_objects_on(4096, 0); }
static void transfers_of_16_kib(void) { odd_objects_on(512, 16 << 10); }
static void transfers_of_4_kib_on_4096(void) { odd_objects_on(4096, 4096); }

static void memory_off_by_512_on_512(void)
{
	struct rig_shape s = {
	    .layers = 3, .blocks = 64, .outer_count = 2, .segment_bytes = 4096, .order = "LoB", .misalign = 512};

	pool_use_blocks(512, 0);
	round_trip(&s, 1); /* direct: a 512-byte drive takes such addresses */
	s.no_sgl = 1;
	round_trip(&s, 1); /* PRP: offset in the first page; such objects are not merged */
	pool_use_blocks(0, 0);
}

#endif

/* ---- what the commands look like: neighbours in a set are one command ---- */

static void neighbours_merge(void)
{
	/* 32 KiB objects, a whole chain into a fresh pool: sets of several slots, so a layer needs far fewer commands
	 * than objects. */
	struct rig_shape s = {.layers = 4,
	                      .blocks = 64,
	                      .outer_count = 2,
	                      .segment_bytes = 32768,
	                      .order = "LoB",
	                      .pool_bytes = 128u << 20};
	struct tutti_lane_stats before, after;
	struct tutti_ns_info ns;
	struct tutti_key keys[64];
	uint64_t blocks[64];
	size_t stored, hit, bad;
	struct rig r;

	rig_up(&r, &s);
	CHECK_EQ(tutti_ns_get_info(r.ns, &ns), 0);
	CHECK(ns.set_slots >= 4);
	rig_keys(&r, 1, 64, keys);
	scatter(blocks, 64, 64, 3);
	CHECK_EQ(rig_store(&r, keys, 64, blocks, &stored), 0);
	CHECK_EQ(tutti_lane_stats(r.lane[0], &before), 0);
	CHECK_EQ(rig_retrieve(&r, keys, 64, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(tutti_lane_stats(r.lane[0], &after), 0);
	CHECK_EQ(after.objects - before.objects, 64 * 4 * 2 + 64); /* and the headers */
	CHECK(after.commands - before.commands <= 64 * 4 * 2 / ns.set_slots + 64 / ns.set_slots + 8);
	CHECK_EQ(after.bounced_bytes, 0);
	rig_down(&r);
}

int main(void)
{
	rig_dir(scratch_begin());
	CHECK_RUN(fused);
	CHECK_RUN(reserved_and_written_ahead);
	CHECK_RUN(split_k_and_v);
	CHECK_RUN(heads_outermost);
	CHECK_RUN(fused_heads_inside);
	CHECK_RUN(kernel_blocks_in_one);
	CHECK_RUN(kernel_blocks_split_inside);
	CHECK_RUN(all_layers_of_a_block_together);
	CHECK_RUN(tokens_128);
	CHECK_RUN(memory_off_by_1);
	CHECK_RUN(memory_off_by_64);
	CHECK_RUN(memory_off_by_512);
	CHECK_RUN(prp_lists);
	CHECK_RUN(prp_small_objects_bounced);
	CHECK_RUN(two_ranks);
	CHECK_RUN(two_ranks_two_devices);
	CHECK_RUN(three_devices_round_robin);
	CHECK_RUN(four_executor_blocks);
	CHECK_RUN(queue_depth_one);
	CHECK_RUN(model_controller);
	CHECK_RUN(neighbours_merge);
#if !defined(__SANITIZE_THREAD__) /* the same threads with other sizes: they find nothing more there, slowly */
	CHECK_RUN(object_80_kib);
	CHECK_RUN(object_10496);
	CHECK_RUN(object_656);
	CHECK_RUN(object_page_and_a_byte);
	CHECK_RUN(object_above_mdts);
	CHECK_RUN(object_above_mdts_bounced);
	CHECK_RUN(blocks_of_512);
	CHECK_RUN(blocks_of_4096);
	CHECK_RUN(transfers_of_16_kib);
	CHECK_RUN(transfers_of_4_kib_on_4096);
	CHECK_RUN(memory_off_by_512_on_512);
#endif
	scratch_end();
	return check_end();
}
