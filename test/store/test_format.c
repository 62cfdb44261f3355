/*
 * test_format.c - identity and the format's test vectors: namespace records, digests, keys, checksums. The vectors are
 * in docs/format.md, as `name = hex`, and are read from there, so that the page can't say anything else than the code
 * does.
 */
#include "base/err.h"
#include "base/hash.h"
#include "check.h"
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"
#include "wire/disk.h"

#include <pthread.h>

static char doc[200000];

static void read_doc(void)
{
	FILE *f = fopen("docs/format.md", "r");
	size_t n;

	if (!f)
		CHECK_SKIP("docs/format.md is not here: run from the project's root");
	n = fread(doc, 1, sizeof(doc) - 1, f);
	doc[n] = 0;
	fclose(f);
	CHECK(n > 1000 && n < sizeof(doc) - 1);
}

/* The vector's hex digits, spaces and line ends left out, must be these bytes. */
static void vector(const char *name, const void *bytes, size_t n)
{
	char label[80];
	const char *at;
	const uint8_t *b = bytes;

	snprintf(label, sizeof(label), "\n    %s = ", name);
	at = strstr(doc, label);
	if (!at) {
		printf("# docs/format.md lacks:%s", label + 1);
		for (size_t i = 0; i < n; i++)
			printf("%02x", b[i]);
		printf("\n");
	}
	CHECK(at);
	at += strlen(label);
	for (size_t i = 0; i < n; i++) {
		char two[3];

		while (*at == ' ' || *at == '\n')
			at++;
		snprintf(two, sizeof(two), "%02x", b[i]);
		if (strncmp(at, two, 2))
			printf("# %s, byte %zu: the page says %.2s, the code %s\n", name, i, at, two);
		CHECK(!strncmp(at, two, 2));
		at += 2;
	}
	CHECK(*at == '\n');
}

static void vector64(const char *name, uint64_t v)
{
	uint8_t big[8];

	for (int i = 0; i < 8; i++)
		big[i] = (uint8_t)(v >> (56 - 8 * i));
	vector(name, big, 8);
}

static struct tutti_ns_spec example_spec(void)
{
	struct tutti_ns_spec s = TUTTI_NS_SPEC_INIT;

	s.model = "meta-llama/Meta-Llama-3-8B";
	s.kv_dtype = "bfloat16";
	s.backend = "flash-attn-3";
	for (int i = 0; i < 32; i++) {
		s.weights[i] = (uint8_t)i;
		s.layout[i] = (uint8_t)(0xff - i);
	}
	s.block_tokens = 16;
	s.layers = 32;
	s.kv_heads = 8;
	s.head_size = 128;
	s.tp_size = 1;
	s.objects_per_layer = 2;
	s.object_bytes = 32768;
	return s;
}

static void identity_vectors(void)
{
	struct tutti_ns_spec s = example_spec();
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	size_t bytes = sizeof(record);
	struct tutti_key digest, keys[3], zero = {{0}}, again[3];
	uint32_t tokens[48];
	struct tutti_extra extra[3] = {{NULL, 0}, {(const uint8_t *)"lora", 4}, {NULL, 0}};

	read_doc();
	CHECK_EQ(store_ns_record(&s, record, &bytes, &digest), 0);
	vector("record", record, bytes);
	vector("digest", digest.b, 32);
	for (uint32_t i = 0; i < 48; i++)
		tokens[i] = 1000 + i;
	CHECK_EQ(store_keys(&digest, NULL, tokens, 16, NULL, 2, keys), 0);
	vector("key0", keys[0].b, 32);
	vector("key1", keys[1].b, 32);
	CHECK_EQ(store_keys(&digest, &zero, tokens, 16, extra, 3, again), 0);
	CHECK(!memcmp(&again[0], &keys[0], 32) && memcmp(&again[1], &keys[1], 32));
	vector("key1_extra", again[1].b, 32);
	/* In one go or one by one. */
	CHECK_EQ(store_keys(&digest, &again[1], tokens + 32, 16, NULL, 1, &keys[2]), 0);
	CHECK(!memcmp(&again[2], &keys[2], 32));
}

static void checksum_vectors(void)
{
	struct wire_segment segment = {.magic = WIRE_SEGMENT_MAGIC,
	                               .version = 1,
	                               .number = 7,
	                               .sequence = 3,
	                               .owner = 2,
	                               .flags = WIRE_SEGMENT_PREWRITTEN,
	                               .generation = 5,
	                               .first_sequence = 1ull << 40};
	uint8_t object[100], *header = calloc(1, 4096);
	struct wire_header *h = (struct wire_header *)(void *)header;

	read_doc();
	for (int i = 0; i < 100; i++)
		object[i] = (uint8_t)i;
	for (int i = 0; i < 16; i++)
		segment.uuid[i] = (uint8_t)(i + 1);
	vector64("xxh3_empty", hash_xxh3("", 0));
	vector64("xxh3_100", hash_xxh3(object, 100));
	vector64("segment_sum", hash_xxh3(&segment, sizeof(segment)));
	vector64("objsum_100", objsum(object, 100));
	h->objects = 2;
	h->depth = 1;
	h->object_bytes = 100;
	h->generation = 5;
	h->sequence = 1ull << 40;
	h->epoch = 1;
	memset(h->ns_digest, 0x11, 32);
	memset(h->key, 0x22, 32);
	memset(h->parent, 0x33, 32);
	geom_header_sums(h)[0] = geom_header_sums(h)[1] = objsum(object, 100);
	geom_header_seal(h);
	vector64("header_sum", h->sum);
	free(header);
}

static void object_checksum_table(void)
{
	uint8_t *object = malloc(131072);
	const char *at;
	unsigned long long bytes, sum;
	int rows = 0;

	read_doc();
	for (uint32_t i = 0; i < 131072; i++)
		object[i] = (uint8_t)(7 * i + 1);
	at = strstr(doc, "More object checksums");
	CHECK(at);
	while ((at = strstr(at, "\n| ")) && strncmp(at, "\n| bytes | field", 17)) {
		at += 3;
		if (sscanf(at, "%llu | %llx |", &bytes, &sum) != 2)
			continue;
		CHECK(bytes <= 131072 && objsum(object, bytes) == sum);
		rows++;
	}
	CHECK_EQ(rows, 11);
	free(object);
}

/* What the page says of a formatted pool's places. */
static void places(void)
{
	struct ram_media ram;
	struct wire_super *w;
	struct wire_segment *g;

	ram_init(&ram, 2, 4 << 20, 0);
	CHECK_EQ(
	    store_format(&ram.m, &(struct store_format_opts){.ranks = 1, .bytes = 8 << 20, .segment_bytes = 131072}),
	    0);
	for (uint32_t d = 0; d < 2; d++)
		for (uint64_t copy = 0; copy < 2; copy++) {
			uint64_t sum;

			w = (struct wire_super *)(void *)(ram.mem[d] + 8192 * copy);
			CHECK(w->magic == WIRE_SUPER_MAGIC && w->device == d && w->version == 1);
			CHECK(w->ns_start_bytes == 16384 && w->segment_start_bytes == 16384 + 524288);
			CHECK(w->checkpoint_start_bytes == w->segment_start_bytes + 8192ull * w->n_segments);
			CHECK(w->data_start_bytes[1] == 16384 && w->chunk_bytes == 65536);
			sum = w->sum;
			w->sum = 0;
			CHECK_EQ(hash_xxh3(w, sizeof(*w)), sum);
			w->sum = sum;
		}
	w = (struct wire_super *)(void *)ram.mem[0];
	for (uint32_t i = 0; i < w->n_segments; i++) {
		g = (struct wire_segment *)(void *)(ram.mem[0] + w->segment_start_bytes + 8192ull * i);
		CHECK(g[0].magic == WIRE_SEGMENT_MAGIC && g[0].number == i && g[0].owner == WIRE_NONE &&
		      g[0].flags == 0);
		CHECK(!memcmp(&g[0], &g[1], sizeof(*g)));
	}
	ram_free(&ram);
}

static void every_fact_matters(void)
{
	struct tutti_ns_spec s = example_spec(), t;
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	struct tutti_key digests[16];
	size_t bytes;
	int n = 0;

#define VARY(change)                                                                                                   \
	t = s;                                                                                                         \
	change;                                                                                                        \
	bytes = sizeof(record);                                                                                        \
	CHECK_EQ(store_ns_record(&t, record, &bytes, &digests[n++]), 0)
	VARY((void)0);
	VARY(t.model = "meta-llama/Meta-Llama-3-8B ");
	VARY(t.weights[31] ^= 1);
	VARY(t.kv_dtype = "float16");
	VARY(t.backend = "flash-attn-2");
	VARY(t.layout[0] ^= 1);
	VARY(t.block_tokens = 32);
	VARY(t.layers = 33);
	VARY(t.kv_heads = 16);
	VARY(t.head_size = 64);
	VARY(t.tp_size = 2);
	VARY(t.objects_per_layer = 1);
	VARY(t.object_bytes = 65536);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			CHECK(memcmp(&digests[i], &digests[k], 32));
}

static void unknown_facts_are_errors(void)
{
	struct tutti_ns_spec s = example_spec(), t;
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	struct tutti_key digest;
	char long_name[300];
	size_t bytes;

#define REFUSED(change, word)                                                                                          \
	t = s;                                                                                                         \
	change;                                                                                                        \
	bytes = sizeof(record);                                                                                        \
	CHECK_EQ(store_ns_record(&t, record, &bytes, &digest), -EINVAL);                                               \
	CHECK(strstr(err_text(), word))
	memset(long_name, 'x', sizeof(long_name));
	long_name[256] = 0;
	REFUSED(t.model = NULL, "model");
	REFUSED(t.model = "", "model");
	REFUSED(t.model = long_name, "longer than 255");
	REFUSED(t.kv_dtype = "a\nb", "kv_dtype");
	REFUSED(t.backend = "\xc0\x80", "backend");
	REFUSED(t.backend = "\xed\xa0\x80", "backend");
	REFUSED(memset(t.weights, 0, 32), "weights");
	REFUSED(memset(t.layout, 0, 32), "layout");
	REFUSED(t.block_tokens = 0, "block_tokens");
	REFUSED(t.tp_size = 17, "tp_size");
	REFUSED(t.object_bytes = 0, "object_bytes");
	t = s;
	long_name[255] = 0;
	t.model = t.kv_dtype = t.backend = long_name;
	bytes = sizeof(record);
	CHECK_EQ(store_ns_record(&t, record, &bytes, &digest), 0);
	for (size_t room = 0; room < bytes; room++) {
		size_t less = room;

		CHECK_EQ(store_ns_record(&t, record, &less, &digest), -ENOBUFS);
	}
}

/* Writing what was parsed gives the same bytes; what is accepted is exactly what would be written. */
static void parse_accepts_only_what_is_written(void)
{
	struct tutti_ns_spec s = example_spec();
	uint8_t record[STORE_NS_RECORD_BYTES_MAX], changed[STORE_NS_RECORD_BYTES_MAX], again[STORE_NS_RECORD_BYTES_MAX];
	struct store_ns_facts f;
	struct tutti_key digest;
	size_t bytes = sizeof(record), n;
	uint64_t seed = 5, accepted = 0;

	s.model = "modèle";
	CHECK_EQ(store_ns_record(&s, record, &bytes, &digest), 0);
	CHECK_EQ(store_ns_parse(record, bytes, &f), 0);
	CHECK(!strcmp(f.model, "modèle") && f.object_bytes == 32768 && f.layers == 32 &&
	      !memcmp(f.layout, s.layout, 32));
	for (size_t cut = 0; cut < bytes; cut++)
		CHECK_EQ(store_ns_parse(record, cut, &f), -EBADMSG);
	for (int i = 0; i < 200000; i++) {
		size_t length = bytes;

		memcpy(changed, record, sizeof(record));
		for (uint64_t k = 1 + check_random(&seed) % 3; k > 0; k--)
			changed[check_random(&seed) % bytes] =
			    (uint8_t)(check_random(&seed) % 3 ? check_random(&seed) : 0);
		if (check_random(&seed) % 4 == 0)
			length += check_random(&seed) % 5;
		if (store_ns_parse(changed, length, &f))
			continue;
		accepted++;
		s = (struct tutti_ns_spec)TUTTI_NS_SPEC_INIT;
		s.model = f.model;
		s.kv_dtype = f.kv_dtype;
		s.backend = f.backend;
		memcpy(s.weights, f.weights, 32);
		memcpy(s.layout, f.layout, 32);
		s.block_tokens = f.block_tokens;
		s.layers = f.layers;
		s.kv_heads = f.kv_heads;
		s.head_size = f.head_size;
		s.tp_size = f.tp_size;
		s.objects_per_layer = f.objects_per_layer;
		s.object_bytes = f.object_bytes;
		n = sizeof(again);
		CHECK_EQ(store_ns_record(&s, again, &n, &digest), 0);
		CHECK(n == length && !memcmp(again, changed, n));
	}
	CHECK(accepted > 1000);
}

static void keys_depend_on_everything_before(void)
{
	struct tutti_key ns = lane_key(1), base[8], k[8];
	uint32_t tokens[128];
	struct tutti_extra extra[8] = {{0}};

	for (uint32_t i = 0; i < 128; i++)
		tokens[i] = i;
	CHECK_EQ(store_keys(&ns, NULL, tokens, 16, NULL, 8, base), 0);
	for (uint32_t i = 0; i < 128; i++) {
		tokens[i] ^= 0x80000000u;
		CHECK_EQ(store_keys(&ns, NULL, tokens, 16, NULL, 8, k), 0);
		tokens[i] ^= 0x80000000u;
		for (uint32_t b = 0; b < 8; b++)
			CHECK((memcmp(&k[b], &base[b], 32) != 0) == (b >= i / 16));
	}
	for (uint32_t i = 0; i < 8; i++) {
		extra[i] = (struct tutti_extra){(const uint8_t *)"x", 1};
		CHECK_EQ(store_keys(&ns, NULL, tokens, 16, extra, 8, k), 0);
		extra[i] = (struct tutti_extra){0};
		for (uint32_t b = 0; b < 8; b++)
			CHECK((memcmp(&k[b], &base[b], 32) != 0) == (b >= i));
	}
	/* The cut into blocks is part of it. */
	CHECK_EQ(store_keys(&ns, NULL, tokens, 32, NULL, 4, k), 0);
	CHECK(memcmp(&k[0], &base[1], 32) && memcmp(&k[0], &base[0], 32));
	CHECK_EQ(store_keys(&ns, NULL, tokens, 0, NULL, 1, k), -EINVAL);
	CHECK_EQ(store_keys(&ns, NULL, NULL, 16, NULL, 1, k), -EINVAL);
	CHECK_EQ(store_keys(&ns, NULL, tokens, 16, NULL, 0, k), 0);
}

static void *keys_in_a_thread(void *arg)
{
	struct tutti_key ns = lane_key(1), *k = arg;
	uint32_t tokens[32] = {5};

	for (int i = 0; i < 2000; i++)
		if (store_keys(&ns, NULL, tokens, 16, NULL, 2, k))
			return arg;
	return NULL;
}

static void keys_from_many_threads(void)
{
	struct tutti_key k[8][2];
	pthread_t threads[8];
	void *failed;

	for (int i = 0; i < 8; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, keys_in_a_thread, k[i]), 0);
	for (int i = 0; i < 8; i++) {
		CHECK_EQ(pthread_join(threads[i], &failed), 0);
		CHECK(!failed && !memcmp(k[i], k[0], sizeof(k[0])));
	}
}

int main(void)
{
	CHECK_RUN(identity_vectors);
	CHECK_RUN(checksum_vectors);
	CHECK_RUN(object_checksum_table);
	CHECK_RUN(places);
	CHECK_RUN(every_fact_matters);
	CHECK_RUN(unknown_facts_are_errors);
	CHECK_RUN(parse_accepts_only_what_is_written);
	CHECK_RUN(keys_depend_on_everything_before);
	CHECK_RUN(keys_from_many_threads);
	return check_end();
}
