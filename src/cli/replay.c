/*
 * replay.c - the engine stand-in: opening everything, the workers, and the sum of what they did.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/pool.h"
#include "cli/replay.h"
#include "cli/report.h"

#define META_OBJECT_BYTES 4096u
#define ARENA_BLOCKS_MAX (4ull * REPLAY_WORKERS_MAX * REPLAY_CHUNK_BLOCKS_MAX)

struct replay_log *replay_log_new(size_t n_samples)
{
	size_t bytes = sizeof(struct replay_log) + n_samples * sizeof(struct replay_sample);
	struct replay_log *log = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (log == MAP_FAILED)
		return NULL;
	log->n_samples = n_samples;
	return log;
}

void replay_log_free(struct replay_log *log)
{
	if (log)
		munmap(log, sizeof(*log) + log->n_samples * sizeof(log->samples[0]));
}

uint64_t replay_object_bytes(const struct replay_opts *o)
{
	const struct model *m = &o->model;
	uint64_t bytes = (uint64_t)o->block_tokens * m->kv_heads * m->head_size * m->dtype_bytes;

	return o->metadata_only ? META_OBJECT_BYTES : bytes / (o->scale ? o->scale : 1);
}

void replay_spec(const struct replay_opts *o, char name[96], struct tutti_ns_spec *spec)
{
	static const char weights[TUTTI_KEY_BYTES] = "no weights: bytes of a replay";

	snprintf(name, 96, "%s%s", o->model.name, o->metadata_only ? " metadata-only" : "");
	if (!o->metadata_only && o->scale > 1)
		snprintf(name, 96, "%s scale %llu", o->model.name, (unsigned long long)o->scale);
	*spec = (struct tutti_ns_spec)TUTTI_NS_SPEC_INIT;
	spec->model = name;
	memcpy(spec->weights, weights, sizeof(weights));
	spec->kv_dtype = o->model.dtype_bytes == 2 ? "bfloat16" : "bytes";
	spec->backend = "tutti-replay-1";
	spec->block_tokens = o->block_tokens;
	spec->kv_heads = o->model.kv_heads;
	spec->head_size = o->model.head_size;
	spec->tp_size = 1;
}

void replay_note_failure(struct replay *e, struct replay_sample *s, int result, const char *doing, const char *message)
{
	s->errors++;
	pthread_mutex_lock(&e->lock);
	if (!e->log->first_error[0]) {
		e->log->first_result = result;
		snprintf(e->log->first_error, sizeof(e->log->first_error), "%s: %.400s", doing, message);
	}
	pthread_mutex_unlock(&e->lock);
}

void replay_note_error(struct replay *e, struct replay_sample *s, int result, const char *doing)
{
	const char *message = tutti_error_message();

	replay_note_failure(e, s, result, doing, message && *message ? message : tutti_strerror(result));
}

void replay_busy(struct replay *e, struct replay_busy *b, int begins)
{
	pthread_mutex_lock(&e->lock);
	if (begins && b->under_way++ == 0)
		b->since_ns = cli_now_ns();
	else if (!begins && --b->under_way == 0)
		b->total_ns += cli_now_ns() - b->since_ns;
	pthread_mutex_unlock(&e->lock);
}

/* ---- opening ---- */

static int open_arena(struct replay *e, char *why, size_t why_bytes)
{
	struct arena_shape shape = {.layers = e->layers,
	                            .objects = e->objects,
	                            .object_bytes = e->object_bytes,
	                            .seed = e->o.seed,
	                            .scattered = 1,
	                            .executor = e->o.metadata_only ? TUTTI_EXEC_HOST : e->o.lane.executor,
	                            .sms = e->o.lane.sms};
	uint64_t block_bytes = e->object_bytes * e->objects * e->layers;
	int result;

	shape.blocks = e->o.kv_bytes / block_bytes;
	if (shape.blocks >
	    ARENA_BLOCKS_MAX) /* of tiny blocks: more than all requests at once can use, scattered enough */
		shape.blocks = ARENA_BLOCKS_MAX;
	if (e->o.metadata_only) /* never touched: plans need block numbers, not bytes */
		shape.blocks = (uint64_t)REPLAY_CHUNK_BLOCKS_MAX * e->o.workers;
	if (shape.blocks < 2 || shape.blocks < e->o.workers) {
		snprintf(
		    why, why_bytes,
		         "KV memory of %s holds %llu blocks of %s: too few for %u requests at once. Give more --kv-memory, "
		         "smaller --block-tokens, a larger --scale or less --concurrency.",
		    cli_size(e->o.kv_bytes), (unsigned long long)shape.blocks, cli_size(block_bytes), e->o.workers);
		return -EINVAL;
	}
	result = arena_open(&e->arena, &shape);
	if (result)
		snprintf(why, why_bytes, "KV memory of %s: %s", cli_size(e->o.kv_bytes),
		         *tutti_error_message() ? tutti_error_message() : tutti_strerror(result));
	else
		e->o.lane.executor = tutti_standin_executor(e->arena.standin);
	shape.blocks /= e->o.workers;
	e->chunk_blocks = shape.blocks < REPLAY_CHUNK_BLOCKS_MAX ? (uint32_t)shape.blocks : REPLAY_CHUNK_BLOCKS_MAX;
	return result;
}

static int open_store(struct replay *e, tutti_progress_fn progress, char *why, size_t why_bytes)
{
	struct tutti_store_opts so = TUTTI_STORE_OPTS_INIT;
	struct tutti_ns_spec spec;
	char name[96];
	int result;

	so.paths = e->o.paths;
	so.n_paths = e->o.n_paths;
	so.progress = progress;
	if (e->o.lane.controller == TUTTI_CTRL_MODEL) { /* its memory is the pool: both sides must mean the same */
		so.controller = TUTTI_CTRL_MODEL;
		so.timing = e->o.lane.timing;
	}
	if (e->o.metadata_only) {
		so.prewrite_ahead = -1;
		so.sync_interval_ns = UINT64_MAX;
	}
	result = tutti_store_open(&so, &e->store);
	if (!result)
		result = cli_pool_one_rank(e->store, why, why_bytes);
	if (result)
		return result;
	replay_spec(&e->o, name, &spec);
	result = tutti_kv_layout_objects(&e->arena.layout, &spec);
	if (!result)
		result = tutti_ns_digest(&spec, &e->ns_digest);
	return result ? result : tutti_ns_open(e->store, &spec, &e->ns);
}

static int open_worker(struct replay *e, struct worker *w, size_t keys_max)
{
	struct tutti_lane_opts lo = e->o.lane;
	size_t completion = tutti_completion_blob_bytes(e->chunk_blocks);
	int result;

	w->e = e;
	w->blob_bytes = tutti_plan_blob_bytes(e->chunk_blocks);
	if (completion > w->blob_bytes)
		w->blob_bytes = completion;
	w->keys = calloc(keys_max + 1, sizeof(*w->keys));
	w->tokens = calloc(65536 + e->o.block_tokens, sizeof(*w->tokens));
	w->blocks = calloc(e->chunk_blocks, sizeof(*w->blocks));
	w->blob = malloc(w->blob_bytes);
	if (!w->keys || !w->tokens || !w->blocks || !w->blob)
		return -ENOMEM;
	lo.paths = e->o.paths;
	lo.n_paths = e->o.n_paths;
	if (e->o.metadata_only)
		lo.controller = TUTTI_CTRL_NULL;
	result = tutti_standin_worker_open(e->arena.standin, &e->arena.layout, e->chunk_blocks, &w->standin);
	if (!result)
		result = tutti_lane_open(&lo, &e->ns_digest, &w->lane);
	return result ? result : tutti_lane_register(w->lane, &e->arena.layout);
}

int replay_open(struct replay *e, const struct replay_opts *o, const struct trace *t, tutti_progress_fn progress,
                char *why, size_t why_bytes)
{
	size_t keys_max = 0;
	int result;

	why[0] = 0;
	*e = (struct replay){.o = *o, .trace = t};
	e->object_bytes = replay_object_bytes(o);
	e->layers = o->metadata_only ? 1 : o->model.layers;
	e->objects = o->metadata_only ? 1 : 2;
	pthread_mutex_init(&e->lock, NULL);
	if (!e->object_bytes) {
		snprintf(why, why_bytes, "--scale %llu leaves no byte of an object.", (unsigned long long)o->scale);
		return -EINVAL;
	}
	for (size_t i = 0; i < t->n_requests; i++)
		if (t->requests[i].input_tokens / o->block_tokens > keys_max)
			keys_max = t->requests[i].input_tokens / o->block_tokens;
	result = open_arena(e, why, why_bytes);
	if (!result)
		result = open_store(e, progress, why, why_bytes);
	for (uint32_t i = 0; !result && i < o->workers; i++)
		result = open_worker(e, &e->workers[i], keys_max);
	return result;
}

/* ---- running ---- */

static void wait_until(struct replay *e, uint64_t at_ns)
{
	struct timespec t = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};

	/* Arrivals have times of their own. */
	while (!atomic_load(&e->log->stop) && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct replay *e = w->e;

	while (!atomic_load(&e->log->stop)) {
		uint64_t i = atomic_fetch_add(&e->log->next, 1);
		struct replay_sample *s;
		int result;

		if (i >= e->until)
			break;
		if (e->o.paced)
			wait_until(e, e->log->start_ns + e->trace->requests[i].at_ns);
		s = &e->log->samples[i];
		*s = (struct replay_sample){.start_ns = cli_now_ns()};
		result = replay_request(w, &e->trace->requests[i], s);
		s->end_ns = cli_now_ns();
		if (result) {
			pthread_mutex_lock(&e->lock);
			e->log->fatal = result;
			pthread_mutex_unlock(&e->lock);
			atomic_store(&e->log->stop, 1);
		}
	}
	return NULL;
}

static void add_stats(struct tutti_lane_stats *to, const struct tutti_lane_stats *from)
{
	uint64_t *a = (uint64_t *)to;
	const uint64_t *b = (const uint64_t *)from;

	for (size_t i = 0; i < sizeof(*to) / sizeof(*a); i++)
		a[i] += b[i];
}

static void take_stats(struct replay *e)
{
	for (uint32_t i = 0; i < e->o.workers; i++) {
		struct tutti_lane_stats s = {0};

		if (e->workers[i].lane && tutti_lane_stats(e->workers[i].lane, &s) == 0)
			add_stats(&e->log->lane_stats, &s);
	}
	if (e->workers[0].lane)
		tutti_lane_get_info(e->workers[0].lane, &e->log->lane_info);
	report_memory(e->arena.standin, e->workers[0].standin, e->o.kv_bytes, e->log->memory, sizeof(e->log->memory));
	tutti_ns_get_info(e->ns, &e->log->ns_info);
	tutti_store_info(e->store, &e->log->pool_info);
}

int replay_run(struct replay *e, struct replay_log *log, size_t from, size_t to, tutti_progress_fn progress)
{
	uint64_t cpu = cli_cpu_ns();
	int result = 0;

	e->log = log;
	e->until = to;
	atomic_store(&log->next, from);
	log->start_ns = cli_now_ns();
	log->cpu_start_ns = cpu;
	for (uint32_t i = 0; i < e->o.workers && !result; i++) {
		result = -pthread_create(&e->workers[i].thread, NULL, work, &e->workers[i]);
		e->workers[i].started = !result;
	}
	if (result)
		atomic_store(&e->log->stop, 1);
	for (uint32_t i = 0; i < e->o.workers; i++) {
		struct timespec t;

		while (e->workers[i].started) {
			clock_gettime(CLOCK_REALTIME, &t);
			t.tv_nsec += 200000000;
			t.tv_sec += t.tv_nsec / 1000000000;
			t.tv_nsec %= 1000000000;
			if (pthread_timedjoin_np(e->workers[i].thread, NULL, &t) == 0)
				e->workers[i].started = 0;
			else if (progress)
				progress(NULL, "replaying requests", atomic_load(&log->next), to);
		}
	}
	e->log->end_ns = cli_now_ns();
	e->log->cpu_ns += cli_cpu_ns() - cpu;
	take_stats(e);
	return result ? result : e->log->fatal;
}

int replay_close(struct replay *e)
{
	int result = 0, lane_result = 0;

	for (uint32_t i = 0; i < REPLAY_WORKERS_MAX; i++) {
		struct worker *w = &e->workers[i];

		if (w->lane) {
			int r = tutti_lane_close(w->lane);

			lane_result = r ? r : lane_result;
		}
		if (lane_result != -ENOTRECOVERABLE)
			tutti_standin_worker_close(w->standin);
		free(w->keys);
		free(w->tokens);
		free(w->blocks);
		free(w->blob);
	}
	if (e->store)
		result = tutti_store_close(e->store);
	if (lane_result != -ENOTRECOVERABLE) /* else something may still write there */
		arena_close(&e->arena);
	pthread_mutex_destroy(&e->lock);
	*e = (struct replay){0};
	return result ? result : lane_result;
}
