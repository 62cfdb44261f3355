/*
 * test_cuda.c - the whole stack with KV memory on the GPU: every byte there and back through virt on a file and through
 * the model in place, in every awkward layout; a stream that waits for layers; damage found; a controller that stops,
 * and a GPU that is usable afterwards. Skipped, by name, where there is no GPU or no CUDA in the build.
 */
#include <errno.h>
#include <fcntl.h>

#include "core/pool.h"
#include "core/scratch.h"
#include "ctrl/fault_io.h"
#include "exec/gpu_lab.h"

#define N GPU_LAB_N
#define DEADLINE_NS 400000000ull

static void on_gpu(const struct rig *r)
{
	struct tutti_lane_info info;

	CHECK_EQ(tutti_lane_get_info(r->lane[0], &info), 0);
	CHECK(!strncmp(info.executor, "cuda", 4));
	CHECK(info.why[0]);
}

static void round_trip(struct rig_shape shape)
{
	struct tutti_lane_stats st;
	struct rig r;

	gpu_lab_need();
	shape.accel = rig_gpu();
	rig_up(&r, &shape);
	on_gpu(&r);
	gpu_lab_round_trip(&r);
	CHECK_EQ(tutti_lane_stats(r.lane[0], &st), 0);
	CHECK_EQ(st.failed_objects, 0);
	CHECK(st.bounced_bytes > 0 && st.direct_bytes == 0);
	rig_down(&r);
}

static void virt_split_kv(void)
{
	round_trip(
	    (struct rig_shape){.layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 32768, .order = "LoB"});
}
static void virt_fused_two_sms(void)
{
	round_trip((struct rig_shape){.layers = 5, .blocks = 64, .segment_bytes = 65536, .order = "LB", .sms = 2});
}
static void virt_blocks_outermost(void)
{
	round_trip((struct rig_shape){
	    .layers = 3, .blocks = 64, .outer_count = 2, .inner_count = 4, .segment_bytes = 4096, .order = "BLoi"});
}
static void virt_odd_objects(void)
{
	round_trip((struct rig_shape){
	    .layers = 3, .blocks = 64, .segment_bytes = 6008, .gap_bytes = 8, .order = "LB", .misalign = 24});
}
static void virt_objects_of_odd_bytes(void)
{
	round_trip((struct rig_shape){
	    .layers = 2, .blocks = 64, .segment_bytes = 5003, .gap_bytes = 1, .order = "LB", .misalign = 5});
}
static void virt_large_objects(void)
{
	round_trip((struct rig_shape){
	    .layers = 2, .blocks = 48, .segment_bytes = (1u << 20) + 65536, .order = "LB", .pool_bytes = 512u << 20});
}
static void virt_two_ranks_two_devices(void)
{
	round_trip((struct rig_shape){.layers = 4,
	                              .blocks = 64,
	                              .outer_count = 2,
	                              .segment_bytes = 16384,
	                              .order = "LoB",
	                              .ranks = 2,
	                              .devices = 2});
}
static void virt_prp(void)
{
	round_trip((struct rig_shape){.layers = 4, .blocks = 64, .segment_bytes = 65536, .order = "LB", .no_sgl = 1});
}
static void model_in_place(void)
{
	round_trip((struct rig_shape){.layers = 8,
	                              .blocks = 64,
	                              .outer_count = 2,
	                              .segment_bytes = 32768,
	                              .order = "LoB",
	                              .sms = 2,
	                              .controller = TUTTI_CTRL_MODEL});
}

/* The small shape: warps. */
static void small_virt(void)
{
	round_trip((struct rig_shape){.layers = 4,
	                              .blocks = 64,
	                              .outer_count = 2,
	                              .segment_bytes = 32768,
	                              .order = "LoB",
	                              .sms = 8,
	                              .queue_depth = 16,
	                              .small_kernels = 1});
}
static void small_in_place(void)
{
	round_trip((struct rig_shape){.layers = 8,
	                              .blocks = 64,
	                              .outer_count = 2,
	                              .segment_bytes = 32768,
	                              .order = "LoB",
	                              .sms = 16,
	                              .queue_depth = 16,
	                              .small_kernels = 1,
	                              .controller = TUTTI_CTRL_MODEL});
}
static void small_odd_objects(void)
{
	round_trip((struct rig_shape){.layers = 2,
	                              .blocks = 64,
	                              .segment_bytes = 5003,
	                              .gap_bytes = 1,
	                              .order = "LB",
	                              .misalign = 5,
	                              .sms = 4,
	                              .queue_depth = 16,
	                              .small_kernels = 1});
}

/* ---- damage ---- */

static void damage_is_found(void)
{
	struct rig_shape shape = {.layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};
	struct tutti_key keys[N];
	uint64_t blocks[N], seed = 3;
	size_t stored, hit, bad, rotten = 0;
	struct rig r;
	int fd;

	gpu_lab_need();
	shape.accel = rig_gpu();
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	fd = open(r.paths[0], O_RDWR);
	CHECK(fd >= 0);
	/* A page in every 64 KiB of the pool: headers and objects alike. */
	for (off_t at = 1 << 20; at < 8 << 20; at += 65536) {
		uint8_t byte;
		off_t where = at + (off_t)(check_random(&seed) % 65536);

		CHECK_EQ(pread(fd, &byte, 1, where), 1);
		byte ^= 0x10;
		CHECK_EQ(pwrite(fd, &byte, 1, where), 1);
	}
	CHECK_EQ(fsync(fd), 0);
	close(fd);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, N);
	CHECK(bad > 0);
	/* What is wrong in memory is at most what was reported. */
	for (size_t i = 0; i < N; i++)
		rotten += rig_wrong(&r, 0, blocks[i], &keys[i]) != 0;
	printf("# %zu blocks of %d are damaged, %zu differ\n", bad, N, rotten);
	CHECK(rotten > 0 && rotten <= bad);
	rig_down(&r);
}

/* ---- a controller that stops ---- */

static void controller_stops(enum fault_kind kind, int small)
{
	struct rig_shape shape = {.layers = 4,
	                          .blocks = 64,
	                          .outer_count = 2,
	                          .segment_bytes = 16384,
	                          .order = "LoB",
	                          .queue_depth = small ? 16 : 0,
	                          .small_kernels = small,
	                          .deadline_ns = DEADLINE_NS};
	struct fault_rule rule = {.kind = kind, .ops = FAULT_READ, .nth = 3, .count = 1};
	struct tutti_key keys[N];
	struct tutti_lease lease;
	uint64_t blocks[N], t0, took;
	size_t stored, hit, bad, failed = 0;
	struct fault_io *f;
	struct tutti_plan *p;
	struct rig r;

	gpu_lab_need();
	shape.accel = rig_gpu();
	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	rig_wipe(&r, 0);
	p = gpu_lab_plan(&r, TUTTI_RETRIEVE, keys, blocks, &lease);
	CHECK_EQ(fault_io_rule(f, &rule), 0);
	t0 = rig_now();
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_wait_layer(p, 3, t0 + 10 * DEADLINE_NS), -ETIMEDOUT);
	took = rig_now() - t0;
	printf("# the layer failed after %llu ms, the deadline was %llu\n", (unsigned long long)took / 1000000,
	       DEADLINE_NS / 1000000);
	CHECK(took >= DEADLINE_NS && took < DEADLINE_NS + 2500000000ull);
	for (size_t i = 0; i < N; i++)
		failed += tutti_plan_failed(p, i) != 0;
	CHECK(failed > 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 10000000000ull, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	/* The same lane goes on. */
	fault_io_clear(f);
	for (int again = 0; again < 3; again++) {
		rig_wipe(&r, 0);
		CHECK_EQ(rig_retrieve(&r, keys, N, blocks, again & 1, &hit, &bad), 0);
		CHECK_EQ(bad, 0);
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	}
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void one_read_is_lost(void) { controller_stops(FAULT_HANG, 0); }
static void one_read_is_lost_small(void) { controller_stops(FAULT_HANG, 1); }
static void the_disk_stops(void) { controller_stops(FAULT_STOP, 0); }

int main(int argc, char **argv)
{
	check_only = argc > 1 ? argv[1] : NULL;
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(virt_split_kv);
	CHECK_RUN(virt_fused_two_sms);
	CHECK_RUN(virt_blocks_outermost);
	CHECK_RUN(virt_odd_objects);
	CHECK_RUN(virt_objects_of_odd_bytes);
	CHECK_RUN(virt_large_objects);
	CHECK_RUN(virt_two_ranks_two_devices);
	CHECK_RUN(virt_prp);
	CHECK_RUN(model_in_place);
	CHECK_RUN(small_virt);
	CHECK_RUN(small_in_place);
	CHECK_RUN(small_odd_objects);
	CHECK_RUN(damage_is_found);
	CHECK_RUN(one_read_is_lost);
	CHECK_RUN(one_read_is_lost_small);
	CHECK_RUN(the_disk_stops);
	scratch_end();
	return check_end();
}
