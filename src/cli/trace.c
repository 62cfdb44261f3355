/*
 * trace.c - lines to requests, and what is done with a list of requests: selecting, ordering, arrival times, tokens.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace.h"

#define VOCABULARY 128000u /* token ids stay below this */

uint64_t trace_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
	return x ^ (x >> 31);
}

uint64_t trace_random(uint64_t *state) { return trace_mix(*state += 0x9E3779B97F4A7C15ull); }

static int fault(struct trace *t, int result, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fault(struct trace *t, int result, const char *format, ...)
{
	int n = snprintf(t->why, sizeof(t->why), "line %llu: ", (unsigned long long)t->lines);
	va_list ap;

	va_start(ap, format);
	vsnprintf(t->why + n, sizeof(t->why) - (size_t)n, format, ap);
	va_end(ap);
	return result;
}

/* Makes room for one more of `item_bytes`. */
static int grow(struct trace *t, void **items, size_t *room, size_t n, size_t item_bytes, size_t most, const char *what)
{
	size_t more = *room ? *room * 2 : 64;
	void *p;

	if (n < *room)
		return 0;
	if (n >= most)
		return fault(t, -E2BIG, "the trace has more than %zu %s; take a part of it", most, what);
	if (more > most)
		more = most;
	p = realloc(*items, more * item_bytes);
	if (!p)
		return fault(t, -ENOMEM, "no memory for %zu %s", more, what);
	*items = p;
	*room = more;
	return 0;
}

static int add_part(struct trace *t, uint64_t id, uint32_t tokens)
{
	int result =
	    grow(t, (void **)&t->parts, &t->parts_room, t->n_parts, sizeof(*t->parts), TRACE_PARTS_MAX, "parts");

	if (!result)
		t->parts[t->n_parts++] = (struct trace_part){.id = id, .tokens = tokens};
	return result;
}

static int add_request(struct trace *t, struct trace_request r)
{
	int result = grow(t, (void **)&t->requests, &t->requests_room, t->n_requests, sizeof(*t->requests),
	                  TRACE_REQUESTS_MAX, "requests");

	if (!result)
		t->requests[t->n_requests++] = r;
	return result;
}

/* A member that must be a whole number from min to max. */
static int number(struct trace *t, const json_t *o, const char *name, json_int_t min, json_int_t max, uint64_t *out)
{
	const json_t *v = json_object_get(o, name);

	if (!v)
		return fault(t, -EINVAL, "\"%s\" is missing", name);
	if (!json_is_integer(v))
		return fault(t, -EINVAL, "\"%s\" is not a whole number", name);
	if (json_integer_value(v) < min || json_integer_value(v) > max)
		return fault(t, -EINVAL, "\"%s\" is %lld, not %lld to %lld", name, (long long)json_integer_value(v),
		             (long long)min, (long long)max);
	*out = (uint64_t)json_integer_value(v);
	return 0;
}

/* ---- one request with its hash ids ---- */

static int add_hash_ids(struct trace *t, const json_t *ids, uint32_t tokens)
{
	int result = 0;

	for (size_t i = 0; !result && i < json_array_size(ids); i++) {
		const json_t *v = json_array_get(ids, i);
		uint32_t left = tokens - (uint32_t)i * TRACE_BLOCK_TOKENS;

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return fault(t, -EINVAL, "\"hash_ids\"[%zu] is not a whole number of 0 or more", i);
		result = add_part(t, trace_mix((uint64_t)json_integer_value(v) + 1),
		                  left < TRACE_BLOCK_TOKENS ? left : TRACE_BLOCK_TOKENS);
	}
	return result;
}

static int add_hashed(struct trace *t, const json_t *o)
{
	const json_t *ids = json_object_get(o, "hash_ids");
	struct trace_request r = {.document = t->n_documents};
	uint64_t ms, input, output;
	size_t need;

	if (number(t, o, "timestamp", 0, 1ll << 40, &ms) || number(t, o, "input_length", 1, TRACE_TOKENS_MAX, &input) ||
	    number(t, o, "output_length", 0, TRACE_TOKENS_MAX, &output))
		return -EINVAL;
	if (!json_is_array(ids))
		return fault(t, -EINVAL, "\"hash_ids\" is not a list");
	need = (size_t)((input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS);
	if (json_array_size(ids) != need)
		return fault(t, -EINVAL, "%zu hash ids, but %llu tokens need %zu", json_array_size(ids),
		             (unsigned long long)input, need);
	r.at_ns = ms * 1000000;
	r.input_tokens = (uint32_t)input;
	r.output_tokens = (uint32_t)output;
	r.first_part = (uint32_t)t->n_parts;
	r.n_parts = (uint32_t)need;
	t->n_documents++;
	if (add_hash_ids(t, ids, r.input_tokens))
		return -EINVAL;
	return add_request(t, r);
}

/* ---- a document with its questions ---- */

static uint64_t text_hash(uint64_t h, const char *text)
{
	while (*text)
		h = (h ^ (unsigned char)*text++) * 0x100000001B3ull;
	return trace_mix(h);
}

static int add_turn(struct trace *t, const json_t *turn, size_t i, uint64_t id, uint32_t doc_tokens)
{
	struct trace_request r = {.document = t->n_documents - 1, .turn = (uint32_t)i};
	json_int_t v[2];

	if (!json_is_array(turn) || json_array_size(turn) != 2)
		return fault(t, -EINVAL, "\"turns\"[%zu] is not [question tokens, answer tokens]", i);
	for (size_t k = 0; k < 2; k++) {
		v[k] = json_integer_value(json_array_get(turn, k));
		if (!json_is_integer(json_array_get(turn, k)) || v[k] < 0 || v[k] > TRACE_TOKENS_MAX)
			return fault(t, -EINVAL, "\"turns\"[%zu][%zu] is not a whole number from 0 to %u", i, k,
			             TRACE_TOKENS_MAX);
	}
	if (doc_tokens + v[0] > TRACE_TOKENS_MAX)
		return fault(t, -EINVAL, "document and question have more than %u tokens", TRACE_TOKENS_MAX);
	r.first_part = (uint32_t)t->n_parts;
	r.n_parts = 2;
	r.input_tokens = doc_tokens + (uint32_t)v[0];
	r.output_tokens = (uint32_t)v[1];
	if (add_part(t, id, doc_tokens) || add_part(t, trace_mix(id + i + 1), (uint32_t)v[0]))
		return -EINVAL;
	return add_request(t, r);
}

static int add_document(struct trace *t, const json_t *o, const char *set)
{
	const json_t *turns = json_object_get(o, "turns");
	const char *own_set = json_string_value(json_object_get(o, "set"));
	const char *task = json_string_value(json_object_get(o, "task"));
	uint64_t doc, tokens, id = 0xCBF29CE484222325ull;
	int result = 0;

	if (!own_set || !task)
		return fault(t, -EINVAL, "\"%s\" is missing or no text", own_set ? "task" : "set");
	if (number(t, o, "doc", 0, 1ll << 40, &doc) || number(t, o, "doc_tokens", 1, TRACE_TOKENS_MAX, &tokens))
		return -EINVAL;
	if (!json_is_array(turns) || json_array_size(turns) > TRACE_TURNS_MAX)
		return fault(t, -EINVAL, "\"turns\" is not a list of at most %u turns", TRACE_TURNS_MAX);
	if (set && strcmp(set, own_set) != 0)
		return 0;
	id = text_hash(text_hash(id, own_set), task);
	id = trace_mix(id + doc + 1);
	t->n_documents++;
	for (size_t i = 0; !result && i < json_array_size(turns); i++)
		result = add_turn(t, json_array_get(turns, i), i, id, (uint32_t)tokens);
	return result;
}

int trace_add_line(struct trace *t, const char *line, size_t bytes, const char *set)
{
	size_t parts = t->n_parts, requests = t->n_requests;
	uint32_t documents = t->n_documents;
	json_error_t error;
	json_t *o;
	int result;

	t->lines++;
	if (bytes > TRACE_LINE_BYTES_MAX)
		return fault(t, -EINVAL, "longer than %u bytes", TRACE_LINE_BYTES_MAX);
	while (bytes && strchr(" \t\r\n", line[bytes - 1]) && line[bytes - 1])
		bytes--;
	if (!bytes)
		return 0;
	t->why[0] = 0;
	o = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!o)
		return fault(t, -EINVAL, "column %d: %s", error.column, error.text);
	if (json_object_get(o, "hash_ids"))
		result = add_hashed(t, o);
	else if (json_object_get(o, "doc_tokens"))
		result = add_document(t, o, set);
	else
		result = fault(t, -EINVAL, "neither a request (\"hash_ids\") nor a document (\"doc_tokens\")");
	json_decref(o);
	if (result) { /* a broken line leaves nothing behind */
		t->n_parts = parts;
		t->n_requests = requests;
		t->n_documents = documents;
	}
	return result;
}

void trace_free(struct trace *t)
{
	free(t->parts);
	free(t->requests);
	*t = (struct trace){0};
}

/* ---- which requests, in which order, when ---- */

static int by_round(const void *a, const void *b)
{
	const struct trace_request *x = a, *y = b;

	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	return x->document < y->document ? -1 : x->document > y->document;
}

static int by_document(const void *a, const void *b)
{
	const struct trace_request *x = a, *y = b;

	if (x->document != y->document)
		return x->document < y->document ? -1 : 1;
	return x->turn < y->turn ? -1 : x->turn > y->turn;
}

void trace_order(struct trace *t, enum trace_order order, uint64_t seed)
{
	if (t->n_requests < 2)
		return;
	qsort(t->requests, t->n_requests, sizeof(*t->requests), order == TRACE_ROUNDS ? by_round : by_document);
	for (size_t i = t->n_requests - 1; order == TRACE_SHUFFLED && i > 0; i--) {
		size_t k = (size_t)(trace_random(&seed) % (i + 1));
		struct trace_request r = t->requests[i];

		t->requests[i] = t->requests[k];
		t->requests[k] = r;
	}
}

struct document_size {
	uint32_t tokens, document;
};

static int by_tokens(const void *a, const void *b)
{
	const struct document_size *x = a, *y = b;

	if (x->tokens != y->tokens)
		return x->tokens < y->tokens ? -1 : 1;
	return x->document < y->document ? -1 : x->document > y->document;
}

/* Marks the documents to keep. chosen has room for all; NULL when memory is out (then nothing is selected). */
static void choose(const struct trace *t, uint64_t tokens, struct document_size *sizes, uint8_t *chosen)
{
	uint64_t sum = 0;

	for (uint32_t d = 0; d < t->n_documents; d++)
		sizes[d] = (struct document_size){.document = d};
	for (size_t i = 0; i < t->n_requests; i++) {
		struct document_size *s = &sizes[t->requests[i].document];

		if (t->requests[i].input_tokens > s->tokens)
			s->tokens = t->requests[i].input_tokens;
	}
	qsort(sizes, t->n_documents, sizeof(*sizes), by_tokens);
	for (uint32_t d = 0; d < t->n_documents && (!tokens || sum + sizes[d].tokens <= tokens); d++) {
		sum += sizes[d].tokens;
		chosen[sizes[d].document] = 1;
	}
}

void trace_select(struct trace *t, uint64_t tokens, uint32_t turns_max)
{
	struct document_size *sizes = calloc(t->n_documents + 1u, sizeof(*sizes));
	uint8_t *chosen = calloc(t->n_documents + 1u, 1);
	size_t n = 0;

	if (sizes && chosen) {
		choose(t, tokens, sizes, chosen);
		for (size_t i = 0; i < t->n_requests; i++)
			if (chosen[t->requests[i].document] && (!turns_max || t->requests[i].turn < turns_max))
				t->requests[n++] = t->requests[i];
		t->n_requests = n;
	}
	free(sizes);
	free(chosen);
}

void trace_poisson(struct trace *t, double rate, uint64_t seed)
{
	double at_s = 0;

	for (size_t i = 0; i < t->n_requests; i++) {
		double u = ((double)(trace_random(&seed) >> 11) + 1) / 9007199254740992.0; /* in (0, 1] */

		at_s += -log(u) / rate;
		t->requests[i].at_ns = (uint64_t)(at_s * 1e9);
	}
}

/* ---- tokens ---- */

void trace_tokens(const struct trace *t, const struct trace_request *r, uint32_t from, uint32_t n, uint32_t *tokens)
{
	uint32_t at = 0;

	for (uint32_t p = 0; p < r->n_parts && n; p++) {
		const struct trace_part *part = &t->parts[r->first_part + p];

		for (; from < at + part->tokens && n; from++, n--)
			*tokens++ = (uint32_t)(trace_mix(part->id ^ (from * 0x9E3779B97F4A7C15ull)) % VOCABULARY);
		at += part->tokens;
	}
}
