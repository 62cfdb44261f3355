/*
 * v_format.c - tutti format: makes a pool.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct format_args {
	uint64_t bytes, segment_bytes, ranks;
	int prewrite, overwrite;
	const char *erase_serial;
};

static const struct format_args format_defaults = {.ranks = 1};

#define AT(field) offsetof(struct format_args, field)
static const struct cli_option format_options[] = {
    {"size", 's', CLI_BYTES, AT(bytes), "SIZE", NULL, 1, 0,
     "The cap: bytes of the whole pool, over all paths. Needed for files; a block device is taken whole without it."},
    {"ranks", 'r', CLI_COUNT, AT(ranks), "N", NULL, 1, TUTTI_RANKS_MAX,
     "Shares of each slot: the tensor-parallel size of the engines that will use it. Default 1."},
    {"prewrite", 'p', CLI_CHOICE, AT(prewrite), "WHEN", "segment|all|none", 0, 0,
     "When blocks are written for the first time: ahead of use in the background (segment, default), all now (slow "
     "format, "
     "fast first writes), or never (sparse: space is then not reserved)."},
    {"segment-size", 0, CLI_BYTES, AT(segment_bytes), "SIZE", NULL, 4096, 1ull << 40,
     "Unit in which the pool's space goes to namespaces. Default: chosen from the size."},
    {"overwrite", 0, CLI_FLAG, AT(overwrite), NULL, NULL, 0, 0,
     "Also when there is a pool or anything else in the way. What was there is lost."},
    {"yes-erase", 0, CLI_TEXT, AT(erase_serial), "SERIAL", NULL, 0, 0,
     "Erase the NVMe drive with this serial number (several: separated by commas). Needed for, and only for, nvme: "
     "paths."},
};

/* What these options can do about a refusal. */
static const char *hint_of(const struct format_args *a, int result)
{
	if (result == -EEXIST)
		return "--overwrite replaces it";
	if (result == -EPERM && !a->erase_serial)
		return "--yes-erase SERIAL erases it";
	if (result == -EOPNOTSUPP && a->prewrite == 0)
		return "--prewrite all does that";
	return result == -EINVAL && !a->bytes ? "give --size, as in --size 8G" : "";
}

/* A format that is interrupted takes along the files that it made. */
static void remove_if_interrupted(const struct cli_call *call)
{
	for (unsigned i = 0; i < call->n_operands; i++)
		if (access(call->operands[i], F_OK) && errno == ENOENT && strncmp(call->operands[i], "nvme:", 5))
			cli_remove_at_exit(call->operands[i]);
}

static int run_format(const struct cli_call *call)
{
	static const enum tutti_prewrite prewrites[] = {TUTTI_PREWRITE_SEGMENT, TUTTI_PREWRITE_ALL,
	                                                TUTTI_PREWRITE_NONE};
	const struct format_args *a = call->args;
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	uint64_t start = cli_now_ns();
	char doing[300];
	int result;

	o.paths = call->operands;
	o.n_paths = call->n_operands;
	o.ranks = (uint32_t)a->ranks;
	o.bytes = a->bytes;
	o.segment_bytes = a->segment_bytes;
	o.prewrite = prewrites[a->prewrite];
	o.overwrite = a->overwrite;
	o.erase_serial = a->erase_serial;
	o.progress = cli_progress;
	remove_if_interrupted(call);
	result = tutti_format(&o);
	cli_remove_never();
	cli_progress_end();
	if (result) {
		snprintf(doing, sizeof(doing), "formatting %s", call->operands[0]);
		return cli_fail_hint(call, result, doing, hint_of(a, result));
	}
	if (call->json)
		cli_print_json(json_pack("{s:s, s:i, s:o, s:i, s:f}", "path", call->operands[0], "paths",
		                         (int)call->n_operands, "bytes", cli_json_u64(a->bytes), "ranks", (int)a->ranks,
		                         "seconds", (double)(cli_now_ns() - start) * 1e-9));
	else
		printf("%s: a pool of %s, %llu rank%s, %u path%s, made in %.1f s\n", call->operands[0],
		       a->bytes ? cli_size(a->bytes) : "the whole device", (unsigned long long)a->ranks,
		       a->ranks == 1 ? "" : "s", call->n_operands, call->n_operands == 1 ? "" : "s",
		       (double)(cli_now_ns() - start) * 1e-9);
	return CLI_DONE;
}

const struct cli_verb verb_format = {
    .name = "format",
    .operands = "PATH...",
    .summary = "Make a pool in files or on block devices.",
    .description =
        "Makes a pool of a fixed size. Files are created with mode 0600 and their space is reserved in full; "
                   "the pool never grows past it. With several paths, stripe sets go round robin over them.\n\nNothing "
                   "that exists is touched unless --overwrite is given; a drive (nvme:FUNCTION/NSID) only "
                   "when --yes-erase names its serial number.",
    .example = "tutti format --size 8G /var/cache/kv.pool\ntutti format --size 1T --ranks 2 /mnt/ssd0/kv /mnt/ssd1/kv",
    .options = format_options,
    .n_options = sizeof(format_options) / sizeof(format_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct format_args),
    .defaults = &format_defaults,
    .run = run_format,
};
