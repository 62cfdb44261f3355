/*
 * completion.c - the bash completion script, made from the verbs' tables: verbs, options, and the words that an option
 * or the first operand can be. Where none are known: files, or folders, or nothing where a number is wanted.
 */
#include <string.h>

#include "cli/cli.h"
#include "cli/models.h"
#include "cli/pool.h"

static void words_of_list(FILE *f, const char *(*name_at)(size_t i))
{
	for (size_t i = 0; name_at(i); i++)
		fprintf(f, "%s%s", i ? " " : "", name_at(i));
}

static const char *verb_at(size_t i) { return i < cli_n_verbs ? cli_verbs[i]->name : NULL; }

static void words_of_choices(FILE *f, const char *choices, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fputc(choices[i] == '|' ? ' ' : choices[i], f);
}

/* What may stand behind option o, as arguments of compgen. */
static void values(FILE *f, const struct cli_option *o)
{
	if (o->choices) {
		fprintf(f, "-W \"");
		words_of_choices(f, o->choices, strlen(o->choices));
		fprintf(f, "\"");
	} else if (strcmp(o->arg, "MODEL") == 0) {
		fprintf(f, "-W \"");
		words_of_list(f, model_name_at);
		fprintf(f, "\"");
	} else if (strcmp(o->arg, "TRACE") == 0) {
		fprintf(f, "-f -W \"");
		words_of_list(f, cli_pool_trace_name_at);
		fprintf(f, "\"");
	} else if (strcmp(o->arg, "FOLDER") == 0) {
		fprintf(f, "-d");
	} else {
		fprintf(f, o->kind == CLI_TEXT ? "-f" : "-W \"\"");
	}
}

static void verb_script(FILE *f, const struct cli_verb *verb)
{
	size_t bar = strcspn(verb->operands, " ");

	fprintf(f, "\t%s)\n\t\tcase \"$prev\" in\n", verb->name);
	for (size_t i = 0; i < verb->n_options + cli_n_common_options; i++) {
		const struct cli_option *o =
		    i < verb->n_options ? &verb->options[i] : &cli_common_options[i - verb->n_options];

		if (o->kind == CLI_FLAG)
			continue;
		fprintf(f, "\t\t--%s", o->name);
		if (o->letter)
			fprintf(f, " | -%c", o->letter);
		fprintf(f, ") COMPREPLY=($(compgen ");
		values(f, o);
		fprintf(f, " -- \"$cur\")); return ;;\n");
	}
	fprintf(f, "\t\tesac\n\t\topts=\"");
	for (size_t i = 0; i < verb->n_options; i++)
		fprintf(f, "--%s ", verb->options[i].name);
	for (size_t i = 0; i < cli_n_common_options; i++)
		fprintf(f, "--%s%s", cli_common_options[i].name, i + 1 < cli_n_common_options ? " " : "");
	fprintf(f, "\"\n");
	if (memchr(verb->operands, '|', bar)) {
		fprintf(f, "\t\t[ \"$COMP_CWORD\" -ne 2 ] || first=\"");
		words_of_choices(f, verb->operands, bar);
		fprintf(f, "\"\n");
	} else if (verb == &verb_help) {
		fprintf(f, "\t\tfirst=\"");
		words_of_list(f, verb_at);
		fprintf(f, "\"\n");
	}
	fprintf(f, "\t\t;;\n");
}

void cli_completion_bash(FILE *f)
{
	fprintf(f,
	        "# bash completion of tutti; made by 'tutti help --completion'\n_tutti()\n{\n"
	           "\tlocal cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" opts=\"\" first=\"\"\n"
	           "\t# --option=value comes as three words\n"
	           "\t[ \"$cur\" != = ] || { cur=\"\"; COMP_CWORD=$((COMP_CWORD + 1)); }\n"
	           "\t[ \"${COMP_WORDS[COMP_CWORD-1]}\" != = ] || prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
	           "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tCOMPREPLY=($(compgen -W \"");
	words_of_list(f, verb_at);
	fprintf(f, "\" -- \"$cur\"))\n\t\treturn\n\tfi\n\tcase \"${COMP_WORDS[1]}\" in\n");
	for (size_t i = 0; i < cli_n_verbs; i++)
		verb_script(f, cli_verbs[i]);
	fprintf(f, "\tesac\n\tcase \"$cur\" in\n\t-*) COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\")) ;;\n"
	           "\t*)\n\t\tif [ -n \"$first\" ]; then COMPREPLY=($(compgen -W \"$first\" -- \"$cur\"))\n"
	           "\t\telse COMPREPLY=($(compgen -f -- \"$cur\")); fi ;;\n"
	           "\tesac\n}\ncomplete -o filenames -F _tutti tutti\n");
}
