/* rig.c - see rig.h. */
#include "core/rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/lane.h"

#define LEASE_NS 120000000000ull
#define LANE_DEADLINE_NS 30000000000ull /* core/lane.c */
#define PLAN_DEADLINE_NS 60000000000ull

static const char *pool_dir = "/tmp";

void rig_dir(const char *dir) { pool_dir = dir; }

uint64_t rig_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void need(int rc, const char *what)
{
	if (rc) {
		printf("# %s: %s (%s)\n", what, tutti_error_message(), tutti_strerror(rc));
		printf("0 passed, 1 failed, 0 skipped\n");
		exit(1);
	}
}

/* ---- memory ---- */

/* Strides of the dimensions, from the innermost of `order` outwards. */
static void shape_layout(struct rig *r, uint32_t rank)
{
	const struct rig_shape *s = &r->shape;
	struct tutti_kv_layout *kv = &r->kv[rank];
	uint64_t stride = s->segment_bytes + s->gap_bytes, layer_stride = 0;

	*kv = (struct tutti_kv_layout)TUTTI_KV_LAYOUT_INIT;
	kv->layers = s->layers;
	kv->blocks = s->blocks;
	kv->outer_count = s->outer_count;
	kv->inner_count = s->inner_count;
	kv->segment_bytes = s->segment_bytes;
	for (size_t i = strlen(s->order); i-- > 0;) {
		uint64_t count = 1;

		switch (s->order[i]) {
		case 'L':
			layer_stride = stride;
			count = s->layers;
			break;
		case 'B':
			kv->block_stride = stride;
			count = s->blocks;
			break;
		case 'o':
			kv->outer_stride = stride;
			count = s->outer_count;
			break;
		case 'i':
			kv->inner_stride = stride;
			count = s->inner_count;
			break;
		}
		stride *= count;
	}
	r->memory_bytes = stride + s->misalign + 4096;
	r->memory[rank] =
	    mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->memory[rank] == MAP_FAILED)
		need(-ENOMEM, "KV memory");
	for (uint32_t l = 0; l < s->layers; l++)
		r->layer_base[rank][l] = r->memory[rank] + s->misalign + l * layer_stride;
	kv->layer_base = r->layer_base[rank];
	if (s->accel) {
		r->accel[rank] = s->accel->get(r->memory_bytes);
		if (!r->accel[rank])
			need(-ENOMEM, "KV memory of the accelerator");
	}
}

static uint8_t *segment_at(struct rig *r, uint32_t rank, uint64_t block, uint32_t layer, uint32_t o, uint32_t i)
{
	const struct tutti_kv_layout *kv = &r->kv[rank];

	return (uint8_t *)kv->layer_base[layer] + block * kv->block_stride + o * kv->outer_stride +
	       i * kv->inner_stride;
}

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

/* Fills a segment, or counts its differences. Not the library's arithmetic: an independent opinion. */
static uint64_t segment_do(uint8_t *at, uint64_t bytes, uint64_t seed, int check)
{
	uint64_t wrong = 0;

	for (uint64_t k = 0; k < bytes; k += 8) {
		uint64_t v = mix(seed + k);
		uint64_t n = bytes - k < 8 ? bytes - k : 8;

		if (!check)
			memcpy(at + k, &v, n);
		else if (memcmp(at + k, &v, n))
			wrong += n;
	}
	return wrong;
}

static uint64_t layer_do(struct rig *r, uint32_t rank, uint64_t block, uint32_t layer, const struct tutti_key *key,
                         int check)
{
	uint64_t first, wrong = 0;

	memcpy(&first, key->b, 8);
	for (uint32_t o = 0; o < r->shape.outer_count; o++)
		for (uint32_t i = 0; i < r->shape.inner_count; i++)
			wrong += segment_do(segment_at(r, rank, block, layer, o, i), r->shape.segment_bytes,
			                    mix(first + rank * 1000003u + layer * 10007u + o * 101u + i), check);
	return wrong;
}

void rig_fill_layer(struct rig *r, uint32_t rank, uint64_t block, uint32_t layer, const struct tutti_key *key)
{
	layer_do(r, rank, block, layer, key, 0);
}

void rig_fill(struct rig *r, uint32_t rank, uint64_t block, const struct tutti_key *key)
{
	for (uint32_t l = 0; l < r->shape.layers; l++)
		layer_do(r, rank, block, l, key, 0);
}

uint64_t rig_wrong(struct rig *r, uint32_t rank, uint64_t block, const struct tutti_key *key)
{
	uint64_t wrong = 0;

	for (uint32_t l = 0; l < r->shape.layers; l++)
		wrong += layer_do(r, rank, block, l, key, 1);
	return wrong;
}

void rig_push(struct rig *r, uint32_t rank)
{
	if (r->accel[rank])
		r->shape.accel->copy(r->accel[rank], r->memory[rank], r->memory_bytes);
}

void rig_pull(struct rig *r, uint32_t rank)
{
	if (r->accel[rank])
		r->shape.accel->copy(r->memory[rank], r->accel[rank], r->memory_bytes);
}

void rig_wipe(struct rig *r, uint32_t rank)
{
	memset(r->memory[rank], 0xdb, r->memory_bytes);
	rig_push(r, rank);
}

/* ---- the stack ---- */

void rig_shape_memory(struct rig *r, const struct rig_shape *shape)
{
	struct rig_shape *s = &r->shape;

	memset(r, 0, sizeof(*r));
	*s = *shape;
	if (!s->accel && getenv("TUTTI_TEST_EXECUTOR") && !strcmp(getenv("TUTTI_TEST_EXECUTOR"), "cuda"))
		s->accel = rig_gpu();
	s->pool_bytes = s->pool_bytes ? s->pool_bytes : 64u << 20;
	s->devices = s->devices ? s->devices : 1;
	s->ranks = s->ranks ? s->ranks : 1;
	s->outer_count = s->outer_count ? s->outer_count : 1;
	s->inner_count = s->inner_count ? s->inner_count : 1;
	s->block_tokens = s->block_tokens ? s->block_tokens : 16;
	for (uint32_t i = 0; i < s->devices; i++) {
		snprintf(r->path_bytes[i], sizeof(r->path_bytes[i]), "%s/rig%u", pool_dir, i);
		r->paths[i] = s->drives[0] ? s->drives[i] : r->path_bytes[i];
	}
	for (uint32_t rank = 0; rank < s->ranks; rank++)
		shape_layout(r, rank);
	r->spec = (struct tutti_ns_spec)TUTTI_NS_SPEC_INIT;
	r->spec.model = "test/rig";
	memset(r->spec.weights, 7, sizeof(r->spec.weights));
	r->spec.kv_dtype = "bfloat16";
	r->spec.backend = "rig";
	r->spec.block_tokens = s->block_tokens;
	r->spec.kv_heads = 8;
	r->spec.head_size = 128;
	r->spec.tp_size = s->ranks;
	need(tutti_kv_layout_objects(&r->kv[0], &r->spec), "layout");
	need(tutti_ns_digest(&r->spec, &r->digest), "digest");
}

void rig_format(struct rig *r)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	o.paths = r->paths;
	o.n_paths = r->shape.devices;
	o.ranks = r->shape.ranks;
	o.bytes = r->shape.pool_bytes;
	o.prewrite = r->shape.prewrite_segments ? TUTTI_PREWRITE_SEGMENT : TUTTI_PREWRITE_NONE;
	o.segment_bytes = r->shape.segment_pool_bytes;
	o.overwrite = 1;
	o.erase_serial = r->shape.erase_serial;
	need(tutti_format(&o), "format");
}

int rig_open_store(struct rig *r)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	int rc;

	o.paths = r->paths;
	o.n_paths = r->shape.devices;
	o.lock_wait_ns = 1000000; /* tests don't wait for lanes that they hold themselves */
	rc = tutti_store_open(&o, &r->store);
	return rc ? rc : tutti_ns_open(r->store, &r->spec, &r->ns);
}

int rig_try_open(const char *path)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct tutti_store *s;
	int rc;

	o.paths = &path;
	o.n_paths = 1;
	rc = tutti_store_open(&o, &s);
	return rc ? rc : tutti_store_close(s);
}

int rig_open_lane(struct rig *r, uint32_t rank)
{
	struct tutti_lane_opts o = TUTTI_LANE_OPTS_INIT;
	int rc;

	o.paths = r->paths;
	o.n_paths = r->shape.devices;
	o.rank = rank;
	o.controller = r->shape.controller;
	o.timing = r->shape.timing;
	o.sms = r->shape.sms;
	o.queue_depth = r->shape.queue_depth;
	o.no_sgl = r->shape.no_sgl;
	o.no_verify = r->shape.no_verify;
	o.deadline_ns = r->shape.deadline_ns;
	o.store_queue_layers = r->shape.store_queue_layers;
	o.executor = r->shape.executor;
	o.small_kernels = r->shape.small_kernels;
	o.bounce_bytes = r->shape.bounce_bytes;
	rc = tutti_lane_open(&o, &r->digest, &r->lane[rank]);
	if (!rc && r->accel[rank]) {
		struct tutti_kv_layout kv = r->kv[rank];
		void *base[256];

		for (uint32_t l = 0; l < kv.layers; l++)
			base[l] = r->accel[rank] + ((uint8_t *)kv.layer_base[l] - r->memory[rank]);
		kv.layer_base = base;
		return tutti_lane_register(r->lane[rank], &kv);
	}
	return rc ? rc : tutti_lane_register(r->lane[rank], &r->kv[rank]);
}

void rig_deadline(struct rig *r, uint32_t rank, uint64_t ns)
{
	struct tutti_lane *l = r->lane[rank];

	l->deadline_ns = ns ? ns : LANE_DEADLINE_NS;
	pthread_mutex_lock(&l->writes.lock);
	l->writes.sched.io_ns = l->deadline_ns;
	pthread_mutex_unlock(&l->writes.lock);
}

int rig_close_lanes(struct rig *r)
{
	int rc = 0;

	for (uint32_t rank = 0; rank < r->shape.ranks; rank++) {
		if (r->lane[rank] && tutti_lane_close(r->lane[rank]))
			rc = -1;
		r->lane[rank] = NULL;
	}
	return rc;
}

void rig_up(struct rig *r, const struct rig_shape *shape)
{
	rig_shape_memory(r, shape);
	rig_format(r);
	need(rig_open_store(r), "store");
	for (uint32_t rank = 0; rank < r->shape.ranks; rank++)
		need(rig_open_lane(r, rank), "lane");
}

void rig_down(struct rig *r)
{
	need(rig_close_lanes(r), "close lanes");
	need(tutti_store_close(r->store), "close store");
	for (uint32_t rank = 0; rank < r->shape.ranks; rank++) {
		munmap(r->memory[rank], r->memory_bytes);
		if (r->accel[rank])
			r->shape.accel->put(r->accel[rank]);
	}
	for (uint32_t i = 0; i < r->shape.devices; i++)
		unlink(r->paths[i]);
}

void rig_keys(const struct rig *r, uint64_t seed, size_t n, struct tutti_key *keys)
{
	uint32_t *tokens = malloc(n * r->shape.block_tokens * sizeof(*tokens));

	for (size_t i = 0; i < n * r->shape.block_tokens; i++)
		tokens[i] = (uint32_t)mix(seed * 1000003u + i);
	need(tutti_keys(&r->digest, NULL, tokens, r->shape.block_tokens, NULL, n, keys), "keys");
	free(tokens);
}

/* ---- moves ---- */

int rig_put(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n, void *done,
            size_t room, size_t *done_bytes)
{
	struct tutti_plan *p;
	int rc = tutti_plan_open(r->lane[rank], blob, bytes, blocks, n, &p), finished;

	*done_bytes = 0;
	if (rc)
		return rc;
	for (uint32_t l = 0; l < r->shape.layers && !rc; l++)
		rc = tutti_store_layer(p, l);
	finished = tutti_plan_finish(p, rig_now() + PLAN_DEADLINE_NS, done, room, done_bytes);
	if (finished)
		*done_bytes = 0;
	return finished ? finished : rc;
}

static int store_rank(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n)
{
	size_t room = tutti_completion_blob_bytes(n), done_bytes, bad;
	void *done = malloc(room);
	int rc = rig_put(r, rank, blob, bytes, blocks, n, done, room, &done_bytes);

	if (done_bytes) {
		int told = tutti_complete(r->ns, done, done_bytes, &bad);

		rc = rc ? rc : told ? told : bad ? -EIO : 0;
	}
	free(done);
	return rc;
}

int rig_store(struct rig *r, const struct tutti_key *keys, size_t n, const uint64_t *blocks, size_t *stored)
{
	struct tutti_lease resv;
	size_t first, count, bytes = tutti_plan_blob_bytes(n);
	void *blob = malloc(bytes);
	int rc = tutti_reserve(r->ns, NULL, keys, n, LEASE_NS, &first, &count, &resv);

	*stored = 0;
	if (!rc && count) {
		rc = tutti_plan_blob(r->ns, &resv, 0, count, blob, bytes, &bytes);
		for (uint32_t rank = 0; rank < r->shape.ranks && !rc; rank++) {
			for (size_t i = 0; i < count; i++)
				rig_fill(r, rank, blocks[first + i], &keys[first + i]);
			rig_push(r, rank);
			rc = store_rank(r, rank, blob, bytes, blocks + first, count);
		}
		if (!rc)
			*stored = count;
		tutti_release(r->ns, &resv);
	}
	free(blob);
	return rc;
}

int rig_get(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n,
            int per_layer, size_t *bad, void *done, size_t room, size_t *done_bytes)
{
	struct tutti_plan *p;
	int rc = tutti_plan_open(r->lane[rank], blob, bytes, blocks, n, &p), finished;

	*done_bytes = 0;
	if (rc)
		return rc;
	rc = per_layer ? 0 : tutti_retrieve(p);
	for (uint32_t l = 0; l < r->shape.layers && !rc && per_layer; l++)
		rc = tutti_retrieve_layer(p, l);
	for (uint32_t l = 0; l < r->shape.layers && !rc; l++)
		if (tutti_wait_layer(p, l, rig_now() + PLAN_DEADLINE_NS) == -ETIMEDOUT)
			rc = -ETIMEDOUT;
	rig_pull(r, rank);
	for (size_t i = 0; i < n && !rc; i++)
		*bad += tutti_plan_failed(p, i) != 0;
	finished = tutti_plan_finish(p, rig_now() + PLAN_DEADLINE_NS, done, room, done_bytes);
	if (finished)
		*done_bytes = 0;
	return finished ? finished : rc;
}

static int retrieve_rank(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n,
                         int per_layer, size_t *bad)
{
	size_t room = tutti_completion_blob_bytes(n), done_bytes, dropped;
	void *done = malloc(room);
	int rc = rig_get(r, rank, blob, bytes, blocks, n, per_layer, bad, done, room, &done_bytes);

	if (done_bytes && !rc)
		rc = tutti_complete(r->ns, done, done_bytes, &dropped);
	free(done);
	return rc;
}

int rig_retrieve(struct rig *r, const struct tutti_key *keys, size_t n, const uint64_t *blocks, int per_layer,
                 size_t *hit, size_t *bad)
{
	struct tutti_lease lease;
	size_t bytes = tutti_plan_blob_bytes(n);
	void *blob = malloc(bytes);
	int rc = tutti_lookup(r->ns, keys, n, LEASE_NS, hit, &lease);

	*bad = 0;
	if (!rc && *hit) {
		rc = tutti_plan_blob(r->ns, &lease, 0, *hit, blob, bytes, &bytes);
		for (uint32_t rank = 0; rank < r->shape.ranks && !rc; rank++)
			rc = retrieve_rank(r, rank, blob, bytes, blocks, *hit, per_layer, bad);
		tutti_release(r->ns, &lease);
	}
	free(blob);
	return rc;
}
