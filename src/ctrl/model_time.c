/* model_time.c - from event to event: a transfer ends, a latency ends. Rates are constant in between. */
#include "ctrl/model_time.h"

#include <string.h>

static void push(struct model_time_queue *q, struct model_time_cmd *cmd)
{
	cmd->next = NULL;
	*q->end = cmd;
	q->end = &cmd->next;
}

static struct model_time_cmd *pop(struct model_time_queue *q)
{
	struct model_time_cmd *cmd = q->head;

	q->head = cmd->next;
	if (!q->head)
		q->end = &q->head;
	return cmd;
}

static void clear(struct model_time_queue *q)
{
	q->head = NULL;
	q->end = &q->head;
}

/* Bytes * 1e9 * 100 that a pipe moves in a nanosecond; 0: no limit. */
static uint64_t rate(const struct model_time *t, int direction)
{
	uint64_t bytes_per_s = direction == MODEL_READ ? t->model.read_bytes_per_s : t->model.write_bytes_per_s;
	int mixed = t->moving[MODEL_READ].head && t->moving[MODEL_WRITE].head;

	return bytes_per_s * (mixed && t->model.mixed_percent ? t->model.mixed_percent : 100);
}

static uint64_t move_end(const struct model_time *t, int direction)
{
	uint64_t r = rate(t, direction);

	if (!t->moving[direction].head)
		return MODEL_TIME_NEVER;
	return r ? t->now_ns + (t->left[direction] + r - 1) / r : t->now_ns;
}

static uint64_t land_end(const struct model_time *t, int direction)
{
	return t->landing[direction].head ? t->landing[direction].head->finish_ns : MODEL_TIME_NEVER;
}

static uint64_t next_event(const struct model_time *t)
{
	uint64_t next = MODEL_TIME_NEVER;

	for (int d = 0; d < 2; d++) {
		uint64_t move = move_end(t, d), land = land_end(t, d);

		next = move < next ? move : next;
		next = land < next ? land : next;
	}
	return next;
}

uint64_t model_time_next(const struct model_time *t)
{
	return t->finished.head ? t->finished.head->finish_ns : next_event(t);
}

/* Lets the pipes run until to_ns, which is not behind the next event. */
static void run(struct model_time *t, uint64_t to_ns)
{
	uint64_t rates[2] = {rate(t, MODEL_READ), rate(t, MODEL_WRITE)};

	for (int d = 0; d < 2; d++) {
		uint64_t moved = (to_ns - t->now_ns) * rates[d];

		if (t->moving[d].head)
			t->left[d] = moved < t->left[d] && rates[d] ? t->left[d] - moved : 0;
	}
	t->now_ns = to_ns;
}

static void load(struct model_time *t, int direction)
{
	t->left[direction] = t->moving[direction].head ? t->moving[direction].head->bytes * 100000000000ull : 0;
}

static void admit(struct model_time *t)
{
	while (t->waiting.head && (!t->model.queue_depth || t->working < t->model.queue_depth)) {
		struct model_time_cmd *cmd = pop(&t->waiting);
		int d = (int)cmd->direction, idle = !t->moving[d].head;

		push(&t->moving[d], cmd);
		if (idle)
			load(t, d);
		t->working++;
	}
}

/* The events that are due at t->now_ns, one of each kind and direction. */
static void step(struct model_time *t)
{
	for (int d = 0; d < 2; d++) {
		if (land_end(t, d) <= t->now_ns) {
			push(&t->finished, pop(&t->landing[d]));
			t->working--;
		}
		if (t->moving[d].head && (!t->left[d] || !rate(t, d))) {
			struct model_time_cmd *cmd = pop(&t->moving[d]);

			cmd->finish_ns =
			    t->now_ns + (d == MODEL_READ ? t->model.read_latency_ns : t->model.write_latency_ns);
			push(&t->landing[d], cmd);
			load(t, d);
		}
	}
	admit(t);
}

static void advance(struct model_time *t, uint64_t now_ns)
{
	for (;;) {
		uint64_t next = next_event(t);

		if (next > now_ns)
			break;
		run(t, next > t->now_ns ? next : t->now_ns);
		step(t);
	}
	if (now_ns > t->now_ns)
		run(t, now_ns);
}

void model_time_init(struct model_time *t, const struct ctrl_model *model, uint64_t now_ns)
{
	memset(t, 0, sizeof(*t));
	if (model)
		t->model = *model;
	t->now_ns = now_ns;
	clear(&t->waiting);
	clear(&t->finished);
	for (int d = 0; d < 2; d++) {
		clear(&t->moving[d]);
		clear(&t->landing[d]);
	}
}

void model_time_add(struct model_time *t, struct model_time_cmd *cmd, uint64_t now_ns)
{
	advance(t, now_ns);
	push(&t->waiting, cmd);
	admit(t);
}

struct model_time_cmd *model_time_take(struct model_time *t, uint64_t now_ns)
{
	advance(t, now_ns);
	return t->finished.head ? pop(&t->finished) : NULL;
}
