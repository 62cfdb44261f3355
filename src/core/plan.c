/*
 * plan.c - a plan's life: opened from a blob, its steps issued, waited for, reported as a completion blob.
 *
 * A retrieve is headers, then layers. A store is: wipe old headers, layers, commit (the new headers). Each is an IOCB
 * that names plan and step, so issuing costs the same for 16 blocks and for 16,384.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/blob.h"
#include "core/lane.h"

#define WRITE_WAIT_SLICE_NS 10000000ull

/* ---- open and free ---- */

static void plan_free(struct tutti_plan *p)
{
	for (uint32_t i = 0; p->iocb && i < p->dev.geom.layers + 2; i++)
		if (p->iocb[i] != PLAN_NO_IOCB)
			ring_put(engine_ring(p->lane->engine), p->iocb[i]);
	free(p->iocb);
	engine_room_put(p->lane->engine, &p->room);
	free(p);
}

/* Takes `bytes` of what is left at *at; each array begins on a line of its own. */
static void *cut(uint8_t **at, size_t bytes)
{
	void *p = *at;

	*at += (bytes + 63) / 64 * 64;
	return p;
}

/*
 * A plan's arrays, in one piece. Where device code runs elsewhere there are two, which begin alike (the plan, entries,
 * keys): the shared one, which the host fills and reads results in, and the near one, which plan_send fills.
 */
static void plan_place(struct tutti_plan *p, struct dev_plan *d, uint8_t *at, int near)
{
	size_t n = d->n;

	p->image = near ? p->image : (struct dev_plan *)(void *)at;
	p->near_plan = near ? (struct dev_plan *)(void *)at : p->near_plan;
	cut(&at, sizeof(*d));
	d->entries = cut(&at, n * sizeof(*d->entries));
	d->keys = cut(&at, n * sizeof(*d->keys));
	d->results = cut(&at, n * sizeof(*d->results));
	if (!near) {
		d->results_host = d->results;
		d->first_error = cut(&at, sizeof(*d->first_error));
	}
	d->sums = cut(&at, n * geom_objects(&d->geom) * sizeof(*d->sums));
}

static int plan_alloc(struct tutti_plan *p, uint32_t n)
{
	const struct geom *g = &p->dev.geom;
	uint64_t front = sizeof(p->dev) + n * (sizeof(*p->entries) + sizeof(*p->keys) + sizeof(*p->dev.results)) + 512;
	uint64_t sums = (uint64_t)n * geom_objects(g) * sizeof(*p->dev.sums);
	int remote = engine_remote(p->lane->engine), rc;

	p->iocb = malloc((g->layers + 2) * sizeof(*p->iocb));
	if (!p->iocb)
		return err_set(-ENOMEM, "no memory for a plan of %u blocks", n);
	for (uint32_t i = 0; i < g->layers + 2; i++)
		p->iocb[i] = PLAN_NO_IOCB;
	rc = engine_room_get(p->lane->engine, remote ? front : front + sums, front + sums, &p->room);
	if (rc)
		return err_set(rc,
		               rc == -EAGAIN ? "no room for a plan of %u blocks beside those that are open"
		                             : "no memory for a plan of %u blocks",
		               n);
	plan_place(p, &p->dev, p->room.shared, 0);
	p->entries = (struct dev_entry *)(uintptr_t)p->dev.entries;
	p->keys = (uint8_t(*)[WIRE_KEY_BYTES])(uintptr_t)p->dev.keys;
	if (p->room.near)
		plan_place(p, &p->dev, p->room.near, 1);
	return 0;
}

/* The filled plan goes to where device code reads it. */
static int plan_send(struct tutti_plan *p)
{
	struct engine *e = p->lane->engine;
	uint32_t stream = p->dev.op == WIRE_READ ? ENGINE_READS : ENGINE_WRITES;
	uint8_t *rest = (uint8_t *)p->dev.results;
	size_t front;
	int rc;

	if (!p->room.near)
		return 0;
	front = (size_t)(rest - (uint8_t *)p->near_plan);
	*p->image = p->dev;
	rc = engine_copy_in(e, stream, p->near_plan, p->image, front);
	if (!rc)
		rc = engine_copy_in(e, stream, rest, NULL,
		                    (size_t)((uint8_t *)(p->dev.sums + p->dev.n * geom_objects(&p->dev.geom)) - rest));
	return rc;
}

/* Two reads into one block would leave a mixture that no checksum finds. Order n, whatever the KV memory's size. */
static int refuse_twice(const struct tutti_lane *l, const uint64_t *blocks, uint32_t n)
{
	uint32_t i = 0;
	int rc = 0;

	for (; i < n && !rc; i++) {
		uint64_t *word = &l->taken[blocks[i] / 64], bit = 1ull << blocks[i] % 64;

		if (*word & bit)
			rc = err_set(-EINVAL, "plan: block number %llu is named twice", (unsigned long long)blocks[i]);
		*word |= bit;
	}
	while (i--)
		l->taken[blocks[i] / 64] = 0;
	return rc;
}

static int plan_fill(struct tutti_plan *p, const void *blob, const uint64_t *blocks)
{
	struct dev_plan *d = &p->dev;
	const struct tutti_lane *l = p->lane;
	uint64_t slots = (uint64_t)d->geom.slots_per_segment * d->geom.n_segments;

	for (uint32_t i = 0; i < d->n; i++) {
		struct wire_blob_entry e = blob_entry_at(blob, i);

		if (e.slot >= slots)
			return err_set(-EBADMSG, "plan blob: slot %u is outside of the pool", e.slot);
		if (blocks[i] >= l->blocks)
			return err_set(-EINVAL, "plan: block number %llu, but the KV memory has %llu blocks",
			               (unsigned long long)blocks[i], (unsigned long long)l->blocks);
		p->entries[i].slot = e.slot;
		p->entries[i].block = (uint32_t)blocks[i];
		p->entries[i].header_valid = e.value != 0;
		p->entries[i].rsvd = 0;
		p->needs_wipe |= p->entries[i].header_valid;
		memcpy(p->keys[i], e.key, WIRE_KEY_BYTES);
	}
	return d->op == WIRE_READ ? refuse_twice(l, blocks, d->n) : 0;
}

static int plan_check(const struct tutti_lane *l, const struct wire_blob *b, size_t n_blocks)
{
	if (!l->registered)
		return err_set(-EINVAL, "plan: register the KV memory first (tutti_lane_register)");
	if (b->n != n_blocks || !b->n)
		return err_set(-EINVAL, "plan: the blob has %u blocks, %zu block numbers were given", b->n, n_blocks);
	if (b->op != TUTTI_RETRIEVE && b->op != TUTTI_STORE)
		return err_set(-EBADMSG, "plan blob: unknown operation %u", b->op);
	if (b->epoch != l->view.pool.epoch)
		return err_set(-ESTALE, "plan: of epoch %llu, this lane belongs to epoch %llu; open the lane again",
		               (unsigned long long)b->epoch, (unsigned long long)l->view.pool.epoch);
	if (memcmp(b->ns_digest, l->view.ns_digest.b, sizeof(b->ns_digest)))
		return err_set(-EINVAL, "plan: of another namespace than this lane's");
	if (b->expiry_ns <= port_now_ns())
		return err_set(-ESTALE, "plan: its lease has expired; look up again");
	if (l->no_verify && b->op == TUTTI_RETRIEVE && !(b->flags & WIRE_BLOB_SYNCED) && !l->null_ctrl)
		return err_set(-EPERM, "plan: holds blocks that were not synced, and this lane does not verify; "
		                       "call tutti_store_sync or verify");
	if (l->n_plans >= LANE_PLANS_MAX)
		return err_set(-EAGAIN, "plan: %u plans are open", l->n_plans);
	return 0;
}

int tutti_plan_open(struct tutti_lane *l, const void *blob, size_t bytes, const uint64_t *blocks, size_t n_blocks,
                    struct tutti_plan **out)
{
	struct tutti_plan *p;
	struct wire_blob b;
	int rc;

	if (!l || !blocks || !out)
		return err_set(-EINVAL, "tutti_plan_open: NULL");
	rc = pool_own(&l->pool, __func__);
	if (!rc)
		rc = blob_open(blob, bytes, WIRE_BLOB_PLAN, &b);
	if (!rc)
		rc = plan_check(l, &b, n_blocks);
	if (rc)
		return rc;
	p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(-ENOMEM, "no memory for a plan");
	p->lane = l;
	p->blob = b;
	p->dev.geom = l->view.geom;
	p->dev.mem = l->mem;
	p->dev.op = b.op == TUTTI_STORE ? WIRE_WRITE : WIRE_READ;
	p->dev.flags = (l->no_verify || l->null_ctrl ? 0u : DEV_PLAN_VERIFY) | (l->bounce ? DEV_PLAN_BOUNCE : 0u) |
	               (l->null_ctrl ? DEV_PLAN_NO_HEADERS : 0u);
	p->dev.n = b.n;
	p->dev.rank = l->rank;
	p->dev.generation = b.generation;
	p->dev.sequence = b.sequence;
	p->dev.epoch = b.epoch;
	p->dev.depth = b.depth;
	memcpy(p->dev.ns_digest, b.ns_digest, sizeof(p->dev.ns_digest));
	memcpy(p->dev.parent, b.parent, sizeof(p->dev.parent));
	rc = plan_alloc(p, b.n);
	if (!rc)
		rc = plan_fill(p, blob, blocks);
	if (!rc)
		rc = plan_send(p);
	if (rc) {
		plan_free(p);
		return rc;
	}
	l->n_plans++;
	*out = p;
	return 0;
}

int plan_deadline(const struct tutti_plan *p, uint64_t *deadline_ns)
{
	int rc = sched_deadline(port_now_ns(), p->blob.expiry_ns, p->lane->deadline_ns, deadline_ns);

	return rc ? err_set(rc, "plan: its lease ends too soon for I/O, which needs 2.6 s of it; ask for longer leases")
	          : 0;
}

/* ---- issue ---- */

/* An IOCB for a step of p; remembered at p->iocb[at]. */
static int step_iocb(struct tutti_plan *p, uint32_t at, uint32_t step, struct wire_iocb **out)
{
	int rc = ring_get(engine_ring(p->lane->engine), 0, out, NULL);

	if (rc)
		return rc;
	(*out)->plan = (uint64_t)(uintptr_t)(p->room.near ? p->near_plan : &p->dev);
	(*out)->ioctx = (uint64_t)(uintptr_t)&p->dev;
	(*out)->step = step;
	p->iocb[at] = (*out)->id;
	return 0;
}

static void step_undo(struct tutti_plan *p, uint32_t at)
{
	if (p->iocb[at] != PLAN_NO_IOCB)
		ring_put(engine_ring(p->lane->engine), p->iocb[at]);
	p->iocb[at] = PLAN_NO_IOCB;
}

/*
 * When the engine will ask for more, after n layers now: at the pace of those before, which is its compute's where it
 * asks layer by layer. Stores go into the time between (sched). SCHED_NEVER: these are the last.
 */
static uint64_t next_read_ns(struct tutti_plan *p, uint32_t n)
{
	uint64_t now_ns = port_now_ns();

	if (!p->layers_issued)
		p->first_issued_ns = now_ns;
	if (p->layers_issued + n == p->dev.geom.layers)
		return SCHED_NEVER;
	return p->layers_issued ? now_ns + (now_ns - p->first_issued_ns) / p->layers_issued : now_ns;
}

/* Issues layers [from, to) of a retrieve, and before the first of the plan its headers, as one kernel. */
static int retrieve_layers(struct tutti_plan *p, uint32_t from, uint32_t to)
{
	struct wire_iocb *iocbs[DEV_STEPS_MAX];
	struct engine_launch go = {.iocbs = iocbs,
	                           .stream = ENGINE_READS,
	                           .gentle = plan_gentle(p->lane, ENGINE_READS),
	                           .done = write_queue_read_done,
	                           .done_arg = p->lane};
	uint32_t headers = plan_first_step(p);
	int first = p->iocb[headers] == PLAN_NO_IOCB && !(p->dev.flags & DEV_PLAN_NO_HEADERS);
	int rc = plan_deadline(p, &go.deadline_ns);

	if (!rc && first)
		rc = step_iocb(p, headers, WIRE_STEP_HEADERS, &iocbs[go.n++]);
	for (uint32_t i = from; i < to && !rc; i++)
		rc = step_iocb(p, i, i, &iocbs[go.n++]);
	if (!rc) {
		write_queue_read_begin(p->lane, p, next_read_ns(p, to - from));
		rc = engine_launch(p->lane->engine, &go);
		if (rc)
			write_queue_read_done(p->lane);
	}
	if (rc) {
		for (uint32_t i = from; i < to; i++)
			step_undo(p, i);
		if (first)
			step_undo(p, headers);
		return rc;
	}
	p->layers_issued += to - from;
	return 0;
}

int tutti_retrieve(struct tutti_plan *p)
{
	uint32_t layers;
	int rc;

	if (!p || p->dev.op != WIRE_READ || p->layers_issued)
		return err_set(-EINVAL, "tutti_retrieve: not a fresh retrieve plan");
	rc = pool_own(&p->lane->pool, __func__);
	layers = p->dev.geom.layers;
	for (uint32_t i = 0; i < layers && !rc; i += DEV_STEPS_MAX - 1)
		rc = retrieve_layers(p, i, layers - i < DEV_STEPS_MAX - 1 ? layers : i + DEV_STEPS_MAX - 1);
	return rc;
}

int tutti_retrieve_layer(struct tutti_plan *p, uint32_t layer)
{
	int rc;

	if (!p || p->dev.op != WIRE_READ || layer >= p->dev.geom.layers || p->iocb[layer] != PLAN_NO_IOCB)
		return err_set(-EINVAL, "tutti_retrieve_layer: not a retrieve plan, no such layer, or issued already");
	rc = pool_own(&p->lane->pool, __func__);
	return rc ? rc : retrieve_layers(p, layer, layer + 1);
}

static int drop(struct tutti_plan *p, int rc)
{
	p->dropped = 1;
	pthread_mutex_lock(&p->lane->stats_lock);
	p->lane->stores_dropped++;
	pthread_mutex_unlock(&p->lane->stats_lock);
	return rc;
}

/* held: not before what `stream` holds now. */
static int store_layer(struct tutti_plan *p, uint32_t layer, int held, void *stream)
{
	struct wire_iocb *iocbs[2];
	uint32_t n = 0, wipe;
	uint64_t due;
	int rc;

	if (!p || p->dev.op != WIRE_WRITE || layer >= p->dev.geom.layers || p->iocb[layer] != PLAN_NO_IOCB ||
	    p->commit_issued)
		return err_set(-EINVAL, "store of a layer: not a store plan, no such layer, or stored already");
	rc = pool_own(&p->lane->pool, held ? "tutti_store_layer_stream" : "tutti_store_layer");
	if (rc)
		return rc;
	if (p->dropped)
		return err_set(-ECANCELED, "this store was dropped");
	wipe = plan_first_step(p);
	rc = plan_deadline(p, &due);
	if (!rc && p->needs_wipe && p->iocb[wipe] == PLAN_NO_IOCB)
		rc = step_iocb(p, wipe, WIRE_STEP_INVALIDATE, &iocbs[n++]);
	if (!rc)
		rc = step_iocb(p, layer, layer, &iocbs[n++]);
	if (!rc && held)
		rc = engine_stream_hold(p->lane->engine, iocbs[n - 1], stream, NULL);
	if (!rc)
		rc = write_queue_add(p->lane, p, iocbs, n);
	if (rc) {
		step_undo(p, layer);
		if (n && iocbs[0]->step == WIRE_STEP_INVALIDATE)
			step_undo(p, wipe);
		return drop(p, err_prefix(rc, "store dropped"));
	}
	p->layers_issued++;
	return 0;
}

int tutti_store_layer(struct tutti_plan *p, uint32_t layer) { return store_layer(p, layer, 0, NULL); }

int tutti_store_layer_stream(struct tutti_plan *p, uint32_t layer, void *stream)
{
	if (p && !engine_remote(p->lane->engine))
		return err_set(-ENOTSUP,
		               "tutti_store_layer_stream: %s run the I/O, which know no streams; use "
		                         "tutti_store_layer once the layer is computed",
		               engine_executor(p->lane->engine));
	return store_layer(p, layer, 1, stream);
}

/* ---- wait and report ---- */

/*
 * Waits for one step; a store that waits behind reads is pushed on, since nobody else may come by to do so. What waits
 * in the queue of a dead lane will never be issued: -ENOTRECOVERABLE.
 */
static int wait_step(struct tutti_plan *p, uint32_t at, uint64_t deadline_ns)
{
	struct ring_result r;

	for (;;) {
		uint64_t until = port_now_ns() + WRITE_WAIT_SLICE_NS;
		int rc;

		if (until > deadline_ns || p->dev.op == WIRE_READ)
			until = deadline_ns;
		rc = ring_wait(engine_ring(p->lane->engine), p->iocb[at], until, &r);
		if (!rc || until == deadline_ns)
			return rc;
		if (engine_dead(p->lane->engine))
			return -ENOTRECOVERABLE;
		write_queue_kick(p->lane);
	}
}

/* What errno has words of its own for, which are not these. */
static const char *block_reason(int rc)
{
	return rc == -EBADMSG ? "damaged: a checksum differs"
	       : rc == -ESTALE ? "its slot holds another block, or none"
	                       : err_name(rc);
}

int tutti_wait_layer(struct tutti_plan *p, uint32_t layer, uint64_t deadline_ns)
{
	int rc;

	if (!p || layer >= p->dev.geom.layers || p->iocb[layer] == PLAN_NO_IOCB)
		return err_set(-EINVAL, "tutti_wait_layer: this layer was not issued");
	rc = pool_own(&p->lane->pool, __func__);
	if (rc)
		return rc;
	rc = wait_step(p, layer, deadline_ns);
	if (rc)
		return err_set(
		    rc, rc == -ETIMEDOUT ? "layer %u: no answer by the deadline" : "layer %u: the lane is dead", layer);
	/* Any failure so far, of this layer or one before it: a block is whole or it is not. */
	rc = (int)port_load_acquire32(p->dev.first_error);
	return rc ? err_set(rc, "layer %u: at least one block failed (%s); recompute from there", layer,
	                    block_reason(rc))
	          : 0;
}

int tutti_wait_layer_stream(struct tutti_plan *p, uint32_t layer, void *stream)
{
	int rc;

	if (!p || layer >= p->dev.geom.layers || p->iocb[layer] == PLAN_NO_IOCB)
		return err_set(-EINVAL, "tutti_wait_layer_stream: this layer was not issued");
	rc = pool_own(&p->lane->pool, __func__);
	return rc ? rc : engine_stream_wait(p->lane->engine, p->iocb[layer], stream);
}

int tutti_plan_poll(struct tutti_plan *p)
{
	struct ring_result r;
	int rc = p ? pool_own(&p->lane->pool, __func__) : 0;

	if (rc)
		return rc;
	for (uint32_t i = 0; p && i < p->dev.geom.layers + 2; i++)
		if (p->iocb[i] != PLAN_NO_IOCB && !ring_done(engine_ring(p->lane->engine), p->iocb[i], &r))
			return 0;
	return 1;
}

int tutti_plan_failed(struct tutti_plan *p, size_t i)
{
	return !p || i >= p->dev.n || pool_own(&p->lane->pool, __func__)
	           ? -EINVAL
	           : __atomic_load_n(&p->dev.results_host[i], __ATOMIC_RELAXED);
}

static int wait_all(struct tutti_plan *p, uint64_t deadline_ns)
{
	for (uint32_t i = 0; i < p->dev.geom.layers + 2; i++)
		if (p->iocb[i] != PLAN_NO_IOCB && wait_step(p, i, deadline_ns))
			return engine_dead(p->lane->engine)
			           ? -ENOTRECOVERABLE
			           : err_set(-ETIMEDOUT,
			                     "plan: I/O is in flight at the deadline; call tutti_plan_finish again");
	return 0;
}

/* Writes the headers of what is whole. Everything issued before is complete or in the queue before it. */
static void commit(struct tutti_plan *p)
{
	struct wire_iocb *io;
	int rc;

	if (p->commit_issued || p->dropped)
		return;
	if (p->layers_issued < p->dev.geom.layers) {
		drop(p, 0);
		return;
	}
	rc = step_iocb(p, plan_commit_step(p), WIRE_STEP_COMMIT, &io);
	if (!rc)
		rc = write_queue_add(p->lane, p, &io, 1);
	if (rc) {
		step_undo(p, plan_commit_step(p));
		drop(p, rc); /* reported per block */
		return;
	}
	p->commit_issued = 1;
}

size_t tutti_completion_blob_bytes(size_t n_blocks) { return blob_bytes(n_blocks); }

static int plan_result(const struct tutti_plan *p, uint32_t i)
{
	if (p->dev.results_host[i])
		return p->dev.results_host[i];
	if (p->dev.op == WIRE_WRITE && !p->commit_issued)
		return -ECANCELED;
	return p->dev.op == WIRE_READ && p->layers_issued < p->dev.geom.layers ? -ECANCELED : 0;
}

static void fill_completion(const struct tutti_plan *p, void *blob)
{
	struct wire_blob b = p->blob;

	b.rank = p->dev.rank;
	memcpy(blob, &b, sizeof(b));
	for (uint32_t i = 0; i < p->dev.n; i++) {
		struct wire_blob_entry e = {.slot = p->entries[i].slot, .value = plan_result(p, i)};

		memcpy(e.key, p->keys[i], WIRE_KEY_BYTES);
		blob_entry_put(blob, i, &e);
	}
	blob_seal(blob, WIRE_BLOB_COMPLETION);
}

static void count(const struct tutti_plan *p)
{
	struct tutti_lane *l = p->lane;
	uint64_t failed = 0;

	for (uint32_t i = 0; i < p->dev.n; i++)
		failed += plan_result(p, i) != 0;
	pthread_mutex_lock(&l->stats_lock);
	l->failed_blocks += failed;
	if (p->dev.op == WIRE_READ)
		l->layers_retrieved += p->layers_issued;
	else
		l->layers_stored += p->layers_issued;
	pthread_mutex_unlock(&l->stats_lock);
}

int tutti_plan_finish(struct tutti_plan *p, uint64_t deadline_ns, void *blob, size_t bytes_max, size_t *bytes)
{
	int rc;

	if (!p)
		return err_set(-EINVAL, "tutti_plan_finish: NULL");
	rc = pool_own(&p->lane->pool, "tutti_plan_finish");
	if (rc)
		return rc;
	if (blob && bytes_max < blob_bytes(p->dev.n))
		return err_set(-ENOBUFS, "completion: %zu bytes are needed", blob_bytes(p->dev.n));
	if (p->dev.op == WIRE_WRITE)
		commit(p);
	rc = wait_all(p, deadline_ns);
	if (rc == -ETIMEDOUT)
		return rc;
	if (rc || engine_dead(p->lane->engine))
		return err_set(-ENOTRECOVERABLE,
		               "the lane is dead: its memory may still be written; keep the blocks and stop");
	if (blob) {
		fill_completion(p, blob);
		if (bytes)
			*bytes = blob_bytes(p->dev.n);
	}
	count(p);
	if (p->dev.op == WIRE_READ && p->layers_issued < p->dev.geom.layers)
		write_queue_no_more_reads(p->lane, p);
	p->lane->n_plans--;
	plan_free(p);
	return 0;
}
