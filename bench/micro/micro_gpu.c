/*
 * micro_gpu.c - what the GPU path does: GB/s of a retrieve and a store through queues, controller and rings, beside the
 * copy engine in the same run; start of a kernel; CPU time of the calls by number of blocks. Every byte is compared.
 *
 *     micro_gpu [--blocks N] [--runs N] [--dir DIR] [--disk DIR] [--json FILE]
 *
 * The shape is Llama-3-8B's in bfloat16: 32 layers, K and V of 16 tokens 32 KiB each. The pool of the model controller
 * lies in DIR (memory: /dev/shm), is pinned and read in place, without limits of its timing; that of virt in --disk.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/core/rig.h"

#if !defined(TUTTI_CUDA)

int main(void)
{
	fprintf(stderr, "skipped: this build has no CUDA (make cuda)\n");
	return 0;
}

#else

#include <cuda_runtime_api.h>
#include <sys/resource.h>
#include <time.h>

#define RUNS_MAX 32
#define LAYERS 32u
#define LEASE_NS 300000000000ull
#define WAIT_NS 60000000000ull

static struct {
	size_t blocks;
	int runs;
	const char *dir, *disk;
	uint32_t only;
	FILE *json;
	int rows;
} opt = {.blocks = 2048, .runs = 5, .dir = "/dev/shm"};

static void die(const char *what)
{
	printf("FAILED %s: %s\n", what, tutti_error_message());
	exit(1);
}

static void must(int rc, const char *what)
{
	if (rc)
		die(what);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A row of gpu.json, and a line. Written as it comes. */
static void row(const char *name, double *v, int n, const char *unit)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	printf("%-58s %9.2f %-5s (%.2f .. %.2f, %d runs)\n", name, v[n / 2], unit, v[0], v[n - 1], n);
	fflush(stdout);
	if (!opt.json)
		return;
	fprintf(opt.json,
	        "%s{\"name\": \"%s\", \"value\": %.4f, \"unit\": \"%s\", \"min\": %.4f, \"max\": %.4f, \"runs\": %d}",
	        opt.rows++ ? ",\n" : "[\n", name, v[n / 2], unit, v[0], v[n - 1], n);
	fflush(opt.json);
}

static double cpu_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the ceiling ---- */

static void copy_engine(void)
{
	const uint64_t bytes = 1ull << 30;
	void *h, *d;

	if (cudaHostAlloc(&h, bytes, 0) != cudaSuccess || cudaMalloc(&d, bytes) != cudaSuccess)
		die("pinned memory");
	memset(h, 1, bytes);
	for (int out = 0; out < 2; out++) {
		double v[RUNS_MAX];

		for (int i = -1; i < opt.runs; i++) {
			uint64_t t0 = rig_now();

			cudaMemcpy(out ? h : d, out ? d : h, bytes, cudaMemcpyDefault);
			if (i >= 0)
				v[i] = (double)bytes / (double)(rig_now() - t0);
		}
		row(out ? "copy engine, HBM to pinned" : "copy engine, pinned to HBM", v, opt.runs, "GB/s");
	}
	cudaFreeHost(h);
	cudaFree(d);
}

/* ---- a pool with one chain in it ---- */

struct lab {
	struct rig r;
	struct tutti_key *keys;
	uint64_t *from, *to; /* block numbers: stored from, retrieved into */
	size_t n;
	uint64_t bytes; /* of the chain */
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	return (z ^ (z >> 27)) * 0x94D049BB133111EBull;
}

/* Numbers everywhere: all words of the KV memory differ. */
static void fill(struct lab *b)
{
	const uint64_t chunk = 64ull << 20;
	uint64_t *h = malloc(chunk);

	for (uint64_t at = 0; at < b->r.memory_bytes; at += chunk) {
		uint64_t n = b->r.memory_bytes - at < chunk ? b->r.memory_bytes - at : chunk;

		for (uint64_t i = 0; i < n / 8; i++)
			h[i] = mix(at / 8 + i + 1);
		cudaMemcpy(b->r.accel[0] + at, h, n, cudaMemcpyDefault);
	}
	free(h);
}

static void lab_begin(struct lab *b, const char *dir, enum tutti_controller ctrl, uint32_t tokens, uint32_t sms,
                      size_t n)
{
	uint64_t object = 2048ull * tokens;
	struct rig_shape s = {.accel = rig_gpu(),
	                      .layers = LAYERS,
	                      .blocks = 2 * n,
	                      .outer_count = 2,
	                      .segment_bytes = object,
	                      .order = "LoB",
	                      .block_tokens = tokens,
	                      .sms = sms,
	                      .controller = ctrl,
	                      .bounce_bytes = 64u << 20,
	                      .deadline_ns = WAIT_NS};

	memset(b, 0, sizeof(*b));
	b->n = n;
	b->bytes = n * LAYERS * 2 * object;
	s.pool_bytes = b->bytes + b->bytes / 8 + (256u << 20);
	rig_dir(dir);
	rig_up(&b->r, &s);
	b->keys = malloc(n * sizeof(*b->keys));
	b->from = malloc(n * sizeof(*b->from));
	b->to = malloc(n * sizeof(*b->to));
	rig_keys(&b->r, 1, n, b->keys);
	for (size_t i = 0; i < n; i++) {
		b->from[i] = i;
		b->to[i] = n + i;
	}
	for (size_t i = n; i-- > 1;) { /* scattered */
		size_t k = (size_t)(mix(i) % (i + 1));
		uint64_t t = b->to[i];

		b->to[i] = b->to[k];
		b->to[k] = t;
	}
	fill(b);
}

static void lab_end(struct lab *b)
{
	rig_down(&b->r);
	free(b->keys);
	free(b->from);
	free(b->to);
}

static struct tutti_plan *plan_open(struct lab *b, enum tutti_op op, size_t n, struct tutti_lease *lease)
{
	size_t bytes = tutti_plan_blob_bytes(n), first, count;
	void *blob = malloc(bytes);
	struct tutti_plan *p;

	if (op == TUTTI_RETRIEVE)
		must(tutti_lookup(b->r.ns, b->keys, n, LEASE_NS, &count, lease), "lookup");
	else
		must(tutti_reserve(b->r.ns, NULL, b->keys, n, LEASE_NS, &first, &count, lease), "reserve");
	if (count != n)
		die("the chain is not whole");
	must(tutti_plan_blob(b->r.ns, lease, 0, n, blob, bytes, &bytes), "plan blob");
	must(tutti_plan_open(b->r.lane[0], blob, bytes, op == TUTTI_RETRIEVE ? b->to : b->from, n, &p), "plan");
	free(blob);
	return p;
}

static void plan_end(struct lab *b, struct tutti_plan *p, size_t n, const struct tutti_lease *lease)
{
	size_t bytes = tutti_completion_blob_bytes(n), bad;
	void *done = malloc(bytes);

	must(tutti_plan_finish(p, rig_now() + WAIT_NS, done, bytes, &bytes), "finish");
	must(tutti_complete(b->r.ns, done, bytes, &bad), "complete");
	if (bad)
		die("blocks were lost");
	must(tutti_release(b->r.ns, lease), "release");
	free(done);
}

/* Of a chain that is not there: what was stored before goes first. */
static double store(struct lab *b)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint64_t t0, t1;

	must(tutti_ns_clear(b->r.ns), "clear");
	p = plan_open(b, TUTTI_STORE, b->n, &lease);
	t0 = rig_now();
	for (uint32_t l = 0; l < LAYERS; l++)
		must(tutti_store_layer(p, l), "store");
	for (uint32_t l = 0; l < LAYERS; l++)
		must(tutti_wait_layer(p, l, rig_now() + WAIT_NS), "store");
	t1 = rig_now();
	plan_end(b, p, b->n, &lease);
	return (double)b->bytes / (double)(t1 - t0);
}

static double retrieve(struct lab *b, double *first_ms, double *cpu_ms)
{
	struct tutti_lease lease;
	struct tutti_plan *p = plan_open(b, TUTTI_RETRIEVE, b->n, &lease);
	double cpu = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
	uint64_t t0 = rig_now(), t1;

	must(tutti_retrieve(p), "retrieve");
	must(tutti_wait_layer(p, 0, rig_now() + WAIT_NS), "layer 0");
	*first_ms = (double)(rig_now() - t0) * 1e-6;
	for (uint32_t l = 1; l < LAYERS; l++)
		must(tutti_wait_layer(p, l, rig_now() + WAIT_NS), "layer");
	t1 = rig_now();
	*cpu_ms = (cpu_s(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e3;
	plan_end(b, p, b->n, &lease);
	return (double)b->bytes / (double)(t1 - t0);
}

/* Every byte of what was retrieved. */
static void compare(struct lab *b)
{
	const struct tutti_kv_layout *kv = &b->r.kv[0];
	uint64_t row_bytes = b->n * kv->segment_bytes;
	uint8_t *h = malloc(2 * row_bytes);

	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t o = 0; o < 2; o++) {
			uint64_t at = (uint64_t)((uint8_t *)kv->layer_base[l] - b->r.memory[0]) + o * kv->outer_stride;

			cudaMemcpy(h, b->r.accel[0] + at, 2 * row_bytes, cudaMemcpyDefault);
			for (size_t i = 0; i < b->n; i++)
				if (memcmp(h + b->from[i] * kv->segment_bytes, h + b->to[i] * kv->segment_bytes,
				           kv->segment_bytes)) {
					printf("FAILED layer %u, object %u, block %zu differs\n", l, o, i);
					exit(1);
				}
		}
	free(h);
}

static void bandwidth(const char *where, const char *dir, enum tutti_controller ctrl, uint32_t tokens, uint32_t sms,
                      size_t n)
{
	double v[RUNS_MAX], first[RUNS_MAX], cpu[RUNS_MAX], s[RUNS_MAX];
	struct tutti_lane_info info;
	char name[120];
	struct lab b;

	lab_begin(&b, dir, ctrl, tokens, sms, n);
	must(tutti_lane_get_info(b.r.lane[0], &info), "info");
	printf("# %s, %s, %s; %zu blocks of %u tokens, %.2f GB\n", where, info.controller, info.executor, n, tokens,
	       (double)b.bytes * 1e-9);
	for (int i = -1; i < opt.runs; i++) {
		double f, c, out = store(&b), x = retrieve(&b, &f, &c);

		if (i < 0)
			compare(&b);
		else {
			v[i] = x;
			s[i] = out;
			first[i] = f;
			cpu[i] = c / ((double)b.bytes * 1e-9);
		}
	}
	snprintf(name, sizeof(name), "retrieve, %s, %u KiB objects, %u SM", where, 2 * tokens, sms);
	row(name, v, opt.runs, "GB/s");
	snprintf(name, sizeof(name), "first layer, %s, %u KiB objects, %u SM", where, 2 * tokens, sms);
	row(name, first, opt.runs, "ms");
	snprintf(name, sizeof(name), "CPU of the process a GB, %s, %u KiB, %u SM", where, 2 * tokens, sms);
	row(name, cpu, opt.runs, "ms");
	snprintf(name, sizeof(name), "store, %s, %u KiB objects, %u SM", where, 2 * tokens, sms);
	row(name, s, opt.runs, "GB/s");
	lab_end(&b);
}

/* ---- what the calls cost ---- */

static void calls_of(struct lab *b, size_t n, int per_layer)
{
	double v[RUNS_MAX], plan[RUNS_MAX], cue[RUNS_MAX], wait[RUNS_MAX];
	cudaStream_t stream;
	char name[120];

	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	for (int i = -2; i < opt.runs; i++) {
		struct tutti_lease lease;
		double t0 = cpu_s(CLOCK_THREAD_CPUTIME_ID), t1, t2, cues = 0, waits = 0;
		struct tutti_plan *p = plan_open(b, TUTTI_RETRIEVE, n, &lease);

		t1 = cpu_s(CLOCK_THREAD_CPUTIME_ID);
		if (!per_layer)
			must(tutti_retrieve(p), "retrieve");
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint64_t w0 = rig_now(), w1;

			if (per_layer)
				must(tutti_retrieve_layer(p, l), "retrieve");
			w1 = rig_now();
			must(tutti_wait_layer_stream(p, l, stream), "stream wait");
			cues += (double)(w1 - w0);
			waits += (double)(rig_now() - w1);
		}
		t2 = cpu_s(CLOCK_THREAD_CPUTIME_ID);
		cudaStreamSynchronize(stream);
		plan_end(b, p, n, &lease);
		if (i >= 0) {
			v[i] = (t2 - t1) * 1e6 / (per_layer ? LAYERS : 1);
			plan[i] = (t1 - t0) * 1e6;
			cue[i] = cues * 1e-3 / LAYERS;
			wait[i] = waits * 1e-3 / LAYERS;
		}
	}
	snprintf(name, sizeof(name),
	         per_layer ? "CPU a layer, cue and stream wait, %zu blocks"
	                   : "CPU a request, resident: cue and 32 stream waits, %zu blocks",
	         n);
	row(name, v, opt.runs, "us");
	snprintf(name, sizeof(name), "of it the cue, by the clock, %zu blocks", n);
	if (per_layer)
		row(name, cue, opt.runs, "us");
	snprintf(name, sizeof(name), "of it the stream wait, by the clock, %zu blocks", n);
	if (per_layer)
		row(name, wait, opt.runs, "us");
	snprintf(name, sizeof(name), "CPU of lookup and plan, %zu blocks", n);
	if (!per_layer)
		row(name, plan, opt.runs, "us");
	cudaStreamDestroy(stream);
}

/* From the call to the host's seeing a layer of one block: launch, start, a header, a layer, the way back. */
static void latency(struct lab *b)
{
	double v[RUNS_MAX];

	for (int i = -2; i < opt.runs; i++) {
		struct tutti_lease lease;
		struct tutti_plan *p = plan_open(b, TUTTI_RETRIEVE, 1, &lease);
		uint64_t t0 = rig_now();

		must(tutti_retrieve_layer(p, 0), "retrieve");
		must(tutti_wait_layer(p, 0, t0 + WAIT_NS), "layer");
		if (i >= 0)
			v[i] = (double)(rig_now() - t0) * 1e-3;
		must(tutti_plan_finish(p, rig_now() + WAIT_NS, NULL, 0, NULL), "finish");
		must(tutti_release(b->r.ns, &lease), "release");
	}
	row("one block, one layer: call to host's wait over", v, opt.runs, "us");
}

static void calls(void)
{
	struct lab b;

	lab_begin(&b, opt.dir, TUTTI_CTRL_MODEL, 16, 2, opt.blocks);
	store(&b);
	latency(&b);
	for (size_t n = 16; n <= opt.blocks; n *= 4) {
		calls_of(&b, n, 0);
		calls_of(&b, n, 1);
	}
	lab_end(&b);
}

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--blocks"))
			opt.blocks = strtoull(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--runs"))
			opt.runs = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--dir"))
			opt.dir = argv[i + 1];
		else if (!strcmp(argv[i], "--disk"))
			opt.disk = argv[i + 1];
		else if (!strcmp(argv[i], "--only")) /* one bandwidth row, of so many SMs */
			opt.only = (uint32_t)atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--json"))
			opt.json = fopen(argv[i + 1], "we");
	}
	if (opt.runs < 1 || opt.runs > RUNS_MAX || !opt.blocks) {
		printf("micro_gpu: --runs 1 to %d, --blocks at least 1\n", RUNS_MAX);
		return 2;
	}
	if (!rig_gpu()) {
		fprintf(stderr, "skipped: no GPU\n");
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (opt.only) {
		bandwidth("model in place", opt.dir, TUTTI_CTRL_MODEL, 16, opt.only, opt.blocks);
		return 0;
	}
	copy_engine();
	calls();
	for (uint32_t sms = 1; sms <= 4; sms *= 2)
		bandwidth("model in place", opt.dir, TUTTI_CTRL_MODEL, 16, sms, opt.blocks);
	for (uint32_t sms = 2; sms <= 4; sms *= 2)
		bandwidth("model in place", opt.dir, TUTTI_CTRL_MODEL, 64, sms, opt.blocks / 4);
	if (opt.disk)
		bandwidth("virt on disk", opt.disk, TUTTI_CTRL_VIRT, 16, 2, opt.blocks / 4);
	if (opt.json) {
		fprintf(opt.json, "\n]\n");
		fclose(opt.json);
	}
	return 0;
}

#endif
