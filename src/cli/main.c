/*
 * main.c - the `tutti` program: finds the verb, parses its arguments, runs it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

const struct cli_verb *const cli_verbs[] = {
    &verb_demo,  &verb_format, &verb_info,   &verb_ls,     &verb_lookup,  &verb_verify,
    &verb_clear, &verb_bench,  &verb_replay, &verb_doctor, &verb_nvme,   &verb_version, &verb_help,
};
const size_t cli_n_verbs = sizeof(cli_verbs) / sizeof(cli_verbs[0]);

/* ---- version ---- */

static int run_version(const struct cli_call *call)
{
	if (call->json)
		cli_print_json(json_pack("{s:s, s:i, s:i, s:i}", "version", tutti_version(), "major",
		                         TUTTI_VERSION_MAJOR, "minor", TUTTI_VERSION_MINOR, "patch",
		                         TUTTI_VERSION_PATCH));
	else
		printf("tutti %s\n", tutti_version());
	return CLI_DONE;
}

const struct cli_verb verb_version = {
    .name = "version",
    .operands = "",
    .summary = "Print the version of the library that runs.",
    .description = "Prints the version of libtutti that this program is linked with.",
    .example = "tutti version",
    .run = run_version,
};

/* ---- help ---- */

struct help_args {
	int man, completion;
};
static const struct help_args help_defaults = {0};
static const struct cli_option help_options[] = {
    {"man", 0, CLI_FLAG, offsetof(struct help_args, man), NULL, NULL, 0, 0,
     "Print the man page (roff) instead: of VERB, or of the program."},
    {"completion", 0, CLI_FLAG, offsetof(struct help_args, completion), NULL, NULL, 0, 0,
     "Print the bash completion script instead."},
};

static int unknown_verb(const char *word, int json)
{
	const struct cli_call call = {.json = json};
	const char *near = cli_nearest_verb(word);

	return cli_complain(&call, CLI_USAGE, "there is no verb '%s'.%s%s%s\n'tutti help' lists them all.", word,
	                    near ? " Did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static json_t *verbs_json(void)
{
	json_t *list = json_array();

	for (size_t i = 0; i < cli_n_verbs; i++)
		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "verb", cli_verbs[i]->name, "operands",
		                                      cli_verbs[i]->operands, "summary", cli_verbs[i]->summary));
	return json_pack("{s:o}", "verbs", list);
}

static int run_help(const struct cli_call *call)
{
	const struct help_args *a = call->args;
	const struct cli_verb *verb = call->n_operands ? cli_find_verb(call->operands[0]) : NULL;

	if (call->n_operands && !verb)
		return unknown_verb(call->operands[0], call->json);
	if (a->completion && (a->man || call->n_operands))
		return a->man ? cli_complain(call, CLI_USAGE, "--man or --completion, not both")
		              : cli_stray(call, 0, "");
	if (a->completion)
		cli_completion_bash(stdout);
	else if (a->man)
		cli_man_verb(stdout, verb);
	else if (call->json)
		cli_print_json(verbs_json());
	else if (verb)
		cli_help_verb(stdout, verb);
	else
		cli_help_all(stdout);
	return CLI_DONE;
}

const struct cli_verb verb_help = {
    .name = "help",
    .operands = "[VERB]",
    .summary = "Show what there is, or one verb's help.",
    .description =
        "Lists the verbs, or shows the help of one. The man pages and the shell completion come from the same "
                   "tables.",
    .example = "tutti help replay",
    .options = help_options,
    .n_options = sizeof(help_options) / sizeof(help_options[0]),
    .operands_max = 1,
    .args_bytes = sizeof(struct help_args),
    .defaults = &help_defaults,
    .run = run_help,
};

/* ---- main ---- */

static void log_line(void *arg, int level, const char *message)
{
	(void)arg;
	if (level == 1)
		cli_warn("%s", message);
}

static int run_verb(const struct cli_verb *verb, int argc, char **argv)
{
	struct cli_call call;
	void *args = calloc(1, verb->args_bytes + 1);
	int status;

	if (!args) {
		fprintf(stderr, "tutti: no memory\n");
		return CLI_RESOURCE;
	}
	status = cli_parse(verb, argc, argv, args, &call);
	if (status == -1) {
		cli_help_verb(stdout, verb);
		status = CLI_DONE;
	} else if (status == CLI_DONE) {
		status = verb->run(&call);
	}
	free(args);
	cli_progress_end();
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "tutti: the result could not be written to stdout\n");
		if (status == CLI_DONE)
			status = CLI_RESOURCE;
	}
	return status;
}

int main(int argc, char **argv)
{
	const struct cli_verb *verb;
	const char *word = argc > 1 ? argv[1] : NULL;

	tutti_set_log(log_line, NULL);
	if (!word) {
		cli_help_all(stderr);
		return CLI_USAGE;
	}
	if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
		word = "help";
	if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
		word = "version";
	verb = cli_find_verb(word);
	if (!verb)
		return unknown_verb(word, cli_wants_json(argc, argv));
	return run_verb(verb, argc - 1, argv + 1);
}
