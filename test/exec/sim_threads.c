/*
 * sim_threads.c - sim.h for ThreadSanitizer, which does not follow fibers: each thread of the block is one of the
 * system's, words are atomic with the order that the PTX gives them, mbarriers are read-modify-writes, and a bulk copy
 * happens at its issue. So what the movers hand over without an edge is a race that is told. One kernel at a time.
 */
#include "exec/sim.h"

#if defined(__SANITIZE_THREAD__)

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dev/plan.h"

#define DYNAMIC_BYTES (256u << 10)
#define MEETINGS 16u
#define NAP_NS 20000

struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t all;
	uint32_t there, round;
	uint64_t given[2][32];
};

static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;
static struct sim_opts opts;
static struct sim_counts total;
static struct meeting meetings[MEETINGS];
static const struct io_params *params;
static struct sim_index index_now, size_now, grid_now;
static uint8_t *dynamic;
static _Thread_local uint32_t me, shuffles;

struct sim_index sim_thread_index(void) { return (struct sim_index){me}; }
struct sim_index sim_block_index(void) { return index_now; }
struct sim_index sim_block_size(void) { return size_now; }
struct sim_index sim_grid_size(void) { return grid_now; }
uint8_t *sim_dynamic(void) { return dynamic; }

void sim_yield(void) {}

static void nap(void)
{
	const struct timespec t = {.tv_nsec = NAP_NS};

	nanosleep(&t, NULL); /* what is waited for wakes nobody */
}

/* ---- meetings ---- */

void sim_meet(uint32_t number, uint32_t n)
{
	struct meeting *m = &meetings[number];
	uint32_t round;

	pthread_mutex_lock(&m->lock);
	round = m->round;
	if (++m->there == n) {
		m->there = 0;
		m->round++;
		pthread_cond_broadcast(&m->all);
	}
	while (m->round == round)
		pthread_cond_wait(&m->all, &m->lock);
	pthread_mutex_unlock(&m->lock);
}

void sim_meet_warp(void) { sim_meet(2 + me / 32, 32); }

uint64_t sim_shuffle(uint64_t v, uint32_t by, int down)
{
	struct meeting *m = &meetings[2 + me / 32];
	uint32_t lane = me % 32, turn = shuffles++ & 1u, from = down ? lane + by : lane ^ by;

	m->given[turn][lane] = v;
	sim_meet_warp();
	return from < 32 ? m->given[turn][from] : v;
}

/* ---- mbarriers: phase 1 bit, expected and pending 8 bits each, bytes 32 ---- */

#define PHASE (1ull << 63)
#define PENDING(b) ((b) >> 32 & 0xff)
#define EXPECTED(b) ((b) >> 40 & 0xff)

void sim_bar_init(uint64_t *bar, uint32_t n) { *bar = (uint64_t)n << 40 | (uint64_t)n << 32; }

static void bar_change(uint64_t *bar, uint64_t arrives, uint64_t bytes_more, uint64_t bytes_less)
{
	uint64_t old = __atomic_load_n(bar, __ATOMIC_RELAXED), new;

	do {
		new = old - (arrives << 32) + bytes_more - bytes_less;
		if (!PENDING(new) && !(uint32_t) new)
			new = (new ^ PHASE) | EXPECTED(new) << 32;
	} while (!__atomic_compare_exchange_n(bar, &old, new, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

void sim_bar_arrive(uint64_t *bar, uint32_t expect_bytes) { bar_change(bar, 1, expect_bytes, 0); }

int sim_bar_passed(const uint64_t *bar, uint32_t parity)
{
	return (__atomic_load_n(bar, __ATOMIC_ACQUIRE) & PHASE ? 1u : 0u) != parity;
}

void sim_bar_wait(const uint64_t *bar, uint32_t parity)
{
	while (!sim_bar_passed(bar, parity))
		nap();
}

/* ---- bulk copies ---- */

void sim_copy_in(void *stage, const void *src, uint32_t bytes, uint64_t *bar)
{
	sim_bar_arrive(bar, bytes);
	memcpy(stage, src, bytes);
	bar_change(bar, 0, 0, bytes);
	total.copies_in++;
}

void sim_copy_out(void *dst, const void *stage, uint32_t bytes)
{
	memcpy(dst, stage, bytes);
	total.copies_out++;
}

void sim_copy_commit(void) {}
void sim_copy_wait(uint32_t n, int landed) { (void)n, (void)landed; }
void sim_landed(const void *p, uint64_t bytes) { (void)p, (void)bytes; }
void sim_asked(void) {}
void sim_answered(void) { total.verified++; }

/* ---- kernels ---- */

void sim_use(const struct sim_opts *o)
{
	opts = *o;
	memset(&total, 0, sizeof(total));
}

void sim_counted(struct sim_counts *out) { *out = total; }

static void *thread_run(void *arg)
{
	me = (uint32_t)(uintptr_t)arg;
	shuffles = 0;
	if (opts.small)
		sim_io_small_kernel(*params);
	else
		sim_io_kernel(*params);
	return NULL;
}

static void block_run(void)
{
	pthread_t threads[SIM_THREADS_MAX];

	memset(dynamic, 0xee, DYNAMIC_BYTES); /* a GPU clears nothing either */
	for (uintptr_t i = 0; i < size_now.x; i++)
		if (pthread_create(&threads[i], NULL, thread_run, (void *)i))
			abort();
	for (uint32_t i = 0; i < size_now.x; i++)
		pthread_join(threads[i], NULL);
}

void sim_kernel(struct dev_block *const *blocks, uint32_t n, uint32_t sq_first, uint32_t count, uint32_t *stop)
{
	struct io_exit exits[IO_BLOCKS_MAX];
	struct io_params p = {.sq_first = sq_first, .count = count, .exits = exits, .stop = stop, .launch = 1};

	pthread_mutex_lock(&one_kernel);
	for (uint32_t i = 0; i < MEETINGS && !dynamic; i++) {
		pthread_mutex_init(&meetings[i].lock, NULL);
		pthread_cond_init(&meetings[i].all, NULL);
	}
	dynamic = dynamic ? dynamic : aligned_alloc(128, DYNAMIC_BYTES);
	memset(exits, 0, sizeof(exits));
	p.n_stages = opts.stages ? opts.stages : 3;
	p.loads = opts.loads ? opts.loads : 2;
	p.stores = opts.stores ? opts.stores : 2;
	p.near = !opts.small && io_near_bytes(count);
	params = &p;
	grid_now.x = n;
	size_now.x = opts.small ? IO_SMALL_THREADS : IO_THREADS;
	for (uint32_t i = 0; i < n; i++)
		p.blocks[i] = blocks[i];
	for (uint32_t i = 0; i < n; i++) {
		index_now.x = i;
		block_run();
		blocks[i]->exit_rc = exits[i].rc;
		blocks[i]->first_open = exits[i].first_open;
	}
	total.kernels++;
	pthread_mutex_unlock(&one_kernel);
}

#endif
