/* mover_sum.cuh - the summers' warps: sum what lies in a stage, check and make headers, compare sums. */
#ifndef TUTTI_EXEC_MOVER_SUM_CUH
#define TUTTI_EXEC_MOVER_SUM_CUH

#include "exec/mover.cuh"

static __device__ __forceinline__ uint64_t mover_term(uint64_t lane, uint64_t key)
{
	uint64_t x = lane ^ key;

	return x + (x & 0xffffffffull) * (x >> 32);
}

/* bytes is a multiple of 16, p of 16 bytes; dst NULL: sums only. */
static __device__ uint64_t mover_sum16(const uint8_t *p, uint8_t *dst, uint32_t bytes, uint64_t offset, uint32_t t)
{
	const ulonglong2 *v = (const ulonglong2 *)(const void *)p;
	uint64_t key = (offset / 8 + 2ull * t + 1) * OBJSUM_LANE_KEY, sum = 0;

#pragma unroll 4
	for (uint32_t i = t; i < bytes / 16; i += MOVER_SUMMERS, key += 2ull * MOVER_SUMMERS * OBJSUM_LANE_KEY) {
		ulonglong2 x = v[i];

		if (dst)
			((ulonglong2 *)(void *)dst)[i] = x;
		sum += mover_term(x.x, key) + mover_term(x.y, key + OBJSUM_LANE_KEY);
	}
	return sum;
}

/* Any address, any length: a lane of 8 bytes a thread. dst may be NULL. */
static __device__ uint64_t mover_sum_any(const uint8_t *p, uint8_t *dst, uint32_t bytes, uint64_t offset, uint32_t t)
{
	uint64_t sum = 0;
	int words = (((uintptr_t)p | (uintptr_t)dst) & 7u) == 0;

	for (uint32_t at = 8 * t; at < bytes; at += 8 * MOVER_SUMMERS) {
		uint32_t n = bytes - at < 8 ? bytes - at : 8;
		uint64_t lane = 0;

		if (words && n == 8) {
			lane = *(const uint64_t *)(const void *)(p + at);
			if (dst)
				*(uint64_t *)(void *)(dst + at) = lane;
		} else {
			for (uint32_t k = 0; k < n; k++) {
				lane |= (uint64_t)p[at + k] << (8 * k);
				if (dst)
					dst[at + k] = p[at + k];
			}
		}
		sum += objsum_term(lane, (offset + at) / 8);
	}
	return sum;
}

static __device__ void mover_take_headers(struct dev_block *b, const struct mover_chunk *ch, const uint8_t *stage,
                                          uint32_t t)
{
	const struct dev_step *s = ch->step;
	const struct dev_cmd *c = &b->cmds[ch->what];
	const uint8_t *from = ch->bytes ? stage : ch->src;

	/* One thread a header, in different warps. */
	if (t % 32 || t / 32 >= IO_SUMMER_WARPS)
		return;
	for (uint32_t k = t / 32; k < ch->n; k += IO_SUMMER_WARPS) {
		uint32_t number = ch->first + k;
		int rc =
		    dev_header_take(s->plan, c->span.first + c->span.pos + number,
		                    (const struct wire_header *)(const void *)(from + k * s->plan->geom.header_bytes));

		if (rc)
			atomicOr(&b->mover->header_bad[2 * ch->what + number / 32], 1u << number % 32);
	}
	__threadfence();
}

static __device__ void mover_make_headers(struct dev_block *b, const struct mover_chunk *ch, uint8_t *stage, uint32_t t)
{
	const struct dev_step *s = ch->step;
	const struct dev_cmd *c = &b->cmds[ch->what];
	uint8_t *to = ch->bytes ? stage : ch->dst;
	uint64_t bytes = s->plan->geom.header_bytes;

	for (uint64_t at = 8ull * t; at < ch->n * bytes; at += 8ull * MOVER_SUMMERS)
		*(uint64_t *)(void *)(to + at) = 0;
	mover_summers_meet();
	if (t % 32 == 0 && s->kind != WIRE_STEP_INVALIDATE)
		for (uint32_t k = t / 32; k < ch->n; k += IO_SUMMER_WARPS)
			dev_header_make(s->plan, c->span.first + c->span.pos + ch->first + k,
			                (struct wire_header *)(void *)(to + k * bytes));
	__threadfence_system();
	mover_fence(); /* the copier's bulk copy reads what was just written */
}

/* How many entries of the step differ. */
static __device__ void mover_compare(struct dev_mover *m, const struct dev_step *s, uint32_t t)
{
	const struct dev_plan *p = s->plan;

	for (uint32_t i = s->lo + t; i < s->hi; i += MOVER_SUMMERS)
		if (dev_entry_differs(s, i) && !__ldcg(&p->results[i]))
			atomicAdd(&m->bad, 1u);
}

static __device__ void mover_summer(struct dev_block *b, uint32_t t)
{
	struct dev_mover *m = b->mover;

	for (uint32_t st = 0, turn = 0;; turn ^= st + 1 == m->n_stages, st = st + 1 == m->n_stages ? 0 : st + 1) {
		uint8_t *stage = m->stages + st * IO_STAGE_BYTES;
		const struct mover_chunk *ch = &m->chunk[st];
		uint64_t sum = 0;

		mover_bar_wait(&m->full[st], turn);
		if (ch->op == MOVER_STOP)
			break;
		if (ch->op == MOVER_SUM && ch->sum) {
			sum = mover_sum16(stage, NULL, ch->bytes, ch->offset, t);
		} else if (ch->op == MOVER_COPY) {
			sum = (((uintptr_t)ch->src | (uintptr_t)ch->dst | ch->bytes) & 15u) == 0
			          ? mover_sum16(ch->src, ch->dst, ch->bytes, ch->offset, t)
			          : mover_sum_any(ch->src, ch->dst, ch->bytes, ch->offset, t);
			__threadfence_system();
		} else if (ch->op == MOVER_TAKE_HEADERS) {
			mover_take_headers(b, ch, stage, t);
		} else if (ch->op == MOVER_MAKE_HEADERS) {
			mover_make_headers(b, ch, stage, t);
		} else if (ch->op == MOVER_COMPARE) {
			mover_compare(m, ch->step, t);
		}
		for (int by = 16; by; by /= 2)
			sum += __shfl_xor_sync(0xffffffffu, (unsigned long long)sum, by);
		if (t % 32 == 0) {
			if (sum)
				atomicAdd(&m->part[st], (unsigned long long)sum);
			mover_bar_arrive(&m->empty[st]);
		}
		__syncwarp();
	}
}

#endif
