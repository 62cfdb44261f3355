/*
 * engine.c - allocates what a thread block owns, launches kernels, and takes a block out of a failed kernel: its queue
 * pairs are reset before any of its failures is reported, because until then the controller may still move data.
 */
#include "core/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/pages.h"
#include "core/plan_room.h"
#include "dev/io.h"

#define RESET_DEADLINE_NS 2000000000ull
#define BOUNCE_PER_BLOCK_MAX 64u
#define BOUNCE_PER_BLOCK_MIN 4u
#define SPIN_NS 3000u
#define QUEUE_JOBS 8192u
/* Of plans, where device code runs elsewhere: one of 8192 blocks of 64 objects takes 5 MiB near, 0.6 MiB shared. */
#define ROOM_NEAR_BYTES (24ull << 20)
#define ROOM_SHARED_BYTES (6ull << 20)

struct block {
	struct dev_block dev;
	struct port_parker parker;
	struct engine *engine;
	uint8_t *memory; /* list pages, then bounce buffers; mapped for the controller */
	uint64_t memory_bytes;
	uint64_t steps_bytes;
	int mapped, shared;
};

/* A launch in the queue: what the executor's job points to. */
struct stream {
	struct engine *engine;
	uint32_t index;
	struct block *blocks[ENGINE_BLOCKS_MAX];
	struct dev_block *devs[ENGINE_BLOCKS_MAX];
};

struct engine {
	struct engine_opts o;
	struct ctrl_info info;
	struct ring *ring;
	const struct exec_ops *exec_ops;
	struct exec *exec;
	struct map map;
	struct stream streams[ENGINE_STREAMS];
	pthread_mutex_t ctrl_lock;  /* set-up calls of the controller */
	pthread_mutex_t issue_lock; /* SQ order is launch order */
	uint32_t *abort;            /* shared */
	uint32_t dead;
	int in_place;
	/* Room for plans; where device code runs on the host, malloc is the room. */
	pthread_mutex_t room_lock;
	uint8_t *room_shared, *room_near;
	struct plan_room shared_room, near_room;
};

static void *shared_get(struct engine *e, uint64_t bytes)
{
	return e->exec_ops->memory_get(e->exec, bytes, EXEC_SHARED);
}

static void shared_put(struct engine *e, void *p, uint64_t bytes)
{
	if (p)
		e->exec_ops->memory_put(e->exec, p, bytes, EXEC_SHARED);
}

/* ---- a thread block's resources ---- */

static uint32_t list_pages(const struct ctrl_info *info)
{
	/* PRP: a page entry for each page of the largest transfer, and one more when it starts inside a page. */
	uint32_t pages = (info->mdts_bytes / DEV_PAGE_BYTES + DEV_PRP_PER_PAGE) / (DEV_PRP_PER_PAGE - 1);

	return pages < 1 ? 1 : pages > DEV_LIST_PAGES_MAX ? DEV_LIST_PAGES_MAX : pages;
}

static int add_run(void *arg, uint64_t va, uint64_t bytes, uint64_t dma)
{
	return map_insert(arg, va, bytes, dma);
}

/* Memory for the controller, and how it sees it. */
static int map_memory(struct engine *e, void *va, uint64_t bytes, int *registered)
{
	return ctrl_mem_map_runs(e->o.ctrl_ops, e->o.ctrl, va, bytes, registered, add_run, &e->map);
}

static int block_memory(struct engine *e, struct block *b, uint32_t n_lists)
{
	uint64_t lists = (uint64_t)b->dev.n_cmds * n_lists * DEV_PAGE_BYTES;
	int registered, rc;

	b->memory_bytes = lists + b->dev.n_bounce * b->dev.bounce_bytes;
	b->memory = pages_alloc(b->memory_bytes);
	if (!b->memory)
		return err_set(-ENOMEM, "no memory for %llu bytes of lists and bounce buffers",
		               (unsigned long long)b->memory_bytes);
	rc = map_memory(e, b->memory, b->memory_bytes, &registered);
	if (rc)
		return rc;
	b->mapped = 1;
	rc = e->exec_ops->share(e->exec, b->memory, b->memory_bytes);
	if (rc)
		return rc;
	b->shared = 1;
	b->dev.bounce = b->memory + lists;
	if (map_find(&e->map, (uint64_t)(uintptr_t)b->dev.bounce, b->memory_bytes - lists, &b->dev.bounce_dma))
		b->dev.bounce_dma = 0; /* in pieces: found through the map */
	if (!b->dev.bounce_dma && b->dev.n_bounce && e->exec_ops->remote)
		return err_set(-EOPNOTSUPP,
		               "the drive sees bounce buffers in pieces, which device code on a GPU can't follow; "
		               "turn the IOMMU on in translating mode, or use executor host");
	return 0;
}

static int block_lists(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;
	uint32_t n_lists = list_pages(&e->info);
	int rc;

	d->cmds = shared_get(e, d->n_cmds * sizeof(*d->cmds));
	d->retry = shared_get(e, d->n_cmds * sizeof(*d->retry));
	d->steps = e->exec_ops->memory_get(e->exec, DEV_STEPS_MAX * sizeof(*d->steps), EXEC_NEAR);
	d->bounce_next = shared_get(e, (d->n_bounce + 1u) * sizeof(*d->bounce_next));
	if (!d->cmds || !d->retry || !d->steps || !d->bounce_next)
		return err_set(-ENOMEM, "no memory for %u commands", d->n_cmds);
	rc = block_memory(e, b, n_lists);
	for (uint32_t i = 0; i < d->n_cmds && !rc; i++) {
		d->cmds[i].list.n_pages = n_lists;
		for (uint32_t k = 0; k < n_lists && !rc; k++) {
			uint8_t *page = b->memory + ((uint64_t)i * n_lists + k) * DEV_PAGE_BYTES;

			d->cmds[i].list.page[k] = (uint64_t *)(void *)page;
			rc = map_find(&e->map, (uint64_t)(uintptr_t)page, DEV_PAGE_BYTES, &d->cmds[i].list.dma[k]);
		}
	}
	return rc;
}

static uint64_t page_of(const void *p) { return (uint64_t)(uintptr_t)p / 4096; }

/* Device code posts to and polls memory that is the controller's. */
static int qp_share(struct engine *e, const struct dev_qp *q)
{
	const struct exec_ops *x = e->exec_ops;
	int rc = x->share(e->exec, q->sq, q->depth * sizeof(*q->sq));

	if (!rc)
		rc = x->share(e->exec, q->cq, q->depth * sizeof(*q->cq));
	if (!rc)
		rc = x->share(e->exec, q->sq_doorbell, sizeof(*q->sq_doorbell));
	if (!rc && page_of(q->sq_doorbell) != page_of(q->cq_doorbell))
		rc = x->share(e->exec, q->cq_doorbell, sizeof(*q->cq_doorbell));
	return rc;
}

static void qp_unshare(struct engine *e, const struct dev_qp *q)
{
	const struct exec_ops *x = e->exec_ops;

	x->unshare(e->exec, q->sq, q->depth * sizeof(*q->sq));
	x->unshare(e->exec, q->cq, q->depth * sizeof(*q->cq));
	x->unshare(e->exec, q->sq_doorbell, sizeof(*q->sq_doorbell));
	if (page_of(q->sq_doorbell) != page_of(q->cq_doorbell))
		x->unshare(e->exec, q->cq_doorbell, sizeof(*q->cq_doorbell));
}

/* One queue pair on each unit of the controller. */
static int block_qps(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;
	int rc = 0;

	while (d->n_qps < e->info.n_units && !rc) {
		rc = ctrl_qp_create(e->o.ctrl_ops, e->o.ctrl, d->n_qps, d->n_cmds + 1u, &b->parker, &d->qp[d->n_qps]);
		if (rc)
			break;
		rc = qp_share(e, &d->qp[d->n_qps]);
		d->n_qps++;
	}
	return rc;
}

/* Deletes them, to one deadline. What could not be deleted stays in n_qps. */
static int block_qps_delete(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;
	uint64_t deadline_ns = port_now_ns() + RESET_DEADLINE_NS;
	int rc = 0;

	while (d->n_qps && !rc) {
		qp_unshare(e, &d->qp[d->n_qps - 1]);
		rc = e->o.ctrl_ops->qp_delete(e->o.ctrl, &d->qp[d->n_qps - 1], deadline_ns);
		d->n_qps -= rc == 0;
	}
	return rc;
}

static int block_new(struct engine *e, uint32_t stream, struct block **out)
{
	struct block *b = shared_get(e, sizeof(*b));
	struct dev_block *d;
	uint32_t depth = e->o.queue_depth + 1;
	uint64_t share;
	int rc;

	if (!b)
		return err_set(-ENOMEM, "no memory for a thread block");
	*out = b;
	d = &b->dev;
	b->engine = e;
	if (depth > e->info.depth_max)
		depth = e->info.depth_max;
	d->n_cmds = depth - 1;
	d->n_devs = e->o.n_devs;
	d->sgl_max = e->info.sgl_max;
	d->mdts_bytes = e->info.mdts_bytes;
	d->spin_ns = SPIN_NS;
	d->parker = &b->parker;
	d->abort = e->abort;
	d->in_place = (uint32_t)e->in_place;
	d->ring = ring_shared(e->ring);
	d->stream = stream;
	d->bounce_bytes = d->mdts_bytes;
	share = e->o.bounce_bytes / (ENGINE_STREAMS * e->o.blocks) / d->bounce_bytes;
	if (e->o.bounce_bytes)
		d->n_bounce = (uint16_t)(share < BOUNCE_PER_BLOCK_MIN   ? BOUNCE_PER_BLOCK_MIN
		                         : share > BOUNCE_PER_BLOCK_MAX ? BOUNCE_PER_BLOCK_MAX
		                                                        : share);
	for (uint32_t i = 0; i < d->n_devs; i++) {
		d->dev[i].qp = e->info.ns[i].unit;
		d->dev[i].nsid = e->info.ns[i].nsid;
		d->dev[i].lba_shift = (uint32_t)__builtin_ctz(e->info.ns[i].lba_bytes);
		d->dev[i].first_byte = e->o.first_byte[i];
		d->dev[i].end_byte = e->o.end_byte[i];
	}
	rc = block_lists(e, b);
	if (!rc)
		rc = block_qps(e, b);
	if (!rc)
		dev_block_reset(d);
	return rc;
}

/* -ENOTRECOVERABLE: the queue pair could not be deleted; nothing of the block may be freed. */
static int block_free(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;

	if (block_qps_delete(e, b))
		return -ENOTRECOVERABLE;
	if (b->mapped)
		e->o.ctrl_ops->mem_unmap(e->o.ctrl, b->memory, b->memory_bytes);
	if (b->shared)
		e->exec_ops->unshare(e->exec, b->memory, b->memory_bytes);
	pages_free(b->memory, b->memory_bytes);
	shared_put(e, d->bounce_next, (d->n_bounce + 1u) * sizeof(*d->bounce_next));
	if (d->steps)
		e->exec_ops->memory_put(e->exec, d->steps, DEV_STEPS_MAX * sizeof(*d->steps), EXEC_NEAR);
	shared_put(e, d->retry, d->n_cmds * sizeof(*d->retry));
	shared_put(e, d->cmds, d->n_cmds * sizeof(*d->cmds));
	shared_put(e, b, sizeof(*b));
	return 0;
}

/* ---- the kernel ---- */

/* Resets the queue pairs of a block whose kernel gave up. 0: memory is safe again. */
static int block_recover(struct engine *e, struct block *b)
{
	int rc;

	pthread_mutex_lock(&e->ctrl_lock);
	rc = block_qps_delete(e, b);
	if (!rc)
		rc = block_qps(e, b);
	pthread_mutex_unlock(&e->ctrl_lock);
	if (rc) {
		log_warn("lane: a queue pair could not be reset (%s); the lane is dead, its memory stays registered",
		         err_name(rc));
		port_store_release32(&e->dead, 1);
		return rc;
	}
	dev_block_reset(&b->dev);
	return 0;
}

/* Was the controller reset for somebody else's sake since the last kernel? */
static int block_lost(struct engine *e, struct block *b)
{
	for (uint32_t i = 0; i < b->dev.n_qps; i++)
		if (ctrl_qp_lost(e->o.ctrl_ops, e->o.ctrl, &b->dev.qp[i]))
			return 1;
	return 0;
}

static void kernel(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count)
{
	struct stream *s = arg;
	struct block *b = s->blocks[block];
	struct engine *e = s->engine;
	int rc;

	b->dev.index = block;
	b->dev.n_blocks = n_blocks;
	b->dev.map = map_view(&e->map);
	if (block_lost(e, b))
		block_recover(e, b);
	if (port_load_acquire32(&e->dead)) {
		dev_steps_load(&b->dev, sq_first, count);
		dev_io_fail_rest(&b->dev, -ENOTRECOVERABLE);
		return;
	}
	rc = dev_io_run(&b->dev, sq_first, count);
	if (rc) {
		if (block_recover(e, b))
			rc = -ENOTRECOVERABLE;
		dev_io_fail_rest(&b->dev, rc);
	}
}

/* ---- kernels that another processor runs ---- */

/* An IOCB that its kernel left: what of its plan has no result yet fails. */
static void step_fail(struct engine *e, uint32_t stream, uint32_t id, int32_t rc)
{
	struct wire_ring *r = ring_shared(e->ring);
	struct dev_plan *p = (struct dev_plan *)(uintptr_t)r->iocb[id].ioctx;
	uint32_t failed = 0;

	for (uint32_t i = 0; i < p->n; i++) {
		if (!p->results_host[i])
			__atomic_store_n(&p->results_host[i], rc, __ATOMIC_RELAXED);
		failed += p->results_host[i] != 0;
	}
	port_store_release32(p->first_error, (uint32_t)rc);
	if (rc != -ENOTRECOVERABLE) { /* the plan's later steps leave these entries alone */
		e->exec_ops->copy_in(e->exec, stream, p->results, p->results_host, p->n * sizeof(*p->results));
		e->exec_ops->copy_in(e->exec, stream, &r->state[id], NULL, sizeof(r->state[id]));
	}
	ring_complete(e->ring, id, rc, failed);
}

static void steps_fail(struct stream *s, uint32_t sq_first, uint32_t from, uint32_t count, int32_t rc)
{
	struct wire_ring *r = ring_shared(s->engine->ring);

	for (uint32_t i = from; i < count; i++)
		step_fail(s->engine, s->index, r->sq[s->index][(sq_first + i) & (r->entries - 1)], rc);
}

/* A kernel ended and some of its blocks gave up. Those that never began (-EINTR) did so because of one before. */
static void gave_up(void *arg, uint32_t sq_first, uint32_t count)
{
	struct stream *s = arg;
	uint32_t from = count;
	int32_t rc = 0;

	for (uint32_t i = 0; i < s->engine->o.blocks; i++) {
		struct block *b = s->blocks[i];
		int32_t exit_rc = b->dev.exit_rc;

		if (!exit_rc)
			continue;
		from = b->dev.first_open < from ? b->dev.first_open : from;
		if (exit_rc != -EINTR && block_recover(s->engine, b))
			rc = -ENOTRECOVERABLE;
		else if (!rc)
			rc = exit_rc == -EINTR ? -ECANCELED : exit_rc;
		b->dev.exit_rc = 0;
	}
	steps_fail(s, sq_first, from, count, rc);
}

/* The watchdog: the kernel is not over. What it has signalled stays; the rest will never be. */
static void lost(void *arg, uint32_t sq_first, uint32_t count)
{
	struct stream *s = arg;

	port_store_release32(&s->engine->dead, 1);
	log_warn("lane: an I/O kernel did not end by its deadline; the lane is dead, its memory stays");
	steps_fail(s, sq_first, 0, count, -ENOTRECOVERABLE);
}

/* A controller made of software spins while a kernel looks at its queues, which can't wake it. */
static void controller_awake(struct engine *e, int by)
{
	if (e->exec_ops->remote && e->o.ctrl_ops->awake)
		e->o.ctrl_ops->awake(e->o.ctrl, by);
}

static void ended(void *arg)
{
	struct stream *s = arg;

	controller_awake(s->engine, -1);
}

/* ---- the engine ---- */

struct ring *engine_ring(struct engine *e) { return e->ring; }

int engine_dead(const struct engine *e) { return port_load_acquire32(&e->dead) != 0; }

void engine_abort(struct engine *e) { port_store_release32(e->abort, 1); }

const char *engine_executor(const struct engine *e) { return e->exec_ops->describe(e->exec); }

void engine_stats(struct engine *e, struct dev_stats *out)
{
	uint64_t *to = (uint64_t *)out;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < ENGINE_STREAMS * e->o.blocks; i++) {
		const struct block *b = e->streams[i / e->o.blocks].blocks[i % e->o.blocks];
		const uint64_t *from = b ? (const uint64_t *)&b->dev.stats : NULL;

		for (size_t k = 0; from && k < sizeof(*out) / sizeof(uint64_t); k++)
			to[k] += __atomic_load_n(&from[k], __ATOMIC_RELAXED);
	}
}

int engine_map(struct engine *e, void *va, uint64_t bytes, int *registered)
{
	int rc;

	pthread_mutex_lock(&e->ctrl_lock);
	rc = map_memory(e, va, bytes, registered);
	pthread_mutex_unlock(&e->ctrl_lock);
	return rc;
}

int engine_launch(struct engine *e, const struct engine_launch *l)
{
	struct exec_job job = {.kernel = kernel,
	                       .arg = &e->streams[l->stream],
	                       .count = l->n,
	                       .blocks = e->streams[l->stream].devs,
	                       .gave_up = gave_up,
	                       .lost = lost,
	                       .ended = ended,
	                       .deadline_ns = l->deadline_ns,
	                       .event = l->event,
	                       .event_value = l->event_value,
	                       .event_deadline_ns = l->deadline_ns,
	                       .done = l->done,
	                       .done_arg = l->done_arg};
	int rc;

	if (engine_dead(e))
		return err_set(-ENOTRECOVERABLE,
		               "the lane is dead: a controller did not answer and could not be reset");
	for (uint32_t i = 0; i < l->n; i++)
		l->iocbs[i]->deadline_ns = l->deadline_ns;
	pthread_mutex_lock(&e->issue_lock);
	ring_issue(e->ring, l->stream, l->iocbs, l->n, &job.sq_first);
	controller_awake(e, 1);
	rc = e->exec_ops->launch(e->exec, l->stream, &job);
	if (rc) {
		ring_unissue(e->ring, l->stream, l->n);
		controller_awake(e, -1);
	}
	pthread_mutex_unlock(&e->issue_lock);
	return rc ? err_set(rc, "the executor's queue is full (%u kernels wait)", QUEUE_JOBS) : 0;
}

static int blocks_new(struct engine *e)
{
	for (uint32_t s = 0; s < ENGINE_STREAMS; s++) {
		e->streams[s].engine = e;
		e->streams[s].index = s;
		for (uint32_t b = 0; b < e->o.blocks; b++) {
			int rc = block_new(e, s, &e->streams[s].blocks[b]);

			if (rc)
				return rc;
			e->streams[s].devs[b] = &e->streams[s].blocks[b]->dev;
		}
	}
	return 0;
}

/* ---- room for plans ---- */

int engine_remote(const struct engine *e) { return e->exec_ops->remote; }

int engine_in_place(const struct engine *e) { return e->in_place; }

int engine_room_get(struct engine *e, uint64_t shared_bytes, uint64_t near_bytes, struct engine_room *out)
{
	uint64_t shared, near;
	int rc;

	out->near = NULL;
	if (!e->exec_ops->remote) {
		out->shared = calloc(1, shared_bytes);
		return out->shared ? 0 : -ENOMEM;
	}
	pthread_mutex_lock(&e->room_lock);
	rc = plan_room_get(&e->shared_room, shared_bytes, &shared);
	if (!rc) {
		rc = plan_room_get(&e->near_room, near_bytes, &near);
		if (rc)
			plan_room_put(&e->shared_room, shared);
	}
	pthread_mutex_unlock(&e->room_lock);
	if (rc)
		return rc == -ENOSPC ? -EAGAIN : rc;
	out->shared = e->room_shared + shared;
	out->near = e->room_near + near;
	memset(out->shared, 0, shared_bytes);
	return 0;
}

void engine_room_put(struct engine *e, const struct engine_room *room)
{
	if (!e->exec_ops->remote) {
		free(room->shared);
		return;
	}
	if (!room->shared)
		return;
	pthread_mutex_lock(&e->room_lock);
	plan_room_put(&e->shared_room, (uint64_t)((uint8_t *)room->shared - e->room_shared));
	plan_room_put(&e->near_room, (uint64_t)((uint8_t *)room->near - e->room_near));
	pthread_mutex_unlock(&e->room_lock);
}

int engine_copy_in(struct engine *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	return e->exec_ops->copy_in(e->exec, stream, near, shared, bytes);
}

int engine_stream_wait(struct engine *e, uint32_t iocb, void *stream)
{
	const struct wire_iocb *io = &ring_shared(e->ring)->iocb[iocb];

	return e->exec_ops->stream_wait(e->exec, stream, (uint32_t *)(uintptr_t)io->flag, io->flag_value);
}

/* ---- made and freed ---- */

static void *ring_memory_get(void *arg, uint64_t bytes, int near)
{
	struct engine *e = arg;

	return e->exec_ops->memory_get(e->exec, bytes, near ? EXEC_NEAR : EXEC_SHARED);
}

static void ring_memory_put(void *arg, void *p, uint64_t bytes, int near)
{
	struct engine *e = arg;

	e->exec_ops->memory_put(e->exec, p, bytes, near ? EXEC_NEAR : EXEC_SHARED);
}

/* The medium of a controller that works in place: device code reads it. */
static int share_medium(struct engine *e)
{
	if (!e->exec_ops->remote || !e->o.ctrl_ops->medium)
		return 0;
	for (uint32_t i = 0; i < e->info.n_ns; i++) {
		uint64_t bytes;
		void *p;
		int rc = e->o.ctrl_ops->medium(e->o.ctrl, i, &p, &bytes);

		if (!rc)
			rc = e->exec_ops->share(e->exec, p, bytes);
		if (rc)
			return rc;
	}
	e->in_place = 1;
	return 0;
}

static void unshare_medium(struct engine *e)
{
	uint64_t bytes;
	void *p;

	for (uint32_t i = 0; e->in_place && i < e->info.n_ns; i++)
		if (!e->o.ctrl_ops->medium(e->o.ctrl, i, &p, &bytes))
			e->exec_ops->unshare(e->exec, p, bytes);
}

static int engine_memory(struct engine *e)
{
	const struct ring_memory memory = {
	    .get = ring_memory_get, .put = ring_memory_put, .arg = e, .silent = e->exec_ops->remote};
	int rc;

	e->abort = shared_get(e, 64);
	if (!e->abort)
		return err_set(-ENOMEM, "no memory for a lane");
	if (e->exec_ops->remote) {
		e->shared_room.bytes = ROOM_SHARED_BYTES;
		e->near_room.bytes = ROOM_NEAR_BYTES;
		e->room_shared = shared_get(e, ROOM_SHARED_BYTES);
		e->room_near = e->exec_ops->memory_get(e->exec, ROOM_NEAR_BYTES, EXEC_NEAR);
		if (!e->room_shared || !e->room_near)
			return err_set(-ENOMEM, "no pinned or accelerator memory for plans");
	}
	rc = share_medium(e);
	return rc ? rc : ring_new_in(e->o.ring_depth, &memory, &e->ring);
}

int engine_new(const struct engine_opts *o, struct engine **out)
{
	struct exec_opts xo = {
	    .streams = ENGINE_STREAMS, .blocks = o->blocks, .queue_jobs = QUEUE_JOBS, .sm_domain = 1};
	struct engine *e;
	int rc;

	if (!o->blocks || o->blocks > ENGINE_BLOCKS_MAX || !o->queue_depth || o->queue_depth > 4096)
		return err_set(-EINVAL, "%u executor blocks of depth %u; at most %u of 4096", o->blocks, o->queue_depth,
		               ENGINE_BLOCKS_MAX);
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "no memory for a lane");
	e->o = *o;
	e->info = *o->info;
	e->exec_ops = o->exec_ops ? o->exec_ops : &exec_host;
	pthread_mutex_init(&e->room_lock, NULL);
	pthread_mutex_init(&e->ctrl_lock, NULL);
	pthread_mutex_init(&e->issue_lock, NULL);
	map_init(&e->map);
	rc = e->exec_ops->open(&xo, &e->exec);
	if (!rc)
		rc = engine_memory(e);
	if (!rc)
		rc = blocks_new(e);
	if (rc) {
		engine_free(e);
		return rc;
	}
	*out = e;
	return 0;
}

int engine_free(struct engine *e)
{
	int rc = 0;

	if (!e)
		return 0;
	/* Remote executors find our memory: they go last, but their kernels must have ended. */
	for (uint32_t s = 0; e->exec && e->exec_ops->remote && s < ENGINE_STREAMS; s++)
		if (e->exec_ops->settle(e->exec, s) || engine_dead(e))
			return err_set(-ENOTRECOVERABLE, "an I/O kernel may still run: everything stays as it is");
	if (e->exec && !e->exec_ops->remote) {
		e->exec_ops->close(e->exec);
		e->exec = NULL;
	}
	for (uint32_t i = 0; i < ENGINE_STREAMS * e->o.blocks; i++) {
		struct block **b = &e->streams[i / e->o.blocks].blocks[i % e->o.blocks];

		if (*b && block_free(e, *b))
			rc = -ENOTRECOVERABLE;
		else
			*b = NULL; /* a dead engine stays, and may be freed again */
	}
	if (rc || engine_dead(e))
		return err_set(-ENOTRECOVERABLE, "a controller may still write to registered memory: keep it mapped");
	ring_free(e->ring);
	unshare_medium(e);
	shared_put(e, e->room_shared, ROOM_SHARED_BYTES);
	if (e->room_near)
		e->exec_ops->memory_put(e->exec, e->room_near, ROOM_NEAR_BYTES, EXEC_NEAR);
	shared_put(e, e->abort, 64);
	if (e->exec)
		e->exec_ops->close(e->exec);
	map_free(&e->map);
	pthread_mutex_destroy(&e->room_lock);
	pthread_mutex_destroy(&e->issue_lock);
	pthread_mutex_destroy(&e->ctrl_lock);
	free(e);
	return 0;
}
