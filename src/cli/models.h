/*
 * models.h - geometries of models: what their KV cache looks like. Facts of the public model configurations.
 */
#ifndef TUTTI_CLI_MODELS_H
#define TUTTI_CLI_MODELS_H

#include <stddef.h>
#include <stdint.h>

struct model {
	char name[64];
	uint32_t layers;
	uint32_t kv_heads;
	uint32_t head_size;
	uint32_t dtype_bytes;
};

/* The i-th name of the table; NULL behind the last. */
const char *model_name_at(size_t i);
/* A name of the table, or "LAYERS,KV_HEADS,HEAD_SIZE,DTYPE_BYTES". -EINVAL: neither, or out of range (why says which).
 */
int model_find(const char *text, struct model *out, char *why, size_t why_bytes);
/* Bytes of one token, K and V, all layers. */
uint64_t model_token_bytes(const struct model *m);

#endif
