/*
 * plot.h - hit ratio and GB/s over time, drawn by gnuplot.
 */
#ifndef TUTTI_CLI_PLOT_H
#define TUTTI_CLI_PLOT_H

#include "cli/ceiling.h"
#include "cli/replay.h"

struct plot_mark { /* a vertical line with a word */
	uint64_t at_ns;
	const char *text;
};

struct plot {
	const char *title;
	const struct replay_sample *samples;
	size_t n_samples;
	const struct ceiling *ceiling; /* NULL: none */
	const struct plot_mark *marks;
	size_t n_marks;
};

/*
 * Draws to path; its ending chooses SVG or PNG. Without gnuplot the script with its data goes to path + ".gp".
 * made: the file that was written. 0, -EINVAL: another ending, -ENOENT: no gnuplot, -EIO: gnuplot failed, errno.
 */
int plot_write(const struct plot *p, const char *path, char *made, size_t made_bytes);
/* Before the work begins: 0, -EINVAL: neither .svg nor .png; or why its folder can't be written to. */
int plot_check_path(const char *path);

#endif
