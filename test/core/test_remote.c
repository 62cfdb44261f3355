/*
 * test_remote.c - everything that is the host's when device code runs on another processor, without one: what takes
 * the GPU's place is exec/fake_gpu.h (this program's exec_cuda). Round trips in place and bounced; stores that wait for
 * a stream; only what is lost fails; kernels that come late. All of it three times: kernels that are dev_io_serve on a
 * thread, and the GPU's two in exec/sim.h.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "core/engine_int.h"
#include "core/lane.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "ctrl/fault_io.h"
#include "exec/exec.h"
#include "exec/fake_gpu.h"
#include "exec/gpu_lab.h"
#include "exec/sim.h"
#include <tutti/gio_uring.h>

#define N GPU_LAB_N

static uint64_t deadline_ns = 400000000ull; /* of I/O; simulated kernels are slow */

FAKE_GPU_AS_CUDA

/* ---- round trips ---- */

static void round_trip(struct rig_shape shape)
{
	struct tutti_lane_info info;
	struct rig r;

	shape.accel = &fake_gpu_accel;
	rig_up(&r, &shape);
	CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
	CHECK(!strncmp(info.executor, "cuda", 4) && info.why[0]);
	CHECK(info.accel_bytes > 1 << 20 && info.accel_bytes < 32000000);
	gpu_lab_round_trip(&r);
	rig_down(&r);
}

static void bounced(void)
{
	round_trip(
	    (struct rig_shape){.layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 32768, .order = "LoB"});
}

static void in_place(void)
{
	round_trip((struct rig_shape){.layers = 4,
	                              .blocks = 64,
	                              .outer_count = 2,
	                              .segment_bytes = 32768,
	                              .order = "LoB",
	                              .sms = 2,
	                              .controller = TUTTI_CTRL_MODEL});
}

static void in_place_odd_objects(void)
{
	round_trip((struct rig_shape){.layers = 3,
	                              .blocks = 64,
	                              .segment_bytes = 5003,
	                              .gap_bytes = 1,
	                              .order = "LB",
	                              .misalign = 5,
	                              .controller = TUTTI_CTRL_MODEL});
}

static void in_place_large_objects(void)
{
	round_trip((struct rig_shape){.layers = 2,
	                              .blocks = 48,
	                              .segment_bytes = (1u << 20) + 65536,
	                              .order = "LB",
	                              .pool_bytes = 512u << 20,
	                              .controller = TUTTI_CTRL_MODEL});
}

/* ---- what lies between objects on the medium ---- */

#define ODD_BYTES 5003u
#define TAIL_BYTES 48u

/* How many bytes behind the end of each object, up to the next 512, are not 0. Checks that all n tails are there. */
static size_t dirt(const struct rig *r, const uint64_t *blocks, size_t n)
{
	FILE *f = fopen(r->paths[0], "rbe");
	uint8_t *pool = malloc(r->shape.pool_bytes);
	size_t dirty = 0;

	CHECK(f && pool && fread(pool, 1, r->shape.pool_bytes, f) == r->shape.pool_bytes && !fclose(f));
	for (size_t i = 0; i < n * r->shape.layers; i++) {
		const struct tutti_kv_layout *kv = &r->kv[0];
		const uint8_t *tail = (const uint8_t *)kv->layer_base[i % r->shape.layers] +
		                      blocks[i / r->shape.layers] * kv->block_stride + ODD_BYTES - TAIL_BYTES;
		const uint8_t *at = memmem(pool, r->shape.pool_bytes, tail, TAIL_BYTES);

		CHECK(at);
		for (at += TAIL_BYTES; (at - pool) % 512; at++)
			dirty += *at != 0;
	}
	free(pool);
	return dirty;
}

static void nothing_of_ours_lies_between_objects(void)
{
	struct rig_shape shape = {.accel = &fake_gpu_accel,
	                          .layers = 3,
	                          .blocks = 64,
	                          .segment_bytes = ODD_BYTES,
	                          .order = "LB",
	                          .pool_bytes = 16u << 20};
	struct tutti_key keys[N];
	uint64_t blocks[N];
	struct engine *e;
	size_t stored;
	struct rig r;

	rig_up(&r, &shape);
	e = r.lane[0]->engine;
	for (uint32_t i = 0; i < ENGINE_STREAMS * e->o.blocks; i++) {
		struct dev_block *b = &e->streams[i / e->o.blocks].blocks[i % e->o.blocks]->dev;

		memset(b->bounce, 0xff, b->n_bounce * b->bounce_bytes);
	}
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, shape.blocks, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	CHECK_EQ(stored, N);
	CHECK_EQ(dirt(&r, blocks, N), 0);
	rig_down(&r);
}

/* ---- stores that wait for a stream ---- */

static const struct rig_shape stream_shape = {.accel = &fake_gpu_accel,
                                              .layers = 4,
                                              .blocks = 64,
                                              .outer_count = 2,
                                              .segment_bytes = 16384,
                                              .order = "LoB"};

static void a_store_waits_for_its_stream(void)
{
	const struct timespec nap = {.tv_nsec = 30000000};
	struct app_stream compute = {.busy = 1};
	struct rig_shape s = stream_shape;
	struct tutti_key keys[N];
	struct tutti_lease resv;
	uint64_t blocks[N];
	size_t hit, bad;
	struct tutti_plan *p;
	struct rig r;

	s.deadline_ns = 20 * deadline_ns; /* this thread computes, and may be slow at it */
	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	rig_wipe(&r, 0);
	p = gpu_lab_plan(&r, TUTTI_STORE, keys, blocks, &resv);
	for (uint32_t l = 0; l < 4; l++)
		CHECK_EQ(tutti_store_layer_stream(p, l, &compute), 0);
	nanosleep(&nap, NULL); /* time in which nothing may happen */
	CHECK_EQ(tutti_plan_poll(p), 0);
	for (size_t i = 0; i < N; i++) /* what the stream computes */
		rig_fill(&r, 0, blocks[i], &keys[i]);
	rig_push(&r, 0);
	fake_gpu_let(&compute);
	CHECK_EQ(gpu_lab_end(&r, p, &resv), 0);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(bad, 0);
	for (size_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	rig_down(&r);
}

static void a_stream_that_never_comes_fails_its_store(void)
{
	struct app_stream compute = {.busy = 1}, idle = {.busy = 0};
	struct tutti_key keys[N];
	struct tutti_lease resv;
	uint64_t blocks[N], t0;
	size_t hit, bad;
	struct tutti_plan *p;
	struct rig r;

	rig_up(&r, &stream_shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	p = gpu_lab_plan(&r, TUTTI_STORE, keys, blocks, &resv);
	rig_deadline(&r, 0, deadline_ns);
	t0 = rig_now();
	for (uint32_t l = 0; l < 4; l++)
		CHECK_EQ(tutti_store_layer_stream(p, l, &compute), 0);
	CHECK_EQ(tutti_wait_layer(p, 0, t0 + 60000000000ull), -ETIMEDOUT);
	CHECK(rig_now() - t0 >= deadline_ns);
	CHECK_EQ(gpu_lab_end(&r, p, &resv), N);
	fake_gpu_let(&compute);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 1, &hit, &resv), 0);
	CHECK_EQ(hit, 0);
	/* The lane goes on. */
	rig_deadline(&r, 0, 0);
	for (size_t i = 0; i < N; i++)
		rig_fill(&r, 0, blocks[i], &keys[i]);
	rig_push(&r, 0);
	p = gpu_lab_plan(&r, TUTTI_STORE, keys, blocks, &resv);
	for (uint32_t l = 0; l < 4; l++)
		CHECK_EQ(tutti_store_layer_stream(p, l, &idle), 0);
	CHECK_EQ(gpu_lab_end(&r, p, &resv), 0);
	CHECK_EQ(rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(bad, 0);
	rig_down(&r);
}

static void host_lanes_have_no_streams(void)
{
	struct rig_shape shape = {.layers = 2, .blocks = 64, .segment_bytes = 16384, .order = "LB"};
	struct tutti_key keys[N];
	struct tutti_lease resv;
	struct app_stream compute = {.busy = 0};
	uint64_t blocks[N];
	struct tutti_plan *p;
	struct rig r;

	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	p = gpu_lab_plan(&r, TUTTI_STORE, keys, blocks, &resv);
	CHECK_EQ(tutti_store_layer_stream(p, 0, &compute), -ENOTSUP);
	/* Nothing was dropped. */
	CHECK_EQ(tutti_store_layer(p, 0), 0);
	CHECK_EQ(tutti_store_layer(p, 1), 0);
	CHECK_EQ(tutti_wait_layer_stream(p, 0, &compute), -ENOTSUP);
	CHECK_EQ(gpu_lab_end(&r, p, &resv), 0);
	rig_down(&r);
}

/* ---- what is lost ---- */

/* Retrieves what is there; what has not failed must be right. Returns how many blocks failed. */
static size_t retrieve(struct rig *r, const struct tutti_key *keys, const uint64_t *blocks, int32_t why)
{
	size_t n, bytes = tutti_plan_blob_bytes(N), failed = 0;
	struct tutti_lease lease;
	void *blob = malloc(bytes);
	struct tutti_plan *p;

	CHECK_EQ(tutti_lookup(r->ns, keys, N, 60000000000ull, &n, &lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r->ns, &lease, 0, N, blob, bytes, &bytes), 0);
	CHECK_EQ(tutti_plan_open(r->lane[0], blob, bytes, blocks, N, &p), 0);
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_wait_layer(p, r->shape.layers - 1, rig_now() + 60000000000ull), why);
	rig_pull(r, 0);
	for (size_t i = 0; i < N; i++) {
		int rc = tutti_plan_failed(p, i);

		CHECK(rc == 0 || rc == why);
		CHECK(rc || !rig_wrong(r, 0, blocks[i], &keys[i]));
		failed += rc != 0;
	}
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 10000000000ull, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_release(r->ns, &lease), 0);
	free(blob);
	return failed;
}

/* One read is never answered: the blocks of its command fail, by the deadline, and no others. */
static void only_what_is_lost_fails(const struct rig_accel *where)
{
	struct rig_shape shape = stream_shape;
	struct fault_rule rule = {.kind = FAULT_HANG, .ops = FAULT_READ, .nth = 9, .count = 1};
	struct tutti_key keys[N];
	uint64_t blocks[N];
	size_t stored, failed;
	struct fault_io *f;
	struct rig r;

	shape.accel = where;
	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	gpu_lab_scatter(blocks, 64, 1);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	rig_wipe(&r, 0);
	CHECK_EQ(fault_io_rule(f, &rule), 0);
	rig_deadline(&r, 0,
	             deadline_ns < 2000000000u ? 2000000000u : deadline_ns); /* all other reads are done by then */
	failed = retrieve(&r, keys, blocks, -ETIMEDOUT);
	rig_deadline(&r, 0, 0);
	printf("# %zu blocks of %d failed\n", failed, N);
	CHECK(failed > 0 && failed <= 16);
	fault_io_clear(f);
	rig_wipe(&r, 0);
	CHECK_EQ(retrieve(&r, keys, blocks, 0), 0);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static void only_what_is_lost_fails_remote(void) { only_what_is_lost_fails(&fake_gpu_accel); }
static void only_what_is_lost_fails_host(void) { only_what_is_lost_fails(NULL); }

/* ---- raw calls ---- */

#define RAW_BYTES (8u << 20)
#define RAW_PIECES 200u

static struct gio *raw_open(enum tutti_controller controller, const char *path)
{
	struct gio_opts o = GIO_OPTS_INIT;
	struct gio *g;
	FILE *f = fopen(path, "wbe");

	CHECK(f && !fseek(f, RAW_BYTES - 1, SEEK_SET) && fputc(0, f) == 0 && !fclose(f));
	o.paths = &path;
	o.n_paths = 1;
	o.sms = 2;
	o.controller = controller;
	o.executor = TUTTI_EXEC_CUDA;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	return g;
}

/* Pieces of 4 to 1500 KiB, back to back on the device, scattered in memory. Returns their number. */
static uint32_t raw_pieces(struct gio_ioctx *c, enum gio_op op, uint8_t *mem, int forward)
{
	uint32_t n = 0, at = 0;

	for (uint64_t seed = 7; n < RAW_PIECES && at < RAW_BYTES; n++) {
		uint32_t bytes = n == 3 ? 1500u << 10 : 4096u * (1 + (uint32_t)(check_random(&seed) % 3));

		bytes = bytes > RAW_BYTES - at ? RAW_BYTES - at : bytes;
		c[n] = (struct gio_ioctx){.offset_bytes = at, .bytes = bytes, .op = (uint16_t)op};
		c[n].mem = (uint64_t)(uintptr_t)(mem + (forward ? at : RAW_BYTES - at - bytes));
		at += bytes;
	}
	return n;
}

static void raw_transfer(struct gio *g, enum gio_op op, uint8_t *mem, int forward, struct app_stream *after)
{
	const struct timespec nap = {.tv_nsec = 20000000};
	struct gio_event event = {.cuda_event = after};
	struct gio_ioctx *c;
	struct gio_result r;
	uint32_t id;

	CHECK_EQ(gio_get_iocb(g, RAW_PIECES, after ? &event : NULL, &id, &c), 0);
	CHECK_EQ(raw_pieces(c, op, mem, forward), RAW_PIECES);
	CHECK_EQ(gio_issue_io(g, &id, 1, after ? 1 : 0), 0);
	if (after) {
		CHECK_EQ(gio_wait_cqe(g, id, rig_now() + (uint64_t)nap.tv_nsec, &r), -ETIMEDOUT);
		fake_gpu_let(after);
	}
	CHECK_EQ(gio_wait_stream(g, id, after), 0);
	CHECK_EQ(gio_wait_cqe(g, id, rig_now() + 10000000000ull, &r), 0);
	CHECK_EQ(r.status, 0);
	CHECK_EQ(r.failed, 0);
	gio_put_iocb(g, id);
}

static void raw_calls(enum tutti_controller controller)
{
	const char *path = scratch_path("raw");
	struct gio *g = raw_open(controller, path);
	uint8_t *a = fake_gpu_get(RAW_BYTES), *b = fake_gpu_get(RAW_BYTES), elsewhere[4096];
	struct app_stream stream = {.busy = 1};
	const uint32_t word = 1;
	struct gio_event event = {.word = &word, .value = 1};
	struct gio_ioctx *c, done[RAW_PIECES], back[RAW_PIECES];
	uint64_t seed = 5;
	uint32_t id, n;

	for (uint32_t i = 0; i < RAW_BYTES; i++)
		a[i] = (uint8_t)check_random(&seed);
	memset(b, 0, RAW_BYTES);
	CHECK_EQ(gio_register(g, a, RAW_BYTES), 0);
	CHECK_EQ(gio_register(g, b, RAW_BYTES), 0);
	CHECK_EQ(gio_register(g, elsewhere, sizeof(elsewhere)), -EINVAL);
	CHECK_EQ(gio_get_iocb(g, 1, &event, &id, &c), -ENOTSUP);
	CHECK_EQ(gio_get_iocb(g, 1, NULL, &id, &c), 0);
	c[0] = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)elsewhere, .bytes = 4096, .op = GIO_WRITE};
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), -EINVAL);
	gio_put_iocb(g, id);
	raw_transfer(g, GIO_WRITE, a, 1, &stream);
	raw_transfer(g, GIO_READ, b, 0, NULL);
	n = raw_pieces(done, GIO_WRITE, a, 1);
	raw_pieces(back, GIO_READ, b, 0);
	for (uint32_t i = 0; i < n; i++)
		CHECK(!memcmp((void *)(uintptr_t)done[i].mem, (void *)(uintptr_t)back[i].mem, done[i].bytes));
	CHECK_EQ(gio_close(g), 0);
	fake_gpu_put(a);
	fake_gpu_put(b);
}

static void raw_calls_bounced(void) { raw_calls(TUTTI_CTRL_VIRT); }
static void raw_calls_in_place(void) { raw_calls(TUTTI_CTRL_MODEL); }

/* ---- kernels of three kinds ---- */

static void all(void)
{
	CHECK_RUN(bounced);
	CHECK_RUN(in_place);
	CHECK_RUN(in_place_odd_objects);
	CHECK_RUN(in_place_large_objects);
	CHECK_RUN(nothing_of_ours_lies_between_objects);
	CHECK_RUN(a_store_waits_for_its_stream);
	CHECK_RUN(a_stream_that_never_comes_fails_its_store);
	CHECK_RUN(only_what_is_lost_fails_remote);
	CHECK_RUN(raw_calls_bounced);
	CHECK_RUN(raw_calls_in_place);
}

#if defined(__SANITIZE_THREAD__)
static void fibers(void) { CHECK_SKIP("ThreadSanitizer does not know the simulated kernels' fibers"); }
#endif

int main(int argc, char **argv)
{
	check_only = argc > 1 ? argv[1] : NULL;
	rig_dir(scratch_begin_in_memory());
	printf("# kernels: dev_io_serve on a thread\n");
	all();
	CHECK_RUN(host_lanes_have_no_streams);
	CHECK_RUN(only_what_is_lost_fails_host);
#if defined(__SANITIZE_THREAD__)
	CHECK_RUN(fibers);
#else
	for (int small = 0; small < 2; small++) {
		struct sim_counts n;

		printf("# kernels: the GPU's %s, simulated\n", small ? "small one" : "with movers");
		fake_gpu_use(FAKE_GPU_SIM);
		deadline_ns = 3000000000ull;
		sim_use(&(struct sim_opts){.seed = 1, .small = small});
		all();
		sim_counted(&n);
		printf("# %llu kernels, %llu switches, %llu bulk copies in, %llu out\n", (unsigned long long)n.kernels,
		       (unsigned long long)n.switches, (unsigned long long)n.copies_in,
		       (unsigned long long)n.copies_out);
	}
#endif
	scratch_end();
	return check_end();
}
