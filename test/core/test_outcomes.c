/*
 * test_outcomes.c - what each wait of a plan says when one block of it fails: layers before the failure are good, from
 * it on every wait tells, the completion names that block alone. The same with PRP lists, several thread blocks and
 * bounced memory. And what a layer costs its caller, whatever the plan's size.
 */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "core/blob.h"
#include "core/lane.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

#define N 40
#define LONG 60000000000ull

static struct rig r;
static struct fault_io *f;
static struct tutti_key keys[N];
static uint64_t blocks[N];
static uint8_t blob[N * 64 + 512];
static size_t blob_size;
static struct tutti_lease lease;

static const struct rig_shape plain = {
    .layers = 4, .blocks = 64, .outer_count = 2, .segment_bytes = 16384, .order = "LoB"};

static void begin(const struct rig_shape *s)
{
	size_t stored;

	f = fault_io_new(0);
	pool_use_io(&fault_io_ops, f);
	rig_up(&r, s);
	rig_keys(&r, 1, N, keys);
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = (i * 7 + 3) % s->blocks;
	CHECK_EQ(rig_store(&r, keys, N, blocks, &stored), 0);
	CHECK_EQ(stored, N);
}

static void end(void)
{
	CHECK_EQ(store_check(r.store->st), 0);
	fault_io_clear(f);
	rig_down(&r);
	pool_use_io(NULL, NULL);
	fault_io_free(f);
}

static struct tutti_plan *open_retrieve(size_t n)
{
	struct tutti_plan *p;
	size_t hit;

	CHECK_EQ(tutti_lookup(r.ns, keys, n, LONG, &hit, &lease), 0);
	CHECK_EQ(hit, n);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, n, blob, sizeof(blob), &blob_size), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, blob_size, blocks, n, &p), 0);
	return p;
}

/* A block in the middle of the chain that is the first of its set: all commands with it begin in it. */
static uint32_t first_of_a_set(const struct geom *g)
{
	for (uint32_t i = 8; i < N; i++) {
		uint32_t slot = blob_entry_at(blob, i).slot;

		if (slot && geom_place(g, slot - 1).set != geom_place(g, slot).set)
			return i;
	}
	return N;
}

/* One layer of a block can't be read, neither with its neighbours nor alone. Returns which block. */
static uint32_t break_layer(uint32_t layer, int error)
{
	struct fault_rule x = {.kind = FAULT_ERROR, .ops = FAULT_READ, .count = UINT64_MAX, .value = (uint64_t)error};
	struct geom_place p;
	struct geom g;
	uint32_t i;

	store_ns_geom(r.ns->ns, 0, &g);
	i = first_of_a_set(&g);
	CHECK(i < N);
	p = geom_place(&g, blob_entry_at(blob, i).slot);
	x.offset_from = geom_object_offset(&g, &p, layer, 0);
	x.offset_to = x.offset_from + 1;
	CHECK_EQ(fault_io_rule(f, &x), 0);
	return i;
}

static void a_bad_layer(const struct rig_shape *s)
{
	struct tutti_plan *p;
	uint8_t done[sizeof(blob)];
	size_t bytes, bad, hit;
	uint32_t at;

	begin(s);
	rig_wipe(&r, 0);
	p = open_retrieve(N);
	at = break_layer(2, EIO);
	for (uint32_t l = 0; l < s->layers; l++) {
		int rc;

		CHECK_EQ(tutti_retrieve_layer(p, l), 0);
		rc = tutti_wait_layer(p, l, rig_now() + LONG);
		CHECK_EQ(rc, l < 2 ? 0 : 0x281);
		CHECK_EQ(tutti_plan_failed(p, at), l < 2 ? 0 : 0x281);
	}
	/* A wait that comes late says what is known by now; one more says the same. */
	CHECK_EQ(tutti_wait_layer(p, s->layers - 1, 0), 0x281);
	for (uint32_t i = 0; i < N; i++)
		if (i != at) {
			CHECK_EQ(tutti_plan_failed(p, i), 0);
			CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
		}
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, done, sizeof(done), &bytes), 0);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(blob_entry_at(done, i).value, i == at ? 0x281 : 0);
	CHECK_EQ(tutti_completion_result(done, bytes), 0x281);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK_EQ(bad, 1);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0); /* a second time changes nothing, and says the same */
	CHECK_EQ(bad, 1);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, at);
	end();
}

static void a_bad_layer_direct(void) { a_bad_layer(&plain); }

static void a_bad_layer_with_prp(void)
{
	struct rig_shape s = plain;

	s.no_sgl = 1;
	a_bad_layer(&s);
}

static void a_bad_layer_of_three_thread_blocks(void)
{
	struct rig_shape s = plain;

	s.sms = 3;
	a_bad_layer(&s);
}

static void a_bad_layer_off_alignment(void)
{
	struct rig_shape s = plain;

	s.misalign = 1;
	a_bad_layer(&s);
}

/* One call for a whole lease says the same, and has ended it. */
static void a_bad_block_in_one_call(void)
{
	struct tutti_plan *p;
	size_t bad, hit, first, count;
	uint32_t at;

	begin(&plain);
	p = open_retrieve(N);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, NULL, 0, NULL), 0);
	at = break_layer(2, EIO);
	rig_wipe(&r, 0);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &lease, blocks, N, &bad), 0);
	CHECK_EQ(bad, 1);
	for (uint32_t i = 0; i < N; i++)
		CHECK(i == at || rig_wrong(&r, 0, blocks[i], &keys[i]) == 0);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &lease, blocks, N, &bad), -ESTALE);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, at);
	fault_io_clear(f);
	for (uint32_t i = at; i < N; i++)
		rig_fill(&r, 0, blocks[i], &keys[i]);
	CHECK_EQ(tutti_reserve(r.ns, NULL, keys, N, LONG, &first, &count, &lease), 0);
	CHECK_EQ(first, at);
	CHECK_EQ(count, N - at);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &lease, blocks + at, count, &bad), 0);
	CHECK_EQ(bad, 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, N);
	end();
}

/*
 * Three leases hold the same blocks, and one block can't be read. Each reader is told of it, whatever the reason: also
 * the second one, when the index has lost the block already; where the block is sound and only the transfer was not;
 * and one that asks for no count.
 */
static void told_to_each_reader(int error, int stays)
{
	struct tutti_lease other, third;
	struct tutti_plan *p;
	size_t bad, hit;
	uint32_t at;

	begin(&plain);
	p = open_retrieve(N);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, NULL, 0, NULL), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, LONG, &hit, &other), 0);
	CHECK_EQ(hit, N);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, LONG, &hit, &third), 0);
	at = break_layer(2, error);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &lease, blocks, N, &bad), 0);
	CHECK_EQ(bad, 1);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, 0, &hit, NULL), 0);
	CHECK_EQ(hit, stays ? N : at);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &other, blocks, N, &bad), 0);
	CHECK_EQ(bad, 1);
	CHECK_EQ(tutti_move(r.ns, r.lane[0], &third, blocks, N, NULL), -EIO);
	fault_io_clear(f);
	end();
}

static void a_damaged_block_is_told_to_each_reader(void) { told_to_each_reader(EIO, 0); }

static void a_failed_transfer_is_told_to_each_reader(void) { told_to_each_reader(EFAULT, 1); }

/* The write of headers hangs: data is all there, nothing of it is published, and the slots come back. */
static void headers_that_hang(void)
{
	struct fault_rule x = {.kind = FAULT_HANG, .ops = FAULT_WRITE, .count = UINT64_MAX};
	struct tutti_key other[N];
	struct tutti_ns_info info;
	struct tutti_plan *p;
	uint8_t done[sizeof(blob)];
	size_t first, n, bytes, bad;

	begin(&plain);
	rig_keys(&r, 2, N, other);
	CHECK_EQ(tutti_reserve(r.ns, NULL, other, N, LONG, &first, &n, &lease), 0);
	CHECK_EQ(n, N);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &blob_size), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, blob_size, blocks, N, &p), 0);
	for (uint32_t l = 0; l < plain.layers; l++)
		CHECK_EQ(tutti_store_layer(p, l), 0);
	for (uint32_t l = 0; l < plain.layers; l++)
		CHECK_EQ(tutti_wait_layer(p, l, rig_now() + LONG), 0);
	CHECK_EQ(fault_io_rule(f, &x), 0);
	rig_deadline(&r, 0, 300000000);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, done, sizeof(done), &bytes), 0);
	rig_deadline(&r, 0, 0);
	fault_io_clear(f);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(blob_entry_at(done, i).value, -ETIMEDOUT);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK_EQ(bad, N);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(tutti_lookup(r.ns, other, N, 0, &n, NULL), 0);
	CHECK_EQ(n, 0);
	CHECK_EQ(tutti_ns_get_info(r.ns, &info), 0);
	CHECK_EQ(info.reserved, 0);
	CHECK_EQ(info.committed, N);
	CHECK_EQ(rig_store(&r, other, N, blocks, &n), 0); /* over headers that may be there */
	CHECK_EQ(n, N);
	end();
}

/* Without checksums only what was flushed may be read: after a crash that is nothing until it was verified. */
static void unverified_reads_after_a_crash(void)
{
	const char *image = scratch_path("image");
	uint64_t checked, bad;
	struct tutti_plan *p;
	size_t n;

	begin(&plain);
	CHECK_EQ(fault_io_copy(r.paths[0], image), 0);
	end();
	rig_shape_memory(&r, &plain);
	r.shape.no_verify = 1;
	r.paths[0] = image;
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, LONG, &n, &lease), 0);
	CHECK_EQ(n, N);
	for (int synced = 0; synced < 2; synced++) {
		CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &blob_size), 0);
		CHECK_EQ(tutti_plan_open(r.lane[0], blob, blob_size, blocks, N, &p), synced ? 0 : -EPERM);
		if (!synced) {
			CHECK_EQ(tutti_store_sync(r.store), 0); /* a flush alone says nothing about the past */
			CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &blob_size), 0);
			CHECK_EQ(tutti_plan_open(r.lane[0], blob, blob_size, blocks, N, &p), -EPERM);
			CHECK_EQ(tutti_verify(r.ns, 0, NULL, NULL, &checked, &bad), 0);
			CHECK_EQ(checked, N);
			CHECK_EQ(bad, 0);
			CHECK_EQ(tutti_store_sync(r.store), 0);
		}
	}
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, NULL, 0, NULL), 0);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	rig_down(&r);
}

/* A layer is one entry of the ring and one launch, for 1 block and for N. */
static void a_layer_costs_the_same(void)
{
	begin(&plain);
	for (size_t n = 1; n <= N; n += N - 1) {
		struct wire_ring *ring = ring_shared(engine_ring(r.lane[0]->engine));
		struct tutti_plan *p = open_retrieve(n);
		uint32_t before = ring->sq_tail[ENGINE_READS];

		for (uint32_t l = 0; l < plain.layers; l++) {
			CHECK_EQ(tutti_retrieve_layer(p, l), 0);
			CHECK_EQ(ring->sq_tail[ENGINE_READS] - before, l + 2); /* the headers come with the first */
		}
		CHECK_EQ(tutti_plan_finish(p, rig_now() + LONG, NULL, 0, NULL), 0);
		CHECK_EQ(tutti_release(r.ns, &lease), 0);
	}
	end();
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(a_bad_layer_direct);
	CHECK_RUN(a_bad_layer_with_prp);
	CHECK_RUN(a_bad_layer_of_three_thread_blocks);
	CHECK_RUN(a_bad_layer_off_alignment);
	CHECK_RUN(a_bad_block_in_one_call);
	CHECK_RUN(a_damaged_block_is_told_to_each_reader);
	CHECK_RUN(a_failed_transfer_is_told_to_each_reader);
	CHECK_RUN(headers_that_hang);
	CHECK_RUN(unverified_reads_after_a_crash);
	CHECK_RUN(a_layer_costs_the_same);
	scratch_end();
	return check_end();
}
