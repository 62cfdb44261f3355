/* lab.c - a pool with a chain in it; see gpu.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/gpu/gpu.h"
#include "core/lane.h"
#include "wire/blob.h"

#define OBJECT_BYTES_OF(tokens) (2048ull * (tokens))
#define SEGMENT_BYTES (512ull << 20)

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	return z ^ (z >> 27);
}

uint64_t lab_bytes(const struct lab *b, size_t n) { return n * LAYERS * OBJECTS * b->r.kv[0].segment_bytes; }

uint8_t *lab_object(const struct lab *b, uint32_t layer, uint32_t o, size_t i)
{
	const struct tutti_kv_layout *kv = &b->r.kv[0];

	return b->r.accel[0] + ((uint8_t *)kv->layer_base[layer] - b->r.memory[0]) + o * kv->outer_stride +
	       b->blocks[i] * kv->block_stride;
}

/* Where the chain's blocks go: all over the KV memory. */
static void place_blocks(struct lab *b, size_t kv_blocks)
{
	uint64_t *all = malloc(kv_blocks * sizeof(*all));

	for (size_t i = 0; i < kv_blocks; i++) {
		size_t k = (size_t)(mix(i + 77) % (i + 1));

		all[i] = all[k];
		all[k] = i;
	}
	b->blocks = malloc(b->n * sizeof(*b->blocks));
	memcpy(b->blocks, all, b->n * sizeof(*b->blocks));
	free(all);
	need_cuda(cudaMalloc((void **)&b->blocks_gpu, (b->n + LAYERS) * 8), "block numbers");
	need_cuda(cudaMemcpy(b->blocks_gpu, b->blocks, b->n * 8, cudaMemcpyHostToDevice), "block numbers");
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint64_t at = (uint64_t)((uint8_t *)b->r.kv[0].layer_base[l] - b->r.memory[0]);

		need_cuda(cudaMemcpy(b->blocks_gpu + b->n + l, &at, 8, cudaMemcpyHostToDevice), "layers");
	}
}

/* The pool's files, for those who read them without us; pinned where they are memory. */
static void open_files(struct lab *b, const struct lab_shape *s)
{
	for (uint32_t i = 0; i < s->devices; i++) {
		int direct = s->controller == TUTTI_CTRL_MODEL ? 0 : O_DIRECT;

		b->fd[i] = open(b->r.paths[i], O_RDWR | O_CLOEXEC | direct);
		if (b->fd[i] < 0)
			need(-1, "opening a pool's file");
		b->medium_bytes = (uint64_t)lseek(b->fd[i], 0, SEEK_END);
		if (direct || s->no_medium)
			continue;
		b->medium[i] =
		    mmap(NULL, b->medium_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, b->fd[i], 0);
		if (b->medium[i] == MAP_FAILED)
			need(-1, "mapping a pool's file");
		need_cuda(cudaHostRegister(b->medium[i], b->medium_bytes, cudaHostRegisterPortable), "pinning a pool");
	}
}

void lab_open(struct lab *b, const struct lab_shape *s)
{
	uint64_t object = OBJECT_BYTES_OF(s->tokens), t0 = now_ns();
	size_t hbm_before, hbm;
	struct rig_shape shape = {.accel = rig_gpu(),
	                          .layers = LAYERS,
	                          .blocks = s->kv_blocks ? s->kv_blocks : s->n,
	                          .outer_count = OBJECTS,
	                          .segment_bytes = object,
	                          .order = "LoB",
	                          .block_tokens = s->tokens,
	                          .devices = s->devices,
	                          .sms = s->sms,
	                          .controller = s->controller,
	                          .timing = s->timing,
	                          .bounce_bytes = 64u << 20,
	                          .segment_pool_bytes = SEGMENT_BYTES,
	                          .no_sgl = s->no_sgl,
	                          .small_kernels = s->small,
	                          .queue_depth = s->small ? 16 : 0,
	                          .deadline_ns = WAIT_NS};

	memset(b, 0, sizeof(*b));
	b->n = s->n;
	shape.pool_bytes = s->n * LAYERS * OBJECTS * (object < 4096 ? 4096 : object);
	shape.pool_bytes += shape.pool_bytes / 8 + 2 * SEGMENT_BYTES;
	rig_dir(s->dir);
	need_cuda(cudaMemGetInfo(&hbm_before, &hbm), "memory");
	rig_up(&b->r, &shape);
	need_cuda(cudaMemGetInfo(&hbm, &(size_t){0}), "memory");
	b->hbm_bytes = hbm_before - hbm - b->r.memory_bytes;
	b->keys = malloc(s->n * sizeof(*b->keys));
	b->slots = malloc(s->n * sizeof(*b->slots));
	b->runs = malloc(s->n * sizeof(*b->runs));
	place_blocks(b, shape.blocks);
	b->geom = b->r.lane[0]->view.geom;
	need_cuda(cudaHostAlloc((void **)&b->wrong, 64, cudaHostAllocMapped), "a counter");
	lab_store(b, s->n);
	open_files(b, s);
	printf("# lab in %s: %zu blocks of %u tokens, %.1f GB, %u SMs, up in %.1f s\n", s->dir, s->n, s->tokens,
	       (double)lab_bytes(b, s->n) * 1e-9, s->sms, (double)(now_ns() - t0) * 1e-9);
}

void lab_close(struct lab *b)
{
	for (uint32_t i = 0; i < b->r.shape.devices; i++) {
		if (b->medium[i]) {
			cudaHostUnregister(b->medium[i]);
			munmap(b->medium[i], b->medium_bytes);
		}
		close(b->fd[i]);
	}
	cudaFreeHost(b->wrong);
	cudaFree(b->blocks_gpu);
	rig_down(&b->r);
	free(b->keys);
	free(b->blocks);
	free(b->slots);
	free(b->runs);
}

/* ---- bytes ---- */

void lab_fill(struct lab *b, size_t n, uint64_t salt)
{
	const struct tutti_kv_layout *kv = &b->r.kv[0];

	kernel_fill(b->r.accel[0], b->blocks_gpu + b->n, kv->outer_stride, kv->segment_bytes, b->blocks_gpu, n, salt,
	            NULL);
	need_cuda(cudaDeviceSynchronize(), "filling KV memory");
}

void lab_wipe(struct lab *b)
{
	need_cuda(cudaMemset(b->r.accel[0], 0xdb, b->r.memory_bytes), "wiping KV memory");
	need_cuda(cudaDeviceSynchronize(), "wiping KV memory");
}

uint64_t lab_wrong(struct lab *b, size_t n, uint64_t salt)
{
	const struct tutti_kv_layout *kv = &b->r.kv[0];

	*b->wrong = 0;
	kernel_check(b->r.accel[0], b->blocks_gpu + b->n, kv->outer_stride, kv->segment_bytes, b->blocks_gpu, n, salt,
	             b->wrong, NULL);
	need_cuda(cudaDeviceSynchronize(), "comparing KV memory");
	return *b->wrong;
}

/* ---- the chain ---- */

uint32_t lab_run_slots(const struct lab *b, size_t k, size_t n)
{
	size_t left = n > b->runs[k].first ? n - b->runs[k].first : 0;

	return left < b->runs[k].slots ? (uint32_t)left : b->runs[k].slots;
}

void lab_plan(struct lab *b, struct tutti_lane *l, size_t n, struct lab_plan *out)
{
	size_t bytes = tutti_plan_blob_bytes(n), count;
	void *blob = malloc(bytes);

	out->n = n;
	need(tutti_lookup(b->r.ns, b->keys, n, LEASE_NS, &count, &out->lease), "lookup");
	need(count == n ? 0 : -1, "the chain is not whole");
	need(tutti_plan_blob(b->r.ns, &out->lease, 0, n, blob, bytes, &bytes), "plan blob");
	need(tutti_plan_open(l, blob, bytes, b->blocks, n, &out->p), "plan");
	free(blob);
}

void lab_plan_end(struct lab *b, struct lab_plan *p)
{
	size_t bytes = tutti_completion_blob_bytes(p->n), bad;
	void *done = malloc(bytes);

	need(tutti_plan_finish(p->p, now_ns() + WAIT_NS, done, bytes, &bytes), "finish");
	need(tutti_complete(b->r.ns, done, bytes, &bad), "complete");
	need(bad ? -1 : 0, "blocks were lost");
	need(tutti_release(b->r.ns, &p->lease), "release");
	free(done);
}

void lab_find_in(struct lab *b, const void *blob, size_t n)
{
	const struct wire_blob_entry *e =
	    (const struct wire_blob_entry *)(const void *)((const uint8_t *)blob + sizeof(struct wire_blob));

	b->n_runs = 0;
	for (size_t i = 0; i < n; i++) {
		struct geom_place p = geom_place(&b->geom, e[i].slot);
		struct run *r = b->n_runs ? &b->runs[b->n_runs - 1] : NULL;

		b->slots[i] = e[i].slot;
		if (r && r->place.set == p.set && r->place.index + r->slots == p.index)
			r->slots++;
		else
			b->runs[b->n_runs++] = (struct run){.first = i, .slots = 1, .place = p};
	}
}

void lab_find(struct lab *b)
{
	size_t bytes = tutti_plan_blob_bytes(b->n), count;
	struct tutti_lease lease;
	void *blob = malloc(bytes);

	need(tutti_lookup(b->r.ns, b->keys, b->n, LEASE_NS, &count, &lease), "lookup");
	need(tutti_plan_blob(b->r.ns, &lease, 0, count, blob, bytes, &bytes), "plan blob");
	lab_find_in(b, blob, count);
	free(blob);
	need(tutti_release(b->r.ns, &lease), "release");
}

void lab_plan_store(struct lab *b, struct tutti_lane *l, size_t n, struct lab_plan *out, int find)
{
	size_t bytes = tutti_plan_blob_bytes(n), first, count;
	void *blob = malloc(bytes);

	need(tutti_ns_clear(b->r.ns), "emptying the pool");
	rig_keys(&b->r, ++b->seed, n, b->keys);
	b->salt = b->seed * 1000003u;
	lab_fill(b, n, b->salt);
	out->n = n;
	need(tutti_reserve(b->r.ns, NULL, b->keys, n, LEASE_NS, &first, &count, &out->lease), "reserve");
	need(count == n ? 0 : -1, "the pool has no room for the chain");
	need(tutti_plan_blob(b->r.ns, &out->lease, 0, n, blob, bytes, &bytes), "plan blob");
	need(tutti_plan_open(l, blob, bytes, b->blocks, n, &out->p), "plan");
	if (find)
		lab_find_in(b, blob, n);
	free(blob);
}

double lab_store(struct lab *b, size_t n)
{
	struct lab_plan p;
	uint64_t t0, t1;
	double s;

	lab_plan_store(b, b->r.lane[0], n, &p, 0);
	t0 = now_ns();
	for (uint32_t l = 0; l < LAYERS; l++)
		need(tutti_store_layer(p.p, l), "store");
	need(tutti_wait_layer(p.p, LAYERS - 1, t0 + WAIT_NS), "the last layer");
	t1 = now_ns();
	lab_plan_end(b, &p);
	s = (double)(now_ns() - t0) * 1e-9;
	b->tail_s = (double)(now_ns() - t1) * 1e-9;
	if (n == b->n)
		lab_find(b);
	return s;
}
