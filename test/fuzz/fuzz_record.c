/* fuzz_record.c - a namespace's canonical record: what is accepted is exactly what would be written for the same facts.
 */
#include "fuzz/pool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tutti_ns_spec s = TUTTI_NS_SPEC_INIT;
	uint8_t again[STORE_NS_RECORD_BYTES_MAX];
	size_t n = sizeof(again);
	struct store_ns_facts f;
	struct tutti_key digest;

	if (size > sizeof(again) || store_ns_parse(data, size, &f))
		return 0;
	s.model = f.model;
	s.kv_dtype = f.kv_dtype;
	s.backend = f.backend;
	memcpy(s.weights, f.weights, sizeof(s.weights));
	memcpy(s.layout, f.layout, sizeof(s.layout));
	s.block_tokens = f.block_tokens;
	s.layers = f.layers;
	s.kv_heads = f.kv_heads;
	s.head_size = f.head_size;
	s.tp_size = f.tp_size;
	s.objects_per_layer = f.objects_per_layer;
	s.object_bytes = f.object_bytes;
	POOL_MUST(!store_ns_record(&s, again, &n, &digest));
	POOL_MUST(n == size && !memcmp(again, data, n));
	return 0;
}
