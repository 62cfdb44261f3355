/*
 * trace.h - requests of real long-context work, from files of one JSON object a line.
 *
 * A request's prompt is a list of parts: an id and a number of tokens. Equal ids at equal positions are equal tokens,
 * so a token id is a hash of (part id, position in the prompt), and engine blocks of any size share exactly what the
 * trace shares. Two kinds of lines are known:
 *
 *   {"hash_ids": [...], "input_length": n, "output_length": n, "timestamp": ms}   one request; an id per 512 tokens
 *   {"doc_tokens": n, "turns": [[question tokens, answer tokens], ...], "set": s, "task": s, "doc": n}
 *                                     one document: each turn is a request of the document and a question
 */
#ifndef TUTTI_CLI_TRACE_H
#define TUTTI_CLI_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define TRACE_LINE_BYTES_MAX (4u << 20)
#define TRACE_TOKENS_MAX (16u << 20) /* of one request */
#define TRACE_TURNS_MAX 4096u
#define TRACE_PARTS_MAX (8u << 20) /* of a trace: 128 MiB */
#define TRACE_REQUESTS_MAX (4u << 20)
#define TRACE_BLOCK_TOKENS 512u /* of a hash id */

struct trace_part {
	uint64_t id;
	uint32_t tokens;
	uint32_t rsvd;
};

struct trace_request {
	uint64_t at_ns; /* arrival, from the start of the trace */
	uint32_t first_part, n_parts;
	uint32_t input_tokens, output_tokens;
	uint32_t document, turn; /* document: counted over the trace; of a plain request its own number */
};

struct trace {
	struct trace_part *parts;
	struct trace_request *requests;
	size_t n_parts, n_requests, parts_room, requests_room;
	uint32_t n_documents;
	uint64_t lines;
	char why[256]; /* of the last failure: line number and what is wrong */
};

/*
 * Adds what one line says; an empty line says nothing. set: documents of other sets are skipped (NULL: none are).
 * -EINVAL: the line is wrong; -E2BIG: a bound above is met; -ENOMEM. t->why tells, t keeps what it had.
 */
int trace_add_line(struct trace *t, const char *line, size_t bytes, const char *set);
/* Reads a whole file, plain or .xz. The errors above, errno of the file, or -EBADMSG: not a sound xz file. */
int trace_read(struct trace *t, const char *path, const char *set);
void trace_free(struct trace *t);

enum trace_order {
	TRACE_ROUNDS,    /* the first question of each document, then the second of each, ... */
	TRACE_DOCUMENTS, /* as they stand in the trace */
	TRACE_SHUFFLED,
};
void trace_order(struct trace *t, enum trace_order order, uint64_t seed);
/* Keeps the smallest documents whose longest prompts' sum fits `tokens` (0: all), and turns_max turns each (0: all). */
void trace_select(struct trace *t, uint64_t tokens, uint32_t turns_max);
/* Arrival times of a Poisson process with `rate` requests a second. */
void trace_poisson(struct trace *t, double rate, uint64_t seed);

/* Token ids [from, from + n) of a request's prompt. */
void trace_tokens(const struct trace *t, const struct trace_request *r, uint32_t from, uint32_t n, uint32_t *tokens);

/* A mixing function and a small random generator, for whatever needs numbers that repeat from a seed. */
uint64_t trace_mix(uint64_t x);
uint64_t trace_random(uint64_t *state);

#endif
