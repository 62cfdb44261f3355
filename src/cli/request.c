/*
 * request.c - one request of the engine stand-in: lookup, then per chunk retrieve, check, compute and store.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/replay.h"

#define LEASE_NS (600ull * 1000000000)  /* longer than any request takes */
#define STEP_NS (60ull * 1000000000)    /* deadline of one wait */
#define WAITED_NS 50000u                /* a wait longer than this counts as one */
#define KEY_PIECE_TOKENS 65536u

/* A run of blocks of the request: first the ones that the pool has, then the ones to compute. */
struct chunk {
	size_t first, hits, missing;
	size_t store_first, store_count; /* of the missing: what was reserved */
	struct tutti_plan *load, *store;
	struct tutti_lease reservation;
	int loads, computes; /* the plan was issued; bytes are computed */
	int load_timed, store_timed, store_dropped;
	uint64_t stored;
};

struct request {
	struct worker *w;
	struct replay *e;
	struct replay_sample *s;
	size_t blocks, matched;
	struct tutti_lease lease;
};

static int make_keys(struct request *q, const struct trace_request *r)
{
	struct worker *w = q->w;
	uint32_t bt = q->e->o.block_tokens;
	size_t piece = KEY_PIECE_TOKENS / bt ? KEY_PIECE_TOKENS / bt : 1;
	uint64_t cpu = cli_thread_cpu_ns();
	int result = 0;

	for (size_t i = 0; !result && i < q->blocks; i += piece) {
		size_t n = q->blocks - i < piece ? q->blocks - i : piece;

		trace_tokens(q->e->trace, r, (uint32_t)i * bt, (uint32_t)n * bt, w->tokens);
		result = tutti_keys(&q->e->ns_digest, i ? &w->keys[i - 1] : NULL, w->tokens, bt, NULL, n, w->keys + i);
	}
	q->s->compute_cpu_ns += cli_thread_cpu_ns() - cpu;
	return result;
}

/* ---- compute: what a GPU would do, and a GPU does where there is one ---- */

/* Of the request; 0 is none. */
static void note(struct request *q, int result, const char *doing)
{
	if (result)
		replay_note_error(q->e, q->s, result, doing);
}

static int begin_batch(struct request *q, struct chunk *c)
{
	int result;

	if (q->e->o.metadata_only)
		return 0;
	result = tutti_standin_begin(q->w->standin, q->w->keys + c->first, q->w->blocks, c->hits + c->missing);
	c->computes = !result;
	note(q, result, "beginning to compute");
	return result;
}

static void check_layer(struct request *q, const struct chunk *c, uint32_t layer)
{
	uint64_t cpu = cli_thread_cpu_ns();

	if (c->computes)
		note(q, tutti_standin_check(q->w->standin, layer, 0, c->hits), "checking a layer");
	q->s->compute_cpu_ns += cli_thread_cpu_ns() - cpu;
}

static void compute_layer(struct request *q, const struct chunk *c, uint32_t layer)
{
	uint64_t cpu = cli_thread_cpu_ns();

	if (c->computes)
		note(q, tutti_standin_compute(q->w->standin, layer, c->hits, c->missing), "computing a layer");
	q->s->compute_cpu_ns += cli_thread_cpu_ns() - cpu;
}

static void note_wrong(struct request *q, const struct chunk *c, size_t i, uint64_t wrong, uint64_t at)
{
	struct replay *e = q->e;
	uint64_t layer_bytes = e->object_bytes * e->objects;

	pthread_mutex_lock(&e->lock);
	if (!e->log->first_wrong[0])
		snprintf(e->log->first_wrong, sizeof(e->log->first_wrong),
		         "document %u, turn %u: block %zu, %llu bytes of it, the first in layer %llu at byte %llu",
		         q->s->document, q->s->turn, c->first + i, (unsigned long long)wrong,
		         (unsigned long long)(at / layer_bytes), (unsigned long long)(at % layer_bytes));
	pthread_mutex_unlock(&e->lock);
}

/* What the checks found, of blocks that came whole. */
static void take_found(struct request *q, const struct chunk *c)
{
	struct replay *e = q->e;
	uint64_t at;

	for (size_t i = 0; i < c->hits; i++) {
		uint64_t wrong = tutti_standin_wrong(q->w->standin, i, &at);

		if (tutti_plan_failed(c->load, i))
			continue;
		q->s->checked_bytes += e->object_bytes * e->objects * e->layers;
		q->s->mismatched_bytes += wrong;
		if (wrong)
			note_wrong(q, c, i, wrong, at);
	}
}

/* ---- plans ---- */

static int open_plan(struct request *q, const struct tutti_lease *lease, size_t first, size_t count,
                     const uint64_t *blocks, struct tutti_plan **out)
{
	struct worker *w = q->w;
	size_t bytes;
	int result = tutti_plan_blob(q->e->ns, lease, first, count, w->blob, w->blob_bytes, &bytes);

	return result ? result : tutti_plan_open(w->lane, w->blob, bytes, blocks, count, out);
}

static void open_load(struct request *q, struct chunk *c)
{
	int result = open_plan(q, &q->lease, c->first, c->hits, q->w->blocks, &c->load);

	if (!result) {
		replay_busy(q->e, &q->e->log->in, 1);
		if (!q->s->load_start_ns)
			q->s->load_start_ns = cli_now_ns();
		result = q->e->o.per_layer ? tutti_retrieve_layer(c->load, 0) : tutti_retrieve(c->load);
	}
	c->loads = !result;
	note(q, result, "retrieve");
}

/* No room, or a parent that was not kept: the blocks are used, but not kept. That is no fault. */
static int store_is_optional(int result) { return result == -ENOSPC || result == -ENOENT || result == -EAGAIN; }

static void open_store(struct request *q, struct chunk *c)
{
	size_t at = c->first + c->hits;
	uint32_t left;
	const struct tutti_key *parent = at ? &q->w->keys[at - 1] : NULL;
	int result = tutti_reserve(q->e->ns, parent, q->w->keys + at, c->missing, LEASE_NS, &c->store_first,
	                           &c->store_count, &c->reservation);

	if (result)
		c->store_count = c->store_first = 0;
	if (result && !store_is_optional(result))
		replay_note_error(q->e, q->s, result, "reserve");
	left = (uint32_t)(c->missing - c->store_first - c->store_count);
	if (!result && !c->store_count) /* reserve takes nothing behind a block that is being written */
		q->s->others_blocks += left;
	else
		q->s->no_room_blocks += left;
	if (!c->store_count)
		return;
	result = open_plan(q, &c->reservation, 0, c->store_count, q->w->blocks + c->hits + c->store_first, &c->store);
	if (result) {
		replay_note_error(q->e, q->s, result, "store");
		tutti_cancel(q->e->ns, &c->reservation);
		q->s->unwritten_blocks += (uint32_t)c->store_count;
		c->store_count = 0;
	}
}

/* Writes wait for reads: a store moves from its first layer on, but not before its chunk is loaded. */
static void begin_store(struct request *q, struct chunk *c)
{
	if (c->store_timed || (c->load && !c->load_timed))
		return;
	c->store_timed = 1;
	if (!q->s->store_start_ns)
		q->s->store_start_ns = cli_now_ns();
	replay_busy(q->e, &q->e->log->out, 1);
}

static int finish_plan(struct request *q, struct tutti_plan *p, size_t *bad, int store)
{
	const char *doing = store ? "store" : "retrieve";
	size_t bytes = 0;
	int result = tutti_plan_finish(p, cli_now_ns() + STEP_NS, q->w->blob, q->w->blob_bytes, &bytes);
	int complete = 0, lost;

	*bad = 0;
	if (bytes)
		complete = tutti_complete(q->e->ns, q->w->blob, bytes, bad);
	if (result && result != -ECANCELED)
		replay_note_error(q->e, q->s, result, doing);
	else if (complete)
		replay_note_error(q->e, q->s, complete, doing);
	lost = bytes && store && !complete ? tutti_completion_result(q->w->blob, bytes) : 0;
	if (lost &&
	    lost != -ECANCELED) /* that is a store that was dropped; blocks that can't be read are counted apart */
		replay_note_failure(q->e, q->s, lost, doing, tutti_strerror(lost));
	return result == -ENOTRECOVERABLE || result == -ETIMEDOUT ? result : 0;
}

static void end_load(struct request *q, struct chunk *c)
{
	if (c->load_timed)
		return;
	c->load_timed = 1;
	q->s->load_end_ns = cli_now_ns();
	replay_busy(q->e, &q->e->log->in, 0);
}

/* Blocks of a finished store that got lost on the way. Asked before the plan is freed. */
static uint64_t count_failed(struct tutti_plan *p, size_t n)
{
	uint64_t failed = 0;

	for (size_t i = 0; i < n; i++)
		failed += tutti_plan_failed(p, i) != 0;
	return failed;
}

static int finish_chunk(struct request *q, struct chunk *c)
{
	struct replay *e = q->e;
	uint64_t block_bytes = e->object_bytes * e->objects * e->layers;
	size_t bad = 0, failed;
	int result = 0, store_result = 0;

	if (c->load) {
		failed = c->loads ? count_failed(c->load, c->hits) : c->hits;
		q->s->failed_blocks += (uint32_t)failed;
		q->s->bytes_in += (c->hits - failed) * block_bytes;
		result = finish_plan(q, c->load, &bad, 0);
		end_load(q, c);
	}
	if (c->store) {
		begin_store(q, c);
		store_result = finish_plan(q, c->store, &bad, 1);
		q->s->store_end_ns = cli_now_ns();
		replay_busy(e, &e->log->out, 0);
		if (!c->store_dropped && !store_result && bad <= c->store_count) {
			c->stored = c->store_count - bad;
			q->s->stored_blocks += (uint32_t)c->stored;
			q->s->bytes_out += e->o.metadata_only ? 0 : c->stored * block_bytes;
			atomic_fetch_add(&e->log->stored_blocks, c->stored);
		}
		tutti_release(e->ns, &c->reservation);
		if (c->store_dropped)
			q->s->dropped_blocks += (uint32_t)(c->store_count - c->stored);
		else
			q->s->unwritten_blocks += (uint32_t)(c->store_count - c->stored);
	}
	return result ? result : store_result;
}

/* ---- layers ---- */

/* The layers behind it are issued by now, all or one. */
static void wait_layer(struct request *q, struct chunk *c, uint32_t layer)
{
	int result;

	if (q->e->o.per_layer && layer + 1 < q->e->layers)
		note(q, tutti_retrieve_layer(c->load, layer + 1), "retrieve a layer");
	result = tutti_standin_wait_layer(q->w->standin, c->load, layer, cli_now_ns() + STEP_NS);
	if (result != -EBADMSG && layer == 0)
		note(q, result, "wait for a layer");
	if (!c->load_timed && tutti_plan_poll(c->load) && (!q->e->o.per_layer || layer + 1 == q->e->layers))
		end_load(q, c);
}

static void store_layer(struct request *q, struct chunk *c, uint32_t layer)
{
	struct replay_opts *o = &q->e->o;
	int result;

	begin_store(q, c);
	result = tutti_standin_store_layer(q->w->standin, c->store, layer);
	if (result == -EAGAIN)
		c->store_dropped = 1; /* the bounded queue was full; the engine must not wait for it */
	else if (result && result != -ECANCELED)
		replay_note_error(q->e, q->s, result, "store a layer");
	if (o->kill_after_blocks && layer == q->e->layers / 2 &&
	    atomic_load(&q->e->log->stored_blocks) >= o->kill_after_blocks)
		kill(getpid(), SIGKILL);
}

static void run_layers(struct request *q, struct chunk *c)
{
	for (uint32_t layer = 0; layer < q->e->layers; layer++) {
		if (c->loads) {
			wait_layer(q, c, layer);
			check_layer(q, c, layer);
		}
		if (c->missing)
			compute_layer(q, c, layer);
		if (c->store)
			store_layer(q, c, layer);
	}
}

/* A GPU is behind: until its layers are loaded, and then computed. */
static int end_layers(struct request *q, struct chunk *c)
{
	int result;

	if (c->loads) {
		/* Its result was noted, or is a block's. */
		tutti_wait_layer(c->load, q->e->layers - 1, cli_now_ns() + STEP_NS);
		end_load(q, c);
	}
	if (c->store)
		begin_store(q, c);
	if (!c->computes)
		return 0;
	result = tutti_standin_end(q->w->standin, cli_now_ns() + STEP_NS);
	note(q, result, "computing");
	for (uint32_t layer = 0; c->loads && !result && layer < q->e->layers; layer++) {
		uint64_t ns = tutti_standin_waited_ns(q->w->standin, layer);

		q->s->layers++;
		q->s->layers_waited += ns > WAITED_NS;
		q->s->wait_ns += ns;
	}
	if (c->loads && !result)
		take_found(q, c);
	return result;
}

static int run_chunk(struct request *q, size_t first, size_t n)
{
	struct replay *e = q->e;
	struct chunk c = {.first = first};
	int result = arena_take(&e->arena, n, cli_now_ns() + 2 * STEP_NS, q->w->blocks), finished;

	if (result) {
		replay_note_error(e, q->s, result, "waiting for free KV blocks");
		return 0;
	}
	c.hits = q->matched > first ? q->matched - first : 0;
	c.hits = c.hits < n ? c.hits : n;
	c.missing = n - c.hits;
	q->s->chunks++;
	result = begin_batch(q, &c);
	if (result)
		return result;
	if (c.hits && !e->o.metadata_only)
		open_load(q, &c);
	if (c.missing)
		open_store(q, &c);
	run_layers(q, &c);
	result = end_layers(q, &c);
	finished = finish_chunk(q, &c);
	result = result ? result : finished;
	if (!result) /* else something may still write to them */
		arena_give(&e->arena, n, q->w->blocks);
	return result;
}

int replay_request(struct worker *w, const struct trace_request *r, struct replay_sample *s)
{
	struct replay *e = w->e;
	struct request q = {.w = w, .e = e, .s = s, .blocks = r->input_tokens / e->o.block_tokens};
	/* One token at least is always computed: its output is what the engine samples from. */
	size_t useful = (r->input_tokens - 1) / e->o.block_tokens;
	int result = make_keys(&q, r);

	s->document = r->document;
	s->turn = r->turn;
	s->tokens = r->input_tokens;
	s->output_tokens = r->output_tokens;
	s->blocks = (uint32_t)q.blocks;
	if (result)
		return result;
	if (useful)
		result =
		    tutti_lookup(e->ns, w->keys, useful, LEASE_NS, &q.matched, e->o.metadata_only ? NULL : &q.lease);
	if (result) {
		replay_note_error(e, s, result, "lookup");
		q.matched = 0;
		result = 0;
	}
	s->hit_blocks = (uint32_t)q.matched;
	s->hit_tokens = (uint32_t)(q.matched * e->o.block_tokens);
	for (size_t i = 0; !result && i < q.blocks; i += e->chunk_blocks)
		result = run_chunk(&q, i, q.blocks - i < e->chunk_blocks ? q.blocks - i : e->chunk_blocks);
	tutti_release(e->ns, &q.lease);
	return result;
}
