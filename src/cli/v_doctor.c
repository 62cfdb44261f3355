/*
 * v_doctor.c - tutti doctor: what this machine can do, what makes it slower, and the command that would mend it.
 */
#include <errno.h>

#include "cli/cli.h"
#include "cli/pool.h"

struct doctor_state {
	json_t *list; /* NULL: print */
	unsigned counts[3];
};

static const char *const state_words[] = {"ok", "slower", "missing"};

static int doctor_line(void *arg, const struct tutti_doctor_line *line)
{
	struct doctor_state *d = arg;
	unsigned state = (unsigned)line->state < 3 ? (unsigned)line->state : 2;

	d->counts[state]++;
	if (d->list) {
		json_array_append_new(d->list,
		                      json_pack("{s:s, s:s, s:s, s:s}", "name", line->name, "state", state_words[state],
		                                         "detail", line->detail, "remedy", line->remedy));
		return 0;
	}
	printf("%-14s %-13s %s\n", line->name,
	       state == TUTTI_DOCTOR_OK       ? "ok"
	       : state == TUTTI_DOCTOR_SLOWER ? "slower"
	                                      : "not available",
	       line->detail);
	if (line->remedy[0])
		printf("%-14s %-13s mend: %s\n", "", "", line->remedy);
	return 0;
}

static int run_doctor(const struct cli_call *call)
{
	const char *path = call->n_operands ? call->operands[0] : cli_pool_folder();
	struct doctor_state d = {.list = call->json ? json_array() : NULL};
	int result = tutti_doctor(path, doctor_line, &d);

	if (result) {
		json_decref(d.list);
		return cli_fail(call, result, "looking");
	}
	if (call->json)
		cli_print_json(json_pack("{s:s, s:o, s:i, s:i, s:i}", "path", path, "lines", d.list, "ok",
		                         (int)d.counts[0], "slower", (int)d.counts[1], "missing", (int)d.counts[2]));
	else
		printf("%u ok, %u slower, %u not available; looked at for pools in %s\n", d.counts[0], d.counts[1],
		       d.counts[2], path);
	return CLI_DONE;
}

const struct cli_verb verb_doctor = {
    .name = "doctor",
    .operands = "[PATH]",
    .summary = "Say what this machine can do, and how to mend what it can't.",
    .description =
        "Looks at io_uring, memory limits, O_DIRECT and alignment on the file system of PATH (a folder, a file or a "
                   "block device; default $TMPDIR or /tmp), huge pages, the CPU, GPUs, NVMe functions and who drives them, and "
                   "the IOMMU. Each line is ok, slower (and why), or not available (and why), with the command that would mend "
                   "it. Changes nothing.",
    .example = "tutti doctor /mnt/ssd",
    .operands_max = 1,
    .run = run_doctor,
};
