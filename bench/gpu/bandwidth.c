/*
 * bandwidth.c - GB/s into HBM and out of it: the copy engine's ceiling, all systems by length of the context, and SMs.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"

#define CEILING_BYTES (1ull << 30)
#define SYSTEMS_MAX 8
#define KV_BYTES 60000000000ull
#define SHORT_TOKENS 32768u

double copy_in_gbs, copy_out_gbs;

void figure_ceiling(void)
{
	void *h, *d;

	need_cuda(cudaHostAlloc(&h, CEILING_BYTES, 0), "pinned memory");
	need_cuda(cudaMalloc(&d, CEILING_BYTES), "GPU memory");
	memset(h, 1, CEILING_BYTES);
	for (int out = 0; out < 2; out++) {
		struct row r = {.unit = "GB/s"};

		for (int i = -1; i < opt.rounds; i++) {
			uint64_t t0 = now_ns();

			need_cuda(cudaMemcpy(out ? h : d, out ? d : h, CEILING_BYTES, cudaMemcpyDefault), "copy");
			if (i >= 0)
				series_add(&r.values, (double)CEILING_BYTES / (double)(now_ns() - t0));
		}
		snprintf(r.name, sizeof(r.name), "copy engine, %s",
		         out ? "HBM to pinned memory" : "pinned memory to HBM");
		row_put(&r);
		*(out ? &copy_out_gbs : &copy_in_gbs) = series_median(&r.values);
	}
	cudaFreeHost(h);
	cudaFree(d);
}

/* ---- one turn of a system ---- */

struct turn {
	const struct system *sys;
	int here;
	struct series in, out, first_ms, cpu_ms, tail_ms;
};

static double retrieve(struct lab *b, struct turn *t, size_t n, cudaStream_t s, uint64_t salt)
{
	uint64_t t0, t1, t2, wrong;
	double cpu;

	lab_wipe(b);
	t->sys->prepare(b, n);
	cpu = cpu_process_s();
	t0 = now_ns();
	t->sys->cue(b, n);
	t->sys->wait(b, 0, s);
	need_cuda(cudaStreamSynchronize(s), "layer 0");
	t1 = now_ns();
	for (uint32_t l = 1; l < LAYERS; l++)
		t->sys->wait(b, l, s);
	need_cuda(cudaStreamSynchronize(s), "layers");
	t2 = now_ns();
	cpu = cpu_process_s() - cpu;
	t->sys->end(b);
	wrong = lab_wrong(b, n, salt);
	if (wrong) {
		printf("FAILED %s, %zu blocks: %llu words differ\n", t->sys->name, n, (unsigned long long)wrong);
		exit(1);
	}
	series_add(&t->first_ms, (double)(t1 - t0) * 1e-6);
	series_add(&t->cpu_ms, cpu * 1e3 / ((double)lab_bytes(b, n) * 1e-9));
	return (double)lab_bytes(b, n) / (double)(t2 - t0);
}

static void turns_open(struct lab *b, const struct system *const *systems, struct turn *turns, int *n_turns,
                       const char *where)
{
	char why[200], name[200];

	for (*n_turns = 0; systems[*n_turns]; (*n_turns)++) {
		turns[*n_turns] = (struct turn){.sys = systems[*n_turns], .here = 1};
		if (systems[*n_turns]->open(b, why, sizeof(why))) {
			snprintf(name, sizeof(name), "%s, %s", systems[*n_turns]->name, where);
			row_skip(name, why);
			turns[*n_turns].here = 0;
		} else {
			systems[*n_turns]->close(b);
		}
	}
}

/* Threads and staging areas of one system at a time: none holds memory or SMs while another is timed. */
static void retrieves(struct lab *b, struct turn *turns, int n_turns, size_t n, cudaStream_t s)
{
	char why[200];

	for (int i = 0; i < n_turns; i++) {
		if (!turns[i].here)
			continue;
		need(turns[i].sys->open(b, why, sizeof(why)), turns[i].sys->name);
		series_add(&turns[i].in, retrieve(b, &turns[i], n, s, b->salt));
		turns[i].sys->close(b);
	}
}

static void stores(struct lab *b, struct turn *turns, int n_turns, size_t n, cudaStream_t s)
{
	char why[200];

	for (int i = 0; i < n_turns; i++) {
		const struct system *sys = turns[i].sys, *reader = sys == &ours_resident ? sys : &copy_batch;
		struct turn back = {.sys = reader};
		uint64_t salt;

		if (!turns[i].here || !sys->store)
			continue;
		need(sys->open(b, why, sizeof(why)), sys->name);
		series_add(&turns[i].out, (double)lab_bytes(b, n) / sys->store(b, n, &salt) * 1e-9);
		if (sys == &ours_resident)
			series_add(&turns[i].tail_ms, b->tail_s * 1e3);
		sys->close(b);
		need(reader->open(b, why, sizeof(why)), reader->name);
		retrieve(b, &back, n, s, salt); /* compares */
		reader->close(b);
	}
}

static void put(const struct turn *t, const struct series *v, const char *what, const char *unit, const char *where,
                const char *figure, size_t tokens, double ceiling, double target, const char *note)
{
	struct row r = {.unit = unit, .values = *v, .ceiling = ceiling, .figure = figure, .x = (double)tokens};

	if (!v->n)
		return;
	snprintf(r.name, sizeof(r.name), "%s, %s, %zuK tokens, %s", what, where, tokens / 1024, t->sys->name);
	snprintf(r.note, sizeof(r.note), "%s", note);
	r.system = t->sys->label;
	r.sense = target > 0 ? AT_LEAST : NO_TARGET;
	r.target = target;
	row_put(&r);
}

static void context(struct lab *b, const struct system *const *all, size_t tokens, const char *where,
                    const char *figure, int judged, cudaStream_t s)
{
	size_t n = tokens / TOKENS;
	struct turn turns[SYSTEMS_MAX];
	int n_turns, memory = b->medium[0] != NULL;
	char in[40], out[40];

	snprintf(in, sizeof(in), "%s retrieve", figure);
	snprintf(out, sizeof(out), "%s store", figure);
	turns_open(b, all, turns, &n_turns, where);
	for (int i = 0; i < (opt.rounds + 2) / 3; i++)
		stores(b, turns, n_turns, n, s);
	lab_store(b, b->n); /* the whole chain again, ours */
	for (int i = 0; i < opt.rounds; i++)
		retrieves(b, turns, n_turns, n, s);
	for (int i = 0; i < n_turns; i++) {
		int ours = judged && turns[i].sys == &ours_resident;
		const char *note = turns[i].sys == &copy_cpu_issue && memory
		                       ? "no checksums; bytes between the medium and HBM by the copy engine"
		                       : "";

		put(&turns[i], &turns[i].in, "retrieve", "GB/s", where, in, tokens, memory ? copy_in_gbs : 0,
		    ours ? 0.88 : 0, note);
		put(&turns[i], &turns[i].out, "store", "GB/s", where, out, tokens, memory ? copy_out_gbs : 0,
		    ours ? 0.85 : 0, note);
		put(&turns[i], &turns[i].tail_ms, "store: headers and commit, after the last layer's bytes", "ms",
		    where, "store tail", tokens, 0, 0, "");
		put(&turns[i], &turns[i].first_ms, "first layer", "ms", where, "first layer", tokens, 0, 0, "");
		put(&turns[i], &turns[i].cpu_ms, "CPU a GB", "ms", where, "CPU a GB", tokens, 0, 0, "");
	}
}

/* ---- by SMs and size of objects ---- */

static void by_sms(uint32_t tokens, uint32_t sms, size_t n, cudaStream_t s)
{
	struct lab_shape shape = {.dir = opt.memory,
	                          .controller = TUTTI_CTRL_MODEL,
	                          .tokens = tokens,
	                          .n = n,
	                          .devices = 4,
	                          .sms = sms,
	                          .no_medium = 1};
	struct turn t = {.sys = &ours_resident};
	struct row r = {.unit = "GB/s", .ceiling = copy_in_gbs, .figure = "SMs", .x = sms};
	struct lab b;

	lab_open(&b, &shape);
	for (int i = -1; i < opt.rounds; i++) {
		double v = retrieve(&b, &t, n, s, b.salt);

		if (i >= 0)
			series_add(&r.values, v);
	}
	snprintf(r.name, sizeof(r.name), "retrieve, model in place, %u KiB objects, %u SMs", 2 * tokens, sms);
	r.system = tokens == TOKENS ? "32 KiB" : "128 KiB";
	if (sms == opt.sms) {
		r.sense = AT_LEAST;
		r.target = tokens == TOKENS ? 0.88 : 0.90;
	}
	row_put(&r);
	lab_close(&b);
}

static const struct system *const systems[] = {&ours_resident, &ours_per_layer, &copy_single,   &copy_batch,
                                           &copy_cufile,   &copy_dram,      &copy_cpu_issue, NULL};

/* What a lane takes of HBM, driver and all, with a plan of the longest context open. */
static void hbm_used(struct lab *b)
{
	struct row r = {.unit = "MiB"}, own = {.unit = "MiB", .sense = AT_MOST, .target = 32 * 1e6 / 1048576};
	struct tutti_lane_info info;
	size_t before, after, all;
	struct lab_plan p;

	need_cuda(cudaMemGetInfo(&before, &all), "memory");
	lab_plan(b, b->r.lane[0], b->n, &p);
	need_cuda(cudaMemGetInfo(&after, &all), "memory");
	need(tutti_plan_finish(p.p, now_ns() + WAIT_NS, NULL, 0, NULL), "finish"); /* nothing was read */
	need(tutti_release(b->r.ns, &p.lease), "release");
	series_add(&r.values, (double)(b->hbm_bytes + before - after) / 1048576.0);
	snprintf(r.name, sizeof(r.name), "HBM beyond %.0f GB of KV, a plan of %zuK tokens open",
	         (double)b->r.memory_bytes * 1e-9, b->n * TOKENS / 1024);
	snprintf(r.note, sizeof(r.note),
	         "as the driver counts it: its own needs for streams, kernels and SM domains too");
	row_put(&r);
	need(tutti_lane_get_info(b->r.lane[0], &info), "info");
	series_add(&own.values, (double)info.accel_bytes / 1048576.0);
	snprintf(own.name, sizeof(own.name), "HBM that the lane itself holds beyond the KV");
	row_put(&own);
}

/* A KV memory as large as an engine's, where the GPU has room. */
static size_t kv_blocks(void)
{
	size_t room, all;

	need_cuda(cudaMemGetInfo(&room, &all), "memory");
	return room > KV_BYTES + KV_BYTES / 4 ? (size_t)(KV_BYTES / (uint64_t)(TOKENS * TOKEN_BYTES)) : 0;
}

void figure_bandwidth(void)
{
	struct lab_shape memory = {.dir = opt.memory,
	                           .controller = TUTTI_CTRL_MODEL,
	                           .tokens = TOKENS,
	                           .n = opt.tokens / TOKENS,
	                           .kv_blocks = kv_blocks(),
	                           .devices = 4,
	                           .sms = opt.sms};
	size_t short_tokens = opt.tokens < SHORT_TOKENS ? opt.tokens : SHORT_TOKENS;
	cudaStream_t s;
	struct lab b;

	need_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	for (uint32_t sms = 1; sms <= 8; sms *= 2)
		by_sms(TOKENS, sms, short_tokens / TOKENS, s);
	by_sms(4 * TOKENS, opt.sms, short_tokens / (4 * TOKENS), s);
	lab_open(&b, &memory);
	hbm_used(&b);
	for (size_t tokens = opt.tokens; tokens >= 8192; tokens /= 4)
		context(&b, systems, tokens, "model in place", "9", tokens == opt.tokens, s);
	lab_close(&b);
	cudaStreamDestroy(s);
}

void figure_disk(void)
{
	struct lab_shape disk = {.dir = opt.disk,
	                         .controller = TUTTI_CTRL_VIRT,
	                         .tokens = TOKENS,
	                         .n = 8192 / TOKENS,
	                         .devices = 1,
	                         .sms = opt.sms};
	cudaStream_t s;
	struct lab b;

	if (!opt.disk) {
		row_skip("retrieve and store, virt on the disk", "no --disk folder");
		return;
	}
	need_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	lab_open(&b, &disk);
	context(&b, systems, 8192, "virt on the disk", "9 disk", 0, s);
	lab_close(&b);
	cudaStreamDestroy(s);
}
