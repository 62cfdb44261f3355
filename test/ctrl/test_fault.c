/* test_fault.c - the front over a backend that fails: results, retries, order, hanging, deletion; the log's replay. */
#include "ctrl/fault_io.h"
#include "ctrl/lab.h"

#include <fcntl.h>

#define FILE_BYTES (1u << 20)

struct rig {
	struct lab l;
	struct fault_io *f;
	const char *path;
};

static void rig_open(struct rig *r, uint64_t log_bytes)
{
	static struct ctrl_target t;
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1, .io_ops = &fault_io_ops};

	r->path = lab_file(lab_tmp(), "fault", FILE_BYTES, 1);
	r->f = fault_io_new(log_bytes);
	t = (struct ctrl_target){.path = r->path, .fd = -1};
	o.io_arg = r->f;
	lab_open(&r->l, &ctrl_virt, &o, 32, 1 << 20);
}

static void rig_close(struct rig *r)
{
	lab_close(&r->l);
	fault_io_free(r->f);
}

static void rule(struct rig *r, enum fault_kind kind, uint32_t ops, uint64_t nth, uint64_t count, uint64_t value)
{
	struct fault_rule u = {.kind = kind, .ops = ops, .nth = nth, .count = count, .value = value};

	CHECK_EQ(fault_io_rule(r->f, &u), 0);
}

static uint32_t one(struct rig *r, int opcode)
{
	return lab_rw(&r->l, opcode, 1, 8192, r->l.arena, 16384);
}

static void errors_become_statuses(void)
{
	static const struct {
		int error;
		uint32_t read, write;
	} table[] = {
		{EIO, NVME_SC_READ_ERROR, NVME_SC_WRITE_FAULT},  {ENODATA, NVME_SC_READ_ERROR, NVME_SC_WRITE_FAULT},
		{ENOSPC, NVME_SC_CAPACITY, NVME_SC_CAPACITY},    {EDQUOT, NVME_SC_CAPACITY, NVME_SC_CAPACITY},
		{EFBIG, NVME_SC_CAPACITY, NVME_SC_CAPACITY},     {EFAULT, NVME_SC_DATA_TRANSFER, NVME_SC_DATA_TRANSFER},
		{ENOMEM, NVME_SC_INTERNAL, NVME_SC_INTERNAL},    {EROFS, NVME_SC_READ_ERROR, CTRL_SC_READ_ONLY},
	};
	struct rig r;

	rig_open(&r, 0);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		fault_io_clear(r.f);
		rule(&r, FAULT_ERROR, 0, 1, 3, (uint64_t)table[i].error);
		CHECK_EQ(one(&r, NVME_CMD_READ), table[i].read);
		CHECK_EQ(one(&r, NVME_CMD_WRITE), table[i].write);
		CHECK_EQ(lab_do(&r.l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), table[i].write);
		CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	}
	CHECK_EQ(lab_counters(&r.l).errors, 3 * sizeof(table) / sizeof(table[0]));
	rig_close(&r);
}

static void short_and_interrupted(void)
{
	struct rig r;
	uint64_t *p;

	rig_open(&r, 0);
	p = (uint64_t *)(void *)r.l.arena;
	/* Cut at odd places, interrupted in between. */
	rule(&r, FAULT_SHORT, FAULT_READ, 1, 1, 5);
	rule(&r, FAULT_ERROR, FAULT_READ, 2, 5, EINTR);
	rule(&r, FAULT_SHORT, FAULT_READ, 7, 1, 8191);
	rule(&r, FAULT_ERROR, FAULT_READ, 8, 1, EAGAIN);
	CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	for (uint64_t i = 0; i < 2048; i++)
		CHECK(p[i] == lab_pattern(8192 + 8 * i, 1));
	CHECK_EQ(fault_io_count(r.f, FAULT_READ), 9);
	CHECK_EQ(lab_counters(&r.l).resumed, 8);
	memset(p, 0x11, 16384);
	fault_io_clear(r.f);
	rule(&r, FAULT_SHORT, FAULT_WRITE, 1, 3, 1000);
	CHECK_EQ(one(&r, NVME_CMD_WRITE), 0);
	CHECK_EQ(fault_io_count(r.f, FAULT_WRITE), 4);
	memset(p, 0, 16384);
	CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	for (uint64_t i = 0; i < 2048; i++)
		CHECK(p[i] == 0x1111111111111111ull);
	/* Never ends: bounded. A transfer of nothing likewise. */
	rule(&r, FAULT_ERROR, 0, 1, UINT64_MAX, EINTR);
	CHECK_EQ(one(&r, NVME_CMD_READ), NVME_SC_READ_ERROR);
	fault_io_clear(r.f);
	rule(&r, FAULT_SHORT, 0, 1, UINT64_MAX, 0);
	CHECK_EQ(one(&r, NVME_CMD_WRITE), NVME_SC_WRITE_FAULT);
	fault_io_clear(r.f);
	rule(&r, FAULT_FLIP, FAULT_READ, 1, 1, 77);
	CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	CHECK_EQ(p[1], 0x1111111111111111ull ^ 1ull << 13);
	rig_close(&r);
}

/* ctrl_io_result on its own: random cuts, with and without a sector to round down to. */
static void results_random(void)
{
	struct iovec v[8], all[8];
	static char memory[65536];
	uint64_t seed = 4;

	for (int round = 0; round < 20000; round++) {
		struct ctrl_io io = {.opcode = NVME_CMD_READ, .iov = v};
		uint32_t align = check_random(&seed) % 2 ? 512 : 1, at = 0, done = 0, tries = 0;
		int finished;

		io.n_iov = 1 + (uint32_t)(check_random(&seed) % 8);
		for (uint32_t i = 0; i < io.n_iov; i++) {
			uint32_t len = 512 * (1 + (uint32_t)(check_random(&seed) % 8));

			v[i] = all[i] = (struct iovec){memory + at, len};
			at += len;
			io.bytes += len;
		}
		ctrl_io_begin(&io);
		do {
			uint32_t n = (uint32_t)(check_random(&seed) % (io.bytes - done + 1)),
			         moved = n == io.bytes - done ? n : n / align * align;

			CHECK_EQ(io.done_bytes, done);
			CHECK(io.rest->iov_base == memory + done);
			finished = ctrl_io_result(&io, n, align);
			done += moved;
			tries += moved == 0;
			CHECK_EQ(finished, done == io.bytes || tries == 3);
		} while (!finished);
		CHECK_EQ(io.status, done == io.bytes ? 0 : NVME_SC_READ_ERROR);
	}
	{
		struct ctrl_io io = {.opcode = NVME_CMD_READ, .iov = all, .n_iov = 1, .bytes = 512};

		ctrl_io_begin(&io);
		CHECK_EQ(ctrl_io_result(&io, 513, 1), 1); /* more than asked for is no success */
		CHECK_EQ(io.status, NVME_SC_INTERNAL);
	}
}

static void post(struct rig *r, int opcode, uint16_t cid)
{
	struct nvme_sqe e = lab_sqe(&r->l, opcode, 1, cid * 4096u, r->l.arena + cid * 4096u, 4096);

	e.cid = cid;
	dev_qp_post(&r->l.qp, &e);
}

static void delays_and_order(void)
{
	struct rig r;
	uint64_t before_ns = port_now_ns();
	uint16_t order[4];

	rig_open(&r, 0);
	rule(&r, FAULT_DELAY, FAULT_READ, 1, 1, 50000000);
	CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	CHECK(port_now_ns() - before_ns >= 50000000);
	fault_io_clear(r.f);
	rule(&r, FAULT_REORDER, FAULT_READ, 1, 1, 2);
	for (uint16_t i = 0; i < 4; i++)
		post(&r, NVME_CMD_READ, i);
	dev_qp_ring(&r.l.qp);
	for (int i = 0; i < 4; i++)
		order[i] = NVME_CID(lab_wait(&r.l).cid_status);
	CHECK(order[0] != 0);
	CHECK_EQ(order[0] + order[1] + order[2] + order[3], 6);
	/* With nobody to let pass it still comes. */
	fault_io_clear(r.f);
	rule(&r, FAULT_REORDER, FAULT_READ, 1, 1, 100);
	CHECK_EQ(one(&r, NVME_CMD_READ), 0);
	rig_close(&r);
}

static void deletion_in_flight(void)
{
	struct rig r;
	struct dev_qp other, stuck;
	struct ctrl_counters n;

	rig_open(&r, 0);
	/* What hangs but can be cancelled does not keep the queue pair. */
	rule(&r, FAULT_HANG, FAULT_READ, 1, UINT64_MAX, 0);
	for (uint16_t i = 0; i < 20; i++)
		post(&r, NVME_CMD_READ, i);
	dev_qp_ring(&r.l.qp);
	while (fault_io_count(r.f, FAULT_READ) < 20)
		port_pause();
	CHECK_EQ(r.l.ops->mem_unmap(r.l.c, r.l.arena, r.l.arena_bytes), -EBUSY);
	CHECK_EQ(r.l.ops->qp_delete(r.l.c, &r.l.qp, port_now_ns() + LAB_WAIT_NS), 0);
	CHECK(r.l.qp.sq == NULL);
	/* What can't be cancelled does, to the deadline; later it can go. */
	CHECK_EQ(r.l.ops->qp_create(r.l.c, 16, NULL, &r.l.qp), 0);
	fault_io_clear(r.f);
	rule(&r, FAULT_STUCK, FAULT_WRITE, 1, 1, 0);
	post(&r, NVME_CMD_WRITE, 1);
	post(&r, NVME_CMD_READ, 2);
	dev_qp_ring(&r.l.qp);
	while (fault_io_count(r.f, FAULT_READ) < 21)
		port_pause();
	CHECK_EQ(r.l.ops->qp_delete(r.l.c, &r.l.qp, port_now_ns() + 20000000), -ETIMEDOUT);
	CHECK_EQ(r.l.ops->qp_delete(r.l.c, &r.l.qp, port_now_ns() + 1000000), -ETIMEDOUT);
	/* Meanwhile another one works. */
	CHECK_EQ(r.l.ops->qp_create(r.l.c, 16, &r.l.parker, &other), 0);
	CHECK(other.id != r.l.qp.id);
	stuck = r.l.qp;
	r.l.qp = other;
	CHECK_EQ(lab_rw(&r.l, NVME_CMD_READ, 1, 0, r.l.arena, 4096), 0);
	CHECK_EQ(r.l.ops->qp_delete(r.l.c, &r.l.qp, port_now_ns() + LAB_WAIT_NS), 0);
	r.l.qp = stuck;
	fault_io_release(r.f);
	n = lab_counters(&r.l);
	CHECK(n.commands >= 21);
	rig_close(&r);
}

/* A command id's memory may be used again after 0: nothing is written to it any more. */
static void nothing_is_touched_after_deletion(void)
{
	struct rig r;

	rig_open(&r, 0);
	rule(&r, FAULT_DELAY, FAULT_READ, 1, UINT64_MAX, 3000000);
	for (int round = 0; round < 20; round++) {
		for (uint16_t i = 0; i < 8; i++)
			post(&r, NVME_CMD_READ, i);
		dev_qp_ring(&r.l.qp);
		CHECK_EQ(r.l.ops->qp_delete(r.l.c, &r.l.qp, port_now_ns() + LAB_WAIT_NS), 0);
		memset(r.l.arena, 0x77, 8 * 4096);
		CHECK_EQ(r.l.ops->qp_create(r.l.c, 16, &r.l.parker, &r.l.qp), 0);
		for (uint32_t i = 0; i < 8 * 4096; i++)
			CHECK(r.l.arena[i] == 0x77);
	}
	rig_close(&r);
}

/* ---- the log ---- */

static uint8_t byte_of(const char *path, uint64_t at)
{
	int fd = open(path, O_RDONLY);
	uint8_t b = 0;

	CHECK(fd >= 0);
	CHECK_EQ(pread(fd, &b, 1, (off_t)at), 1);
	close(fd);
	return b;
}

static void replay_of_subsets(void)
{
	char base[4400], image[4400];
	const char *images[] = {image};
	struct fault_event e;
	struct rig r;

	rig_open(&r, 1 << 20);
	snprintf(base, sizeof(base), "%s.base", r.path);
	snprintf(image, sizeof(image), "%s.image", r.path);
	CHECK_EQ(fault_io_copy(r.path, base), 0);
	for (int i = 0; i < 6; i++) {
		memset(r.l.arena, 0x10 + i, 4096);
		CHECK_EQ(lab_rw(&r.l, NVME_CMD_WRITE, 1, 4096u * (uint32_t)i, r.l.arena, 4096), 0);
		if (i == 2)
			CHECK_EQ(lab_do(&r.l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), 0);
	}
	/* Events: W0 W1 W2 F W3 W4 W5. */
	CHECK_EQ(fault_io_events(r.f), 7);
	CHECK_EQ(fault_io_unflushed(r.f, 3), 3);
	CHECK_EQ(fault_io_unflushed(r.f, 4), 0);
	CHECK_EQ(fault_io_unflushed(r.f, 7), 3);
	CHECK_EQ(fault_io_event(r.f, 3, &e), 0);
	CHECK_EQ(e.flush, 1);
	CHECK_EQ(fault_io_event(r.f, 7, &e), -ENOENT);
	for (uint32_t keep = 0; keep < 8; keep++) {
		CHECK_EQ(fault_io_copy(base, image), 0);
		CHECK_EQ(fault_io_replay(r.f, 7, 3, keep, 0, images, 1), 0);
		for (uint32_t i = 0; i < 6; i++) {
			int there = i < 3 || keep >> (i - 3) & 1;

			CHECK_EQ(byte_of(image, 4096 * i), there ? 0x10 + i : (uint8_t)lab_pattern(4096 * i, 1));
			CHECK_EQ(byte_of(image, 4096 * i + 4095),
			         there ? 0x10 + i : (uint8_t)(lab_pattern(4096 * i + 4088, 1) >> 56));
		}
	}
	/* Torn: only a part of the newest one. */
	CHECK_EQ(fault_io_copy(base, image), 0);
	CHECK_EQ(fault_io_replay(r.f, 6, 2, 3, 512, images, 1), 0);
	CHECK_EQ(byte_of(image, 4 * 4096 + 511), 0x14);
	CHECK_EQ(byte_of(image, 4 * 4096 + 519), (uint8_t)(lab_pattern(4 * 4096 + 512, 1) >> 56));
	CHECK_EQ(byte_of(image, 3 * 4096 + 4095), 0x13);
	/* All events and all kept is the file. */
	CHECK_EQ(fault_io_copy(base, image), 0);
	CHECK_EQ(fault_io_replay(r.f, 7, 0, 0, 0, images, 1), 0);
	{
		char command[9000];

		snprintf(command, sizeof(command), "cmp -s '%s' '%s'", r.path, image);
		CHECK_EQ(system(command), 0);
	}
	rig_close(&r);
}

static void flush_covers_only_what_completed(void)
{
	struct rig r;

	rig_open(&r, 1 << 20);
	rule(&r, FAULT_HANG, FAULT_WRITE, 1, 1, 0);
	post(&r, NVME_CMD_WRITE, 1);
	dev_qp_ring(&r.l.qp);
	dev_qp_post(&r.l.qp, &(struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1, .cid = 9});
	dev_qp_ring(&r.l.qp);
	CHECK_EQ(NVME_CID(lab_wait(&r.l).cid_status), 9);
	CHECK_EQ(fault_io_unflushed(r.f, fault_io_events(r.f)), 1);
	fault_io_release(r.f);
	CHECK_EQ(NVME_CID(lab_wait(&r.l).cid_status), 1);
	CHECK_EQ(fault_io_unflushed(r.f, fault_io_events(r.f)), 1);
	{
		struct nvme_sqe e = lab_sqe(&r.l, NVME_CMD_WRITE, 1, 0, r.l.arena, 512);

		e.cdw12 |= 1u << 30; /* FUA */
		CHECK_EQ(lab_do(&r.l, e), 0);
	}
	CHECK_EQ(fault_io_unflushed(r.f, fault_io_events(r.f)), 1);
	CHECK_EQ(lab_do(&r.l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), 0);
	CHECK_EQ(fault_io_unflushed(r.f, fault_io_events(r.f)), 0);
	rig_close(&r);
}

static void a_dead_disk_keeps_its_bytes(void)
{
	struct rig r;

	rig_open(&r, 1 << 20);
	memset(r.l.arena, 0x33, 16384);
	rule(&r, FAULT_DEAD, FAULT_WRITE, 2, 1, 0);
	CHECK_EQ(one(&r, NVME_CMD_WRITE), 0);
	CHECK_EQ(fault_io_struck(r.f), 0);
	memset(r.l.arena, 0x44, 16384);
	CHECK_EQ(one(&r, NVME_CMD_WRITE), NVME_SC_WRITE_FAULT);
	CHECK_EQ(fault_io_struck(r.f), 1);
	CHECK_EQ(one(&r, NVME_CMD_READ), NVME_SC_READ_ERROR);
	CHECK_EQ(byte_of(r.path, 8192), 0x33);
	fault_io_clear(r.f);
	rule(&r, FAULT_TORN, FAULT_WRITE, 1, 1, 100);
	CHECK_EQ(one(&r, NVME_CMD_WRITE), NVME_SC_WRITE_FAULT);
	CHECK_EQ(byte_of(r.path, 8192 + 99), 0x44);
	CHECK_EQ(byte_of(r.path, 8192 + 100), 0x33);
	CHECK_EQ(fault_io_struck(r.f), 1);
	fault_io_clear(r.f);
	/* Stopped: no answer, until the queue pair goes. */
	rule(&r, FAULT_STOP, FAULT_WRITE, 1, 1, 0);
	post(&r, NVME_CMD_WRITE, 2);
	post(&r, NVME_CMD_READ, 3);
	dev_qp_ring(&r.l.qp);
	while (fault_io_count(r.f, FAULT_READ) < 2)
		port_pause();
	{
		struct nvme_cqe c;

		CHECK_EQ(dev_qp_poll(&r.l.qp, &c), 0);
	}
	rig_close(&r);
}

int main(void)
{
	CHECK_RUN(errors_become_statuses);
	CHECK_RUN(short_and_interrupted);
	CHECK_RUN(results_random);
	CHECK_RUN(delays_and_order);
	CHECK_RUN(deletion_in_flight);
	CHECK_RUN(nothing_is_touched_after_deletion);
	CHECK_RUN(replay_of_subsets);
	CHECK_RUN(flush_covers_only_what_completed);
	CHECK_RUN(a_dead_disk_keeps_its_bytes);
	return check_end();
}
