/*
 * store_retrieve.c - stores the KV cache of two blocks in a pool, and gives it back into two other blocks.
 * cc store_retrieve.c $(pkg-config --cflags --libs tutti) && ./a.out POOL_FILE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/tutti.h>

enum { LAYERS = 4, BLOCKS = 8, TOKENS = 16, HEADS = 8, SIZE = 64, OBJECT = 2 * TOKENS * HEADS * SIZE * 2 };

/* The engine's memory: per layer, per block, K and V of 16 tokens in bfloat16. */
static _Alignas(4096) unsigned char kv[LAYERS][BLOCKS][OBJECT];

#define MUST(call) ((call) == 0 ? (void)0 : (fprintf(stderr, #call ": %s\n", tutti_error_message()), exit(1)))

/* Moves what is leased (or reserved) between the pool and two blocks of the engine, and tells the store how it went. */
static void move(struct tutti_ns *ns, struct tutti_lane *lane, struct tutti_lease *lease, const uint64_t *blocks,
                 int store)
{
	unsigned char plan_blob[4096], done_blob[4096];
	struct tutti_plan *plan;
	size_t bytes;

	MUST(tutti_plan_blob(ns, lease, 0, 2, plan_blob, sizeof(plan_blob), &bytes));
	MUST(tutti_plan_open(lane, plan_blob, bytes, blocks, 2, &plan));
	for (uint32_t layer = 0; layer < LAYERS; layer++) /* an engine computes a layer between these calls */
		MUST(store ? tutti_store_layer(plan, layer) : tutti_retrieve_layer(plan, layer));
	MUST(tutti_plan_finish(plan, UINT64_MAX, done_blob, sizeof(done_blob), &bytes));
	MUST(tutti_complete(ns, done_blob, bytes, NULL));
	MUST(tutti_release(ns, lease));
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : "example.tutti";
	void *bases[LAYERS] = {kv[0], kv[1], kv[2], kv[3]};
	const struct tutti_kv_layout layout = {.size = sizeof(layout), .layers = LAYERS, .blocks = BLOCKS,
	    .layer_base = bases, .block_stride = OBJECT, .outer_count = 1, .inner_count = 1, .segment_bytes = OBJECT};
	/* Everything that changes what the bytes mean; weights is a digest of the model's. */
	struct tutti_ns_spec spec = {.size = sizeof(spec), .model = "an/example", .weights = "32 bytes of digest",
	    .kv_dtype = "bfloat16", .backend = "none", .block_tokens = TOKENS, .kv_heads = HEADS, .head_size = SIZE,
	    .tp_size = 1};
	const struct tutti_format_opts format = {.size = sizeof(format), .paths = &path, .n_paths = 1, .ranks = 1,
	    .bytes = 64 << 20};
	const struct tutti_store_opts store_opts = {.size = sizeof(store_opts), .paths = &path, .n_paths = 1};
	const struct tutti_lane_opts lane_opts = {.size = sizeof(lane_opts), .paths = &path, .n_paths = 1};
	const uint64_t from[2] = {5, 2}, to[2] = {0, 7}, second = 1000000000;
	uint32_t tokens[2 * TOKENS] = {101, 2023, 2003, 1037, 6251};
	struct tutti_key digest, keys[2];
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_lane *lane;
	struct tutti_lease lease;
	size_t first, count;

	for (size_t i = 0; i < sizeof(kv); i++)
		((unsigned char *)kv)[i] = (unsigned char)(i * 2654435761u >> 13);
	MUST(tutti_format(&format));
	MUST(tutti_store_open(&store_opts, &store));
	MUST(tutti_kv_layout_objects(&layout, &spec));
	MUST(tutti_ns_open(store, &spec, &ns));
	MUST(tutti_ns_digest(&spec, &digest));
	MUST(tutti_lane_open(&lane_opts, &digest, &lane));
	MUST(tutti_lane_register(lane, &layout));
	MUST(tutti_keys(&digest, NULL, tokens, TOKENS, NULL, 2, keys));

	MUST(tutti_reserve(ns, NULL, keys, 2, 10 * second, &first, &count, &lease));
	move(ns, lane, &lease, from, 1);
	MUST(tutti_lookup(ns, keys, 2, 10 * second, &count, &lease));
	move(ns, lane, &lease, to, 0);
	for (int i = 0; i < 2 * LAYERS; i++)
		if (memcmp(kv[i / 2][from[i % 2]], kv[i / 2][to[i % 2]], OBJECT) != 0)
			return fprintf(stderr, "layer %d differs\n", i / 2), 1;
	printf("%zu blocks stored and retrieved, %d bytes each\n", count, LAYERS * OBJECT);
	MUST(tutti_lane_close(lane));
	MUST(tutti_store_close(store));
	return 0;
}
