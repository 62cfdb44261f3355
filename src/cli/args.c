/*
 * args.c - from argv to a verb's argument struct, by table.
 *
 * getopt_long does the parsing; this file makes its table from ours, converts values with their bounds, and answers a
 * mistyped word with the nearest one.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define OPTIONS_MAX 48
#define WORD_MAX 32

struct common {
	int format;
};

const struct cli_option cli_common_options[] = {
    {"format", 0, CLI_CHOICE, offsetof(struct common, format), "FORMAT", "text|json", 0, 0,
     "Print results as text (default) or as one JSON document."},
    {"help", 'h', CLI_FLAG, 0, NULL, NULL, 0, 0, "Show this text."},
};
const size_t cli_n_common_options = sizeof(cli_common_options) / sizeof(cli_common_options[0]);

/* Edits (insert, delete, replace, swap neighbours) from a to b; words longer than WORD_MAX are far from all. */
static size_t distance(const char *a, const char *b)
{
	size_t rows[3][WORD_MAX + 1];
	size_t na = strlen(a), nb = strlen(b);

	if (na > WORD_MAX || nb > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= nb; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= na; i++) {
		size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

		now[0] = i;
		for (size_t j = 1; j <= nb; j++) {
			size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);

			if (last[j] + 1 < best)
				best = last[j] + 1;
			if (now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
				best = before[j - 2] + 1;
			now[j] = best;
		}
	}
	return rows[na % 3][nb];
}

const char *cli_nearest(const char *word, const char *(*word_at)(const void *list, size_t i), const void *list,
                        size_t n)
{
	const char *best = NULL;
	size_t best_distance = strlen(word) < 4 ? 2 : 3; /* must be nearer than this */

	for (size_t i = 0; i < n; i++) {
		const char *w = word_at(list, i);
		size_t d = distance(word, w);

		if (d < best_distance || (strlen(word) >= 3 && !best && strncmp(word, w, strlen(word)) == 0)) {
			best = w;
			best_distance = d;
		}
	}
	return best;
}

static const char *verb_name_at(const void *list, size_t i) { return ((const struct cli_verb *const *)list)[i]->name; }

const struct cli_verb *cli_find_verb(const char *name)
{
	for (size_t i = 0; i < cli_n_verbs; i++)
		if (strcmp(cli_verbs[i]->name, name) == 0)
			return cli_verbs[i];
	return NULL;
}

const char *cli_nearest_verb(const char *name) { return cli_nearest(name, verb_name_at, cli_verbs, cli_n_verbs); }

/* What is wrong with the command line, and where to read on. */
static int misused(const struct cli_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int misused(const struct cli_call *call, const char *format, ...)
{
	char text[600];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	return cli_complain(call, CLI_USAGE, "%s\nSee 'tutti %s --help'.", text, call->verb->name);
}

static const char *option_name_at(const void *list, size_t i)
{
	const struct cli_verb *verb = list;

	return i < verb->n_options ? verb->options[i].name : cli_common_options[i - verb->n_options].name;
}

static int unknown_option(const struct cli_call *call, const char *text)
{
	const struct cli_verb *verb = call->verb;
	char word[WORD_MAX + 1];
	const char *near;

	snprintf(word, sizeof(word), "%.*s", (int)strcspn(text + strspn(text, "-"), "="), text + strspn(text, "-"));
	near = cli_nearest(word, option_name_at, verb, verb->n_options + cli_n_common_options);
	return misused(call, "there is no option '%s'.%s%s%s", text, near ? " Did you mean --" : "", near ? near : "",
	               near ? "?" : "");
}

static const char *choice_at(const void *list, size_t i)
{
	static char word[WORD_MAX + 1];
	const char *p = list;

	while (i-- && p)
		p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL;
	if (!p)
		return NULL;
	snprintf(word, sizeof(word), "%.*s", (int)strcspn(p, "|"), p);
	return word;
}

static int parse_count(const char *text, uint64_t *out)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return -EINVAL;
	errno = 0;
	*out = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	return *end ? -EINVAL : 0;
}

static int parse_real(const char *text, double *out)
{
	char *end;

	errno = 0;
	*out = strtod(text, &end);
	if (errno || end == text || *end || !isfinite(*out) || *out < 0)
		return -EINVAL;
	return 0;
}

static int bad_value(const struct cli_call *call, const struct cli_option *o, const char *text, const char *why)
{
	return misused(call, "--%s: '%s' %s", o->name, text, why);
}

static int convert_number(const struct cli_call *call, const struct cli_option *o, const char *text, uint64_t *to)
{
	char why[120];
	int bytes = o->kind == CLI_BYTES;
	int result = bytes ? tutti_parse_bytes(text, to) : parse_count(text, to);

	if (result == -ERANGE)
		return bad_value(call, o, text, "is too large for this machine's numbers.");
	if (result)
		return bad_value(call, o, text,
		                 bytes ? "is not a size. Write it as 4G, 512MiB, 64k or 4096."
		                       : "is not a whole number of 0 or more.");
	if (*to >= o->min && (!o->max || *to <= o->max))
		return CLI_DONE;
	if (bytes)
		snprintf(why, sizeof(why), "is out of range: %s to %s.", cli_size(o->min),
		         o->max ? cli_size(o->max) : "the size of the disk");
	else if (o->max)
		snprintf(why, sizeof(why), "is out of range: %llu to %llu.", (unsigned long long)o->min,
		         (unsigned long long)o->max);
	else
		snprintf(why, sizeof(why), "is out of range: at least %llu.", (unsigned long long)o->min);
	return bad_value(call, o, text, why);
}

static int convert_choice(const struct cli_call *call, const struct cli_option *o, const char *text, int *to)
{
	char why[160];

	for (size_t i = 0; choice_at(o->choices, i); i++)
		if (strcmp(choice_at(o->choices, i), text) == 0) {
			*to = (int)i;
			return CLI_DONE;
		}
	snprintf(why, sizeof(why), "is not one of %s.", o->choices);
	return bad_value(call, o, text, why);
}

static int convert(const struct cli_call *call, const struct cli_option *o, const char *text, void *to)
{
	switch (o->kind) {
	case CLI_FLAG:
		*(int *)to = 1;
		return CLI_DONE;
	case CLI_TEXT:
		if (!*text)
			return bad_value(call, o, text, "is empty.");
		*(const char **)to = text;
		return CLI_DONE;
	case CLI_REAL:
		return parse_real(text, to) ? bad_value(call, o, text, "is not a number of 0 or more.") : CLI_DONE;
	case CLI_CHOICE:
		return convert_choice(call, o, text, to);
	case CLI_BYTES:
	case CLI_COUNT:
		break;
	}
	return convert_number(call, o, text, to);
}

static const struct cli_option *option_at(const struct cli_verb *verb, size_t i)
{
	return i < verb->n_options ? &verb->options[i] : &cli_common_options[i - verb->n_options];
}

/* getopt's tables from ours. Its value for option i is 256 + i. */
static size_t make_tables(const struct cli_verb *verb, struct option *longs, char *shorts)
{
	size_t n = verb->n_options + cli_n_common_options, s = 0;

	if (n > OPTIONS_MAX)
		abort(); /* a table of the program's own is longer than OPTIONS_MAX */
	shorts[s++] = ':';
	for (size_t i = 0; i < n; i++) {
		const struct cli_option *o = option_at(verb, i);
		int takes = o->kind != CLI_FLAG;

		longs[i] = (struct option){.name = o->name,
		                           .has_arg = takes ? required_argument : no_argument,
		                           .val = 256 + (int)i};
		if (o->letter) {
			shorts[s++] = o->letter;
			if (takes)
				shorts[s++] = ':';
		}
	}
	shorts[s] = 0;
	longs[n] = (struct option){0};
	return n;
}

int cli_stray(const struct cli_call *call, unsigned i, const char *takes)
{
	return misused(call, "'%s' is not taken; %s%s.", call->operands[i],
	               *takes ? "all that it takes is " : "it takes no operands", takes);
}

static int check_operands(const struct cli_call *call, unsigned n)
{
	const struct cli_verb *verb = call->verb;

	for (unsigned i = 0; i < n; i++)
		if (!*call->operands[i])
			return misused(call, "operand %u is empty.", i + 1);
	if (n >= verb->operands_min && n <= verb->operands_max)
		return CLI_DONE;
	if (n < verb->operands_min)
		return misused(call, "%s is missing.", verb->operands);
	return cli_stray(call, verb->operands_max, verb->operands);
}

int cli_wants_json(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--format=json") == 0 ||
		    (i + 1 < argc && strcmp(argv[i], "--format") == 0 && strcmp(argv[i + 1], "json") == 0))
			return 1;
	return 0;
}

int cli_parse(const struct cli_verb *verb, int argc, char **argv, void *args, struct cli_call *call)
{
	struct option longs[OPTIONS_MAX + 1];
	char shorts[2 * OPTIONS_MAX + 2];
	size_t n = make_tables(verb, longs, shorts);
	struct common common = {0};
	uint8_t given[OPTIONS_MAX] = {0};
	int c;

	*call = (struct cli_call){.verb = verb, .json = cli_wants_json(argc, argv)};
	if (verb->args_bytes)
		memcpy(args, verb->defaults, verb->args_bytes);
	optind = 1;
	opterr = 0;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		const struct cli_option *o = NULL;
		size_t i = (size_t)c - 256;

		if (c == ':')
			return misused(call, "option '%s' needs a value.", argv[optind - 1]);
		if (c == '?')
			return unknown_option(call, argv[optind - 1]);
		for (size_t k = 0; c < 256 && k < n; k++)
			if (option_at(verb, k)->letter == c)
				i = k;
		o = option_at(verb, i);
		if (strcmp(o->name, "help") == 0)
			return -1;
		if (given[i]++ && o->kind != CLI_FLAG)
			return misused(call, "--%s is given twice; which one is meant?", o->name);
		c = convert(call, o, optarg, (char *)(i < verb->n_options ? args : &common) + o->offset);
		if (c)
			return c;
	}
	call->args = args;
	call->operands = (const char *const *)argv + optind;
	call->n_operands = (unsigned)(argc - optind);
	call->json = common.format;
	return check_operands(call, call->n_operands);
}
