/*
 * table.cu - open addressing with linear probing, at most half full, a thread a key: the index of src/store as a GPU
 * would have it. One launch a batch; keys come straight from pinned memory and answers go there, so that neither a copy
 * nor a wait of the driver's is paid.
 */
#include <cuda_runtime.h>

extern "C" {
#include "bench/gpu/table.h"
}

static __device__ uint32_t tag_of(const table_key &k)
{
	return (uint32_t)((k.w[0] ^ (k.w[2] << 29 | k.w[2] >> 35)) * 0x9E3779B97F4A7C15ull >> 32);
}

static __device__ table_key key_load(const void *keys, uint32_t i)
{
	const ulonglong2 *p = (const ulonglong2 *)keys + 2 * (size_t)i;
	ulonglong2 a = p[0], b = p[1];

	return {{a.x, a.y, b.x, b.y}};
}

static __device__ void key_store(table_key *to, const table_key &k)
{
	ulonglong2 *p = (ulonglong2 *)(void *)to;

	p[0] = {k.w[0], k.w[1]};
	p[1] = {k.w[2], k.w[3]};
}

static __device__ bool key_is(const table_key *at, const table_key &k)
{
	const table_key a = key_load(at, 0);

	return a.w[0] == k.w[0] && a.w[1] == k.w[1] && a.w[2] == k.w[2] && a.w[3] == k.w[3];
}

static __device__ void say(uint64_t *said, uint32_t seq, uint32_t what)
{
	__threadfence_system(); /* behind all that the block did: its threads met before */
	*(volatile uint64_t *)&said[blockIdx.x] = (uint64_t)seq << 32 | what;
}

static __global__ void put(const __grid_constant__ table t, const void *keys, uint32_t n, uint32_t first,
                           uint64_t *said, uint32_t seq)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		table_key k = key_load(keys, i);
		uint32_t tag = tag_of(k), mask = (1u << t.bits) - 1, at = tag >> (32 - t.bits);
		unsigned long long entry = (unsigned long long)tag << 32 | (first + i + 1);

		key_store(&t.keys[first + i], k);
		__threadfence(); /* the key before the entry that leads to it */
		while (atomicCAS(&t.entries[at], 0ull, entry))
			at = (at + 1) & mask;
	}
	__syncthreads();
	if (threadIdx.x == 0)
		say(said, seq, 0);
}

static __global__ void find(const __grid_constant__ table t, const void *keys, uint32_t n, uint64_t *said, uint32_t seq)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	__shared__ uint32_t least;

	if (threadIdx.x == 0)
		least = n;
	__syncthreads();
	if (i < n) {
		table_key k = key_load(keys, i);
		uint32_t tag = tag_of(k), mask = (1u << t.bits) - 1, at = tag >> (32 - t.bits);
		unsigned long long e;

		while ((e = t.entries[at]) != 0 && ((uint32_t)(e >> 32) != tag || !key_is(&t.keys[(uint32_t)e - 1], k)))
			at = (at + 1) & mask;
		if (!e)
			atomicMin(&least, i);
	}
	__syncthreads();
	if (threadIdx.x == 0)
		say(said, seq, least);
}

static unsigned blocks_of(uint32_t n) { return (n + TABLE_THREADS - 1) / TABLE_THREADS; }

extern "C" void table_put(const struct table *t, const void *keys, uint32_t n, uint32_t first, uint64_t *said,
                          uint32_t seq, cudaStream_t s)
{
	put<<<blocks_of(n), TABLE_THREADS, 0, s>>>(*t, keys, n, first, said, seq);
}

extern "C" void table_find(const struct table *t, const void *keys, uint32_t n, uint64_t *said, uint32_t seq,
                           cudaStream_t s)
{
	find<<<blocks_of(n), TABLE_THREADS, 0, s>>>(*t, keys, n, said, seq);
}
