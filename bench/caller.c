/*
 * caller.c - what the engine's own thread pays: CPU time of one call, by the blocks in the plan; and what an idle lane
 * costs.
 *
 * The null controller answers, so that nothing but our own work is timed. All layers share their memory: nobody looks.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define LAYERS 32
#define BLOCKS_MAX 16384
#define ROUNDS 25
#define SIZES 6

static const size_t sizes[SIZES] = {16, 64, 256, 1024, 4096, 16384};

/* More than the last level of cache that one core can hold of it. */
#define COLD_BYTES (64u << 20)

enum what { RETRIEVE_LAYER, STORE_LAYER, RETRIEVE_ALL, WAIT_LAYER, WAKE, WHATS };

struct calls {
	struct bench_series us[WHATS][SIZES]; /* medians of a round's layers */
};

static int less(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t
    clock_ns; /* CPU time that reading the clock twice takes: a system call each, a fifth of what is timed */

static double median_us(uint64_t *ns, size_t n)
{
	qsort(ns, n, sizeof(*ns), less);
	return (double)(ns[n / 2] > clock_ns ? ns[n / 2] - clock_ns : 0) / 1e3;
}

static void measure_clock(void)
{
	uint64_t ns[LAYERS];

	for (int i = 0; i < LAYERS; i++) {
		uint64_t t = bench_thread_cpu_ns();

		ns[i] = bench_thread_cpu_ns() - t;
	}
	qsort(ns, LAYERS, sizeof(*ns), less);
	clock_ns = ns[LAYERS / 2];
}

/*
 * An engine comes to the call from other work. Without this a small plan would find warm caches and a large one, whose
 * opening has just walked megabytes, cold ones.
 */
static void cool(void)
{
	static volatile uint8_t *sink;
	static uint8_t *cold;

	if (!cold)
		cold = calloc(1, COLD_BYTES);
	for (size_t i = 0; cold && i < COLD_BYTES; i += 64)
		cold[i]++;
	sink = cold;
	(void)sink;
}

/*
 * A thread that does nothing but sleep as an executor's does: waking it costs what the kernel asks for any wake. It is
 * woken where a call would have been made, with caches as cold.
 */
static struct sleeper {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint64_t asked, seen;
	int stop;
} sleeper = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static void *sleeping(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&sleeper.lock);
	while (!sleeper.stop) {
		while (sleeper.seen == sleeper.asked && !sleeper.stop)
			pthread_cond_wait(&sleeper.more, &sleeper.lock);
		sleeper.seen = sleeper.asked;
	}
	pthread_mutex_unlock(&sleeper.lock);
	return NULL;
}

/* CPU time of the call that wakes it. */
static uint64_t wake_ns(int stop)
{
	uint64_t t = bench_thread_cpu_ns(), seen = 0;

	pthread_mutex_lock(&sleeper.lock);
	sleeper.asked++;
	sleeper.stop = stop;
	pthread_mutex_unlock(&sleeper.lock);
	pthread_cond_broadcast(&sleeper.more);
	t = bench_thread_cpu_ns() - t;
	for (int i = 0; i < 1000 && seen != sleeper.asked && !stop; i++) { /* it has slept again by the next layer */
		sched_yield();
		pthread_mutex_lock(&sleeper.lock);
		seen = sleeper.seen;
		pthread_mutex_unlock(&sleeper.lock);
	}
	return t;
}

static struct tutti_plan *plan(struct bench_rig *r, const struct tutti_lease *lease, size_t n)
{
	struct tutti_plan *p;
	size_t bytes;

	bench_need(tutti_plan_blob(r->ns, lease, 0, n, r->blob, r->blob_bytes, &bytes), "plan");
	bench_need(tutti_plan_open(r->lane, r->blob, bytes, r->order, n, &p), "plan");
	return p;
}

static void finish(struct bench_rig *r, struct tutti_plan *p, const struct tutti_lease *lease)
{
	size_t bytes;

	bench_need(tutti_plan_finish(p, bench_now_ns() + BENCH_STEP_NS, r->blob, r->blob_bytes, &bytes), "finish");
	bench_need(tutti_complete(r->ns, r->blob, bytes, NULL), "complete");
	bench_need(tutti_release(r->ns, lease), "release");
}

static void store_round(struct bench_rig *r, const struct tutti_key *keys, size_t n, struct bench_series *us)
{
	uint64_t ns[LAYERS];
	struct tutti_lease hold;
	size_t first, count;
	struct tutti_plan *p;

	bench_need(tutti_reserve(r->ns, NULL, keys, n, BENCH_LEASE_NS, &first, &count, &hold), "reserve");
	p = plan(r, &hold, count);
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint64_t t = bench_thread_cpu_ns();

		bench_need(tutti_store_layer(p, l), "store");
		ns[l] = bench_thread_cpu_ns() - t;
	}
	bench_add(us, median_us(ns, LAYERS));
	finish(r, p, &hold);
}

/*
 * An engine calls once a layer and computes in between; here the wait for the layer before is what lies between. Every
 * second layer the sleeper is woken where the call is timed otherwise.
 */
static void retrieve_layers(struct tutti_plan *p, int size, struct calls *c)
{
	uint64_t ns[LAYERS], waits[LAYERS], wakes[LAYERS];
	size_t n = 0;

	for (uint32_t l = 0; l < LAYERS; l++) {
		uint64_t t;

		if (l % 2)
			wakes[n - 1] = wake_ns(0);
		t = bench_thread_cpu_ns();
		bench_need(tutti_retrieve_layer(p, l), "retrieve");
		if (l % 2 == 0)
			ns[n++] = bench_thread_cpu_ns() - t;
		t = bench_thread_cpu_ns();
		bench_need(tutti_wait_layer(p, l, bench_now_ns() + BENCH_STEP_NS), "wait");
		waits[l] = bench_thread_cpu_ns() - t;
	}
	bench_add(&c->us[RETRIEVE_LAYER][size], median_us(ns, n));
	bench_add(&c->us[WAKE][size], median_us(wakes, n));
	bench_add(&c->us[WAIT_LAYER][size], median_us(waits, LAYERS));
}

static void retrieve_round(struct bench_rig *r, const struct tutti_key *keys, size_t n, int size, struct calls *c)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint64_t t;
	size_t hit;

	bench_need(tutti_lookup(r->ns, keys, n, BENCH_LEASE_NS, &hit, &lease), "lookup");
	p = plan(r, &lease, hit);
	retrieve_layers(p, size, c);
	finish(r, p, &lease);
	bench_need(tutti_lookup(r->ns, keys, n, BENCH_LEASE_NS, &hit, &lease), "lookup");
	p = plan(r, &lease, hit);
	cool();
	t = bench_thread_cpu_ns();
	bench_need(tutti_retrieve(p), "retrieve");
	t = bench_thread_cpu_ns() - t;
	bench_add(&c->us[RETRIEVE_ALL][size], (double)(t - clock_ns) / 1e3 / LAYERS);
	finish(r, p, &lease);
}

static double least_of(const struct bench_series us[SIZES])
{
	double least = bench_median(&us[0]);

	for (int i = 1; i < SIZES; i++)
		least = bench_median(&us[i]) < least ? bench_median(&us[i]) : least;
	return least;
}

/*
 * wake (may be NULL): what waking a sleeper cost in turns with the calls. It costs more the colder the kernel's own
 * data is, whoever is woken, so that much growth is not the call's: "flat" is judged without it.
 */
static void call_rows(const char *name, const struct bench_series us[SIZES], const struct bench_series *wake,
                      int target)
{
	struct bench_row value = {.unit = "us", .target = 5, .sense = target ? BENCH_AT_MOST : BENCH_NO_TARGET};
	struct bench_row flat = {.unit = "x", .target = 1.2, .sense = target ? BENCH_AT_MOST : BENCH_NO_TARGET};
	double lowest = least_of(us), highest = 0, most = lowest;
	int at = 0, n = 0;

	for (int i = 0; i < SIZES; i++) {
		double m = bench_median(&us[i]), apart = m;

		n += snprintf(value.note + n, sizeof(value.note) - (size_t)n, "%s%zu: %.2f", i ? ", " : "blocks ",
		              sizes[i], m);
		at = m > highest ? i : at;
		highest = m > highest ? m : highest;
		if (wake)
			apart -= bench_median(&wake[i]) - least_of(wake);
		most = apart > most ? apart : most;
	}
	snprintf(value.name, sizeof(value.name), "%s, caller's CPU, largest of all sizes", name);
	value.ceiling = wake ? bench_median(&wake[at]) : 0;
	bench_row_of_series(&value, &us[at]);
	snprintf(flat.name, sizeof(flat.name), "%s, largest by least of all sizes", name);
	/* The clock's cost is in both again: without it a call of 0.1 us would have a ratio of noise by noise. */
	flat.value = (most + (double)clock_ns / 1e3) / (lowest + (double)clock_ns / 1e3);
	snprintf(flat.note, sizeof(flat.note), "the clock's %.2f us in both", (double)clock_ns / 1e3);
	if (wake)
		snprintf(flat.note, sizeof(flat.note), "without the growth of any thread's wake; with it %.2f x",
		         (highest + (double)clock_ns / 1e3) / (lowest + (double)clock_ns / 1e3));
	bench_row_add(&flat);
}

static void calls(struct bench_rig *r)
{
	struct tutti_key *keys = malloc(BLOCKS_MAX * sizeof(*keys));
	struct calls c;

	memset(&c, 0, sizeof(c));
	measure_clock();
	if (pthread_create(&sleeper.thread, NULL, sleeping, NULL))
		bench_need(-ENOMEM, "a thread");
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < SIZES; i++) {
			bench_keys(r, (uint64_t)(round * SIZES + i), sizes[i], keys);
			store_round(r, keys, sizes[i], &c.us[STORE_LAYER][i]);
			retrieve_round(r, keys, sizes[i], i, &c);
		}
	wake_ns(1);
	pthread_join(sleeper.thread, NULL);
	call_rows("retrieve_layer", c.us[RETRIEVE_LAYER], c.us[WAKE], 1);
	call_rows("wake of a sleeping thread, in turns with it", c.us[WAKE], NULL, 0);
	call_rows("store_layer", c.us[STORE_LAYER], NULL, 1);
	call_rows("retrieve of a whole plan, a layer", c.us[RETRIEVE_ALL], NULL, 1);
	call_rows("wait_layer", c.us[WAIT_LAYER], NULL, 0);
	free(keys);
}

/* ---- idle ---- */

struct tasks {
	int n;
	long tid[256];
	uint64_t cpu_ns, switches;
	int kernel_n; /* io_uring's own workers: threads of the process, but not ours */
	uint64_t kernel_cpu_ns, kernel_switches;
};

/* The kernel keeps the last worker of a ring, and that one looks around every five seconds. */
static int is_kernels(long tid)
{
	char path[64], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%ld/comm", tid);
	f = fopen(path, "r");
	if (f && !fgets(name, sizeof(name), f))
		name[0] = 0;
	if (f)
		fclose(f);
	return !strncmp(name, "iou-", 4);
}

static void task_read(long tid, struct tasks *t)
{
	int kernels = is_kernels(tid);
	uint64_t *cpu_ns = kernels ? &t->kernel_cpu_ns : &t->cpu_ns;
	uint64_t *switches = kernels ? &t->kernel_switches : &t->switches;
	char path[64], line[128];
	unsigned long long v;
	FILE *f;

	t->kernel_n += kernels;
	snprintf(path, sizeof(path), "/proc/self/task/%ld/schedstat", tid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%llu", &v) == 1)
		*cpu_ns += v;
	if (f)
		fclose(f);
	snprintf(path, sizeof(path), "/proc/self/task/%ld/status", tid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "voluntary_ctxt_switches: %llu", &v) == 1 ||
		    sscanf(line, "nonvoluntary_ctxt_switches: %llu", &v) == 1)
			*switches += v;
	if (f)
		fclose(f);
}

/* Threads of this process that are not in `without`. */
static void tasks_read(struct tasks *t, const struct tasks *without)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	memset(t, 0, sizeof(*t));
	while (d && (e = readdir(d))) {
		long tid = atol(e->d_name);
		int known = tid == 0;

		for (int i = 0; without && i < without->n; i++)
			known |= without->tid[i] == tid;
		if (known || t->n == 256)
			continue;
		t->tid[t->n++] = tid;
		task_read(tid, t);
	}
	if (d)
		closedir(d);
}

static void idle(void)
{
	char path[512];
	struct bench_shape s = {
	    .path = path, .pool_bytes = 256u << 20, .layers = 4, .objects = 2, .object_bytes = 32 << 10};
	struct bench_row cpu = {.name = "idle lane: CPU in 5 s", .unit = "us", .sense = BENCH_AT_MOST};
	struct bench_row switches = {.name = "idle lane: context switches in 5 s", .unit = "", .sense = BENCH_AT_MOST};
	struct tasks before, start, end;
	struct tutti_key keys[64];
	struct bench_cost c;
	struct bench_rig r;
	size_t n;

	snprintf(path, sizeof(path), "%s/bench.pool", bench_opts.dir);
	s.blocks = 64;
	s.no_lane = 1;
	bench_rig_open(&r, &s);
	tasks_read(&before, NULL); /* the store's threads are not the lane's */
	r.lane = bench_lane(&r, TUTTI_CTRL_AUTO);
	bench_keys(&r, 1, 64, keys);
	bench_fill(&r, keys, 64);
	bench_store(&r, r.lane, keys, 64, &n, &c);
	bench_retrieve(&r, keys, 64, &n, &c);
	sleep(6); /* spinning and syncing end; so does the kernel's io_uring worker, if it made one: after 5 s */
	tasks_read(&start, &before);
	sleep(5); /* the time measured */
	tasks_read(&end, &before);
	cpu.value = (double)(end.cpu_ns - start.cpu_ns) / 1e3;
	switches.value = (double)(end.switches - start.switches);
	snprintf(
	    cpu.note, sizeof(cpu.note),
	         "%d threads, six seconds after their last I/O; %d more of io_uring in the kernel: %.0f us, %llu switches",
	    end.n - end.kernel_n, end.kernel_n, (double)(end.kernel_cpu_ns - start.kernel_cpu_ns) / 1e3,
	    (unsigned long long)(end.kernel_switches - start.kernel_switches));
	bench_row_add(&cpu);
	bench_row_add(&switches);
	bench_rig_close(&r);
	unlink(path);
}

void bench_caller(void)
{
	char path[512];
	struct bench_shape s = {
	    .path = path, .layers = LAYERS, .objects = 1, .object_bytes = 4096, .blocks = BLOCKS_MAX};
	struct bench_rig r;

	snprintf(path, sizeof(path), "%s/bench.pool", bench_opts.dir);
	s.pool_bytes = 8ull << 30;
	s.controller = TUTTI_CTRL_NULL;
	s.prewrite = TUTTI_PREWRITE_NONE;
	s.one_layer = 1;
	bench_rig_open(&r, &s);
	calls(&r);
	bench_rig_close(&r);
	unlink(path);
	idle();
}
