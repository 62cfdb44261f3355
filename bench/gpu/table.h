/* table.h - a hash table of 32-byte keys in the GPU's memory: what an index there would be; see table.cu. */
#ifndef TUTTI_BENCH_GPU_TABLE_H
#define TUTTI_BENCH_GPU_TABLE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#define TABLE_THREADS 128u

struct table_key {
	uint64_t w[4];
};

struct table {
	unsigned long long *entries; /* 2^bits of (tag, slot + 1); 0: empty */
	struct table_key *keys;      /* of each slot */
	uint32_t bits;
};

/*
 * Key i goes to slot first + i; or, by table_find, the least i of each thread block's keys that is not there (n: all
 * are). keys: pinned. said: pinned, a word for each thread block (n / TABLE_THREADS, rounded up), which becomes
 * seq << 32 | that, last of all. Nothing waits.
 */
void table_put(const struct table *t, const void *keys, uint32_t n, uint32_t first, uint64_t *said, uint32_t seq,
               cudaStream_t s);
void table_find(const struct table *t, const void *keys, uint32_t n, uint64_t *said, uint32_t seq, cudaStream_t s);

#endif
