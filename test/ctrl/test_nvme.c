/*
 * test_nvme.c - the user-space NVMe driver against a controller that is late, forgetful, wrong or dead (mock_nvme.h).
 *
 * Every case ends with the same questions: was the controller ever told an address that was not mapped, was a command
 * id used twice, was CC.EN cleared under load, is any memory still mapped?
 */
#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include "base/err.h"
#include "check.h"
#include "ctrl/mock_nvme.h"
#include "ctrl/programs.h"

#define MS 1000000ull
#define LONG 30000u /* ms: ends a hang, nothing else */

static struct mock *mock;
static struct nvme_fn *fn;

static void up(const struct mock_opts *o)
{
	struct nvme_transport t;

	mock_begin();
	mock = mock_new(o);
	CHECK(mock != NULL);
	CHECK_EQ(mock_claim(NULL, mock_name(0), &t), 0);
	CHECK_EQ(nvme_fn_open(&t, mock_name(0), &fn), 0);
}

static void down(void)
{
	struct mock_counts n;

	nvme_fn_close(fn);
	n = mock_count(mock);
	CHECK_EQ(n.dma_faults, 0);
	CHECK_EQ(n.double_ids, 0);
	CHECK_EQ(n.bad_doorbells, 0);
	CHECK_EQ(n.en_under_load, 0);
	CHECK_EQ(mock_mapped_bytes(mock), 0);
	mock_free(mock);
}

static const struct mock_opts plain = {.vectors = 4};

static uint64_t soon(uint64_t ms) { return port_now_ns() + ms * MS; }

static const struct timespec nap = {.tv_nsec = 20000};

/* One Flush on a queue pair. The status, or -ETIMEDOUT. */
static int flush(struct dev_qp *q, uint16_t cid, uint64_t ms)
{
	struct nvme_sqe e = {.opcode = NVME_CMD_FLUSH, .nsid = 1, .cid = cid};
	struct nvme_cqe c;
	uint64_t end = soon(ms);

	dev_qp_post(q, &e);
	dev_qp_ring(q);
	while (!dev_qp_poll(q, &c)) {
		if (port_now_ns() > end)
			return -ETIMEDOUT;
		nanosleep(&nap, NULL); /* the controller's thread may need this core */
	}
	dev_qp_release(q);
	return NVME_CID(c.cid_status) == cid ? (int)NVME_STATUS(c.cid_status) : -EPROTO;
}

/* One Flush that meets the deed that was scripted, and is not answered. */
static void unanswered(struct dev_qp *q)
{
	uint64_t end = soon(LONG);

	CHECK_EQ(flush(q, 1, 50), -ETIMEDOUT);
	while (mock_pending(mock) && port_now_ns() < end)
		nanosleep(&nap, NULL); /* until the controller's thread has come so far */
	CHECK_EQ(mock_pending(mock), 0);
}

static int admin_identify(uint64_t ms)
{
	struct nvme_sqe e = {.opcode = NVME_ADMIN_IDENTIFY, .cdw10 = NVME_CNS_CONTROLLER};

	e.dptr.prp.prp1 = fn->memory_dma + 2 * DEV_PAGE_BYTES;
	return nvme_admin(fn, &e, soon(ms), NULL);
}

/* ---- what the controller says ---- */

static void identifies(void)
{
	up(&(struct mock_opts){
	    .n_ns = 3, .mdts = 5, .vectors = 2, .queues = 7, .mqes = 128, .serial = "S123", .volatile_cache = 1});
	CHECK(!strcmp(fn->model, "mock controller"));
	CHECK(!strcmp(fn->serial, "S123"));
	CHECK_EQ(fn->mdts_bytes, 4096 << 5);
	CHECK_EQ(fn->depth_max, 128);
	CHECK_EQ(fn->qps_max, 7);
	CHECK_EQ(fn->volatile_cache, 1);
	CHECK_EQ(fn->sgl, 1);
	CHECK_EQ(fn->n_ns, 3);
	CHECK_EQ(fn->ns[2].nsid, 3);
	CHECK_EQ(fn->ns[2].bytes, 64 << 20);
	CHECK(nvme_ns_find(fn, 3) == &fn->ns[2]);
	CHECK(!nvme_ns_find(fn, 4));
	down();
}

static void doorbells_apart(void)
{
	struct dev_qp q;

	up(&(struct mock_opts){.vectors = 1, .dstrd = 3});
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	for (uint16_t i = 0; i < 20; i++) /* around the ring */
		CHECK_EQ(flush(&q, i, LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	down();
}

static void queue_pairs_run_out(void)
{
	struct dev_qp q[4];

	up(&(struct mock_opts){.vectors = 2, .queues = 3, .mqes = 64});
	CHECK_EQ(nvme_qp_create(fn, 1, NULL, &q[0]), -EINVAL);
	CHECK_EQ(nvme_qp_create(fn, 65, NULL, &q[0]), -EINVAL);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(nvme_qp_create(fn, 64, NULL, &q[i]), 0);
	CHECK_EQ(nvme_qp_create(fn, 64, NULL, &q[3]), -ENOSPC);
	CHECK(strstr(err_text(), "all 3 queue pairs"));
	CHECK_EQ(nvme_qp_delete(fn, &q[1], soon(LONG)), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q[1], soon(LONG)), -EINVAL);
	CHECK_EQ(nvme_qp_create(fn, 64, NULL, &q[1]), 0);
	CHECK_EQ(flush(&q[1], 3, LONG), 0);
	down(); /* close deletes what is left */
}

static void interrupts_wake(void)
{
	static struct port_parker parker;
	struct nvme_sqe e = {.opcode = NVME_CMD_FLUSH, .nsid = 1, .cid = 1};
	struct nvme_cqe c;
	struct dev_qp q;

	up(&(struct mock_opts){.vectors = 2});
	CHECK_EQ(nvme_qp_create(fn, 8, &parker, &q), 0);
	mock_script(mock, MOCK_LATE, 30, 1, -1, 0, 1);
	dev_qp_post(&q, &e);
	dev_qp_ring(&q);
	for (uint64_t end = soon(LONG);;) {
		port_park_announce(&parker);
		if (dev_qp_poll(&q, &c)) {
			port_park_cancel(&parker);
			break;
		}
		CHECK_EQ(port_park_wait(&parker, end), 0);
	}
	CHECK(mock_count(mock).interrupts >= 1);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	down();
	up(&(struct mock_opts){.vectors = 0});
	CHECK_EQ(nvme_qp_create(fn, 8, &parker, &q), -EOPNOTSUPP);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	down();
}

/* ---- the admin queue on bad days ---- */

static void admin_late_and_twice(void)
{
	up(&plain);
	mock_script(mock, MOCK_LATE, 50, 0, -1, 0, 1);
	CHECK_EQ(admin_identify(LONG), 0);
	mock_script(mock, MOCK_TWICE, 0, 0, -1, 0, 40); /* more often than the queue is long */
	for (int i = 0; i < 60; i++)
		CHECK_EQ(admin_identify(LONG), 0);
	CHECK(fn->stray_completions >= 39);
	CHECK_EQ(fn->fences, 0);
	down();
}

/* An admin command is not answered: said in time; the next queue pair brings the controller up again. */
static void admin_unanswered(enum mock_deed deed, uint32_t arg, int result)
{
	uint64_t start, ms = result == -ETIMEDOUT ? 100 : LONG;
	struct dev_qp q, before;

	up(&plain);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &before), 0);
	mock_script(mock, deed, arg, 0, NVME_ADMIN_IDENTIFY, 0, 1);
	start = port_now_ns();
	CHECK_EQ(admin_identify(ms), result);
	CHECK(port_now_ns() - start < fn->admin_ns / 2); /* the time that was said */
	mock_calm(mock); /* on a busy machine the time may have passed before the deed was done */
	CHECK_EQ(admin_identify(100), -EIO); /* lost until a reset */
	CHECK(!nvme_qp_lost(fn, before.id));
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(fn->fences, 1);
	CHECK(nvme_qp_lost(fn, before.id));
	CHECK(!nvme_qp_lost(fn, q.id));
	CHECK_EQ(flush(&q, 1, LONG), 0);
	CHECK_EQ(admin_identify(LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &before, soon(LONG)), 0); /* gone with the reset: only its memory was left */
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	down();
}

static void admin_lost(void) { admin_unanswered(MOCK_LOST, 0, -ETIMEDOUT); }
static void admin_wrong_id(void) { admin_unanswered(MOCK_WRONG_CID, 77, -ETIMEDOUT); }
static void admin_wrong_phase(void) { admin_unanswered(MOCK_WRONG_PHASE, 0, -ETIMEDOUT); }
static void admin_stall(void) { admin_unanswered(MOCK_STALL, 0, -ETIMEDOUT); }
static void admin_fatal(void) { admin_unanswered(MOCK_CFS, 0, -EIO); }
static void admin_answers_after_reset(void) { admin_unanswered(MOCK_AFTER_RESET, 0, -ETIMEDOUT); }

static void create_fails(void)
{
	struct dev_qp q;
	uint64_t was_ns;

	up(&plain);
	mock_script(mock, MOCK_STATUS, NVME_SC_QUEUE_SIZE, 0, NVME_ADMIN_CREATE_SQ, 0, 1);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), NVME_SC_QUEUE_SIZE);
	CHECK_EQ(fn->fences, 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0); /* the CQ of the first try is gone: the same id works */
	CHECK_EQ(q.id, 1);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	mock_script(mock, MOCK_LOST, 0, 0, NVME_ADMIN_CREATE_SQ, 0, 1);
	was_ns = fn->admin_ns;
	fn->admin_ns = 200 * MS;
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), -ETIMEDOUT);
	fn->admin_ns = was_ns;
	mock_calm(mock);
	CHECK_EQ(fn->fences, 1);
	CHECK_EQ(fn->lost_bytes, 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(flush(&q, 1, LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	down();
}

/* ---- I/O queue pairs on bad days ---- */

/* A command is lost; the queue pair can be deleted by admin command, and nothing else notices. */
static void io_lost(void)
{
	struct dev_qp q, other;

	up(&plain);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &other), 0);
	mock_script(mock, MOCK_LOST, 0, 1, -1, 0, 1);
	unanswered(&q);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	CHECK_EQ(fn->fences, 0);
	CHECK_EQ(flush(&other, 1, LONG), 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(flush(&q, 1, LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	CHECK_EQ(nvme_qp_delete(fn, &other, soon(LONG)), 0);
	down();
}

/* The controller answers nothing any more: fenced within the deadline; both queue pairs' memory is free; it works
 * again. */
static void io_dead(enum mock_deed deed, int no_reset)
{
	struct mock_opts o = plain;
	struct dev_qp q, other;
	uint64_t start;

	o.no_reset = no_reset;
	up(&o);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &other), 0);
	mock_script(mock, deed, 0, 1, -1, 0, 1);
	unanswered(&q);
	start = port_now_ns();
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(400)), 0);
	CHECK(port_now_ns() - start < fn->admin_ns / 2);
	CHECK_EQ(fn->fences, 1);
	CHECK_EQ(fn->lost_bytes, 0);
	CHECK(nvme_qp_lost(fn, other.id));
	CHECK_EQ(nvme_qp_delete(fn, &other, soon(400)), 0);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(flush(&q, 1, LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	down();
}

static void io_stall(void) { io_dead(MOCK_STALL, 0); }
static void io_fatal(void) { io_dead(MOCK_CFS, 0); }
static void io_stall_without_reset(void) { io_dead(MOCK_STALL, 1); }
static void io_fatal_without_reset(void) { io_dead(MOCK_CFS, 1); }

/* A completion that comes after the reset finds no memory of ours to change. */
static void io_answers_after_reset(void)
{
	struct mock_counts n;
	struct dev_qp q;

	up(&plain);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	mock_script(mock, MOCK_AFTER_RESET, 0, 1, -1, 0, 1);
	unanswered(&q);
	mock_script(mock, MOCK_LOST, 0, 0, NVME_ADMIN_DELETE_SQ, 0, 1);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(200)), 0);
	mock_calm(mock);
	CHECK_EQ(fn->fences, 1);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	CHECK_EQ(flush(&q, 1, LONG), 0);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(LONG)), 0);
	n = mock_count(mock);
	CHECK_EQ(n.dma_faults, 1); /* it tried, where the queue had been */
	nvme_fn_close(fn);
	mock_free(mock);
}

/* The function is pulled out: nobody may say that its memory is safe, and nobody hangs. */
static void removed(void)
{
	struct dev_qp q;
	uint64_t start = port_now_ns();

	up(&plain);
	CHECK_EQ(nvme_qp_create(fn, 8, NULL, &q), 0);
	mock_script(mock, MOCK_GONE, 0, 1, -1, 0, 1);
	unanswered(&q);
	CHECK_EQ(nvme_qp_delete(fn, &q, soon(200)), -ETIMEDOUT);
	CHECK(strstr(err_text(), "must stay"));
	CHECK_EQ(admin_identify(100), -EIO);
	nvme_fn_close(fn);
	CHECK(port_now_ns() - start < LONG * MS);
	CHECK(mock_mapped_bytes(mock) > 0);
	mock_free(mock);
}

static void never_ready(void)
{
	struct nvme_transport t;
	uint64_t start = port_now_ns();

	mock_begin();
	mock = mock_new(&(struct mock_opts){.never_ready = 1, .to_500ms = 1});
	CHECK_EQ(mock_claim(NULL, mock_name(0), &t), 0);
	CHECK_EQ(nvme_fn_open(&t, mock_name(0), &fn), -ETIMEDOUT);
	CHECK(strstr(err_text(), "CAP.TO"));
	CHECK(port_now_ns() - start >= 900 * MS && port_now_ns() - start < LONG * MS);
	CHECK_EQ(mock_mapped_bytes(mock), 0);
	mock_free(mock);
}

/* ---- as a controller ---- */

static void paths(void)
{
	static const char *const bad[] = {"nvme:",
	                                  "nvme:0000:01:00.0",
	                                  "nvme:0000:01:00.0/",
	                                  "nvme:0000:01:00.0/0",
	                                  "nvme:0000:01:00.0/x",
	                                  "nvme:0000:01:00.0/1x",
	                                  "nvme:0000:01:00.0/4294967295",
	                                  "nvme:01:00.0/1",
	                                  "nvme:0000:01:00:0/1",
	                                  "nvme:../../0000:01/1",
	                                  "nvme:00000000000000000000000000000000000000000:01:00.0/1"};
	char function[NVME_NAME_BYTES];
	uint32_t nsid;

	CHECK_EQ(nvme_path("nvme:0000:c1:00.0/12", function, &nsid), 0);
	CHECK(!strcmp(function, "0000:c1:00.0"));
	CHECK_EQ(nsid, 12);
	CHECK_EQ(nvme_path("/dev/nvme0n1", function, &nsid), -ENOENT);
	CHECK_EQ(nvme_path(NULL, function, &nsid), -ENOENT);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_EQ(nvme_path(bad[i], function, &nsid), -EINVAL);
}

static uint32_t most_bytes; /* of a command; 0: what the drive says */

static int open_one(const char *path, struct ctrl **c)
{
	struct ctrl_target t = {.path = path, .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1, .mdts_bytes = most_bytes};

	return ctrl_vfio.open(&o, c);
}

static void refuses(const struct mock_opts *o, const char *path, int result, const char *said)
{
	struct ctrl *c;

	mock_begin();
	mock = mock_new(o);
	CHECK_EQ(open_one(path, &c), result);
	CHECK(strstr(err_text(), said));
	CHECK_EQ(mock_mapped_bytes(mock), 0);
	mock_free(mock);
}

static void unusable_drives(void)
{
	refuses(&(struct mock_opts){.metadata_bytes = 8}, mock_path(0, 1), -EOPNOTSUPP, "--lbaf");
	refuses(&(struct mock_opts){.lba_bytes = 2048}, mock_path(0, 1), -EOPNOTSUPP, "blocks of 2048");
	refuses(&(struct mock_opts){.n_ns = 2}, mock_path(0, 3), -ENODEV, "no active namespace 3");
	refuses(&(struct mock_opts){.n_ns = 2}, "/tmp/x", -EINVAL, "all of one kind");
	/* Only a limit of ours can be below a block: MDTS counts pages of 4096 bytes. */
	most_bytes = 512;
	refuses(&(struct mock_opts){.lba_bytes = 4096}, mock_path(0, 1), -EOPNOTSUPP, "less than a block of 4096");
	most_bytes = 0;
}

/* Two handles share the claimed function; what one maps and makes is its own. */
static void handles_share(void)
{
	struct ctrl *a, *b;
	struct dev_qp qa, qb;
	struct ctrl_info info;
	uint8_t *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t da, db;

	mock_begin();
	mock = mock_new(&(struct mock_opts){.n_ns = 2, .vectors = 1, .mdts = 2, .no_sgl = 1});
	CHECK_EQ(open_one(mock_path(0, 1), &a), 0);
	CHECK_EQ(open_one(mock_path(0, 2), &b), 0);
	CHECK_EQ(mock_count(mock).enables, 1);
	CHECK_EQ(ctrl_vfio.identify(b, &info), 0);
	CHECK_EQ(info.ns[0].nsid, 2);
	CHECK_EQ(info.mdts_bytes, 16384);
	CHECK_EQ(info.sgl_max, 0);
	CHECK_EQ(ctrl_vfio.qp_create(a, 16, NULL, &qa), 0);
	CHECK_EQ(ctrl_vfio.qp_create(b, 16, NULL, &qb), 0);
	CHECK(qa.id != qb.id);
	CHECK_EQ(ctrl_vfio.mem_map(a, p + 512, 8192, &da, NULL), 0);
	CHECK_EQ(da % 4096, 512);
	CHECK_EQ(ctrl_vfio.mem_map(a, p, 4096, &db, NULL), -EEXIST);
	CHECK_EQ(ctrl_vfio.mem_map(b, p, 8192, &db, NULL), 0);
	CHECK_EQ(ctrl_vfio.mem_unmap(b, p, 4096), -ENOENT);
	CHECK_EQ(ctrl_vfio.mem_unmap(b, p, 8192), 0);
	ctrl_vfio.close(a); /* with a queue pair and a region left */
	CHECK_EQ(flush(&qb, 1, LONG), 0);
	CHECK_EQ(ctrl_vfio.qp_delete(b, &qb, soon(LONG)), 0);
	ctrl_vfio.close(b);
	CHECK_EQ(mock_mapped_bytes(mock), 0);
	CHECK_EQ(mock_count(mock).dma_faults, 0);
	mock_free(mock);
	munmap(p, 65536);
}

/* ---- 200 random programs of reads and writes against a model of the medium ---- */

static void programs(uint32_t lba, uint32_t mdts, int no_sgl)
{
	static struct programs machine;
	struct ctrl *c;

	mock_begin();
	mock = mock_new(&(struct mock_opts){
	    .lba_bytes = lba, .mdts = mdts, .no_sgl = no_sgl, .ns_bytes = PROGRAMS_MEDIUM, .vectors = 1});
	CHECK_EQ(open_one(mock_path(0, 1), &c), 0);
	programs_run(&machine, &ctrl_vfio, c, 0, 50, 1000 * lba + 10 * mdts);
	CHECK(!memcmp(machine.model, mock_medium(mock, 1), PROGRAMS_MEDIUM));
	ctrl_vfio.close(c);
	CHECK_EQ(mock_count(mock).dma_faults, 0);
	mock_free(mock);
}

static void random_programs(void)
{
	programs(512, 5, 0);
	programs(512, 1, 1);
	programs(4096, 0, 0);
	programs(4096, 5, 1);
}

/* ---- a controller that misbehaves at random ---- */

#define BAD_ROUNDS 30
#define BAD_STEPS 12

static void random_deed(uint64_t *seed)
{
	/* Under ThreadSanitizer only those that don't write where nobody may: they race by intent. */
	static const enum mock_deed deeds[] = {MOCK_LATE, MOCK_LOST, MOCK_STATUS, MOCK_STALL, MOCK_CFS,
#if !defined(__SANITIZE_THREAD__)
	                                       MOCK_TWICE, MOCK_WRONG_PHASE, MOCK_WRONG_CID, MOCK_AFTER_RESET,
#endif
	};
	enum mock_deed deed = deeds[check_random(seed) % (sizeof(deeds) / sizeof(deeds[0]))];
	uint32_t arg = (uint32_t)(check_random(seed) % 40) + 1;

	mock_script(mock, deed, deed == MOCK_STATUS ? NVME_SC_INTERNAL : arg, (int)(check_random(seed) % 2), -1,
	            (uint32_t)(check_random(seed) % 3), 1);
}

/* One call; whatever it returns, it returns in time. */
static void random_call(uint64_t *seed, struct dev_qp q[4])
{
	struct dev_qp *one = &q[check_random(seed) % 4];
	uint64_t start = port_now_ns();
	struct dev_qp made;

	switch (check_random(seed) % 4) {
	case 0:
		(void)admin_identify(20);
		break;
	case 1:
		if (one->sq && !nvme_qp_lost(fn, one->id))
			(void)flush(one, (uint16_t)check_random(seed), 20);
		break;
	case 2:
		if (one->sq && nvme_qp_delete(fn, one, soon(100)))
			CHECK(one->sq != NULL);
		break;
	default:
		if (!one->sq && !nvme_qp_create(fn, 8, NULL, &made))
			*one = made;
	}
	CHECK(port_now_ns() - start < LONG * MS);
}

/* Afterwards it is calm, and the driver brings it up again; all memory comes back. */
static void random_misbehaviour(void)
{
	for (uint64_t round = 0; round < BAD_ROUNDS; round++) {
		uint64_t seed = 77 + round;
		struct dev_qp q[4] = {0}, good;
		int result = -1;

		up(&(struct mock_opts){.vectors = 2, .no_reset = round % 3 == 0});
		fn->admin_ns = 40 * MS;
		for (int i = 0; i < BAD_STEPS; i++) {
			if (check_random(&seed) % 2 && mock_pending(mock) < 8)
				random_deed(&seed);
			random_call(&seed, q);
		}
		mock_calm(mock);
		mock_settle(mock);
		fn->admin_ns = 2000 * MS;
		(void)admin_identify(1000); /* finds out whether the admin queue still answers */
		/* What was held over a reset may spoil the first try: it lies where the admin queue is again. */
		for (int try = 0; try < 3 && result; try++)
			result = nvme_qp_create(fn, 8, NULL, &good);
		CHECK_EQ(result, 0);
		CHECK_EQ(flush(&good, 1, LONG), 0);
		for (int i = 0; i < 4; i++)
			if (q[i].sq)
				CHECK_EQ(nvme_qp_delete(fn, &q[i], soon(2000)), 0);
		CHECK(nvme_qp_lost(fn, good.id) || flush(&good, 2, LONG) == 0);
		CHECK_EQ(fn->lost_bytes, 0);
		nvme_fn_close(fn);
		CHECK_EQ(mock_count(mock).en_under_load, 0);
		CHECK_EQ(mock_mapped_bytes(mock), 0);
		mock_free(mock);
	}
}

int main(void)
{
	nvme_claim_by(mock_claim, NULL);
	CHECK_RUN(identifies);
	CHECK_RUN(doorbells_apart);
	CHECK_RUN(queue_pairs_run_out);
	CHECK_RUN(interrupts_wake);
	CHECK_RUN(admin_late_and_twice);
	CHECK_RUN(admin_lost);
	CHECK_RUN(admin_wrong_id);
	CHECK_RUN(admin_wrong_phase);
	CHECK_RUN(admin_stall);
	CHECK_RUN(admin_fatal);
	CHECK_RUN(admin_answers_after_reset);
	CHECK_RUN(create_fails);
	CHECK_RUN(io_lost);
	CHECK_RUN(io_stall);
	CHECK_RUN(io_fatal);
	CHECK_RUN(io_stall_without_reset);
	CHECK_RUN(io_fatal_without_reset);
	CHECK_RUN(io_answers_after_reset);
	CHECK_RUN(removed);
	CHECK_RUN(never_ready);
	CHECK_RUN(paths);
	CHECK_RUN(unusable_drives);
	CHECK_RUN(handles_share);
	CHECK_RUN(random_programs);
	CHECK_RUN(random_misbehaviour);
	return check_end();
}
