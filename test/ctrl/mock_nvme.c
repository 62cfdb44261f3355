#include "ctrl/mock_nvme.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BAR_BYTES 16384u
#define MOCKS 8u
#define NAMESPACES 4u
#define QUEUES 64u
#define REGIONS 32768u
#define HELD 256u
#define SCRIPTS 16u
#define IOVA_STEP (1ull << 32)

struct region {
	uint64_t iova, bytes;
	uint8_t *va;
};

struct queue {
	uint64_t dma; /* 0: none */
	uint32_t size, head, tail, phase, vector, cq;
	int interrupt;
	uint8_t busy[8192]; /* [cid / 8]: ids in flight */
};

#define PIECES 128u
#define DIRTY 65536u

/* Where a transfer's bytes go, as the lists said when the command was fetched. */
struct piece {
	uint64_t iova, bytes;
	uint8_t *medium;
};

/* A completion (or, for late data, a transfer) that is not to happen yet. */
struct held {
	struct piece piece[PIECES];
	uint32_t n_pieces;
	int used, after_reset, data_only;
	uint8_t *gone; /* what a deallocation empties, when it completes */
	uint64_t gone_bytes;
	uint32_t qid, cq, size, place, phase;
	uint64_t due_ns, cq_dma;
	struct nvme_cqe cqe;
};

struct script {
	enum mock_deed deed;
	uint32_t arg, skip, count;
	int io, opcode;
};

struct mock {
	struct mock_opts o;
	pthread_mutex_t lock;
	pthread_t thread;
	int stop, master, stalled, gone, enabled;
	uint32_t *bar;
	struct region region[REGIONS];
	uint32_t n_regions;
	uint64_t next_iova;
	struct queue sq[QUEUES], cq[QUEUES];
	struct held held[HELD];
	struct script script[SCRIPTS];
	uint32_t n_scripts;
	uint8_t *medium, *durable; /* durable: NULL, or its copy without what was not flushed */
	struct piece dirty[DIRTY];
	uint32_t n_dirty;
	void (*on_deallocation)(void *arg);
	void *on_deallocation_arg;
	int eventfd[NVME_VECTORS_MAX];
	uint32_t n_eventfds;
	struct mock_counts n;
};

static struct mock *alive[MOCKS];
static unsigned cases;
static char paths[MOCKS][NAMESPACES][40]; /* "nvme:", then the name, then (but for namespace 0) "/NSID" */

/* ---- memory as the controller sees it ---- */

static uint32_t bar_get(struct mock *m, uint32_t at) { return __atomic_load_n(&m->bar[at / 4], __ATOMIC_ACQUIRE); }

static void bar_set(struct mock *m, uint32_t at, uint32_t v) { __atomic_store_n(&m->bar[at / 4], v, __ATOMIC_RELEASE); }

static uint8_t *reach(struct mock *m, uint64_t iova, uint64_t bytes)
{
	if (!m->master) {
		m->n.denied++;
		return NULL;
	}
	for (uint32_t i = 0; i < m->n_regions; i++)
		if (iova >= m->region[i].iova && iova + bytes <= m->region[i].iova + m->region[i].bytes)
			return m->region[i].va + (iova - m->region[i].iova);
	m->n.dma_faults++;
	return NULL;
}

/* ---- completions ---- */

static void put_cqe(struct mock *m, const struct held *h)
{
	struct nvme_cqe *to =
	    (struct nvme_cqe *)(void *)reach(m, h->cq_dma + h->place * sizeof(h->cqe), sizeof(h->cqe));
	uint64_t one = 1;
	struct queue *cq = &m->cq[h->cq];

	if (!to)
		return;
	to->dw0 = h->cqe.dw0;
	to->dw1 = 0;
	to->sq_head = h->cqe.sq_head;
	to->sq_id = h->cqe.sq_id;
	__atomic_store_n(&to->cid_status, (h->cqe.cid_status & ~(1u << 16)) | h->phase << 16, __ATOMIC_RELEASE);
	if (cq->dma && cq->interrupt && cq->vector < m->n_eventfds) {
		m->n.interrupts++;
		if (write(m->eventfd[cq->vector], &one, sizeof(one)) != sizeof(one))
			m->n.interrupts--;
	}
}

/* Takes the next place of the completion queue. */
static void place(struct mock *m, struct held *h)
{
	struct queue *cq = &m->cq[h->cq];

	h->cq_dma = cq->dma;
	h->place = cq->tail;
	h->phase = cq->phase;
	if (++cq->tail == cq->size) {
		cq->tail = 0;
		cq->phase ^= 1;
	}
}

/* The worst that a drive may do: at once, and past its cache. */
static void deallocate(struct mock *m, const struct held *h)
{
	memset(h->gone, 0, h->gone_bytes);
	if (m->durable)
		memset(m->durable + (h->gone - m->medium), 0, h->gone_bytes);
}

static void complete_now(struct mock *m, struct held *h)
{
	uint16_t cid = NVME_CID(h->cqe.cid_status);

	if (h->gone)
		deallocate(m, h);
	h->gone = NULL;

	place(m, h);
	m->sq[h->qid].busy[cid / 8] &= (uint8_t) ~(1u << cid % 8);
	put_cqe(m, h);
}

static void hold(struct mock *m, const struct held *h, uint64_t ms)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (!m->held[i].used) {
			m->held[i] = *h;
			m->held[i].used = 1;
			m->held[i].due_ns = port_now_ns() + ms * 1000000u;
			return;
		}
}

static void release_due(struct mock *m)
{
	uint64_t now = port_now_ns();

	for (uint32_t i = 0; i < HELD; i++) {
		struct held *h = &m->held[i];

		if (!h->used || h->after_reset || h->due_ns > now)
			continue;
		h->used = 0;
		for (uint32_t k = 0; k < h->n_pieces && h->data_only; k++) {
			uint8_t *host = reach(m, h->piece[k].iova, h->piece[k].bytes);

			if (host)
				memcpy(host, h->piece[k].medium, h->piece[k].bytes);
		}
		if (!h->data_only)
			complete_now(m, h);
	}
}

static const struct script *meet(struct mock *m, int io, int opcode)
{
	for (uint32_t i = 0; i < m->n_scripts; i++) {
		struct script *s = &m->script[i];

		if (!s->count || s->io != io || (s->opcode >= 0 && s->opcode != opcode))
			continue;
		if (s->skip) {
			s->skip--;
			continue;
		}
		s->count--;
		return s;
	}
	return NULL;
}

/* ---- data ---- */

struct walk {
	struct mock *m;
	uint8_t *medium;
	uint64_t left;
	int to_host;
	struct held *later; /* not NULL: nothing is moved, it is written down */
};

/* The next `bytes` of the transfer are at iova. Returns a status. */
static uint32_t move(struct walk *w, uint64_t iova, uint64_t bytes)
{
	uint8_t *host;

	if (bytes > w->left)
		return NVME_SC_SGL_LENGTH;
	host = reach(w->m, iova, bytes);
	if (!host)
		return NVME_SC_DATA_TRANSFER;
	if (w->later && w->later->n_pieces < PIECES)
		w->later->piece[w->later->n_pieces++] = (struct piece){iova, bytes, w->medium};
	if (!w->later)
		memcpy(w->to_host ? host : w->medium, w->to_host ? w->medium : host, bytes);
	w->medium += bytes;
	w->left -= bytes;
	return 0;
}

static uint32_t walk_prp(struct walk *w, uint64_t prp1, uint64_t prp2)
{
	uint64_t n = 4096 - prp1 % 4096, list = prp2, entry;
	uint32_t status;

	if (prp1 & 3)
		return NVME_SC_PRP_OFFSET;
	status = move(w, prp1, n < w->left ? n : w->left);
	if (status || !w->left)
		return status;
	if (w->left <= 4096)
		return prp2 % 4096 ? NVME_SC_PRP_OFFSET : move(w, prp2, w->left);
	while (w->left) {
		uint8_t *p = reach(w->m, list, 8);

		if (!p)
			return NVME_SC_DATA_TRANSFER;
		memcpy(&entry, p, 8);
		if (entry % 4096)
			return NVME_SC_PRP_OFFSET;
		if (list % 4096 == 4088 && w->left > 4096) {
			list = entry;
			continue;
		}
		status = move(w, entry, w->left < 4096 ? w->left : 4096);
		if (status)
			return status;
		list += 8;
	}
	return 0;
}

static uint32_t walk_sgl(struct walk *w, struct nvme_sgl d)
{
	uint32_t segments = 0, status;

	if (d.id >> 4 == NVME_SGL_DATA)
		status = move(w, d.addr, d.len);
	else
		for (status = 0;;) {
			uint32_t n = d.len / 16, last = d.id >> 4 == NVME_SGL_LAST_SEGMENT;
			uint8_t *p = reach(w->m, d.addr, d.len);
			struct nvme_sgl e = {0};

			if ((d.id >> 4 != NVME_SGL_SEGMENT && !last) || !n || d.len % 16 || ++segments > 8)
				return NVME_SC_SGL_SEGMENT;
			if (!p)
				return NVME_SC_DATA_TRANSFER;
			for (uint32_t i = 0; i < n && !status; i++) {
				memcpy(&e, p + 16 * i, 16);
				if (i + 1 == n && !last)
					break;
				status = e.id >> 4 == NVME_SGL_DATA ? move(w, e.addr, e.len) : NVME_SC_SGL_COUNT;
			}
			if (status || last)
				break;
			d = e;
		}
	return status ? status : w->left ? NVME_SC_SGL_LENGTH : 0;
}

/* The only range of the command, for h to empty. */
static int io_deallocate(struct mock *m, const struct nvme_sqe *e, struct held *h)
{
	struct nvme_dsm_range range;
	uint8_t *from = reach(m, e->dptr.prp.prp1, sizeof(range)); /* an SGL's data block has its address there too */

	if (!m->o.dsm || !(e->cdw11 & NVME_DSM_DEALLOCATE) || e->cdw10)
		return m->o.dsm ? NVME_SC_INVALID_FIELD : NVME_SC_INVALID_OPCODE;
	if (!from)
		return NVME_SC_DATA_TRANSFER;
	memcpy(&range, from, sizeof(range));
	if (range.slba + range.blocks > m->o.ns_bytes / m->o.lba_bytes)
		return NVME_SC_LBA_RANGE;
	if (m->on_deallocation)
		m->on_deallocation(m->on_deallocation_arg);
	h->gone = m->medium + (e->nsid - 1) * m->o.ns_bytes + range.slba * m->o.lba_bytes;
	h->gone_bytes = (uint64_t)range.blocks * m->o.lba_bytes;
	m->n.deallocations++;
	m->n.deallocated_bytes += h->gone_bytes;
	return 0;
}

static void io_flush(struct mock *m)
{
	m->n.flushes++;
	for (uint32_t i = 0; i < m->n_dirty && m->durable; i++)
		memcpy(m->durable + (m->dirty[i].medium - m->medium), m->dirty[i].medium, m->dirty[i].bytes);
	m->n_dirty = 0;
}

static int io_transfer(struct mock *m, const struct nvme_sqe *e, struct held *later)
{
	uint64_t lba = e->cdw10 | (uint64_t)e->cdw11 << 32, blocks = (e->cdw12 & 0xffff) + 1;
	struct walk w = {.m = m, .to_host = e->opcode == NVME_CMD_READ, .later = later};

	if (e->nsid - 1 >= m->o.n_ns)
		return NVME_SC_INVALID_NS;
	if (e->opcode == NVME_CMD_FLUSH) {
		io_flush(m);
		return 0;
	}
	if (e->opcode != NVME_CMD_READ && e->opcode != NVME_CMD_WRITE)
		return NVME_SC_INVALID_OPCODE;
	w.left = blocks * m->o.lba_bytes;
	if (lba + blocks > m->o.ns_bytes / m->o.lba_bytes)
		return NVME_SC_LBA_RANGE;
	if (m->o.mdts && w.left > 4096u << m->o.mdts)
		return NVME_SC_INVALID_FIELD;
	if (m->o.boundary_bytes)
		m->n.crossed += lba * m->o.lba_bytes / m->o.boundary_bytes !=
		                ((lba + blocks) * m->o.lba_bytes - 1) / m->o.boundary_bytes;
	w.medium = m->medium + (e->nsid - 1) * m->o.ns_bytes + lba * m->o.lba_bytes;
	if (m->durable && e->opcode == NVME_CMD_WRITE) {
		if (m->n_dirty == DIRTY)
			abort();
		m->dirty[m->n_dirty++] = (struct piece){.medium = w.medium, .bytes = w.left};
	}
	m->n.reads += e->opcode == NVME_CMD_READ;
	m->n.writes += e->opcode == NVME_CMD_WRITE;
	if (e->flags >> 6 == NVME_PSDT_PRP)
		return (int)walk_prp(&w, e->dptr.prp.prp1, e->dptr.prp.prp2);
	return m->o.no_sgl ? NVME_SC_INVALID_FIELD : (int)walk_sgl(&w, e->dptr.sgl);
}

/* ---- admin commands ---- */

static uint32_t identify(struct mock *m, const struct nvme_sqe *e)
{
	uint8_t page[4096] = {0}, *to = reach(m, e->dptr.prp.prp1, 4096);
	struct nvme_id_ctrl *c = (struct nvme_id_ctrl *)(void *)page;
	struct nvme_id_ns *n = (struct nvme_id_ns *)(void *)page;

	if (!to)
		return NVME_SC_DATA_TRANSFER;
	if (e->cdw10 == NVME_CNS_CONTROLLER) {
		memset(c->sn, ' ', sizeof(c->sn));
		memset(c->mn, ' ', sizeof(c->mn));
		memcpy(c->sn, m->o.serial, strlen(m->o.serial));
		memcpy(c->mn, "mock controller", 15);
		c->mdts = (uint8_t)m->o.mdts;
		c->sqes = 0x66;
		c->cqes = 0x44;
		c->nn = m->o.n_ns;
		c->vwc = m->o.volatile_cache != 0;
		c->oncs = m->o.dsm ? NVME_ONCS_DSM : 0;
		c->sgls = m->o.no_sgl ? 0 : 1;
	} else if (e->cdw10 == NVME_CNS_NAMESPACE && e->nsid && e->nsid <= m->o.n_ns) {
		n->nsze = n->ncap = m->o.ns_bytes / m->o.lba_bytes;
		n->noiob = (uint16_t)(m->o.boundary_bytes / m->o.lba_bytes);
		n->lbaf[0].lbads = (uint8_t)__builtin_ctz(m->o.lba_bytes);
		n->lbaf[0].ms = (uint16_t)m->o.metadata_bytes;
	} else if (e->cdw10 == NVME_CNS_ACTIVE_LIST) {
		for (uint32_t i = 0; i < m->o.n_ns; i++)
			((uint32_t *)(void *)page)[i] = i + 1;
	} else {
		return NVME_SC_INVALID_NS;
	}
	memcpy(to, page, 4096);
	return 0;
}

static void queue_drop_held(struct mock *m, uint32_t qid)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (m->held[i].used && m->held[i].qid == qid && !m->held[i].after_reset)
			m->held[i].used = 0;
}

static uint32_t admin(struct mock *m, const struct nvme_sqe *e, uint32_t *dw0)
{
	uint32_t qid = e->cdw10 & 0xffff, size = (e->cdw10 >> 16) + 1;
	struct queue *q =
	    qid < QUEUES
	        ? (e->opcode == NVME_ADMIN_CREATE_CQ || e->opcode == NVME_ADMIN_DELETE_CQ ? &m->cq[qid] : &m->sq[qid])
	        : NULL;

	switch (e->opcode) {
	case NVME_ADMIN_IDENTIFY:
		return identify(m, e);
	case NVME_ADMIN_SET_FEATURES:
		*dw0 = (m->o.queues - 1) | (m->o.queues - 1) << 16;
		return (e->cdw10 & 0xff) == NVME_FEATURE_QUEUES ? 0 : NVME_SC_INVALID_FIELD;
	case NVME_ADMIN_CREATE_CQ:
	case NVME_ADMIN_CREATE_SQ:
		if (!q || !qid || qid > m->o.queues || q->dma || !(e->cdw11 & 1) || e->dptr.prp.prp1 % 4096)
			return NVME_SC_INVALID_QUEUE;
		if (size < 2 || size > m->o.mqes)
			return NVME_SC_QUEUE_SIZE;
		*q = (struct queue){.dma = e->dptr.prp.prp1, .size = size, .phase = 1, .cq = e->cdw11 >> 16};
		if (e->opcode == NVME_ADMIN_CREATE_SQ && (q->cq >= QUEUES || !m->cq[q->cq].dma)) {
			q->dma = 0;
			return NVME_SC_INVALID_CQ;
		}
		q->vector = e->cdw11 >> 16;
		q->interrupt = e->cdw11 & NVME_CQ_INTERRUPT;
		bar_set(m, NVME_REG_DOORBELLS + (2 * qid + (e->opcode == NVME_ADMIN_CREATE_CQ)) * (4u << m->o.dstrd),
		        0);
		return 0;
	case NVME_ADMIN_DELETE_SQ:
	case NVME_ADMIN_DELETE_CQ:
		if (!q || !qid || !q->dma || (e->opcode == NVME_ADMIN_DELETE_CQ && m->sq[qid].dma))
			return NVME_SC_INVALID_QUEUE;
		if (e->opcode == NVME_ADMIN_DELETE_SQ)
			queue_drop_held(m, qid);
		memset(q, 0, sizeof(*q));
		return 0;
	default:
		return NVME_SC_INVALID_OPCODE;
	}
}

/* ---- one command ---- */

static void fatal(struct mock *m, enum mock_deed deed)
{
	m->stalled = 1;
	if (deed == MOCK_CFS)
		bar_set(m, NVME_REG_CSTS, bar_get(m, NVME_REG_CSTS) | NVME_CSTS_CFS);
	if (deed != MOCK_GONE)
		return;
	m->gone = 1;
	for (uint32_t i = 0; i < NVME_REG_DOORBELLS; i += 4)
		bar_set(m, i, NVME_GONE);
}

static void do_deed(struct mock *m, const struct script *s, struct held *h)
{
	switch (s->deed) {
	case MOCK_LATE:
		hold(m, h, s->arg);
		return;
	case MOCK_LOST:
		return;
	case MOCK_AFTER_RESET:
		place(m, h);
		h->after_reset = 1;
		hold(m, h, 0);
		return;
	case MOCK_TWICE:
		complete_now(m, h);
		complete_now(m, h);
		return;
	case MOCK_WRONG_PHASE:
		place(m, h);
		h->phase ^= 1;
		put_cqe(m, h);
		return;
	case MOCK_WRONG_CID:
		h->cqe.cid_status = (h->cqe.cid_status & ~0xffffu) | ((h->cqe.cid_status + s->arg) & 0xffff);
		break;
	default:
		break;
	}
	complete_now(m, h);
}

static void execute(struct mock *m, uint32_t qid, const struct nvme_sqe *e)
{
	struct queue *sq = &m->sq[qid];
	struct held h = {.qid = qid, .cq = sq->cq};
	const struct script *s = meet(m, qid != 0, e->opcode);
	uint32_t status = 0, bit = 1u << e->cid % 8;

	m->n.commands++;
	m->n.double_ids += (sq->busy[e->cid / 8] & bit) != 0;
	sq->busy[e->cid / 8] |= (uint8_t)bit;
	if (s && (s->deed == MOCK_CFS || s->deed == MOCK_STALL || s->deed == MOCK_GONE)) {
		fatal(m, s->deed);
		return;
	}
	if (s && s->deed == MOCK_STATUS)
		status = s->arg;
	else if (s && s->deed == MOCK_DATA_LATE) {
		h.data_only = 1;
		status = (uint32_t)io_transfer(m, e, &h);
		hold(m, &h, s->arg);
		h.data_only = 0;
	} else if (qid && e->opcode == NVME_CMD_DSM && e->nsid - 1 < m->o.n_ns)
		status = (uint32_t)io_deallocate(m, e, &h);
	else if (qid)
		status = (uint32_t)io_transfer(m, e, NULL);
	else
		status = admin(m, e, &h.cqe.dw0);
	h.cqe.sq_head = (uint16_t)sq->head;
	h.cqe.sq_id = (uint16_t)qid;
	h.cqe.cid_status = e->cid | status << 17;
	if (s)
		do_deed(m, s, &h);
	else
		complete_now(m, &h);
}

/* 1: a command was taken. */
static int serve(struct mock *m, uint32_t qid)
{
	struct queue *sq = &m->sq[qid];
	uint32_t tail = bar_get(m, NVME_REG_DOORBELLS + 2 * qid * (4u << m->o.dstrd));
	struct nvme_sqe e, *from;

	if (!sq->dma || tail == sq->head)
		return 0;
	if (tail >= sq->size) {
		m->n.bad_doorbells++;
		return 0;
	}
	from = (struct nvme_sqe *)(void *)reach(m, sq->dma + sq->head * sizeof(e), sizeof(e));
	if (!from)
		return 0;
	e = *from;
	sq->head = sq->head + 1 == sq->size ? 0 : sq->head + 1;
	execute(m, qid, &e);
	return 1;
}

/* ---- up and down ---- */

static void post_after_reset(struct mock *m)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (m->held[i].used && m->held[i].after_reset) {
			m->held[i].used = 0;
			put_cqe(m, &m->held[i]);
		}
}

static void clear(struct mock *m)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (!m->held[i].after_reset)
			m->held[i].used = 0;
	memset(m->sq, 0, sizeof(m->sq));
	memset(m->cq, 0, sizeof(m->cq));
	for (uint32_t at = NVME_REG_DOORBELLS; at < BAR_BYTES; at += 4)
		bar_set(m, at, 0);
	m->stalled = m->enabled = 0;
	m->n.resets++;
}

static void count_load(struct mock *m)
{
	int load = 0;

	for (uint32_t q = 1; q < QUEUES; q++)
		for (uint32_t i = 0; i < sizeof(m->sq[q].busy) && m->sq[q].dma; i++)
			load |= m->sq[q].busy[i];
	m->n.en_under_load += load && m->master;
}

static void registers(struct mock *m)
{
	uint32_t cc = bar_get(m, NVME_REG_CC), csts = bar_get(m, NVME_REG_CSTS);

	if ((cc & NVME_CC_EN) && !m->enabled && !m->o.never_ready) {
		m->enabled = 1;
		m->n.enables++;
		m->sq[0] =
		    (struct queue){.dma = bar_get(m, NVME_REG_ASQ) | (uint64_t)bar_get(m, NVME_REG_ASQ + 4) << 32,
		                          .size = (bar_get(m, NVME_REG_AQA) & 0xfff) + 1};
		m->cq[0] =
		    (struct queue){.dma = bar_get(m, NVME_REG_ACQ) | (uint64_t)bar_get(m, NVME_REG_ACQ + 4) << 32,
		                          .size = (bar_get(m, NVME_REG_AQA) >> 16 & 0xfff) + 1,
		                          .phase = 1};
		bar_set(m, NVME_REG_CSTS, NVME_CSTS_RDY);
		post_after_reset(m);
	} else if (!(cc & NVME_CC_EN) && m->enabled) {
		count_load(m);
		clear(m);
		bar_set(m, NVME_REG_CSTS, 0);
	} else if (m->enabled && (cc & NVME_CC_SHN_MASK) && !m->stalled) {
		bar_set(m, NVME_REG_CSTS, csts | NVME_SHST_DONE << 2);
	}
}

static int step(struct mock *m)
{
	int moved = 0;

	if (m->gone)
		return 0;
	registers(m);
	if (!m->enabled || m->stalled)
		return 0;
	release_due(m);
	for (uint32_t q = 0; q < QUEUES && !m->stalled; q++)
		moved |= serve(m, q);
	return moved;
}

static void *run(void *arg)
{
	const struct timespec nap = {.tv_nsec = 20000};
	struct mock *m = arg;

	while (!__atomic_load_n(&m->stop, __ATOMIC_ACQUIRE)) {
		int moved;

		pthread_mutex_lock(&m->lock);
		moved = step(m);
		pthread_mutex_unlock(&m->lock);
		if (!moved)
			nanosleep(&nap, NULL); /* a controller looks at its doorbells now and then */
	}
	return NULL;
}

/* ---- the transport ---- */

static uint64_t map_run(void *va, uint64_t bytes)
{
	static uint64_t next = IOVA_STEP;
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t iova;

	pthread_mutex_lock(&lock);
	iova = next;
	next += (bytes + IOVA_STEP - 1) / IOVA_STEP * IOVA_STEP;
	pthread_mutex_unlock(&lock);
	for (uint32_t k = 0; k < MOCKS; k++) { /* one address space for all */
		struct mock *m = alive[k];

		if (!m)
			continue;
		pthread_mutex_lock(&m->lock);
		if (m->n_regions == REGIONS)
			abort();
		m->region[m->n_regions++] = (struct region){.iova = iova, .bytes = bytes, .va = va};
		pthread_mutex_unlock(&m->lock);
	}
	return iova;
}

static int unmap_run(const void *va, uint64_t bytes, uint64_t dma)
{
	int rc = -ENOENT;

	for (uint32_t k = 0; k < MOCKS; k++) {
		struct mock *m = alive[k];

		if (!m)
			continue;
		pthread_mutex_lock(&m->lock);
		for (uint32_t i = 0; i < m->n_regions; i++)
			if (m->region[i].iova == dma && m->region[i].bytes == bytes && m->region[i].va == va) {
				m->region[i] = m->region[--m->n_regions];
				rc = 0;
				break;
			}
		pthread_mutex_unlock(&m->lock);
	}
	return rc;
}

static int mock_memory_get(void *self, uint64_t bytes, void **va, uint64_t *dma)
{
	(void)self;
	/* Not from the heap: what a driver has to keep for ever is no leak. */
	*va = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*va == MAP_FAILED)
		return -ENOMEM;
	*dma = map_run(*va, bytes);
	return 0;
}

static void mock_memory_put(void *self, void *va, uint64_t bytes, uint64_t dma)
{
	(void)self;
	unmap_run(va, bytes, dma);
	munmap(va, bytes);
}

static int mock_map(void *self, void *va, uint64_t bytes, struct nvme_run **runs, uint32_t *n)
{
	const struct mock *m = self;
	uint64_t each = m->o.run_bytes ? m->o.run_bytes : bytes;
	struct nvme_run *r = calloc((bytes + each - 1) / each, sizeof(*r));

	if (!r)
		return -ENOMEM;
	*n = 0;
	for (uint64_t at = 0; at < bytes; at += each) {
		r[*n].bytes = bytes - at < each ? bytes - at : each;
		r[*n].dma = map_run((uint8_t *)va + at, r[*n].bytes);
		(*n)++;
	}
	*runs = r;
	return 0;
}

static int mock_unmap(void *self, void *va, uint64_t bytes, const struct nvme_run *runs, uint32_t n)
{
	uint64_t at = 0;
	int rc = 0;

	(void)self;
	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = unmap_run((uint8_t *)va + at, runs[i].bytes, runs[i].dma);
		at += runs[i].bytes;
	}
	return !rc && at != bytes ? -EINVAL : rc;
}

static int mock_master(void *self, int on)
{
	struct mock *m = self;
	int rc;

	pthread_mutex_lock(&m->lock);
	m->master = on;
	rc = m->gone ? -ENODEV : 0;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

static int mock_reset(void *self)
{
	struct mock *m = self;

	if (m->o.no_reset)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&m->lock);
	if (!m->gone) {
		clear(m);
		bar_set(m, NVME_REG_CC, 0);
		bar_set(m, NVME_REG_CSTS, 0);
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int mock_interrupts(void *self, const int *eventfds, uint32_t n)
{
	struct mock *m = self;

	pthread_mutex_lock(&m->lock);
	m->n_eventfds = n;
	for (uint32_t i = 0; i < n; i++)
		m->eventfd[i] = eventfds[i];
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static void mock_close(void *self) { mock_reset(self); }

static const struct nvme_transport_ops mock_ops = {.name = "mock",
                                                   .memory_get = mock_memory_get,
                                                   .memory_put = mock_memory_put,
                                                   .dma_map = mock_map,
                                                   .dma_unmap = mock_unmap,
                                                   .bus_master = mock_master,
                                                   .reset = mock_reset,
                                                   .interrupts = mock_interrupts,
                                                   .close = mock_close};

int mock_claim(void *arg, const char *function, struct nvme_transport *out)
{
	uint32_t n = 0;

	(void)arg;
	while (n < MOCKS && (!alive[n] || strcmp(function, mock_name(n))))
		n++;
	if (n == MOCKS)
		return -ENODEV;
	*out = (struct nvme_transport){.ops = &mock_ops,
	                               .self = alive[n],
	                               .bar0 = (uint8_t *)alive[n]->bar,
	                               .bar0_bytes = BAR_BYTES,
	                               .n_vectors = alive[n]->o.vectors,
	                               .space = alive};
	return 0;
}

/* ---- life ---- */

void mock_begin(void)
{
	memset(alive, 0, sizeof(alive));
	cases++;
	for (uint32_t n = 0; n < MOCKS; n++)
		for (uint32_t nsid = 0; nsid < NAMESPACES; nsid++)
			snprintf(paths[n][nsid], sizeof(paths[n][nsid]),
			         nsid ? "nvme:%04x:%02x:%02x.0/%u" : "nvme:%04x:%02x:%02x.0", cases >> 8 & 0xffff,
			         cases & 0xff, n, nsid);
}

const char *mock_path(uint32_t n, uint32_t nsid) { return paths[n % MOCKS][nsid % NAMESPACES]; }

const char *mock_name(uint32_t n) { return mock_path(n, 0) + strlen("nvme:"); }

struct mock *mock_new(const struct mock_opts *o)
{
	struct mock *m = calloc(1, sizeof(*m));
	uint64_t cap;
	uint32_t k = 0;

	if (!m)
		return NULL;
	m->o = *o;
	m->o.n_ns = o->n_ns ? o->n_ns : 1;
	m->o.lba_bytes = o->lba_bytes ? o->lba_bytes : 512;
	m->o.ns_bytes = o->ns_bytes ? o->ns_bytes : 64u << 20;
	m->o.queues = o->queues ? o->queues : 16;
	m->o.mqes = o->mqes ? o->mqes : 1024;
	m->o.serial = o->serial ? o->serial : "MOCK0001";
	m->medium = calloc(m->o.n_ns, m->o.ns_bytes);
	m->durable = o->durable ? calloc(m->o.n_ns, m->o.ns_bytes) : NULL;
	m->bar = aligned_alloc(4096, BAR_BYTES);
	memset(m->bar, 0, BAR_BYTES);
	cap = (m->o.mqes - 1) | 1u << 16 | (uint64_t)(o->to_500ms ? o->to_500ms : 20) << 24 |
	      (uint64_t)m->o.dstrd << 32 | 1ull << 37;
	m->bar[0] = (uint32_t)cap;
	m->bar[1] = (uint32_t)(cap >> 32);
	m->bar[NVME_REG_VS / 4] = 0x10400;
	pthread_mutex_init(&m->lock, NULL);
	while (k < MOCKS && alive[k])
		k++;
	if (k == MOCKS || !cases)
		abort();
	alive[k] = m;
	if (pthread_create(&m->thread, NULL, run, m))
		abort();
	return m;
}

void mock_free(struct mock *m)
{
	__atomic_store_n(&m->stop, 1, __ATOMIC_RELEASE);
	pthread_join(m->thread, NULL);
	for (uint32_t k = 0; k < MOCKS; k++)
		if (alive[k] == m)
			alive[k] = NULL;
	pthread_mutex_destroy(&m->lock);
	free(m->medium);
	free(m->durable);
	free(m->bar);
	free(m);
}

void mock_script(struct mock *m, enum mock_deed deed, uint32_t arg, int io, int opcode, uint32_t skip, uint32_t count)
{
	pthread_mutex_lock(&m->lock);
	if (m->n_scripts == SCRIPTS)
		abort();
	m->script[m->n_scripts++] =
	    (struct script){.deed = deed, .arg = arg, .io = io, .opcode = opcode, .skip = skip, .count = count};
	pthread_mutex_unlock(&m->lock);
}

void mock_calm(struct mock *m)
{
	pthread_mutex_lock(&m->lock);
	m->n_scripts = 0;
	pthread_mutex_unlock(&m->lock);
}

void mock_settle(struct mock *m)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	uint64_t end_ns = port_now_ns() + 20000000000ull;
	int late = 1;

	while (late && port_now_ns() < end_ns) {
		nanosleep(&nap, NULL); /* time itself is what is waited for */
		pthread_mutex_lock(&m->lock);
		late = 0;
		for (uint32_t k = 0; k < HELD; k++)
			late |= m->held[k].used && !m->held[k].after_reset;
		pthread_mutex_unlock(&m->lock);
	}
}

uint32_t mock_pending(struct mock *m)
{
	uint32_t n = 0;

	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < m->n_scripts; i++)
		n += m->script[i].count;
	pthread_mutex_unlock(&m->lock);
	return n;
}

struct mock_counts mock_count(struct mock *m)
{
	struct mock_counts n;

	pthread_mutex_lock(&m->lock);
	n = m->n;
	pthread_mutex_unlock(&m->lock);
	return n;
}

uint64_t mock_mapped_bytes(struct mock *m)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < m->n_regions; i++)
		bytes += m->region[i].bytes;
	pthread_mutex_unlock(&m->lock);
	return bytes;
}

void mock_on_deallocation(struct mock *m, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&m->lock);
	m->on_deallocation = fn;
	m->on_deallocation_arg = arg;
	pthread_mutex_unlock(&m->lock);
}

const uint8_t *mock_power_cut(const struct mock *m) { return m->durable; }

uint8_t *mock_medium(struct mock *m, uint32_t nsid) { return m->medium + (nsid - 1) * m->o.ns_bytes; }
