/*
 * v_bench.c - tutti bench: the data path alone. Blocks go into a pool and come back, checked, some times over.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/arena.h"
#include "cli/ceiling.h"
#include "cli/cli.h"
#include "cli/pool.h"
#include "cli/report.h"

#define ROUNDS_MAX 64u
#define LEASE_NS (600ull * 1000000000)
#define STEP_NS (120ull * 1000000000)
#define CEILING_BYTES (512ull << 20)

struct bench_args {
	const char *pool, *dir;
	uint64_t object_bytes, layers, objects, blocks, rounds, sms, depth, bounce;
	int controller, executor, prp, in_order, no_verify, no_ceiling, per_layer;
};

static const struct bench_args bench_defaults = {
    .object_bytes = 128 << 10, .layers = 32, .objects = 2, .blocks = 64, .rounds = 3};

#define AT(field) offsetof(struct bench_args, field)
static const struct cli_option bench_options[] = {
    {"object-size", 'o', CLI_BYTES, AT(object_bytes), "SIZE", NULL, 1, 1ull << 30,
     "Bytes of one object (the K or V of a block's layer). Default 128K."},
    {"objects", 0, CLI_COUNT, AT(objects), "N", NULL, 1, 64, "Objects of a layer. Default 2."},
    {"layers", 0, CLI_COUNT, AT(layers), "N", NULL, 1, 1024, "Layers. Default 32."},
    {"blocks", 'n', CLI_COUNT, AT(blocks), "N", NULL, 2, 1 << 20, "Blocks of one plan. Default 64."},
    {"rounds", 'r', CLI_COUNT, AT(rounds), "N", NULL, 1, ROUNDS_MAX, "Store and retrieve so many times. Default 3."},
    {"in-order", 0, CLI_FLAG, AT(in_order), NULL, NULL, 0, 0,
     "Neighbouring blocks are neighbours in memory. Default: scattered."},
    {"form", 0, CLI_CHOICE, AT(per_layer), "FORM", "plan|per-layer", 0, 0,
     "Retrieve all layers by one call (plan, default), or each by one."},
    {"controller", 0, CLI_CHOICE, AT(controller), "WHICH", "auto|virt|model|null", 0, 0,
     "What answers the queues: files through io_uring (virt, and the default: auto), memory (model), or nobody, at "
     "once (null: the ceiling of the software; nothing is checked)."},
    {"executor", 0, CLI_CHOICE, AT(executor), "WHICH", CLI_EXECUTORS, 0, 0, CLI_EXECUTOR_HELP},
    {"sms", 0, CLI_COUNT, AT(sms), "N", NULL, 0, 64,
     "Executor blocks: threads that run the I/O kernels, or as many of a GPU's SMs. 0 (default): the lane's own "
     "choice."},
    {"depth", 0, CLI_COUNT, AT(depth), "N", NULL, 0, 4096,
     "Commands in flight of each executor block. 0 (default): 64."},
    {"bounce-memory", 0, CLI_BYTES, AT(bounce), "SIZE", NULL, 0, 0, "Bound of bounce buffers. 0 (default): 16M."},
    {"prp", 0, CLI_FLAG, AT(prp), NULL, NULL, 0, 0, "Describe memory to the controller by PRP lists instead of SGL."},
    {"no-verify", 0, CLI_FLAG, AT(no_verify), NULL, NULL, 0, 0,
     "Checksums are not compared on retrieve. Default: they are."},
    {"pool", 'p', CLI_TEXT, AT(pool), "PATH", NULL, 0, 0,
     "Use this pool (in a namespace of its own, removed afterwards). Default: a temporary one."},
    {"dir", 'd', CLI_TEXT, AT(dir), "FOLDER", NULL, 0, 0, "Where the temporary pool goes. Default: $TMPDIR or /tmp."},
    {"no-ceiling", 0, CLI_FLAG, AT(no_ceiling), NULL, NULL, 0, 0,
     "Don't measure what the disk itself gives (about 5 s, and 512 MiB beside the pool)."},
};

struct figure { /* of one round, one direction */
	double gbps, cpu_per_gb;
};

struct bench {
	const struct bench_args *a;
	struct arena arena;
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_lane *lane;
	struct tutti_standin_worker *standin;
	struct tutti_key *keys, digest;
	uint64_t *blocks;
	uint8_t *blob;
	size_t blob_bytes;
	struct figure out[ROUNDS_MAX], in[ROUNDS_MAX];
	struct tutti_lane_info info;
	struct tutti_lane_stats stats;
	struct tutti_pool_info pool; /* at the end */
	uint64_t bytes, mismatched, failed_blocks;
	const char *doing; /* of the last failure */
	char why[256];     /* in place of the library's message, where it is not empty */
};

static enum tutti_controller controller_of(const struct bench_args *a)
{
	static const enum tutti_controller c[] = {TUTTI_CTRL_AUTO, TUTTI_CTRL_VIRT, TUTTI_CTRL_MODEL, TUTTI_CTRL_NULL};

	return c[a->controller];
}

/* ---- opening ---- */

static int open_memory(struct bench *b)
{
	const struct bench_args *a = b->a;
	struct arena_shape shape = {.layers = (uint32_t)a->layers,
	                            .objects = (uint32_t)a->objects,
	                            .object_bytes = a->object_bytes,
	                            .blocks = a->blocks,
	                            .seed = 1,
	                            .scattered = !a->in_order,
	                            .executor = (enum tutti_executor)a->executor,
	                            .sms = (uint32_t)a->sms};
	int result = arena_open(&b->arena, &shape);

	b->doing = "making memory for the blocks";
	if (result)
		return result;
	b->blob_bytes = tutti_plan_blob_bytes(a->blocks);
	if (tutti_completion_blob_bytes(a->blocks) > b->blob_bytes)
		b->blob_bytes = tutti_completion_blob_bytes(a->blocks);
	b->keys = calloc(a->blocks, sizeof(*b->keys));
	b->blocks = calloc(a->blocks, sizeof(*b->blocks));
	b->blob = malloc(b->blob_bytes);
	b->bytes = a->blocks * a->layers * a->objects * a->object_bytes;
	result = b->keys && b->blocks && b->blob ? arena_take(&b->arena, a->blocks, 0, b->blocks) : -ENOMEM;
	return result ? result : tutti_standin_worker_open(b->arena.standin, &b->arena.layout, a->blocks, &b->standin);
}

static int open_namespace(struct bench *b)
{
	struct tutti_ns_spec spec = TUTTI_NS_SPEC_INIT;
	int result;

	spec.model = "tutti bench";
	memcpy(spec.weights, "no weights: bytes of a benchmark", sizeof(spec.weights));
	spec.kv_dtype = "bytes";
	spec.backend = "tutti-bench-1";
	spec.block_tokens = 1;
	spec.kv_heads = 1;
	spec.head_size = 1;
	spec.tp_size = 1;
	b->doing = "opening the namespace";
	result = tutti_kv_layout_objects(&b->arena.layout, &spec);
	if (!result)
		result = tutti_ns_digest(&spec, &b->digest);
	return result ? result : tutti_ns_open(b->store, &spec, &b->ns);
}

static int bench_open(struct bench *b, const char *const *paths)
{
	struct tutti_store_opts so = TUTTI_STORE_OPTS_INIT;
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	int result = open_memory(b);

	if (result)
		return result;
	so.paths = lo.paths = paths;
	so.n_paths = lo.n_paths = 1;
	so.progress = cli_progress;
	lo.controller = controller_of(b->a);
	lo.executor = tutti_standin_executor(b->arena.standin);
	if (lo.controller == TUTTI_CTRL_MODEL)
		so.controller = TUTTI_CTRL_MODEL;
	lo.sms = (uint32_t)b->a->sms;
	lo.queue_depth = (uint32_t)b->a->depth;
	lo.bounce_bytes = b->a->bounce;
	lo.no_sgl = b->a->prp;
	lo.no_verify = b->a->no_verify;
	b->doing = "opening the pool";
	result = tutti_store_open(&so, &b->store);
	if (!result)
		result = cli_pool_one_rank(b->store, b->why, sizeof(b->why));
	if (!result)
		result = open_namespace(b);
	if (result)
		return result;
	b->doing = "opening the lane";
	result = tutti_lane_open(&lo, &b->digest, &b->lane);
	return result ? result : tutti_lane_register(b->lane, &b->arena.layout);
}

static int bench_close(struct bench *b)
{
	int lane = b->lane ? tutti_lane_close(b->lane) : 0;
	int removed = b->ns && b->a->pool && lane != -ENOTRECOVERABLE ? tutti_ns_remove(b->ns) : 0;
	int store = b->store ? tutti_store_close(b->store) : 0;

	if (lane != -ENOTRECOVERABLE) {
		tutti_standin_worker_close(b->standin);
		arena_close(&b->arena);
	}
	free(b->keys);
	free(b->blocks);
	free(b->blob);
	return lane ? lane : removed ? removed : store;
}

/* ---- a round ---- */

/* Writes all blocks, or checks them. */
static int each_layer(struct bench *b, int check)
{
	int result = tutti_standin_begin(b->standin, b->keys, b->blocks, b->a->blocks), ended;
	uint64_t first;

	b->doing = check ? "checking" : "computing";
	for (uint32_t l = 0; !result && l < b->a->layers; l++)
		result = check ? tutti_standin_check(b->standin, l, 0, b->a->blocks)
		               : tutti_standin_compute(b->standin, l, 0, b->a->blocks);
	ended = tutti_standin_end(b->standin, cli_now_ns() + STEP_NS);
	for (uint64_t i = 0; !result && !ended && check && i < b->a->blocks; i++) {
		uint64_t wrong = tutti_standin_wrong(b->standin, i, &first);

		if (wrong && !b->mismatched)
			cli_warn("block %" PRIu64 ": %" PRIu64 " bytes differ, the first in layer %" PRIu64, i, wrong,
			         first / (b->a->objects * b->a->object_bytes));
		b->mismatched += wrong;
	}
	return result ? result : ended;
}

static int finish(struct bench *b, struct tutti_plan *p)
{
	size_t bytes = 0, bad = 0;
	int result = tutti_plan_finish(p, cli_now_ns() + STEP_NS, b->blob, b->blob_bytes, &bytes);
	int complete = bytes ? tutti_complete(b->ns, b->blob, bytes, &bad) : 0;

	b->failed_blocks += bad;
	return result ? result : complete;
}

static int open_plan(struct bench *b, const struct tutti_lease *lease, struct tutti_plan **p)
{
	size_t bytes;
	int result = tutti_plan_blob(b->ns, lease, 0, b->a->blocks, b->blob, b->blob_bytes, &bytes);

	return result ? result : tutti_plan_open(b->lane, b->blob, bytes, b->blocks, b->a->blocks, p);
}

static int store_all(struct bench *b)
{
	struct tutti_lease hold = {0};
	struct tutti_plan *p = NULL;
	size_t first = 0, count = 0;
	int result = tutti_reserve(b->ns, NULL, b->keys, b->a->blocks, LEASE_NS, &first, &count, &hold), finished;

	b->doing = "storing";
	if (!result && count < b->a->blocks) {
		tutti_cancel(b->ns, &hold);
		b->doing = "the pool has no room for all blocks of a plan";
		return -ENOSPC;
	}
	if (!result)
		result = open_plan(b, &hold, &p);
	for (uint32_t l = 0; !result && l < b->a->layers; l++)
		result = tutti_store_layer(p, l);
	if (p) {
		finished = finish(b, p);
		result = result ? result : finished;
	}
	tutti_release(b->ns, &hold);
	return result;
}

static int retrieve_all(struct bench *b)
{
	struct tutti_lease lease = {0};
	struct tutti_plan *p = NULL;
	size_t matched = 0;
	int result = tutti_lookup(b->ns, b->keys, b->a->blocks, LEASE_NS, &matched, &lease), finished;

	b->doing = "retrieving";
	if (!result && matched < b->a->blocks) {
		b->doing = "not all stored blocks are found again";
		result = -EBADMSG;
	}
	if (!result)
		result = open_plan(b, &lease, &p);
	if (!result && !b->a->per_layer)
		result = tutti_retrieve(p);
	for (uint32_t l = 0; !result && b->a->per_layer && l < b->a->layers; l++)
		result = tutti_retrieve_layer(p, l);
	for (uint32_t l = 0; !result && l < b->a->layers; l++)
		result = tutti_wait_layer(p, l, cli_now_ns() + STEP_NS);
	if (p) {
		finished = finish(b, p);
		result = result ? result : finished;
	}
	tutti_release(b->ns, &lease);
	return result;
}

static int timed(struct bench *b, int (*fn)(struct bench *), struct figure *f)
{
	uint64_t start = cli_now_ns(), cpu = cli_cpu_ns();
	int result = fn(b);

	f->gbps = report_gbps(b->bytes, cli_now_ns() - start);
	f->cpu_per_gb = (double)(cli_cpu_ns() - cpu) / (double)b->bytes;
	return result;
}

static int round_of(struct bench *b, unsigned i)
{
	uint32_t *tokens = calloc(b->a->blocks, sizeof(*tokens));
	int null = controller_of(b->a) == TUTTI_CTRL_NULL;
	int result;

	if (!tokens)
		return -ENOMEM;
	for (uint32_t k = 0; k < b->a->blocks; k++)
		tokens[k] = k + (i + 1) * 0x01000000u;
	result = tutti_keys(&b->digest, NULL, tokens, 1, NULL, b->a->blocks, b->keys);
	free(tokens);
	if (!result)
		result = each_layer(b, 0);
	if (!result)
		result = timed(b, store_all, &b->out[i]);
	if (result || null) /* null: nothing was stored, so nothing can come back */
		return result;
	result = tutti_standin_clear(b->arena.standin);
	if (!result)
		result = timed(b, retrieve_all, &b->in[i]);
	return result ? result : each_layer(b, 1);
}

/* ---- results ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static struct figure median(const struct figure *f, uint64_t n)
{
	double g[ROUNDS_MAX], c[ROUNDS_MAX];

	for (uint64_t i = 0; i < n; i++) {
		g[i] = f[i].gbps;
		c[i] = f[i].cpu_per_gb;
	}
	qsort(g, n, sizeof(*g), by_size);
	qsort(c, n, sizeof(*c), by_size);
	return (struct figure){g[n / 2], c[n / 2]};
}

static void print_text(const struct bench *b, const struct ceiling *c)
{
	struct figure out = median(b->out, b->a->rounds), in = median(b->in, b->a->rounds);
	char path[300], memory[240];

	report_path(&b->info, path, sizeof(path));
	report_memory(b->arena.standin, b->standin, b->bytes, memory, sizeof(memory));
	printf("%-10s %s\n%-10s %s\n", "path", path, "KV memory", memory);
	if (b->info.why[0] && controller_of(b->a) != TUTTI_CTRL_NULL)
		printf("%-10s slower because %s\n", "", b->info.why);
	printf("%-10s %" PRIu64 " blocks x %" PRIu64 " layers x %" PRIu64
	       " objects of %s = %s a round, %s; medians of %" PRIu64 " rounds\n",
	       "plan", b->a->blocks, b->a->layers, b->a->objects, cli_size(b->a->object_bytes), cli_size(b->bytes),
	       b->a->in_order ? "in order" : "scattered", b->a->rounds);
	printf("%-10s %.2f GB/s, %.3f CPU s/GB", "store", out.gbps, out.cpu_per_gb);
	printf(c->write_best > 0 ? "; the disk's own %.2f GB/s\n" : "\n", c->write_best / 1e9);
	if (controller_of(b->a) != TUTTI_CTRL_NULL) {
		printf("%-10s %.2f GB/s, %.3f CPU s/GB", "retrieve", in.gbps, in.cpu_per_gb);
		printf(c->runs ? "; the disk's own %.2f GB/s\n" : "\n", c->read_best / 1e9);
		printf("%-10s %" PRIu64 " bytes differ, %" PRIu64 " damaged blocks\n", "checked", b->mismatched,
		       b->failed_blocks);
	}
	printf("%-10s %" PRIu64 " for %" PRIu64 " objects; direct %s, bounced %s\n", "commands", b->stats.commands,
	       b->stats.objects, cli_size(b->stats.direct_bytes), cli_size(b->stats.bounced_bytes));
	report_syncs(stdout, 10, &b->pool);
	if (c->how[0])
		printf("%-10s %s\n", "disk", c->how);
}

static void print_json(const struct bench *b, const struct ceiling *c)
{
	struct figure out = median(b->out, b->a->rounds), in = median(b->in, b->a->rounds);
	char memory[240];
	json_t *o = json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:{s:f, s:f}, s:o, s:o}", "object_bytes",
	                      cli_json_u64(b->a->object_bytes), "layers", cli_json_u64(b->a->layers),
	                      "objects_per_layer", cli_json_u64(b->a->objects), "blocks", cli_json_u64(b->a->blocks),
	                      "rounds", cli_json_u64(b->a->rounds), "scattered", !b->a->in_order, "store", "gbps",
	                      out.gbps, "cpu_s_per_gb", out.cpu_per_gb, "mismatched_bytes", cli_json_u64(b->mismatched),
	                      "failed_blocks", cli_json_u64(b->failed_blocks));

	if (controller_of(b->a) != TUTTI_CTRL_NULL)
		json_object_set_new(o, "retrieve",
		                    json_pack("{s:f, s:f}", "gbps", in.gbps, "cpu_s_per_gb", in.cpu_per_gb));
	report_syncs_json(o, &b->pool);
	json_object_set_new(o, "lane", report_lane_json(&b->info, &b->stats));
	if (c->how[0])
		json_object_set_new(o, "disk", report_ceiling_json(c));
	report_memory(b->arena.standin, b->standin, b->bytes, memory, sizeof(memory));
	json_object_set_new(o, "kv_memory", json_string(memory));
	cli_print_json(o);
}

static int bench_run(const struct cli_call *call, struct bench *b, const char *const *paths)
{
	int with_ceiling = !b->a->no_ceiling && controller_of(b->a) <= TUTTI_CTRL_VIRT;
	struct ceiling c = {.fd = -1};
	int result = bench_open(b, paths), status;

	if (with_ceiling && !result) {
		ceiling_open(&c, paths[0], CEILING_BYTES);
		ceiling_measure(&c);
	}
	for (unsigned i = 0; !result && i < b->a->rounds; i++) {
		result = round_of(b, i);
		cli_progress(NULL, "round", i + 1, b->a->rounds);
		if (!result)
			result = tutti_ns_clear(b->ns); /* the next round finds an empty namespace */
	}
	if (!result) {
		ceiling_measure(&c);
		tutti_lane_get_info(b->lane, &b->info);
		tutti_lane_stats(b->lane, &b->stats);
		tutti_store_info(b->store, &b->pool);
	}
	ceiling_close(&c);
	cli_progress_end();
	if (result && b->why[0])
		return cli_complain(call, cli_exit_of(result), "%s", b->why);
	if (result)
		return cli_fail(call, result, b->doing);
	if (call->json)
		print_json(b, &c);
	else
		print_text(b, &c);
	status = b->mismatched || b->failed_blocks ? CLI_FINDING : CLI_DONE;
	return status;
}

static int run_bench(const struct cli_call *call)
{
	const struct bench_args *a = call->args;
	struct bench b = {.a = a};
	uint64_t page = (a->object_bytes + 4095) & ~4095ull, bytes;
	char path[4096];
	const char *paths[1] = {path};
	int status = CLI_DONE, result;

	if (__builtin_mul_overflow(page * a->layers * a->objects + (1 << 20), a->blocks, &bytes) ||
	    bytes > UINT64_MAX / 4)
		return cli_complain(call, CLI_USAGE,
		                    "so many bytes overflow: make --blocks, --layers or --object-size smaller");
	if (a->pool)
		snprintf(path, sizeof(path), "%s", a->pool);
	else
		status =
		    cli_pool_make(call, a->dir, bytes * 2 + (256ull << 20), TUTTI_PREWRITE_ALL, 0, path, sizeof(path));
	if (status)
		return status;
	status = bench_run(call, &b, paths);
	result = bench_close(&b);
	if (result && !status)
		status = cli_fail(call, result, "closing");
	return status;
}

const struct cli_verb verb_bench = {
    .name = "bench",
    .operands = "",
    .summary = "Measure the data path of a pool: store, retrieve, compare.",
    .description =
        "Stores a plan of blocks and retrieves it into cleared memory, some rounds, every byte compared; prints GB/s "
                   "and CPU seconds per GB of all threads beside what the disk itself gives. The temporary pool is written "
                   "once at format, so first writes are not part of the figures. ('make bench' compares more, and with "
                   "others.) It is one rank: a --pool formatted with more --ranks is for engines, and is refused.",
    .example = "tutti bench --object-size 32K --blocks 256\ntutti bench --controller null --prp --format json",
    .options = bench_options,
    .n_options = sizeof(bench_options) / sizeof(bench_options[0]),
    .args_bytes = sizeof(struct bench_args),
    .defaults = &bench_defaults,
    .run = run_bench,
};
