/* sim.c - fibers, meetings, mbarriers and bulk copies of one thread block; see sim.h. */
#include "exec/sim.h"

#if !defined(__SANITIZE_THREAD__) /* sim_threads.c */

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"
#include "dev/plan.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES 131072u
#define DYNAMIC_BYTES (256u << 10)
#define COPIES_MAX 512u
#define MEETINGS 16u /* 0: the block; 1: the summers; from 2 on: warps */

enum { LOOP = 0, COPIER, SUMMERS, CLASSES };

struct thread {
	ucontext_t context;
	struct sim_index index;
	int class;
	uint32_t ready_at; /* in ready[]; not if it waits */
	const uint64_t *bar;
	uint32_t parity, shuffles;
};

struct meeting {
	uint32_t there;
	uint32_t who[SIM_THREADS_MAX];
	uint64_t given[2][32];
};

struct copy {
	int out, has_read;
	uint8_t *dst, *held;
	const uint8_t *src;
	uint32_t bytes, group;
	uint64_t *bar;
};

struct block {
	struct thread threads[SIM_THREADS_MAX];
	uint8_t *stacks, *dynamic;
	ucontext_t home; /* of the system's thread, whose stack the first fiber learns (ASan) */
	const struct io_params *params;
	void (*kernel)(struct io_params p);
	struct sim_index index, size, grid;
	uint32_t now; /* the thread that runs */
	uint32_t ready[SIM_THREADS_MAX], n_ready, n_over;
	struct meeting meetings[MEETINGS];
	struct copy copies[COPIES_MAX];
	uint32_t n_copies, group;
	/* The copier waits for groups before this one. */
	uint32_t wait_group;
	int waits, wait_landed;
	uint32_t waiter;
	/* Of the seed. */
	uint64_t random;
	uint32_t slow_class, copy_chance, land_chance; /* one in so many */
	uint64_t asked_at;
	struct sim_counts counts;
};

static struct sim_opts opts;
static struct sim_counts total;
static uint64_t launches;
static _Thread_local struct block *self;

/* A kernel's thread can't leave a test's case. */
static void never(const char *why)
{
	fprintf(stderr, "sim: thread %u, seed %llu: %s\n", self->now, (unsigned long long)opts.seed, why);
	abort();
}

/* ---- fibers ---- */

static uint32_t draw(uint32_t of) { return (uint32_t)(check_random(&self->random) % of); }

static void make_ready(uint32_t i)
{
	self->threads[i].ready_at = self->n_ready;
	self->ready[self->n_ready++] = i;
}

static void make_wait(uint32_t i)
{
	uint32_t at = self->threads[i].ready_at, last = self->ready[--self->n_ready];

	self->ready[at] = last;
	self->threads[last].ready_at = at;
}

static void switch_to(ucontext_t *from, ucontext_t *to, int ends)
{
#if defined(__SANITIZE_ADDRESS__)
	void *fake;

	__sanitizer_start_switch_fiber(ends ? NULL : &fake, to->uc_stack.ss_sp, to->uc_stack.ss_size);
	swapcontext(from, to);
	__sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
	(void)ends;
	swapcontext(from, to);
#endif
}

static void copies_move(void);

static uint32_t pick(void)
{
	uint32_t i = 0;

	if (self->n_copies && !draw(self->copy_chance))
		copies_move();
	while (!self->n_ready) {
		if (!self->n_copies)
			never("all threads wait, and nothing is under way");
		copies_move();
	}
	for (int turn = 0; turn < 8; turn++) {
		i = self->ready[draw(self->n_ready)];
		if ((uint32_t)self->threads[i].class != self->slow_class)
			break;
	}
	return i;
}

static void run_next(int ends)
{
	uint32_t was = self->now, next = pick();

	self->counts.switches++;
	if (!(self->counts.switches % 64) && self->n_ready <= 2 && !self->n_copies)
		sched_yield(); /* all there is to do is the controller's, a thread of the system's */
	if (next == was && !ends)
		return;
	self->now = next;
	switch_to(&self->threads[was].context, &self->threads[next].context, ends);
}

void sim_yield(void) { run_next(0); }

static void wait_here(void)
{
	make_wait(self->now);
	run_next(0);
}

static void begin(void)
{
#if defined(__SANITIZE_ADDRESS__)
	const void *bottom;
	size_t bytes;

	__sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
	if (!self->home.uc_stack.ss_size) {
		self->home.uc_stack.ss_sp = (void *)(uintptr_t)bottom;
		self->home.uc_stack.ss_size = bytes;
	}
#endif
	self->kernel(*self->params);
	make_wait(self->now);
	if (++self->n_over == self->size.x)
		switch_to(&self->threads[self->now].context, &self->home, 1);
	run_next(1);
}

struct sim_index sim_thread_index(void) { return self->threads[self->now].index; }
struct sim_index sim_block_index(void) { return self->index; }
struct sim_index sim_block_size(void) { return self->size; }
struct sim_index sim_grid_size(void) { return self->grid; }
uint8_t *sim_dynamic(void) { return self->dynamic; }

/* ---- meetings ---- */

void sim_meet(uint32_t number, uint32_t n)
{
	struct meeting *m = &self->meetings[number];

	if (m->there + 1 < n) {
		m->who[m->there++] = self->now;
		wait_here();
		return;
	}
	for (uint32_t i = 0; i < m->there; i++)
		make_ready(m->who[i]);
	m->there = 0;
	sim_yield();
}

void sim_meet_warp(void) { sim_meet(2 + self->threads[self->now].index.x / 32, 32); }

uint64_t sim_shuffle(uint64_t v, uint32_t by, int down)
{
	struct thread *t = &self->threads[self->now];
	struct meeting *m = &self->meetings[2 + t->index.x / 32];
	uint32_t lane = t->index.x % 32, turn = t->shuffles++ & 1u;
	uint32_t from = down ? lane + by : lane ^ by;

	m->given[turn][lane] = v;
	sim_meet_warp();
	return from < 32 ? m->given[turn][from] : v;
}

/* ---- mbarriers ---- */

struct bar {
	uint8_t expected, pending, phase, rsvd;
	uint32_t bytes; /* still to come */
};

static struct bar bar_get(const uint64_t *at)
{
	struct bar b;

	memcpy(&b, at, sizeof(b));
	return b;
}

static void bar_put(uint64_t *at, struct bar b)
{
	if (!b.pending && !b.bytes) {
		b.phase ^= 1u;
		b.pending = b.expected;
		for (uint32_t i = 0; i < self->size.x; i++)
			if (self->threads[i].bar == at && self->threads[i].parity != b.phase) {
				self->threads[i].bar = NULL;
				make_ready(i);
			}
	}
	memcpy(at, &b, sizeof(b));
}

void sim_bar_init(uint64_t *bar, uint32_t n)
{
	struct bar b = {.expected = (uint8_t)n, .pending = (uint8_t)n};

	memcpy(bar, &b, sizeof(b));
}

void sim_bar_arrive(uint64_t *bar, uint32_t expect_bytes)
{
	struct bar b;

	sim_yield();
	b = bar_get(bar);
	if (!b.pending)
		never("one more than expected arrives at an mbarrier");
	b.pending--;
	b.bytes += expect_bytes;
	bar_put(bar, b);
}

int sim_bar_passed(const uint64_t *bar, uint32_t parity)
{
	sim_yield();
	return bar_get(bar).phase != parity;
}

void sim_bar_wait(const uint64_t *bar, uint32_t parity)
{
	struct thread *t = &self->threads[self->now];

	if (sim_bar_passed(bar, parity))
		return;
	t->bar = bar;
	t->parity = parity;
	wait_here();
}

/* ---- bulk copies ---- */

static void copy_add(struct copy c)
{
	if (((uintptr_t)c.dst | (uintptr_t)c.src | c.bytes) & 15u || !c.bytes)
		never("a bulk copy of what is no multiple of 16");
	if (self->n_copies == COPIES_MAX)
		never("more bulk copies than a test expects");
	self->copies[self->n_copies++] = c;
}

static uint32_t under_way(int out)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < self->n_copies; i++)
		n += self->copies[i].out == out;
	return n;
}

static int wait_is_over(void)
{
	for (uint32_t i = 0; i < self->n_copies; i++) {
		const struct copy *c = &self->copies[i];

		if (c->out && (int32_t)(c->group - self->wait_group) < 0 && (self->wait_landed || !c->has_read))
			return 0;
	}
	return 1;
}

/* One of them gets on: in at once; out in two steps, with other threads' turns between. */
static void copies_move(void)
{
	struct copy *c = &self->copies[draw(self->n_copies)];

	if (c->out && c->has_read && draw(self->land_chance))
		return;
	if (c->out && !c->has_read) {
		c->held = malloc(c->bytes);
		memcpy(c->held, c->src, c->bytes);
		c->has_read = 1;
	} else {
		memcpy(c->dst, c->out ? c->held : c->src, c->bytes);
		free(c->held);
		if (!c->out) {
			struct bar b = bar_get(c->bar);

			if (b.bytes < c->bytes)
				never("more bytes than expected at an mbarrier");
			b.bytes -= c->bytes;
			bar_put(c->bar, b);
		}
		*c = self->copies[--self->n_copies];
	}
	if (self->waits && wait_is_over()) {
		self->waits = 0;
		make_ready(self->waiter);
	}
}

void sim_copy_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar)
{
	uint32_t n;

	sim_bar_arrive(bar, bytes);
	memset(stage, 0xa5, bytes);
	copy_add((struct copy){.dst = stage, .src = src, .bytes = bytes, .bar = bar});
	self->counts.copies_in++;
	n = under_way(0);
	self->counts.most_in = n > self->counts.most_in ? n : self->counts.most_in;
	sim_yield();
}

void sim_copy_out(void *dst, const void *stage, uint32_t bytes)
{
	uint32_t n;

	memset(dst, 0x5a, bytes);
	copy_add((struct copy){.out = 1, .dst = dst, .src = stage, .bytes = bytes, .group = self->group});
	self->counts.copies_out++;
	n = under_way(1);
	self->counts.most_out = n > self->counts.most_out ? n : self->counts.most_out;
	sim_yield();
}

void sim_copy_commit(void) { self->group++; }

void sim_copy_wait(uint32_t n, int landed)
{
	sim_yield();
	self->wait_group = self->group - n;
	self->wait_landed = landed;
	if (wait_is_over())
		return;
	self->waits = 1;
	self->waiter = self->now;
	wait_here();
}

void sim_landed(const void *p, uint64_t bytes)
{
	for (uint32_t i = 0; i < self->n_copies; i++) {
		const struct copy *c = &self->copies[i];

		if (c->out && c->dst < (const uint8_t *)p + bytes && (const uint8_t *)p < c->dst + c->bytes)
			never("a command is given back whose data has not landed");
	}
}

void sim_asked(void) { self->asked_at = self->counts.copies_in; }

void sim_answered(void)
{
	uint32_t behind = (uint32_t)(self->counts.copies_in - self->asked_at);

	self->counts.verified++;
	self->counts.most_behind = behind > self->counts.most_behind ? behind : self->counts.most_behind;
}

/* ---- kernels ---- */

void sim_use(const struct sim_opts *o)
{
	opts = *o;
	launches = 0;
	memset(&total, 0, sizeof(total));
}

void sim_counted(struct sim_counts *out) { *out = total; }

static void add(uint64_t *to, uint64_t n) { __atomic_fetch_add(to, n, __ATOMIC_RELAXED); }

static void most(uint32_t *of, uint32_t n)
{
	if (n > __atomic_load_n(of, __ATOMIC_RELAXED))
		__atomic_store_n(of, n, __ATOMIC_RELAXED);
}

static void count_all(void)
{
	const struct sim_counts *c = &self->counts;

	add(&total.kernels, 1);
	add(&total.switches, c->switches);
	add(&total.copies_in, c->copies_in);
	add(&total.copies_out, c->copies_out);
	add(&total.verified, c->verified);
	most(&total.most_in, c->most_in);
	most(&total.most_out, c->most_out);
	most(&total.most_behind, c->most_behind);
}

static int class_of(uint32_t i) { return i == 0 ? LOOP : i == 32 ? COPIER : SUMMERS; }

static void thread_begin(uint32_t i)
{
	struct thread *t = &self->threads[i];

	t->index.x = i;
	t->class = class_of(i);
	getcontext(&t->context);
	t->context.uc_stack.ss_sp = self->stacks + (size_t)i * STACK_BYTES;
	t->context.uc_stack.ss_size = STACK_BYTES;
	t->context.uc_link = NULL;
	makecontext(&t->context, begin, 0);
	make_ready(i);
}

static void block_run(const struct io_params *p, uint32_t index, uint32_t n)
{
	self->params = p;
	self->kernel = opts.small ? sim_io_small_kernel : sim_io_kernel;
	self->index.x = index;
	self->grid.x = n;
	self->size.x = opts.small ? IO_SMALL_THREADS : IO_THREADS;
	self->slow_class = draw(CLASSES + 1); /* or none */
	self->copy_chance = 1u << draw(10);
	self->land_chance = 1u << draw(8);
	for (uint32_t i = 0; i < self->size.x; i++)
		thread_begin(i);
	self->now = pick();
	self->home.uc_stack.ss_size = 0;
	switch_to(&self->home, &self->threads[self->now].context, 0);
	if (self->n_copies)
		never("the kernel ended with bulk copies under way");
}

static void block_down(void *memory)
{
#if defined(__SANITIZE_ADDRESS__)
	__asan_unpoison_memory_region(self->stacks, (size_t)SIM_THREADS_MAX * STACK_BYTES); /* its next owner's */
#endif
	munmap(self->stacks, (size_t)SIM_THREADS_MAX * STACK_BYTES);
	free(self->dynamic);
	free(memory);
	self = NULL;
}

static void block_up(uint64_t launch)
{
	self = calloc(1, sizeof(*self));
	if (!self)
		abort();
	self->dynamic = aligned_alloc(128, DYNAMIC_BYTES);
	self->stacks = mmap(NULL, (size_t)SIM_THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!self->dynamic || self->stacks == MAP_FAILED)
		abort();
	memset(self->dynamic, 0xee, DYNAMIC_BYTES); /* a GPU clears nothing either */
	self->random = opts.seed * 1000003 + launch;
}

void sim_kernel(struct dev_block *const *blocks, uint32_t n, uint32_t sq_first, uint32_t count, uint32_t *stop)
{
	uint64_t launch = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
	struct io_exit exits[IO_BLOCKS_MAX];
	struct io_params p = {.sq_first = sq_first, .count = count, .exits = exits, .stop = stop};

	memset(exits, 0, sizeof(exits));
	p.launch = (uint32_t)launch;
	for (uint32_t i = 0; i < n; i++)
		p.blocks[i] = blocks[i];
	for (uint32_t i = 0; i < n; i++) {
		block_up(launch * IO_BLOCKS_MAX + i);
		p.n_stages = opts.stages ? opts.stages : IO_STAGES_MIN + draw(IO_STAGES_MAX - IO_STAGES_MIN + 1);
		p.loads = opts.loads ? opts.loads : 1 + draw(IO_STAGES_MAX);
		p.stores = opts.stores ? opts.stores : 1 + draw(IO_STORES_MAX);
		p.near = !opts.small && io_near_bytes(count);
		block_run(&p, i, n);
		count_all();
		if (exits[i].over != p.launch)
			never("the kernel did not say its end");
		blocks[i]->exit_rc = exits[i].rc;
		blocks[i]->first_open = exits[i].first_open;
		block_down(self);
	}
}

#endif
