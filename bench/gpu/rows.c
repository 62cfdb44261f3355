/* rows.c - the table, gpu.json and gpu.csv. A row has bench.json's fields, and where it is in a figure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"

static FILE *json, *csv;
static int n_rows, n_missed;

void series_add(struct series *s, double v)
{
	if (s->n < SERIES_MAX)
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double series_median(const struct series *s)
{
	struct series t = *s;

	if (!t.n)
		return 0;
	qsort(t.v, (size_t)t.n, sizeof(*t.v), by_value);
	return (t.v[(t.n - 1) / 2] + t.v[t.n / 2]) / 2;
}

static double least(const struct series *s)
{
	double v = s->v[0];

	for (int i = 1; i < s->n; i++)
		v = s->v[i] < v ? s->v[i] : v;
	return v;
}

static double most(const struct series *s)
{
	double v = s->v[0];

	for (int i = 1; i < s->n; i++)
		v = s->v[i] > v ? s->v[i] : v;
	return v;
}

void rows_open(const char *folder)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/gpu.json", folder);
	json = fopen(path, "we");
	snprintf(path, sizeof(path), "%s/gpu.csv", folder);
	csv = fopen(path, "we");
	if (!json || !csv) {
		fprintf(stderr, "%s can't be written\n", path);
		exit(2);
	}
	fprintf(json, "[\n]\n");
	fprintf(csv, "name,value,unit,least,most,runs,ceiling,ratio,target,figure,system,x,note\n");
}

static void text(FILE *f, const char *s)
{
	fputc('"', f);
	for (; s && *s; s++) {
		if (*s == '"' || *s == '\\')
			fputc('\\', f);
		fputc(*s, f);
	}
	fputc('"', f);
}

static void number_or_null(const char *name, double v, int there)
{
	if (there && isfinite(v))
		fprintf(json, ", \"%s\": %.6g", name, v);
	else
		fprintf(json, ", \"%s\": null", name);
}

/* The array's end is written again behind each row. */
static void put_json(const struct row *r, double value, int pass)
{
	fseek(json, -2, SEEK_END);
	fprintf(json, "%s{\"name\": ", n_rows ? ",\n" : "");
	text(json, r->name);
	number_or_null("value", value, r->values.n > 0);
	fprintf(json, ", \"unit\": \"%s\"", r->unit);
	number_or_null("ceiling", r->ceiling, r->ceiling > 0);
	number_or_null("ratio", r->ceiling > 0 ? value / r->ceiling : 0, r->ceiling > 0);
	if (r->values.n)
		fprintf(json, ", \"interval\": [%.6g, %.6g]", least(&r->values), most(&r->values));
	else
		fprintf(json, ", \"interval\": null");
	number_or_null("target", r->target, r->sense != NO_TARGET);
	fprintf(json, ", \"target_is\": %s, \"pass\": %s, \"pairs\": %d, \"note\": ",
	        r->sense == NO_TARGET  ? "null"
	        : r->sense == AT_LEAST ? "\"at least\""
	                               : "\"at most\"",
	        pass < 0 ? "null"
	        : pass   ? "true"
	                 : "false",
	        r->values.n);
	text(json, r->note);
	if (r->figure) {
		fprintf(json, ", \"figure\": \"%s\", \"system\": \"%s\", \"x\": %.6g", r->figure, r->system, r->x);
	}
	fprintf(json, "}\n]\n");
	fflush(json);
}

void row_put(struct row *r)
{
	double value = series_median(&r->values), held = r->ceiling > 0 ? value / r->ceiling : value;
	int pass = r->sense == NO_TARGET ? -1 : r->sense == AT_LEAST ? held >= r->target : held <= r->target;

	n_missed += pass == 0;
	printf("%-66s %9.4g %-6s", r->name, value, r->unit);
	if (r->values.n > 1)
		printf(" [%.4g, %.4g]", least(&r->values), most(&r->values));
	if (r->ceiling > 0)
		printf(" of %.4g: %.3f", r->ceiling, value / r->ceiling);
	if (pass >= 0)
		printf(" (%s %.4g: %s)", r->sense == AT_LEAST ? "at least" : "at most", r->target,
		       pass ? "pass" : "MISS");
	printf(r->note[0] ? "  %s\n" : "\n", r->note);
	fflush(stdout);
	put_json(r, value, pass);
	text(csv, r->name);
	fprintf(csv, ",%.6g,%s,%.6g,%.6g,%d,%.6g,%.4g,%.4g,%s,%s,%.6g,", value, r->unit,
	        r->values.n ? least(&r->values) : 0, r->values.n ? most(&r->values) : 0, r->values.n, r->ceiling,
	        r->ceiling > 0 ? value / r->ceiling : 0, r->sense == NO_TARGET ? 0 : r->target,
	        r->figure ? r->figure : "", r->system ? r->system : "", r->x);
	text(csv, r->note);
	fputc('\n', csv);
	fflush(csv);
	n_rows++;
}

void row_skip(const char *name, const char *why)
{
	struct row r = {.unit = "skipped"};

	snprintf(r.name, sizeof(r.name), "%s", name);
	snprintf(r.note, sizeof(r.note), "%s", why);
	row_put(&r);
}

int rows_missed(void) { return n_missed; }
