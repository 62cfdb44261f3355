/* main.c - tutti-bench: which rows, where, how long. bench/run calls it. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

struct bench_opts bench_opts = {.dir = "/tmp", .seconds = 360, .pool_bytes = 6ull << 30, .round_bytes = 512ull << 20};

static const struct group {
	const char *name;
	void (*run)(void);
} groups[] = {{"disk", bench_disk}, {"caller", bench_caller}, {"index", bench_index}, {"reopen", bench_reopen}};

static void usage(void)
{
	fprintf(stderr, "usage: tutti-bench [-d FOLDER] [-D DEVICE,DEVICE] [-l LABEL] [-j JSON] [-t FILE] [-s SECONDS] "
	                "[-p POOL] [-r ROUND] [-n] [-a AHEAD] [GROUP...]\n"
	                "  -d  where pools and fio's file go (a folder on the disk to be measured)\n"
	                "  -D  two free block devices instead: what they hold is lost\n"
	                "  -l  put before the rows' names\n"
	                "  -j  add the rows to this file\n"
	                "  -t  take rows of another program: lines of \"name value unit\"\n"
	                "  -s  seconds a row may take (360)\n"
	                "  -p  size of the pool (6G), -r  bytes of a turn (512M); -n  without fio: for a profiler\n"
	                "  -a  segments written ahead of use (0: the default; -1: none)\n"
	                "groups: disk caller index reopen; none: no group, only -t\n");
	exit(2);
}

static uint64_t size_of(const char *text)
{
	uint64_t bytes;

	if (tutti_parse_bytes(text, &bytes))
		usage();
	return bytes;
}

int main(int argc, char **argv)
{
	int c, failed;

	while ((c = getopt(argc, argv, "d:D:l:j:t:s:p:r:na:")) != -1) {
		switch (c) {
		case 'd':
			bench_opts.dir = optarg;
			break;
		case 'D':
			bench_opts.device = optarg;
			break;
		case 'l':
			bench_opts.label = optarg;
			break;
		case 'j':
			bench_opts.json = optarg;
			break;
		case 't':
			bench_opts.take = optarg;
			break;
		case 's':
			bench_opts.seconds = atof(optarg);
			break;
		case 'p':
			bench_opts.pool_bytes = size_of(optarg);
			break;
		case 'r':
			bench_opts.round_bytes = size_of(optarg);
			break;
		case 'n':
			bench_opts.no_fio = 1;
			break;
		case 'a':
			bench_opts.prewrite_ahead = atoi(optarg);
			break;
		default:
			usage();
		}
	}
	if (bench_opts.take && bench_rows_take(bench_opts.take))
		usage();
	for (; optind < argc; optind++) {
		size_t i = 0;

		while (i < sizeof(groups) / sizeof(*groups) && strcmp(groups[i].name, argv[optind]))
			i++;
		if (i == sizeof(groups) / sizeof(*groups))
			usage();
		groups[i].run();
	}
	failed = bench_opts.json ? bench_rows_write(bench_opts.json) : 0;
	return failed < 0 ? 3 : 0;
}
