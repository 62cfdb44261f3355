/*
 * gpu.h - tutti-gpu, the benchmark of the GPU path: what its files share.
 *
 * A *lab* is a pool with one chain in it, KV memory in HBM, and what baselines need to read the same bytes: the pool's
 * files, mapped and pinned where they lie in memory. A *system* brings the chain (or its first n blocks) into HBM, its
 * own way, layer after layer; compute streams wait for layers on the GPU. All systems run in turns, several times, over
 * the same bytes at the same places; HBM is wiped before and every byte compared after each run.
 *
 * The shape is Llama-3-8B's in bfloat16: 32 layers, K and V of 16 tokens 32 KiB each, 128 KiB a token.
 */
#ifndef TUTTI_BENCH_GPU_H
#define TUTTI_BENCH_GPU_H

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "bench/gpu/kernels.h"
#include "geom/addr.h"
#include "test/core/rig.h"

#define LAYERS KERNEL_LAYERS
#define OBJECTS KERNEL_OBJECTS
#define TOKENS 16u
#define TOKEN_BYTES (131072.0)
#define LEASE_NS 300000000000ull
#define WAIT_NS 60000000000ull
#define WORKERS_MAX 8u

struct options {
	const char *memory, *disk; /* folders: of the model's pools (memory) and of virt's */
	const char *drives;        /* bench/gpu/drives.csv */
	int rounds;
	uint32_t sms;
	size_t tokens; /* of the longest context */
};
extern struct options opt;

/* ---- rows: rows.c ---- */

#define SERIES_MAX 32

struct series {
	int n;
	double v[SERIES_MAX];
};

void series_add(struct series *s, double v);
double series_median(const struct series *s);

enum sense { NO_TARGET, AT_LEAST, AT_MOST };

struct row {
	char name[160];
	const char *unit;
	struct series values;
	double ceiling;     /* what the value is held against; 0: nothing */
	enum sense sense;   /* of the value's ratio to its ceiling, or of the value where there is none */
	double target;
	const char *figure, *system; /* what plot.py draws: a point of a line */
	double x;
	char note[240];
};

/* Writes to gpu.json and gpu.csv in this folder; both are whole after each row. */
void rows_open(const char *folder);
void row_put(struct row *r);
/* What can't be had here, and why. */
void row_skip(const char *name, const char *why);
/* The rows so far that miss their target. */
int rows_missed(void);

/* ---- small things: main.c ---- */

uint64_t now_ns(void);
double cpu_thread_s(void);
double cpu_process_s(void);
/* End the program with what is known. */
void need(int rc, const char *what);
void need_cuda(cudaError_t e, const char *what);
/* The driver's function; NULL: it has none. */
void *driver_fn(const char *name);
/* The stream goes on when *flag (pinned) is at least value; writes it when it gets there. */
void stream_wait(cudaStream_t s, uint32_t *flag, uint32_t value);
void stream_write(cudaStream_t s, uint32_t *flag, uint32_t value);

/* ---- lab.c ---- */

/* Neighbouring slots of one set: `slots` blocks of the chain from `first` on. */
struct run {
	size_t first;
	uint32_t slots;
	struct geom_place place;
};

struct lab {
	struct rig r;
	const struct rig_shape *shape;
	size_t n;                /* blocks of the chain */
	uint64_t salt;           /* of the bytes that the pool holds */
	uint64_t seed;           /* of the chain's keys */
	struct tutti_key *keys;
	uint64_t *blocks;        /* where they go in the KV memory: scattered */
	uint64_t *blocks_gpu;
	struct geom geom;
	uint32_t *slots;
	struct run *runs;
	size_t n_runs;
	int fd[4];
	uint8_t *medium[4];      /* pinned; NULL on a disk */
	uint64_t medium_bytes;
	double tail_s;             /* of lab_store: after the last layer's data, for headers and commit */
	uint64_t hbm_bytes;        /* that opening took beyond the KV memory */
	unsigned long long *wrong; /* pinned: a counter for kernels */
};

struct lab_shape {
	const char *dir;
	enum tutti_controller controller;
	uint32_t tokens;    /* of a block */
	size_t n;           /* blocks of the chain */
	size_t kv_blocks;   /* of the KV memory; 0: n */
	uint32_t devices, sms;
	struct tutti_model_timing timing;
	int no_sgl, no_medium;
	int small; /* kernels of one warp */
};

void lab_open(struct lab *b, const struct lab_shape *s);
void lab_close(struct lab *b);
uint64_t lab_bytes(const struct lab *b, size_t n);
/* Fills the chain's blocks in HBM, wipes all of it, or counts the words that differ. */
void lab_fill(struct lab *b, size_t n, uint64_t salt);
void lab_wipe(struct lab *b);
uint64_t lab_wrong(struct lab *b, size_t n, uint64_t salt);
/* Fills HBM with a fresh chain's n blocks and puts it into an empty pool through lane 0; seconds of the store alone. */
double lab_store(struct lab *b, size_t n);
/* Reads the slots of the chain from a plan; of its first n blocks from a plan's blob. */
void lab_find(struct lab *b);
void lab_find_in(struct lab *b, const void *blob, size_t n);
/* HBM address of object o of block i of the chain in layer l. */
uint8_t *lab_object(const struct lab *b, uint32_t layer, uint32_t o, size_t i);
/* Blocks of run k that belong to the chain's first n. */
uint32_t lab_run_slots(const struct lab *b, size_t k, size_t n);
/* A plan over the first n blocks for a lane; ended and reported. */
struct lab_plan {
	struct tutti_plan *p;
	struct tutti_lease lease;
	size_t n;
};
void lab_plan(struct lab *b, struct tutti_lane *l, size_t n, struct lab_plan *out);
void lab_plan_end(struct lab *b, struct lab_plan *p);
/* Fills HBM with a fresh chain's n blocks; a plan of l stores them into the emptied pool. find: their slots too. */
void lab_plan_store(struct lab *b, struct tutti_lane *l, size_t n, struct lab_plan *out, int find);

/* ---- systems ---- */

struct system {
	const char *name, *label; /* label: for figures */
	/* 0, or not here: why says so. Called once; close likewise. */
	int (*open)(struct lab *b, char *why, size_t why_bytes);
	void (*close)(struct lab *b);
	void (*prepare)(struct lab *b, size_t n); /* what is done before the engine's step: lookup, plans, lists */
	void (*cue)(struct lab *b, size_t n);
	void (*wait)(struct lab *b, uint32_t layer, cudaStream_t compute);
	void (*end)(struct lab *b);
	/* Stores what the first n blocks hold; seconds until it is there. NULL: it has none. */
	double (*store)(struct lab *b, size_t n, uint64_t *salt);
};

extern const struct system ours_resident, ours_per_layer;                       /* ours.c */
extern const struct system copy_single, copy_batch, copy_dram, copy_cpu_issue; /* copy.c */
extern const struct system copy_cufile;                                        /* copy.c and cufile.c */

/* cufile.c: 0, or why not. Then reads of `bytes` at `at` of file i to GPU memory. */
int cufile_open(const struct lab *b, char *why, size_t why_bytes);
void cufile_close(void);
int64_t cufile_read(uint32_t file, void *gpu, uint64_t bytes, uint64_t at);

/* ---- compute.c: a stand-in for the model's layers ---- */

/* Seconds of a prefill of `fresh` tokens behind `cached` ones: fitted to vLLM on this kind of GPU; see the file. */
double compute_seconds(double fresh, double cached);
/* Products are 8192 x columns x 4096: first the widest of a Llama-3-8B's layer (gate and up), then a square one. */
#define COMPUTE_SHAPES 2u
extern const int compute_columns[COMPUTE_SHAPES];
void compute_open(int columns);
void compute_close(void);
const char *compute_what(void); /* "cuBLAS, 8192 x 28672 x 4096" */
/* Launches one matrix product that fills the GPU's SMs; seconds that it takes alone. */
void compute_product(cudaStream_t s);
double compute_product_s(void);
/* Milliseconds of each of n products, by the stream's clock, behind n / 10 others. under_way (may be NULL) is called
 * while they run. */
double compute_products_ms(cudaStream_t s, int n, void (*under_way)(void *arg), void *arg);
/* Milliseconds of each of n layers of decoding: the products of a step of 8 requests. Where compute_decodes. */
int compute_decodes(void);
double compute_decode_ms(cudaStream_t s, int n);
/* Launches so many of them as take about so long. */
void compute_layer(cudaStream_t s, double seconds);

/* ---- the figures ---- */

void figure_ceiling(void);   /* copy engine */
void figure_bandwidth(void); /* 9 */
void figure_disk(void);      /* the same on the machine's disk */
void figure_ttft(void);      /* 11, 13 */
void figure_mixed(void);     /* 6, and the data sheet */
void figure_tables(void);    /* 3 */
void figure_price(void);     /* what bounds rows that miss */
void figure_calls(void);     /* CPU by number of blocks, PRP and SGL */
void figure_beside(void);    /* start delay, slowdown, eight requests */

extern double copy_in_gbs, copy_out_gbs; /* of figure_ceiling */

#endif
