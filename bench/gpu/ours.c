/* ours.c - Tutti through its public calls: one kernel for all layers, or one a layer. */
#include "bench/gpu/gpu.h"

static struct lab_plan plan;

static int open(struct lab *b, char *why, size_t why_bytes)
{
	(void)b;
	(void)why;
	(void)why_bytes;
	return 0;
}

static void close(struct lab *b) { (void)b; }

static void prepare(struct lab *b, size_t n) { lab_plan(b, b->r.lane[0], n, &plan); }

static void cue_resident(struct lab *b, size_t n)
{
	(void)b;
	(void)n;
	need(tutti_retrieve(plan.p), "retrieve");
}

static void cue_layers(struct lab *b, size_t n)
{
	(void)b;
	(void)n;
	for (uint32_t l = 0; l < LAYERS; l++)
		need(tutti_retrieve_layer(plan.p, l), "retrieve");
}

static void wait(struct lab *b, uint32_t layer, cudaStream_t compute)
{
	(void)b;
	need(tutti_wait_layer_stream(plan.p, layer, compute), "stream wait");
}

static void end(struct lab *b) { lab_plan_end(b, &plan); }

static double store(struct lab *b, size_t n, uint64_t *salt)
{
	double s = lab_store(b, n);

	*salt = b->salt;
	return s;
}

const struct system ours_resident = {.name = "Tutti, resident kernel",
                                     .label = "Tutti",
                                     .open = open,
                                     .close = close,
                                     .prepare = prepare,
                                     .cue = cue_resident,
                                     .wait = wait,
                                     .end = end,
                                     .store = store};
const struct system ours_per_layer = {.name = "Tutti, a kernel per layer",
                                      .label = "Tutti, per layer",
                                      .open = open,
                                      .close = close,
                                      .prepare = prepare,
                                      .cue = cue_layers,
                                      .wait = wait,
                                      .end = end};
