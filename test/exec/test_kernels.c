/*
 * test_kernels.c - the GPU's own kernels under many orders of their threads and of their bulk copies (exec/sim.h):
 * every byte right in layouts drawn from a seed, what is damaged fails and nothing else, no more on the link than
 * allowed, a layer's sums compared before later layers' data.
 *
 *     test_kernels every_byte_with_movers 1000      so many seeds
 */
#include <errno.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "ctrl/fault_io.h"
#include "exec/fake_gpu.h"
#include "exec/gpu_lab.h"
#include "exec/sim.h"

#define N GPU_LAB_N
#define DEADLINE_NS 30000000000ull

FAKE_GPU_AS_CUDA

/* ThreadSanitizer's threads are slow; one layout of small objects is every hand-over there is. */
#if defined(__SANITIZE_THREAD__)
#define FIRST_SEED 3u
#define LAYERS 1u
#define FLIPS 1u
#else
#define FIRST_SEED 1u
#define LAYERS 4u
#define FLIPS 4u
#endif

static unsigned long seeds = 3; /* the last */

/* A layout that engines have, objects of any size, either controller. */
static struct rig_shape draw_shape(uint64_t *seed)
{
	static const char *const orders[] = {"LB", "LoB", "LBo", "LoiB", "LBi", "BLo"};
	static const uint64_t objects[] = {512, 4096, 5003, 8192, 16384, 32768, 40960, 100016};
	const char *order = orders[check_random(seed) % 6];
	struct rig_shape s = {.accel = &fake_gpu_accel, .blocks = 64, .order = order, .deadline_ns = DEADLINE_NS};

	s.layers = 1 + (uint32_t)(check_random(seed) % 5);
	s.outer_count = strchr(order, 'o') ? 2 : 1;
	s.inner_count = strchr(order, 'i') ? 3 : 1;
	s.segment_bytes = objects[check_random(seed) % 8];
	s.misalign = check_random(seed) % 4 ? 0 : 5;
	s.gap_bytes = check_random(seed) % 3 ? 0 : 1 + check_random(seed) % 48;
	s.sms = 1 + (uint32_t)(check_random(seed) % 3);
	s.queue_depth = check_random(seed) % 2 ? 0 : 32;
	s.controller = check_random(seed) % 2 ? TUTTI_CTRL_MODEL : TUTTI_CTRL_VIRT;
	s.no_sgl = check_random(seed) % 4 == 0;
	s.pool_bytes = 128u << 20;
	return s;
}

static void round_trip(uint64_t seed, int small)
{
	uint64_t draws = seed;
	struct rig_shape shape = draw_shape(&draws);
	uint64_t checked, damaged;
	struct rig r;

	printf("# seed %llu: %s, %u layers, %llu bytes\n", (unsigned long long)seed, shape.order, shape.layers,
	       (unsigned long long)shape.segment_bytes);
	sim_use(&(struct sim_opts){.seed = seed, .small = small});
	rig_up(&r, &shape);
	gpu_lab_round_trip(&r);
	/* The CPU's code finds the sums right that these kernels made. */
	CHECK_EQ(tutti_verify(r.ns, 0, NULL, NULL, &checked, &damaged), 0);
	CHECK_EQ(checked, N);
	CHECK_EQ(damaged, 0);
	rig_down(&r);
}

static void every_byte_with_movers(void)
{
	for (uint64_t seed = FIRST_SEED; seed <= seeds; seed++)
		round_trip(seed, 0);
}

static void every_byte_small(void)
{
	for (uint64_t seed = FIRST_SEED; seed <= seeds; seed++)
		round_trip(seed, 1);
}

/* ---- damage ---- */

static const struct rig_shape plain = {.accel = &fake_gpu_accel,
                                       .layers = LAYERS,
                                       .blocks = 64,
                                       .outer_count = 2,
                                       .segment_bytes = 16384,
                                       .order = "LoB",
                                       .deadline_ns = DEADLINE_NS};

/* One bit of one read is turned over; returns how many blocks failed, and everything else is right. */
static size_t one_bit(struct rig *r, struct fault_io *f, const struct tutti_key *keys, uint64_t nth)
{
	struct fault_rule flip = {.kind = FAULT_FLIP, .ops = FAULT_READ, .nth = nth, .value = 5};
	struct tutti_lease lease;
	uint64_t blocks[N];
	struct tutti_plan *p;
	size_t failed = 0;

	rig_wipe(r, 0);
	gpu_lab_scatter(blocks, r->shape.blocks, nth);
	CHECK_EQ(fault_io_rule(f, &flip), 0);
	p = gpu_lab_plan(r, TUTTI_RETRIEVE, keys, blocks, &lease);
	CHECK_EQ(tutti_retrieve(p), 0);
	tutti_wait_layer(p, r->shape.layers - 1, rig_now() + DEADLINE_NS);
	rig_pull(r, 0);
	for (size_t i = 0; i < N; i++) {
		int rc = tutti_plan_failed(p, i);

		CHECK(rc == 0 || rc == -EBADMSG || rc == -ESTALE);
		CHECK(rc || !rig_wrong(r, 0, blocks[i], &keys[i]));
		failed += rc != 0;
	}
	CHECK_EQ(tutti_plan_finish(p, rig_now() + DEADLINE_NS, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r->ns, &lease), 0);
	fault_io_clear(f);
	return failed;
}

static void damage(int small)
{
	struct fault_io *f = fault_io_new(0);
	struct tutti_key keys[N];
	uint64_t blocks[N];
	size_t stored;
	struct rig r;

	pool_use_io(&fault_io_ops, f);
	sim_use(&(struct sim_opts){.seed = 7, .small = small});
	rig_up(&r, &plain);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, plain.blocks, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	CHECK_EQ(one_bit(&r, f, keys, 1000000), 0);
	for (uint64_t nth = 1; nth < 5 * FLIPS; nth += 5)
		CHECK_EQ(one_bit(&r, f, keys, nth), 1);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void one_bit_fails_one_block_with_movers(void) { damage(0); }
static void one_bit_fails_one_block_small(void) { damage(1); }

/* ---- several plans in one kernel ---- */

#define PLANS 3u /* one more than a kernel has near */

static void plans_share_kernels(void)
{
	struct tutti_key keys[PLANS][N];
	struct tutti_lease resv[PLANS];
	struct tutti_plan *p[PLANS];
	struct rig_shape shape = plain;
	uint64_t blocks[PLANS][N];
	size_t hit, bad;
	struct rig r;

	shape.blocks = 128;
	sim_use(&(struct sim_opts){.seed = 3});
	rig_up(&r, &shape);
	for (uint32_t k = 0; k < PLANS; k++) {
		rig_keys(&r, k + 1, N, keys[k]);
		for (size_t i = 0; i < N; i++) {
			blocks[k][i] = i * PLANS + k;
			rig_fill(&r, 0, blocks[k][i], &keys[k][i]);
		}
	}
	rig_push(&r, 0);
	for (uint32_t k = 0; k < PLANS; k++)
		p[k] = gpu_lab_plan(&r, TUTTI_STORE, keys[k], blocks[k], &resv[k]);
	for (uint32_t l = 0; l < shape.layers; l++)
		for (uint32_t k = 0; k < PLANS; k++)
			CHECK_EQ(tutti_store_layer(p[k], l), 0);
	for (uint32_t k = 0; k < PLANS; k++)
		CHECK_EQ(gpu_lab_end(&r, p[k], &resv[k]), 0);
	for (uint32_t k = 0; k < PLANS; k++) {
		rig_wipe(&r, 0);
		CHECK_EQ(rig_retrieve(&r, keys[k], N, blocks[k], 0, &hit, &bad), 0);
		CHECK_EQ(hit - bad, N);
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(&r, 0, blocks[k][i], &keys[k][i]), 0);
	}
	rig_down(&r);
}

/* ---- what is under way ---- */

/* Stores and retrieves; what was counted of either. */
static void counted(struct rig_shape shape, struct sim_opts o, struct sim_counts *store, struct sim_counts *retrieve)
{
	struct tutti_key keys[N];
	uint64_t blocks[N];
	size_t stored, hit, bad;
	struct rig r;

	sim_use(&o);
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, shape.blocks, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	sim_counted(store);
	sim_use(&o);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit - bad, N);
	sim_counted(retrieve);
	rig_down(&r);
}

static void need_fibers(void)
{
#if defined(__SANITIZE_THREAD__)
	CHECK_SKIP("under ThreadSanitizer bulk copies happen at once: nothing is under way");
#endif
}

static void no_more_on_the_link_than_allowed(void)
{
	struct sim_counts store, retrieve;
	struct rig_shape shape = plain;

	need_fibers();
	shape.layers = 3;
	for (uint32_t most = 1; most <= 3; most += 2) {
		uint32_t in = 0, out = 0;

		/* Of some the copies are so late that they meet the bound. */
		for (uint64_t seed = 1; seed <= 4; seed++) {
			counted(shape, (struct sim_opts){.seed = seed, .stages = 6, .loads = most, .stores = most},
			        &store, &retrieve);
			in = retrieve.most_in > in ? retrieve.most_in : in;
			out = store.most_out > out ? store.most_out : out;
		}
		CHECK_EQ(in, most);
		CHECK_EQ(out, most);
	}
}

/*
 * A layer whose data and headers are there waits for its comparison no longer than the chunks take that are in their
 * stages: not for all that the controller has answered of later layers.
 */
static void a_layer_does_not_wait_for_later_ones(void)
{
	struct sim_counts store, retrieve;
	struct rig_shape shape = plain;

	need_fibers();
	shape.layers = 16;
	shape.controller = TUTTI_CTRL_MODEL;
	shape.sms = 1;
	for (uint64_t seed = 1; seed <= 2; seed++) {
		counted(shape, (struct sim_opts){.seed = seed, .stages = 4, .loads = 3}, &store, &retrieve);
		printf("# %llu layers compared, each behind %u chunks at most\n", (unsigned long long)retrieve.verified,
		       retrieve.most_behind);
		CHECK_EQ(retrieve.verified, shape.layers);
		CHECK(retrieve.most_behind <= 8); /* two rounds of the stages */
	}
}

int main(int argc, char **argv)
{
	check_only = argc > 1 ? argv[1] : NULL;
	seeds = argc > 2 ? strtoul(argv[2], NULL, 10) : seeds;
	rig_dir(scratch_begin_in_memory());
	fake_gpu_use(FAKE_GPU_SIM);
	CHECK_RUN(every_byte_with_movers);
	CHECK_RUN(every_byte_small);
	CHECK_RUN(one_bit_fails_one_block_with_movers);
	CHECK_RUN(one_bit_fails_one_block_small);
	CHECK_RUN(plans_share_kernels);
	CHECK_RUN(no_more_on_the_link_than_allowed);
	CHECK_RUN(a_layer_does_not_wait_for_later_ones);
	scratch_end();
	return check_end();
}
