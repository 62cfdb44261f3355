/*
 * v_replay.c - tutti replay: runs a trace through store and data path, and says what was hit, how fast, and that every
 * byte was right.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plot.h"
#include "cli/pool.h"
#include "cli/replay.h"
#include "cli/report.h"

#define CEILING_BYTES (512ull << 20)
#define LINES_AUTO 100u /* requests that are listed without being asked for */

struct replay_args {
	const char *trace, *model, *pool, *dir, *plot;
	uint64_t block_tokens, limit, scale, concurrency, seed, kv_bytes, pool_bytes, turns, fit, sms, depth;
	uint64_t read_rate, write_rate, latency_us, mixed_percent;
	double rate;
	int metadata_only, paced, order, per_layer, controller, executor, prp, no_verify, keep, no_ceiling, lines;
};

static const struct replay_args replay_defaults = {
    .trace = "leval",
    .model = "llama3-8b",
    .block_tokens = 64,
    .scale = 1,
    .concurrency = 2,
    .seed = 1,
    .kv_bytes = 1ull << 30,
};

#define AT(field) offsetof(struct replay_args, field)
static const struct cli_option replay_options[] = {
    {"trace", 't', CLI_TEXT, AT(trace), "TRACE", NULL, 0, 0,
     "leval (default), loogle, longdocs (both), mooncake, or a file of such lines, plain or .xz."},
    {"model", 'm', CLI_TEXT, AT(model), "MODEL", NULL, 0, 0,
     "Geometry: llama3-8b (default), qwen3-32b, glm4-9b-1m, or LAYERS,KV_HEADS,HEAD_SIZE,DTYPE_BYTES."},
    {"block-tokens", 'b', CLI_COUNT, AT(block_tokens), "N", NULL, 1, 4096, "Tokens of a block. Default 64."},
    {"limit", 'l', CLI_COUNT, AT(limit), "N", NULL, 0, 0, "Only the first N requests, after ordering."},
    {"turns", 0, CLI_COUNT, AT(turns), "N", NULL, 0, 0, "At most N questions of each document."},
    {"fit", 0, CLI_BYTES, AT(fit), "SIZE", NULL, 1, 0, "Only the smallest documents, whose KV together fits SIZE."},
    {"order", 0, CLI_CHOICE, AT(order), "ORDER", "rounds|documents|shuffled", 0, 0,
     "Of requests: the first question of each document, then the second of each (rounds, default); document after "
     "document; "
     "or shuffled. Lines of single requests keep the trace's order in the first two."},
    {"scale", 0, CLI_COUNT, AT(scale), "N", NULL, 1, 1 << 20, "Make objects N times smaller. Default 1."},
    {"metadata-only", 0, CLI_FLAG, AT(metadata_only), NULL, NULL, 0, 0,
     "Move no bytes: keys, lookup, reservation and publication only, in a sparse temporary pool with as many slots as "
     "--pool-size (default 1T) would have."},
    {"concurrency", 'c', CLI_COUNT, AT(concurrency), "N", NULL, 1, REPLAY_WORKERS_MAX,
     "Requests in flight, each with a lane of its own. Default 2."},
    {"rate", 'r', CLI_REAL, AT(rate), "RATE", NULL, 0, 0,
     "Requests a second, as a Poisson process. Default: as fast as they are done."},
    {"paced", 0, CLI_FLAG, AT(paced), NULL, NULL, 0, 0, "Keep the arrival times of the trace."},
    {"seed", 0, CLI_COUNT, AT(seed), "N", NULL, 0, 0, "Of arrivals, shuffling and memory placement. Default 1."},
    {"kv-memory", 'k', CLI_BYTES, AT(kv_bytes), "SIZE", NULL, 1, 1ull << 44,
     "Paged KV memory of the engine stand-in; longer requests go through it in chunks. Default 1G."},
    {"form", 0, CLI_CHOICE, AT(per_layer), "FORM", "plan|per-layer", 0, 0,
     "Issue a request's layers in one go (plan, default), or each by a call of its own."},
    {"pool", 'p', CLI_TEXT, AT(pool), "PATH", NULL, 0, 0, "Use this pool. Default: a temporary one."},
    {"pool-size", 0, CLI_BYTES, AT(pool_bytes), "SIZE", NULL, 1, 0,
     "Of the temporary pool. Default 8G, or less if there is no room."},
    {"dir", 'd', CLI_TEXT, AT(dir), "FOLDER", NULL, 0, 0, "Where the temporary pool goes. Default: $TMPDIR or /tmp."},
    {"keep", 0, CLI_FLAG, AT(keep), NULL, NULL, 0, 0, "Keep the temporary pool."},
    {"controller", 0, CLI_CHOICE, AT(controller), "WHICH", "auto|virt|model", 0, 0,
     "What answers the lanes' queues: files through io_uring (virt, and the default: auto), or memory with "
     "a timing model (model)."},
    {"read-rate", 0, CLI_BYTES, AT(read_rate), "SIZE", NULL, 0, 0,
     "Model: bytes a second of reads. 0 (default): unlimited."},
    {"write-rate", 0, CLI_BYTES, AT(write_rate), "SIZE", NULL, 0, 0,
     "Model: bytes a second of writes. 0 (default): unlimited."},
    {"latency-us", 0, CLI_COUNT, AT(latency_us), "N", NULL, 0, 10000000,
     "Model: microseconds that each command takes. Default 0."},
    {"mixed-percent", 0, CLI_COUNT, AT(mixed_percent), "N", NULL, 0, 100,
     "Model: percent of each rate that is left while reads and writes overlap. 0 (default): all."},
    {"executor", 0, CLI_CHOICE, AT(executor), "WHICH", CLI_EXECUTORS, 0, 0, CLI_EXECUTOR_HELP},
    {"sms", 0, CLI_COUNT, AT(sms), "N", NULL, 0, 64,
     "Executor blocks of each lane: threads that run the I/O kernels, or as many of a GPU's SMs. 0 (default): the "
     "lane's own choice."},
    {"depth", 0, CLI_COUNT, AT(depth), "N", NULL, 0, 4096,
     "Commands in flight of each executor block. 0 (default): 64."},
    {"prp", 0, CLI_FLAG, AT(prp), NULL, NULL, 0, 0, "Describe memory to the controller by PRP lists instead of SGL."},
    {"no-verify", 0, CLI_FLAG, AT(no_verify), NULL, NULL, 0, 0,
     "Lanes don't compare checksums on retrieve. (The bytes are still checked here.)"},
    {"plot", 0, CLI_TEXT, AT(plot), "FILE", NULL, 0, 0, "Draw hit ratio and GB/s over time, to FILE.svg or FILE.png."},
    {"requests", 0, CLI_CHOICE, AT(lines), "WHICH", "auto|all|none", 0, 0,
     "List each request: up to 100 of them (auto, default), always, never. JSON lists them unless 'none'."},
    {"no-ceiling", 0, CLI_FLAG, AT(no_ceiling), NULL, NULL, 0, 0,
     "Don't measure what the disk itself gives (about 5 s, and 512 MiB beside the pool)."},
};

/* ---- the trace ---- */

static int load_trace(const struct cli_call *call, const struct replay_opts *o, struct trace *t)
{
	static const enum trace_order orders[] = {TRACE_ROUNDS, TRACE_DOCUMENTS, TRACE_SHUFFLED};
	const struct replay_args *a = call->args;
	char path[4096];
	const char *set;
	int result = cli_pool_trace_path(a->trace, path, sizeof(path), &set);

	if (result)
		return cli_complain(
		    call, CLI_RESOURCE,
		                    "trace '%s': there is no such file (%s). Known by name: leval, loogle, longdocs, mooncake; "
		                    "TUTTI_TRACES names the folder they lie in.",
		    a->trace, path);
	result = trace_read(t, path, set);
	if (result)
		return cli_complain(call, result == -EBADMSG ? CLI_USAGE : cli_exit_of(result), "trace %s: %s", path,
		                    t->why);
	trace_select(t, a->fit ? a->fit / (model_token_bytes(&o->model) / a->scale + 1) : 0, (uint32_t)a->turns);
	trace_order(t, orders[a->order], a->seed);
	if (a->limit && a->limit < t->n_requests)
		t->n_requests = (size_t)a->limit;
	if (a->rate > 0)
		trace_poisson(t, a->rate, a->seed);
	if (!t->n_requests)
		return cli_complain(call, CLI_USAGE, "trace %s: no request is left to replay", path);
	return CLI_DONE;
}

/* ---- the pool ---- */

/* Metadata only: as many slots as a pool of that size would have, each of a header and a page. */
static uint64_t metadata_pool_bytes(const struct replay_opts *o, uint64_t pool_bytes)
{
	struct replay_opts real = *o;
	uint64_t object, slot;

	real.metadata_only = 0;
	object = (replay_object_bytes(&real) + 4095) & ~4095ull;
	slot = 2ull * o->model.layers * object + 4096;
	return pool_bytes / slot * 8192 + (64ull << 20);
}

static int prepare_pool(const struct cli_call *call, struct replay_opts *o, char *path, size_t path_bytes)
{
	const struct replay_args *a = call->args;
	const char *folder = a->dir ? a->dir : cli_pool_folder();
	uint64_t bytes = a->pool_bytes, room = cli_pool_room(folder);

	if (a->pool && a->metadata_only)
		return cli_complain(
		    call, CLI_USAGE,
		                    "--metadata-only writes no blocks that a pool could give back later; it takes no --pool");
	if (a->pool) {
		snprintf(path, path_bytes, "%s", a->pool);
		return CLI_DONE;
	}
	if (a->metadata_only)
		return cli_pool_make(call, folder, metadata_pool_bytes(o, bytes ? bytes : 1ull << 40),
		                     TUTTI_PREWRITE_NONE, a->keep, path, path_bytes);
	if (!bytes)
		bytes = room / 4 * 3 < 8ull << 30 ? room / 4 * 3 & ~((1ull << 20) - 1) : 8ull << 30;
	return cli_pool_make(call, folder, bytes, TUTTI_PREWRITE_SEGMENT, a->keep, path, path_bytes);
}

static int make_opts(const struct cli_call *call, struct replay_opts *o)
{
	static const enum tutti_controller controllers[] = {TUTTI_CTRL_AUTO, TUTTI_CTRL_VIRT, TUTTI_CTRL_MODEL};
	const struct replay_args *a = call->args;
	char why[256];
	int result;

	*o = (struct replay_opts){.block_tokens = (uint32_t)a->block_tokens,
	                          .scale = a->scale,
	                          .workers = (uint32_t)a->concurrency,
	                          .kv_bytes = a->kv_bytes,
	                          .seed = a->seed,
	                          .per_layer = a->per_layer,
	                          .metadata_only = a->metadata_only,
	                          .paced = a->paced || a->rate > 0,
	                          .lane = TUTTI_LANE_OPTS_INIT};
	if (model_find(a->model, &o->model, why, sizeof(why)))
		return cli_complain(call, CLI_USAGE, "--model: %s", why);
	result = a->plot ? plot_check_path(a->plot) : 0;
	if (result)
		return cli_complain(call, cli_exit_of(result), "--plot: '%s': %s", a->plot,
		                    result == -EINVAL ? "must end in .svg or .png" : strerror(-result));
	o->lane.controller = controllers[a->controller];
	o->lane.executor = (enum tutti_executor)a->executor;
	o->lane.sms = (uint32_t)a->sms;
	o->lane.queue_depth = (uint32_t)a->depth;
	o->lane.no_sgl = a->prp;
	o->lane.no_verify = a->no_verify;
	o->lane.timing = (struct tutti_model_timing){.read_bytes_per_s = a->read_rate,
	                                             .write_bytes_per_s = a->write_rate,
	                                             .read_latency_ns = a->latency_us * 1000,
	                                             .write_latency_ns = a->latency_us * 1000,
	                                             .mixed_percent = (uint32_t)a->mixed_percent};
	return CLI_DONE;
}

/* ---- results ---- */

static void print_text(const struct cli_call *call, const struct replay_opts *o, const struct replay_log *log,
                       const struct report_sum *sum, const struct ceiling *c, const char *pool)
{
	const struct replay_args *a = call->args;
	char path[300];

	if (a->lines == 1 || (a->lines == 0 && log->n_samples <= LINES_AUTO)) {
		report_requests(stdout, log);
		printf("\n");
	}
	printf("%-14s %s, %s, %u tokens a block, objects of %s%s\n", "trace", a->trace, o->model.name, o->block_tokens,
	       cli_size(replay_object_bytes(o)), o->metadata_only ? " (metadata only)" : "");
	printf("%-14s %s, %s, %" PRIu64 " slots used for it%s\n", "pool", pool, cli_size(log->pool_info.bytes),
	       log->ns_info.slots, a->pool || a->keep ? "" : " (temporary)");
	report_path(&log->lane_info, path, sizeof(path));
	printf("%-14s %s\n", "path", path);
	if (!o->metadata_only)
		printf("%-14s %s\n", "KV memory", log->memory);
	if (log->lane_info.why[0] && !o->metadata_only)
		printf("%-14s %s\n", "slower because", log->lane_info.why);
	report_lines(stdout, sum, log, c);
}

static void print_json(const struct cli_call *call, const struct replay_opts *o, const struct replay_log *log,
                       const struct report_sum *sum, const struct ceiling *c, const char *pool, const char *plot)
{
	const struct replay_args *a = call->args;
	json_t *root = json_pack("{s:s, s:s, s:i, s:o, s:o, s:s, s:b, s:o, s:o, s:o, s:o}", "trace", a->trace, "model",
	                         o->model.name, "block_tokens", (int)o->block_tokens, "object_bytes",
	                         cli_json_u64(replay_object_bytes(o)), "scale", cli_json_u64(o->scale), "pool", pool,
	                         "metadata_only", o->metadata_only, "pool_bytes", cli_json_u64(log->pool_info.bytes),
	                         "slots", cli_json_u64(log->ns_info.slots), "evicted",
	                         cli_json_u64(log->ns_info.evicted), "sum", report_sum_json(sum));

	report_syncs_json(root, &log->pool_info);
	json_object_set_new(root, "lane", report_lane_json(&log->lane_info, &log->lane_stats));
	if (!o->metadata_only)
		json_object_set_new(root, "kv_memory", json_string(log->memory));
	if (log->first_wrong[0])
		json_object_set_new(root, "first_wrong", json_string(log->first_wrong));
	if (c)
		json_object_set_new(root, "disk", report_ceiling_json(c));
	if (a->lines != 2)
		json_object_set_new(root, "requests", report_requests_json(log));
	if (log->first_error[0])
		json_object_set_new(root, "first_error", json_string(log->first_error));
	if (*plot)
		json_object_set_new(root, "plot", json_string(plot));
	cli_print_json(root);
}

static void draw(const struct replay_args *a, const struct replay_log *log, const struct ceiling *c, char *made,
                 size_t made_bytes)
{
	char title[200];
	struct plot p = {.title = title, .samples = log->samples, .n_samples = log->n_samples, .ceiling = c};
	int result;

	made[0] = 0;
	if (!a->plot)
		return;
	snprintf(title, sizeof(title), "tutti replay: %s, %s", a->trace, a->model);
	result = plot_write(&p, a->plot, made, made_bytes);
	if (result == -ENOENT)
		cli_warn("gnuplot is not installed; script and data are in %s (apt install gnuplot-nox)", made);
	else if (result)
		cli_warn("the plot could not be drawn (%s); script and data: %s", strerror(-result), made);
}

static int replay(const struct cli_call *call, const struct replay_opts *o, const struct trace *t,
                  struct replay_log *log)
{
	static struct replay e; /* large; one a program */
	const struct replay_args *a = call->args;
	struct ceiling c = {.fd = -1};
	int with_ceiling = !a->no_ceiling && !a->metadata_only && o->lane.controller != TUTTI_CTRL_MODEL;
	struct report_sum sum = {0};
	char why[512], made[4100];
	int result, closed;

	result = replay_open(&e, o, t, cli_progress, why, sizeof(why));
	if (result) {
		int status = why[0] ? cli_complain(call, cli_exit_of(result), "%s", why)
		                    : cli_fail(call, result, "opening pool and lanes");
		replay_close(&e);
		return status;
	}
	if (with_ceiling) {
		ceiling_open(&c, o->paths[0], CEILING_BYTES);
		ceiling_measure(&c);
	}
	result = replay_run(&e, log, 0, t->n_requests, cli_progress);
	cli_progress_end();
	if (with_ceiling)
		ceiling_measure(&c);
	ceiling_close(&c);
	closed = replay_close(&e);
	report_add(&sum, log);
	draw(a, log, with_ceiling ? &c : NULL, made, sizeof(made));
	if (call->json)
		print_json(call, o, log, &sum, with_ceiling ? &c : NULL, o->paths[0], made);
	else
		print_text(call, o, log, &sum, with_ceiling ? &c : NULL, o->paths[0]);
	if (*made && !call->json)
		printf("%-14s %s\n", "plot", made);
	if (result)
		return cli_complain(call, cli_exit_of(result), "the replay ended early: %s; first error: %s",
		                    tutti_strerror(result), log->first_error[0] ? log->first_error : "none was kept");
	if (closed)
		return cli_fail(call, closed, "closing the pool");
	return report_exit(&sum, log);
}

static int run_replay(const struct cli_call *call)
{
	struct replay_opts o;
	struct replay_log *log;
	struct trace t = {0};
	char path[4096];
	const char *paths[1] = {path};
	int status = make_opts(call, &o);

	if (!status)
		status = load_trace(call, &o, &t);
	if (!status)
		status = prepare_pool(call, &o, path, sizeof(path));
	if (!status) {
		o.paths = paths;
		o.n_paths = 1;
		log = replay_log_new(t.n_requests);
		status =
		    log ? replay(call, &o, &t, log) : cli_complain(call, CLI_RESOURCE, "no memory for the results");
		replay_log_free(log);
	}
	trace_free(&t);
	return status;
}

const struct cli_verb verb_replay = {
    .name = "replay",
    .operands = "",
    .summary = "Run a trace of real work through a pool and check every byte.",
    .description =
        "Replays requests of a trace. A stand-in for an engine places blocks at scattered addresses of its KV memory; "
        "each "
        "request looks its prompt up, retrieves what the pool has layer by layer, checks every byte of it, computes "
        "(writes "
        "bytes that depend on key, layer and offset alone) what is missing, and stores that layer by layer.\n\nPrints, "
        "per "
        "request and in sum, tokens and blocks hit, bytes, GB/s beside what the disk itself gives, CPU seconds per GB, "
        "layers that had to wait, evictions, errors. Exit status 1 if a byte was wrong, a block damaged or a request "
        "in "
        "error. Memory is bounded by --kv-memory, not by the trace.\n\nThe stand-in is one rank: a --pool formatted "
        "with "
        "more --ranks is for engines, and is refused.",
    .example = "tutti replay --trace leval --turns 4 --fit 2G --plot hits.svg\n"
               "tutti replay --trace mooncake --limit 500 --scale 16 --concurrency 4 --format json",
    .options = replay_options,
    .n_options = sizeof(replay_options) / sizeof(replay_options[0]),
    .args_bytes = sizeof(struct replay_args),
    .defaults = &replay_defaults,
    .run = run_replay,
};
