/* calls.c - what the engine's thread pays: CPU of a cue and a stream wait by number of blocks; SGL against PRP. */
#include "bench/gpu/gpu.h"

#define BLOCKS_MAX 16384u
#define RUNS 9

static void calls_of(struct lab *b, size_t n, int per_layer, cudaStream_t s)
{
	struct row r = {.unit = "us", .sense = AT_MOST, .target = per_layer ? 8 : 100, .figure = "CPU", .x = (double)n};
	struct row open = {.unit = "us", .figure = "CPU", .system = "lookup and plan", .x = (double)n};

	for (int i = -2; i < (n > 1024 ? RUNS / 2 : RUNS); i++) {
		double t0 = cpu_thread_s(), t1, t2;
		struct lab_plan p;

		lab_plan(b, b->r.lane[0], n, &p);
		t1 = cpu_thread_s();
		if (!per_layer)
			need(tutti_retrieve(p.p), "retrieve");
		for (uint32_t l = 0; l < LAYERS; l++) {
			if (per_layer)
				need(tutti_retrieve_layer(p.p, l), "retrieve");
			need(tutti_wait_layer_stream(p.p, l, s), "stream wait");
		}
		t2 = cpu_thread_s();
		need_cuda(cudaStreamSynchronize(s), "layers");
		lab_plan_end(b, &p);
		if (i < 0)
			continue;
		series_add(&r.values, (t2 - t1) * 1e6 / (per_layer ? LAYERS : 1));
		series_add(&open.values, (t1 - t0) * 1e6);
	}
	r.system = per_layer ? "a layer" : "a request, resident";
	snprintf(r.name, sizeof(r.name),
	         per_layer ? "CPU of a layer, cue and stream wait, %zu blocks"
	                   : "CPU of a request, resident: cue and 32 stream waits, %zu blocks",
	         n);
	row_put(&r);
	snprintf(open.name, sizeof(open.name), "CPU of lookup and plan, %zu blocks", n);
	if (!per_layer)
		row_put(&open);
}

/* One way of telling a command its memory, or the other. */
static void lists(int no_sgl, cudaStream_t s)
{
	struct lab_shape shape = {.dir = opt.memory,
	                          .controller = TUTTI_CTRL_MODEL,
	                          .tokens = TOKENS,
	                          .n = 1024,
	                          .devices = 4,
	                          .sms = opt.sms,
	                          .no_sgl = no_sgl,
	                          .no_medium = 1};
	struct row r = {.unit = "GB/s", .ceiling = copy_in_gbs, .figure = "10", .system = no_sgl ? "PRP" : "SGL"};
	struct tutti_lane_stats before, after;
	struct lab b;

	lab_open(&b, &shape);
	need(tutti_lane_stats(b.r.lane[0], &before), "stats");
	for (int i = -1; i < opt.rounds; i++) {
		struct lab_plan p;
		uint64_t t0;

		lab_plan(&b, b.r.lane[0], b.n, &p);
		t0 = now_ns();
		need(tutti_retrieve(p.p), "retrieve");
		need(tutti_wait_layer_stream(p.p, LAYERS - 1, s), "stream wait");
		need_cuda(cudaStreamSynchronize(s), "layers");
		if (i >= 0)
			series_add(&r.values, (double)lab_bytes(&b, b.n) / (double)(now_ns() - t0));
		lab_plan_end(&b, &p);
	}
	need(tutti_lane_stats(b.r.lane[0], &after), "stats");
	need(lab_wrong(&b, b.n, b.salt) ? -1 : 0, "bytes differ");
	snprintf(r.name, sizeof(r.name), "retrieve with %s, model in place, 32 KiB objects", r.system);
	snprintf(r.note, sizeof(r.note), "%.0f commands a GB; building and fetching lists only",
	         (double)(after.commands - before.commands) / ((double)(after.bytes_read - before.bytes_read) * 1e-9));
	row_put(&r);
	lab_close(&b);
}

void figure_calls(void)
{
	struct lab_shape shape = {.dir = opt.memory,
	                          .controller = TUTTI_CTRL_MODEL,
	                          .tokens = 2,
	                          .n = BLOCKS_MAX,
	                          .devices = 4,
	                          .sms = opt.sms,
	                          .no_medium = 1};
	cudaStream_t s;
	struct lab b;

	need_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	lab_open(&b, &shape);
	for (size_t n = 16; n <= BLOCKS_MAX; n *= 4) {
		calls_of(&b, n, 0, s);
		calls_of(&b, n, 1, s);
	}
	lab_close(&b);
	lists(0, s);
	lists(1, s);
	cudaStreamDestroy(s);
}
