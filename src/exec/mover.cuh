/*
 * mover.cuh - the warps of a thread block that move and sum data, while its first thread runs the loop of dev/io.h.
 *
 *   warp 0   the loop: posts commands' numbers in work[], takes them back from done[]
 *   warp 1   the copier: cuts a command's data into chunks, starts a bulk copy (TMA) into a stage of shared memory for
 *            each, and another one out of it when it has landed
 *   warps 2+ the summers: sum a stage while the copy out of it runs; check and make headers; compare sums. What bulk
 *            copies can't do (addresses or lengths that are no multiples of 16, GPUs before Hopper) they copy themselves
 *
 * Chunks have numbers; chunk k lies in stage k % n_stages. They are begun, copied out, retired and landed in order: a
 * chunk is retired, its stage free and its part added to the object's sum, when the copy out has read the stage and
 * the summers have left it; it has landed when the copy out has completed. A command is given back with its last. Two mbarriers a stage: `full` (data is there) and `empty` (all summers are
 * through), each flips once a chunk.
 */
#ifndef TUTTI_EXEC_MOVER_CUH
#define TUTTI_EXEC_MOVER_CUH

#include "dev/io.h"

#define MOVER_STAGE_BYTES 32768u
#define MOVER_STAGES_MAX 6u
#define MOVER_STAGES_MIN 2u
#define MOVER_SUMMER_WARPS 8u
#define MOVER_SUMMERS (32u * MOVER_SUMMER_WARPS)
#define MOVER_THREADS (64u + MOVER_SUMMERS)
#define MOVER_QUEUE 512u      /* power of two, above the largest number of commands and the one step */
#define MOVER_VERIFY 0x10000u /* in work[] and done[]: not a command, but the step in front */
#define MOVER_READING 1u      /* copies out that may still read their stage when older stages are taken again */
#define MOVER_LANDING 4u      /* copies out that are not waited for */
#define MOVER_ENDS 16u        /* power of two, above MOVER_LANDING: commands whose last chunk has not landed */

enum mover_op { MOVER_STOP = 1, MOVER_SUM, MOVER_COPY, MOVER_TAKE_HEADERS, MOVER_MAKE_HEADERS, MOVER_COMPARE };

struct mover_chunk {
	uint8_t op;     /* enum mover_op */
	uint8_t out;    /* copy the stage to dst */
	uint8_t last;   /* of the command */
	uint8_t negate; /* the sum is taken away */
	uint32_t bytes;
	uint32_t what;  /* number of the command, or MOVER_VERIFY */
	uint32_t first; /* headers: number of the first in the command; how many: n */
	uint32_t n;
	uint64_t offset; /* of the bytes in the object */
	const uint8_t *src;
	uint8_t *dst;
	uint64_t *sum; /* NULL: none */
	const struct dev_step *step;
};

struct dev_mover {
	uint32_t work_tail, work_head, done_tail, done_head;
	uint32_t stop;
	uint32_t n_stages;
	uint32_t bad;      /* entries whose sums differ, of the step that was compared */
	uint32_t verified; /* the step in front was compared */
	uint8_t *stages;
	uint32_t *header_bad; /* [command * 2]: bits of its headers that are none */
	uint64_t moved_bytes;
	unsigned long long part[MOVER_STAGES_MAX];
	uint64_t full[MOVER_STAGES_MAX], empty[MOVER_STAGES_MAX];
	struct mover_chunk chunk[MOVER_STAGES_MAX];
	uint32_t end_chunk[MOVER_ENDS], end_what[MOVER_ENDS]; /* see mover_land */
	uint32_t work[MOVER_QUEUE], done[MOVER_QUEUE];
};

/* ---- PTX ---- */

static __device__ __forceinline__ uint32_t mover_load(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void mover_store(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t mover_smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void mover_bar_init(uint64_t *bar, uint32_t n)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mover_smem(bar)), "r"(n) : "memory");
}

static __device__ __forceinline__ void mover_bar_arrive(uint64_t *bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mover_smem(bar)) : "memory");
}

static __device__ __forceinline__ int mover_bar_passed(uint64_t *bar, uint32_t parity)
{
	uint32_t passed;
	asm volatile("{ .reg .pred p;\n"
	             "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
	             "selp.u32 %0, 1, 0, p; }"
	             : "=r"(passed)
	             : "r"(mover_smem(bar)), "r"(parity)
	             : "memory");
	return (int)passed;
}

static __device__ __forceinline__ void mover_bar_wait(uint64_t *bar, uint32_t parity)
{
	while (!mover_bar_passed(bar, parity))
		__nanosleep(20);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MOVER_BULK 1

static __device__ __forceinline__ void mover_bulk_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mover_smem(bar)), "r"(bytes)
	             : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
	                 mover_smem(stage)),
	             "l"(src), "r"(bytes), "r"(mover_smem(bar))
	             : "memory");
}

static __device__ __forceinline__ void mover_bulk_out(void *dst, const void *stage, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(mover_smem(stage)),
	             "r"(bytes)
	             : "memory");
}

static __device__ __forceinline__ void mover_bulk_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* All but the newest MOVER_READING copies out have read their stages; all but MOVER_LANDING have landed; all have. */
static __device__ __forceinline__ void mover_bulk_wait_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(MOVER_READING) : "memory");
}
static __device__ __forceinline__ void mover_bulk_wait_some(void)
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(MOVER_LANDING) : "memory");
}
static __device__ __forceinline__ void mover_bulk_wait_all(void)
{
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Between ordinary accesses to memory and those of the copy engine, either way. */
static __device__ __forceinline__ void mover_fence(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

#else
#define MOVER_BULK 0
static __device__ __forceinline__ void mover_bulk_in(void *, const void *, uint32_t, uint64_t *) {}
static __device__ __forceinline__ void mover_bulk_out(void *, const void *, uint32_t) {}
static __device__ __forceinline__ void mover_bulk_commit(void) {}
static __device__ __forceinline__ void mover_bulk_wait_read(void) {}
static __device__ __forceinline__ void mover_bulk_wait_some(void) {}
static __device__ __forceinline__ void mover_bulk_wait_all(void) {}
static __device__ __forceinline__ void mover_fence(void) {}
#endif

/* ---- the loop's side (dev/move.h) ---- */

__device__ int mover_start(struct dev_block *b, struct dev_step *s, struct dev_cmd *c)
{
	struct dev_mover *m = b->mover;

	if (c->work == DEV_WORK_SUM && !dev_sums_direct(s->plan))
		return 1;
	m->work[m->work_tail & (MOVER_QUEUE - 1)] = (uint32_t)(c - b->cmds);
	mover_store(&m->work_tail, m->work_tail + 1);
	return 0;
}

__device__ int mover_ready(const struct dev_block *b)
{
	return mover_load(&b->mover->done_tail) != b->mover->done_head;
}

/* Headers that are none: said by the summers as bits, told here, where failures are kept. */
static __device__ void mover_headers_failed(struct dev_block *b, struct dev_cmd *c, uint32_t number)
{
	struct dev_step *s = &b->steps[c->span.step];

	for (uint32_t k = 0; k < c->span.n; k++) {
		const struct wire_header *h = (const struct wire_header *)(const void *)dev_header_at(b, s, c, k);

		if (b->mover->header_bad[2 * number + k / 32] & 1u << k % 32)
			dev_elem_fail(b, s, &c->span, c->span.pos + k,
			              geom_header_check(h, geom_objects(&s->plan->geom)) == GEOM_HEADER_CORRUPT
			                  ? -EBADMSG
			                  : -ESTALE);
	}
	b->mover->header_bad[2 * number] = b->mover->header_bad[2 * number + 1] = 0;
}

__device__ struct dev_cmd *mover_next(struct dev_block *b)
{
	struct dev_mover *m = b->mover;

	while (mover_ready(b)) {
		uint32_t number = m->done[m->done_head & (MOVER_QUEUE - 1)];
		struct dev_cmd *c;

		m->done_head++;
		if (number == MOVER_VERIFY) {
			m->verified = 1;
			continue;
		}
		c = &b->cmds[number];
		if (c->work == DEV_WORK_HEADERS_IN && (m->header_bad[2 * number] | m->header_bad[2 * number + 1]))
			mover_headers_failed(b, c, number);
		return c;
	}
	return NULL;
}

__device__ int mover_verify(struct dev_block *b, struct dev_step *s)
{
	struct dev_mover *m = b->mover;

	if (!s->verifying) {
		s->verifying = 1;
		m->verified = 0;
		m->bad = 0;
		m->work[m->work_tail & (MOVER_QUEUE - 1)] = MOVER_VERIFY;
		mover_store(&m->work_tail, m->work_tail + 1);
		return 0;
	}
	if (!m->verified)
		return 0;
	if (m->bad)
		dev_step_verify(s); /* rare: finds out which */
	return 1;
}

/* ---- the copier ---- */

/*
 * Where it is in a command. The elements of a command are dev_piece_at's; but this thread's time is what bounds a
 * block's bandwidth, so it walks from one to the next, with nothing divided and the plan's fields at hand.
 */
struct mover_cut {
	struct dev_cmd *c;
	struct dev_step *s;
	uint32_t number;
	uint32_t k; /* element */
	int open;
	/* Of the command. */
	int in, sums, negate, moves;
	uint32_t n, len, inner_count, per_layer;
	const struct dev_entry *entries; /* of the run's first */
	uint64_t *sum;                   /* of the run's first, object 0 */
	uint64_t base, block_stride, outer_stride, inner_stride;
	uint64_t pitch, bytes, offset; /* of each element */
	/* Of the element. */
	uint32_t object, inner, e;
	uint64_t object_at; /* from the block's start */
	uint8_t *buf;
	uint64_t at; /* in its data */
	uint8_t *mem;
};

static __device__ void mover_cut_open(const struct dev_block *b, struct mover_cut *u)
{
	const struct dev_cmd *c = u->c;
	const struct dev_plan *p = u->s->plan;
	const struct dev_span *sp = &c->span;
	struct dev_piece first = dev_piece_at(b, u->s, c, 0);

	u->in = c->work == DEV_WORK_IN;
	u->moves = c->work != DEV_WORK_SUM;
	u->negate = u->in || (!u->moves && p->op == WIRE_READ);
	u->sums = u->in || !c->alone || !u->moves; /* a retried write: summed when the whole command was made */
	u->n = sp->n;
	u->len = sp->len;
	u->inner_count = p->mem.inner_count;
	u->per_layer = p->geom.objects_per_layer;
	u->entries = p->entries + sp->first;
	u->sum = dev_plan_sum(p, u->s->kind, sp->first, 0);
	u->base = p->mem.layer_base[u->s->kind];
	u->block_stride = p->mem.block_stride;
	u->outer_stride = p->mem.outer_stride;
	u->inner_stride = p->mem.inner_stride;
	u->pitch = first.pitch;
	u->bytes = first.bytes;
	u->offset = first.offset;
	u->object = first.object;
	u->e = first.entry - sp->first;
	u->inner = first.object % u->inner_count;
	u->object_at = first.object / u->inner_count * u->outer_stride + u->inner * u->inner_stride + first.offset;
	u->buf = first.buf;
	u->mem = first.mem;
}

static __device__ void mover_cut_step(struct mover_cut *u)
{
	u->at = 0;
	u->k++;
	if (u->k == u->n)
		return;
	u->buf += u->pitch;
	if (++u->e == u->len) {
		u->e = 0;
		u->object++;
		u->object_at += u->inner_stride;
		if (++u->inner == u->inner_count) {
			u->inner = 0;
			u->object_at += u->outer_stride - u->inner_count * u->inner_stride;
		}
	}
	u->mem = (uint8_t *)(uintptr_t)(u->base + u->entries[u->e].block * u->block_stride + u->object_at);
}

static __device__ void mover_zero(uint8_t *at, uint64_t bytes)
{
	for (; bytes && ((uintptr_t)at & 7u); bytes--)
		*at++ = 0;
	for (; bytes >= 8; bytes -= 8, at += 8)
		*(uint64_t *)(void *)at = 0;
	for (; bytes; bytes--)
		*at++ = 0;
}

static __device__ void mover_done(struct dev_mover *m, uint32_t what)
{
	__threadfence_system(); /* what was moved and added, before the word that says so */
	m->done[m->done_tail & (MOVER_QUEUE - 1)] = what;
	mover_store(&m->done_tail, m->done_tail + 1);
}

/* Next chunk of a command with data. */
static __device__ void mover_cut_data(struct mover_cut *u, struct mover_chunk *ch)
{
	uint64_t left = u->bytes - u->at;

	ch->bytes = left < MOVER_STAGE_BYTES ? (uint32_t)left : MOVER_STAGE_BYTES;
	ch->offset = u->offset + u->at;
	ch->src = (u->in ? u->buf : u->mem) + u->at;
	ch->dst = (u->in ? u->mem : u->buf) + u->at;
	ch->sum = u->sums ? u->sum + (uint64_t)u->e * u->per_layer + u->object : NULL;
	ch->negate = (uint8_t)u->negate;
	ch->out = (uint8_t)u->moves;
	ch->op = MOVER_SUM;
	if (!MOVER_BULK || (((uintptr_t)ch->src | (uintptr_t)ch->dst | ch->bytes) & 15u)) {
		ch->op = MOVER_COPY;
		ch->out = 0;
	}
	if (!u->moves)
		ch->dst = NULL;
	u->at += ch->bytes;
	if (u->at == u->bytes) {
		if (!u->in && u->moves && u->pitch != u->bytes)
			mover_zero(u->buf + u->bytes, u->pitch - u->bytes); /* nothing of ours leaks to the medium */
		mover_cut_step(u);
	}
	ch->last = u->k == u->n;
}

static __device__ void mover_cut_headers(struct dev_block *b, struct mover_cut *cut, struct mover_chunk *ch)
{
	struct dev_cmd *c = cut->c;
	uint64_t bytes = cut->s->plan->geom.header_bytes;
	uint32_t fit = bytes <= MOVER_STAGE_BYTES ? (uint32_t)(MOVER_STAGE_BYTES / bytes) : 1;
	int in = c->work == DEV_WORK_HEADERS_IN;

	ch->op = in ? MOVER_TAKE_HEADERS : MOVER_MAKE_HEADERS;
	ch->first = cut->k;
	ch->n = c->span.n - cut->k < fit ? c->span.n - cut->k : fit;
	ch->bytes = MOVER_BULK && bytes <= MOVER_STAGE_BYTES ? (uint32_t)(ch->n * bytes) : 0; /* 0: where it lies */
	ch->src = ch->dst = dev_header_at(b, cut->s, c, cut->k);
	ch->sum = NULL;
	ch->out = !in && ch->bytes;
	cut->k += ch->n;
	ch->last = cut->k == c->span.n;
}

/* Makes the next chunk of what there is to do. 0: nothing to do now. */
static __device__ int mover_cut_next(struct dev_block *b, struct mover_cut *cut, struct mover_chunk *ch)
{
	struct dev_mover *m = b->mover;

	if (!cut->open) {
		if (mover_load(&m->work_tail) == m->work_head)
			return 0;
		cut->number = m->work[m->work_head++ & (MOVER_QUEUE - 1)];
		cut->k = 0;
		cut->at = 0;
		if (cut->number == MOVER_VERIFY) {
			cut->s = &b->steps[b->first_open];
		} else {
			cut->c = &b->cmds[cut->number];
			cut->s = &b->steps[cut->c->span.step];
		}
	}
	ch->what = cut->number;
	ch->step = cut->s;
	ch->n = 0;
	if (cut->number == MOVER_VERIFY) {
		ch->op = MOVER_COMPARE;
		ch->out = 0;
		ch->bytes = 0;
		ch->sum = NULL;
		ch->last = 1;
	} else if (cut->c->work == DEV_WORK_HEADERS_IN || cut->c->work == DEV_WORK_HEADERS_OUT) {
		mover_cut_headers(b, cut, ch);
	} else {
		if (!cut->open)
			mover_cut_open(b, cut);
		mover_cut_data(cut, ch);
	}
	cut->open = !ch->last;
	return 1;
}

/* Numbers of chunks, the stages where the next of each kind lies, and the commands whose last chunk has not landed. */
struct mover_line {
	uint32_t begun, copied, retired;
	uint32_t begin_stage, copy_stage, retire_stage;
	uint32_t copy_turn, retire_turn; /* parity of their stages' barriers */
	uint32_t end_head, end_tail;     /* of the mover's end_chunk[] and end_what[] */
};

static __device__ void mover_retire(struct dev_mover *m, struct mover_line *l)
{
	uint32_t k = l->retired++, st = l->retire_stage;
	struct mover_chunk *ch = &m->chunk[st];

	mover_bar_wait(&m->empty[st], l->retire_turn);
	if (++l->retire_stage == m->n_stages) {
		l->retire_stage = 0;
		l->retire_turn ^= 1u;
	}
	if (ch->sum)
		atomicAdd((unsigned long long *)ch->sum, ch->negate ? 0ull - m->part[st] : m->part[st]);
	m->part[st] = 0;
	if (ch->op == MOVER_SUM || ch->op == MOVER_COPY)
		m->moved_bytes += ch->bytes;
	if (ch->last) {
		m->end_chunk[l->end_tail & (MOVER_ENDS - 1)] = k;
		m->end_what[l->end_tail++ & (MOVER_ENDS - 1)] = ch->what;
	}
}

/* All chunks before `landed` have. */
static __device__ void mover_land(struct dev_mover *m, struct mover_line *l, uint32_t landed)
{
	while (l->end_head != l->end_tail && (int32_t)(landed - m->end_chunk[l->end_head & (MOVER_ENDS - 1)]) > 0)
		mover_done(m, m->end_what[l->end_head++ & (MOVER_ENDS - 1)]);
}

/* Starts a chunk into its stage, if one is free and there is something to do. */
static __device__ int mover_begin(struct dev_block *b, struct mover_cut *cut, struct mover_line *l)
{
	struct dev_mover *m = b->mover;
	uint32_t st = l->begin_stage;
	struct mover_chunk *ch = &m->chunk[st];
	int fresh = !cut->open;

	if (l->begun - l->retired == m->n_stages || !mover_cut_next(b, cut, ch))
		return 0;
	if ((ch->op == MOVER_SUM || ch->op == MOVER_TAKE_HEADERS) && ch->bytes) {
		if (fresh)
			mover_fence(); /* what the loop saw of the command, before the copy engine's look */
		mover_bulk_in(m->stages + st * MOVER_STAGE_BYTES, ch->src, ch->bytes, &m->full[st]);
	} else {
		mover_bar_arrive(&m->full[st]);
	}
	l->begun++;
	l->begin_stage = st + 1 == m->n_stages ? 0 : st + 1;
	return 1;
}

/* Starts the copy out of the oldest stage that has none, if its data is there; then retires what is before it. */
static __device__ void mover_copy_out(struct dev_mover *m, struct mover_line *l)
{
	uint32_t st = l->copy_stage;
	const struct mover_chunk *ch = &m->chunk[st];
	/* Headers are made by the summers, then copied out; data is copied out while they sum it. */
	uint64_t *ready = ch->op == MOVER_MAKE_HEADERS ? &m->empty[st] : &m->full[st];

	if (!mover_bar_passed(ready, l->copy_turn))
		return;
	if (ch->out && ch->bytes)
		mover_bulk_out(ch->dst, m->stages + st * MOVER_STAGE_BYTES, ch->bytes);
	mover_bulk_commit();
	l->copied++;
	if (++l->copy_stage == m->n_stages) {
		l->copy_stage = 0;
		l->copy_turn ^= 1u;
	}
	if (l->copied - l->retired <= MOVER_READING)
		return;
	mover_bulk_wait_read();
	while (l->copied - l->retired > MOVER_READING)
		mover_retire(m, l);
	if (l->end_head != l->end_tail) {
		mover_bulk_wait_some();
		mover_land(m, l, l->copied - MOVER_LANDING);
	}
}

static __device__ void mover_copier(struct dev_block *b)
{
	struct dev_mover *m = b->mover;
	struct mover_line l;
	struct mover_cut cut;

	memset(&l, 0, sizeof(l));
	cut.open = 0;
	for (;;) {
		if (mover_begin(b, &cut, &l))
			continue;
		if (l.copied != l.begun) {
			mover_copy_out(m, &l);
		} else if (l.retired != l.copied || l.end_head != l.end_tail) {
			mover_bulk_wait_all();
			while (l.retired != l.copied)
				mover_retire(m, &l);
			mover_land(m, &l, l.copied);
		} else if (mover_load(&m->stop)) {
			break;
		} else {
			__nanosleep(50);
		}
	}
	m->chunk[l.begin_stage].op = MOVER_STOP;
	mover_bar_arrive(&m->full[l.begin_stage]);
}

/* ---- the summers ---- */

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
	if (t % 32 || t / 32 >= MOVER_SUMMER_WARPS)
		return;
	for (uint32_t k = t / 32; k < ch->n; k += MOVER_SUMMER_WARPS) {
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
	asm volatile("bar.sync 1, %0;" ::"n"(MOVER_SUMMERS) : "memory"); /* all summers, no one else */
	if (t % 32 == 0 && s->kind != WIRE_STEP_INVALIDATE)
		for (uint32_t k = t / 32; k < ch->n; k += MOVER_SUMMER_WARPS)
			dev_header_make(s->plan, c->span.first + c->span.pos + ch->first + k,
			                (struct wire_header *)(void *)(to + k * bytes));
	__threadfence_system();
	mover_fence(); /* the copier's bulk copy reads what was just written */
}

/* How many entries of the step differ. */
static __device__ void mover_compare(struct dev_mover *m, const struct dev_step *s, uint32_t t)
{
	const struct dev_plan *p = s->plan;

	for (uint32_t i = s->lo + t; i < s->hi; i += MOVER_SUMMERS) {
		uint64_t diff = 0;

		for (uint32_t o = 0; o < p->geom.objects_per_layer; o++)
			diff |= dev_sum_get(dev_plan_sum(p, s->kind, i, o));
		if (diff && !__ldcg(&p->results[i]))
			atomicAdd(&m->bad, 1u);
	}
}

static __device__ void mover_summer(struct dev_block *b, uint32_t t)
{
	struct dev_mover *m = b->mover;

	for (uint32_t st = 0, turn = 0;; turn ^= st + 1 == m->n_stages, st = st + 1 == m->n_stages ? 0 : st + 1) {
		uint8_t *stage = m->stages + st * MOVER_STAGE_BYTES;
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
