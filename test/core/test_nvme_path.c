/*
 * test_nvme_path.c - pools on NVMe drives, from format to bytes, over mock controllers: stripe sets over two functions
 * with two namespaces each, and drives that misbehave while a lane is at work. Delivered is what was stored, or an
 * error.
 */
#include <errno.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "ctrl/mock_nvme.h"
#include "tutti/gio_uring.h"

#define N 37
#define FAULTY_NS 1000000000ull /* what a drive has that is to miss it */
#define WAIT_NS 60000000000ull

static struct mock *mocks[2];

static void drives_up(const struct mock_opts *o, int n)
{
	mock_begin();
	for (int i = 0; i < n; i++) {
		struct mock_opts each = *o;

		each.n_ns = 2;
		each.vectors = 3;
		each.queues = 32;
		each.volatile_cache = 1;
		each.serial = i ? "SN-B" : "SN-A";
		mocks[i] = mock_new(&each);
		CHECK(mocks[i] != NULL);
	}
}

/* faults: 1 if the drive was made to touch what it should not. */
static void drives_down(int n, int faults)
{
	for (int i = 0; i < n; i++) {
		struct mock_counts c = mock_count(mocks[i]);

		CHECK_EQ(mock_pending(mocks[i]), 0);
		CHECK_EQ(mock_mapped_bytes(mocks[i]), 0);
		CHECK_EQ(c.bad_doorbells, 0);
		CHECK_EQ(c.crossed, 0);
		CHECK_EQ(c.en_under_load, 0);
		CHECK(faults || c.double_ids == 0);
		CHECK(faults || c.dma_faults == 0);
	}
	for (int i = 0; i < n; i++)
		mock_free(mocks[i]);
}

static struct rig_shape shape_on(int n_drives)
{
	struct rig_shape s = {.layers = 3,
	                      .blocks = 64,
	                      .outer_count = 2,
	                      .segment_bytes = 12288,
	                      .order = "LoB",
	                      .devices = (uint32_t)n_drives,
	                      .pool_bytes = (uint64_t)n_drives * (24u << 20),
	                      .erase_serial = "SN-B,SN-A",
	                      .drives = {mock_path(0, 1), mock_path(1, 2), mock_path(0, 2), mock_path(1, 1)}};

	return s;
}

static void forward(uint64_t *blocks, uint64_t first)
{
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = (first + 5 * i) % 64;
}

static void check_back(struct rig *r, const struct tutti_key *keys)
{
	uint64_t to[N];
	size_t hit, bad;

	for (int per_layer = 0; per_layer < 2; per_layer++) {
		rig_wipe(r, 0);
		forward(to, 7);
		CHECK_EQ(rig_retrieve(r, keys, N, to, per_layer, &hit, &bad), 0);
		CHECK_EQ(hit, N);
		CHECK_EQ(bad, 0);
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(r, 0, to[i], &keys[i]), 0);
	}
}

static void round_trip(const struct mock_opts *o, struct rig_shape s, int n_functions)
{
	struct tutti_lane_info info;
	struct tutti_key keys[N];
	uint64_t from[N];
	size_t stored;
	struct rig r;

	drives_up(o, n_functions);
	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	forward(from, 0);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	CHECK_EQ(stored, N);
	check_back(&r, keys);
	CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
	CHECK(!strcmp(info.controller, "mock: mock controller"));
	CHECK_EQ(info.sgl, !o->no_sgl && !s.no_sgl);
	CHECK_EQ(info.zero_copy, s.misalign == 0);
	CHECK_EQ(info.lba_bytes, o->lba_bytes ? o->lba_bytes : 512);
	CHECK_EQ(tutti_store_sync(r.store), 0);
	CHECK(mock_count(mocks[0]).flushes > 0);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	for (int i = 0; i < n_functions; i++)
		CHECK_EQ(mock_mapped_bytes(mocks[i]), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	check_back(&r, keys);
	rig_down(&r);
	for (int i = 0; i < n_functions; i++)
		CHECK(mock_count(mocks[i]).writes > 0 && mock_count(mocks[i]).reads > 0);
	drives_down(n_functions, 0);
}

static void one_drive(void) { round_trip(&(struct mock_opts){.mdts = 7}, shape_on(1), 1); }
static void four_namespaces(void) { round_trip(&(struct mock_opts){.mdts = 7}, shape_on(4), 2); }
static void blocks_of_4096(void) { round_trip(&(struct mock_opts){.lba_bytes = 4096, .mdts = 7}, shape_on(2), 2); }
static void small_transfers(void) { round_trip(&(struct mock_opts){.mdts = 1}, shape_on(4), 2); }
static void no_limit(void) { round_trip(&(struct mock_opts){0}, shape_on(2), 2); }
static void without_sgl(void) { round_trip(&(struct mock_opts){.no_sgl = 1, .mdts = 5}, shape_on(4), 2); }

/* Commands end at the boundary that the drive tells, whether objects do or not. */
static void at_boundaries(void)
{
	round_trip(&(struct mock_opts){.mdts = 7, .boundary_bytes = 131072}, shape_on(2), 2);
	round_trip(&(struct mock_opts){.mdts = 7, .boundary_bytes = 8192}, shape_on(1), 1);
}

static void at_boundaries_bounced(void)
{
	struct rig_shape s = shape_on(2);

	s.misalign = 1;
	round_trip(&(struct mock_opts){.mdts = 7, .boundary_bytes = 16384}, s, 2);
}

/* Memory that the drives see in pieces: no IOMMU, or one that maps one to one. Runs end inside of objects. */
static void memory_in_pieces(void)
{
	round_trip(&(struct mock_opts){.run_bytes = 20480, .mdts = 5}, shape_on(4), 2);
}

static void memory_in_pieces_without_sgl(void)
{
	round_trip(&(struct mock_opts){.run_bytes = 20480, .mdts = 5, .no_sgl = 1}, shape_on(4), 2);
}

static void bounced_in_pieces(void)
{
	struct rig_shape s = shape_on(2);

	s.misalign = 1;
	round_trip(&(struct mock_opts){.run_bytes = 20480, .lba_bytes = 4096, .mdts = 5}, s, 2);
}

static void sgl_left_alone(void)
{
	struct rig_shape s = shape_on(2);

	s.no_sgl = 1;
	round_trip(&(struct mock_opts){.mdts = 5}, s, 2);
}

static void odd_memory(void)
{
	struct rig_shape s = shape_on(2);

	s.misalign = 1;
	round_trip(&(struct mock_opts){.lba_bytes = 4096, .mdts = 5}, s, 2);
}

/* One path is enough: the superblock names the others. */
static void found_by_one_path(void)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	const char *one = mock_path(0, 1);
	struct tutti_pool_info info;
	struct tutti_store *s;
	struct rig_shape shape = shape_on(4);
	struct rig r;

	drives_up(&(struct mock_opts){.mdts = 7}, 2);
	rig_up(&r, &shape);
	rig_down(&r);
	o.paths = &one;
	o.n_paths = 1;
	CHECK_EQ(tutti_store_open(&o, &s), 0);
	CHECK_EQ(tutti_store_info(s, &info), 0);
	CHECK_EQ(info.n_devices, 4);
	CHECK_EQ(tutti_store_close(s), 0);
	drives_down(2, 0);
}

/* ---- what is never written ---- */

static int zeros(int drive)
{
	const uint8_t *p = mock_medium(mocks[drive], 1);

	for (uint32_t i = 0; i < 128u << 20; i++)
		if (p[i])
			return 0;
	return 1;
}

static int format_on(const char *const *paths, uint32_t n, const char *serial, int overwrite)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	o.paths = paths;
	o.n_paths = n;
	o.erase_serial = serial;
	o.overwrite = overwrite;
	o.prewrite = TUTTI_PREWRITE_NONE;
	return tutti_format(&o);
}

static void erases_by_name_only(void)
{
	const char *const both[] = {mock_path(0, 1), mock_path(1, 1)};
	struct tutti_store_opts so = TUTTI_STORE_OPTS_INIT;
	struct gio_opts go = GIO_OPTS_INIT;
	struct tutti_store *s, *second;
	struct gio *g;

	drives_up(&(struct mock_opts){.mdts = 7}, 2);
	CHECK_EQ(format_on(both, 2, NULL, 1), -EPERM);
	CHECK(strstr(tutti_error_message(), "serial number is named"));
	CHECK_EQ(format_on(both, 2, "SN-A", 1), -EPERM); /* the second one was not named */
	CHECK(strstr(tutti_error_message(), "SN-B"));
	CHECK_EQ(format_on(both, 1, "SN-", 1), -EPERM);
	CHECK_EQ(format_on(both, 1, "SN-AA", 1), -EPERM);
	CHECK_EQ(format_on(both, 1, "", 1), -EPERM);
	go.paths = both;
	go.n_paths = 2;
	CHECK_EQ(gio_init_queue(&go, &g), -EPERM);
	so.paths = both;
	so.n_paths = 2;
	CHECK(tutti_store_open(&so, &s) < 0);
	CHECK_EQ(mock_count(mocks[0]).writes + mock_count(mocks[1]).writes, 0);
	CHECK(zeros(0) && zeros(1));
	CHECK_EQ(format_on(both, 2, "SN-A,SN-B", 0), 0);
	CHECK_EQ(tutti_store_open(&so, &s), 0);
	so.lock_wait_ns = 1000000;
	CHECK_EQ(tutti_store_open(&so, &second), -EBUSY);
	CHECK_EQ(format_on(both, 2, "SN-A,SN-B", 1), -EBUSY);
	CHECK_EQ(tutti_store_close(s), 0);
	CHECK_EQ(gio_init_queue(&go, &g), 0); /* it carries a pool now */
	CHECK_EQ(gio_close(g), 0);
	drives_down(2, 0);
}

/* A pool that can't be: nothing is written, and the message says what would help. */
static void too_small(void)
{
	const char *const one[] = {mock_path(0, 1)};

	drives_up(&(struct mock_opts){.mdts = 7, .ns_bytes = 65536}, 1);
	CHECK_EQ(format_on(one, 1, "SN-A", 0), -EINVAL);
	CHECK(strstr(tutti_error_message(), "give at least that"));
	CHECK_EQ(mock_count(mocks[0]).writes, 0);
	drives_down(1, 0);
}

/* ---- drives that misbehave under a lane ---- */

struct trouble {
	enum mock_deed deed;
	uint32_t arg, count;
	int opcode;
	int missed;   /* it makes the kernel miss its deadline; else that is far away */
	int harmless; /* every block must arrive */
	int fenced;
};

/* Looks up and retrieves; every block is exact, or said to have failed. Returns how many failed. */
static size_t retrieve(struct rig *r, const struct tutti_key *keys, const uint64_t *to, size_t *hit)
{
	uint8_t blob[65536];
	struct tutti_lease lease;
	struct tutti_plan *p;
	size_t bytes, failed = 0;

	rig_wipe(r, 0);
	CHECK_EQ(tutti_lookup(r->ns, keys, N, 60000000000ull, hit, &lease), 0);
	if (!*hit)
		return 0;
	CHECK_EQ(tutti_plan_blob(r->ns, &lease, 0, *hit, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_plan_open(r->lane[0], blob, bytes, to, *hit, &p), 0);
	CHECK_EQ(tutti_retrieve(p), 0);
	for (uint32_t l = 0; l < 3; l++)
		(void)tutti_wait_layer(p, l, rig_now() + WAIT_NS);
	CHECK_EQ(tutti_plan_poll(p), 1);
	for (size_t i = 0; i < *hit; i++) {
		int why = tutti_plan_failed(p, i);

		failed += why != 0;
		CHECK(why || rig_wrong(r, 0, to[i], &keys[i]) == 0);
	}
	CHECK_EQ(tutti_plan_finish(p, rig_now() + WAIT_NS, blob, sizeof(blob), &bytes), 0);
	CHECK_EQ(tutti_complete(r->ns, blob, bytes, NULL), 0);
	tutti_release(r->ns, &lease);
	return failed;
}

/* Blocks are stored, then retrieved while the drive does its deed. Then the same lane, and the store, work again. */
static void retrieve_in(const struct trouble *t)
{
	struct rig_shape s = shape_on(4);
	struct tutti_key keys[N];
	uint64_t from[N], to[N], enables;
	size_t stored, hit, failed;
	struct rig r;

#if defined(__SANITIZE_THREAD__)
	if (t->deed == MOCK_WRONG_CID || t->deed == MOCK_TWICE || t->deed == MOCK_DATA_LATE)
		CHECK_SKIP("such a drive races with everybody, by intent");
#endif
	s.queue_depth = 8;
	drives_up(&(struct mock_opts){.mdts = 3}, 2);
	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	forward(from, 0);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	enables = mock_count(mocks[0]).enables;
	forward(to, 3);
	mock_script(mocks[0], t->deed, t->arg, 1, t->opcode, 4, t->count);
	rig_deadline(&r, 0, t->missed ? FAULTY_NS : 0);
	failed = retrieve(&r, keys, to, &hit);
	rig_deadline(&r, 0, 0);
	CHECK_EQ(hit, N);
	CHECK(t->harmless ? failed == 0 : failed > 0);
	mock_calm(mocks[0]);
	mock_settle(mocks[0]);
	/* Blocks with wrong bytes have left the index, those of a silent drive have not. */
	for (size_t i = 0; i < N; i++)
		rig_fill(&r, 0, from[i], &keys[i]);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	check_back(&r, keys);
	CHECK_EQ(mock_count(mocks[0]).enables - enables, t->fenced);
	CHECK_EQ(tutti_store_sync(r.store), 0);
	rig_down(&r);
	drives_down(2, 1);
}

static void read_late(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_LATE, .arg = 60, .count = 3, .opcode = 2, .harmless = 1});
}

static void read_error(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_STATUS, .arg = NVME_SC_READ_ERROR, .count = 400, .opcode = 2});
}

static void read_lost(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_LOST, .count = 1, .opcode = 2, .missed = 1});
}

static void read_wrong_phase(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_WRONG_PHASE, .count = 1, .opcode = 2, .missed = 1});
}

static void read_wrong_id(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_WRONG_CID, .arg = 500, .count = 1, .opcode = 2});
}

static void read_twice(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_TWICE, .count = 6, .opcode = 2});
}

static void read_data_late(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_DATA_LATE, .arg = 1000, .count = 4, .opcode = 2});
}

static void drive_stalls(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_STALL, .count = 1, .opcode = 2, .missed = 1, .fenced = 1});
}

static void drive_fatal(void)
{
	retrieve_in(&(struct trouble){.deed = MOCK_CFS, .count = 1, .opcode = 2, .missed = 1, .fenced = 1});
}

/* The same while storing: what was acknowledged comes back, what failed was said to have failed. */
static void store_in(enum mock_deed deed, uint32_t arg, uint32_t count, int missed)
{
	struct rig_shape s = shape_on(4);
	struct tutti_key keys[N];
	uint64_t from[N], to[N];
	size_t stored, hit;
	struct rig r;

	s.queue_depth = 8;
	drives_up(&(struct mock_opts){.mdts = 3}, 2);
	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	forward(from, 0);
	mock_script(mocks[0], deed, arg, 1, NVME_CMD_WRITE, 6, count);
	rig_deadline(&r, 0, missed ? FAULTY_NS : 0);
	(void)rig_store(&r, keys, N, from, &stored);
	rig_deadline(&r, 0, 0);
	mock_calm(mocks[0]);
	forward(to, 3);
	CHECK_EQ(retrieve(&r, keys, to, &hit), 0);
	CHECK(hit < N);
	rig_down(&r);
	drives_down(2, 1);
}

static void write_error(void) { store_in(MOCK_STATUS, NVME_SC_WRITE_FAULT, 400, 0); }
static void write_lost(void) { store_in(MOCK_LOST, 0, 1, 1); }
static void write_stalls(void) { store_in(MOCK_STALL, 0, 1, 1); }

int main(void)
{
	rig_dir(scratch_begin());
	nvme_claim_by(mock_claim, NULL);
	CHECK_RUN(one_drive);
	CHECK_RUN(four_namespaces);
	CHECK_RUN(blocks_of_4096);
	CHECK_RUN(small_transfers);
	CHECK_RUN(no_limit);
	CHECK_RUN(without_sgl);
	CHECK_RUN(at_boundaries);
	CHECK_RUN(at_boundaries_bounced);
	CHECK_RUN(memory_in_pieces);
	CHECK_RUN(memory_in_pieces_without_sgl);
	CHECK_RUN(bounced_in_pieces);
	CHECK_RUN(sgl_left_alone);
	CHECK_RUN(odd_memory);
	CHECK_RUN(found_by_one_path);
	CHECK_RUN(erases_by_name_only);
	CHECK_RUN(too_small);
	CHECK_RUN(read_late);
	CHECK_RUN(read_error);
	CHECK_RUN(read_lost);
	CHECK_RUN(read_wrong_phase);
	CHECK_RUN(read_wrong_id);
	CHECK_RUN(read_twice);
	CHECK_RUN(read_data_late);
	CHECK_RUN(drive_stalls);
	CHECK_RUN(drive_fatal);
	CHECK_RUN(write_error);
	CHECK_RUN(write_lost);
	CHECK_RUN(write_stalls);
	scratch_end();
	return check_end();
}
