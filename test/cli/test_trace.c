/* test_trace.c - traces to requests to tokens; and the bytes that stand for computed KV. */
#include "check.h"
#include "cli/models.h"
#include "cli/trace.h"

#define DOC "{\"set\":\"s\",\"task\":\"t\",\"doc\":%d,\"doc_tokens\":%d,\"turns\":[[10,1],[20,2]]}"

static int add(struct trace *t, const char *line) { return trace_add_line(t, line, strlen(line), NULL); }

static void add_doc(struct trace *t, int doc, int tokens)
{
	char line[200];

	snprintf(line, sizeof(line), DOC, doc, tokens);
	CHECK_EQ(add(t, line), 0);
}

static void documents_become_requests(void)
{
	struct trace t = {0};
	uint32_t a[1010], b[1020];

	add_doc(&t, 1, 1000);
	CHECK_EQ(t.n_requests, 2);
	CHECK_EQ(t.requests[0].input_tokens, 1010);
	CHECK_EQ(t.requests[1].input_tokens, 1020);
	CHECK_EQ(t.requests[1].output_tokens, 2);
	trace_tokens(&t, &t.requests[0], 0, 1010, a);
	trace_tokens(&t, &t.requests[1], 0, 1020, b);
	CHECK(memcmp(a, b, 1000 * sizeof(*a)) == 0);
	CHECK(memcmp(a + 1000, b + 1000, 10 * sizeof(*a)) != 0);
	trace_tokens(&t, &t.requests[1], 990, 30, a); /* from the middle: the same */
	CHECK(memcmp(a, b + 990, 30 * sizeof(*a)) == 0);
	trace_free(&t);
}

static void hash_ids_share_what_they_say(void)
{
	struct trace t = {0};
	uint32_t a[1100], b[1100];

	CHECK_EQ(add(&t, "{\"timestamp\":5,\"input_length\":1100,\"output_length\":3,\"hash_ids\":[7,8,9]}"), 0);
	CHECK_EQ(add(&t, "{\"timestamp\":6,\"input_length\":1100,\"output_length\":3,\"hash_ids\":[7,8,10]}"), 0);
	CHECK_EQ(t.requests[0].at_ns, 5000000);
	trace_tokens(&t, &t.requests[0], 0, 1100, a);
	trace_tokens(&t, &t.requests[1], 0, 1100, b);
	CHECK(memcmp(a, b, 1024 * sizeof(*a)) == 0);
	CHECK(memcmp(a + 1024, b + 1024, 76 * sizeof(*a)) != 0);
	trace_free(&t);
}

static void broken_lines_are_named_and_leave_nothing(void)
{
	static const struct {
		const char *line, *why;
	} bad[] = {
	    {"{", "line 2: column"},
	    {"[]", "neither a request"},
	    {"{\"hash_ids\":[1],\"output_length\":1,\"timestamp\":0}", "\"input_length\" is missing"},
	    {"{\"hash_ids\":[1],\"input_length\":0,\"output_length\":1,\"timestamp\":0}", "\"input_length\" is 0"},
	    {"{\"hash_ids\":[1],\"input_length\":513,\"output_length\":1,\"timestamp\":0}", "tokens need 2"},
	    {"{\"hash_ids\":[1,-2],\"input_length\":513,\"output_length\":1,\"timestamp\":0}", "\"hash_ids\"[1]"},
	    {"{\"hash_ids\":[1],\"input_length\":1e9,\"output_length\":1,\"timestamp\":0}", "not a whole number"},
	    {"{\"doc_tokens\":5,\"doc\":0,\"task\":\"t\",\"turns\":[]}", "\"set\" is missing"},
	    {"{\"doc_tokens\":5,\"doc\":0,\"set\":\"s\",\"task\":\"t\",\"turns\":[[1,1],[1]]}", "\"turns\"[1]"},
	    {"{\"doc_tokens\":99999999999,\"doc\":0,\"set\":\"s\",\"task\":\"t\",\"turns\":[]}", "\"doc_tokens\" is"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct trace t = {0};
		int result;

		add_doc(&t, 1, 100);
		result = add(&t, bad[i].line);
		if (result >= 0 || !strstr(t.why, bad[i].why))
			printf("# %s: %s\n", bad[i].line, t.why);
		CHECK(result < 0);
		CHECK(strstr(t.why, bad[i].why) != NULL);
		CHECK(strncmp(t.why, "line 2: ", 8) == 0);
		CHECK_EQ(t.n_requests, 2);
		CHECK_EQ(t.n_parts, 4);
		trace_free(&t);
	}
}

static void selection_takes_the_smallest(void)
{
	struct trace t = {0};

	add_doc(&t, 1, 3000);
	add_doc(&t, 2, 1000);
	add_doc(&t, 3, 2000);
	trace_select(&t, 3040, 1); /* 1020 + 2020 */
	CHECK_EQ(t.n_requests, 2);
	trace_order(&t, TRACE_ROUNDS, 0);
	CHECK_EQ(t.requests[0].document, 1);
	CHECK_EQ(t.requests[1].document, 2);
	trace_free(&t);
}

static void orders_keep_every_request(void)
{
	struct trace t = {0};
	unsigned seen = 0;

	add_doc(&t, 1, 100);
	add_doc(&t, 2, 100);
	trace_order(&t, TRACE_ROUNDS, 0);
	CHECK_EQ(t.requests[1].turn, 0);
	CHECK_EQ(t.requests[1].document, 1);
	trace_order(&t, TRACE_SHUFFLED, 7);
	for (size_t i = 0; i < t.n_requests; i++)
		seen |= 1u << (t.requests[i].document * 2 + t.requests[i].turn);
	CHECK_EQ(seen, 15);
	trace_poisson(&t, 10, 3);
	CHECK(t.requests[3].at_ns > t.requests[0].at_ns);
	trace_free(&t);
}

static void models_by_name_and_by_hand(void)
{
	struct model m;
	char why[256];

	CHECK_EQ(model_find("llama3-8b", &m, why, sizeof(why)), 0);
	CHECK_EQ(model_token_bytes(&m), 131072);
	CHECK_EQ(model_find("qwen3-32b", &m, why, sizeof(why)), 0);
	CHECK_EQ(model_token_bytes(&m), 262144);
	CHECK_EQ(model_find("2,3,5,1", &m, why, sizeof(why)), 0);
	CHECK_EQ(model_token_bytes(&m), 60);
	CHECK(model_find("0,3,5,1", &m, why, sizeof(why)) < 0);
	CHECK(model_find("2,3,5", &m, why, sizeof(why)) < 0);
	CHECK(model_find("2,3,5,1,", &m, why, sizeof(why)) < 0);
	CHECK(model_find("99999999999999999999,3,5,1", &m, why, sizeof(why)) < 0);
}

int main(void)
{
	CHECK_RUN(documents_become_requests);
	CHECK_RUN(hash_ids_share_what_they_say);
	CHECK_RUN(broken_lines_are_named_and_leave_nothing);
	CHECK_RUN(selection_takes_the_smallest);
	CHECK_RUN(orders_keep_every_request);
	CHECK_RUN(models_by_name_and_by_hand);
	return check_end();
}
