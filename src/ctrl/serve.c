/*
 * serve.c - the service thread: doorbells in, completion entries out.
 *
 * A turn takes what is new on all queues, gives it to the backend, and posts what the backend has finished. When a
 * turn found nothing, the thread sleeps in the backend's wait if I/O is in flight; else it spins for a bounded time
 * and then parks. A command is only fetched when its completion has a place in the CQ, so the CQ can't overrun: what
 * a submitter does not reap stays in its own submission queue.
 */
#include "ctrl/soft_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define NAP_MIN_NS 50000u
#define NAP_MAX_NS 1000000u
#define WAIT_MAX_NS 1000000000u

static uint32_t distance(uint32_t from, uint32_t to, uint32_t depth)
{
	return to >= from ? to - from : to + depth - from;
}

/* ---- completion ---- */

static void post(struct soft_qp *q, uint32_t cid, uint32_t status, uint64_t result)
{
	struct nvme_cqe *e = &q->cq[q->cq_tail];

	e->dw0 = (uint32_t)result;
	e->dw1 = (uint32_t)(result >> 32);
	e->sq_head = (uint16_t)q->sq_head;
	e->sq_id = (uint16_t)q->id;
	/* Orders the entry and the data before the phase bit (pairs with the acquire in dev_qp_poll). */
	port_store_release32(&e->cid_status, cid | q->phase << 16 | status << 17);
	if (++q->cq_tail == q->depth) {
		q->cq_tail = 0;
		q->phase ^= 1u;
	}
	q->posted++;
}

/*
 * After a batch. The entries' release stores must be seen before the load of asleep in port_unpark; a sequentially
 * consistent store between the two does that once a batch (pairs with port_park_announce).
 */
static void wake(struct soft_qp *q)
{
	if (!q->posted)
		return;
	if (q->cq_parker) {
		__atomic_store_n(&q->order, q->posted, __ATOMIC_SEQ_CST);
		port_unpark(q->cq_parker);
	}
	q->posted = 0;
}

static void count_done(struct ctrl *c, const struct ctrl_io *io, uint32_t status)
{
	struct ctrl_counters *n = &c->counters;

	ctrl_count(&n->commands, 1);
	if (status) {
		ctrl_count(&n->errors, 1);
	} else if (io->opcode == NVME_CMD_READ) {
		ctrl_count(&n->reads, 1);
		ctrl_count(&n->bytes_read, io->bytes);
	} else if (io->opcode == NVME_CMD_WRITE) {
		ctrl_count(&n->writes, 1);
		ctrl_count(&n->bytes_written, io->bytes);
	} else {
		ctrl_count(&n->flushes, 1);
	}
}

static void finish(struct ctrl *c, struct ctrl_io *io)
{
	struct soft_qp *q = io->qp;

	count_done(c, io, io->status);
	if (q->state == SOFT_QP_ACTIVE)
		post(q, io->cid, io->status, io->result);
	q->inflight--;
	c->inflight--;
	io->busy = 0;
	io->next = c->free;
	c->free = io;
	c->n_free++;
	if (q->state == SOFT_QP_DELETING && !q->inflight) {
		q->state = SOFT_QP_FREE;
		port_store_wake32(&q->gone, 1, &c->mail.caller);
	}
}

static uint32_t reap(struct ctrl *c)
{
	struct ctrl_io *done[SOFT_BATCH];
	uint32_t n = c->ops->reap(c->self, done, SOFT_BATCH);

	for (uint32_t i = 0; i < n; i++)
		finish(c, done[i]);
	for (uint32_t i = 0; n && i < c->n_active; i++)
		wake(c->active[i]);
	return n;
}

/* ---- submission ---- */

/* How many commands may be fetched so that every completion has a place; reads the CQ doorbell only when it must. */
static uint32_t room(struct soft_qp *q, uint32_t want)
{
	for (int again = 0;; again = 1) {
		uint32_t used = distance(q->cq_head, q->cq_tail, q->depth) + q->inflight;
		uint32_t n = used < q->depth - 1 ? q->depth - 1 - used : 0, head;

		if (n >= want || again)
			return n < want ? n : want;
		/* Orders the submitter's reads of the entries before our next writes (pairs with dev_qp_release). */
		head = port_load_acquire32(q->cq_doorbell);
		/* A head that is no place between the last one and the tail is nonsense: not believed. */
		if (head < q->depth &&
		    distance(q->cq_head, head, q->depth) <= distance(q->cq_head, q->cq_tail, q->depth))
			q->cq_head = head;
	}
}

static void take(struct ctrl *c, struct soft_qp *q, struct ctrl_io *io, uint16_t cid)
{
	c->free = io->next;
	c->n_free--;
	io->qp = q;
	io->cid = cid;
	io->busy = 1;
	io->result = 0;
	q->inflight++;
	c->inflight++;
	c->ops->submit(c->self, io);
}

static uint32_t fetch(struct ctrl *c, struct soft_qp *q)
{
	/* Orders the entries after the doorbell (pairs with dev_qp_ring). */
	uint32_t tail = port_load_acquire32(q->sq_doorbell), n, n_done = 0, done[SOFT_BATCH];
	int instant = c->ops->instant;

	if (tail == q->sq_head || tail >= q->depth)
		return 0;
	n = distance(q->sq_head, tail, q->depth);
	if (n > SOFT_BATCH)
		n = SOFT_BATCH;
	if (!instant && n > c->n_free)
		n = c->n_free;
	q->held = n && !room(q, 1);
	n = room(q, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct nvme_sqe *e = &q->sq[q->sq_head];
		struct ctrl_io *io = c->free;
		uint32_t status = ctrl_decode(&c->decoder, e, io), cid = e->cid;

		__builtin_prefetch(&q->sq[q->sq_head + 8 < q->depth ? q->sq_head + 8 : 0]);
		q->sq_head = q->sq_head + 1 == q->depth ? 0 : q->sq_head + 1;
		if (status || instant) {
			count_done(c, io, status);
			done[n_done++] = cid | status << 17;
		} else {
			take(c, q, io, (uint16_t)cid);
		}
	}
	/* In one go: the line of four entries moves between the cores once, not four times. */
	for (uint32_t i = 0; i < n_done; i++)
		post(q, done[i] & 0xffffu, done[i] >> 17, 0);
	wake(q);
	return n;
}

/* ---- requests ---- */

static int region_busy(const struct ctrl *c, uint64_t va, uint64_t bytes)
{
	for (uint32_t i = 0; i < c->n_ios; i++)
		for (uint32_t k = 0; c->ios[i].busy && k < c->ios[i].n_iov; k++) {
			uint64_t at = (uint64_t)(uintptr_t)c->ios[i].iov[k].iov_base;

			if (at < va + bytes && at + c->ios[i].iov[k].iov_len > va)
				return 1;
		}
	return 0;
}

static int do_map(struct ctrl *c, struct soft_mail *m)
{
	int rc = ctrl_regions_add(c->regions, m->va, m->bytes, -1);
	int32_t buf = -1;

	if (rc)
		return rc;
	if (c->ops->mem_map) {
		c->ops->mem_map(c->self, (void *)(uintptr_t)m->va, m->bytes, &buf);
		ctrl_regions_remove(c->regions, m->va, m->bytes, &m->buf);
		ctrl_regions_add(c->regions, m->va, m->bytes, buf);
	}
	m->buf = buf;
	return 0;
}

static int do_unmap(struct ctrl *c, struct soft_mail *m)
{
	int rc;

	if (region_busy(c, m->va, m->bytes))
		return -EBUSY;
	rc = ctrl_regions_remove(c->regions, m->va, m->bytes, &m->buf);
	if (!rc && c->ops->mem_unmap)
		c->ops->mem_unmap(c->self, (void *)(uintptr_t)m->va, m->bytes, m->buf);
	return rc;
}

static int do_delete(struct ctrl *c, struct soft_qp *q)
{
	for (uint32_t i = 0; i < c->n_active; i++)
		if (c->active[i] == q)
			c->active[i] = c->active[--c->n_active];
	q->state = SOFT_QP_DELETING;
	if (!q->inflight) {
		q->state = SOFT_QP_FREE;
		port_store_release32(&q->gone, 1);
	}
	for (uint32_t i = 0; q->inflight && c->ops->cancel && i < c->n_ios; i++)
		if (c->ios[i].busy && c->ios[i].qp == q)
			c->ops->cancel(c->self, &c->ios[i]);
	return 0;
}

static void answer(struct ctrl *c)
{
	struct soft_mail *m = &c->mail;

	err_clear();
	m->result = 0;
	switch (m->request) {
	case SOFT_MAP:
		m->result = do_map(c, m);
		break;
	case SOFT_UNMAP:
		m->result = do_unmap(c, m);
		break;
	case SOFT_CREATE:
		m->qp->state = SOFT_QP_ACTIVE;
		c->active[c->n_active++] = m->qp;
		break;
	case SOFT_DELETE:
		m->result = do_delete(c, m->qp);
		break;
	case SOFT_EXIT:
		c->exit = 1;
		break;
	}
	snprintf(m->text, sizeof(m->text), "%s", err_text());
	port_store_wake32(&m->state, SOFT_MAIL_ANSWERED, &m->caller);
}

/* ---- the loop ---- */

/* Something to do that no backend will report. */
static int pending(struct ctrl *c)
{
	if (port_load_acquire32(&c->mail.state) == SOFT_MAIL_POSTED)
		return 1;
	if (!c->n_free)
		return 0;
	for (uint32_t i = 0; i < c->n_active; i++) {
		struct soft_qp *q = c->active[i];
		uint32_t tail = port_load_acquire32(q->sq_doorbell);

		if (tail != q->sq_head && tail < q->depth && (!q->held || room(q, 1)))
			return 1;
	}
	return 0;
}

static int any_held(const struct ctrl *c)
{
	for (uint32_t i = 0; i < c->n_active; i++)
		if (c->active[i]->held)
			return 1;
	return 0;
}

/* Returns 1 while it is too early to sleep. */
static int spin(struct ctrl *c)
{
	uint64_t now_ns = port_now_ns();

	if (!c->idle_since_ns)
		c->idle_since_ns = now_ns;
	if (now_ns - c->idle_since_ns >= c->spin_ns)
		return 0;
	for (int i = 0; i < 64 && !pending(c); i++)
		port_pause();
	return 1;
}

static void rest(struct ctrl *c)
{
	uint64_t deadline_ns = 0; /* idle: no timer; a doorbell or a request wakes */

	if (__atomic_load_n(&c->awake, __ATOMIC_SEQ_CST)) { /* a GPU rings no bell that wakes */
		if (c->inflight && c->ops->wait)
			c->ops->wait(c->self, &c->parker, 1); /* starts what is queued */
		else
			port_pause();
		return;
	}
	if (!c->inflight && spin(c))
		return;
	if (any_held(c)) {
		/* The CQ doorbell wakes nobody, so look again after a while. */
		c->nap_ns = c->nap_ns < NAP_MIN_NS ? NAP_MIN_NS : c->nap_ns < NAP_MAX_NS ? 2 * c->nap_ns : NAP_MAX_NS;
		deadline_ns = port_now_ns() + c->nap_ns;
	} else if (c->inflight) {
		deadline_ns = port_now_ns() + WAIT_MAX_NS;
	}
	port_park_announce(&c->parker);
	if (!pending(c) && !__atomic_load_n(&c->awake, __ATOMIC_SEQ_CST)) {
		if (!c->inflight)
			ctrl_count(&c->counters.parks, 1);
		if (c->ops->wait)
			c->ops->wait(c->self, &c->parker, deadline_ns);
		else
			port_park_wait(&c->parker, deadline_ns);
	}
	port_park_cancel(&c->parker);
}

static void serve_loop(struct ctrl *c)
{
	while (!c->exit) {
		uint32_t work = 0;

		if (port_load_acquire32(&c->mail.state) == SOFT_MAIL_POSTED) {
			answer(c);
			work = 1;
		}
		for (uint32_t i = 0; i < c->n_active; i++)
			work += fetch(c, c->active[i]);
		/* Also with nothing in flight: what woke the backend's wait must be taken, or it wakes it again. */
		if (!c->ops->instant)
			work += reap(c);
		if (work) {
			c->idle_since_ns = 0;
			c->nap_ns = 0;
		} else {
			rest(c);
		}
	}
}

void *soft_serve(void *arg)
{
	struct ctrl *c = arg;

	prctl(PR_SET_NAME, "tutti-ctrl");
	prctl(PR_SET_TIMERSLACK, 1000ul);
	c->mail.result = c->ops->open(c->ops_arg, &c->opts, &c->counters, &c->info, &c->self);
	snprintf(c->mail.text, sizeof(c->mail.text), "%s", err_text());
	c->exit = c->mail.result != 0;
	if (!c->exit)
		for (uint32_t i = 0; i < c->info.n_ns; i++) {
			c->decoder.lba_shift[i] = (uint8_t)__builtin_ctz(c->info.ns[i].lba_bytes);
			c->decoder.read_only[i] = c->opts.targets[i].read_only != 0;
		}
	port_store_wake32(&c->mail.state, SOFT_MAIL_ANSWERED, &c->mail.caller);
	serve_loop(c);
	if (c->self)
		c->ops->close(c->self);
	return NULL;
}
