/*
 * reopen.c - how long a pool of a million slots takes to open, after a clean close and after a kill.
 *
 * The headers are real: a lane wrote them (4 KiB objects, a sparse file). Each opening is a process of its own, which
 * says how long it took and what it found, then closes or is killed. After a kill all headers are read; fio reads as
 * many bytes, in pieces of a set's headers, for comparison.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define SLOTS 1000000ull
#define CHAIN 2048
#define HEADER_BYTES 4096
#define SET_HEADERS (64 * HEADER_BYTES)
#define TIMES 5
#define FILL_SECONDS 120

struct found {
	uint64_t open_ns, committed, recovered, matched;
};

static struct bench_shape shape(const char *path)
{
	struct bench_shape s = {.path = path, .layers = 1, .objects = 1, .object_bytes = 4096, .blocks = CHAIN};

	s.pool_bytes = SLOTS * 2 * HEADER_BYTES + SLOTS * 2 * HEADER_BYTES / 50 + (256u << 20);
	s.prewrite = TUTTI_PREWRITE_NONE;
	return s;
}

/* In a child: fills a new pool (as much of it as FILL_SECONDS allow), or opens it; tells `to`; ends as said. */
static void child(const char *path, int fresh, int killed, int to)
{
	struct bench_shape s = shape(path);
	struct tutti_key keys[CHAIN];
	struct tutti_pool_info pool;
	struct tutti_ns_info ns;
	struct found f = {0};
	struct bench_cost c;
	struct bench_rig r;
	size_t n;
	uint64_t start = bench_now_ns();

	s.keep = !fresh;
	s.no_lane = !fresh;
	bench_rig_open(&r, &s);
	f.open_ns = r.open_ns;
	for (uint64_t i = 0; fresh && i < SLOTS / CHAIN && bench_now_ns() - start < FILL_SECONDS * 1000000000ull; i++) {
		bench_keys(&r, i, CHAIN, keys);
		bench_store(&r, r.lane, keys, CHAIN, &n, &c);
	}
	bench_keys(&r, 3, CHAIN, keys);
	bench_need(tutti_lookup(r.ns, keys, CHAIN, 0, &n, NULL), "lookup");
	bench_need(tutti_store_info(r.store, &pool), "info");
	bench_need(tutti_ns_get_info(r.ns, &ns), "info");
	f.matched = n;
	f.committed = ns.committed;
	f.recovered = pool.recovered_slots;
	if (write(to, &f, sizeof(f)) != sizeof(f))
		_exit(3);
	if (killed)
		raise(SIGKILL);
	bench_rig_close(&r);
	_exit(0);
}

static int run(const char *path, int fresh, int killed, struct found *f)
{
	int ends[2], status;
	pid_t pid;
	ssize_t n;

	fflush(stdout);
	if (pipe(ends))
		return -1;
	pid = fork();
	if (!pid) {
		close(ends[0]);
		child(path, fresh, killed, ends[1]);
	}
	close(ends[1]);
	n = pid > 0 ? read(ends[0], f, sizeof(*f)) : -1;
	close(ends[0]);
	if (pid > 0)
		waitpid(pid, &status, 0);
	return n == sizeof(*f) && f->matched == CHAIN ? 0 : -1;
}

static void row_of(const char *how, const struct bench_series *s, double target, const struct found *f, double ceiling)
{
	struct bench_row r = {.unit = "s", .target = target, .sense = target > 0 ? BENCH_AT_MOST : BENCH_NO_TARGET};

	snprintf(r.name, sizeof(r.name), "reopen, %.2f million slots, after %s", (double)f->committed / 1e6, how);
	snprintf(r.note, sizeof(r.note), ceiling > 0 ? "ceiling: fio reads %.2f GB of headers" : "from the checkpoint",
	         (double)f->recovered * HEADER_BYTES / 1e9);
	r.ceiling = ceiling;
	r.ratio = ceiling > 0 ? bench_median(s) / ceiling : 0;
	bench_row_of_series(&r, s);
}

void bench_reopen(void)
{
	struct bench_series clean = {0}, killed = {0}, read = {0};
	struct found f = {0};
	char path[512];
	int rc;

	snprintf(path, sizeof(path), "%s/bench.pool", bench_opts.dir);
	rc = run(path, 1, 0, &f);
	for (int i = 0; i < TIMES && !rc; i++) {
		rc = run(path, 0, 0, &f);
		bench_add(&clean, (double)f.open_ns / 1e9);
	}
	if (!rc)
		row_of("a clean close", &clean, 1, &f, 0);
	if (!rc)
		rc = run(path, 0, 1, &f); /* this one opens cleanly and leaves an open pool behind */
	for (int i = 0; i < TIMES && !rc; i++) {
		struct bench_fio fio = {.file = path, .rw = "read", .block_bytes = SET_HEADERS};

		rc = run(path, 0, 1, &f);
		bench_add(&killed, (double)f.open_ns / 1e9);
		fio.io_bytes = fio.span_bytes = f.committed * HEADER_BYTES;
		fio.offset = 64 << 20;
		if (!rc && !bench_fio(&fio))
			bench_add(&read, (double)fio.io_bytes / 1e9 / fio.gbps);
	}
	if (!rc)
		row_of("a kill", &killed, 0, &f, bench_median(&read));
	else
		bench_row_skip("reopen", "a child failed: see above");
	unlink(path);
}
