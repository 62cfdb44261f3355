/*
 * help.c - --help and man pages, all from the verbs' tables.
 */
#include <string.h>

#include "cli/cli.h"

#define WIDTH 80u

/* Prints text filled to WIDTH, each line after `indent` spaces; the first line starts where the caller stands. */
static void fill(FILE *f, const char *text, unsigned indent, unsigned column)
{
	while (*text) {
		size_t word = strcspn(text, " \n");

		if (word && column > indent && column + 1 + word > WIDTH) {
			fprintf(f, "\n%*s", (int)indent, "");
			column = indent;
		} else if (word && column > indent) {
			fputc(' ', f);
			column++;
		}
		fwrite(text, 1, word, f);
		column += (unsigned)word;
		text += word;
		if (text[0] == '\n' && text[1] == '\n') {
			fprintf(f, "\n\n%*s", (int)indent, "");
			column = indent;
			text++;
		}
		if (*text)
			text++;
	}
	fputc('\n', f);
}

static void help_option(FILE *f, const struct cli_option *o)
{
	char head[64];
	int n = o->letter ? snprintf(head, sizeof(head), "  -%c, --%s", o->letter, o->name)
	                  : snprintf(head, sizeof(head), "      --%s", o->name);

	if (o->arg && n > 0 && (size_t)n < sizeof(head))
		n += snprintf(head + n, sizeof(head) - (size_t)n, " %s", o->choices ? o->choices : o->arg);
	if (n >= 28) {
		fprintf(f, "%s\n%28s", head, "");
		fill(f, o->help, 28, 28);
	} else {
		fprintf(f, "%-28s", head);
		fill(f, o->help, 28, 28);
	}
}

static void each_line(FILE *f, const char *text, const char *before)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(f, "%s%.*s\n", before, (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static const char exit_text[] =
    "0 done, an empty answer included; 1 a finding: stored bytes are damaged, differ, or can't be read; 2 wrong use: "
    "of options, operands or their values, or something is in the way that --overwrite would replace; 3 a resource is "
    "not there: no such pool, file or folder, no space, no permission, no memory, in use by another process, of "
    "another "
    "version.";

void cli_help_all(FILE *f)
{
	fprintf(f, "Usage: tutti VERB [OPTION]... [OPERAND]...\n\n"
	           "A pool of KV cache on SSDs that keeps and gives back.\n\nVerbs:\n");
	for (size_t i = 0; i < cli_n_verbs; i++) {
		fprintf(f, "  %-9s ", cli_verbs[i]->name);
		fill(f, cli_verbs[i]->summary, 12, 12);
	}
	fprintf(f, "\n'tutti VERB --help' tells more, with an example. Sizes are written as 4G, 512MiB, 64k\n"
	           "(powers of 1024). Exit status:");
	fill(f, exit_text, 0, 30);
}

void cli_help_verb(FILE *f, const struct cli_verb *verb)
{
	fprintf(f, "Usage: tutti %s [OPTION]...%s%s\n\n", verb->name, *verb->operands ? " " : "", verb->operands);
	fill(f, verb->description, 0, 0);
	fprintf(f, "\nOptions:\n");
	for (size_t i = 0; i < verb->n_options; i++)
		help_option(f, &verb->options[i]);
	for (size_t i = 0; i < cli_n_common_options; i++)
		help_option(f, &cli_common_options[i]);
	fprintf(f, "\nExample:\n");
	each_line(f, verb->example, "  $ ");
	fprintf(f, "\nExit status:\n  ");
	fill(f, exit_text, 2, 2);
}

/* ---- man pages ---- */

/* Text for roff: backslashes and dashes escaped, no line starts with a control character. */
static void roff(FILE *f, const char *text)
{
	int at_start = 1;

	for (; *text; text++) {
		if (text[0] == '\n' && text[1] == '\n') {
			fputs("\n.PP\n", f);
			text++;
			at_start = 1;
			continue;
		}
		if (at_start && (*text == '.' || *text == '\''))
			fputs("\\&", f);
		if (*text == '\\')
			fputs("\\e", f);
		else if (*text == '-')
			fputs("\\-", f);
		else
			fputc(*text, f);
		at_start = *text == '\n';
	}
	fputc('\n', f);
}

static void man_option(FILE *f, const struct cli_option *o)
{
	fputs(".TP\n\\fB", f);
	if (o->letter)
		fprintf(f, "\\-%c\\fR, \\fB", o->letter);
	fputs("\\-\\-", f);
	for (const char *p = o->name; *p; p++)
		fputs(*p == '-' ? "\\-" : (char[]){*p, 0}, f);
	fputs("\\fR", f);
	if (o->arg)
		fprintf(f, " \\fI%s\\fR", o->choices ? o->choices : o->arg);
	fputc('\n', f);
	roff(f, o->help);
}

static void man_program(FILE *f)
{
	fprintf(f, ".TH TUTTI 1 \"\" \"tutti %s\" \"Tutti\"\n.SH NAME\ntutti \\- a pool of KV cache on SSDs\n",
	        tutti_version());
	fprintf(f,
	        ".SH SYNOPSIS\n\\fBtutti\\fR \\fIVERB\\fR [\\fIOPTION\\fR]... [\\fIOPERAND\\fR]...\n.SH DESCRIPTION\n");
	roff(f, "Keeps the KV cache of long-context LLM serving on SSDs and gives it back, byte for byte. Sizes are "
	        "written as 4G, 512MiB, 64k (powers of 1024).");
	fprintf(f, ".SH VERBS\n");
	for (size_t i = 0; i < cli_n_verbs; i++) {
		fprintf(f, ".TP\n\\fBtutti\\-%s\\fR(1)\n", cli_verbs[i]->name);
		roff(f, cli_verbs[i]->summary);
	}
	fprintf(f, ".SH EXIT STATUS\n");
	roff(f, exit_text);
}

void cli_man_verb(FILE *f, const struct cli_verb *verb)
{
	if (!verb) {
		man_program(f);
		return;
	}
	fprintf(f, ".TH TUTTI-%s 1 \"\" \"tutti %s\" \"Tutti\"\n.SH NAME\ntutti\\-%s \\- ", verb->name, tutti_version(),
	        verb->name);
	roff(f, verb->summary);
	fprintf(f, ".SH SYNOPSIS\n\\fBtutti %s\\fR [\\fIOPTION\\fR]... %s\n.SH DESCRIPTION\n", verb->name,
	        verb->operands);
	roff(f, verb->description);
	fprintf(f, ".SH OPTIONS\n");
	for (size_t i = 0; i < verb->n_options; i++)
		man_option(f, &verb->options[i]);
	for (size_t i = 0; i < cli_n_common_options; i++)
		man_option(f, &cli_common_options[i]);
	fprintf(f, ".SH EXAMPLE\n.nf\n");
	roff(f, verb->example);
	fprintf(f, ".fi\n.SH EXIT STATUS\n");
	roff(f, exit_text);
	fprintf(f, ".SH SEE ALSO\n\\fBtutti\\fR(1)\n");
}
