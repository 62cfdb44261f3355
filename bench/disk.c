/*
 * disk.c - retrieve and store through the whole stack, default options, against fio on the same disk.
 *
 * Reads: fio reads the pool file itself, inside what was stored. Writes: fio writes a file of the pool's size beside
 * it, written before. Both move the same bytes a turn, at the same depth. Bytes are checked by the library while timed,
 * and by us afterwards (every eighth block; memory is wiped before).
 *
 * Fresh: a pool from format, in default options. Aged: ten times as many blocks as it holds were stored since, in
 * chains of random length that branch off older ones, the pool as full as it gets; these stores go through the null
 * controller: the same decisions about slots, without the bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define LAYERS 32
#define OBJECTS 2
#define MIB (1ull << 20)
#define TURNOVERS 10
#define CHAINS_MAX 64

struct disk {
	struct bench_rig rig;
	const char *size; /* "128 KiB" */
	uint64_t object_bytes, n; /* blocks of a chain */
	const char *read_rw, *write_rw;
	double target_fresh, target_aged;
	char pool[512], other[512];
	uint64_t pool_bytes, slots;
	struct tutti_key *keys;
	uint64_t chains[CHAINS_MAX]; /* seeds of what is stored, newest last */
	int n_chains;
	uint64_t seed, turn;
};

static double gbps(const struct bench_cost *c) { return (double)c->bytes / (double)c->wall_ns; }

static double cpu(const struct bench_cost *c) { return ((double)c->cpu_ns - (double)c->sum_ns) / (double)c->bytes; }
static double sum_cpu(const struct bench_cost *c) { return (double)c->sum_ns / (double)c->bytes; }

static void run_fio(struct disk *d, int write, struct bench_fio *f)
{
	uint64_t span = d->pool_bytes / 2, room = d->pool_bytes / 4;

	memset(f, 0, sizeof(*f));
	f->file = write ? d->other : d->pool;
	f->rw = write ? d->write_rw : d->read_rw;
	f->block_bytes = d->object_bytes;
	f->io_bytes = bench_opts.round_bytes;
	f->span_bytes = strstr(f->rw, "rand") ? span : f->io_bytes;
	f->offset = 64 * MIB + (strstr(f->rw, "rand") ? 0 : d->turn * f->io_bytes % (span + room - f->io_bytes));
	d->turn++;
	if (!bench_opts.no_fio && bench_fio(f)) {
		fprintf(stderr, "bench: fio failed\n");
		exit(3);
	}
}

/* Our commands, by the kernel alone: as large, of as many pieces of memory, in the same files as fio. */
static void run_bare(struct disk *d, int write, const struct bench_cost *ours, struct bench_bare *b)
{
	int rc;

	*b = (struct bench_bare){.file = write ? d->other : d->pool, .write = write};
	b->io_bytes = bench_opts.round_bytes;
	b->memory = d->rig.memory;
	b->memory_bytes = d->rig.memory_bytes;
	b->segment_bytes = d->object_bytes;
	b->command_bytes = (double)ours->bytes / (double)ours->commands;
	b->span_bytes = d->pool_bytes / 2;
	b->offset = 64 * MIB + d->turn * b->io_bytes % (d->pool_bytes / 4);
	rc = bench_opts.no_fio ? 0 : bench_bare(b);
	if (rc) {
		fprintf(stderr, "bench: the bare loop failed: %s\n", strerror(-rc));
		exit(3);
	}
}

/* ---- one turn of ours ---- */

static void store_one(struct disk *d, struct bench_cost *c)
{
	size_t stored;

	bench_keys(&d->rig, ++d->seed, d->n, d->keys);
	bench_fill(&d->rig, d->keys, d->n);
	bench_store(&d->rig, d->rig.lane, d->keys, d->n, &stored, c);
	if (stored != d->n) {
		fprintf(stderr, "bench: stored %zu of %llu blocks\n", stored, (unsigned long long)d->n);
		exit(3);
	}
	if (d->n_chains == CHAINS_MAX)
		memmove(d->chains, d->chains + 1, sizeof(d->chains) - sizeof(*d->chains)), d->n_chains--;
	d->chains[d->n_chains++] = d->seed;
}

static void retrieve_one(struct disk *d, struct bench_cost *c)
{
	size_t hit;
	uint64_t wrong;

	bench_keys(&d->rig, d->chains[d->turn % (uint64_t)d->n_chains], d->n, d->keys);
	bench_wipe(&d->rig);
	bench_retrieve(&d->rig, d->keys, d->n, &hit, c);
	wrong = bench_wrong(&d->rig, d->keys, hit, 8);
	if (hit != d->n || wrong) {
		fprintf(stderr, "bench: %zu of %llu blocks came back, %llu bytes wrong\n", hit,
		        (unsigned long long)d->n, (unsigned long long)wrong);
		exit(3);
	}
}

/* ---- rows ---- */

struct figures {
	struct bench_pairs speed;
	struct bench_series cpu, sum, /* CPU: all but the checksums'; the checksums' */
	    fio_cpu, bare_cpu, bare_gbps, command_kib;
};

/*
 * A device made of RAM compresses and copies in our threads: that is not the path's cost. The first stores after format
 * are beside the library's writing ahead, which is as many bytes again.
 */
static void cpu_row(const struct disk *d, const char *what, const char *age, int judged, const struct figures *f)
{
	struct bench_row r = {.unit = "s/GB", .target = 0.05, .sense = BENCH_AT_MOST};

	if (bench_opts.device || !judged)
		r.sense = BENCH_NO_TARGET;
	snprintf(r.name, sizeof(r.name), "CPU of %s, %s objects, %s", what, d->size, age);
	snprintf(r.note, sizeof(r.note),
	         "checksums apart: %.3f s/GB; %.0f KiB a command; ceiling: the same commands by a bare loop; fio's, of "
	         "%s: %.3f",
	         bench_median(&f->sum), bench_median(&f->command_kib), d->size, bench_median(&f->fio_cpu));
	r.ceiling = bench_median(&f->bare_cpu);
	bench_row_of_series(&r, &f->cpu);
}

static void rows(const struct disk *d, const char *what, const char *age, double target, const char *note,
                 const struct figures *f)
{
	struct bench_row r = {.unit = "GB/s", .target = target, .sense = BENCH_AT_LEAST};

	if (target == 0)
		r.sense = BENCH_NO_TARGET;
	snprintf(r.name, sizeof(r.name), "%s, %s objects, %s", what, d->size, age);
	snprintf(r.note, sizeof(r.note), "%s; our commands by a bare loop: %.2f GB/s", note,
	         bench_median(&f->bare_gbps));
	bench_row_of_pairs(&r, &f->speed);
	cpu_row(d, what, age, target != 0, f);
}

static void note_turn(struct figures *f, const struct bench_cost *c, const struct bench_fio *fio,
                      const struct bench_bare *bare)
{
	bench_pair(&f->speed, gbps(c), fio->gbps);
	bench_add(&f->cpu, cpu(c));
	bench_add(&f->sum, sum_cpu(c));
	bench_add(&f->fio_cpu, fio->cpu_per_gb);
	bench_add(&f->bare_cpu, bare->cpu_per_gb);
	bench_add(&f->bare_gbps, bare->gbps);
	bench_add(&f->command_kib, (double)c->bytes / 1024 / (double)c->commands);
}

/* Chains that eviction cut are no measure: the others go on. */
static void forget_evicted(struct disk *d)
{
	int kept = 0;

	for (int i = 0; i < d->n_chains; i++) {
		size_t hit;

		bench_keys(&d->rig, d->chains[i], d->n, d->keys);
		bench_need(tutti_lookup(d->rig.ns, d->keys, d->n, 0, &hit, NULL), "lookup");
		if (hit == d->n)
			d->chains[kept++] = d->chains[i];
	}
	d->n_chains = kept;
}

static void retrieve_rows(struct disk *d, const char *age, double target)
{
	struct figures f = {0};
	char note[128];

	forget_evicted(d);
	if (!d->n_chains)
		bench_need(-ENOENT,
		           "the pool holds no whole chain of a turn: a larger pool or a smaller turn is needed");
	while (bench_more(&f.speed)) {
		struct bench_cost c;
		struct bench_fio fio;
		struct bench_bare bare;

		retrieve_one(d, &c);
		run_bare(d, 0, &c, &bare);
		run_fio(d, 0, &fio);
		note_turn(&f, &c, &fio, &bare);
	}
	snprintf(note, sizeof(note), "fio: %s of the pool file, %s", d->read_rw, d->size);
	rows(d, "retrieve", age, target, note, &f);
}

/* first: over all segments, which nobody has written yet; the library does so in the background, ahead of us. */
static void store_rows(struct disk *d, const char *age, double target, int first)
{
	uint64_t fit = d->slots * 9 / 10 / d->n; /* nothing is evicted */
	struct figures f = {0};
	char note[160];

	while (first ? (uint64_t)f.speed.ours.n < fit : bench_more(&f.speed)) {
		struct bench_cost c;
		struct bench_fio fio;
		struct bench_bare bare;

		if (!first && target == d->target_fresh && (uint64_t)d->n_chains >= fit) {
			bench_need(tutti_ns_clear(d->rig.ns), "clear");
			d->n_chains = 0;
		}
		store_one(d, &c);
		run_bare(d, 1, &c, &bare);
		run_fio(d, 1, &fio);
		note_turn(&f, &c, &fio, &bare);
	}
	snprintf(note, sizeof(note), "fio: %s over written blocks of a file beside the pool, %s", d->write_rw, d->size);
	rows(d, "store", age, target, note, &f);
}

/* ---- ageing ---- */

struct doc {
	uint64_t seed;
	size_t n;
};

/* Chains of 1 to n blocks; half of them share a prefix with one before. */
static void age(struct disk *d)
{
	struct tutti_lane *null = bench_lane(&d->rig, TUTTI_CTRL_NULL);
	struct tutti_key *keys = d->keys;
	uint64_t total = 0, x = 12345, start = bench_now_ns();
	struct doc docs[64] = {{0, 0}};
	struct tutti_ns_info info;

	for (uint64_t k = 0; total < TURNOVERS * d->slots; k++) {
		struct doc *old = &docs[bench_mix(x++) % 64], now = {1000000 + k, 1 + bench_mix(x++) % d->n};
		struct bench_cost c;
		size_t stored, shared = 0;

		bench_keys(&d->rig, now.seed, now.n, keys);
		if (old->n > 1 && bench_mix(x++) % 2) { /* a branch: its own tokens after the shared ones */
			shared = bench_mix(x++) % old->n;
			shared = shared < now.n ? shared : now.n - 1;
			for (size_t i = 0; i < now.n; i++)
				d->rig.tokens[i] =
				    (uint32_t)bench_mix((i < shared ? old->seed : now.seed) * 1000003u + i);
			bench_need(tutti_keys(&d->rig.digest, NULL, d->rig.tokens, 1, NULL, now.n, keys), "keys");
		}
		bench_store(&d->rig, null, keys, now.n, &stored, &c);
		total += stored;
		if (!shared)
			docs[k % 64] = now;
	}
	bench_need(tutti_lane_close(null), "close lane");
	bench_need(tutti_ns_get_info(d->rig.ns, &info), "info");
	printf("# aged: %llu blocks stored into %llu slots in %.1f s, %.1f %% full\n", (unsigned long long)total,
	       (unsigned long long)info.slots, (double)(bench_now_ns() - start) / 1e9,
	       100.0 * (double)info.committed / (double)info.slots);
	d->n_chains = 0;
}

/* ---- all of it ---- */

static void disk_rows(struct disk *d)
{
	struct bench_shape s = {.path = d->pool, .layers = LAYERS, .objects = OBJECTS, .object_bytes = d->object_bytes};

	s.pool_bytes = d->pool_bytes;
	d->n = s.blocks = bench_opts.round_bytes / (LAYERS * OBJECTS * d->object_bytes);
	d->keys = malloc(d->n * sizeof(*d->keys));
	bench_rig_open(&d->rig, &s);
	d->slots = bench_rig_slots(&d->rig);
	store_rows(d, "first after format", 0, 1);
	retrieve_rows(d, "fresh", d->target_fresh);
	store_rows(d, "fresh", d->target_fresh, 0);
	age(d);
	store_rows(d, "aged", d->target_aged, 0);
	retrieve_rows(d, "aged", d->target_aged);
	bench_rig_close(&d->rig);
	free(d->keys);
}

void bench_disk(void)
{
	struct disk all[] = {
		{.size = "128 KiB", .object_bytes = 128 << 10, .read_rw = "read", .write_rw = "write",
	         .target_fresh = 0.95, .target_aged = 0.95},
		{.size = "32 KiB", .object_bytes = 32 << 10, .read_rw = "randread", .write_rw = "randwrite",
	         .target_fresh = 1.2, .target_aged = 1.1},
	};
	char a[256], b[256];
	int device = bench_opts.device && sscanf(bench_opts.device, "%255[^,],%255s", a, b) == 2;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct disk *d = &all[i];

		d->pool_bytes = bench_opts.pool_bytes;
		snprintf(d->pool, sizeof(d->pool), "%.250s%s", device ? a : bench_opts.dir,
		         device ? "" : "/bench.pool");
		snprintf(d->other, sizeof(d->other), "%.250s%s", device ? b : bench_opts.dir,
		         device ? "" : "/bench.fio");
		if (!bench_opts.no_fio && bench_fio_file(d->other, d->pool_bytes)) {
			bench_row_skip("retrieve and store against fio",
			               "fio is not installed, or no room for its file");
			return;
		}
		disk_rows(d);
		if (!device) {
			unlink(d->pool);
			unlink(d->other);
		}
	}
}
