/*
 * plot.c - samples to bins of time, bins to a gnuplot script that holds its own data.
 */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/plot.h"

#define BINS 120u

extern char **environ;

struct bin {
	double bytes_in, bytes_out, tokens, hit_tokens;
};

struct bins {
	uint64_t start_ns, width_ns;
	struct bin bin[BINS];
};

/* Spreads an amount evenly over the bins from start to end. */
static void spread(struct bins *b, uint64_t start, uint64_t end, double amount, size_t field)
{
	uint64_t from, to;

	if (!start || amount <= 0)
		return;
	if (end <= start)
		end = start + 1;
	from = (start - b->start_ns) / b->width_ns;
	to = (end - b->start_ns) / b->width_ns;
	for (uint64_t i = from; i <= to && i < BINS; i++) {
		uint64_t bin_start = b->start_ns + i * b->width_ns, bin_end = bin_start + b->width_ns;
		uint64_t a = start > bin_start ? start : bin_start, z = end < bin_end ? end : bin_end;

		*(double *)((char *)&b->bin[i] + field) += z > a ? amount * (double)(z - a) / (double)(end - start) : 0;
	}
}

static void fill_bins(struct bins *b, const struct plot *p)
{
	uint64_t end = 0;

	*b = (struct bins){.start_ns = UINT64_MAX};
	for (size_t i = 0; i < p->n_samples; i++) {
		const struct replay_sample *s = &p->samples[i];

		if (s->start_ns && s->start_ns < b->start_ns)
			b->start_ns = s->start_ns;
		end = s->end_ns > end ? s->end_ns : end;
	}
	if (end <= b->start_ns)
		end = b->start_ns + 1;
	b->width_ns = (end - b->start_ns) / BINS + 1;
	for (size_t i = 0; i < p->n_samples; i++) {
		const struct replay_sample *s = &p->samples[i];

		if (!s->start_ns || !s->end_ns)
			continue;
		spread(b, s->load_start_ns, s->load_end_ns, (double)s->bytes_in, offsetof(struct bin, bytes_in));
		spread(b, s->store_start_ns, s->store_end_ns, (double)s->bytes_out, offsetof(struct bin, bytes_out));
		spread(b, s->start_ns, s->end_ns, s->tokens, offsetof(struct bin, tokens));
		spread(b, s->start_ns, s->end_ns, s->hit_tokens, offsetof(struct bin, hit_tokens));
	}
}

static void write_data(FILE *f, const struct bins *b)
{
	fprintf(f, "# seconds, hit ratio of tokens, GB/s in, GB/s out\n$data << EOD\n");
	for (unsigned i = 0; i < BINS; i++) {
		const struct bin *x = &b->bin[i];
		double s = (double)b->width_ns * 1e-9;

		fprintf(f, "%.4f ", (i + 0.5) * s);
		if (x->tokens > 0)
			fprintf(f, "%.4f", 100 * x->hit_tokens / x->tokens);
		else
			fputs("NaN", f);
		fprintf(f, " %.4f %.4f\n", x->bytes_in / s / 1e9, x->bytes_out / s / 1e9);
	}
	fprintf(f, "EOD\n");
}

/* A gnuplot string in single quotes. */
static void quote(FILE *f, const char *text)
{
	fputc('\'', f);
	for (; *text; text++)
		fputs(*text == '\'' ? "''" : (char[]){*text == '\n' ? ' ' : *text, 0}, f);
	fputc('\'', f);
}

static void write_script(FILE *f, const struct plot *p, const char *path, int svg)
{
	struct bins b;

	fill_bins(&b, p);
	write_data(f, &b);
	fprintf(f, "set terminal %s\nset output ", svg ? "svg size 1000,640 background 'white'" : "png size 1000,640");
	quote(f, path);
	fprintf(f, "\nset multiplot layout 2,1 title ");
	quote(f, p->title);
	fprintf(f, " noenhanced\nset lmargin 9\nset grid\nset key above\n");
	for (size_t i = 0; i < p->n_marks; i++) {
		double at = p->marks[i].at_ns > b.start_ns ? (double)(p->marks[i].at_ns - b.start_ns) * 1e-9 : 0;

		fprintf(f, "set arrow from %.4f, graph 0 to %.4f, graph 1 nohead dashtype 2\nset label ", at, at);
		quote(f, p->marks[i].text);
		fprintf(f, " at %.4f, graph 0.93 offset 0.5,0 noenhanced\n", at);
	}
	fprintf(f, "set yrange [0:105]\nset ylabel '%% of tokens'\n"
	           "plot $data using 1:2 with steps linewidth 2 title 'tokens hit'\n");
	fprintf(f, "set yrange [0:*]\nset ylabel 'GB/s'\nset xlabel 'seconds'\nunset label\n"
	           "plot $data using 1:3 with steps linewidth 2 title 'in', $data using 1:4 with steps linewidth 2 "
	           "title 'out'");
	if (p->ceiling && p->ceiling->runs)
		fprintf(f, ", %.4f with lines dashtype 3 title 'disk, reads'", p->ceiling->read_best / 1e9);
	if (p->ceiling && p->ceiling->write_best > 0)
		fprintf(f, ", %.4f with lines dashtype 4 title 'disk, writes'", p->ceiling->write_best / 1e9);
	fprintf(f, "\nunset multiplot\n");
}

/* Starts gnuplot with its script on a pipe. */
static int start(pid_t *pid, FILE **to)
{
	char *argv[] = {(char[]){"gnuplot"}, NULL};
	posix_spawn_file_actions_t actions;
	int ends[2], result;

	if (pipe(ends))
		return -errno;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
	posix_spawn_file_actions_addclose(&actions, ends[0]);
	posix_spawn_file_actions_addclose(&actions, ends[1]);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1, 0);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
	result = -posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	*to = result ? NULL : fdopen(ends[1], "w");
	if (!*to)
		close(ends[1]);
	return result;
}

static int draw(const struct plot *p, const char *path, int svg)
{
	void (*old)(int) = signal(SIGPIPE, SIG_IGN);
	int result, status = 0;
	FILE *f = NULL;
	pid_t pid;

	result = start(&pid, &f);
	if (!result) {
		if (f) {
			write_script(f, p, path, svg);
			fclose(f);
		}
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
			result = -ENOENT;
		else if (status || access(path, R_OK))
			result = -EIO;
	}
	signal(SIGPIPE, old);
	return result;
}

static int ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && strcmp(text + n - m, end) == 0;
}

int plot_check_path(const char *path)
{
	char folder[4096];
	char *slash;

	if (!ends_with(path, ".svg") && !ends_with(path, ".png"))
		return -EINVAL;
	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash)
		return access(".", W_OK) ? -errno : 0;
	slash[slash == folder] = 0; /* "/x.svg" lies in "/" */
	return access(folder, W_OK) ? -errno : 0;
}

int plot_write(const struct plot *p, const char *path, char *made, size_t made_bytes)
{
	int svg = ends_with(path, ".svg"), result = plot_check_path(path);
	FILE *f;

	if (result)
		return result;
	snprintf(made, made_bytes, "%s", path);
	result = draw(p, path, svg);
	if (!result)
		return 0;
	snprintf(made, made_bytes, "%s.gp", path);
	f = fopen(made, "w");
	if (!f)
		return -errno;
	write_script(f, p, path, svg);
	return fclose(f) ? -errno : result;
}
