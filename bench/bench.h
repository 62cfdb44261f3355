/*
 * bench.h - what the groups of rows share: options, rows, statistics, fio, and a rig of pool, store, lane and KV
 * memory.
 *
 * A figure that is compared is measured in pairs: ours, the other's, ours, the other's, in one run. A row holds the
 * median of the pairs' ratios and its 90 % interval by order statistics, and stops taking pairs when that is narrow or
 * the row's time is over. A row passes if the interval's upper end reaches the target and its lower end is above 0.9 of
 * it.
 */
#ifndef TUTTI_BENCH_H
#define TUTTI_BENCH_H

#include <stdint.h>
#include <tutti/tutti.h>

#define BENCH_PAIRS_MAX 40
#define BENCH_LEASE_NS (600ull * 1000000000)
#define BENCH_STEP_NS (120ull * 1000000000)

struct bench_opts {
	const char *dir;    /* for pools and fio's file */
	const char *device; /* two free block devices instead, "a,b": whatever they hold is lost */
	const char *label;  /* put before the rows' names */
	const char *json, *take;
	int no_fio;     /* ours alone, for a profiler */
	int prewrite_ahead;
	double seconds; /* of a row */
	uint64_t pool_bytes, round_bytes;
};
extern struct bench_opts bench_opts;

/* ---- rows: rows.c ---- */

enum bench_sense { BENCH_AT_LEAST, BENCH_AT_MOST, BENCH_NO_TARGET };

struct bench_row {
	char name[96];
	const char *unit;
	double value;            /* ours: the median */
	double ceiling;          /* what it is compared to: the median; 0: nothing */
	double ratio, low, high; /* of ratio (pairs with a ceiling) or of value, and its 90 % interval */
	double target;
	enum bench_sense sense;
	int of_ratio; /* the target is the ratio's, not the value's */
	int pairs;
	char note[256];
};

/* Prints the row and keeps it. */
void bench_row_add(struct bench_row *r);
/* A row that can't be had here, with the reason. */
void bench_row_skip(const char *name, const char *why);
/* Rows of other programs: lines of "name value unit". */
int bench_rows_take(const char *path);
/* Writes all rows. Returns the number of rows that fail, or -1. */
int bench_rows_write(const char *path);

/* ---- numbers: stat.c ---- */

struct bench_series {
	int n;
	double v[BENCH_PAIRS_MAX];
};

struct bench_pairs {
	struct bench_series ours, theirs, ratio;
	uint64_t start_ns;
};

uint64_t bench_now_ns(void);
uint64_t bench_thread_cpu_ns(void);
uint64_t bench_process_cpu_ns(void);
uint64_t bench_mix(uint64_t z);
void bench_add(struct bench_series *s, double v);
double bench_median(const struct bench_series *s);
/* The narrowest pair of order statistics that holds the median with 90 % or more. */
void bench_interval(const struct bench_series *s, double *low, double *high);
void bench_pair(struct bench_pairs *p, double ours, double theirs);
/* 1 while more pairs are needed and allowed. */
int bench_more(struct bench_pairs *p);
void bench_row_of_pairs(struct bench_row *r, const struct bench_pairs *p);
void bench_row_of_series(struct bench_row *r, const struct bench_series *s);

/* ---- fio: fio.c ---- */

struct bench_fio {
	const char *file, *rw;
	uint64_t block_bytes, offset, span_bytes, io_bytes;
	double gbps, cpu_per_gb; /* out */
};

int bench_fio(struct bench_fio *f);
/* A file with written blocks, or a device's. */
int bench_fio_file(const char *path, uint64_t bytes);

/* ---- the kernel alone: bare.c ---- */

struct bench_bare {
	const char *file;
	int write;
	uint64_t offset, span_bytes, io_bytes;
	uint8_t *memory; /* pieces of it, scattered */
	uint64_t memory_bytes, segment_bytes;
	double command_bytes; /* the mean; whole pieces each */
	double gbps, cpu_per_gb; /* out */
	uint64_t commands;
};

/* 0 or -errno. After an error commands may still be in flight: the memory must stay. */
int bench_bare(struct bench_bare *b);

/* ---- a whole stack: rig.c ---- */

struct bench_shape {
	const char *path;
	uint64_t pool_bytes;
	uint32_t layers, objects;
	uint64_t object_bytes;
	uint64_t blocks; /* of the KV memory, and the longest chain */
	enum tutti_controller controller;
	enum tutti_prewrite prewrite;
	int keep;      /* open what is there */
	int one_layer; /* all layers share their memory: for runs that move nothing, or don't look */
	int no_lane;
};

struct bench_rig {
	struct bench_shape shape;
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_lane *lane;
	struct tutti_key digest;
	struct tutti_kv_layout kv;
	uint8_t *memory;
	uint64_t memory_bytes;
	uint64_t *order; /* block numbers, scattered */
	uint32_t *tokens;
	uint8_t *blob;
	size_t blob_bytes;
	uint64_t open_ns; /* what opening store and namespace took */
};

/* What one timed call cost. */
struct bench_cost {
	uint64_t bytes, wall_ns, cpu_ns, sum_ns, commands;
};

/* Ends the program with the library's message. */
void bench_need(int result, const char *what);
void bench_rig_open(struct bench_rig *r, const struct bench_shape *shape);
/* Another lane on the rig's namespace and memory. */
struct tutti_lane *bench_lane(struct bench_rig *r, enum tutti_controller controller);
void bench_rig_close(struct bench_rig *r);
uint64_t bench_rig_slots(struct bench_rig *r);
void bench_keys(struct bench_rig *r, uint64_t seed, size_t n, struct tutti_key *keys);
/* Fills, wipes or checks the memory of a chain's blocks; checks every `each`th. Returns bytes that differ. */
void bench_fill(struct bench_rig *r, const struct tutti_key *keys, size_t n);
void bench_wipe(struct bench_rig *r);
uint64_t bench_wrong(struct bench_rig *r, const struct tutti_key *keys, size_t n, size_t each);
/* Stores a chain (from reserve to complete); *stored: blocks that were not there. */
void bench_store(struct bench_rig *r, struct tutti_lane *l, const struct tutti_key *keys, size_t n, size_t *stored,
                 struct bench_cost *cost);
void bench_retrieve(struct bench_rig *r, const struct tutti_key *keys, size_t n, size_t *hit, struct bench_cost *cost);

/* ---- the groups ---- */

void bench_disk(void);   /* disk.c: retrieve and store against fio, and their CPU */
void bench_caller(void); /* caller.c: the calling thread's cost, an idle lane's */
void bench_index(void);  /* index.c: lookup, insert, memory */
void bench_reopen(void); /* reopen.c */

#endif
