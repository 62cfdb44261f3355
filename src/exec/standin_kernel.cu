/*
 * standin_kernel.cu - the stand-in for a model's compute on a GPU: writes or checks one layer of some blocks.
 *
 * blockIdx.x is a segment of a block, blockIdx.y a part of it. Words where memory and offset are aligned, else bytes.
 */
#include <cuda_runtime.h>

extern "C" {
#include "exec/standin.h"
}

static __device__ void standin_note(struct standin_found *f, uint64_t *wrong, uint64_t at)
{
	++*wrong;
	atomicMin((unsigned long long *)&f->first, (unsigned long long)at);
}

static __device__ void standin_bytes(uint8_t *p, uint64_t seed, uint64_t offset, uint64_t from, uint64_t to,
                                     const struct standin_job *j, struct standin_found *f, uint64_t layer_at,
                                     uint64_t *wrong)
{
	for (uint64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
		uint8_t byte = standin_byte(seed, offset + i);

		if (j->what == STANDIN_COMPUTE)
			p[i] = byte;
		else if (p[i] != byte)
			standin_note(f, wrong, layer_at + offset + i);
	}
}

extern "C" __global__ void standin_kernel(const __grid_constant__ struct standin_job j)
{
	uint32_t segments = j.outer_count * j.inner_count, i = blockIdx.x / segments, s = blockIdx.x % segments;
	const struct standin_block b = j.blocks[i];
	struct standin_found *f = &j.found[i];
	uint8_t *p = j.layer_base + b.block * j.block_stride + s / j.inner_count * j.outer_stride +
	             s % j.inner_count * j.inner_stride;
	uint64_t seed = standin_seed(b.key, j.layer), offset = s * j.segment_bytes;
	uint64_t layer_at = (uint64_t)j.layer * segments * j.segment_bytes, wrong = 0;
	uint64_t part = (j.segment_bytes / gridDim.y + 8) / 8 * 8, from = blockIdx.y * part;
	uint64_t to = from + part < j.segment_bytes ? from + part : j.segment_bytes;

	if (from >= to)
		return;
	if (((uintptr_t)p | offset) % 8 == 0) {
		uint64_t *words = (uint64_t *)(void *)p;

		for (uint64_t k = from / 8 + threadIdx.x; k < to / 8; k += blockDim.x) {
			uint64_t word = standin_word(seed, offset / 8 + k), differs;

			if (j.what == STANDIN_COMPUTE) {
				words[k] = word;
				continue;
			}
			differs = words[k] ^ word;
			for (uint32_t byte = 0; byte < 8 && differs >> (8 * byte); byte++)
				if ((differs >> (8 * byte)) & 0xff)
					standin_note(f, &wrong, layer_at + offset + 8 * k + byte);
		}
		from = to / 8 * 8;
	}
	standin_bytes(p, seed, offset, from, to, &j, f, layer_at, &wrong);
	if (wrong)
		atomicAdd((unsigned long long *)&f->wrong, (unsigned long long)wrong);
}

extern "C" __global__ void standin_stamp_kernel(uint64_t *at) { *at = port_now_ns(); }
