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
#include "dev/io.h"

#define RESET_DEADLINE_NS 2000000000ull
#define BOUNCE_PER_BLOCK_MAX 64u
#define BOUNCE_PER_BLOCK_MIN 4u
#define SPIN_NS 3000u
#define QUEUE_JOBS 8192u

struct block {
	struct dev_block dev;
	struct port_parker parker;
	struct engine *engine;
	uint8_t *memory; /* list pages, then bounce buffers; mapped for the controller */
	uint64_t memory_bytes;
	int mapped;
};

/* A launch in the queue: what the executor's job points to. */
struct stream {
	struct engine *engine;
	uint32_t index;
	struct block *blocks[ENGINE_BLOCKS_MAX];
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
	uint32_t abort;
	uint32_t dead;
};

/* ---- a thread block's resources ---- */

static void *lines(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (p)
		memset(p, 0, (bytes + 63) / 64 * 64);
	return p;
}

static uint32_t list_pages(const struct ctrl_info *info)
{
	/* PRP: a page entry for each page of the largest transfer, and one more when it starts inside a page. */
	uint32_t pages = (info->mdts_bytes / DEV_PAGE_BYTES + DEV_PRP_PER_PAGE) / (DEV_PRP_PER_PAGE - 1);

	return pages < 1 ? 1 : pages > DEV_LIST_PAGES_MAX ? DEV_LIST_PAGES_MAX : pages;
}

static int block_memory(struct engine *e, struct block *b, uint32_t n_lists, uint64_t *dma)
{
	uint64_t lists = (uint64_t)b->dev.n_cmds * n_lists * DEV_PAGE_BYTES;
	int registered, rc;

	b->memory_bytes = lists + b->dev.n_bounce * b->dev.bounce_bytes;
	b->memory = pages_alloc(b->memory_bytes);
	if (!b->memory)
		return err_set(-ENOMEM, "no memory for %llu bytes of lists and bounce buffers",
		               (unsigned long long)b->memory_bytes);
	rc = e->o.ctrl_ops->mem_map(e->o.ctrl, b->memory, b->memory_bytes, dma, &registered);
	if (rc)
		return rc;
	b->mapped = 1;
	b->dev.bounce = b->memory + lists;
	return map_insert(&e->map, (uint64_t)(uintptr_t)b->memory, b->memory_bytes, *dma);
}

static int block_lists(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;
	uint32_t n_lists = list_pages(&e->info);
	uint64_t dma;
	int rc;

	d->cmds = lines(d->n_cmds * sizeof(*d->cmds));
	d->retry = lines(d->n_cmds * sizeof(*d->retry));
	d->steps = lines(DEV_STEPS_MAX * sizeof(*d->steps));
	d->bounce_next = lines((d->n_bounce + 1u) * sizeof(*d->bounce_next));
	if (!d->cmds || !d->retry || !d->steps || !d->bounce_next)
		return err_set(-ENOMEM, "no memory for %u commands", d->n_cmds);
	rc = block_memory(e, b, n_lists, &dma);
	for (uint32_t i = 0; i < d->n_cmds && !rc; i++) {
		d->cmds[i].list.n_pages = n_lists;
		for (uint32_t k = 0; k < n_lists; k++) {
			uint64_t at = ((uint64_t)i * n_lists + k) * DEV_PAGE_BYTES;

			d->cmds[i].list.page[k] = (uint64_t *)(void *)(b->memory + at);
			d->cmds[i].list.dma[k] = dma + at;
		}
	}
	return rc;
}

/* One queue pair on each unit of the controller. */
static int block_qps(struct engine *e, struct block *b)
{
	struct dev_block *d = &b->dev;
	int rc = 0;

	while (d->n_qps < e->info.n_units && !rc) {
		rc = ctrl_qp_create(e->o.ctrl_ops, e->o.ctrl, d->n_qps, d->n_cmds + 1u, &b->parker, &d->qp[d->n_qps]);
		d->n_qps += rc == 0;
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
		rc = e->o.ctrl_ops->qp_delete(e->o.ctrl, &d->qp[d->n_qps - 1], deadline_ns);
		d->n_qps -= rc == 0;
	}
	return rc;
}

static int block_new(struct engine *e, uint32_t stream, struct block **out)
{
	struct block *b = lines(sizeof(*b));
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
	d->abort = &e->abort;
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
	pages_free(b->memory, b->memory_bytes);
	free(d->bounce_next);
	free(d->steps);
	free(d->retry);
	free(d->cmds);
	free(b);
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

/* ---- the engine ---- */

struct ring *engine_ring(struct engine *e) { return e->ring; }

int engine_dead(const struct engine *e) { return port_load_acquire32(&e->dead) != 0; }

void engine_abort(struct engine *e) { port_store_release32(&e->abort, 1); }

const char *engine_executor(const struct engine *e) { return e->exec_ops->name; }

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
	uint64_t dma;
	int rc;

	pthread_mutex_lock(&e->ctrl_lock);
	rc = e->o.ctrl_ops->mem_map(e->o.ctrl, va, bytes, &dma, registered);
	pthread_mutex_unlock(&e->ctrl_lock);
	return rc ? rc : map_insert(&e->map, (uint64_t)(uintptr_t)va, bytes, dma);
}

int engine_launch(struct engine *e, const struct engine_launch *l)
{
	struct exec_job job = {.kernel = kernel,
	                       .arg = &e->streams[l->stream],
	                       .count = l->n,
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
	ring_issue(e->ring, l->stream, l->iocbs, l->n, e->o.blocks, &job.sq_first);
	rc = e->exec_ops->launch(e->exec, l->stream, &job);
	if (rc)
		ring_unissue(e->ring, l->stream, l->n);
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
		}
	}
	return 0;
}

int engine_new(const struct engine_opts *o, struct engine **out)
{
	struct exec_opts xo = {.streams = ENGINE_STREAMS, .blocks = o->blocks, .queue_jobs = QUEUE_JOBS};
	struct engine *e;
	int rc;

	if (!o->blocks || o->blocks > ENGINE_BLOCKS_MAX || !o->queue_depth || o->queue_depth > 4096)
		return err_set(-EINVAL, "%u executor blocks of depth %u; at most %u of 4096", o->blocks, o->queue_depth,
		               ENGINE_BLOCKS_MAX);
	e = lines(sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "no memory for a lane");
	e->o = *o;
	e->info = *o->info;
	e->exec_ops = &exec_host;
	pthread_mutex_init(&e->ctrl_lock, NULL);
	pthread_mutex_init(&e->issue_lock, NULL);
	map_init(&e->map);
	rc = ring_new(o->ring_depth, &e->ring);
	if (!rc)
		rc = blocks_new(e);
	if (!rc)
		rc = e->exec_ops->open(&xo, &e->exec);
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
	if (e->exec)
		e->exec_ops->close(e->exec);
	e->exec = NULL;
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
	map_free(&e->map);
	pthread_mutex_destroy(&e->issue_lock);
	pthread_mutex_destroy(&e->ctrl_lock);
	free(e);
	return 0;
}
