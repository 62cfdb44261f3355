/*
 * tables.c - the paper's figure 3: looking up and inserting a chain's keys in our index on the CPU, through the public
 * calls, and in a hash table on the GPU (table.cu), on an idle GPU and beside matrix products. A million blocks are in
 * either before.
 *
 * The times are the caller's, from the call to the answer. Ours does more: tutti_reserve and tutti_complete find and
 * take slots, link the tree, keep the LRU order; the GPU's only stores key and slot. Computing keys is in neither.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/gpu/gpu.h"
#include "bench/gpu/table.h"

#define CHAIN 16384u
#define CHAINS 64u
#define BITS 22u
#define SLOTS (1u << (BITS - 1))
#define SLOT_BYTES 8192ull /* header and object */
#define TURNS 15

static struct {
	struct rig r;
	struct tutti_key *keys; /* pinned: CHAINS x CHAIN, then those to insert */
	uint8_t *blob;
	size_t blob_bytes;
	uint64_t *blocks, seed;
	struct table table;
	uint64_t *said; /* pinned */
	uint32_t seq, slots; /* of the GPU's */
	cudaStream_t s;
} t;

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	return z ^ (z >> 27);
}

/* ---- on the CPU ---- */

/* Nanoseconds of the store's own part: what a lane does in between is not timed. */
static uint64_t cpu_insert(const struct tutti_key *keys, size_t n)
{
	struct tutti_lease hold;
	struct tutti_plan *p;
	size_t first, count, bytes;
	uint64_t from = now_ns(), ns;

	need(tutti_reserve(t.r.ns, NULL, keys, n, LEASE_NS, &first, &count, &hold), "reserve");
	ns = now_ns() - from;
	need(count == n ? 0 : -1, "the index has no room");
	need(tutti_plan_blob(t.r.ns, &hold, 0, n, t.blob, t.blob_bytes, &bytes), "plan blob");
	need(tutti_plan_open(t.r.lane[0], t.blob, bytes, t.blocks, n, &p), "plan");
	need(tutti_store_layer(p, 0), "store");
	need(tutti_plan_finish(p, now_ns() + WAIT_NS, t.blob, t.blob_bytes, &bytes), "finish");
	from = now_ns();
	need(tutti_complete(t.r.ns, t.blob, bytes, NULL), "complete");
	ns += now_ns() - from;
	need(tutti_release(t.r.ns, &hold), "release");
	return ns;
}

static uint64_t cpu_find(const struct tutti_key *keys, size_t n)
{
	uint64_t from = now_ns();
	size_t matched;

	need(tutti_lookup(t.r.ns, keys, n, 0, &matched, NULL), "lookup");
	from = now_ns() - from;
	need(matched == n ? 0 : -1, "a chain is not in the index");
	return from;
}

/* ---- on the GPU ---- */

/* Watches the answers; the least of them. */
static uint32_t answer(uint32_t n)
{
	uint32_t least = UINT32_MAX;
	uint64_t until = now_ns() + WAIT_NS;

	for (uint32_t i = 0; i < (n + TABLE_THREADS - 1) / TABLE_THREADS; i++) {
		uint64_t said;

		for (uint32_t k = 1; (said = __atomic_load_n(&t.said[i], __ATOMIC_ACQUIRE)) >> 32 != t.seq; k++)
			if (k % 65536 == 0)
				need(now_ns() < until ? 0 : -ETIMEDOUT, "the GPU's table does not answer");
		least = (uint32_t)said < least ? (uint32_t)said : least;
	}
	return least;
}

static uint64_t gpu_insert(const struct tutti_key *keys, size_t n)
{
	uint64_t from = now_ns();

	need(t.slots + n <= SLOTS ? 0 : -1, "the GPU's table has no room");
	table_put(&t.table, keys, (uint32_t)n, t.slots, t.said, ++t.seq, t.s);
	answer((uint32_t)n);
	t.slots += (uint32_t)n;
	return now_ns() - from;
}

static uint64_t gpu_find(const struct tutti_key *keys, size_t n)
{
	uint64_t from = now_ns();
	uint32_t matched;

	table_find(&t.table, keys, (uint32_t)n, t.said, ++t.seq, t.s);
	matched = answer((uint32_t)n);
	from = now_ns() - from;
	need(matched == n ? 0 : -1, "a chain is not in the GPU's table");
	return from;
}

/* The GPU is full of products when the keys come. */
static uint64_t gpu_find_beside(const struct tutti_key *keys, size_t n, cudaStream_t products)
{
	const struct timespec settle = {.tv_nsec = 1500000};
	uint64_t ns;

	for (int i = (int)(0.004 / compute_product_s()) + 2; i > 0; i--)
		compute_product(products);
	nanosleep(&settle, NULL); /* they run */
	ns = gpu_find(keys, n);
	need_cuda(cudaStreamSynchronize(products), "products");
	return ns;
}

/* ---- the figure ---- */

static void put(const struct series *v, size_t n, const char *label, const char *note)
{
	struct row r = {.unit = "us", .values = *v, .figure = "3", .system = label, .x = (double)n};

	snprintf(r.name, sizeof(r.name), "index of a million blocks, %zu keys: %s", n, label);
	snprintf(r.note, sizeof(r.note), "%s", note);
	row_put(&r);
}

static void batch(size_t n, cudaStream_t products)
{
	struct series cpu = {.n = 0}, cpu_in = cpu, gpu = cpu, gpu_in = cpu, beside = cpu;
	struct tutti_key *fresh = t.keys + (size_t)CHAINS * CHAIN;

	for (int i = -1; i < TURNS; i++) {
		const struct tutti_key *keys = t.keys + mix((uint64_t)i + n) % CHAINS * CHAIN;
		struct series none = {.n = 0};

		rig_keys(&t.r, ++t.seed, n, fresh);
		series_add(i < 0 ? &none : &cpu, (double)cpu_find(keys, n) * 1e-3);
		series_add(i < 0 ? &none : &gpu, (double)gpu_find(keys, n) * 1e-3);
		series_add(i < 0 ? &none : &cpu_in, (double)cpu_insert(fresh, n) * 1e-3);
		series_add(i < 0 ? &none : &gpu_in, (double)gpu_insert(fresh, n) * 1e-3);
		cpu_find(fresh, n);
		gpu_find(fresh, n);
		series_add(i < 0 ? &none : &beside, (double)gpu_find_beside(keys, n, products) * 1e-3);
	}
	put(&cpu, n, "CPU, lookup", "");
	put(&gpu, n, "GPU, lookup", "one launch, keys and answers in pinned memory");
	put(&beside, n, "GPU, lookup beside products", "products on all SMs, the lookup's stream of high priority");
	put(&cpu_in, n, "CPU, insert", "reserve and complete: slots, tree and LRU order too");
	put(&gpu_in, n, "GPU, insert", "key and slot only");
}

static void *pinned(size_t bytes)
{
	void *p;

	need_cuda(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), "pinned memory");
	memset(p, 0, bytes);
	return p;
}

static void open_tables(void)
{
	struct rig_shape shape = {.layers = 1,
	                          .blocks = CHAIN,
	                          .segment_bytes = 4096,
	                          .order = "LB",
	                          .pool_bytes = SLOTS * SLOT_BYTES,
	                          .controller = TUTTI_CTRL_NULL,
	                          .segment_pool_bytes = 512ull << 20,
	                          .deadline_ns = WAIT_NS};
	int low, high;

	rig_dir(opt.memory);
	rig_up(&t.r, &shape);
	t.blob_bytes = tutti_plan_blob_bytes(CHAIN);
	if (tutti_completion_blob_bytes(CHAIN) > t.blob_bytes)
		t.blob_bytes = tutti_completion_blob_bytes(CHAIN);
	t.blob = malloc(t.blob_bytes);
	t.blocks = malloc(CHAIN * sizeof(*t.blocks));
	for (uint64_t i = 0; i < CHAIN; i++)
		t.blocks[i] = i;
	t.keys = pinned(((size_t)CHAINS + 1) * CHAIN * sizeof(*t.keys));
	t.said = pinned(CHAIN / TABLE_THREADS * sizeof(*t.said));
	t.table.bits = BITS;
	need_cuda(cudaMalloc((void **)&t.table.entries, sizeof(uint64_t) << BITS), "a table");
	need_cuda(cudaMemset(t.table.entries, 0, sizeof(uint64_t) << BITS), "a table");
	need_cuda(cudaMalloc((void **)&t.table.keys, (uint64_t)SLOTS * sizeof(struct tutti_key)), "a table");
	need_cuda(cudaDeviceGetStreamPriorityRange(&low, &high), "priorities");
	need_cuda(cudaStreamCreateWithPriority(&t.s, cudaStreamNonBlocking, high), "a stream");
	for (uint32_t i = 0; i < CHAINS; i++) {
		rig_keys(&t.r, ++t.seed, CHAIN, t.keys + (size_t)i * CHAIN);
		cpu_insert(t.keys + (size_t)i * CHAIN, CHAIN);
		gpu_insert(t.keys + (size_t)i * CHAIN, CHAIN);
	}
}

void figure_tables(void)
{
	cudaStream_t products;

	compute_open(compute_columns[1]);
	need_cuda(cudaStreamCreateWithFlags(&products, cudaStreamNonBlocking), "a stream");
	open_tables();
	for (size_t n = 16; n <= CHAIN; n *= 4)
		batch(n, products);
	rig_down(&t.r);
	cudaStreamDestroy(products);
	cudaStreamDestroy(t.s);
	cudaFree(t.table.entries);
	cudaFree(t.table.keys);
	cudaFreeHost(t.keys);
	cudaFreeHost(t.said);
	free(t.blob);
	free(t.blocks);
	compute_close();
}
