/*
 * lane.c - a lane's life: open beside a store of the same epoch, register the engine's memory, report, close.
 */
#include "core/lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/layout.h"
#include "core/lock.h"
#include "core/opts.h"

#define DEADLINE_DEFAULT_NS 30000000000ull
#define BOUNCE_DEFAULT (16ull << 20)
#define BOUNCE_GPU_DEFAULT (64ull << 20) /* four fast drives' worth of commands in flight */
#define WRITES_DEFAULT 4096u
#define DEPTH_DEFAULT 64u
#define EPOCH_TRIES 8
#define WRITES_MAX 61440u /* with 4096 IOCBs for reads, the largest ring */

/* ---- opening ---- */

/* The view of the pool, under a lock that names its epoch: looked at again until no store came between. */
static int view_and_lock(struct tutti_lane *l, const struct pool *meta, const struct tutti_key *digest, int fd)
{
	struct media *m;
	uint64_t locked = 0;
	int rc = media_new(meta->ops, meta->ctrl, &meta->info, &m);

	if (rc)
		return rc;
	for (int i = 0; i < EPOCH_TRIES && !rc; i++) {
		rc = store_view(media_table(m), digest, l->rank, &l->view);
		if (rc || l->view.pool.epoch == locked)
			break;
		if (locked)
			lock_lane_release(fd, locked);
		rc = lock_lane(fd, l->view.pool.epoch);
		locked = l->view.pool.epoch;
	}
	media_free(m);
	l->view.ns_digest = *digest;
	if (!rc && l->view.pool.epoch != locked)
		rc = err_set(-EBUSY, "the pool is being opened again and again; close the other stores");
	return rc;
}

/* The data path on the GPU. */
static int engine_cuda(struct tutti_lane *l)
{
	char why[160];
	int rc = exec_cuda_probe(why, sizeof(why));

	if (rc)
		return err_set(rc, "executor cuda: %s", why);
	l->engine_opts.exec_ops = exec_cuda();
	if (!l->bounce_bytes)
		l->engine_opts.bounce_bytes = BOUNCE_GPU_DEFAULT;
	return engine_new(&l->engine_opts, &l->engine);
}

/* The largest command that a plan needs: a layer of a whole set, or the set's headers. */
static uint64_t command_bytes(const struct geom *g)
{
	uint64_t layer = g->objects_per_layer * g->pitch_bytes;

	return g->g * (layer > g->header_bytes ? layer : g->header_bytes);
}

static int open_engine(struct tutti_lane *l, const struct tutti_lane_opts *o)
{
	struct engine_opts *eo = &l->engine_opts;
	const struct geom *g = &l->view.geom;

	*eo = (struct engine_opts){.ctrl_ops = l->pool.ops, .ctrl = l->pool.ctrl, .info = &l->pool.info};
	eo->blocks = l->sms;
	eo->queue_depth = l->queue_depth;
	eo->small = o->small_kernels;
	eo->bounce_bytes = l->bounce_bytes ? l->bounce_bytes : BOUNCE_DEFAULT;
	eo->command_bytes = command_bytes(g);
	eo->n_devs = l->pool.n_dev;
	for (eo->ring_depth = 4096; eo->ring_depth < l->writes.sched.room + 4096; eo->ring_depth *= 2)
		;
	/* A lane touches its own rank's chunks, nothing else: not the superblock, not another rank's. */
	for (uint32_t i = 0; i < g->n_dev; i++) {
		eo->first_byte[g->dev[i]] = g->start_bytes[i];
		eo->end_byte[g->dev[i]] = g->start_bytes[i] + (uint64_t)g->n_segments * g->chunk_bytes;
	}
	if (o->executor == TUTTI_EXEC_CUDA)
		return engine_cuda(l);
	return engine_new(eo, &l->engine);
}

static int open_pool(struct tutti_lane *l, const struct tutti_lane_opts *o, const struct tutti_key *digest)
{
	struct pool_opts po = {.paths = o->paths,
	                       .n_paths = o->n_paths,
	                       .controller = o->controller == TUTTI_CTRL_NULL ? TUTTI_CTRL_VIRT : o->controller,
	                       .timing = o->timing,
	                       .no_sgl = o->no_sgl};
	const char *paths[TUTTI_DEVICES_MAX];
	struct pool null;
	int rc = pool_open(&po, &l->pool);

	if (!rc)
		rc = view_and_lock(l, &l->pool, digest, l->pool.fd[0]);
	if (rc || o->controller != TUTTI_CTRL_NULL)
		return rc;
	/* The null controller has no medium: what the pool says was read by the virtual one, whose lock stays. */
	po.controller = TUTTI_CTRL_NULL;
	for (uint32_t i = 0; i < l->pool.n_dev; i++)
		paths[i] = l->pool.path[i];
	po.paths = paths;
	po.n_paths = l->pool.n_dev;
	po.as_given = 1; /* it could not read the superblock for the others' names */
	rc = pool_open(&po, &null);
	if (rc)
		return rc;
	l->pool.ops->close(l->pool.ctrl);
	l->pool.ops = null.ops;
	l->pool.ctrl = null.ctrl;
	l->pool.info = null.info;
	null.ctrl = NULL;
	pool_close(&null);
	l->null_ctrl = 1;
	return 0;
}

static void free_lane(struct tutti_lane *l)
{
	write_queue_free(&l->writes);
	pool_close(&l->pool);
	pthread_mutex_destroy(&l->stats_lock);
	free(l->layer_base);
	free(l->taken);
	free(l);
}

int tutti_lane_open(const struct tutti_lane_opts *opts, const struct tutti_key *digest, struct tutti_lane **out)
{
	struct tutti_lane_opts own;
	const struct tutti_lane_opts *o = &own;
	struct tutti_lane *l;
	int rc = OPTS_TAKE(&own, opts, "tutti_lane_open", "TUTTI_LANE_OPTS_INIT");

	if (rc)
		return rc;
	if (!digest || !out)
		return err_set(-EINVAL, "tutti_lane_open: NULL");
	if (o->store_queue_layers > WRITES_MAX)
		return err_set(-EINVAL, "a lane's queue holds at most %u layers of stores, %u were asked", WRITES_MAX,
		               o->store_queue_layers);
	l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(-ENOMEM, "no memory for a lane");
	pthread_mutex_init(&l->stats_lock, NULL);
	l->rank = o->rank;
	l->sms = o->sms ? o->sms : 1;
	l->queue_depth = o->queue_depth ? o->queue_depth : DEPTH_DEFAULT;
	l->deadline_ns = o->deadline_ns ? o->deadline_ns : DEADLINE_DEFAULT_NS;
	l->bounce_bytes = o->bounce_bytes;
	l->no_verify = o->no_verify;
	l->executor = o->executor;
	rc = write_queue_init(&l->writes, o->store_queue_layers ? o->store_queue_layers : WRITES_DEFAULT,
	                      l->deadline_ns);
	if (!rc)
		rc = open_pool(l, o, digest);
	if (!rc)
		rc = open_engine(l, o);
	if (rc) {
		free_lane(l);
		return err_prefix(rc, "lane of rank %u", o->rank);
	}
	for (uint32_t i = 0; i < l->pool.n_dev; i++) {
		const struct ctrl_ns_info *ns = &l->pool.info.ns[i];

		l->lba_bytes = ns->lba_bytes > l->lba_bytes ? ns->lba_bytes : l->lba_bytes;
		l->mem_align_bytes =
		    ns->mem_align_bytes > l->mem_align_bytes ? ns->mem_align_bytes : l->mem_align_bytes;
	}
	*out = l;
	return 0;
}

int tutti_lane_close(struct tutti_lane *l)
{
	int rc;

	if (!l)
		return 0;
	rc = pool_own(&l->pool, "tutti_lane_close");
	if (rc)
		return rc;
	if (l->n_plans && !(l->engine && engine_dead(l->engine))) /* a dead lane's plans can't be finished */
		return err_set(-EBUSY, "%u plans are open; finish them first", l->n_plans);
	if (l->bases.shared && !engine_dead(l->engine)) {
		engine_room_put(l->engine, &l->bases);
		l->bases.shared = NULL;
	}
	rc = l->engine ? engine_free(l->engine) : 0;
	if (rc)
		return rc; /* a controller may still write: everything stays as it is */
	free_lane(l);
	return 0;
}

/* ---- the engine's memory ---- */

/* Registers the union of all layers' extents: layers may interleave, touch, or lie apart. */
static int map_extents(struct tutti_lane *l, uint64_t extent_bytes)
{
	uint32_t n = l->view.geom.layers;
	uint64_t *base = malloc(n * sizeof(*base));
	int rc = base ? 0 : err_set(-ENOMEM, "no memory for %u layers", n);

	if (!rc)
		memcpy(base, l->layer_base, n * sizeof(*base));
	for (uint32_t i = 1; i < n && !rc; i++) { /* insertion sort: few, mostly sorted */
		uint64_t v = base[i];
		uint32_t k = i;

		for (; k && base[k - 1] > v; k--)
			base[k] = base[k - 1];
		base[k] = v;
	}
	l->kernel_registered = 1;
	for (uint32_t i = 0; i < n && !rc;) {
		uint64_t start = base[i], end = start + extent_bytes;
		int registered;

		for (i++; i < n && base[i] <= end; i++)
			end = base[i] + extent_bytes;
		rc = engine_map(l->engine, (void *)(uintptr_t)start, end - start, &registered);
		l->kernel_registered &= registered;
	}
	free(base);
	return rc;
}

static int aligned(const struct tutti_lane *l, const struct layout *m, uint64_t align)
{
	uint64_t all = m->block_stride | m->outer_stride | m->inner_stride;

	for (uint32_t i = 0; i < l->view.geom.layers; i++)
		all |= l->layer_base[i];
	return all % align == 0;
}

static void choose_path(struct tutti_lane *l, const struct layout *m)
{
	uint64_t align = l->mem_align_bytes > 4 ? l->mem_align_bytes : 4; /* NVMe: data addresses are multiples of 4 */

	l->bounce = 1;
	if (engine_remote(l->engine))
		snprintf(
		    l->why, sizeof(l->why), "%s",
		    engine_in_place(l->engine)
		        ? "the I/O kernel itself moves data between GPU memory and the model's medium"
		        : "copied through bounce buffers by the I/O kernel: the controller can't reach GPU memory");
	else if (m->segment_bytes % l->lba_bytes)
		snprintf(l->why, sizeof(l->why),
		         "copied through bounce buffers: objects of %llu bytes are not whole blocks of %u",
		         (unsigned long long)m->segment_bytes, l->lba_bytes);
	else if (!aligned(l, m, align))
		snprintf(l->why, sizeof(l->why),
		         "copied through bounce buffers: KV memory is not aligned to %llu bytes",
		         (unsigned long long)align);
	else
		l->bounce = 0;
}

/* The layers' addresses, where device code elsewhere reads them. */
static int send_bases(struct tutti_lane *l)
{
	uint64_t bytes = l->view.geom.layers * sizeof(*l->layer_base);
	int rc = engine_room_get(l->engine, bytes, bytes, &l->bases);

	for (uint32_t s = 0; s < ENGINE_STREAMS && !rc; s++) { /* in the order of either stream's kernels */
		memcpy(l->bases.shared, l->layer_base, bytes);
		rc = engine_copy_in(l->engine, s, l->bases.near, l->bases.shared, bytes);
	}
	l->mem.layer_base = l->bases.near;
	return rc;
}

/* GPU memory is the GPU's business; an automatic choice was put off until the memory is known. */
static int choose_executor(struct tutti_lane *l)
{
	int near = exec_cuda() && exec_cuda()->is_near((const void *)(uintptr_t)l->layer_base[0]), rc = 0;

	if (engine_remote(l->engine) && !near)
		return err_set(-EINVAL, "executor cuda: the KV memory is not the GPU's; use executor host");
	if (near && l->executor == TUTTI_EXEC_HOST)
		return err_set(-EINVAL, "executor host: the KV memory is the GPU's; use executor cuda or auto");
	if (near && !engine_remote(l->engine)) {
		rc = engine_free(l->engine);
		l->engine = NULL;
		if (!rc)
			rc = engine_cuda(l);
		if (rc)
			return rc;
	}
	return engine_remote(l->engine) ? send_bases(l) : 0;
}

int tutti_lane_register(struct tutti_lane *l, const struct tutti_kv_layout *given)
{
	struct tutti_kv_layout own;
	const struct tutti_kv_layout *layout = &own;
	const struct geom *g;
	struct layout m;
	int rc = OPTS_TAKE(&own, given, "tutti_lane_register", "TUTTI_KV_LAYOUT_INIT");

	if (rc)
		return rc;
	if (!l || !layout->layer_base)
		return err_set(-EINVAL, "tutti_lane_register: NULL");
	rc = pool_own(&l->pool, __func__);
	if (rc)
		return rc;
	g = &l->view.geom;
	if (l->registered)
		return err_set(-EEXIST, "this lane's KV memory is registered already");
	rc = layout_merge(layout, &m);
	if (rc)
		return rc;
	if (layout->layers != g->layers || m.outer_count * m.inner_count != g->objects_per_layer ||
	    m.segment_bytes != g->object_bytes)
		return err_set(
		    -EINVAL,
		    "KV layout gives %u layers of %u objects of %llu bytes, the namespace has %u of %u of %llu",
		    layout->layers, m.outer_count * m.inner_count, (unsigned long long)m.segment_bytes, g->layers,
		    g->objects_per_layer, (unsigned long long)g->object_bytes);
	if (!l->layer_base) /* a registration that failed left it */
		l->layer_base = malloc(g->layers * sizeof(*l->layer_base));
	free(l->taken);
	l->taken = calloc(layout->blocks / 64 + 1, sizeof(*l->taken));
	if (!l->layer_base || !l->taken)
		return err_set(-ENOMEM, "no memory for %u layers of %llu blocks", g->layers,
		               (unsigned long long)layout->blocks);
	for (uint32_t i = 0; i < g->layers; i++)
		l->layer_base[i] = (uint64_t)(uintptr_t)layout->layer_base[i];
	l->mem.layer_base = l->layer_base; /* see send_bases */
	l->mem.block_stride = m.block_stride;
	l->mem.outer_stride = m.outer_stride;
	l->mem.inner_stride = m.inner_stride;
	l->mem.inner_count = m.inner_count;
	l->blocks = layout->blocks;
	rc = choose_executor(l);
	if (rc)
		return rc;
	choose_path(l, &m);
	if (!l->bounce)
		rc = map_extents(l, m.extent_bytes);
	if (!rc && !l->bounce && !l->kernel_registered)
		snprintf(l->why, sizeof(l->why),
		         "KV memory is not registered with the kernel (memlock limit, or its kind)");
	l->registered = rc == 0;
	return rc;
}

/* ---- reports ---- */

static void get_info(const struct tutti_lane *l, struct tutti_lane_info *out)
{
	snprintf(out->controller, sizeof(out->controller), "%s", l->pool.info.model);
	snprintf(out->executor, sizeof(out->executor), "%s", engine_executor(l->engine));
	out->accel_bytes = engine_near_bytes(l->engine);
	out->sms = l->sms;
	out->queue_depth = l->queue_depth;
	out->mdts_bytes = l->pool.info.mdts_bytes;
	out->lba_bytes = l->lba_bytes;
	out->mem_align_bytes = l->mem_align_bytes;
	out->direct_io = 1;
	for (uint32_t i = 0; i < l->pool.n_dev; i++)
		out->direct_io &= l->pool.info.ns[i].direct;
	out->zero_copy = l->registered && !l->bounce;
	out->registered = l->registered && l->kernel_registered;
	out->sgl = l->pool.info.sgl_max != 0;
	snprintf(out->why, sizeof(out->why), "%s", l->why);
	if (!out->direct_io && !out->why[0])
		snprintf(out->why, sizeof(out->why),
		         "the pool's file system has no O_DIRECT: data goes through the page cache");
}

int tutti_lane_get_info_sized(struct tutti_lane *l, struct tutti_lane_info *out, size_t bytes)
{
	struct tutti_lane_info info = {0};
	int rc;

	if (!l || !out)
		return err_set(-EINVAL, "tutti_lane_get_info: NULL");
	rc = pool_own(&l->pool, "tutti_lane_get_info");
	if (rc)
		return rc;
	get_info(l, &info);
	opts_give(&info, sizeof(info), out, bytes);
	return 0;
}

int tutti_lane_pace(struct tutti_lane *l, enum tutti_op op, int gentle)
{
	int rc;

	if (!l || (op != TUTTI_RETRIEVE && op != TUTTI_STORE))
		return err_set(-EINVAL, "tutti_lane_pace: no lane, or operation %d, which is none", (int)op);
	rc = pool_own(&l->pool, __func__);
	if (rc)
		return rc;
	__atomic_store_n(&l->gentle[op == TUTTI_STORE ? ENGINE_WRITES : ENGINE_READS], gentle != 0, __ATOMIC_RELAXED);
	return 0;
}

static void get_stats(struct tutti_lane *l, struct tutti_lane_stats *out)
{
	struct ctrl_counters c;
	struct dev_stats d;
	uint64_t sum_ns;

	engine_stats(l->engine, &d);
	sum_ns = dev_sum_ns(&d);
	out->commands = d.commands;
	out->objects = d.elements;
	out->bytes_read = d.bytes_read;
	out->bytes_written = d.bytes_written;
	out->direct_bytes = d.direct_bytes;
	out->bounced_bytes = d.bounced_bytes;
	out->checksum_bytes = d.sum_bytes;
	out->failed_objects = d.failed_elements;
	out->retries = d.retries;
	if (l->pool.ops->counters && !l->pool.ops->counters(l->pool.ctrl, &c)) {
		out->ctrl_syscalls = c.syscalls;
		out->ctrl_parks = c.parks;
		out->ctrl_fixed_ios = c.fixed_ios;
	}
	pthread_mutex_lock(&l->stats_lock);
	if (sum_ns > l->checksum_ns) /* an estimate, which may fall; a counter does not */
		l->checksum_ns = sum_ns;
	out->checksum_ns = l->checksum_ns;
	out->failed_blocks = l->failed_blocks;
	out->layers_retrieved = l->layers_retrieved;
	out->layers_stored = l->layers_stored;
	out->stores_dropped = l->stores_dropped;
	pthread_mutex_unlock(&l->stats_lock);
}

int tutti_lane_stats_sized(struct tutti_lane *l, struct tutti_lane_stats *out, size_t bytes)
{
	struct tutti_lane_stats stats = {0};
	int rc;

	if (!l || !out)
		return err_set(-EINVAL, "tutti_lane_stats: NULL");
	rc = pool_own(&l->pool, "tutti_lane_stats");
	if (rc)
		return rc;
	get_stats(l, &stats);
	opts_give(&stats, sizeof(stats), out, bytes);
	return 0;
}
