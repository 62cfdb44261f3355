/*
 * rig.c - pool, store, lane and KV memory in the classic layout: layers outermost, K and V split, blocks scattered.
 * Bytes depend on (key, layer, object, place) alone. Times are of the public calls, from lookup or reserve to complete.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

void bench_need(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "bench: %s: %s (%s)\n", what, tutti_error_message(), tutti_strerror(result));
	exit(3);
}

/* ---- up and down ---- */

static void open_memory(struct bench_rig *r)
{
	const struct bench_shape *s = &r->shape;
	uint64_t half = s->blocks * s->object_bytes, layer = half * s->objects;
	void **base = calloc(s->layers, sizeof(*base));

	r->memory_bytes = layer * (s->one_layer ? 1 : s->layers);
	r->memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->order = malloc(s->blocks * sizeof(*r->order));
	r->tokens = malloc(s->blocks * sizeof(*r->tokens));
	r->blob_bytes = tutti_plan_blob_bytes(s->blocks);
	if (tutti_completion_blob_bytes(s->blocks) > r->blob_bytes)
		r->blob_bytes = tutti_completion_blob_bytes(s->blocks);
	r->blob = malloc(r->blob_bytes);
	if (!base || r->memory == MAP_FAILED || !r->order || !r->tokens || !r->blob)
		bench_need(-ENOMEM, "KV memory");
	for (uint32_t l = 0; l < s->layers; l++)
		base[l] = r->memory + (s->one_layer ? 0 : l * layer);
	r->kv = (struct tutti_kv_layout)TUTTI_KV_LAYOUT_INIT;
	r->kv.layers = s->layers;
	r->kv.blocks = s->blocks;
	r->kv.layer_base = base;
	r->kv.block_stride = s->object_bytes;
	r->kv.outer_count = s->objects;
	r->kv.outer_stride = half;
	r->kv.segment_bytes = s->object_bytes;
	for (uint64_t i = 0; i < s->blocks; i++) {
		uint64_t k = bench_mix(i + 77) % (i + 1);

		r->order[i] = r->order[k];
		r->order[k] = i;
	}
}

static void open_namespace(struct bench_rig *r)
{
	struct tutti_ns_spec spec = TUTTI_NS_SPEC_INIT;

	spec.model = "tutti bench";
	memcpy(spec.weights, "no weights: bytes of a benchmark", sizeof(spec.weights));
	spec.kv_dtype = "bytes";
	spec.backend = "tutti-bench-1";
	spec.block_tokens = 1;
	spec.kv_heads = 1;
	spec.head_size = 1;
	spec.tp_size = 1;
	bench_need(tutti_kv_layout_objects(&r->kv, &spec), "layout");
	bench_need(tutti_ns_digest(&spec, &r->digest), "digest");
	bench_need(tutti_ns_open(r->store, &spec, &r->ns), "namespace");
}

struct tutti_lane *bench_lane(struct bench_rig *r, enum tutti_controller controller)
{
	struct tutti_lane_opts o = TUTTI_LANE_OPTS_INIT;
	struct tutti_lane *l;

	o.paths = &r->shape.path;
	o.n_paths = 1;
	o.controller = controller;
	bench_need(tutti_lane_open(&o, &r->digest, &l), "lane");
	bench_need(tutti_lane_register(l, &r->kv), "register");
	return l;
}

void bench_rig_open(struct bench_rig *r, const struct bench_shape *shape)
{
	struct tutti_format_opts f = TUTTI_FORMAT_OPTS_INIT;
	struct tutti_store_opts s = TUTTI_STORE_OPTS_INIT;

	memset(r, 0, sizeof(*r));
	r->shape = *shape;
	open_memory(r);
	f.paths = s.paths = &r->shape.path;
	f.n_paths = s.n_paths = 1;
	f.bytes = shape->pool_bytes;
	f.prewrite = shape->prewrite;
	f.overwrite = 1;
	if (!shape->keep)
		bench_need(tutti_format(&f), "format");
	s.prewrite_ahead = bench_opts.prewrite_ahead;
	if (shape->prewrite == TUTTI_PREWRITE_NONE)
		s.prewrite_ahead = -1;
	r->open_ns = bench_now_ns();
	bench_need(tutti_store_open(&s, &r->store), "store");
	open_namespace(r);
	r->open_ns = bench_now_ns() - r->open_ns;
	if (!shape->no_lane)
		r->lane = bench_lane(r, shape->controller);
}

void bench_rig_close(struct bench_rig *r)
{
	if (r->lane)
		bench_need(tutti_lane_close(r->lane), "close lane");
	if (r->store)
		bench_need(tutti_store_close(r->store), "close store");
	munmap(r->memory, r->memory_bytes);
	free((void *)(uintptr_t)r->kv.layer_base);
	free(r->order);
	free(r->tokens);
	free(r->blob);
}

uint64_t bench_rig_slots(struct bench_rig *r)
{
	struct tutti_pool_info pool;
	struct tutti_ns_info ns;

	bench_need(tutti_store_info(r->store, &pool), "info");
	bench_need(tutti_ns_get_info(r->ns, &ns), "info");
	return pool.segment_bytes / ns.slot_bytes * pool.segments;
}

/* ---- bytes ---- */

void bench_keys(struct bench_rig *r, uint64_t seed, size_t n, struct tutti_key *keys)
{
	for (size_t i = 0; i < n; i++)
		r->tokens[i] = (uint32_t)bench_mix(seed * 1000003u + i);
	bench_need(tutti_keys(&r->digest, NULL, r->tokens, 1, NULL, n, keys), "keys");
}

static uint64_t *object_at(struct bench_rig *r, uint32_t layer, uint64_t block, uint32_t object)
{
	return (uint64_t *)((uint8_t *)r->kv.layer_base[layer] + block * r->kv.block_stride +
	                    object * r->kv.outer_stride);
}

static uint64_t object_do(uint64_t *at, uint64_t words, uint64_t seed, int check)
{
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < words; i++) {
		uint64_t v = bench_mix((seed << 20) + i); /* nothing that a device could compress */

		if (check)
			wrong += at[i] != v ? 8 : 0;
		else
			at[i] = v;
	}
	return wrong;
}

static uint64_t block_do(struct bench_rig *r, uint64_t block, const struct tutti_key *key, int check)
{
	uint64_t seed, wrong = 0;

	memcpy(&seed, key->b, sizeof(seed));
	for (uint32_t l = 0; l < r->shape.layers; l++)
		for (uint32_t o = 0; o < r->shape.objects; o++)
			wrong +=
			    object_do(object_at(r, l, block, o), r->shape.object_bytes / 8, seed + l * 101 + o, check);
	return wrong;
}

void bench_fill(struct bench_rig *r, const struct tutti_key *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		block_do(r, r->order[i], &keys[i], 0);
}

void bench_wipe(struct bench_rig *r)
{
	for (uint64_t i = 0; i < r->memory_bytes; i += 4096)
		memset(r->memory + i, 0xdb, 64);
}

uint64_t bench_wrong(struct bench_rig *r, const struct tutti_key *keys, size_t n, size_t each)
{
	uint64_t wrong = 0;

	for (size_t i = 0; i < n; i += each)
		wrong += block_do(r, r->order[i], &keys[i], 1);
	return wrong;
}

/* ---- moves ---- */

static void cost_begin(struct tutti_lane *l, struct bench_cost *c)
{
	struct tutti_lane_stats s;

	bench_need(tutti_lane_stats(l, &s), "stats");
	c->sum_ns = s.checksum_ns;
	c->commands = s.commands;
	c->cpu_ns = bench_process_cpu_ns();
	c->wall_ns = bench_now_ns();
}

static void cost_end(struct bench_rig *r, struct tutti_lane *l, size_t n, struct bench_cost *c)
{
	struct tutti_lane_stats s;

	c->wall_ns = bench_now_ns() - c->wall_ns;
	c->cpu_ns = bench_process_cpu_ns() - c->cpu_ns;
	bench_need(tutti_lane_stats(l, &s), "stats");
	c->sum_ns = s.checksum_ns - c->sum_ns;
	c->commands = s.commands - c->commands;
	c->bytes = n * r->shape.layers * r->shape.objects * r->shape.object_bytes;
}

/* Runs the plan of a lease or reservation and reports it. */
static void run_plan(struct bench_rig *r, struct tutti_lane *l, const struct tutti_lease *lease, size_t first, size_t n,
                     int store)
{
	struct tutti_plan *p;
	size_t bytes, bad = 0;

	bench_need(tutti_plan_blob(r->ns, lease, 0, n, r->blob, r->blob_bytes, &bytes), "plan");
	bench_need(tutti_plan_open(l, r->blob, bytes, r->order + first, n, &p), "plan");
	if (!store)
		bench_need(tutti_retrieve(p), "retrieve");
	for (uint32_t i = 0; store && i < r->shape.layers; i++)
		bench_need(tutti_store_layer(p, i), "store");
	for (uint32_t i = 0; !store && i < r->shape.layers; i++)
		bench_need(tutti_wait_layer(p, i, bench_now_ns() + BENCH_STEP_NS), "wait");
	bench_need(tutti_plan_finish(p, bench_now_ns() + BENCH_STEP_NS, r->blob, r->blob_bytes, &bytes), "finish");
	bench_need(tutti_complete(r->ns, r->blob, bytes, &bad), "complete");
	bench_need(bad ? -EBADMSG : 0, "blocks failed");
	bench_need(tutti_release(r->ns, lease), "release");
}

void bench_store(struct bench_rig *r, struct tutti_lane *l, const struct tutti_key *keys, size_t n, size_t *stored,
                 struct bench_cost *cost)
{
	struct tutti_lease hold;
	size_t first = 0, count = 0;

	cost_begin(l, cost);
	bench_need(tutti_reserve(r->ns, NULL, keys, n, BENCH_LEASE_NS, &first, &count, &hold), "reserve");
	if (count)
		run_plan(r, l, &hold, first, count, 1);
	cost_end(r, l, count, cost);
	if (stored)
		*stored = count;
}

void bench_retrieve(struct bench_rig *r, const struct tutti_key *keys, size_t n, size_t *hit, struct bench_cost *cost)
{
	struct tutti_lease lease;

	cost_begin(r->lane, cost);
	bench_need(tutti_lookup(r->ns, keys, n, BENCH_LEASE_NS, hit, &lease), "lookup");
	if (*hit)
		run_plan(r, r->lane, &lease, 0, *hit, 0);
	cost_end(r, r->lane, *hit, cost);
}
