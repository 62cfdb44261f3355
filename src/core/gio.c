/* gio.c - the raw gio_uring calls: an engine over devices as they are, without a pool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/engine.h"
#include "core/opts.h"
#include "core/pool.h"
#include "tutti/gio_uring.h"

#define DEADLINE_DEFAULT_NS 30000000000ull
#define BOUNCE_DEFAULT (16ull << 20)

enum iocb_state { IOCB_FREE = 0, IOCB_TAKEN, IOCB_ISSUED };

struct gio {
	struct pool pool;
	struct engine *engine;
	uint64_t deadline_ns;
	uint32_t depth;
	uint8_t *state; /* of each IOCB: a number from a caller may be anything */
};

static int state_of(const struct gio *g, uint32_t id)
{
	return id < g->depth ? __atomic_load_n(&g->state[id], __ATOMIC_RELAXED) : IOCB_FREE;
}

static void set_state(struct gio *g, uint32_t id, enum iocb_state state)
{
	__atomic_store_n(&g->state[id], (uint8_t)state, __ATOMIC_RELAXED);
}

PORT_ASSERT(sizeof(struct gio_ioctx) == sizeof(struct wire_ioctx) &&
                offsetof(struct gio_ioctx, status) == offsetof(struct wire_ioctx, status) &&
                (int)GIO_READ == (int)WIRE_READ && (int)GIO_WRITE == (int)WIRE_WRITE && GIO_IOCTX_MAX == WIRE_IOCTX_MAX,
            "gio_ioctx is wire_ioctx, for those who see only include/");

/* Who runs the kernels, and what that one needs. */
static int choose_executor(const struct gio_opts *o, struct engine_opts *eo)
{
	char why[160];
	int rc;

	if (o->executor != TUTTI_EXEC_CUDA)
		return 0;
	rc = exec_cuda_probe(why, sizeof(why));
	if (rc)
		return err_set(rc, "executor cuda: %s", why);
	eo->exec_ops = exec_cuda();
	eo->bounce_bytes = o->bounce_bytes ? o->bounce_bytes : BOUNCE_DEFAULT;
	eo->ioctx = WIRE_IOCTX_MAX;
	return 0;
}

int gio_init_queue(const struct gio_opts *opts, struct gio **out)
{
	struct gio_opts own;
	const struct gio_opts *o = &own;
	struct engine_opts eo = {0};
	struct pool_opts po;
	struct gio *g;
	int rc = OPTS_TAKE(&own, opts, "gio_init_queue", "GIO_OPTS_INIT");

	if (rc)
		return rc;
	if (!out)
		return err_set(-EINVAL, "gio_init_queue: NULL");
	g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(-ENOMEM, "gio: no memory");
	po = (struct pool_opts){.paths = o->paths,
	                        .n_paths = o->n_paths,
	                        .controller = o->controller,
	                        .timing = o->timing,
	                        .read_only = o->read_only,
	                        .no_sgl = o->no_sgl,
	                        .as_given = 1};
	g->deadline_ns = o->deadline_ns ? o->deadline_ns : DEADLINE_DEFAULT_NS;
	rc = pool_open(&po, &g->pool);
	if (rc) {
		free(g);
		return rc;
	}
	eo.ctrl_ops = g->pool.ops;
	eo.ctrl = g->pool.ctrl;
	eo.info = &g->pool.info;
	eo.blocks = o->sms ? o->sms : 1;
	eo.queue_depth = o->queue_depth ? o->queue_depth : 64;
	eo.ring_depth = o->depth ? o->depth : 256;
	eo.n_devs = g->pool.n_dev;
	for (uint32_t i = 0; i < eo.n_devs; i++)
		eo.end_byte[i] = g->pool.info.ns[i].capacity_bytes;
	g->depth = eo.ring_depth;
	rc = choose_executor(o, &eo);
	if (!rc)
		rc = engine_new(&eo, &g->engine); /* it checks the depth */
	if (!rc) {
		g->state = calloc(g->depth, sizeof(*g->state));
		rc = g->state ? 0 : err_set(-ENOMEM, "gio: no memory for %u IOCBs", g->depth);
	}
	if (rc) {
		engine_free(g->engine);
		pool_close(&g->pool);
		free(g);
		return rc;
	}
	*out = g;
	return 0;
}

int gio_close(struct gio *g)
{
	int rc = g ? pool_own(&g->pool, "gio_close") : 0;

	if (!rc && g)
		rc = engine_free(g->engine);
	if (rc || !g)
		return rc;
	pool_close(&g->pool);
	free(g->state);
	free(g);
	return 0;
}

static void get_info(const struct gio *g, struct gio_info *out)
{
	out->mdts_bytes = g->pool.info.mdts_bytes;
	out->n_dev = g->pool.n_dev;
	for (uint32_t i = 0; i < g->pool.n_dev; i++) {
		const struct ctrl_ns_info *ns = &g->pool.info.ns[i];

		out->capacity_bytes[i] = ns->capacity_bytes;
		out->lba_bytes = ns->lba_bytes > out->lba_bytes ? ns->lba_bytes : out->lba_bytes;
		out->mem_align_bytes =
		    ns->mem_align_bytes > out->mem_align_bytes ? ns->mem_align_bytes : out->mem_align_bytes;
	}
	snprintf(out->controller, sizeof(out->controller), "%s", g->pool.info.model);
	snprintf(out->executor, sizeof(out->executor), "%s", engine_executor(g->engine));
}

int gio_get_info_sized(struct gio *g, struct gio_info *out, size_t bytes)
{
	struct gio_info info = {0};
	int rc;

	if (!g || !out)
		return err_set(-EINVAL, "gio_get_info: NULL");
	rc = pool_own(&g->pool, "gio_get_info");
	if (rc)
		return rc;
	get_info(g, &info);
	opts_give(&info, sizeof(info), out, bytes);
	return 0;
}

int gio_register(struct gio *g, void *mem, uint64_t bytes)
{
	int registered, rc;

	if (!g || !mem || !bytes)
		return err_set(-EINVAL, "gio_register: NULL or no bytes");
	rc = pool_own(&g->pool, __func__);
	if (rc)
		return rc;
	return engine_remote(g->engine) ? engine_map_near(g->engine, mem, bytes)
	                                : engine_map(g->engine, mem, bytes, &registered);
}

int gio_get_iocb(struct gio *g, uint32_t n, const struct gio_event *event, uint32_t *id, struct gio_ioctx **ioctx)
{
	struct wire_iocb *io;
	struct wire_ioctx *at;
	int rc;

	if (!g || !n || !id || !ioctx || (event && !event->word == !event->cuda_event))
		return err_set(-EINVAL, "gio_get_iocb: NULL, or no IOCTX, or an event that is none or two");
	rc = pool_own(&g->pool, __func__);
	if (rc)
		return rc;
	if (event && engine_remote(g->engine) != (event->cuda_event != NULL))
		return err_set(-ENOTSUP, "gio_get_iocb: kernels of %s wait for %s", engine_executor(g->engine),
		               engine_remote(g->engine) ? "CUDA events" : "words of the host");
	rc = ring_get(engine_ring(g->engine), n, &io, &at);
	if (rc)
		return rc;
	if (event && event->cuda_event) {
		rc = engine_stream_hold(g->engine, io, NULL, event->cuda_event);
		if (rc) {
			ring_put(engine_ring(g->engine), io->id);
			return rc;
		}
	} else if (event) {
		io->event = (uint64_t)(uintptr_t)event->word;
		io->event_value = event->value;
	}
	set_state(g, io->id, IOCB_TAKEN);
	*id = io->id;
	*ioctx = (struct gio_ioctx *)at;
	return 0;
}

static int check_iocb(const struct gio *g, uint32_t id, const struct wire_iocb *io, const struct wire_iocb *first)
{
	const struct wire_ioctx *c = (const struct wire_ioctx *)(uintptr_t)io->ioctx;

	if (!engine_remote(g->engine) && (io->event != first->event || io->event_value != first->event_value))
		return err_set(-EINVAL, "gio_issue_io: IOCB %u waits for another event than the first one of the call",
		               id);
	for (uint32_t k = 0; k < io->n; k++)
		if (c[k].dev >= g->pool.n_dev || (c[k].op != WIRE_READ && c[k].op != WIRE_WRITE))
			return err_set(-EINVAL,
			               "gio_issue_io: IOCB %u, IOCTX %u: no device %u, or unknown operation %u", id, k,
			               c[k].dev, c[k].op);
	/* A GPU does not forgive a wrong address: it takes the whole process's context along. */
	for (uint32_t k = 0; k < io->n && engine_remote(g->engine); k++)
		if (!c[k].bytes || !engine_is_mapped(g->engine, c[k].mem, c[k].bytes))
			return err_set(-EINVAL, "gio_issue_io: IOCB %u, IOCTX %u: its memory was not registered", id,
			               k);
	return 0;
}

int gio_issue_io(struct gio *g, const uint32_t *ids, uint32_t n, uint32_t sms)
{
	struct wire_iocb *iocbs[DEV_STEPS_MAX];
	struct engine_launch go = {.iocbs = iocbs, .stream = ENGINE_READS, .blocks = sms};
	uint64_t now = port_now_ns();
	struct wire_ring *r;
	int rc;

	if (!g || !ids || !n || n > DEV_STEPS_MAX)
		return err_set(-EINVAL, "gio_issue_io: NULL, or not 1 to %u IOCBs", DEV_STEPS_MAX);
	rc = pool_own(&g->pool, __func__);
	if (rc)
		return rc;
	r = ring_shared(engine_ring(g->engine));
	while (go.n < n && !rc) {
		uint32_t id = ids[go.n];

		/* Marked at once, so that a number that comes twice is found. */
		rc = state_of(g, id) == IOCB_TAKEN
		         ? 0
		         : err_set(-EINVAL, "gio_issue_io: IOCB %u was not taken, or was issued already", id);
		if (!rc) {
			iocbs[go.n++] = &r->iocb[id];
			set_state(g, id, IOCB_ISSUED);
			rc = check_iocb(g, id, &r->iocb[id], iocbs[0]);
		}
	}
	if (!rc) {
		go.deadline_ns = g->deadline_ns > UINT64_MAX - now ? UINT64_MAX : now + g->deadline_ns;
		rc = engine_launch(g->engine, &go);
	}
	for (uint32_t i = 0; rc && i < go.n; i++)
		set_state(g, ids[i], IOCB_TAKEN);
	return rc;
}

int gio_wait_cqe(struct gio *g, uint32_t id, uint64_t deadline_ns, struct gio_result *out)
{
	struct ring_result r;
	int rc;

	if (!g || !out || state_of(g, id) != IOCB_ISSUED)
		return err_set(-EINVAL, "gio_wait_cqe: NULL, or IOCB %u was not issued", id);
	rc = pool_own(&g->pool, __func__);
	if (rc)
		return rc;
	rc = ring_wait(engine_ring(g->engine), id, deadline_ns, &r);
	if (rc)
		return err_set(rc, "gio: IOCB %u is not complete at the deadline", id);
	out->status = r.status;
	out->failed = r.failed;
	return 0;
}

int gio_wait_stream(struct gio *g, uint32_t id, void *stream)
{
	int rc;

	if (!g || state_of(g, id) != IOCB_ISSUED)
		return err_set(-EINVAL, "gio_wait_stream: NULL, or IOCB %u was not issued", id);
	rc = pool_own(&g->pool, __func__);
	return rc ? rc : engine_stream_wait(g->engine, id, stream);
}

void gio_put_iocb(struct gio *g, uint32_t id)
{
	struct ring_result r;

	if (!g || state_of(g, id) == IOCB_FREE || pool_own(&g->pool, __func__))
		return;
	/* The kernel still works on it: better lost than used by two. */
	if (state_of(g, id) == IOCB_ISSUED && !ring_done(engine_ring(g->engine), id, &r)) {
		log_warn("gio_put_iocb: IOCB %u is in flight; it is not given back", id);
		return;
	}
	set_state(g, id, IOCB_FREE);
	ring_put(engine_ring(g->engine), id);
}
