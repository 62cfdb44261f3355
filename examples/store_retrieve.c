/*
 * store_retrieve.c - stores the KV cache of two blocks in a new pool, and gives it back into two other blocks.
 * cc store_retrieve.c $(pkg-config --cflags --libs tutti) && ./a.out NEW_FILE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/tutti.h>

#define MUST(call) ((call) == 0 ? (void)0 : (fprintf(stderr, #call ": %s\n", tutti_error_message()), exit(1)))
enum { LAYERS = 4, BLOCKS = 8, TOKENS = 16, HEADS = 8, SIZE = 64, OBJECT = 2 * TOKENS * HEADS * SIZE * 2 };

/* The engine's memory: per layer, per block, K and V of 16 tokens in bfloat16. */
static _Alignas(4096) unsigned char kv[LAYERS][BLOCKS][OBJECT];

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : "example.tutti";
	void *bases[LAYERS] = {kv[0], kv[1], kv[2], kv[3]};
	struct tutti_kv_layout layout = {.size = sizeof(layout),
	                                 .layers = LAYERS,
	                                 .blocks = BLOCKS,
	                                 .layer_base = bases,
	                                 .block_stride = OBJECT,
	                                 .outer_count = 1,
	                                 .inner_count = 1,
	                                 .segment_bytes = OBJECT};
	/* Everything that changes what the bytes mean; weights is a digest of the model's. */
	struct tutti_ns_spec spec = {.size = sizeof(spec), .model = "an/example", .weights = "32 bytes of digest",
	    .kv_dtype = "bfloat16", .backend = "none", .block_tokens = TOKENS, .kv_heads = HEADS, .head_size = SIZE,
	    .tp_size = 1};
	struct tutti_format_opts fo = {.size = sizeof(fo), .paths = &path, .n_paths = 1, .ranks = 1, .bytes = 64 << 20};
	struct tutti_store_opts so = {.size = sizeof(so), .paths = &path, .n_paths = 1};
	struct tutti_lane_opts lo = {.size = sizeof(lo), .paths = &path, .n_paths = 1};
	uint64_t from[2] = {5, 2}, to[2] = {0, 7}, lease_ns = 10000000000;
	uint32_t tokens[2 * TOKENS] = {101, 2023, 2003, 1037, 6251};
	struct tutti_key digest, keys[2];
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_lane *lane;
	struct tutti_lease lease;
	size_t first, count, bad;

	for (size_t i = 0; i < sizeof(kv); i++)
		((unsigned char *)kv)[i] = (unsigned char)(i * 2654435761u >> 13);
	MUST(tutti_format(&fo));
	MUST(tutti_store_open(&so, &store));
	MUST(tutti_kv_layout_objects(&layout, &spec));
	MUST(tutti_ns_open(store, &spec, &ns));
	MUST(tutti_ns_digest(&spec, &digest));
	MUST(tutti_lane_open(&lo, &digest, &lane));
	MUST(tutti_lane_register(lane, &layout));
	MUST(tutti_keys(&digest, NULL, tokens, TOKENS, NULL, 2, keys));
	/* All layers at once. An engine calls tutti_store_layer and tutti_retrieve_layer beside its compute: see
	 * tutti.h */
	MUST(tutti_reserve(ns, NULL, keys, 2, lease_ns, &first, &count, &lease));
	MUST(tutti_move(ns, lane, &lease, from, 2, NULL));
	MUST(tutti_lookup(ns, keys, 2, lease_ns, &count, &lease));
	MUST(tutti_move(ns, lane, &lease, to, 2,
	                &bad)); /* bad: blocks that could not be read; they are computed again */
	for (int i = 0; i < 2 * LAYERS && !bad; i++)
		if (memcmp(kv[i / 2][from[i % 2]], kv[i / 2][to[i % 2]], OBJECT) != 0)
			return fprintf(stderr, "layer %d differs\n", i / 2), 1;
	printf("%zu blocks stored and retrieved, %d bytes each\n", count - bad, LAYERS * OBJECT);
	MUST(tutti_lane_close(lane));
	MUST(tutti_store_close(store));
	return 0;
}
