/*
 * v_nvme.c - tutti nvme: which drives there are, taking one from the kernel, giving it back.
 */
#include <string.h>

#include "cli/cli.h"

struct nvme_args {
	int driver; /* enum tutti_nvme_driver */
};

static const struct cli_option nvme_options[] = {
    {"driver", 'd', CLI_CHOICE, offsetof(struct nvme_args, driver), "WHICH", "vfio|tutti", 0, 0,
     "claim: who hands the drive over. vfio (default) needs an IOMMU and no module of ours; tutti is the project's own "
     "module, which can reach GPU memory (docs/nvme.md)."},
};

static const struct nvme_args nvme_defaults = {.driver = TUTTI_NVME_VFIO};

struct listing {
	json_t *json;
	unsigned n;
};

static int print_one(void *arg, const struct tutti_nvme *n)
{
	struct listing *l = arg;
	const char *state = n->claimed ? "claimed" : n->in_use[0] ? "in use" : n->serial[0] ? "free" : "unknown";

	l->n++;
	if (l->json)
		json_array_append_new(l->json, json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:s, s:s}", "function",
		                                         n->function, "driver", n->driver, "model", n->model, "serial",
		                                         n->serial, "namespaces", (int)n->namespaces, "bytes",
		                                         cli_json_u64(n->bytes), "state", state, "in_use", n->in_use));
	else
		printf("%-14s %-9s %-10s %-24s %-20s %8s  %s\n", n->function, state, n->driver[0] ? n->driver : "-",
		       n->model[0] ? n->model : "-", n->serial[0] ? n->serial : "-",
		       n->bytes ? cli_size(n->bytes) : "-", n->in_use);
	return 0;
}

static int list(const struct cli_call *call)
{
	struct listing l = {.json = call->json ? json_array() : NULL};

	if (!l.json)
		printf("%-14s %-9s %-10s %-24s %-20s %8s\n", "FUNCTION", "STATE", "DRIVER", "MODEL", "SERIAL", "SIZE");
	tutti_nvme_list(print_one, &l);
	if (l.json)
		cli_print_json(json_pack("{s:o}", "drives", l.json));
	else if (!l.n)
		printf("no NVMe drive on this machine's PCI bus\n");
	return CLI_DONE;
}

static int done(const struct cli_call *call, int result, const char *what, const char *said)
{
	char doing[100];

	if (result) {
		snprintf(doing, sizeof(doing), "%s %.40s", what, call->operands[1]);
		return cli_fail(call, result, doing);
	}
	if (call->json)
		cli_print_json(json_pack("{s:s, s:s}", "function", call->operands[1], "state", said));
	else
		printf("%s: %s\n", call->operands[1], said);
	return CLI_DONE;
}

static int run_nvme(const struct cli_call *call)
{
	static const struct {
		const char *word, *takes;
		unsigned n;
	} deeds[] = {{"list", "list", 1}, {"claim", "claim FUNCTION SERIAL", 3}, {"release", "release FUNCTION", 2}};
	const struct nvme_args *args = call->args;
	const char *function = call->n_operands > 1 ? call->operands[1] : "";
	unsigned i = 0;

	while (i < 3 && strcmp(call->operands[0], deeds[i].word))
		i++;
	if (i == 3)
		return cli_complain(call, CLI_USAGE, "'%s' is none of list, claim, release\nSee 'tutti nvme --help'.",
		                    call->operands[0]);
	if (call->n_operands > deeds[i].n)
		return cli_stray(call, deeds[i].n, deeds[i].takes);
	if (call->n_operands < deeds[i].n)
		return cli_complain(call, CLI_USAGE, "use it as: tutti nvme %s\nSee 'tutti nvme --help'.",
		                    deeds[i].takes);
	if (i == 0)
		return list(call);
	if (i == 1)
		return done(call, tutti_nvme_claim(function, call->operands[2], (enum tutti_nvme_driver)args->driver),
		            "claiming", "claimed");
	return done(call, tutti_nvme_release(function), "releasing", "released");
}

const struct cli_verb verb_nvme = {
    .name = "nvme",
    .operands = "list|claim|release [FUNCTION [SERIAL]]",
    .summary = "Show NVMe drives; take one from the kernel, give it back.",
    .description =
        "Shows the NVMe drives on the PCI bus and who has them, takes one from the kernel's driver for the queues of "
        "this program, or gives it back. Taking and giving need root; using it afterwards does not.\n\nA drive that is "
        "mounted, part of md, lvm or swap, or has partitions is refused, and so is one whose serial number was not "
        "given "
        "in full. Claiming writes nothing to the drive.",
    .example = "tutti nvme list\ntutti nvme claim 0000:01:00.0 S4EVNX0R\ntutti format --yes-erase S4EVNX0R "
               "nvme:0000:01:00.0/1\ntutti nvme release 0000:01:00.0",
    .options = nvme_options,
    .n_options = sizeof(nvme_options) / sizeof(nvme_options[0]),
    .args_bytes = sizeof(struct nvme_args),
    .defaults = &nvme_defaults,
    .operands_min = 1,
    .operands_max = 3,
    .run = run_nvme,
};
