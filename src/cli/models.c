#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/models.h"

/* Each line: what config.json of the model's public repository says. bfloat16 everywhere. */
static const struct model models[] = {
    /* meta-llama/Meta-Llama-3-8B: num_hidden_layers 32, num_key_value_heads 8, hidden 4096 / 32 heads */
    {"llama3-8b", 32, 8, 128, 2},
    /* Qwen/Qwen3-32B: num_hidden_layers 64, num_key_value_heads 8, head_dim 128 */
    {"qwen3-32b", 64, 8, 128, 2},
    /* THUDM/glm-4-9b-chat-1m: num_layers 40, multi_query_group_num 4, kv_channels 128 */
    {"glm4-9b-1m", 40, 4, 128, 2},
};

static int custom(const char *text, struct model *out, char *why, size_t why_bytes)
{
	unsigned long v[4];
	char end;

	if (strchr(text, '-') || sscanf(text, "%lu,%lu,%lu,%lu%c", &v[0], &v[1], &v[2], &v[3], &end) != 4) {
		snprintf(why, why_bytes,
		         "'%s' is no model that is known here (llama3-8b, qwen3-32b, glm4-9b-1m) and not "
		         "LAYERS,KV_HEADS,HEAD_SIZE,DTYPE_BYTES as in 32,8,128,2.",
		         text);
		return -EINVAL;
	}
	if (!v[0] || v[0] > 1024 || !v[1] || v[1] > 1024 || !v[2] || v[2] > 4096 || !v[3] || v[3] > 8) {
		snprintf(why, why_bytes,
		         "'%s' is out of range: 1 to 1024 layers, 1 to 1024 heads, head size 1 to 4096, 1 to 8 bytes.",
		         text);
		return -EINVAL;
	}
	*out = (struct model){.layers = (uint32_t)v[0],
	                      .kv_heads = (uint32_t)v[1],
	                      .head_size = (uint32_t)v[2],
	                      .dtype_bytes = (uint32_t)v[3]};
	snprintf(out->name, sizeof(out->name), "custom %lu,%lu,%lu,%lu", v[0], v[1], v[2], v[3]);
	return 0;
}

const char *model_name_at(size_t i) { return i < sizeof(models) / sizeof(models[0]) ? models[i].name : NULL; }

int model_find(const char *text, struct model *out, char *why, size_t why_bytes)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (strcmp(models[i].name, text) == 0) {
			*out = models[i];
			return 0;
		}
	return custom(text, out, why, why_bytes);
}

uint64_t model_token_bytes(const struct model *m)
{
	return 2ull * m->layers * m->kv_heads * m->head_size * m->dtype_bytes;
}
