/*
 * lab.h - what the controller tests share: temporary files, a mapped arena, commands by hand through dev/qp.h.
 *
 * Everything that waits here has a deadline of some seconds and fails the check when it passes.
 */
#ifndef TUTTI_TEST_CTRL_LAB_H
#define TUTTI_TEST_CTRL_LAB_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "ctrl/soft.h"

#define LAB_WAIT_NS 20000000000ull

struct lab {
	const struct ctrl_ops *ops;
	struct ctrl *c;
	struct ctrl_info info;
	struct dev_qp qp;
	struct port_parker parker;
	char *arena; /* mapped, page aligned */
	uint64_t arena_bytes;
	int registered;
	uint16_t cid;
};

static char lab_dir[4096];

static inline void lab_dir_remove(void)
{
	char command[4200];

	snprintf(command, sizeof(command), "rm -rf '%s'", lab_dir);
	if (lab_dir[0] && system(command))
		perror("rm");
}

/* A temporary directory: under TUTTI_TEST_DIR, TMPDIR or /tmp. Removed at exit. */
static inline const char *lab_tmp(void)
{
	const char *base = getenv("TUTTI_TEST_DIR");

	if (lab_dir[0])
		return lab_dir;
	if (!base)
		base = getenv("TMPDIR");
	snprintf(lab_dir, sizeof(lab_dir), "%s/tutti-ctrl-XXXXXX", base ? base : "/tmp");
	CHECK(mkdtemp(lab_dir) != NULL);
	atexit(lab_dir_remove);
	return lab_dir;
}

/* Path of a new file of so many bytes, filled with a pattern that depends on seed and place. Static storage. */
static inline const char *lab_file(const char *dir, const char *name, uint64_t bytes, uint64_t seed)
{
	static char paths[8][4300];
	static unsigned next;
	char *path = paths[next++ % 8];
	int fd;
	uint64_t *block = malloc(1 << 16);

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && block);
	for (uint64_t at = 0; at < bytes; at += 1 << 16) {
		uint64_t n = bytes - at < 1 << 16 ? bytes - at : 1 << 16;

		for (uint64_t i = 0; i < (1 << 16) / 8; i++)
			block[i] = (at + i * 8) * 0x9E3779B97F4A7C15ull + seed;
		CHECK_EQ(pwrite(fd, block, (size_t)n, (off_t)at), n);
	}
	free(block);
	close(fd);
	return path;
}

static inline uint64_t lab_pattern(uint64_t offset, uint64_t seed) { return offset * 0x9E3779B97F4A7C15ull + seed; }

static inline void lab_open(struct lab *l, const struct ctrl_ops *ops, const struct ctrl_opts *opts, uint32_t depth,
                            uint64_t arena_bytes)
{
	uint64_t dma;
	int rc;

	memset(l, 0, sizeof(*l));
	l->ops = ops;
	rc = ops->open(opts, &l->c);
	if (rc)
		printf("# open: %d %s\n", rc, err_text());
	CHECK_EQ(rc, 0);
	CHECK_EQ(ops->identify(l->c, &l->info), 0);
	l->arena_bytes = arena_bytes;
	l->arena = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(l->arena != MAP_FAILED);
	CHECK_EQ(ops->mem_map(l->c, l->arena, arena_bytes, &dma, &l->registered), 0);
	CHECK_EQ(dma, (uint64_t)(uintptr_t)l->arena);
	CHECK_EQ(ops->qp_create(l->c, depth, &l->parker, &l->qp), 0);
}

static inline void lab_close(struct lab *l)
{
	CHECK_EQ(l->ops->qp_delete(l->c, &l->qp, port_now_ns() + LAB_WAIT_NS), 0);
	l->ops->close(l->c);
	munmap(l->arena, l->arena_bytes);
}

/* Waits, parking, for one completion. */
static inline struct nvme_cqe lab_wait(struct lab *l)
{
	uint64_t deadline_ns = port_now_ns() + LAB_WAIT_NS;
	struct nvme_cqe e;

	while (!dev_qp_poll(&l->qp, &e)) {
		port_park_announce(&l->parker);
		if (dev_qp_poll(&l->qp, &e)) {
			port_park_cancel(&l->parker);
			break;
		}
		CHECK_EQ(port_park_wait(&l->parker, deadline_ns), 0);
	}
	dev_qp_release(&l->qp);
	return e;
}

/* A read or write of bytes at offset with one SGL data block at addr. */
static inline struct nvme_sqe lab_sqe(const struct lab *l, int opcode, uint32_t nsid, uint64_t offset, void *addr,
                                      uint32_t bytes)
{
	uint32_t lba = l->info.ns[nsid - 1].lba_bytes;
	struct nvme_sqe e = {.opcode = (uint8_t)opcode, .nsid = nsid};

	e.flags = NVME_PSDT_SGL << 6;
	e.dptr.sgl = (struct nvme_sgl){.addr = (uint64_t)(uintptr_t)addr, .len = bytes, .id = NVME_SGL_DATA << 4};
	e.cdw10 = (uint32_t)(offset / lba);
	e.cdw11 = (uint32_t)(offset / lba >> 32);
	e.cdw12 = bytes / lba - 1;
	return e;
}

/* One command; its status. */
static inline uint32_t lab_do(struct lab *l, struct nvme_sqe e)
{
	struct nvme_cqe c;

	e.cid = ++l->cid;
	dev_qp_post(&l->qp, &e);
	dev_qp_ring(&l->qp);
	c = lab_wait(l);
	CHECK_EQ(NVME_CID(c.cid_status), e.cid);
	CHECK_EQ(c.sq_head, l->qp.tail);
	CHECK_EQ(c.sq_id, l->qp.id);
	return NVME_STATUS(c.cid_status);
}

static inline uint32_t lab_rw(struct lab *l, int opcode, uint32_t nsid, uint64_t offset, void *addr, uint32_t bytes)
{
	return lab_do(l, lab_sqe(l, opcode, nsid, offset, addr, bytes));
}

static inline struct ctrl_counters lab_counters(const struct lab *l)
{
	struct ctrl_counters n;

	CHECK_EQ(ctrl_counters(l->c, &n), 0);
	return n;
}

#endif
