/*
 * v_demo.c - tutti demo: the whole story in under two minutes. A pool in a file; real documents at the full size of a
 * model's KV cache; a SIGKILL in the middle of a store; reopen, go on warm; a table and a plot.
 *
 * The part that is killed runs in a child process; what it measured lies in shared memory (replay_log), so that the
 * parent can tell what had been acknowledged and hold it against what the pool still has.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/plot.h"
#include "cli/pool.h"
#include "cli/replay.h"
#include "cli/report.h"

#define GIB (1ull << 30)
#define POOL_BYTES (8 * GIB)
#define ROOM_BYTES (12 * GIB) /* wanted for a whole pool */
#define FIT_BYTES (6 * GIB)
#define CEILING_BYTES (512ull << 20)
#define TURNS 4u
/*
 * 64 tokens make objects of 128 KiB (64 x 8 heads x 128 x bf16): a disk gives its full bandwidth for each of them
 * alone, and a document has few enough blocks that their headers (4 KiB each) weigh nothing.
 */
#define BLOCK_TOKENS 64u

struct demo_args {
	const char *dir, *plot, *pool;
	uint64_t pool_bytes, scale;
	int keep, executor;
};
static const struct demo_args demo_defaults = {.scale = 1};
#define AT(field) offsetof(struct demo_args, field)
static const struct cli_option demo_options[] = {
    {"dir", 'd', CLI_TEXT, AT(dir), "FOLDER", NULL, 0, 0,
     "Where the pool and the plot go: the disk that is tried. Default: $TMPDIR or /tmp."},
    {"pool-size", 0, CLI_BYTES, AT(pool_bytes), "SIZE", NULL, 128ull << 20, 1ull << 40,
     "Of the pool. Default 8G, or less if the disk has not 12G free."},
    {"pool", 'p', CLI_TEXT, AT(pool), "PATH", NULL, 0, 0,
     "Use this pool, which is empty and stays: a drive's (nvme:FUNCTION/NSID), for example."},
    {"scale", 0, CLI_COUNT, AT(scale), "N", NULL, 1, 32, "Make objects N times smaller. Default 1."},
    {"plot", 0, CLI_TEXT, AT(plot), "FILE", NULL, 0, 0,
     "The plot, FILE.svg or FILE.png. Default: tutti-demo.svg in FOLDER."},
    {"executor", 0, CLI_CHOICE, AT(executor), "WHICH", CLI_EXECUTORS, 0, 0, CLI_EXECUTOR_HELP},
    {"keep", 0, CLI_FLAG, AT(keep), NULL, NULL, 0, 0, "Keep the pool, to look into it with the other verbs."},
};

enum { KILLED, RESUMED, WARM, PHASES };
static const char *const phase_names[PHASES] = {"cold, until the kill", "cold, after reopening", "warm"};

struct demo {
	const struct cli_call *call;
	const struct demo_args *a;
	const char *folder;
	char pool[4096], plot[4096];
	uint64_t pool_bytes, fit_bytes;
	struct trace trace;
	size_t round_end; /* requests before this one are first questions */
	struct replay_opts o;
	struct replay_log *logs[PHASES];
	struct ceiling ceiling;
	uint64_t start_ns, kill_ns, format_ns, reopen_ns;
	uint64_t acknowledged, committed;
	struct tutti_pool_info reopened;
	struct report_sum sums[PHASES], total;
};

/* What happens now; JSON keeps stdout for itself. */
static void say(const struct demo *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct demo *d, const char *format, ...)
{
	FILE *f = d->call->json ? stderr : stdout;
	va_list ap;

	fprintf(f, "[%5.1f s] ", (double)(cli_now_ns() - d->start_ns) * 1e-9);
	va_start(ap, format);
	vfprintf(f, format, ap);
	va_end(ap);
	fputc('\n', f);
	fflush(f);
}

/* ---- before ---- */

/* The pool that was named, its size and that it is empty; the size counts as the whole pool's. */
static int given_pool(struct demo *d)
{
	const char *paths[1] = {d->a->pool};
	struct tutti_pool_info info = {0};
	int status = CLI_DONE;
	struct tutti_store *s = cli_pool_open(d->call, paths, 1, &status);

	if (!s)
		return status;
	tutti_store_info(s, &info);
	d->pool_bytes = info.bytes;
	snprintf(d->pool, sizeof(d->pool), "%s", d->a->pool);
	if (info.n_namespaces)
		status = cli_complain(d->call, CLI_USAGE, "%s has been used; the demo wants an empty pool", d->a->pool);
	return cli_pool_close(d->call, s, status);
}

static int choose_pool(struct demo *d)
{
	uint64_t room;
	int status;

	d->folder = d->a->dir ? d->a->dir : cli_pool_folder();
	status = cli_pool_folder_check(d->call, d->folder);
	if (status)
		return status;
	room = cli_pool_room(d->folder);
	d->pool_bytes = d->a->pool_bytes ? d->a->pool_bytes : POOL_BYTES;
	if (d->a->pool)
		return given_pool(d);
	if (!d->a->pool_bytes && room < ROOM_BYTES)
		d->pool_bytes = room / 3 * 2 & ~((1ull << 20) - 1);
	if (d->pool_bytes < 512ull << 20 && !d->a->pool_bytes)
		return cli_complain(d->call, CLI_RESOURCE,
		                    "%s has only %s free; the demo wants 1G at least, better 12G. Name "
		                                           "another disk with --dir FOLDER.",
		                    d->folder, cli_size(room));
	return CLI_DONE;
}

static int choose_sizes(struct demo *d)
{
	uint64_t ram = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	int result = choose_pool(d);

	if (result)
		return result;
	d->fit_bytes = d->pool_bytes / 4 * 3 < FIT_BYTES ? d->pool_bytes / 4 * 3 : FIT_BYTES;
	snprintf(d->plot, sizeof(d->plot), "%s%s", d->a->plot ? d->a->plot : d->folder,
	         d->a->plot ? "" : "/tutti-demo.svg");
	result = plot_check_path(d->plot);
	if (result)
		return cli_complain(d->call, cli_exit_of(result), "--plot: '%s': %s", d->plot,
		                    result == -EINVAL ? "must end in .svg or .png" : strerror(-result));
	d->o = (struct replay_opts){.block_tokens = BLOCK_TOKENS,
	                            .scale = d->a->scale,
	                            .workers = 2,
	                            .kv_bytes = GIB,
	                            .seed = 1,
	                            .lane = TUTTI_LANE_OPTS_INIT};
	d->o.lane.executor = (enum tutti_executor)d->a->executor;
	if (ram / 2 < d->o.kv_bytes)
		d->o.kv_bytes = ram / 2 < 64ull << 20 ? 64ull << 20 : ram / 2;
	return CLI_DONE;
}

static int load_documents(struct demo *d)
{
	char path[4096], why[256];
	const char *set;
	int result;

	if (model_find("llama3-8b", &d->o.model, why, sizeof(why)))
		return cli_complain(d->call, CLI_USAGE, "%s", why);
	if (cli_pool_trace_path("leval", path, sizeof(path), &set))
		return cli_complain(d->call, CLI_RESOURCE,
		                    "the trace is not where it should be (%s); TUTTI_TRACES names its folder", path);
	result = trace_read(&d->trace, path, set);
	if (result)
		return cli_complain(d->call, cli_exit_of(result), "trace %s: %s", path, d->trace.why);
	trace_select(&d->trace, d->fit_bytes / (model_token_bytes(&d->o.model) / d->o.scale), TURNS);
	trace_order(&d->trace, TRACE_ROUNDS, 1);
	while (d->round_end < d->trace.n_requests && d->trace.requests[d->round_end].turn == 0)
		d->round_end++;
	if (d->round_end < 2)
		return cli_complain(d->call, CLI_RESOURCE, "a pool of %s is too small for two documents",
		                    cli_size(d->pool_bytes));
	for (int i = 0; i < PHASES; i++) {
		d->logs[i] = replay_log_new(d->trace.n_requests);
		if (!d->logs[i])
			return cli_complain(d->call, CLI_RESOURCE, "no memory for the results");
	}
	return CLI_DONE;
}

static int make_pool(struct demo *d)
{
	uint64_t start = cli_now_ns();
	int status = d->a->pool ? CLI_DONE
	                        : cli_pool_make(d->call, d->folder, d->pool_bytes, TUTTI_PREWRITE_SEGMENT, d->a->keep,
	                                        d->pool, sizeof(d->pool));

	d->format_ns = cli_now_ns() - start;
	if (status)
		return status;
	if (d->a->pool)
		say(d, "the pool of %s: %s", cli_size(d->pool_bytes), d->pool);
	else
		say(d, "formatted a pool of %s: %s (%.1f s)", cli_size(d->pool_bytes), d->pool,
		    (double)d->format_ns * 1e-9);
	ceiling_open(&d->ceiling, d->pool, CEILING_BYTES);
	ceiling_measure(&d->ceiling);
	if (d->ceiling.runs && d->ceiling.drive)
		say(d, "the drive itself gives %.2f GB/s of reads", d->ceiling.read_best / 1e9);
	else if (d->ceiling.runs)
		say(d, "the disk itself gives %.2f GB/s of reads, %.2f of writes", d->ceiling.read_best / 1e9,
		    d->ceiling.write_best / 1e9);
	else
		say(d, "the disk's own speed: %s", d->ceiling.how);
	return CLI_DONE;
}

/*
 * Whether the executor that was asked for is there, before a pool is made. In a process of its own: CUDA, once begun
 * here, would not work in the child that is killed.
 */
static int try_executor(struct demo *d)
{
	struct tutti_standin *s;
	int status = 0, result;
	pid_t pid;

	if (d->a->executor != TUTTI_EXEC_CUDA)
		return CLI_DONE;
	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return cli_complain(d->call, CLI_RESOURCE, "no child process: %s", strerror(errno));
	if (pid == 0) {
		cli_remove_never();
		result = tutti_standin_open(TUTTI_EXEC_CUDA, 1, 0, &s);
		status = result ? cli_fail(d->call, result, "KV memory") : CLI_DONE;
		fflush(NULL);
		_exit(status);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_RESOURCE;
}

/* ---- the child that is killed ---- */

static uint64_t first_round_blocks(const struct demo *d)
{
	uint64_t n = 0;

	for (size_t i = 0; i < d->round_end; i++)
		n += d->trace.requests[i].input_tokens / BLOCK_TOKENS;
	return n;
}

static int open_replay(struct demo *d, struct replay *e, const struct replay_opts *o)
{
	const char *paths[1] = {d->pool};
	struct replay_opts with = *o;
	char why[512];
	int result;

	with.paths = paths;
	with.n_paths = 1;
	result = replay_open(e, &with, &d->trace, cli_progress, why, sizeof(why));
	cli_progress_end();
	if (!result)
		return CLI_DONE;
	return why[0] ? cli_complain(d->call, cli_exit_of(result), "%s", why)
	              : cli_fail(d->call, result, "opening pool and lanes");
}

static void child(struct demo *d, struct replay *e)
{
	struct replay_opts o = d->o;
	int status;

	o.kill_after_blocks = first_round_blocks(d) / 2;
	if (d->round_end < 6) { /* few documents: the second one is killed, so they go one after the other */
		o.workers = 1;
		o.kill_after_blocks = d->trace.requests[0].input_tokens / BLOCK_TOKENS;
	}
	status = open_replay(d, e, &o);
	if (!status)
		replay_run(e, d->logs[KILLED], 0, d->round_end, NULL);
	fprintf(stderr, "tutti demo: the part that should have been killed ended by itself: %s\n",
	        d->logs[KILLED]->first_error);
	_exit(status ? status : CLI_FINDING);
}

static void close_killed_log(struct demo *d, const struct rusage *used)
{
	struct replay_log *log = d->logs[KILLED];

	d->kill_ns = log->end_ns = cli_now_ns();
	log->cpu_ns = (uint64_t)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000000ull +
	              (uint64_t)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) * 1000ull;
	log->cpu_ns -= log->cpu_start_ns < log->cpu_ns ? log->cpu_start_ns : log->cpu_ns;
	if (log->out.under_way)
		log->out.total_ns += log->end_ns - log->out.since_ns;
	if (log->in.under_way)
		log->in.total_ns += log->end_ns - log->in.since_ns;
	d->acknowledged = atomic_load(&log->stored_blocks);
}

static int run_and_kill(struct demo *d, struct replay *e)
{
	struct rusage used;
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return cli_complain(d->call, CLI_RESOURCE, "no child process: %s", strerror(errno));
	if (pid == 0)
		child(d, e);
	while (wait4(pid, &status, 0, &used) < 0 && errno == EINTR)
		;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FINDING;
	close_killed_log(d, &used);
	say(d, "process %d was killed (SIGKILL) in the middle of a store, after %" PRIu64 " acknowledged blocks",
	    (int)pid, d->acknowledged);
	return CLI_DONE;
}

/* ---- after the kill ---- */

/* The first request that the killed process did not finish. */
static size_t first_unfinished(const struct demo *d)
{
	size_t i = 0;

	while (i < d->round_end && d->logs[KILLED]->samples[i].end_ns)
		i++;
	return i;
}

static int go_on(struct demo *d, struct replay *e)
{
	struct tutti_ns_info info = {0};
	uint64_t start = cli_now_ns();
	int status = open_replay(d, e, &d->o), result;

	if (status)
		return status;
	d->reopen_ns = cli_now_ns() - start;
	ceiling_measure(&d->ceiling);
	tutti_store_info(e->store, &d->reopened);
	tutti_ns_get_info(e->ns, &info);
	d->committed = info.committed;
	say(d,
	    "reopened in %.2f s: %" PRIu64 " blocks are back, %" PRIu64
	    " were acknowledged; nothing half-written is seen",
	    (double)d->reopen_ns * 1e-9, d->committed, d->acknowledged);
	result = replay_run(e, d->logs[RESUMED], first_unfinished(d), d->round_end, cli_progress);
	cli_progress_end();
	if (!result) {
		say(d, "the rest of the first questions is done");
		ceiling_measure(&d->ceiling);
		result = replay_run(e, d->logs[WARM], d->round_end, d->trace.n_requests, cli_progress);
		cli_progress_end();
	}
	if (!result)
		say(d, "all later questions are done, warm");
	if (result)
		return cli_fail(d->call, result, "replaying");
	ceiling_measure(&d->ceiling);
	result = replay_close(e);
	return result ? cli_fail(d->call, result, "closing the pool") : CLI_DONE;
}

/* ---- results ---- */

static void add_up(struct demo *d)
{
	for (int i = 0; i < PHASES; i++) {
		report_add(&d->sums[i], d->logs[i]);
		report_add(&d->total, d->logs[i]);
	}
}

static void percent_of(char *text, size_t bytes, uint64_t moved, uint64_t ns, double best)
{
	if (!moved)
		snprintf(text, bytes, "-");
	else if (best > 0)
		snprintf(text, bytes, "%.2f (%.0f %%)", report_gbps(moved, ns),
		         100 * report_gbps(moved, ns) * 1e9 / best);
	else
		snprintf(text, bytes, "%.2f", report_gbps(moved, ns));
}

static void print_row(const struct demo *d, const char *name, const struct report_sum *s)
{
	char in[32], out[32];

	percent_of(in, sizeof(in), s->bytes_in, s->in_ns, d->ceiling.read_best);
	percent_of(out, sizeof(out), s->bytes_out, s->out_ns, d->ceiling.write_best);
	printf("%-22s %5" PRIu64 " %8" PRIu64 " %6.1f %6.1f %8s %14s %8s %14s %8.3f\n", name, s->requests, s->tokens,
	       report_percent(s->hit_tokens, s->tokens), report_percent(s->hit_blocks, s->blocks),
	       cli_size(s->bytes_in), in, cli_size(s->bytes_out), out, report_cpu_per_gb(s));
}

/* 1: something moved faster than what was measured as the disk's own speed. */
static int above_disk(const struct demo *d)
{
	int above = 0;

	for (int i = 0; i < PHASES && d->ceiling.runs; i++) {
		const struct report_sum *s = &d->sums[i];

		above |= report_gbps(s->bytes_in, s->in_ns) * 1e9 > d->ceiling.read_best;
		above |= report_gbps(s->bytes_out, s->out_ns) * 1e9 > d->ceiling.write_best;
	}
	return above;
}

static void print_table(const struct demo *d, const char *plot)
{
	const struct replay_log *log = d->logs[WARM];
	char path[300];

	printf("\nA block is the KV cache of %u tokens, all layers; its K or V of one layer is an object of %s,\n"
	       "the unit of I/O. hit %%: of tokens, and of blocks. GB/s: while bytes moved (%% of what plain reads\n"
	       "or writes of the same disk gave in between).\n",
	       BLOCK_TOKENS, cli_size(replay_object_bytes(&d->o)));
	printf("\n%-22s %5s %8s %6s %6s %8s %14s %8s %14s %8s\n", "", "reqs", "tokens", "hit %", "blocks", "in",
	       "GB/s (of disk)", "out", "GB/s (of disk)", "CPU s/GB");
	for (int i = 0; i < PHASES; i++)
		print_row(d, phase_names[i], &d->sums[i]);
	report_path(&log->lane_info, path, sizeof(path));
	printf("\n%-14s llama3-8b, 32 layers: 64 objects a block\n", "geometry");
	printf("%-14s %s%s%s\n", "path", path, log->lane_info.why[0] ? "; slower because " : "", log->lane_info.why);
	printf("%-14s %s\n", "KV memory", log->memory);
	printf("%-14s %s\n", "disk's own", d->ceiling.how);
	if (above_disk(d))
		printf("%-14s above 100 %%: the disk is shared and was slower while it was measured, or it is\n"
		       "%-14s virtual and its host had the data in memory; that figure says nothing of the disk\n",
		       "", "");
	printf("%-14s %" PRIu64 " acknowledged before the kill, %" PRIu64 " recovered (%s)\n", "blocks",
	       d->acknowledged, d->committed, d->committed >= d->acknowledged ? "none was lost" : "SOME WERE LOST");
	printf("%-14s %s, byte for byte; mismatches %" PRIu64 ", damaged blocks %" PRIu64 ", errors %" PRIu64 "\n",
	       "verified", cli_size(d->total.checked_bytes), d->total.mismatched_bytes, d->total.failed_blocks,
	       d->total.errors);
	for (int i = 0; i < PHASES; i++)
		if (d->logs[i]->first_error[0])
			printf("%-14s %s: %s\n", "error", phase_names[i], d->logs[i]->first_error);
	for (int i = 0; i < PHASES; i++)
		if (d->logs[i]->first_wrong[0])
			printf("%-14s %s: %s\n", "wrong", phase_names[i], d->logs[i]->first_wrong);
	printf("%-14s %.1f s, format %.1f s of it\n", "took", (double)(cli_now_ns() - d->start_ns) * 1e-9,
	       (double)d->format_ns * 1e-9);
	if (d->a->keep)
		printf("%-14s %s (kept)\n", "pool", d->pool);
	printf("%-14s %s\n", "plot", plot);
}

static void print_json(const struct demo *d, const char *plot)
{
	json_t *o =
	    json_pack("{s:s, s:o, s:b, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:s, s:f}", "pool", d->pool, "pool_bytes",
	              cli_json_u64(d->pool_bytes), "kept", d->a->keep, "format_s", (double)d->format_ns * 1e-9,
	                      "reopen_s", (double)d->reopen_ns * 1e-9, "acknowledged_blocks", cli_json_u64(d->acknowledged),
	                      "recovered_blocks", cli_json_u64(d->committed), "killed", report_sum_json(&d->sums[KILLED]),
	                      "resumed", report_sum_json(&d->sums[RESUMED]), "warm", report_sum_json(&d->sums[WARM]), "plot",
	              plot, "seconds", (double)(cli_now_ns() - d->start_ns) * 1e-9);

	json_object_set_new(o, "disk", report_ceiling_json(&d->ceiling));
	json_object_set_new(o, "lane", report_lane_json(&d->logs[WARM]->lane_info, &d->logs[WARM]->lane_stats));
	json_object_set_new(o, "kv_memory", json_string(d->logs[WARM]->memory));
	json_object_set_new(o, "verified_bytes", cli_json_u64(d->total.checked_bytes));
	json_object_set_new(o, "mismatched_bytes", cli_json_u64(d->total.mismatched_bytes));
	cli_print_json(o);
}

static void draw(struct demo *d, char *made, size_t made_bytes)
{
	size_t n = d->trace.n_requests;
	struct replay_sample *all = calloc(PHASES * n, sizeof(*all));
	struct plot_mark marks[] = {{d->kill_ns, "SIGKILL"}, {d->logs[WARM]->start_ns, "warm"}};
	struct plot p = {.title = "tutti demo: LEval documents, Llama-3-8B geometry",
	                 .samples = all,
	                 .n_samples = PHASES * n,
	                 .ceiling = &d->ceiling,
	                 .marks = marks,
	                 .n_marks = 2};
	int result;

	snprintf(made, made_bytes, "none: no memory");
	if (!all)
		return;
	for (size_t i = 0; i < PHASES; i++)
		memcpy(all + i * n, d->logs[i]->samples, n * sizeof(*all));
	result = plot_write(&p, d->plot, made, made_bytes);
	if (result == -ENOENT)
		cli_warn("gnuplot is not installed; script and data are in %s (apt install gnuplot-nox)", made);
	else if (result)
		cli_warn("the plot could not be drawn (%s); script and data: %s", strerror(-result), made);
	free(all);
}

static int finish(struct demo *d)
{
	char made[4100];
	int status = CLI_DONE;

	add_up(d);
	draw(d, made, sizeof(made));
	if (d->call->json)
		print_json(d, made);
	else
		print_table(d, made);
	for (int i = 0; i < PHASES && !status; i++)
		status = report_exit(&d->sums[i], d->logs[i]);
	return d->committed < d->acknowledged ? CLI_FINDING : status;
}

static int run_demo(const struct cli_call *call)
{
	static struct replay e; /* large; one a program */
	struct demo d = {.call = call, .a = call->args, .start_ns = cli_now_ns(), .ceiling = {.fd = -1}};
	int status = choose_sizes(&d);

	if (!status)
		status = try_executor(&d);
	if (!status)
		status = load_documents(&d);
	if (!status)
		status = make_pool(&d);
	if (!status) {
		say(&d, "%zu documents of LEval, %zu questions; the first ones compute, later ones reuse", d.round_end,
		    d.trace.n_requests);
		status = run_and_kill(&d, &e);
	}
	if (!status)
		status = go_on(&d, &e);
	if (!status)
		status = finish(&d);
	else
		replay_close(&e);
	ceiling_close(&d.ceiling);
	for (int i = 0; i < PHASES; i++)
		replay_log_free(d.logs[i]);
	trace_free(&d.trace);
	return status;
}

const struct cli_verb verb_demo = {
    .name = "demo",
    .operands = "",
    .summary = "Show it all: store, a kill, reopen, warm reuse; a table and a plot.",
    .description =
        "Makes a pool in a file and replays the smallest documents of LEval whose KV cache fits three quarters of "
                   "it, at the full size of Llama-3-8B, up to four questions each. In the middle of a store it kills itself "
                   "(SIGKILL), reopens the pool, goes on, and answers the later questions warm. Every byte that comes back is "
                   "checked. About 20 GB of traffic; under 90 s on two cores and a disk of 1 GB/s. The pool is removed at the "
                   "end unless --keep.",
    .example = "tutti demo --dir /mnt/ssd",
    .options = demo_options,
    .n_options = sizeof(demo_options) / sizeof(demo_options[0]),
    .args_bytes = sizeof(struct demo_args),
    .defaults = &demo_defaults,
    .run = run_demo,
};
