/*
 * test_drive.c - pools on real NVMe controllers: what is stored comes back byte by byte, after a kill too.
 *
 * Runs where drives to erase are named: TUTTI_TEST_DRIVES="nvme:0000:00:03.0/1 nvme:..." (one to four namespaces, of 64
 * MiB at least) and TUTTI_TEST_SERIALS="A,B". tools/nvme-guest runs it in a virtual machine. TUTTI_TEST_BAD_LBA names a
 * block of the last namespace that can't be read; TUTTI_TEST_DUMP a file that receives the first namespace's first
 * bytes as we read them.
 *
 *     test_drive          all that leaves a sound drive sound
 *     test_drive core     the data path alone, the functions claimed once
 *     test_drive stray    sends the drive to addresses that nothing is mapped at: the IOMMU is to stop it, and the
 *                         kernel's log to say so
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/nvme_ctrl.h"
#include "ctrl/programs.h"
#include "tutti/gio_uring.h"

#define N 37
#define MS 1000000ull
#define DUMP_BYTES (4u << 20)
#define PLAY_AT (50ull << 20) /* behind all pools, before the bad block */
#define PAGE 4096u

static uint8_t canary[PAGE];
static const char *drives[4];
static uint32_t n_drives;

static void need_drives(void)
{
	if (!n_drives)
		CHECK_SKIP("no drives to erase are named in TUTTI_TEST_DRIVES");
}

/* A claim resets the function, which takes a third of a second in a guest: one for all cases of a run. */
static struct ctrl *held;

static void hold(void)
{
	struct ctrl_target t[4];
	struct ctrl_opts o = {.targets = t, .n_targets = n_drives, .sgl = 1};

	need_drives();
	for (uint32_t i = 0; i < n_drives; i++)
		t[i] = (struct ctrl_target){.path = drives[i], .fd = -1};
	CHECK_EQ(ctrl_vfio.open(&o, &held), 0);
}

static void let_go(void)
{
	need_drives();
	CHECK(held != NULL);
	ctrl_vfio.close(held);
}

static struct rig_shape shape(void)
{
	struct rig_shape s = {.layers = 3,
	                      .blocks = 64,
	                      .outer_count = 2,
	                      .segment_bytes = 12288,
	                      .order = "LoB",
	                      .devices = n_drives,
	                      .pool_bytes = (uint64_t)n_drives * (24u << 20),
	                      .erase_serial = getenv("TUTTI_TEST_SERIALS"),
	                      .deadline_ns = 10000 * MS};

	for (uint32_t i = 0; i < n_drives; i++)
		s.drives[i] = drives[i];
	return s;
}

static void spread(uint64_t *blocks, uint64_t first)
{
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = (first + 5 * i) % 64;
}

/* Retrieves a chain, both ways; returns how many blocks there were. All are exact. */
static size_t check_back(struct rig *r, const struct tutti_key *keys)
{
	uint64_t to[N];
	size_t hit = 0, bad;

	for (int per_layer = 0; per_layer < 2; per_layer++) {
		rig_wipe(r, 0);
		spread(to, 7);
		CHECK_EQ(rig_retrieve(r, keys, N, to, per_layer, &hit, &bad), 0);
		CHECK_EQ(bad, 0);
		for (size_t i = 0; i < hit; i++)
			CHECK_EQ(rig_wrong(r, 0, to[i], &keys[i]), 0);
	}
	return hit;
}

static void round_trip(struct rig_shape s, int zero_copy)
{
	struct tutti_lane_info info;
	struct tutti_key keys[N];
	uint64_t from[N];
	size_t stored;
	struct rig r;

	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	spread(from, 0);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	CHECK_EQ(stored, N);
	CHECK_EQ(check_back(&r, keys), N);
	CHECK_EQ(tutti_lane_get_info(r.lane[0], &info), 0);
	printf("# %s: LBA %u, MDTS %u KiB, %s, %s\n", info.controller, info.lba_bytes, info.mdts_bytes >> 10,
	       info.sgl ? "SGL" : "PRP", info.zero_copy ? "direct" : "bounced");
	CHECK_EQ(info.zero_copy, zero_copy);
	CHECK_EQ(tutti_store_sync(r.store), 0);
	CHECK_EQ(rig_close_lanes(&r), 0);
	CHECK_EQ(tutti_store_close(r.store), 0);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	CHECK_EQ(check_back(&r, keys), N);
	rig_down(&r);
}

static void with_sgl(void)
{
	need_drives();
	round_trip(shape(), 1);
}

static void with_prp(void)
{
	struct rig_shape s = shape();

	need_drives();
	s.no_sgl = 1;
	round_trip(s, 1);
}

static void through_bounce_buffers(void)
{
	struct rig_shape s = shape();

	need_drives();
	s.misalign = 1;
	round_trip(s, 0);
}

/* A whole segment is cleared: the drive says yes, and gives zeros back (QEMU's does; the standard lets it). */
static void told_what_is_left(void)
{
	struct rig_shape s = shape();
	struct tutti_pool_info info;
	struct tutti_key keys[N];
	uint64_t from[N], end_ns, first, end;
	const struct store_media *m;
	struct store_io io = {.bytes = PAGE};
	uint8_t *page;
	size_t stored;
	struct rig r;

	need_drives();
	page = io.data = aligned_alloc(PAGE, PAGE);
	rig_up(&r, &s);
	rig_keys(&r, 1, N, keys);
	spread(from, 0);
	CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	store_data_range(r.store->st, 0, &first, &end);
	m = media_table(r.store->media);
	io.offset_bytes = first; /* a header of the first segment */
	CHECK_EQ(m->io(m->self, &io, 1), 0);
	CHECK(memcmp(page, page + 1, PAGE - 1) != 0);
	CHECK_EQ(tutti_ns_clear(r.ns), 0);
	for (end_ns = rig_now() + 10000 * MS; rig_now() < end_ns;) {
		CHECK_EQ(tutti_store_info(r.store, &info), 0);
		if (info.deallocated_segments + info.failed_deallocations)
			break;
		usleep(1000); /* between two looks at what another thread does */
	}
	CHECK(info.deallocated_segments > 0);
	CHECK_EQ(info.failed_deallocations, 0);
	CHECK_EQ(m->io(m->self, &io, 1), 0);
	CHECK(page[0] == 0 && !memcmp(page, page + 1, PAGE - 1));
	rig_down(&r);
	free(page);
}

static void four_sms(void)
{
	struct rig_shape s = shape();

	need_drives();
	s.sms = 4;
	s.queue_depth = 16;
	round_trip(s, 1);
}

static void random_programs(void)
{
	static struct programs machine;
	struct ctrl_target t = {.fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1};
	struct ctrl *c;

	need_drives();
	for (int sgl = 0; sgl < 2; sgl++) {
		t.path = drives[n_drives - 1];
		o.sgl = sgl;
		CHECK_EQ(ctrl_vfio.open(&o, &c), 0);
		programs_run(&machine, &ctrl_vfio, c, PLAY_AT, 25, 100 * (unsigned)sgl);
		ctrl_vfio.close(c);
	}
}

/* ---- the raw calls: each transfer keeps its own status ---- */

static struct gio *gio_up(uint8_t *memory, uint64_t bytes, struct gio_info *info)
{
	struct gio_opts o = GIO_OPTS_INIT;
	struct rig_shape s = shape();
	struct rig r;
	struct gio *g;

	rig_up(&r, &s); /* a drive without a pool is refused */
	rig_down(&r);
	o.paths = drives;
	o.n_paths = n_drives;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_get_info(g, info), 0);
	CHECK_EQ(gio_register(g, memory, bytes), 0);
	return g;
}

/* Reads one block each; statuses come back in the IOCTX. */
static void gio_reads(struct gio *g, struct gio_ioctx *want, uint32_t n)
{
	struct gio_result result;
	struct gio_ioctx *x;
	uint32_t id;

	CHECK_EQ(gio_get_iocb(g, n, NULL, &id, &x), 0);
	memcpy(x, want, n * sizeof(*x));
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
	CHECK_EQ(gio_wait_cqe(g, id, rig_now() + 10000 * MS, &result), 0);
	memcpy(want, x, n * sizeof(*x));
	gio_put_iocb(g, id);
}

static void each_transfer_its_status(void)
{
	const char *bad = getenv("TUTTI_TEST_BAD_LBA");
	uint8_t *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gio_ioctx x[8];
	struct gio_info info;
	struct gio *g;
	uint64_t at;

	need_drives();
	if (!bad)
		CHECK_SKIP("TUTTI_TEST_BAD_LBA names no block that can't be read");
	g = gio_up(memory, 16 * PAGE, &info);
	at = strtoull(bad, NULL, 10) * info.lba_bytes;
	for (uint32_t i = 0; i < 8; i++)
		x[i] = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)memory + i * PAGE,
		                          .offset_bytes = at - 4 * info.lba_bytes + i * info.lba_bytes,
		                          .bytes = info.lba_bytes,
		                          .dev = (uint16_t)(n_drives - 1),
		                          .op = GIO_READ};
	x[6].offset_bytes = info.capacity_bytes[n_drives - 1];
	x[7].offset_bytes = ~0ull - info.lba_bytes + 1;
	gio_reads(g, x, 8);
	for (uint32_t i = 0; i < 6; i++)
		CHECK_EQ(x[i].status, i == 4 ? NVME_SC_READ_ERROR : 0);
	CHECK_EQ(x[6].status, -ERANGE);
	CHECK_EQ(x[7].status, -ERANGE);
	CHECK_EQ(gio_close(g), 0);
	munmap(memory, 16 * PAGE);
}

/* Stripe sets go round robin: after many blocks, each namespace has its share of them. */
static void round_robin(void)
{
	struct rig_shape s = shape();
	struct tutti_key keys[N];
	uint64_t from[N], pages[4] = {0}, total = 0;
	uint8_t *memory = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gio_info info;
	size_t stored;
	struct gio *g;
	struct rig r;

	need_drives();
	g = gio_up(memory, 64 * PAGE, &info);
	CHECK_EQ(gio_close(g), 0);
	rig_shape_memory(&r, &s);
	CHECK_EQ(rig_open_store(&r), 0);
	CHECK_EQ(rig_open_lane(&r, 0), 0);
	for (uint64_t chain = 1; chain <= 4; chain++) {
		rig_keys(&r, chain, N, keys);
		spread(from, chain);
		CHECK_EQ(rig_store(&r, keys, N, from, &stored), 0);
	}
	rig_down(&r);
	for (uint32_t d = 0; d < n_drives; d++) {
		struct gio_opts o = GIO_OPTS_INIT;

		o.paths = &drives[d];
		o.n_paths = 1;
		CHECK_EQ(gio_init_queue(&o, &g), 0);
		CHECK_EQ(gio_register(g, memory, 64 * PAGE), 0);
		for (uint64_t at = 1 << 20; at < 24 << 20; at += 64 * PAGE) {
			struct gio_ioctx x = {.mem = (uint64_t)(uintptr_t)memory,
			                      .offset_bytes = at,
			                      .bytes = 64 * PAGE,
			                      .op = GIO_READ};

			gio_reads(g, &x, 1);
			CHECK_EQ(x.status, 0);
			for (uint32_t p = 0; p < 64; p++) /* random bytes are not all zero */
				pages[d] += memcmp(memory + p * PAGE, memory + p * PAGE + 8, PAGE - 8) != 0;
		}
		total += pages[d];
		CHECK_EQ(gio_close(g), 0);
	}
	printf("# pages with data: %llu %llu %llu %llu\n", (unsigned long long)pages[0], (unsigned long long)pages[1],
	       (unsigned long long)pages[2], (unsigned long long)pages[3]);
	for (uint32_t d = 0; d < n_drives; d++)
		CHECK(pages[d] * n_drives * 10 > total * 7 && pages[d] * n_drives * 10 < total * 13);
	munmap(memory, 64 * PAGE);
}

/* ---- killed ---- */

/* Stores chain 1, says so, then stores more chains until it is killed. */
static void victim(struct rig *r, int say)
{
	struct tutti_key keys[N];
	uint64_t from[N];
	size_t stored;

	spread(from, 0);
	for (uint64_t chain = 1;; chain++) {
		rig_keys(r, chain, N, keys);
		if (rig_store(r, keys, N, from, &stored))
			_exit(1);
		if (chain == 1 && write(say, "1", 1) != 1)
			_exit(1);
	}
}

static void killed_at_work(void)
{
	struct rig_shape s = shape();
	struct tutti_key keys[N];
	struct rig r;
	int say[2], status;
	char c;

	need_drives();
	for (int round = 0; round < 3; round++) {
		pid_t pid;

		rig_shape_memory(&r, &s);
		CHECK_EQ(pipe(say), 0);
		pid = fork();
		if (!pid) {
			rig_up(&r, &s);
			victim(&r, say[1]);
		}
		close(say[1]);
		CHECK_EQ(read(say[0], &c, 1), 1);
		close(say[0]);
		usleep(20000u * (unsigned)round); /* each time at another point of its work */
		kill(pid, SIGKILL);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status));
		CHECK_EQ(rig_open_store(&r), 0);
		CHECK_EQ(rig_open_lane(&r, 0), 0);
		rig_keys(&r, 1, N, keys);
		CHECK_EQ(check_back(&r, keys), N);
		for (uint64_t chain = 2; chain < 5; chain++) {
			rig_keys(&r, chain, N, keys);
			check_back(&r, keys);
		}
		rig_down(&r);
	}
}

/* ---- commands by hand ---- */

struct hand {
	struct ctrl *c;
	struct ctrl_info info;
	struct dev_qp q;
	uint8_t *memory;
	uint64_t dma; /* of its middle page */
};

/* ctrl_run_fn */
static int middle_page(void *arg, uint64_t va, uint64_t bytes, uint64_t dma)
{
	struct hand *h = arg;
	uint64_t page = (uint64_t)(uintptr_t)h->memory + PAGE;

	if (va <= page && page < va + bytes)
		h->dma = dma + (page - va);
	return 0;
}

static void hand_up(struct hand *h, const char *path)
{
	struct ctrl_target t = {.path = path, .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 0};

	CHECK_EQ(ctrl_vfio.open(&o, &h->c), 0);
	CHECK_EQ(ctrl_vfio.identify(h->c, &h->info), 0);
	CHECK_EQ(ctrl_vfio.qp_create(h->c, 64, NULL, &h->q), 0);
	h->memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(h->memory, 0xC7, 3 * PAGE);
	CHECK_EQ(ctrl_mem_map_runs(&ctrl_vfio, h->c, h->memory, 3 * PAGE, NULL, middle_page, h), 0);
}

static void hand_down(struct hand *h)
{
	if (h->q.sq)
		CHECK_EQ(ctrl_vfio.qp_delete(h->c, &h->q, rig_now() + 5000 * MS), 0);
	CHECK_EQ(ctrl_vfio.mem_unmap(h->c, h->memory, 3 * PAGE), 0);
	ctrl_vfio.close(h->c);
	munmap(h->memory, 3 * PAGE);
}

/* One block into the middle third of memory; the thirds around it are canaries. */
static struct nvme_sqe command(const struct hand *h, uint8_t opcode, uint64_t lba, uint16_t cid)
{
	struct nvme_sqe e = {.opcode = opcode,
	                     .cid = cid,
	                     .nsid = h->info.ns[0].nsid,
	                     .cdw10 = (uint32_t)lba,
	                     .cdw11 = (uint32_t)(lba >> 32)};

	e.dptr.prp.prp1 = h->dma;
	return e;
}

static int run(struct hand *h, struct nvme_sqe e)
{
	uint64_t end = rig_now() + 5000 * MS;
	struct nvme_cqe c;

	dev_qp_post(&h->q, &e);
	dev_qp_ring(&h->q);
	while (!dev_qp_poll(&h->q, &c))
		if (rig_now() > end)
			return -ETIMEDOUT;
	dev_qp_release(&h->q);
	CHECK(!memcmp(h->memory, canary, PAGE) && !memcmp(h->memory + 2 * PAGE, canary, PAGE));
	return NVME_CID(c.cid_status) == e.cid ? (int)NVME_STATUS(c.cid_status) : -EPROTO;
}

static void errors_keep_their_status(void)
{
	struct hand h = {0};
	uint64_t blocks;
	struct nvme_sqe e;

	need_drives();
	hand_up(&h, drives[0]);
	blocks = h.info.ns[0].capacity_bytes / h.info.ns[0].lba_bytes;
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, 0, 1)), 0);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, blocks - 1, 2)), 0);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, blocks, 3)), NVME_SC_LBA_RANGE);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, ~0ull, 4)), NVME_SC_LBA_RANGE);
	CHECK_EQ(run(&h, command(&h, 0x7f, 0, 5)), NVME_SC_INVALID_OPCODE);
	e = command(&h, NVME_CMD_READ, 0, 6);
	e.nsid = 77;
	CHECK(run(&h, e) > 0);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_FLUSH, 0, 7)), 0);
	hand_down(&h);
}

static void bad_sector(void)
{
	const char *bad = getenv("TUTTI_TEST_BAD_LBA");
	struct hand h = {0};

	need_drives();
	if (!bad)
		CHECK_SKIP("TUTTI_TEST_BAD_LBA names no block that can't be read");
	hand_up(&h, drives[n_drives - 1]);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, strtoull(bad, NULL, 10), 1)), NVME_SC_READ_ERROR);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, 0, 2)), 0);
	hand_down(&h);
}

/* A queue pair is taken away with commands under way: by Delete SQ, never by CC.EN. The next one works. */
static void deleted_under_load(void)
{
	struct hand h = {0};

	need_drives();
	hand_up(&h, drives[0]);
	for (int round = 0; round < 100; round++) {
		for (uint16_t i = 0; i < 60; i++) {
			struct nvme_sqe e = command(&h, NVME_CMD_READ, i, i);

			dev_qp_post(&h.q, &e);
		}
		dev_qp_ring(&h.q);
		CHECK_EQ(ctrl_vfio.qp_delete(h.c, &h.q, rig_now() + 5000 * MS), 0);
		CHECK_EQ(ctrl_vfio.qp_create(h.c, 64, NULL, &h.q), 0);
		CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, 0, 61)), 0);
	}
	CHECK_EQ(nvme_fn_of(h.c, 0)->fences, 0);
	hand_down(&h);
}

/* A process dies with 60 commands in flight; the next one opens the drive as if nothing had been. */
static void died_under_load(void)
{
	struct hand h = {0};
	int status;

	need_drives();
	for (int round = 0; round < 5; round++) {
		pid_t pid = fork();

		if (!pid) {
			hand_up(&h, drives[0]);
			for (uint16_t i = 0; i < 60; i++) {
				struct nvme_sqe e = command(&h, NVME_CMD_READ, i, i);

				dev_qp_post(&h.q, &e);
			}
			dev_qp_ring(&h.q);
			kill(getpid(), SIGKILL);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status));
		memset(&h, 0, sizeof(h));
		hand_up(&h, drives[0]);
		CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, 0, 1)), 0);
		hand_down(&h);
	}
}

/*
 * Data at an address that nothing is mapped at: a controller may report success (QEMU's does), but no memory of ours
 * has changed, and a list there is an error.
 */
static void stray(void)
{
	struct hand h = {0};
	struct nvme_sqe e;

	need_drives();
	hand_up(&h, drives[0]);
	e = command(&h, NVME_CMD_READ, 0, 1);
	e.dptr.prp.prp1 = h.dma + (1ull << 36);
	printf("# a read to nowhere: status %#x\n", (unsigned)run(&h, e));
	for (uint32_t i = 0; i < 3 * PAGE; i++)
		CHECK_EQ(h.memory[i], 0xC7);
	e = command(&h, NVME_CMD_READ, 0, 2);
	e.cdw12 = 4 * PAGE / h.info.ns[0].lba_bytes - 1;
	e.dptr.prp.prp2 = h.dma + (1ull << 36);
	CHECK_EQ(run(&h, e), NVME_SC_DATA_TRANSFER);
	CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, 0, 3)), 0);
	hand_down(&h);
}

/* What the kernel's own driver must find later. */
static void dump(void)
{
	const char *to = getenv("TUTTI_TEST_DUMP");
	struct rig_shape s = shape();
	struct hand h = {0};
	uint32_t lba;
	int fd;

	need_drives();
	if (!to)
		CHECK_SKIP("TUTTI_TEST_DUMP names no file");
	round_trip(s, 1);
	hand_up(&h, drives[0]);
	lba = h.info.ns[0].lba_bytes;
	fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	for (uint64_t at = 0; at < DUMP_BYTES; at += lba) {
		CHECK_EQ(run(&h, command(&h, NVME_CMD_READ, at / lba, 1)), 0);
		CHECK_EQ(write(fd, h.memory + PAGE, lba), lba);
	}
	close(fd);
	hand_down(&h);
}

static void core(void)
{
	CHECK_RUN(hold);
	CHECK_RUN(with_sgl);
	CHECK_RUN(with_prp);
	CHECK_RUN(through_bounce_buffers);
	CHECK_RUN(errors_keep_their_status);
	CHECK_RUN(told_what_is_left);
	CHECK_RUN(random_programs);
	CHECK_RUN(bad_sector);
	CHECK_RUN(let_go);
}

static void all(void)
{
	core();
	CHECK_RUN(four_sms);
	CHECK_RUN(round_robin);
	CHECK_RUN(each_transfer_its_status);
	CHECK_RUN(killed_at_work);
	CHECK_RUN(deleted_under_load);
	CHECK_RUN(died_under_load);
	CHECK_RUN(dump);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "all";
	static char list[512];
	char *save = NULL;

	snprintf(list, sizeof(list), "%s", getenv("TUTTI_TEST_DRIVES") ? getenv("TUTTI_TEST_DRIVES") : "");
	for (char *p = strtok_r(list, " ", &save); p && n_drives < 4; p = strtok_r(NULL, " ", &save))
		drives[n_drives++] = p;
	memset(canary, 0xC7, PAGE);
	rig_dir(scratch_begin());
	if (!strcmp(what, "core"))
		core();
	else if (!strcmp(what, "stray"))
		CHECK_RUN(stray);
	else
		all();
	scratch_end();
	return check_end();
}
