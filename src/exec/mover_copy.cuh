/* mover_copy.cuh - the copier's warp: cuts commands into chunks, moves them through the stages, in order. */
#ifndef TUTTI_EXEC_MOVER_COPY_CUH
#define TUTTI_EXEC_MOVER_COPY_CUH

#include "exec/mover.cuh"

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
	const struct wire_ioctx *ioctx; /* of the first element, if they are explicit */
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
	u->n = sp->n;
	u->pitch = first.pitch;
	u->bytes = first.bytes;
	u->offset = first.offset;
	u->buf = first.buf;
	u->mem = first.mem;
	u->ioctx = p ? NULL : dev_step_ioctx(u->s) + first.entry;
	u->sums = 0;
	if (u->ioctx)
		return;
	u->negate = u->in || (!u->moves && p->op == WIRE_READ);
	u->sums = u->in || !c->alone || !u->moves; /* a retried write: summed when the whole command was made */
	u->len = sp->len;
	u->inner_count = p->mem.inner_count;
	u->per_layer = p->geom.objects_per_layer;
	u->entries = p->entries + sp->first;
	u->sum = dev_plan_sum(p, u->s->kind, sp->first, 0);
	u->base = p->mem.layer_base[u->s->kind];
	u->block_stride = p->mem.block_stride;
	u->outer_stride = p->mem.outer_stride;
	u->inner_stride = p->mem.inner_stride;
	u->object = first.object;
	u->e = first.entry - sp->first;
	u->inner = first.object % u->inner_count;
	u->object_at = first.object / u->inner_count * u->outer_stride + u->inner * u->inner_stride + first.offset;
}

static __device__ void mover_cut_step(struct mover_cut *u)
{
	u->at = 0;
	u->k++;
	if (u->k == u->n)
		return;
	u->buf += u->pitch;
	if (u->ioctx) {
		u->mem = (uint8_t *)(uintptr_t)u->ioctx[u->k].mem;
		return;
	}
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
	m->done[m->done_tail & (IO_QUEUE - 1)] = what;
	mover_store(&m->done_tail, m->done_tail + 1);
}

/* Next chunk of a command with data. */
static __device__ void mover_cut_data(struct mover_cut *u, struct mover_chunk *ch)
{
	uint64_t left = u->bytes - u->at;

	ch->bytes = left < IO_STAGE_BYTES ? (uint32_t)left : IO_STAGE_BYTES;
	ch->offset = u->offset + u->at;
	ch->src = (u->in ? u->buf : u->mem) + u->at;
	ch->dst = (u->in ? u->mem : u->buf) + u->at;
	ch->sum = u->sums ? u->sum + (uint64_t)u->e * u->per_layer + u->object : NULL;
	ch->negate = (uint8_t)u->negate;
	ch->out = (uint8_t)u->moves;
	ch->store = (uint8_t)!u->in;
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

static __device__ void mover_cut_compare(const struct dev_block *b, struct mover_chunk *ch)
{
	ch->step = &b->steps[b->first_open];
	ch->op = MOVER_COMPARE;
	ch->out = 0;
	ch->bytes = 0;
	ch->sum = NULL;
	ch->last = 0; /* of no command */
}

static __device__ void mover_cut_headers(struct dev_block *b, struct mover_cut *cut, struct mover_chunk *ch)
{
	struct dev_cmd *c = cut->c;
	uint64_t bytes = cut->s->plan->geom.header_bytes;
	uint32_t fit = bytes <= IO_STAGE_BYTES ? (uint32_t)(IO_STAGE_BYTES / bytes) : 1;
	int in = c->work == DEV_WORK_HEADERS_IN;

	ch->op = in ? MOVER_TAKE_HEADERS : MOVER_MAKE_HEADERS;
	ch->first = cut->k;
	ch->n = c->span.n - cut->k < fit ? c->span.n - cut->k : fit;
	ch->bytes = MOVER_BULK && bytes <= IO_STAGE_BYTES ? (uint32_t)(ch->n * bytes) : 0; /* 0: where it lies */
	ch->src = ch->dst = dev_header_at(b, cut->s, c, cut->k);
	ch->sum = NULL;
	ch->out = !in && ch->bytes;
	ch->store = 1;
	cut->k += ch->n;
	ch->last = cut->k == c->span.n;
}

/*
 * Makes the next chunk of what there is to do. 0: nothing to do now. A comparison goes before all data, which is that
 * of later layers: compute waits for this one.
 */
static __device__ int mover_cut_next(struct dev_block *b, struct mover_cut *cut, struct mover_chunk *ch)
{
	struct dev_mover *m = b->mover;

	if (mover_load(&m->asked) != m->taken) {
		m->taken++;
		mover_cut_compare(b, ch);
		return 1;
	}
	if (!cut->open) {
		if (mover_load(&m->work_tail) == m->work_head)
			return 0;
		cut->number = m->work[m->work_head++ & (IO_QUEUE - 1)];
		cut->k = 0;
		cut->at = 0;
		cut->c = &b->cmds[cut->number];
		cut->s = &b->steps[cut->c->span.step];
	}
	ch->what = cut->number;
	ch->step = cut->s;
	ch->n = 0;
	if (cut->c->work == DEV_WORK_HEADERS_IN || cut->c->work == DEV_WORK_HEADERS_OUT) {
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
	else if (ch->op == MOVER_COMPARE)
		mover_store(&m->compared, m->compared + 1);
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

	if (l->begun - l->retired == m->n_stages || l->begun - l->copied >= m->loads || !mover_cut_next(b, cut, ch))
		return 0;
	if ((ch->op == MOVER_SUM || ch->op == MOVER_TAKE_HEADERS) && ch->bytes) {
		if (fresh)
			mover_fence(); /* what the loop saw of the command, before the copy engine's look */
		mover_bulk_in(m->stages + st * IO_STAGE_BYTES, ch->src, ch->bytes, &m->full[st]);
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
	if (ch->out && ch->bytes) {
		if (ch->store)
			mover_bulk_wait_but(m->stores - 1);
		mover_bulk_out(ch->dst, m->stages + st * IO_STAGE_BYTES, ch->bytes);
	}
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

#endif
