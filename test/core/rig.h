/*
 * rig.h - a whole stack for tests: a pool in the scratch directory, a store, one lane per rank, KV memory in any
 * layout, and bytes that depend on (key, rank, layer, place in the block) alone, so that anyone can say what must be
 * where.
 */
#ifndef TUTTI_TEST_CORE_RIG_H
#define TUTTI_TEST_CORE_RIG_H

#include <tutti/tutti.h>

#define RIG_RANKS_MAX 4

/* KV memory that the CPU does not reach: rig's bytes are then a copy, carried by these. */
struct rig_accel {
	void *(*get)(uint64_t bytes);
	void (*put)(void *p);
	void (*copy)(void *dst, const void *src, uint64_t bytes);
};

/* The GPU's memory. NULL: this build or machine has none. */
const struct rig_accel *rig_gpu(void);

struct rig_shape {
	const struct rig_accel *accel; /* NULL: KV memory is the host's, or the GPU's if TUTTI_TEST_EXECUTOR is cuda */
	enum tutti_executor executor;
	uint64_t bounce_bytes;
	uint64_t pool_bytes; /* 0: 64 MiB */
	uint32_t devices;    /* 0: 1 */
	uint32_t ranks;      /* 0: 1 */
	uint32_t layers;
	uint64_t blocks;                   /* of the KV memory */
	uint32_t outer_count, inner_count; /* 0: 1 */
	uint64_t segment_bytes;
	/* How the memory is ordered, outermost first, from 'L' layer, 'B' block, 'o' outer, 'i' inner. "LoiB", "LBoi",
	 * "BLoi"... */
	const char *order;
	uint32_t misalign;     /* bytes by which the whole memory is off a page */
	uint64_t gap_bytes;    /* behind each segment, so that neighbours don't touch */
	uint32_t block_tokens; /* 0: 16 */
	enum tutti_controller controller;
	struct tutti_model_timing timing;
	uint32_t sms, queue_depth;
	uint32_t store_queue_layers;
	uint64_t deadline_ns;
	int small_kernels;
	int no_sgl, no_verify;
	int prewrite_segments;       /* 1: reserve the space, write segments ahead; else a sparse file */
	uint64_t segment_pool_bytes; /* of the pool's segments */
	const char *drives[4];       /* NVMe namespaces instead of files */
	const char *erase_serial;
};

struct rig {
	struct rig_shape shape;
	const char *paths[4];
	char path_bytes[4][300];
	struct tutti_store *store;
	struct tutti_ns *ns;
	struct tutti_key digest;
	struct tutti_lane *lane[RIG_RANKS_MAX];
	struct tutti_kv_layout kv[RIG_RANKS_MAX];
	struct tutti_ns_spec spec;
	void *layer_base[RIG_RANKS_MAX][256];
	uint8_t *memory[RIG_RANKS_MAX];
	uint8_t *accel[RIG_RANKS_MAX]; /* where the engine's memory is, if not there */
	uint64_t memory_bytes;
};

/* Where pools are made; call it before anything else. */
void rig_dir(const char *dir);
/* Everything up; exits the program with a message when something can't be had. Formats a new pool named "rig*". */
void rig_up(struct rig *r, const struct rig_shape *shape);
void rig_down(struct rig *r);
/* The pieces of it. */
void rig_shape_memory(struct rig *r, const struct rig_shape *shape);
void rig_format(struct rig *r);
int rig_open_store(struct rig *r);
/* Opens the pool of one device and closes it again: 0, or what either said. */
int rig_try_open(const char *path);
int rig_open_lane(struct rig *r, uint32_t rank);
int rig_close_lanes(struct rig *r);
/*
 * Kernels that are launched from now on have so long; 0: as a lane has unless told otherwise. For tests that let a
 * deadline pass: short for what is to miss it, and for nothing else, which may be slow on a busy machine. No write
 * waits in the lane's queue.
 */
void rig_deadline(struct rig *r, uint32_t rank, uint64_t ns);

/* Keys of a chain of n blocks; different seeds, different chains; equal seed and a shorter n: the same prefix. */
void rig_keys(const struct rig *r, uint64_t seed, size_t n, struct tutti_key *keys);
/* Writes a block's bytes into the engine's memory, or counts the bytes that differ. */
void rig_fill(struct rig *r, uint32_t rank, uint64_t block, const struct tutti_key *key);
void rig_fill_layer(struct rig *r, uint32_t rank, uint64_t block, uint32_t layer, const struct tutti_key *key);
uint64_t rig_wrong(struct rig *r, uint32_t rank, uint64_t block, const struct tutti_key *key);
/* Carry all KV memory of a rank to and from the accelerator, if there is one. */
void rig_push(struct rig *r, uint32_t rank);
void rig_pull(struct rig *r, uint32_t rank);
/* Wipes all KV memory of a rank. */
void rig_wipe(struct rig *r, uint32_t rank);

/*
 * Stores a chain through all ranks, from blocks[] of the memory (filled first). *stored: blocks that were not there
 * yet. 0, or the first failure.
 */
int rig_store(struct rig *r, const struct tutti_key *keys, size_t n, const uint64_t *blocks, size_t *stored);
/* Looks up and retrieves what is there into blocks[]. *hit: blocks. *bad: of them, failed. per_layer: one kernel a
 * layer. */
int rig_retrieve(struct rig *r, const struct tutti_key *keys, size_t n, const uint64_t *blocks, int per_layer,
                 size_t *hit, size_t *bad);
/*
 * A lane's half of these, for a plan that another process made: moves its n blocks, layer by layer. done: the
 * completion blob, of *done_bytes; 0 if there is none. The first failure; *bad: blocks that failed.
 */
int rig_put(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n, void *done,
            size_t room, size_t *done_bytes);
int rig_get(struct rig *r, uint32_t rank, const void *blob, size_t bytes, const uint64_t *blocks, size_t n,
            int per_layer, size_t *bad, void *done, size_t room, size_t *done_bytes);
uint64_t rig_now(void);

#endif
