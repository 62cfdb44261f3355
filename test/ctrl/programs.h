/*
 * programs.h - random programs of reads and writes against a model of the medium, over any controller that takes real
 * addresses: commands of one to six pieces, SGL or PRP, with canaries around what a read may change.
 */
#ifndef TUTTI_TEST_CTRL_PROGRAMS_H
#define TUTTI_TEST_CTRL_PROGRAMS_H

#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "ctrl/ctrl.h"
#include "dev/dptr.h"

#define PROGRAMS_STEPS 12
#define PROGRAMS_LOOKS 1000u
#define PROGRAMS_MEDIUM (1u << 20)
#define PROGRAMS_ARENA (256u << 10)
#define PROGRAMS_PAGES (PROGRAMS_ARENA / DEV_PAGE_BYTES + 2)
#define PROGRAMS_WAIT_NS 30000000000ull

struct programs {
	const struct ctrl_ops *ops;
	struct ctrl *c;
	struct dev_qp q;
	struct dev_list list;
	uint8_t *arena; /* then list pages */
	uint64_t page_dma[PROGRAMS_PAGES]; /* where the controller sees each page of the arena */
	uint64_t first_lba; /* of the part of namespace 0 that is played on */
	uint32_t nsid, lba, sgl_max, mdts;
	uint8_t model[PROGRAMS_MEDIUM];
	uint64_t seed;
};

static inline int programs_command(struct programs *m, struct nvme_sqe *e)
{
	uint64_t end = port_now_ns() + PROGRAMS_WAIT_NS;
	const struct timespec nap = {.tv_nsec = 20000};
	struct nvme_cqe c;

	dev_qp_post(&m->q, e);
	dev_qp_ring(&m->q);
	for (uint32_t looks = 1; !dev_qp_poll(&m->q, &c); looks++) {
		if (port_now_ns() > end)
			return -1;
		if (looks > PROGRAMS_LOOKS)
			nanosleep(&nap, NULL); /* the controller may be a thread that needs this core */
	}
	dev_qp_release(&m->q);
	return (int)NVME_STATUS(c.cid_status);
}

/* ctrl_run_fn */
static inline int programs_run_of(void *arg, uint64_t va, uint64_t bytes, uint64_t dma)
{
	struct programs *m = arg;
	uint64_t first = (va - (uint64_t)(uintptr_t)m->arena) / DEV_PAGE_BYTES;

	for (uint64_t i = 0; i < bytes / DEV_PAGE_BYTES; i++)
		m->page_dma[first + i] = dma + i * DEV_PAGE_BYTES;
	return 0;
}

/* A piece of the arena, page by page: neighbours become one run where the controller sees them so. */
static inline void programs_add(const struct programs *m, struct dev_dptr *d, uint64_t at, uint64_t bytes)
{
	while (bytes) {
		uint64_t in = at % DEV_PAGE_BYTES, n = DEV_PAGE_BYTES - in < bytes ? DEV_PAGE_BYTES - in : bytes;

		CHECK_EQ(dev_dptr_add(d, m->page_dma[at / DEV_PAGE_BYTES] + in, n), 0);
		at += n;
		bytes -= n;
	}
}

/* One command over 1 to 5 pieces of the arena, with canaries around each piece of a read. */
static inline void programs_step(struct programs *m)
{
	uint32_t blocks = 1 + (uint32_t)(check_random(&m->seed) % (m->mdts / m->lba)), n_pieces = 0;
	uint64_t lba = check_random(&m->seed) % (PROGRAMS_MEDIUM / m->lba - blocks), bytes = (uint64_t)blocks * m->lba,
	         at = 0, used = 0;
	struct nvme_sqe e = {.nsid = m->nsid,
	                     .cdw10 = (uint32_t)(m->first_lba + lba),
	                     .cdw11 = (uint32_t)((m->first_lba + lba) >> 32),
	                     .cdw12 = blocks - 1};
	struct {
		uint64_t at, bytes;
	} piece[6];
	uint64_t align = m->sgl_max ? 4 : 4096;
	int write = check_random(&m->seed) % 2;
	struct dev_dptr d;

	dev_dptr_begin(&d, &m->list, m->sgl_max);
	while (used < bytes) {
		uint64_t left = bytes - used,
		         n = n_pieces == 5 ? left : (1 + check_random(&m->seed) % (left / align + 1)) * align;

		n = n < left ? n : left;
		at += check_random(&m->seed) % 4 * align; /* sometimes it touches the one before */
		if (!n_pieces && !m->sgl_max)
			at += check_random(&m->seed) % 2 && n % 4096 == 0 && left == n ? 512 : 0;
		piece[n_pieces].at = at;
		piece[n_pieces++].bytes = n;
		programs_add(m, &d, at, n);
		at += n;
		used += n;
	}
	CHECK(at <= PROGRAMS_ARENA);
	for (uint64_t i = 0; i < PROGRAMS_ARENA; i += 8)
		*(uint64_t *)(void *)(m->arena + i) = write ? check_random(&m->seed) : 0xC0C0C0C0C0C0C0C0ull;
	e.opcode = write ? NVME_CMD_WRITE : NVME_CMD_READ;
	dev_dptr_finish(&d, &e);
	CHECK_EQ(programs_command(m, &e), 0);
	used = lba * m->lba;
	at = 0;
	for (uint32_t i = 0; i < n_pieces; i++) {
		for (; at < piece[i].at && !write; at++)
			CHECK_EQ(m->arena[at], 0xC0);
		if (write)
			memcpy(m->model + used, m->arena + piece[i].at, piece[i].bytes);
		else
			CHECK(!memcmp(m->model + used, m->arena + piece[i].at, piece[i].bytes));
		used += piece[i].bytes;
		at = piece[i].at + piece[i].bytes;
	}
	for (; at < PROGRAMS_ARENA && !write; at++)
		CHECK_EQ(m->arena[at], 0xC0);
}

/* The whole medium against the model, in commands of one piece. load: the model is what the medium holds. */
static inline void programs_medium(struct programs *m, int load)
{
	for (uint64_t at = 0; at < PROGRAMS_MEDIUM; at += m->mdts) {
		uint64_t lba = m->first_lba + at / m->lba;
		struct nvme_sqe e = {.opcode = NVME_CMD_READ,
		                     .nsid = m->nsid,
		                     .cdw10 = (uint32_t)lba,
		                     .cdw11 = (uint32_t)(lba >> 32),
		                     .cdw12 = m->mdts / m->lba - 1};
		struct dev_dptr d;

		dev_dptr_begin(&d, &m->list, m->sgl_max);
		programs_add(m, &d, 0, m->mdts);
		dev_dptr_finish(&d, &e);
		CHECK_EQ(programs_command(m, &e), 0);
		if (load)
			memcpy(m->model + at, m->arena, m->mdts);
		else
			CHECK(!memcmp(m->model + at, m->arena, m->mdts));
	}
}

/*
 * n programs on PROGRAMS_MEDIUM bytes of namespace 0 from first_byte on; whoever knows better looks at m->model
 * afterwards.
 */
static inline void programs_run(struct programs *m, const struct ctrl_ops *ops, struct ctrl *c, uint64_t first_byte,
                                uint32_t n, uint64_t seed)
{
	uint64_t bytes = PROGRAMS_ARENA + 2 * DEV_PAGE_BYTES;
	struct ctrl_info info;

	CHECK_EQ(ops->identify(c, &info), 0);
	m->ops = ops;
	m->c = c;
	m->arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK_EQ(ctrl_mem_map_runs(ops, c, m->arena, bytes, NULL, programs_run_of, m), 0);
	m->list.n_pages = 2;
	for (uint32_t i = 0; i < 2; i++) {
		m->list.page[i] = (uint64_t *)(void *)(m->arena + PROGRAMS_ARENA + i * DEV_PAGE_BYTES);
		m->list.dma[i] = m->page_dma[PROGRAMS_ARENA / DEV_PAGE_BYTES + i];
	}
	m->nsid = info.ns[0].nsid;
	m->lba = info.ns[0].lba_bytes;
	m->first_lba = first_byte / m->lba;
	m->sgl_max = info.sgl_max;
	m->mdts = info.mdts_bytes < 131072 ? info.mdts_bytes : 131072;
	for (uint32_t p = 0; p < n; p++) {
		m->seed = seed + p;
		CHECK_EQ(ops->qp_create(c, 2 + (uint32_t)(m->seed % 15), NULL, &m->q), 0);
		if (!p)
			programs_medium(m, 1);
		for (int i = 0; i < PROGRAMS_STEPS; i++)
			programs_step(m);
		if (p + 1 == n)
			programs_medium(m, 0);
		CHECK_EQ(ops->qp_delete(c, &m->q, port_now_ns() + PROGRAMS_WAIT_NS), 0);
	}
	CHECK_EQ(ops->mem_unmap(c, m->arena, bytes), 0);
	munmap(m->arena, bytes);
}

#endif
