/*
 * engine_block.c - what a thread block owns for the life of a lane: queue pairs, commands with their list pages, bounce
 * buffers.
 */
#include "core/engine_int.h"

#include <errno.h>

#include "base/err.h"
#include "core/pages.h"
#include "dev/io.h"

#define RESET_DEADLINE_NS 2000000000ull
#define BOUNCE_PER_BLOCK_MAX 64u
#define BOUNCE_PER_BLOCK_MIN 4u
#define SPIN_NS 3000u

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

int engine_map_memory(struct engine *e, void *va, uint64_t bytes, int *registered)
{
	int rc = ctrl_mem_map_runs(e->o.ctrl_ops, e->o.ctrl, va, bytes, registered, add_run, &e->map);

	map_fit(&e->map);
	return rc;
}

static int block_memory(struct engine *e, struct engine_block *b, uint32_t n_lists)
{
	uint64_t lists = (uint64_t)b->dev.n_cmds * n_lists * DEV_PAGE_BYTES;
	int registered, rc;

	b->memory_bytes = lists + b->dev.n_bounce * b->dev.bounce_bytes;
	b->memory = pages_alloc(b->memory_bytes);
	if (!b->memory)
		return err_set(-ENOMEM, "no memory for %llu bytes of lists and bounce buffers",
		               (unsigned long long)b->memory_bytes);
	rc = engine_map_memory(e, b->memory, b->memory_bytes, &registered);
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

static int block_lists(struct engine *e, struct engine_block *b)
{
	struct dev_block *d = &b->dev;
	uint32_t n_lists = list_pages(&e->info);
	int rc;

	d->cmds = engine_shared_get(e, d->n_cmds * sizeof(*d->cmds));
	d->retry = engine_shared_get(e, d->n_cmds * sizeof(*d->retry));
	d->steps = e->exec_ops->memory_get(e->exec, DEV_STEPS_MAX * sizeof(*d->steps), EXEC_NEAR);
	d->bounce_next = engine_shared_get(e, (d->n_bounce + 1u) * sizeof(*d->bounce_next));
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
static int block_qps(struct engine *e, struct engine_block *b)
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
static int block_qps_delete(struct engine *e, struct engine_block *b)
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

int engine_block_new(struct engine *e, uint32_t stream, struct engine_block **out)
{
	struct engine_block *b = engine_shared_get(e, sizeof(*b));
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
	d->in_place = e->in_place != 0;
	d->bounce_ioctx = (uint32_t)e->exec_ops->remote;
	d->ring = ring_shared(e->ring);
	d->stream = stream;
	d->bounce_bytes = e->o.command_bytes && e->o.command_bytes < d->mdts_bytes ? e->o.command_bytes : d->mdts_bytes;
	share = e->o.bounce_bytes / (ENGINE_STREAMS * e->o.blocks) / d->bounce_bytes;
	if (e->o.bounce_bytes)
		d->n_bounce = (uint16_t)(share < BOUNCE_PER_BLOCK_MIN   ? BOUNCE_PER_BLOCK_MIN
		                         : share > BOUNCE_PER_BLOCK_MAX ? BOUNCE_PER_BLOCK_MAX
		                                                        : share);
	for (uint32_t i = 0; i < d->n_devs; i++) {
		d->dev[i].qp = e->info.ns[i].unit;
		d->dev[i].nsid = e->info.ns[i].nsid;
		d->dev[i].lba_shift = (uint32_t)__builtin_ctz(e->info.ns[i].lba_bytes);
		d->dev[i].boundary_bytes = e->info.ns[i].boundary_bytes;
		d->dev[i].first_byte = e->o.first_byte[i];
		d->dev[i].end_byte = e->o.end_byte[i];
		d->dev[i].medium = e->medium[i];
	}
	rc = block_lists(e, b);
	if (!rc)
		rc = block_qps(e, b);
	if (!rc)
		dev_block_reset(d);
	return rc;
}

int engine_block_free(struct engine *e, struct engine_block *b)
{
	struct dev_block *d = &b->dev;

	if (block_qps_delete(e, b))
		return -ENOTRECOVERABLE;
	if (b->mapped)
		e->o.ctrl_ops->mem_unmap(e->o.ctrl, b->memory, b->memory_bytes);
	if (b->shared)
		e->exec_ops->unshare(e->exec, b->memory, b->memory_bytes);
	pages_free(b->memory, b->memory_bytes);
	engine_shared_put(e, d->bounce_next, (d->n_bounce + 1u) * sizeof(*d->bounce_next));
	if (d->steps)
		e->exec_ops->memory_put(e->exec, d->steps, DEV_STEPS_MAX * sizeof(*d->steps), EXEC_NEAR);
	engine_shared_put(e, d->retry, d->n_cmds * sizeof(*d->retry));
	engine_shared_put(e, d->cmds, d->n_cmds * sizeof(*d->cmds));
	engine_shared_put(e, b, sizeof(*b));
	return 0;
}

int engine_block_recover(struct engine *e, struct engine_block *b)
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
	return 0;
}
