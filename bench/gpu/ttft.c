/*
 * ttft.c - time to the first token: the layers of a model (compute.c), each of which waits for its part of the prefix.
 * By length of the prefix, by hit ratio of 64K tokens, what loading adds to a prefix that is in HBM already, and where
 * loading takes longer than computing.
 */
#include <stdlib.h>

#include "bench/gpu/gpu.h"

#define QUESTION 2048.0
#define CONTEXT_MAX 65536.0
#define SYSTEMS_MAX 8

static cudaStream_t compute;
static double whole; /* tokens of the context, CONTEXT_MAX if the run allows it */

/* Seconds from the request to the last layer's end. sys NULL: the prefix is in HBM. */
static double first_token(struct lab *b, const struct system *sys, double cached, double fresh)
{
	size_t n = (size_t)cached / TOKENS;
	double layer_s = compute_seconds(fresh, cached) / LAYERS, s;
	uint64_t t0;

	if (sys)
		lab_wipe(b);
	t0 = now_ns();
	if (sys) {
		sys->prepare(b, n);
		sys->cue(b, n);
	}
	for (uint32_t l = 0; l < LAYERS; l++) {
		if (sys)
			sys->wait(b, l, compute);
		compute_layer(compute, layer_s);
	}
	need_cuda(cudaStreamSynchronize(compute), "layers");
	s = (double)(now_ns() - t0) * 1e-9;
	if (sys) {
		uint64_t wrong;

		sys->end(b);
		wrong = lab_wrong(b, n, b->salt);
		if (wrong) {
			printf("FAILED %s: %llu words differ\n", sys->name, (unsigned long long)wrong);
			exit(1);
		}
	}
	return s;
}

struct point {
	struct series hbm, of[SYSTEMS_MAX];
};

static void measure(struct lab *b, const struct system *const *systems, double cached, double fresh, struct point *p)
{
	char why[200];

	*p = (struct point){.hbm = {.n = 0}};
	first_token(b, NULL, cached, fresh);
	for (int i = 0; i < (opt.rounds + 1) / 2; i++) {
		series_add(&p->hbm, first_token(b, NULL, cached, fresh));
		for (int k = 0; systems[k]; k++) {
			need(systems[k]->open(b, why, sizeof(why)), systems[k]->name);
			series_add(&p->of[k], first_token(b, systems[k], cached, fresh));
			systems[k]->close(b);
		}
	}
}

static void put(const char *what, const char *label, const char *figure, double x, const struct series *v,
                double ceiling, const char *note)
{
	struct row r = {
	    .unit = "s", .values = *v, .ceiling = ceiling, .figure = figure, .system = label, .x = x};

	snprintf(r.name, sizeof(r.name), "%s, %s", what, label);
	snprintf(r.note, sizeof(r.note), "%s", note);
	row_put(&r);
}

static void computed(const char *what, const char *label, const char *figure, double x, double seconds,
                     const char *note)
{
	struct series s = {.n = 1, .v = {seconds}};

	put(what, label, figure, x, &s, 0, note);
}

static void by_prefix(struct lab *b, const struct system *const *systems)
{
	for (double prefix = 8192; prefix <= whole; prefix *= 2) {
		struct point p;
		char what[80];

		snprintf(what, sizeof(what), "TTFT, %.0fK tokens of prefix, 2K new", prefix / 1024);
		measure(b, systems, prefix, QUESTION, &p);
		put(what, "in HBM already", "11", prefix, &p.hbm, 0, "");
		for (int k = 0; systems[k]; k++)
			put(what, systems[k]->label, "11", prefix, &p.of[k], series_median(&p.hbm), "");
		computed(what, "(e) recompute", "11", prefix, compute_seconds(prefix + QUESTION, 0), "from compute.c");
	}
}

static void added(double hit, const char *label, const struct series *v, const struct series *hbm, int judged)
{
	struct row r = {.unit = "%", .sense = judged ? AT_MOST : NO_TARGET, .target = 3, .figure = "13 added",
	                .system = label, .x = hit};

	for (int i = 0; i < v->n; i++)
		series_add(&r.values, 100 * (v->v[i] / series_median(hbm) - 1));
	snprintf(r.name, sizeof(r.name), "added to TTFT, %.0fK tokens, %.2f %% hit, %s", whole / 1024, 100 * hit,
	         label);
	row_put(&r);
}

static void by_hit(struct lab *b, const struct system *const *systems)
{
	static const double hits[] = {0.75, 0.9375, 0.96875, 0.984375, 0.9921875};

	for (size_t i = 0; i < sizeof(hits) / sizeof(*hits); i++) {
		double cached = hits[i] * whole;
		struct point p;
		char what[80];

		snprintf(what, sizeof(what), "TTFT, %.0fK tokens, %.2f %% hit", whole / 1024, 100 * hits[i]);
		measure(b, systems, cached, whole - cached, &p);
		put(what, "in HBM already", "13", hits[i], &p.hbm, 0, "");
		for (int k = 0; systems[k]; k++) {
			int ours = systems[k] == &ours_resident;

			put(what, systems[k]->label, "13", hits[i], &p.of[k], series_median(&p.hbm), "");
			added(hits[i], systems[k]->label, &p.of[k], &p.hbm, ours && i < 2);
		}
		computed(what, "bound of the link", "13", hits[i],
		         cached * TOKEN_BYTES / (copy_in_gbs * 1e9) > compute_seconds(whole - cached, cached)
		             ? cached * TOKEN_BYTES / (copy_in_gbs * 1e9)
		             : compute_seconds(whole - cached, cached),
		         "the larger of compute and bytes over the copy engine's rate");
	}
}

/* The hit ratio from which on loading at this rate takes longer than computing the rest. */
static double crossover(double gbs)
{
	double low = 0, high = 1;

	for (int i = 0; i < 60; i++) {
		double hit = (low + high) / 2, cached = hit * whole;

		if (cached * TOKEN_BYTES / (gbs * 1e9) > compute_seconds(whole - cached, cached))
			high = hit;
		else
			low = hit;
	}
	return 100 * low;
}

static void crossovers(struct lab *b)
{
	double cached = 0.984375 * whole;
	struct series gbs = {.n = 0};
	struct row r = {.unit = "%", .figure = "crossover", .system = "Tutti"}, d = {.unit = "points"};

	for (int i = 0; i < opt.rounds; i++) {
		uint64_t t0;

		ours_resident.prepare(b, (size_t)cached / TOKENS);
		t0 = now_ns();
		ours_resident.cue(b, (size_t)cached / TOKENS);
		for (uint32_t l = 0; l < LAYERS; l++)
			ours_resident.wait(b, l, compute);
		need_cuda(cudaStreamSynchronize(compute), "layers");
		series_add(&gbs, cached * TOKEN_BYTES / (double)(now_ns() - t0));
		ours_resident.end(b);
	}
	for (int i = 0; i < gbs.n; i++) {
		series_add(&r.values, crossover(gbs.v[i]));
		series_add(&d.values, crossover(copy_in_gbs) - crossover(gbs.v[i]));
	}
	snprintf(r.name, sizeof(r.name), "crossover at %.0fK tokens: loading takes longer than computing",
	         whole / 1024);
	r.ceiling = crossover(copy_in_gbs);
	row_put(&r);
	snprintf(d.name, sizeof(d.name), "crossover below the link's limit");
	d.sense = AT_MOST;
	d.target = 0.5;
	row_put(&d);
}

void figure_ttft(void)
{
	static const struct system *const systems[] = {&ours_resident, &ours_per_layer, &copy_batch,
	                                               &copy_dram,     &copy_cpu_issue, NULL};
	double memory_tokens = (double)opt.tokens < CONTEXT_MAX ? (double)opt.tokens : CONTEXT_MAX;
	struct lab_shape memory = {.dir = opt.memory,
	                           .controller = TUTTI_CTRL_MODEL,
	                           .tokens = TOKENS,
	                           .n = (size_t)memory_tokens / TOKENS,
	                           .devices = 4,
	                           .sms = opt.sms};
	struct lab b;

	whole = memory_tokens;
	need_cuda(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking), "a stream");
	compute_open(compute_columns[0]);
	lab_open(&b, &memory);
	by_prefix(&b, systems);
	by_hit(&b, systems);
	crossovers(&b);
	lab_close(&b);
	compute_close();
	cudaStreamDestroy(compute);
}
