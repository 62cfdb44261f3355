/* soft.c - the callers' side of the software front: set-up, teardown, requests to the service thread. */
#include "ctrl/soft_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/thread.h"

#define ANSWER_NS 10000000000ull       /* a service thread that does not answer for so long is lost */
#define PIN_NS_PER_GIB 8000000000ull   /* registering memory touches all of it */
#define CLOSE_NS 5000000000ull
#define SPIN_US_DEFAULT 50u
#define LINE 128u /* doorbells lie this far apart: two lines, because CPUs fetch pairs of them */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Sleeps until *word is value. */
static int wait_word(struct ctrl *c, uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
	struct port_parker *p = &c->mail.caller;

	while (port_load_acquire32(word) != value) {
		port_park_announce(p);
		if (port_load_acquire32(word) == value)
			port_park_cancel(p);
		else if (port_park_wait(p, deadline_ns) == -ETIMEDOUT && port_load_acquire32(word) != value)
			return -ETIMEDOUT;
	}
	return 0;
}

static int await_answer(struct ctrl *c, uint64_t deadline_ns)
{
	struct soft_mail *m = &c->mail;

	if (wait_word(c, &m->state, SOFT_MAIL_ANSWERED, deadline_ns)) {
		c->broken = 1;
		return err_set(-ETIMEDOUT, "%s controller: its service thread does not answer; a device below it hangs",
		               c->info.model);
	}
	port_store_release32(&m->state, SOFT_MAIL_EMPTY);
	if (m->result)
		err_set(m->result, "%s", m->text);
	return m->result;
}

static int ask(struct ctrl *c, enum soft_request request, uint64_t deadline_ns)
{
	if (c->broken)
		return err_set(-EIO, "%s controller: its service thread stopped answering before; close it",
		               c->info.model);
	c->mail.request = request;
	port_store_wake32(&c->mail.state, SOFT_MAIL_POSTED, &c->parker);
	return await_answer(c, deadline_ns);
}

/* ---- open and close ---- */

static int check_opts(const struct ctrl_opts *o)
{
	if (!o->n_targets || o->n_targets > CTRL_NS_MAX)
		return err_set(-EINVAL, "controller: %u targets; 1 to %u are possible", o->n_targets, CTRL_NS_MAX);
	if (o->depth_max > CTRL_IO_DEPTH_MAX)
		return err_set(-EINVAL, "controller: I/O depth %u; at most %u", o->depth_max, CTRL_IO_DEPTH_MAX);
	if (o->mdts_bytes % 4096 || o->mdts_bytes > CTRL_MDTS_MAX)
		return err_set(-EINVAL, "controller: largest transfer %u; a multiple of 4096, at most %u",
		               o->mdts_bytes, CTRL_MDTS_MAX);
	if (o->lba_bytes && o->lba_bytes != 512 && o->lba_bytes != 4096)
		return err_set(-EINVAL, "controller: LBA size %u; 512 or 4096", o->lba_bytes);
	return 0;
}

static void release(struct ctrl *c)
{
	free(c->ios);
	free(c->iovs);
	free(c->regions);
	free(c);
}

static struct ctrl *allocate(const struct ctrl_opts *opts, const struct ctrl_io_ops *ops)
{
	struct ctrl *c = aligned_alloc(LINE, round_up(sizeof(*c), LINE));
	uint32_t n = opts->depth_max ? opts->depth_max : CTRL_IO_DEPTH_DEFAULT;

	if (!c)
		return NULL;
	memset(c, 0, sizeof(*c));
	if (ops->instant)
		n = 1; /* only scratch */
	c->info.mdts_bytes = opts->mdts_bytes ? opts->mdts_bytes : CTRL_MDTS_DEFAULT;
	c->info.sgl_max = opts->sgl ? CTRL_SGL_MAX : 0;
	c->info.depth_max = CTRL_QUEUE_DEPTH_MAX;
	c->info.qps_max = CTRL_QPS_MAX;
	snprintf(c->info.model, sizeof(c->info.model), "%s", ops->model);
	c->decoder.iov_max = c->info.mdts_bytes / 4096 + 1;
	if (c->decoder.iov_max < c->info.sgl_max)
		c->decoder.iov_max = c->info.sgl_max;
	c->regions = calloc(1, sizeof(*c->regions));
	c->ios = calloc(n, sizeof(*c->ios));
	c->iovs = calloc((size_t)n * c->decoder.iov_max, sizeof(*c->iovs));
	if (!c->regions || !c->ios || !c->iovs) {
		release(c);
		return NULL;
	}
	c->n_ios = c->n_free = n;
	for (uint32_t i = n; i-- > 0; c->free = &c->ios[i]) {
		c->ios[i].iov = c->iovs + (size_t)i * c->decoder.iov_max;
		c->ios[i].next = c->free;
	}
	c->decoder.regions = c->regions;
	c->decoder.info = &c->info;
	c->ops = ops;
	c->opts = *opts;
	c->opts.depth_max = n;
	c->spin_ns = 1000ull * (opts->spin_us ? opts->spin_us : SPIN_US_DEFAULT);
	return c;
}

int ctrl_soft_open(const struct ctrl_opts *opts, const struct ctrl_io_ops *ops, void *arg, struct ctrl **out)
{
	struct ctrl *c;
	int rc = check_opts(opts);

	*out = NULL;
	if (rc)
		return rc;
	c = allocate(opts, ops);
	if (!c)
		return err_set(-ENOMEM, "%s controller: no memory for %u commands; lower the I/O depth", ops->model,
		               opts->depth_max);
	c->ops_arg = arg;
	rc = thread_start(&c->thread, soft_serve, c);
	if (rc) {
		release(c);
		return err_set(rc, "%s controller: no service thread: %s; check the limit of processes (ulimit -u)",
		               ops->model, err_name(rc));
	}
	/* Opening may be slow (a device that wakes up), but it does end: the thread owns c until then. */
	wait_word(c, &c->mail.state, SOFT_MAIL_ANSWERED, 0);
	rc = await_answer(c, 0);
	c->opts.targets = NULL;
	if (rc) {
		pthread_join(c->thread, NULL);
		release(c);
		return rc;
	}
	*out = c;
	return 0;
}

void ctrl_soft_close(struct ctrl *c)
{
	uint64_t deadline_ns = port_now_ns() + CLOSE_NS;
	int lost = 0;

	if (!c)
		return;
	for (uint32_t i = 0; i < CTRL_QPS_MAX; i++) {
		struct dev_qp q = {.id = i, .depth = c->qps[i].depth, .sq = c->qps[i].sq};

		if (c->qps[i].memory && ctrl_soft_qp_delete(c, &q, deadline_ns))
			lost = 1;
	}
	if (!lost && !ask(c, SOFT_EXIT, port_now_ns() + ANSWER_NS)) {
		pthread_join(c->thread, NULL);
		release(c);
		return;
	}
	/* Something can still write to memory: keep all of it, and the thread that would notice, for ever. */
	log_warn("%s controller: I/O is still in flight %llu s after close; its memory is kept until the process ends",
	         c->info.model, CLOSE_NS / 1000000000u);
	pthread_detach(c->thread);
}

int ctrl_soft_identify(struct ctrl *c, struct ctrl_info *out)
{
	*out = c->info;
	out->n_units = 1;
	for (uint32_t i = 0; i < out->n_ns; i++)
		out->ns[i].nsid = i + 1;
	return 0;
}

int ctrl_counters(struct ctrl *c, struct ctrl_counters *out)
{
	const uint64_t *from = (const uint64_t *)&c->counters;
	uint64_t *to = (uint64_t *)out;

	for (size_t i = 0; i < sizeof(*out) / sizeof(*to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	return 0;
}

/* ---- queue pairs ---- */

/* One allocation: SQ, CQ, then the two doorbells, each on lines of its own. */
static int queue_memory(struct soft_qp *q, uint32_t depth)
{
	uint64_t sq_bytes = round_up(depth * sizeof(struct nvme_sqe), 4096);
	uint64_t cq_bytes = round_up(depth * sizeof(struct nvme_cqe), 4096);
	char *p;

	q->memory_bytes = (size_t)(sq_bytes + cq_bytes + 4096);
	p = mmap(NULL, q->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		return err_set(-ENOMEM, "queue pair: no memory for %u entries", depth);
	q->memory = p;
	q->sq = (struct nvme_sqe *)p;
	q->cq = (struct nvme_cqe *)(p + sq_bytes);
	q->sq_doorbell = (uint32_t *)(p + sq_bytes + cq_bytes);
	q->cq_doorbell = (uint32_t *)(p + sq_bytes + cq_bytes + LINE);
	return 0;
}

static void queue_free(struct soft_qp *q)
{
	munmap(q->memory, q->memory_bytes);
	memset(q, 0, sizeof(*q));
}

int ctrl_soft_qp_create(struct ctrl *c, uint32_t depth, struct port_parker *cq_parker, struct dev_qp *out)
{
	struct soft_qp *q = NULL;
	uint32_t id;
	int rc;

	if (depth < 2 || depth > c->info.depth_max)
		return err_set(-EINVAL, "queue pair: depth %u; 2 to %u are possible", depth, c->info.depth_max);
	for (id = 0; id < CTRL_QPS_MAX; id++)
		if (!c->qps[id].memory) {
			q = &c->qps[id];
			break;
		}
	if (!q)
		return err_set(-ENOSPC, "queue pair: all %u of the %s controller are in use", CTRL_QPS_MAX,
		               c->info.model);
	rc = queue_memory(q, depth);
	if (rc)
		return rc;
	q->depth = depth;
	q->id = id;
	q->phase = 1;
	q->cq_parker = cq_parker;
	c->mail.qp = q;
	rc = ask(c, SOFT_CREATE, port_now_ns() + ANSWER_NS);
	if (rc) /* not answered: the thread may still take it, so its memory stays */
		return rc;
	*out = (struct dev_qp){.sq = q->sq,
	                       .cq = q->cq,
	                       .sq_doorbell = q->sq_doorbell,
	                       .cq_doorbell = q->cq_doorbell,
	                       .sq_parker = &c->parker,
	                       .depth = depth,
	                       .id = id,
	                       .phase = 1};
	return 0;
}

int ctrl_soft_qp_delete(struct ctrl *c, struct dev_qp *qp, uint64_t deadline_ns)
{
	struct soft_qp *q = qp->id < CTRL_QPS_MAX ? &c->qps[qp->id] : NULL;
	int rc;

	if (!q || !q->memory || q->sq != qp->sq)
		return err_set(-EINVAL, "queue pair %u: not one of this %s controller", qp->id, c->info.model);
	c->mail.qp = q;
	/* A second try after a timeout finds the first request's state. */
	if (!q->deleting) {
		rc = ask(c, SOFT_DELETE, deadline_ns);
		if (rc)
			return -ETIMEDOUT; /* not answered, now or before: it might still touch everything */
		q->deleting = 1;
	}
	if (wait_word(c, &q->gone, 1, deadline_ns))
		return err_set(-ETIMEDOUT,
		               "queue pair %u of the %s controller: commands are still in flight at the deadline; "
		               "their memory must stay",
		               qp->id, c->info.model);
	queue_free(q);
	memset(qp, 0, sizeof(*qp));
	return 0;
}

void ctrl_soft_awake(struct ctrl *c, int by)
{
	__atomic_add_fetch(&c->awake, (uint32_t)by, __ATOMIC_SEQ_CST);
	port_unpark(&c->parker);
}

/* ---- memory ---- */

static int ask_memory(struct ctrl *c, enum soft_request request, void *va, uint64_t bytes)
{
	c->mail.va = (uint64_t)(uintptr_t)va;
	c->mail.bytes = bytes;
	return ask(c, request, port_now_ns() + ANSWER_NS + PIN_NS_PER_GIB * (bytes >> 30));
}

int ctrl_soft_mem_map(struct ctrl *c, void *va, uint64_t bytes, uint64_t *dma_addr, int *registered)
{
	int rc = ask_memory(c, SOFT_MAP, va, bytes);

	if (rc == -EEXIST)
		return err_set(rc, "memory at %p, %llu bytes: overlaps memory that is mapped already", va,
		               (unsigned long long)bytes);
	if (rc == -ENOSPC)
		return err_set(rc, "memory at %p: %u regions are mapped, the most possible; map fewer, larger ones", va,
		               CTRL_REGIONS_MAX);
	if (rc == -EINVAL)
		return err_set(rc, "memory at %p, %llu bytes: not a range", va, (unsigned long long)bytes);
	if (rc)
		return rc;
	if (dma_addr)
		*dma_addr = (uint64_t)(uintptr_t)va;
	if (registered)
		*registered = c->mail.buf >= 0;
	return 0;
}

int ctrl_soft_mem_unmap(struct ctrl *c, void *va, uint64_t bytes)
{
	int rc = ask_memory(c, SOFT_UNMAP, va, bytes);

	if (rc == -EBUSY)
		return err_set(rc, "memory at %p: a command in flight uses it", va);
	if (rc == -ENOENT)
		return err_set(rc, "memory at %p, %llu bytes: not mapped like this", va, (unsigned long long)bytes);
	return rc;
}
