/* test_front.c - queues over the null backend: statuses, a CQ that nobody reaps, nonsense in doorbells, limits. */
#include "ctrl/lab.h"

#include <pthread.h>

static void null_open(struct lab *l, uint32_t depth, const char *path)
{
	static struct ctrl_target t;
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};

	t = (struct ctrl_target){.path = path, .fd = -1};
	lab_open(l, &ctrl_null, &o, depth, 1 << 20);
}

static void statuses_come_through(void)
{
	struct nvme_sqe e;
	struct lab l;

	null_open(&l, 8, "null:1G");
	CHECK_EQ(l.info.ns[0].capacity_bytes, 1ull << 30);
	for (int round = 0; round < 50; round++) { /* so that phases turn */
		CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), 0);
		CHECK_EQ(lab_rw(&l, NVME_CMD_WRITE, 1, 0, l.arena, 1 << 20), 0);
		CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 1ull << 30, l.arena, 4096), NVME_SC_LBA_RANGE);
		CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena - 4, 4096), NVME_SC_DATA_TRANSFER);
		CHECK_EQ(lab_rw(&l, 0x55, 1, 0, l.arena, 4096), NVME_SC_INVALID_OPCODE);
		e = lab_sqe(&l, NVME_CMD_READ, 1, 0, l.arena, 4096);
		e.nsid = 2;
		CHECK_EQ(lab_do(&l, e), NVME_SC_INVALID_NS);
		CHECK_EQ(lab_do(&l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), 0);
	}
	CHECK_EQ(lab_counters(&l).commands, 350);
	CHECK_EQ(lab_counters(&l).errors, 200);
	CHECK_EQ(lab_counters(&l).bytes_read, 50 * 4096);
	CHECK_EQ(lab_counters(&l).bytes_written, 50ull << 20);
	lab_close(&l);
}

/* Until the controller has carried out so many commands. */
static void until_done(const struct lab *l, uint64_t commands)
{
	uint64_t end_ns = port_now_ns() + LAB_WAIT_NS;

	while (lab_counters(l).commands < commands && port_now_ns() < end_ns)
		usleep(1000); /* between two looks at what another thread does */
	CHECK_EQ(lab_counters(l).commands, commands);
}

/* The next completion, whose entry is not given back. It is counted a moment before it is there. */
static struct nvme_cqe next_kept(struct lab *l)
{
	uint64_t end_ns = port_now_ns() + LAB_WAIT_NS;
	struct nvme_cqe c;
	int there;

	while (!(there = dev_qp_poll(&l->qp, &c)) && port_now_ns() < end_ns)
		usleep(1000); /* between two looks at what another thread does */
	CHECK(there);
	return c;
}

/* The entries between head and tail of a CQ that nobody reaps are never written over. */
static void cq_never_overruns(const struct ctrl_ops *ops, const char *path)
{
	struct ctrl_target t = {.path = path, .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct nvme_cqe c;
	struct nvme_sqe e;
	struct lab l;
	uint32_t seen = 0;
	uint16_t cid = 0;

	lab_open(&l, ops, &o, 8, 1 << 20);
	/* 7 commands, then 5 more on top, as a submitter that breaks the rule; only 7 completions have room. */
	for (uint32_t posted = 0; posted < 12; posted++) {
		e = lab_sqe(&l, NVME_CMD_READ, 1, 0, l.arena, 4096);
		e.cid = cid++;
		dev_qp_post(&l.qp, &e);
		dev_qp_ring(&l.qp);
		until_done(&l, posted < 7 ? posted + 1 : 7); /* one by one */
	}
	for (int i = 0; i < 7; i++) {
		c = next_kept(&l);
		CHECK_EQ(NVME_STATUS(c.cid_status), 0);
		seen |= 1u << NVME_CID(c.cid_status);
	}
	CHECK_EQ(seen, 0x7f);
	CHECK_EQ(dev_qp_poll(&l.qp, &c), 0);
	usleep(50000); /* time for a completion that must not come */
	CHECK_EQ(dev_qp_poll(&l.qp, &c), 0);
	/* Room for three more: three more come, though nothing but the doorbell's memory says so. */
	l.qp.head_rung = 3;
	port_store_release32(l.qp.cq_doorbell, 3);
	for (int i = 0; i < 5; i++)
		seen |= 1u << NVME_CID(lab_wait(&l).cid_status);
	CHECK_EQ(seen, 0xfff);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), 0);
	lab_close(&l);
}

static void cq_null(void) { cq_never_overruns(&ctrl_null, "null:1M"); }
static void cq_model(void) { cq_never_overruns(&ctrl_model, "ram:1M"); }
static void cq_virt(void) { cq_never_overruns(&ctrl_virt, lab_file(lab_tmp(), "cq", 1 << 20, 1)); }

static void nonsense_in_doorbells(void)
{
	struct lab l;
	struct nvme_cqe c;
	uint64_t seed = 2;

	null_open(&l, 16, "null:1M");
	for (int i = 0; i < 200; i++) {
		port_store_wake32(l.qp.sq_doorbell, 16 + (uint32_t)(check_random(&seed) >> 33), l.qp.sq_parker);
		port_store_release32(l.qp.cq_doorbell, (uint32_t)check_random(&seed) | 16);
	}
	usleep(10000); /* time to do something wrong */
	CHECK_EQ(dev_qp_poll(&l.qp, &c), 0);
	CHECK_EQ(lab_counters(&l).commands, 0);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), 0);
	/* A head beyond the tail gives no room that isn't there. */
	port_store_release32(l.qp.cq_doorbell, 9);
	for (int i = 0; i < 15; i++)
		dev_qp_post(&l.qp, &(struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1});
	dev_qp_ring(&l.qp);
	until_done(&l, 16);
	lab_close(&l);
}

/* Random memory as submission entries: any status, never a crash, one completion each. */
static void random_entries(void)
{
	struct lab l;
	uint64_t seed = 8, sum[2] = {0, 0};

	null_open(&l, 64, "null:1G");
	for (int i = 0; i < 20000; i++) {
		union {
			struct nvme_sqe e;
			uint64_t w[8];
		} u;

		for (int k = 0; k < 8; k++)
			u.w[k] = check_random(&seed);
		if (i % 2) {
			u.e.opcode = (uint8_t)(1 + i / 2 % 2);
			u.e.nsid = 1;
			u.e.flags = (uint8_t)(i / 4 % 2 << 6);
			u.e.cdw10 &= 0xfffff;
			u.e.cdw11 = 0;
			u.e.cdw12 &= 0x7ff;
			u.e.dptr.prp.prp1 = (uint64_t)(uintptr_t)l.arena + (u.e.dptr.prp.prp1 & 0xfffff);
			if (i / 8 % 2)
				u.e.dptr.prp.prp2 = (uint64_t)(uintptr_t)l.arena + (u.e.dptr.prp.prp2 & 0xfffff);
			else
				u.e.dptr.sgl.len &= 0xff0, u.e.dptr.sgl.id = (uint8_t)(0x20 + i / 16 % 2 * 16);
			for (int k = 0; k < 64; k++)
				memcpy(l.arena + (check_random(&seed) & 0xffff0), &u.w[4], 8);
		}
		sum[lab_do(&l, u.e) == 0]++;
	}
	CHECK(sum[0] > 10000);
	lab_close(&l);
}

static void limits(void)
{
	struct dev_qp many[CTRL_QPS_MAX];
	struct dev_qp extra;
	struct lab l;

	null_open(&l, 2, "null:1M");
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), 0);
	CHECK_EQ(ctrl_null.qp_create(l.c, 1, NULL, &extra), -EINVAL);
	CHECK_EQ(ctrl_null.qp_create(l.c, l.info.depth_max + 1, NULL, &extra), -EINVAL);
	for (uint32_t i = 1; i < l.info.qps_max; i++)
		CHECK_EQ(ctrl_null.qp_create(l.c, 4, NULL, &many[i]), 0);
	CHECK_EQ(ctrl_null.qp_create(l.c, 4, NULL, &extra), -ENOSPC);
	extra = many[5];
	CHECK_EQ(ctrl_null.qp_delete(l.c, &many[5], port_now_ns() + LAB_WAIT_NS), 0);
	CHECK_EQ(ctrl_null.qp_delete(l.c, &extra, port_now_ns() + LAB_WAIT_NS), -EINVAL);
	CHECK_EQ(ctrl_null.qp_create(l.c, l.info.depth_max, NULL, &many[5]), 0);
	CHECK_EQ(((uintptr_t)many[5].sq | (uintptr_t)many[5].cq) & 4095, 0);
	/* close deletes what is left. */
	lab_close(&l);
}

/* ---- two threads, two queue pairs, parking on both sides ---- */

struct worker {
	struct lab l;
	uint32_t bad, pause;
};

/* lab_wait without checks, which belong to the main thread. */
static int reap_one(struct lab *l, struct nvme_cqe *c)
{
	uint64_t deadline_ns = port_now_ns() + LAB_WAIT_NS;

	while (!dev_qp_poll(&l->qp, c)) {
		port_park_announce(&l->parker);
		if (dev_qp_poll(&l->qp, c)) {
			port_park_cancel(&l->parker);
			break;
		}
		if (port_park_wait(&l->parker, deadline_ns))
			return 0;
	}
	dev_qp_release(&l->qp);
	return 1;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint32_t sent = 0, got = 0, total = w->pause ? 2000 : 100000;

	while (got < total) {
		struct nvme_cqe c;

		for (; sent < total && sent - got < w->l.qp.depth - 1; sent++) {
			struct nvme_sqe e = lab_sqe(&w->l, NVME_CMD_READ, 1, 0, w->l.arena, 4096);

			e.cid = (uint16_t)sent;
			if (sent % 7 == 0)
				e.nsid = 9;
			dev_qp_post(&w->l.qp, &e);
		}
		dev_qp_ring(&w->l.qp);
		if (w->pause && got % 64 == 0)
			usleep(200); /* so that the controller parks */
		if (!reap_one(&w->l, &c)) {
			w->bad++;
			break;
		}
		w->bad += NVME_CID(c.cid_status) != (uint16_t)got ||
		          NVME_STATUS(c.cid_status) != (got % 7 ? 0 : NVME_SC_INVALID_NS);
		got++;
	}
	return NULL;
}

static void two_threads(void)
{
	struct worker w[2];
	pthread_t id[2];

	null_open(&w[0].l, 64, "null:1M");
	w[1].l = w[0].l;
	memset(&w[1].l.parker, 0, sizeof(w[1].l.parker));
	CHECK_EQ(ctrl_null.qp_create(w[0].l.c, 7, &w[1].l.parker, &w[1].l.qp), 0);
	for (uint32_t i = 0; i < 2; i++) {
		w[i].bad = 0;
		w[i].pause = i;
		CHECK_EQ(pthread_create(&id[i], NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(id[i], NULL);
	CHECK_EQ(w[0].bad + w[1].bad, 0);
	lab_close(&w[0].l);
}

/* More regions than there is room for. */
static void regions_run_out(void)
{
	struct lab l;
	char *p = mmap(NULL, 8192 * CTRL_REGIONS_MAX, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(p != MAP_FAILED);
	null_open(&l, 4, "null:1M");
	for (uint32_t i = 0; i + 1 < CTRL_REGIONS_MAX; i++)
		CHECK_EQ(ctrl_null.mem_map(l.c, p + 8192ull * i, 4096, NULL, NULL), 0);
	CHECK_EQ(ctrl_null.mem_map(l.c, p + 4096, 4096, NULL, NULL), -ENOSPC);
	CHECK_EQ(ctrl_null.mem_unmap(l.c, p + 8192, 4096), 0);
	CHECK_EQ(ctrl_null.mem_map(l.c, p + 4096, 4096, NULL, NULL), 0);
	lab_close(&l);
	munmap(p, 8192 * CTRL_REGIONS_MAX);
}

int main(void)
{
	CHECK_RUN(statuses_come_through);
	CHECK_RUN(cq_null);
	CHECK_RUN(cq_model);
	CHECK_RUN(cq_virt);
	CHECK_RUN(nonsense_in_doorbells);
	CHECK_RUN(random_entries);
	CHECK_RUN(limits);
	CHECK_RUN(two_threads);
	CHECK_RUN(regions_run_out);
	return check_end();
}
