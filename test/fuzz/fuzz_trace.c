/* fuzz_trace.c - lines of a trace: whatever they hold, the parser takes them whole or leaves what it had. */
#include <stdint.h>
#include <string.h>

#include "cli/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_sound(const struct trace *t)
{
	for (size_t i = 0; i < t->n_requests; i++) {
		const struct trace_request *r = &t->requests[i];
		uint64_t tokens = 0;

		if ((size_t)r->first_part + r->n_parts > t->n_parts || r->document >= t->n_documents)
			__builtin_trap();
		for (uint32_t p = 0; p < r->n_parts; p++)
			tokens += t->parts[r->first_part + p].tokens;
		if (tokens != r->input_tokens || tokens > TRACE_TOKENS_MAX)
			__builtin_trap();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const char *line = (const char *)data;
	struct trace t = {0};

	while (bytes) {
		const char *end = memchr(line, '\n', bytes);
		size_t n = end ? (size_t)(end - line) : bytes, parts = t.n_parts, requests = t.n_requests;

		if (trace_add_line(&t, line, n, NULL) && (t.n_parts != parts || t.n_requests != requests || !t.why[0]))
			__builtin_trap();
		line += n + (end != NULL);
		bytes -= n + (end != NULL);
	}
	check_sound(&t);
	trace_select(&t, 100000, 2);
	trace_order(&t, TRACE_SHUFFLED, 1);
	check_sound(&t);
	trace_free(&t);
	return 0;
}
