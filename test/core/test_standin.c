/*
 * test_standin.c - the stand-in for an engine: its bytes against a naive opinion, differences counted to the byte, and
 * its way through a pool; with each executor, the GPU's where there is one.
 */
#include <errno.h>
#include <tutti/standin.h>

#include "check.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "exec/standin.h"

#define LAYERS 3u
#define BLOCKS 12u
#define N 9u
#define LONG 60000000000ull

/* ---- bytes ---- */

static void bytes_are_a_function_of_seed_and_offset(void)
{
	uint8_t whole[1000], part[1000];
	uint64_t seed = standin_seed(0x030201, 4), random = 1, first = UINT64_MAX;

	standin_fill(seed, 0, whole, sizeof(whole));
	for (int i = 0; i < 2000; i++) { /* any split, any alignment: the same bytes */
		size_t from = check_random(&random) % 900, n = check_random(&random) % 100,
		       at = check_random(&random) % 16;

		standin_fill(seed, from, part + at, n);
		CHECK(memcmp(part + at, whole + from, n) == 0);
		CHECK_EQ(standin_differ(seed, from, part + at, n, &first), 0);
	}
	CHECK(first == UINT64_MAX);
	CHECK(standin_seed(0x030201, 5) != seed);
	CHECK(standin_differ(standin_seed(0x030201, 5), 0, whole, sizeof(whole), &first) > 900);
	CHECK(standin_differ(seed, 8, whole, sizeof(whole), &first) > 900); /* shifted by a word */
}

static void differences_are_counted_to_the_byte(void)
{
	static uint8_t bytes[3 * 4096 + 5];
	uint64_t random = 2;

	for (int i = 0; i < 200; i++) {
		size_t offset = check_random(&random) % 64, flips = 1 + check_random(&random) % 5, done = 0;
		uint64_t first = UINT64_MAX;

		standin_fill(9, offset, bytes, sizeof(bytes));
		for (size_t at = 3; done < flips; at += 1 + check_random(&random) % 2000) {
			if (at >= sizeof(bytes))
				break;
			bytes[at] ^= 0x40;
			done++;
		}
		CHECK_EQ(standin_differ(9, offset, bytes, sizeof(bytes), &first), done);
		CHECK_EQ(first, offset + 3);
	}
}

/* ---- memory of either executor ---- */

static struct {
	struct tutti_standin *s;
	struct tutti_standin_worker *w;
	struct tutti_kv_layout layout;
	void *bases[LAYERS];
	struct tutti_key keys[N];
	uint64_t blocks[N], bytes;
} m;

static void carry(void *dst, const void *src, uint64_t bytes)
{
	if (tutti_standin_executor(m.s) == TUTTI_EXEC_CUDA)
		rig_gpu()->copy(dst, src, bytes);
	else
		memcpy(dst, src, bytes);
}

static void memory_up(enum tutti_executor executor, uint64_t segment_bytes, uint64_t gap_bytes, uint32_t off)
{
	uint64_t layer_bytes = BLOCKS * 6 * (segment_bytes + gap_bytes);
	struct tutti_kv_layout *l = &m.layout;
	int rc;

	m.bytes = LAYERS * layer_bytes + 64;
	rc = tutti_standin_open(executor, m.bytes, 2, &m.s);
	if (executor == TUTTI_EXEC_CUDA && (rc == -ENOSYS || rc == -ENODEV)) {
		CHECK(strstr(tutti_error_message(), "executor cuda") && strstr(tutti_error_message(), "host"));
		CHECK_SKIP("no GPU, or a build without CUDA");
	}
	CHECK_EQ(rc, 0);
	CHECK_EQ(tutti_standin_executor(m.s), executor);
	*l = (struct tutti_kv_layout)TUTTI_KV_LAYOUT_INIT;
	for (uint32_t i = 0; i < LAYERS; i++)
		m.bases[i] = (uint8_t *)tutti_standin_memory(m.s) + off + i * layer_bytes;
	l->layers = LAYERS;
	l->blocks = BLOCKS;
	l->layer_base = m.bases;
	l->inner_count = 3;
	l->outer_count = 2;
	l->segment_bytes = segment_bytes;
	l->inner_stride = segment_bytes + gap_bytes;
	l->block_stride = 3 * l->inner_stride;
	l->outer_stride = BLOCKS * l->block_stride;
	for (uint32_t i = 0; i < N; i++) {
		m.blocks[i] = (i * 5 + 2) % BLOCKS;
		memset(&m.keys[i], 0, sizeof(m.keys[i]));
		m.keys[i].b[0] = (uint8_t)(i + 1);
		m.keys[i].b[7] = 0x90;
	}
	CHECK_EQ(tutti_standin_worker_open(m.s, l, N, &m.w), 0);
	CHECK(*tutti_standin_describe(m.s) && *tutti_standin_worker_describe(m.w));
}

static void memory_down(void)
{
	tutti_standin_worker_close(m.w);
	tutti_standin_close(m.s);
	m.s = NULL;
	m.w = NULL;
}

static uint64_t place(uint32_t layer, uint64_t block, uint32_t segment)
{
	const struct tutti_kv_layout *l = &m.layout;

	return (uint64_t)((uint8_t *)m.bases[layer] - (uint8_t *)tutti_standin_memory(m.s)) + block * l->block_stride +
	       segment / 3 * l->outer_stride + segment % 3 * l->inner_stride;
}

/* What the memory must be after computing the batch's blocks [from, N), byte by byte. */
static void naive(uint8_t *all, size_t from)
{
	memset(all, 0, m.bytes);
	for (size_t i = from; i < N; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint64_t k = 0; k < 6 * m.layout.segment_bytes; k++) {
				uint64_t key, at = place(layer, m.blocks[i], (uint32_t)(k / m.layout.segment_bytes));

				memcpy(&key, m.keys[i].b, sizeof(key));
				all[at + k % m.layout.segment_bytes] = standin_byte(standin_seed(key, layer), k);
			}
}

static void flip(uint32_t layer, size_t i, uint64_t k)
{
	uint64_t at = place(layer, m.blocks[i], (uint32_t)(k / m.layout.segment_bytes)) + k % m.layout.segment_bytes;
	uint8_t *p = (uint8_t *)tutti_standin_memory(m.s) + at, byte;

	carry(&byte, p, 1);
	byte ^= 1;
	carry(p, &byte, 1);
}

static void check_all(void)
{
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, N), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		CHECK_EQ(tutti_standin_check(m.w, layer, 0, N), 0);
	CHECK_EQ(tutti_standin_end(m.w, rig_now() + LONG), 0);
}

static void writes_and_finds(enum tutti_executor executor, uint64_t segment_bytes, uint64_t gap_bytes, uint32_t off)
{
	uint64_t layer_bytes = 6 * segment_bytes, at;
	uint8_t *is, *must;

	memory_up(executor, segment_bytes, gap_bytes, off);
	is = malloc(m.bytes);
	must = malloc(m.bytes);
	CHECK(is && must);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, N), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		CHECK_EQ(tutti_standin_compute(m.w, layer, 2, N - 2), 0);
	CHECK_EQ(tutti_standin_end(m.w, rig_now() + LONG), 0);
	naive(must, 2);
	carry(is, tutti_standin_memory(m.s), m.bytes);
	CHECK(memcmp(is, must, m.bytes) == 0); /* and no byte beside them */
	check_all();
	for (size_t i = 0; i < N; i++) {
		uint64_t wrong = tutti_standin_wrong(m.w, i, &at);

		if (i < 2)
			CHECK(wrong > LAYERS * layer_bytes * 9 / 10 && at < 16);
		else
			CHECK(wrong == 0 && at == UINT64_MAX);
		CHECK_EQ(tutti_standin_waited_ns(m.w, 1), 0);
	}
	flip(1, 5, layer_bytes - 1);
	flip(2, 5, 0);
	flip(2, 5, 7);
	flip(0, 8, segment_bytes);
	check_all();
	CHECK_EQ(tutti_standin_wrong(m.w, 5, &at), 3);
	CHECK_EQ(at, 2 * layer_bytes - 1);
	CHECK_EQ(tutti_standin_wrong(m.w, 8, &at), 1);
	CHECK_EQ(at, segment_bytes);
	CHECK_EQ(tutti_standin_wrong(m.w, 7, NULL), 0);
	CHECK_EQ(tutti_standin_clear(m.s), 0);
	memset(must, 0, m.bytes);
	carry(is, tutti_standin_memory(m.s), m.bytes);
	CHECK(memcmp(is, must, m.bytes) == 0);
	free(is);
	free(must);
	memory_down();
}

static void host_writes_and_finds(void)
{
	writes_and_finds(TUTTI_EXEC_HOST, 4096, 0, 0);
	writes_and_finds(TUTTI_EXEC_HOST, 1001, 13, 3);
}

static void gpu_writes_and_finds(void)
{
	writes_and_finds(TUTTI_EXEC_CUDA, 4096, 0, 0);
	writes_and_finds(TUTTI_EXEC_CUDA, 1001, 13, 3);
	writes_and_finds(TUTTI_EXEC_CUDA, 200000, 8, 16); /* parts of a segment */
}

/* ---- through a pool ---- */

static struct tutti_plan *open_plan(struct rig *r, const struct tutti_lease *lease)
{
	static uint8_t blob[N * 64 + 512];
	struct tutti_plan *p;
	size_t bytes;

	CHECK_EQ(tutti_plan_blob(r->ns, lease, 0, N, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r->lane[0], blob, bytes, m.blocks, N, &p), 0);
	return p;
}

static void finish(struct rig *r, struct tutti_plan *p)
{
	static uint8_t blob[N * 64 + 512];
	size_t bytes, bad = 99;

	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_complete(r->ns, blob, bytes, &bad), 0);
	CHECK_EQ(bad, 0);
}

static void store_all(struct rig *r)
{
	struct tutti_lease hold;
	struct tutti_plan *p;
	size_t first, count;

	CHECK_EQ(tutti_reserve(r->ns, NULL, m.keys, N, LONG, &first, &count, &hold), 0);
	CHECK_EQ(count, N);
	p = open_plan(r, &hold);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, N), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		CHECK_EQ(tutti_standin_compute(m.w, layer, 0, N), 0);
		CHECK_EQ(tutti_standin_store_layer(m.w, p, layer), 0);
	}
	CHECK_EQ(tutti_standin_end(m.w, rig_now() + LONG), 0);
	finish(r, p);
	tutti_release(r->ns, &hold);
}

static void retrieve_all(struct rig *r)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t hit;

	CHECK_EQ(tutti_standin_clear(m.s), 0);
	CHECK_EQ(tutti_lookup(r->ns, m.keys, N, LONG, &hit, &lease), 0);
	CHECK_EQ(hit, N);
	p = open_plan(r, &lease);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, N), 0);
	CHECK_EQ(tutti_retrieve(p), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		CHECK_EQ(tutti_standin_wait_layer(m.w, p, layer, rig_now() + LONG), 0);
		CHECK_EQ(tutti_standin_check(m.w, layer, 0, N), 0);
	}
	CHECK_EQ(tutti_standin_end(m.w, rig_now() + LONG), 0);
	for (size_t i = 0; i < N; i++) {
		CHECK_EQ(tutti_plan_failed(p, i), 0);
		CHECK_EQ(tutti_standin_wrong(m.w, i, NULL), 0);
	}
	CHECK(tutti_standin_waited_ns(m.w, 0) > 0);
	finish(r, p);
	tutti_release(r->ns, &lease);
}

static void through_a_pool(enum tutti_executor executor)
{
	static struct rig r;
	struct rig_shape shape = {.layers = LAYERS,
	                          .blocks = BLOCKS,
	                          .outer_count = 6,
	                          .segment_bytes = 8192,
	                          .gap_bytes = 4096,
	                          .order = "LoB"};
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	uint32_t tokens[N * 16];

	memory_up(executor, 8192, 4096, 0);
	rig_shape_memory(&r, &shape);
	CHECK_EQ(tutti_kv_layout_objects(&m.layout, &r.spec), 0);
	CHECK_EQ(tutti_ns_digest(&r.spec, &r.digest), 0);
	rig_format(&r);
	CHECK_EQ(rig_open_store(&r), 0);
	lo.paths = r.paths;
	lo.n_paths = 1;
	lo.executor = tutti_standin_executor(m.s);
	CHECK_EQ(tutti_lane_open(&lo, &r.digest, &r.lane[0]), 0);
	CHECK_EQ(tutti_lane_register(r.lane[0], &m.layout), 0);
	for (uint32_t i = 0; i < N * 16; i++)
		tokens[i] = i;
	CHECK_EQ(tutti_keys(&r.digest, NULL, tokens, 16, NULL, N, m.keys), 0);
	store_all(&r);
	retrieve_all(&r);
	CHECK_EQ(rig_close_lanes(&r), 0);
	rig_down(&r);
	memory_down();
}

static void host_through_a_pool(void) { through_a_pool(TUTTI_EXEC_HOST); }

static void gpu_through_a_pool(void) { through_a_pool(TUTTI_EXEC_CUDA); }

/* ---- what is refused ---- */

static void refusals(void)
{
	struct tutti_standin *s;
	struct tutti_standin_worker *w;

	CHECK_EQ(tutti_standin_open(TUTTI_EXEC_HOST, 0, 0, &s), -EINVAL);
	CHECK_EQ(tutti_standin_open(TUTTI_EXEC_HOST, UINT64_MAX, 0, &s), -EINVAL);
	memory_up(TUTTI_EXEC_HOST, 4096, 0, 0);
	CHECK_EQ(tutti_standin_worker_open(m.s, &m.layout, 0, &w), -EINVAL);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, 0), -EINVAL);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, N + 1), -EINVAL);
	CHECK_EQ(tutti_standin_begin(m.w, m.keys, m.blocks, 4), 0);
	CHECK_EQ(tutti_standin_check(m.w, LAYERS, 0, 1), -EINVAL);
	CHECK_EQ(tutti_standin_check(m.w, 0, 3, 2), -EINVAL);
	CHECK_EQ(tutti_standin_compute(m.w, 0, 5, 0), -EINVAL);
	CHECK_EQ(tutti_standin_wait_layer(m.w, NULL, LAYERS, 0), -EINVAL);
	CHECK_EQ(tutti_standin_wait_layer(m.w, NULL, 0, 0), -EINVAL);
	memory_down();
	CHECK_EQ(tutti_standin_open(TUTTI_EXEC_AUTO, 4096, 0, &s), 0);
	CHECK_EQ(tutti_standin_executor(s), rig_gpu() ? TUTTI_EXEC_CUDA : TUTTI_EXEC_HOST);
	tutti_standin_close(s);
}

int main(void)
{
	rig_dir(scratch_begin());
	CHECK_RUN(bytes_are_a_function_of_seed_and_offset);
	CHECK_RUN(differences_are_counted_to_the_byte);
	CHECK_RUN(host_writes_and_finds);
	CHECK_RUN(gpu_writes_and_finds);
	CHECK_RUN(host_through_a_pool);
	CHECK_RUN(gpu_through_a_pool);
	CHECK_RUN(refusals);
	scratch_end();
	return check_end();
}
