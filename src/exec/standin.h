/*
 * standin.h - who computes in place of a model (include/tutti/standin.h), on CPU threads (standin_host.c) or on a GPU
 * (gpu_standin.c, standin_kernel.cu): one struct of functions each. core/standin.c joins them with plans.
 *
 * The bytes of a layer are 64-bit words, each a cheap mix of the layer's seed and the word's number, so that bytes of
 * another key, layer or place never match; both sides take them from the functions here.
 */
#ifndef TUTTI_EXEC_STANDIN_H
#define TUTTI_EXEC_STANDIN_H

#include "port/port.h"
#include "tutti/types.h"

#define STANDIN_STEP 0x9E3779B97F4A7C15ull
#define STANDIN_THREADS 256u
#define STANDIN_PART_BYTES 65536u /* of a segment, for one thread block at least */
#define STANDIN_PARTS_MAX 1024u

PORT_FN uint64_t standin_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
	return x ^ (x >> 31);
}

/* key: the first eight bytes of a block's. */
PORT_FN uint64_t standin_seed(uint64_t key, uint32_t layer) { return standin_mix(key + standin_mix(layer + 1u)); }

/* Adds, shifts, exclusive-ors: a compiler makes SIMD of it on any x86-64. */
PORT_FN uint64_t standin_word(uint64_t seed, uint64_t i)
{
	uint64_t x = seed + i * STANDIN_STEP;

	return x ^ (x >> 29);
}

PORT_FN uint8_t standin_byte(uint64_t seed, uint64_t offset)
{
	return (uint8_t)(standin_word(seed, offset / 8) >> (8 * (offset % 8)));
}

struct standin_block {
	uint64_t key, block;
};

struct standin_found {
	uint64_t wrong, first; /* bytes; the least offset of one, in the block's bytes, UINT64_MAX: none */
};

enum standin_do { STANDIN_CHECK = 0, STANDIN_COMPUTE = 1 };

/* One layer of some blocks. */
struct standin_job {
	uint8_t *layer_base;
	uint64_t block_stride, outer_stride, inner_stride, segment_bytes;
	uint32_t outer_count, inner_count;
	uint32_t layer, n;
	enum standin_do what;
	const struct standin_block *blocks;
	struct standin_found *found;
};

struct standin {
	const struct standin_ops *ops;
	uint8_t *memory;
	uint64_t bytes;
	uint32_t io_sms;
	int device;
	int in_use; /* for ever: something that does not end may touch it */
	char text[160];
};

struct standin_worker {
	struct standin *standin;
	struct tutti_kv_layout layout;
	size_t blocks_max, n;
	struct standin_block *blocks; /* for the host and the GPU, as are: */
	struct standin_found *found;  /* filled by end */
	uint64_t *stamps;             /* two a layer: before and after its wait */
	struct standin_block *near_blocks;
	struct standin_found *near_found;
	void *stream; /* NULL: the calling thread computes */
	char text[80];
};

struct standin_ops {
	enum tutti_executor executor;
	/* Memory and text, from bytes and io_sms. */
	int (*open)(struct standin *s);
	void (*close)(struct standin *s);
	int (*clear)(struct standin *s);
	/* All behind blocks_max and layout. What it made before it failed goes in worker_close. */
	int (*worker_open)(struct standin_worker *w);
	void (*worker_close)(struct standin_worker *w);
	/* blocks[0..n) are there; found begins anew. */
	int (*begin)(struct standin_worker *w);
	int (*stamp)(struct standin_worker *w, uint64_t *at);
	/* blocks and found of the job are indices into the worker's: first. */
	int (*run)(struct standin_worker *w, struct standin_job *job, size_t first);
	int (*end)(struct standin_worker *w, uint64_t deadline_ns);
};

extern const struct standin_ops standin_host;
/* NULL in a build without CUDA. */
const struct standin_ops *standin_cuda(void);

/* Of the host's: bytes [offset, offset + bytes) of a layer, to or from any address. */
void standin_fill(uint64_t seed, uint64_t offset, void *to, size_t bytes);
/* How many bytes differ. *first: the offset of the first of them, left alone if there is none. */
uint64_t standin_differ(uint64_t seed, uint64_t offset, const void *from, size_t bytes, uint64_t *first);

#if !defined(__CUDACC__) && defined(TUTTI_CUDA)
/* The kernels' handles, for cudaLaunchKernel. */
void standin_kernel(struct standin_job job);
void standin_stamp_kernel(uint64_t *at);
#endif

#endif
