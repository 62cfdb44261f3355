/*
 * test_commands.c - how many commands a retrieve or a store takes, against the least that is possible, counted by
 * someone who knows no builder: all places of a layer are sorted, what touches is one extent, and an extent of n bytes
 * needs n / MDTS commands. Then random shapes of everything on a mock drive that walks lists page by page, refuses what
 * is longer than MDTS and counts what crosses its boundary.
 */
#include <errno.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/mock_nvme.h"

#define MIB (1ull << 20)
#define BLOCKS_128K 2048u /* 128K tokens of 64 */
#define FEW 16u

/* llama3-8b: 32 layers, K and V, 8 heads of 128 in bfloat16. A block has 64 tokens. */
static const struct rig_shape llama = {.layers = 32,
                                       .blocks = BLOCKS_128K,
                                       .outer_count = 2,
                                       .segment_bytes = 64 * 8 * 128 * 2,
                                       .order = "LoB",
                                       .block_tokens = 64,
                                       .pool_bytes = 20480 * MIB,
                                       .controller = TUTTI_CTRL_NULL,
                                       .no_verify = 1};

static struct rig r;
static uint32_t slots[BLOCKS_128K];

struct place {
	uint32_t dev;
	uint64_t at, bytes;
};

static int before(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->dev != y->dev ? (x->dev < y->dev ? -1 : 1) : x->at < y->at ? -1 : x->at > y->at;
}

/* Commands that these places need at least. Sorts them. */
static uint64_t least(struct place *p, size_t n, uint64_t mdts_bytes)
{
	uint64_t commands = 0, extent = 0;

	qsort(p, n, sizeof(*p), before);
	for (size_t i = 0; i < n; i++) {
		extent += p[i].bytes;
		if (i + 1 < n && p[i + 1].dev == p[i].dev && p[i + 1].at == p[i].at + p[i].bytes)
			continue;
		commands += (extent + mdts_bytes - 1) / mdts_bytes;
		extent = 0;
	}
	return commands;
}

/* For the objects of n blocks, layer by layer, since each layer is waited for; *headers: for their headers. */
static uint64_t least_of_blocks(uint32_t n, uint64_t mdts_bytes, uint64_t *headers)
{
	struct place *p = calloc((size_t)n * r.shape.outer_count, sizeof(*p));
	uint64_t commands = 0;
	struct geom g;

	store_ns_geom(r.ns->ns, 0, &g);
	for (uint32_t layer = 0; layer < r.shape.layers; layer++) {
		for (uint32_t i = 0; i < n * r.shape.outer_count; i++) {
			struct geom_place at = geom_place(&g, slots[i / r.shape.outer_count]);

			p[i] = (struct place){.dev = g.dev[at.dev],
			                      .at = geom_object_offset(&g, &at, layer, i % r.shape.outer_count),
			                      .bytes = g.pitch_bytes};
		}
		commands += least(p, (size_t)n * r.shape.outer_count, mdts_bytes);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct geom_place at = geom_place(&g, slots[i]);

		p[i] = (struct place){
		    .dev = g.dev[at.dev], .at = geom_header_offset(&g, &at), .bytes = g.header_bytes};
	}
	*headers = least(p, n, mdts_bytes);
	free(p);
	return commands;
}

static uint64_t commands(void)
{
	struct tutti_lane_stats s;

	CHECK_EQ(tutti_lane_stats(r.lane[0], &s), 0);
	return s.commands;
}

/* The lease's slots, for least_of_blocks. */
static void note_slots(const struct tutti_lease *lease, uint32_t n)
{
	struct store_block b[64];
	struct store_hold_info info;

	for (uint32_t i = 0; i < n; i += 64) {
		uint32_t some = n - i < 64 ? n - i : 64;

		CHECK_EQ(store_hold_blocks(r.ns->ns, lease, i, some, &info, b), 0);
		for (uint32_t k = 0; k < some; k++)
			slots[i + k] = b[k].slot;
	}
}

/* ---- 128K tokens of llama3-8b, on the null controller: 16 GiB that nobody moves ---- */

/* The blocks are in the index as if a lane had stored them. */
static void commit_all(const struct tutti_key *keys)
{
	static const int32_t ok[BLOCKS_128K];
	struct tutti_lease l;
	size_t first, n;

	CHECK_EQ(tutti_reserve(r.ns, NULL, keys, BLOCKS_128K, 600000000000ull, &first, &n, &l), 0);
	CHECK_EQ(n, BLOCKS_128K);
	CHECK_EQ(store_report(r.ns->ns, &l, 0, 0, n, ok), 0);
	CHECK_EQ(tutti_store_sync(r.store), 0);
}

static void retrieve_all(const struct tutti_key *keys, uint64_t mdts_bytes, int no_sgl)
{
	static uint64_t to[BLOCKS_128K];
	static uint8_t blob[1 << 20];
	struct tutti_lane_info info;
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t hit, bytes;
	uint64_t headers, want, is;

	for (uint32_t i = 0; i < BLOCKS_128K; i++)
		to[i] = i;
	pool_use_blocks(0, (uint32_t)mdts_bytes);
	r.shape.no_sgl = no_sgl;
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
	CHECK_EQ(info.mdts_bytes, mdts_bytes);
	CHECK(info.sgl == !no_sgl && info.zero_copy);
	CHECK_EQ(tutti_lookup(r.ns, keys, BLOCKS_128K, 60000000000ull, &hit, &lease), 0);
	CHECK_EQ(hit, BLOCKS_128K);
	note_slots(&lease, BLOCKS_128K);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, hit, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, to, hit, &p), 0);
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + 60000000000ull, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	is = commands();
	want = least_of_blocks(BLOCKS_128K, mdts_bytes, &headers);
	printf("# MDTS %llu KiB, %s: %llu commands, %.2f a MiB\n", (unsigned long long)mdts_bytes >> 10,
	       no_sgl ? "PRP" : "SGL", (unsigned long long)is, (double)is / (16 << 10));
	CHECK_EQ(is, want);
	CHECK_EQ(rig_close_lanes(&r), 0);
}

static void llama_128k_tokens(void)
{
	static const uint32_t mdts_kib[] = {32, 128, 256, 512, 1024};
	static struct tutti_key keys[BLOCKS_128K];

	rig_shape_memory(&r, &llama);
	rig_format(&r);
	CHECK_EQ(rig_open_store(&r), 0);
	rig_keys(&r, 1, BLOCKS_128K, keys);
	commit_all(keys);
	for (size_t i = 0; i < sizeof(mdts_kib) / sizeof(mdts_kib[0]); i++)
		for (int no_sgl = 0; no_sgl < 2; no_sgl++)
			retrieve_all(keys, (uint64_t)mdts_kib[i] << 10, no_sgl);
	pool_use_blocks(0, 0);
	rig_down(&r);
}

/* ---- the same blocks, few of them, on a drive that sees memory in pieces: every byte moved and checked ---- */

static void store_and_retrieve(const struct mock_opts *o, int no_sgl)
{
	struct rig_shape s = llama;
	struct tutti_key keys[FEW];
	uint64_t blocks[FEW], headers, want, at, mdts_bytes = o->mdts ? 4096ull << o->mdts : MIB;
	struct tutti_lease lease;
	struct mock *mock;
	size_t n, bad;

	mock_begin();
	mock = mock_new(o);
	CHECK(mock != NULL);
	s.layers = 4;
	s.blocks = FEW;
	s.pool_bytes = 40 * MIB;
	s.controller = TUTTI_CTRL_AUTO;
	s.no_verify = 0;
	s.bounce_bytes = MIB;
	s.no_sgl = no_sgl;
	s.erase_serial = "MOCK0001";
	s.drives[0] = mock_path(0, 1);
	rig_up(&r, &s);
	rig_keys(&r, 1, FEW, keys);
	for (uint64_t i = 0; i < FEW; i++)
		blocks[i] = i;
	CHECK_EQ(rig_store(&r, keys, FEW, blocks, &n), 0);
	CHECK_EQ(n, FEW);
	CHECK_EQ(tutti_lookup(r.ns, keys, FEW, 60000000000ull, &n, &lease), 0);
	note_slots(&lease, FEW);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	want = least_of_blocks(FEW, mdts_bytes, &headers);
	CHECK_EQ(commands(), want + headers);
	at = commands();
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, FEW, blocks, 0, &n, &bad), 0);
	CHECK_EQ(bad, 0);
	for (size_t i = 0; i < FEW; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	CHECK_EQ(commands() - at, want + headers);
	rig_down(&r);
	mock_free(mock);
}

static void llama_in_pieces(void)
{
	static const uint32_t mdts[] = {3, 5, 7, 0}, run_bytes[] = {0, 4096, 20480, 65536};

	for (size_t i = 0; i < sizeof(mdts) / sizeof(mdts[0]); i++)
		for (size_t k = 0; k < sizeof(run_bytes) / sizeof(run_bytes[0]); k++)
			for (int no_sgl = 0; no_sgl < 2; no_sgl++)
				store_and_retrieve(
				    &(struct mock_opts){
				        .ns_bytes = 40 * MIB, .mdts = mdts[i], .run_bytes = run_bytes[k], .vectors = 3},
				    no_sgl);
}

/* ---- shapes that nobody thought of ---- */

static void random_shape(uint64_t *seed)
{
	static const char *const orders[] = {"LoB", "LBo", "BLo", "oLB", "BoL"};
	struct mock_opts o = {.ns_bytes = 40 * MIB, .vectors = 3};
	struct rig_shape s = {.blocks = FEW,
	                      .pool_bytes = 40 * MIB,
	                      .erase_serial = "MOCK0001",
	                      .order = orders[check_random(seed) % 5]};
	struct tutti_key keys[FEW];
	uint64_t blocks[FEW];
	struct mock *mock;
	size_t n, bad;

	o.lba_bytes = check_random(seed) % 2 ? 512 : 4096;
	o.mdts = 1 + (uint32_t)(check_random(seed) % 8);
	o.no_sgl = check_random(seed) % 2;
	o.boundary_bytes = check_random(seed) % 3 ? 8192u << check_random(seed) % 6 : 0;
	o.run_bytes = check_random(seed) % 3 ? 4096 * (1 + (uint32_t)(check_random(seed) % 40)) : 0;
	s.layers = 1 + (uint32_t)(check_random(seed) % 3);
	s.outer_count = 1 + (uint32_t)(check_random(seed) % 2);
	s.segment_bytes =
	    check_random(seed) % 3 ? 4096 * (1 + check_random(seed) % 40) : 16 * (1 + check_random(seed) % 9000);
	s.gap_bytes = check_random(seed) % 2 ? 4096 * (check_random(seed) % 3) : 0;
	s.misalign = check_random(seed) % 3 ? 0 : 4 * (uint32_t)(check_random(seed) % 1024);
	mock_begin();
	mock = mock_new(&o);
	s.drives[0] = mock_path(0, 1);
	CHECK(mock != NULL);
	rig_up(&r, &s);
	rig_keys(&r, check_random(seed), FEW, keys);
	for (uint64_t i = 0; i < FEW; i++)
		blocks[i] = (i * 5 + 3) % FEW;
	CHECK_EQ(rig_store(&r, keys, FEW, blocks, &n), 0);
	CHECK_EQ(n, FEW);
	rig_wipe(&r, 0);
	CHECK_EQ(rig_retrieve(&r, keys, FEW, blocks, 0, &n, &bad), 0);
	CHECK_EQ(n, FEW);
	CHECK_EQ(bad, 0);
	for (size_t i = 0; i < FEW; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	rig_down(&r);
	CHECK_EQ(mock_count(mock).crossed, 0);
	CHECK_EQ(mock_count(mock).dma_faults, 0);
	mock_free(mock);
}

static void random_shapes(void)
{
	uint64_t seed = 20260101;

	for (int i = 0; i < 60; i++)
		random_shape(&seed);
}

int main(void)
{
	rig_dir(scratch_begin());
	nvme_claim_by(mock_claim, NULL);
	CHECK_RUN(llama_128k_tokens);
	CHECK_RUN(llama_in_pieces);
	CHECK_RUN(random_shapes);
	scratch_end();
	return check_end();
}
