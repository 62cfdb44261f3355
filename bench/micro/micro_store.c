/*
 * micro_store.c - what the index costs: lookups, inserts with eviction, memory, reopening. Prints `name value unit`
 * lines.
 *
 *     micro_store [directory for the pool file of the reopen rows; default TMPDIR or /tmp; "-": leave them out]
 *
 * The pools are metadata only: real headers, objects of 4 KiB that are never written, on sparse memory or a sparse
 * file. The reopen rows write and read 4 GiB of headers.
 */
#include "store/lane.h"
#include "store/ram_media.h"
#include "store/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHAIN 2048u
#define SLOT_BYTES 8192ull

static uint64_t now_ns(void *arg)
{
	struct timespec t;

	(void)arg;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "micro_store: %s failed\n", what);
	exit(1);
}

static uint64_t rss_bytes(void)
{
	unsigned long long size, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (f && fscanf(f, "%llu %llu", &size, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * 4096;
}

static struct store *open_store(const struct store_media *m)
{
	struct store_open_opts o = {.owner_pid = 1, .owner_host = "bench", .now_ns = now_ns};
	struct store *s;

	must(!store_open(m, &o, &s), "open");
	return s;
}

static struct store_ns *open_ns(struct store *s)
{
	struct tutti_ns_spec spec = lane_spec("bench", 1, 1, 4096, 1);
	struct store_ns *ns;

	must(!store_ns_open(s, &spec, &ns, NULL), "namespace");
	return ns;
}

static uint64_t pool_bytes(uint64_t slots) { return slots * SLOT_BYTES * 102 / 100 + (64ull << 20); }

static int32_t zeros[CHAIN];

/* One chain; headers onto the medium if m. Returns blocks taken. */
static size_t put_chain(struct store_ns *ns, const struct tutti_key *keys, size_t n, const struct store_media *m)
{
	static struct store_block b[CHAIN];
	struct store_hold_info info;
	struct tutti_lease l;
	size_t first, count;

	must(!store_reserve(ns, NULL, keys, n, 1ull << 40, &first, &count, &l), "reserve");
	if (m) {
		must(!store_hold_blocks(ns, &l, 0, count, &info, b), "blocks");
		for (size_t i = 0; i < count; i++)
			must(!lane_write(m, ns, 0, l.epoch, &info, &b[i], i ? &keys[i - 1] : &info.parent,
			                 LANE_HEADER_ONLY),
			     "header");
	}
	must(!store_report(ns, &l, 0, 0, count, zeros), "report");
	return count;
}

static void fill_keys(struct tutti_key *keys, uint64_t chain, size_t n)
{
	for (size_t i = 0; i < n; i++)
		keys[i] = lane_key(chain * 10000019u + i);
}

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15ull;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	return z ^ (z >> 31);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void lookups(uint64_t slots)
{
	uint64_t chains = slots / CHAIN, rounds = 5, best = UINT64_MAX, seed = 1, before = rss_bytes(), total = 0;
	struct tutti_key *keys = malloc(chains * CHAIN * sizeof(*keys));
	struct tutti_pool_info info;
	struct ram_media ram;
	struct store *s;
	struct store_ns *ns;
	size_t m;

	must(keys != NULL, "memory");
	for (uint64_t c = 0; c < chains; c++)
		fill_keys(keys + c * CHAIN, c, CHAIN);
	before += chains * CHAIN * sizeof(*keys);
	ram_init(&ram, 1, pool_bytes(slots), 0);
	must(!store_format(&ram.m, &(struct store_format_opts){.ranks = 1, .bytes = pool_bytes(slots)}), "format");
	s = open_store(&ram.m);
	ns = open_ns(s);
	for (uint64_t c = 0; c < chains; c++)
		must(put_chain(ns, keys + c * CHAIN, CHAIN, NULL) == CHAIN, "fill");
	store_info(s, &info);
	printf("store.index_bytes_per_slot %.1f B\n", (double)info.index_bytes / (double)(chains * CHAIN));
	printf("store.index_resident_per_slot %.1f B\n", (double)(rss_bytes() - before) / (double)(chains * CHAIN));
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t t = now_ns(NULL), spent;

		for (uint64_t i = 0; i < chains; i++) {
			uint64_t c = next_random(&seed) % chains;

			must(!store_lookup(ns, keys + c * CHAIN, CHAIN, 0, &m, NULL) && m == CHAIN, "lookup");
		}
		spent = now_ns(NULL) - t;
		total += spent;
		best = spent < best ? spent : best;
	}
	printf("store.lookup_mkeys_per_s %.2f M/s\n", (double)(chains * CHAIN * rounds) * 1e3 / (double)total);
	printf("store.lookup_best_mkeys_per_s %.2f M/s\n", (double)(chains * CHAIN) * 1e3 / (double)best);
	store_abandon(s);
	ram_free(&ram);
	free(keys);
}

static void inserts(uint64_t slots, const char *name)
{
	uint64_t n = 200000, *spent = malloc(n * sizeof(*spent));
	struct tutti_key keys[64];
	struct tutti_ns_info info;
	struct ram_media ram;
	struct store *s;
	struct store_ns *ns;
	uint64_t chain = 0;

	must(spent != NULL, "memory");
	ram_init(&ram, 1, pool_bytes(slots), 0);
	must(!store_format(&ram.m, &(struct store_format_opts){.ranks = 1, .bytes = pool_bytes(slots)}), "format");
	s = open_store(&ram.m);
	ns = open_ns(s);
	do { /* until it is full, and a little over */
		fill_keys(keys, chain++, 64);
		put_chain(ns, keys, 64, NULL);
		store_ns_info(ns, &info);
	} while (info.evicted < 10000);
	for (uint64_t i = 0; i < n; i += 64) {
		struct tutti_key parent;

		fill_keys(keys, chain++, 64);
		for (size_t k = 0; k < 64 && i + k < n; k++) {
			uint64_t t = now_ns(NULL);
			struct tutti_lease l;
			size_t first, count;

			must(!store_reserve(ns, k ? &parent : NULL, keys + k, 1, 1ull << 40, &first, &count, &l) &&
			         count == 1,
			     "insert");
			must(!store_report(ns, &l, 0, 0, 1, zeros), "report");
			spent[i + k] = now_ns(NULL) - t;
			parent = keys[k];
		}
	}
	qsort(spent, n, sizeof(*spent), by_value);
	printf("store.insert_%s_p50 %.3f us\n", name, (double)spent[n / 2] / 1e3);
	printf("store.insert_%s_p99 %.3f us\n", name, (double)spent[n / 100 * 99] / 1e3);
	printf("store.insert_%s_max %.3f us\n", name, (double)spent[n - 1] / 1e3);
	store_abandon(s);
	ram_free(&ram);
	free(spent);
}

/* ---- a plain file ---- */

static int file_io(void *self, struct store_io *ios, uint32_t n)
{
	int fd = *(int *)self, first = 0;

	/* All reads are under way before the first is waited for. */
	for (uint32_t i = 0; i < n; i++)
		if (!ios[i].write)
			posix_fadvise(fd, (off_t)ios[i].offset_bytes, (off_t)ios[i].bytes, POSIX_FADV_WILLNEED);
	for (uint32_t i = 0; i < n; i++) {
		ssize_t done = ios[i].write ? pwrite(fd, ios[i].data, ios[i].bytes, (off_t)ios[i].offset_bytes)
		                            : pread(fd, ios[i].data, ios[i].bytes, (off_t)ios[i].offset_bytes);

		ios[i].result = done == (ssize_t)ios[i].bytes ? 0 : -EIO;
		first = first ? first : ios[i].result;
	}
	return first;
}

static int file_flush(void *self, uint32_t dev)
{
	(void)dev;
	return fdatasync(*(int *)self) ? -EIO : 0;
}

static void reopens(uint64_t slots, const char *dir)
{
	char path[4096];
	int fd;
	uint64_t t;
	struct store_media m = {
	    .io = file_io, .flush = file_flush, .self = &fd, .n_dev = 1, .preferred_io_bytes = 131072};
	struct tutti_pool_info info;
	static struct tutti_key keys[CHAIN];
	struct store *s;
	struct store_ns *ns;

	snprintf(path, sizeof(path), "%s/micro_store.XXXXXX", dir);
	fd = mkstemp(path);
	must(fd >= 0 && !unlink(path) && !ftruncate(fd, (off_t)pool_bytes(slots)), "pool file");
	m.bytes[0] = pool_bytes(slots);
	must(!store_format(&m, &(struct store_format_opts){.ranks = 1, .bytes = pool_bytes(slots)}), "format");
	s = open_store(&m);
	ns = open_ns(s);
	for (uint64_t c = 0; c < slots / CHAIN; c++) {
		fill_keys(keys, c, CHAIN);
		must(put_chain(ns, keys, CHAIN, &m) == CHAIN, "fill");
	}
	fdatasync(fd);
	t = now_ns(NULL);
	must(!store_close(s), "close");
	printf("store.close_1m %.3f s\n", (double)(now_ns(NULL) - t) / 1e9);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	t = now_ns(NULL);
	s = open_store(&m);
	printf("store.reopen_clean_1m %.3f s\n", (double)(now_ns(NULL) - t) / 1e9);
	store_info(s, &info);
	must(info.clean && !info.recovered_slots, "clean reopen");
	store_abandon(s);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	t = now_ns(NULL);
	s = open_store(&m);
	printf("store.reopen_kill_1m %.3f s\n", (double)(now_ns(NULL) - t) / 1e9);
	store_info(s, &info);
	must(info.recovered_slots == slots / CHAIN * CHAIN, "recovery");
	store_abandon(s);
	close(fd);
}

int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";

	lookups(1000000);
	inserts(50000, "50k");
	inserts(5000000, "5m");
	if (strcmp(dir, "-"))
		reopens(1000000, dir);
	return 0;
}
