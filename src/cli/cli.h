/*
 * cli.h - the frame of the `tutti` program: verbs, options, output.
 *
 * A verb is one const struct: what it is called, what it takes, what it says about itself, and the function that does
 * it. Arguments, --help, man pages and shell completion all come from these tables, so they can't disagree. A verb's
 * options fill a plain struct of the verb's own, by offset; the verb never sees argv.
 *
 * Exit status, of every verb (help.c has the table for users, cli_exit_of the one of results): 0 done, an empty answer
 * included; 1 a finding; 2 wrong use; 3 a resource is not there. Results go to stdout (text or JSON), also that of a
 * refused command line; everything else to stderr.
 */
#ifndef TUTTI_CLI_CLI_H
#define TUTTI_CLI_CLI_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <tutti/tutti.h>

enum cli_exit { CLI_DONE = 0, CLI_FINDING = 1, CLI_USAGE = 2, CLI_RESOURCE = 3 };

enum cli_kind {
	CLI_FLAG,   /* int, set to 1 */
	CLI_TEXT,   /* const char * */
	CLI_BYTES,  /* uint64_t, "4G" */
	CLI_COUNT,  /* uint64_t */
	CLI_REAL,   /* double */
	CLI_CHOICE, /* int, number of the word in choices */
};

struct cli_option {
	const char *name; /* long name without dashes */
	char letter;      /* 0: none */
	enum cli_kind kind;
	size_t offset;        /* into the verb's argument struct */
	const char *arg;      /* what --help calls its value; NULL for a flag */
	const char *choices;  /* "a|b|c" */
	uint64_t min, max;    /* of bytes and counts; max 0: no upper bound */
	const char *help;
};

/* Who runs the I/O kernels: an option of several verbs. The number of the word is an enum tutti_executor. */
#define CLI_EXECUTORS "auto|host|cuda"
#define CLI_EXECUTOR_HELP \
	"Who runs the I/O kernels, and computes: CPU threads (host), or a GPU (cuda), whose memory is the KV memory then. " \
	"Default: the GPU if there is one and this build has CUDA (auto)."

/* What POOL... stands for, in the description of each verb that takes it. */
#define CLI_POOL_HELP \
	"\n\nPOOL... is one pool: any one of its paths, or, if they have moved since the format, all of them in order."

struct cli_call;

struct cli_verb {
	const char *name;
	const char *operands; /* as in usage: "POOL [KEY]..." */
	const char *summary;
	const char *description; /* paragraphs, separated by an empty line */
	const char *example;     /* lines, each without its prompt */
	const struct cli_option *options;
	size_t n_options;
	unsigned operands_min, operands_max;
	size_t args_bytes;
	const void *defaults;
	int (*run)(const struct cli_call *call); /* gives the exit status */
};

struct cli_call {
	const struct cli_verb *verb;
	const void *args;
	const char *const *operands;
	unsigned n_operands;
	int json;
};

extern const struct cli_verb verb_format, verb_info, verb_ls, verb_lookup, verb_verify, verb_clear, verb_bench,
    verb_replay, verb_doctor, verb_nvme, verb_demo, verb_version, verb_help;
extern const struct cli_verb *const cli_verbs[];
extern const size_t cli_n_verbs;

/* ---- args.c: the table-driven layer over getopt_long ---- */

/* Parses argv[1..] by the verb's table. Returns CLI_DONE, CLI_USAGE (already explained), or -1: help was asked for. */
int cli_parse(const struct cli_verb *verb, int argc, char **argv, void *args, struct cli_call *call);
/* Refuses operand i by name. takes: those that are taken, "" for none. */
int cli_stray(const struct cli_call *call, unsigned i, const char *takes);
/* 1 if argv[1..] asks for JSON: known before it is parsed, so that a refusal of it is JSON too. */
int cli_wants_json(int argc, char **argv);
/* The word nearest to `word`, or NULL if none is near: for "did you mean". */
const char *cli_nearest(const char *word, const char *(*word_at)(const void *list, size_t i), const void *list,
                        size_t n);
const struct cli_verb *cli_find_verb(const char *name);
const char *cli_nearest_verb(const char *name);
/* Options that every verb has. */
extern const struct cli_option cli_common_options[];
extern const size_t cli_n_common_options;

/* ---- help.c: texts made from the tables ---- */

void cli_help_all(FILE *f);
void cli_help_verb(FILE *f, const struct cli_verb *verb);
void cli_man_verb(FILE *f, const struct cli_verb *verb); /* roff; NULL: of the program itself */

/* ---- completion.c: likewise ---- */

void cli_completion_bash(FILE *f);

/* ---- out.c: what goes to the user ---- */

/* Explains a failed call of the library (what, where, why, what to do) and returns the exit status of its class. */
int cli_fail(const struct cli_call *call, int result, const char *doing);
/* The same, and what the command line offers against it ("": nothing). */
int cli_fail_hint(const struct cli_call *call, int result, const char *doing, const char *hint);
/* The same for a fault that the CLI itself found. */
int cli_complain(const struct cli_call *call, enum cli_exit status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
enum cli_exit cli_exit_of(int result);
/* Prints and frees. */
void cli_print_json(json_t *json);
/* Sizes in a rotating static buffer: a few may stand in one printf. Main thread only. */
const char *cli_size(uint64_t bytes);
const char *cli_hex(const uint8_t *bytes, size_t n); /* at most 32 bytes; likewise */
json_t *cli_json_u64(uint64_t n);
/* tutti_progress_fn: a line on stderr, only on a terminal, only after two seconds. */
void cli_progress(void *arg, const char *what, uint64_t done, uint64_t total);
void cli_progress_end(void);
/* Removes the file when the program ends, also by ^C. At most 16. */
int cli_remove_at_exit(const char *path);
/* None of those that are listed. */
void cli_remove_never(void);
/* Now, not at exit, those that are still listed. */
void cli_remove_now(void);
uint64_t cli_now_ns(void);     /* CLOCK_MONOTONIC */
uint64_t cli_cpu_ns(void);     /* of all threads of the process */
uint64_t cli_thread_cpu_ns(void);

#endif
