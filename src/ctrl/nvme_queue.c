/*
 * nvme_queue.c - I/O queue pairs of a function, and the thread that turns its interrupts into wakes.
 *
 * A queue pair's memory is freed only when the controller has let go of it: it answered Delete SQ and Delete CQ, or it
 * was fenced since. Else the memory stays for ever, and is counted.
 */
#include "ctrl/nvme_int.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "base/thread.h"

static uint64_t pages(uint64_t bytes) { return (bytes + DEV_PAGE_BYTES - 1) / DEV_PAGE_BYTES * DEV_PAGE_BYTES; }

/* ---- memory of a queue pair ---- */

static int queue_memory(struct nvme_fn *f, struct nvme_queue *q, uint32_t depth)
{
	uint64_t bytes = pages(depth * sizeof(struct nvme_sqe)) + pages(depth * sizeof(struct nvme_cqe));
	void *p;
	int rc = f->t.ops->memory_get(f->t.self, bytes, &p, &q->dma);

	if (rc)
		return err_prefix(rc, "%s: a queue pair of %u entries", f->name, depth);
	q->memory = p;
	q->memory_bytes = bytes;
	q->depth = depth;
	q->generation = f->generation;
	return 0;
}

static void queue_parker(struct nvme_fn *f, struct nvme_queue *q, struct port_parker *parker)
{
	pthread_mutex_lock(&f->irq_lock);
	q->parker = parker;
	pthread_mutex_unlock(&f->irq_lock);
}

/* The thread of interrupts looks at every queue's parker. */
static void queue_clear(struct nvme_fn *f, struct nvme_queue *q)
{
	pthread_mutex_lock(&f->irq_lock);
	*q = (struct nvme_queue){0};
	pthread_mutex_unlock(&f->irq_lock);
}

static void queue_free(struct nvme_fn *f, struct nvme_queue *q)
{
	queue_parker(f, q, NULL);
	f->t.ops->memory_put(f->t.self, q->memory, q->memory_bytes, q->dma);
	queue_clear(f, q);
}

/* ---- create and delete ---- */

/* Its status, or 0 also where the controller knows no such queue. */
static int delete_one(struct nvme_fn *f, uint8_t opcode, uint32_t qid, uint64_t deadline_ns)
{
	struct nvme_sqe e = {.opcode = opcode, .cdw10 = qid};
	int rc = nvme_admin_run(f, &e, deadline_ns, NULL);

	return rc == NVME_SC_INVALID_QUEUE ? 0 : rc;
}

static int create_both(struct nvme_fn *f, struct nvme_queue *q, uint32_t qid, int interrupt)
{
	uint32_t size_id = (q->depth - 1) << 16 | qid;
	uint64_t deadline_ns = port_now_ns() + f->admin_ns;
	struct nvme_sqe e = {.opcode = NVME_ADMIN_CREATE_CQ, .cdw10 = size_id, .cdw11 = NVME_QUEUE_CONTIGUOUS};
	int rc;

	if (interrupt)
		e.cdw11 |= NVME_CQ_INTERRUPT | (qid % f->n_irqs) << 16;
	e.dptr.prp.prp1 = q->dma + pages(q->depth * sizeof(struct nvme_sqe));
	rc = nvme_admin_run(f, &e, deadline_ns, NULL);
	if (rc)
		return rc;
	e = (struct nvme_sqe){
	    .opcode = NVME_ADMIN_CREATE_SQ, .cdw10 = size_id, .cdw11 = qid << 16 | NVME_QUEUE_CONTIGUOUS};
	e.dptr.prp.prp1 = q->dma;
	rc = nvme_admin_run(f, &e, deadline_ns, NULL);
	if (rc > 0)
		delete_one(f, NVME_ADMIN_DELETE_CQ, qid, deadline_ns);
	return rc;
}

/* The controller does not answer, so it may still use this memory, unless it can be fenced. */
static void queue_abandon(struct nvme_fn *f, struct nvme_queue *q)
{
	if (!nvme_fn_fence(f)) {
		queue_free(f, q);
		return;
	}
	queue_parker(f, q, NULL);
	f->lost_bytes += q->memory_bytes;
	queue_clear(f, q);
}

static int create(struct nvme_fn *f, uint32_t depth, struct port_parker *parker, struct dev_qp *out)
{
	struct nvme_queue *q;
	uint32_t qid = 1;
	int rc = f->up && f->admin_lost ? nvme_fn_fence(f) : 0;

	if (!rc && !f->up)
		rc = nvme_fn_up(f);
	if (rc)
		return rc;
	while (qid <= f->qps_max && f->queue[qid].memory)
		qid++;
	if (qid > f->qps_max)
		return err_set(-ENOSPC, "%s: all %u queue pairs of the controller are in use; open fewer lanes or SMs",
		               f->name, f->qps_max);
	q = &f->queue[qid];
	rc = queue_memory(f, q, depth);
	if (rc)
		return rc;
	queue_parker(f, q, parker);
	rc = create_both(f, q, qid, parker != NULL);
	if (rc > 0) {
		err_set(rc, "%s: queue pair %u of %u entries was refused: %s", f->name, qid, depth, err_name(rc));
		queue_free(f, q);
	} else if (rc) {
		queue_abandon(f, q);
	}
	if (rc)
		return rc;
	*out = (struct dev_qp){.sq = q->memory,
	                       .sq_doorbell = nvme_doorbell(f, qid, 0),
	                       .cq_doorbell = nvme_doorbell(f, qid, 1),
	                       .depth = depth,
	                       .id = qid,
	                       .phase = 1};
	out->cq = (struct nvme_cqe *)(void *)((uint8_t *)q->memory + pages(depth * sizeof(struct nvme_sqe)));
	return 0;
}

int nvme_qp_create(struct nvme_fn *f, uint32_t depth, struct port_parker *parker, struct dev_qp *out)
{
	int rc;

	if (depth < 2 || depth > f->depth_max)
		return err_set(-EINVAL, "%s: a queue pair of %u entries; 2 to %u are possible", f->name, depth,
		               f->depth_max);
	if (parker && !f->n_irqs)
		return err_set(-EOPNOTSUPP,
		               "%s: the function has no MSI-X interrupts, so nothing can sleep on its queues", f->name);
	pthread_mutex_lock(&f->lock);
	rc = create(f, depth, parker, out);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* By admin command while that works; else by fencing the function, which takes all other queue pairs with it. */
static int delete_or_fence(struct nvme_fn *f, struct nvme_queue *q, uint32_t qid, uint64_t deadline_ns)
{
	uint64_t now = port_now_ns();
	uint64_t half = deadline_ns > now ? now + (deadline_ns - now) / 2 : now;
	int rc = -EIO;

	if (q->generation != f->generation)
		return 0;
	if (f->up && !f->admin_lost) {
		rc = delete_one(f, NVME_ADMIN_DELETE_SQ, qid, half);
		if (!rc)
			rc = delete_one(f, NVME_ADMIN_DELETE_CQ, qid, half);
	}
	if (!rc)
		return 0;
	log_warn("%s: queue pair %u could not be deleted (%s); the controller is reset, all its queue pairs with it",
	         f->name, qid, err_name(rc));
	return nvme_fn_fence(f);
}

int nvme_qp_delete(struct nvme_fn *f, struct dev_qp *qp, uint64_t deadline_ns)
{
	struct nvme_queue *q = qp->id && qp->id <= CTRL_QPS_MAX ? &f->queue[qp->id] : NULL;
	int rc;

	pthread_mutex_lock(&f->lock);
	if (!q || !q->memory || q->memory != qp->sq) {
		pthread_mutex_unlock(&f->lock);
		return err_set(-EINVAL, "%s: queue pair %u is not one of this controller", f->name, qp->id);
	}
	rc = delete_or_fence(f, q, qp->id, deadline_ns);
	if (!rc) {
		queue_free(f, q);
		memset(qp, 0, sizeof(*qp));
	}
	pthread_mutex_unlock(&f->lock);
	return rc ? err_set(-ETIMEDOUT,
	                    "%s: the controller neither deletes queue pair %u nor can be reset; memory that it "
	                    "knows must stay",
	                    f->name, qp->id)
	          : 0;
}

int nvme_qp_lost(const struct nvme_fn *f, uint32_t qid)
{
	return __atomic_load_n(&f->generation, __ATOMIC_ACQUIRE) != f->queue[qid].generation;
}

void nvme_queues_delete(struct nvme_fn *f)
{
	for (uint32_t qid = 1; qid <= CTRL_QPS_MAX; qid++) {
		struct nvme_queue *q = &f->queue[qid];

		if (!q->memory)
			continue;
		if (!delete_or_fence(f, q, qid, port_now_ns() + f->admin_ns))
			queue_free(f, q);
		else
			f->lost_bytes += q->memory_bytes;
	}
}

/* ---- interrupts ---- */

static void wake_vector(struct nvme_fn *f, uint32_t vector)
{
	pthread_mutex_lock(&f->irq_lock);
	for (uint32_t qid = 1; qid <= CTRL_QPS_MAX; qid++)
		if (f->queue[qid].parker && qid % f->n_irqs == vector)
			port_unpark(f->queue[qid].parker);
	pthread_mutex_unlock(&f->irq_lock);
}

void nvme_wake_all(struct nvme_fn *f)
{
	pthread_mutex_lock(&f->irq_lock);
	for (uint32_t qid = 1; qid <= CTRL_QPS_MAX; qid++)
		if (f->queue[qid].parker)
			port_unpark(f->queue[qid].parker);
	pthread_mutex_unlock(&f->irq_lock);
}

static void *irq_thread(void *arg)
{
	struct nvme_fn *f = arg;
	struct pollfd p[NVME_VECTORS_MAX];
	uint64_t count;

	for (uint32_t i = 0; i < f->n_irqs; i++)
		p[i] = (struct pollfd){.fd = f->irq_fd[i], .events = POLLIN};
	while (!__atomic_load_n(&f->irq_stop, __ATOMIC_ACQUIRE)) {
		if (poll(p, f->n_irqs, -1) < 0) /* nvme_irq_stop signals the first one */
			continue;
		for (uint32_t i = 0; i < f->n_irqs; i++)
			if ((p[i].revents & POLLIN) && read(f->irq_fd[i], &count, sizeof(count)) == sizeof(count))
				wake_vector(f, i);
	}
	return NULL;
}

static void close_irqs(struct nvme_fn *f)
{
	while (f->n_irqs)
		close(f->irq_fd[--f->n_irqs]);
}

int nvme_irq_start(struct nvme_fn *f)
{
	uint32_t n = f->t.n_vectors < NVME_VECTORS_MAX ? f->t.n_vectors : NVME_VECTORS_MAX;
	int rc;

	for (f->n_irqs = 0; f->n_irqs < n; f->n_irqs++) {
		f->irq_fd[f->n_irqs] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (f->irq_fd[f->n_irqs] < 0) {
			rc = -errno;
			close_irqs(f);
			return err_set(rc, "%s: no descriptors for interrupts: %s; see ulimit -n", f->name,
			               err_name(rc));
		}
	}
	if (!n)
		return 0;
	rc = f->t.ops->interrupts(f->t.self, f->irq_fd, n);
	if (!rc)
		rc = thread_start(&f->irq_thread, irq_thread, f);
	if (rc) {
		close_irqs(f);
		return err_prefix(rc, "%s: interrupts", f->name);
	}
	f->irq_running = 1;
	return 0;
}

void nvme_irq_stop(struct nvme_fn *f)
{
	uint64_t one = 1;

	f->t.ops->interrupts(f->t.self, NULL, 0);
	__atomic_store_n(&f->irq_stop, 1, __ATOMIC_RELEASE);
	if (write(f->irq_fd[0], &one, sizeof(one)) == sizeof(one))
		pthread_join(f->irq_thread, NULL);
	f->irq_running = 0;
	close_irqs(f);
}
