/*
 * price.c - what bounds the rows that miss their aim: matrix products with some SMs simply absent, and with the same
 * bytes moved by the copy engine; what SMs can pull and push at all; CUDA's own calls, as bare as can be.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"

#define PRODUCTS 60
#define DECODED 600
#define PIECE (1u << 20)
#define PIECES 1024u
#define WARPS 16u
#define CALLS 32
#define CALL_TURNS 15

/* ---- the SMs' clock: a GPU at its power limit slows itself, and all below with it ---- */

static struct {
	void *lib, *device;
	int (*clock)(void *device, int type, unsigned *mhz);
} nvml;

static void nvml_find(void)
{
	int (*init)(void), (*handle)(unsigned, void **);

	nvml.lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!nvml.lib)
		return;
	*(void **)&init = dlsym(nvml.lib, "nvmlInit_v2");
	*(void **)&handle = dlsym(nvml.lib, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.clock = dlsym(nvml.lib, "nvmlDeviceGetClockInfo");
	if (!init || !handle || !nvml.clock || init() || handle(0, &nvml.device))
		nvml.clock = NULL;
}

/* MHz; 0: nobody says. */
static double sm_clock(void)
{
	unsigned mhz = 0;

	return nvml.clock && !nvml.clock(nvml.device, 1, &mhz) ? mhz : 0; /* 1: NVML_CLOCK_SM */
}

/* ---- products ---- */

struct beside {
	struct series ms, mhz;
};

/* Copies by the copy engine, as fast as it goes, all the while; NULL: none. */
struct copies {
	cudaStream_t s;
	void *h, *d;
};

static void note_clock(void *mhz) { *(double *)mhz = sm_clock(); }

/* A product's, or (decode) a layer's of decoding. */
static double timed_ms(cudaStream_t s, int decode, double *mhz)
{
	if (!decode)
		return compute_products_ms(s, PRODUCTS, note_clock, mhz);
	*mhz = 0;
	return compute_decode_ms(s, DECODED);
}

static void timed(cudaStream_t s, const struct copies *c, int decode, struct beside *out)
{
	double mhz, ms;

	for (int i = 0; c && i < 12; i++) /* 12 GiB: longer than the products take */
		need_cuda(cudaMemcpyAsync(c->d, c->h, (size_t)PIECE * PIECES, cudaMemcpyHostToDevice, c->s), "copies");
	ms = timed_ms(s, decode, &mhz);
	need_cuda(cudaDeviceSynchronize(), "copies");
	series_add(&out->ms, ms);
	series_add(&out->mhz, mhz);
}

typedef CUresult (*node_fn)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
typedef CUresult (*name_fn)(const char **, CUfunction);

/* The kernel that a product on this stream is, from a graph of it: the library chooses by the stream's SMs. */
static void kernel_name(cudaStream_t s, char *out, size_t bytes)
{
	node_fn params = (node_fn)driver_fn("cuGraphKernelNodeGetParams");
	name_fn name_of = (name_fn)driver_fn("cuFuncGetName");
	CUDA_KERNEL_NODE_PARAMS k;
	cudaGraph_t graph;
	cudaGraphNode_t nodes[8];
	size_t n = 8;
	const char *name = NULL;
	int at = 0;

	*out = 0;
	need_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
	compute_product(s);
	need_cuda(cudaStreamEndCapture(s, &graph), "capture");
	need_cuda(cudaGraphGetNodes(graph, nodes, &n), "nodes");
	for (size_t i = 0; params && name_of && i < n && i < 8; i++) {
		if (params((CUgraphNode)nodes[i], &k) || name_of(&name, k.func))
			continue;
		at += snprintf(out + at, bytes - (size_t)at, "; %.60s, grid %u x %u x %u", name, k.gridDimX, k.gridDimY,
		               k.gridDimZ);
		if ((size_t)at >= bytes)
			break;
	}
	cudaGraphDestroy(graph);
}

/* In turns with the whole GPU's: percent, of pairs. */
static void slower(const char *what, cudaStream_t all, cudaStream_t s, const struct copies *c, int decode)
{
	struct beside whole = {.ms = {.n = 0}}, now = {.ms = {.n = 0}};
	struct row r = {.unit = "%"};
	char kernel[160];

	kernel[0] = 0;
	if (!decode)
		kernel_name(s, kernel, sizeof(kernel));
	for (int i = 0; i < (decode ? 1 : 3) * opt.rounds && i < SERIES_MAX; i++) {
		timed(all, NULL, decode, &whole);
		timed(s, c, decode, &now);
		series_add(&r.values, 100 * (now.ms.v[i] / whole.ms.v[i] - 1));
	}
	snprintf(r.name, sizeof(r.name), "%s (%s) slower: %s", decode ? "decoding" : "products", compute_what(), what);
	snprintf(r.note, sizeof(r.note), "%.3f ms alone at %.0f MHz, %.3f ms so at %.0f MHz%s",
	         series_median(&whole.ms), series_median(&whole.mhz), series_median(&now.ms), series_median(&now.mhz),
	         kernel);
	row_put(&r);
}

static void products(const struct copies *c, int decode)
{
	cudaStream_t all, rest;
	char what[80];
	uint32_t sms;

	need_cuda(cudaStreamCreateWithFlags(&all, cudaStreamNonBlocking), "a stream");
	slower("nothing beside them (what turns differ by)", all, all, NULL, decode);
	slower("the copy engine at its rate beside them", all, all, c, decode);
	for (uint32_t absent = 2; absent <= 8; absent *= 2) {
		if (tutti_compute_stream(absent, 0, (void **)&rest, &sms)) {
			row_skip("products on fewer SMs", tutti_error_message());
			break;
		}
		snprintf(what, sizeof(what), "on %u SMs, nothing beside them", sms);
		slower(what, all, rest, NULL, decode);
		snprintf(what, sizeof(what), "on %u SMs, the copy engine beside them", sms);
		if (absent == 4)
			slower(what, all, rest, c, decode);
		cudaStreamDestroy(rest);
	}
	cudaStreamDestroy(all);
}

/* ---- what SMs move, with no queue, controller or checksum ---- */

static void moved(const char *what, int warps, const struct copies *c, int out, cudaStream_t busy)
{
	struct row r = {.unit = "GB/s", .ceiling = out ? copy_out_gbs : copy_in_gbs};
	uint64_t bytes = warps ? (uint64_t)PIECE * PIECES / 8 : (uint64_t)PIECE * PIECES;
	void *to = out ? c->h : c->d, *from = out ? c->d : c->h;

	for (int i = -1; i < opt.rounds; i++) {
		uint64_t t0;

		for (int k = 0; busy && k < (int)(0.02 / compute_product_s()); k++)
			compute_product(busy);
		t0 = now_ns();
		kernel_pull(to, from, bytes, warps ? WARPS : 1024, warps ? 32 : 256, c->s);
		need_cuda(cudaStreamSynchronize(c->s), "SMs that move");
		if (i >= 0)
			series_add(&r.values, (double)bytes / (double)(now_ns() - t0));
		need_cuda(cudaDeviceSynchronize(), "products");
	}
	snprintf(r.name, sizeof(r.name), "SMs' own loads and stores, %s, %s",
	         out ? "HBM to pinned memory" : "pinned memory to HBM", what);
	row_put(&r);
}

/* ---- CUDA's calls ---- */

/* Walks over memory, as lookup and plan do before the engine's thread cues. */
static void cool(uint8_t *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		at[i]++;
}

static void calls(const char *what, int launches, int waits, int cold)
{
	struct row r = {.unit = "us"};
	size_t bytes = 64u << 20;
	uint8_t *memory = calloc(1, bytes);
	cudaStream_t a, b;
	uint32_t *word;

	need_cuda(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), "a stream");
	need_cuda(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), "a stream");
	need_cuda(cudaHostAlloc((void **)&word, 64, cudaHostAllocMapped), "a word");
	*word = 1;
	for (int i = -2; i < CALL_TURNS; i++) {
		double t0;

		if (cold)
			cool(memory, bytes);
		t0 = cpu_thread_s();
		for (int k = 0; k < CALLS; k++) {
			if (k < launches)
				kernel_nothing(a);
			if (k < waits)
				stream_wait(b, word, 1);
		}
		if (i >= 0)
			series_add(&r.values, (cpu_thread_s() - t0) * 1e6);
		need_cuda(cudaDeviceSynchronize(), "calls");
	}
	snprintf(r.name, sizeof(r.name), "CUDA's calls alone, %s caches: %s", cold ? "cold" : "warm", what);
	snprintf(r.note, sizeof(r.note), "%d launches of a kernel with as many parameters, %d stream waits", launches,
	         waits);
	row_put(&r);
	cudaStreamDestroy(a);
	cudaStreamDestroy(b);
	cudaFreeHost(word);
	free(memory);
}

void figure_price(void)
{
	struct copies c;
	cudaStream_t all;

	need_cuda(cudaStreamCreateWithFlags(&c.s, cudaStreamNonBlocking), "a stream");
	need_cuda(cudaStreamCreateWithFlags(&all, cudaStreamNonBlocking), "a stream");
	need_cuda(cudaHostAlloc(&c.h, (size_t)PIECE * PIECES, cudaHostAllocMapped), "pinned memory");
	need_cuda(cudaMalloc(&c.d, (size_t)PIECE * PIECES), "GPU memory");
	memset(c.h, 1, (size_t)PIECE * PIECES);
	nvml_find();
	for (int cold = 0; cold < 2; cold++) {
		calls("32 layers, cue and wait", CALLS, CALLS, cold);
		calls("a request, resident", 1, CALLS, cold);
	}
	moved("all SMs", 0, &c, 0, NULL);
	moved("all SMs", 0, &c, 1, NULL);
	moved("16 warps of 32 registers", 1, &c, 0, NULL);
	for (size_t i = 0; i < COMPUTE_SHAPES; i++) {
		compute_open(compute_columns[i]);
		if (!i)
			moved("16 warps of 32 registers, products on all SMs", 1, &c, 0, all);
		products(&c, 0);
		if (!i && compute_decodes())
			products(&c, 1);
		compute_close();
	}
	cudaFreeHost(c.h);
	cudaFree(c.d);
	cudaStreamDestroy(c.s);
	cudaStreamDestroy(all);
}
