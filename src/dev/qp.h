/*
 * qp.h - an NVMe queue pair, seen from the side that submits. Runs on a GPU thread or a CPU thread.
 *
 * One thread block owns a queue pair for the length of a kernel, so nothing here takes a lock. The owner
 * keeps at most depth - 1 commands in flight, so the submission ring can't overflow; posting does not look
 * for space. Entries become visible to the controller with the doorbell, not with the post.
 */
#ifndef TUTTI_DEV_QP_H
#define TUTTI_DEV_QP_H

#include "port/port.h"
#include "wire/nvme.h"

struct dev_qp {
	struct nvme_sqe *sq;
	struct nvme_cqe *cq;
	uint32_t *sq_doorbell;
	uint32_t *cq_doorbell;
	struct port_parker *sq_parker; /* of the controller's thread; NULL: hardware, or a peer that spins */
	uint32_t depth;
	uint32_t id;
	uint32_t tail; /* next submission entry */
	uint32_t head; /* next completion entry */
	uint32_t phase;
	uint32_t head_rung; /* head that the controller was told last */
};

/* Puts e at the tail. Does not ring, does not check for space. */
PORT_FN void dev_qp_post(struct dev_qp *q, const struct nvme_sqe *e)
{
	q->sq[q->tail] = *e;
	q->tail = q->tail + 1 == q->depth ? 0 : q->tail + 1;
}

/* Makes all posted entries visible. Orders the entries before the doorbell (pairs with the controller's acquire). */
PORT_FN void dev_qp_ring(struct dev_qp *q) { port_store_wake32(q->sq_doorbell, q->tail, q->sq_parker); }

/* 1: *out holds the next completion; 0: none yet. Does not wait and does not ring the CQ doorbell. */
PORT_FN int dev_qp_poll(struct dev_qp *q, struct nvme_cqe *out)
{
	struct nvme_cqe *c = &q->cq[q->head];
	/* Orders the phase bit before the rest of the entry and the data (pairs with the controller's release). */
	uint32_t w = port_load_acquire32(&c->cid_status);

	if (NVME_PHASE(w) != q->phase)
		return 0;
	out->dw0 = c->dw0;
	out->dw1 = c->dw1;
	out->sq_head = c->sq_head;
	out->sq_id = c->sq_id;
	out->cid_status = w;
	if (++q->head == q->depth) {
		q->head = 0;
		q->phase ^= 1u;
	}
	return 1;
}

/* Gives the polled completion entries back. Once per batch of polls, before dev_qp_ring: no CQ is ever full. */
PORT_FN void dev_qp_release(struct dev_qp *q)
{
	if (q->head_rung != q->head) {
		q->head_rung = q->head;
		port_store_release32(q->cq_doorbell, q->head);
	}
}

#endif
