/* rows.c - the table and bench.json. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define ROWS_MAX 256

static struct bench_row rows[ROWS_MAX];
static int n_rows;

/* -1: no target. */
static int passes(const struct bench_row *r)
{
	double low = r->pairs ? r->low : r->value, high = r->pairs ? r->high : r->value;

	switch (r->sense) {
	case BENCH_AT_LEAST:
		return high >= r->target && low >= 0.9 * r->target;
	case BENCH_AT_MOST:
		return low <= r->target && high <= r->target / 0.9;
	default:
		return -1;
	}
}

static const char *verdict(int pass) { return pass < 0 ? "-" : pass ? "pass" : "MISS"; }

static void print_head(void)
{
	printf("ceiling: what a row is held against (fio, a copy, the disk), taken in turns with it; ratio: of both;\n"
	       "interval: of the median ratio of so many pairs; pass: its upper end reaches the target, and its\n"
	       "lower end 0.9 of it.\n\n");
	printf("%-52s %10s %-9s %10s %7s %-15s %7s %5s %s\n", "what", "value", "unit", "ceiling", "ratio",
	       "90 % interval", "target", "pairs", "");
}

static void print_row(const struct bench_row *r)
{
	char interval[40] = "", target[24] = "", ceiling[24] = "", ratio[24] = "";

	if (r->pairs)
		snprintf(interval, sizeof(interval), "[%.3g, %.3g]", r->low, r->high);
	if (r->sense != BENCH_NO_TARGET)
		snprintf(target, sizeof(target), "%.4g", r->target);
	if (r->ceiling != 0)
		snprintf(ceiling, sizeof(ceiling), "%.4g", r->ceiling);
	if (r->ratio != 0)
		snprintf(ratio, sizeof(ratio), "%.3f", r->ratio);
	printf("%-52s %10.4g %-9s %10s %7s %-15s %7s %5d %s", r->name, r->value, r->unit, ceiling, ratio, interval,
	       target, r->pairs, verdict(passes(r)));
	printf(r->note[0] ? "  (%s)\n" : "%s\n", r->note);
	fflush(stdout);
}

void bench_row_add(struct bench_row *r)
{
	char name[sizeof(r->name)];

	if (bench_opts.label) {
		snprintf(name, sizeof(name), "%s: %.70s", bench_opts.label, r->name);
		memcpy(r->name, name, sizeof(name));
	}
	if (!n_rows)
		print_head();
	print_row(r);
	if (n_rows < ROWS_MAX)
		rows[n_rows++] = *r;
}

void bench_row_skip(const char *name, const char *why)
{
	struct bench_row r = {.unit = "skipped", .sense = BENCH_NO_TARGET};

	snprintf(r.name, sizeof(r.name), "%s", name);
	snprintf(r.note, sizeof(r.note), "%s", why);
	bench_row_add(&r);
}

/* Rows of the small programs that have a target. */
static const struct {
	const char *name;
	double target;
	enum bench_sense sense;
} known[] = {
	{"null_commands_sgl", 5, BENCH_AT_LEAST},
	{"null_commands_prp", 5, BENCH_AT_LEAST},
	{"store.lookup_mkeys_per_s", 10, BENCH_AT_LEAST},
	{"store.insert_50k_p99", 10, BENCH_AT_MOST},
	{"store.insert_5m_p99", 10, BENCH_AT_MOST},
	{"store.index_bytes_per_slot", 100, BENCH_AT_MOST},
	{"store.reopen_clean_1m", 1, BENCH_AT_MOST},
	{"replay_peak_memory_growth", 1.1, BENCH_AT_MOST},
};

int bench_rows_take(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[512];

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		struct bench_row r = {.sense = BENCH_NO_TARGET};
		char unit[32];
		int at = 0;

		if (sscanf(line, "%95s %lf %31[^ \n] %n", r.name, &r.value, unit, &at) < 3)
			continue;
		r.unit = strdup(unit);
		snprintf(r.note, sizeof(r.note), "%.*s", (int)strcspn(line + at, "\n"), line + at);
		for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
			if (!strcmp(known[i].name, r.name)) {
				r.target = known[i].target;
				r.sense = known[i].sense;
			}
		bench_row_add(&r);
	}
	fclose(f);
	return 0;
}

static json_t *number(double v) { return v != 0 ? json_real(v) : json_null(); }

static json_t *row_json(const struct bench_row *r)
{
	int pass = passes(r), target = r->sense != BENCH_NO_TARGET;

	return json_pack("{s:s, s:f, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s}", "name", r->name, "value", r->value,
	                 "unit", r->unit, "ceiling", number(r->ceiling), "ratio", number(r->ratio), "interval",
	                 r->pairs ? json_pack("[f, f]", r->low, r->high) : json_null(), "target",
	                 target ? json_real(r->target) : json_null(), "target_is",
	                 target ? json_string(r->sense == BENCH_AT_LEAST ? "at least" : "at most") : json_null(),
	                 "pass", pass < 0 ? json_null() : json_boolean(pass), "pairs", r->pairs, "note", r->note);
}

int bench_rows_write(const char *path)
{
	json_t *all = json_load_file(path, 0, NULL); /* rows of another run are kept */
	int failed = 0, rc;

	if (!json_is_array(all))
		all = json_array();
	for (int i = 0; i < n_rows; i++) {
		json_array_append_new(all, row_json(&rows[i]));
		failed += passes(&rows[i]) == 0;
	}
	rc = json_dump_file(all, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
	json_decref(all);
	if (rc)
		fprintf(stderr, "%s can't be written\n", path);
	return rc ? -1 : failed;
}
