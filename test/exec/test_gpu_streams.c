/*
 * test_gpu_streams.c - what the engine's streams and a lane on the GPU do for each other: layers that a stream waits
 * for, stores that wait for a stream, graphs between them, allocations beside them, streams in the compute domain; many
 * requests, several lanes, and nothing left behind. Skipped where there is no GPU or no CUDA in the build.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#if defined(TUTTI_CUDA)
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

#include "core/scratch.h"
#include "exec/gpu_lab.h"

#define N GPU_LAB_N
#define LAYERS 6u
#define SEGMENT 16384u
#define BLOCKS 64u
#define ROUNDS 3

#define CASES(X) \
	X(stream_waits_for_layers) \
	X(stores_wait_for_the_stream) \
	X(graphs_between_waits) \
	X(captures_are_left_alone) \
	X(compute_has_streams_of_its_own) \
	X(engine_allocates_meanwhile) \
	X(eight_requests_at_once) \
	X(two_lanes_at_once) \
	X(ten_thousand_retrieves) \
	X(lanes_leave_nothing)

#if !defined(TUTTI_CUDA)

#define SKIPPED(name) static void name(void) { gpu_lab_need(); }
CASES(SKIPPED)

#else

#define CUDA_OK(call) CHECK_EQ(call, cudaSuccess)

struct lab {
	struct rig r;
	struct tutti_key keys[N];
	uint64_t blocks[N];
	cudaStream_t stream;
};

static void lab_begin(struct lab *b, uint32_t ranks)
{
	struct rig_shape shape = {.layers = LAYERS,
	                          .blocks = BLOCKS,
	                          .outer_count = 2,
	                          .segment_bytes = SEGMENT,
	                          .order = "LoB",
	                          .ranks = ranks};
	size_t stored;

	gpu_lab_need();
	shape.accel = rig_gpu();
	rig_up(&b->r, &shape);
	rig_keys(&b->r, 1, N, b->keys);
	gpu_lab_scatter(b->blocks, BLOCKS, 1);
	CHECK_EQ(rig_store(&b->r, b->keys, N, b->blocks, &stored), 0);
	CHECK_EQ(stored, N);
	CUDA_OK(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
}

static void lab_end(struct lab *b)
{
	CUDA_OK(cudaStreamDestroy(b->stream));
	rig_down(&b->r);
}

static void all_right(struct lab *b, const uint64_t *blocks, const struct tutti_key *keys)
{
	for (size_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&b->r, 0, blocks[i], &keys[i]), 0);
}

/* What stands for a layer's compute: carries the layer away. */
static void layer_out(struct lab *b, uint32_t l)
{
	uint64_t at = (uint64_t)((uint8_t *)b->r.layer_base[0][l] - b->r.memory[0]);

	CUDA_OK(cudaMemcpyAsync(b->r.memory[0] + at, b->r.accel[0] + at, (uint64_t)BLOCKS * 2 * SEGMENT,
	                        cudaMemcpyDeviceToHost, b->stream));
}

static void stream_waits_for_layers(void)
{
	struct tutti_lease lease;
	struct lab b;

	lab_begin(&b, 1);
	for (int round = 0; round < ROUNDS; round++) {
		struct tutti_plan *p;

		rig_wipe(&b.r, 0);
		CHECK_EQ(tutti_lane_pace(b.r.lane[0], TUTTI_RETRIEVE, round & 1), 0);
		p = gpu_lab_plan(&b.r, TUTTI_RETRIEVE, b.keys, b.blocks, &lease);
		CHECK_EQ(tutti_retrieve(p), 0);
		for (uint32_t l = 0; l < LAYERS; l++) {
			CHECK_EQ(tutti_wait_layer_stream(p, l, b.stream), 0);
			layer_out(&b, l);
		}
		CUDA_OK(cudaStreamSynchronize(b.stream));
		all_right(&b, b.blocks, b.keys);
		CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
	}
	lab_end(&b);
}

static void CUDART_CB take_time(void *arg)
{
	const struct timespec nap = {.tv_nsec = 30000000};

	(void)arg;
	nanosleep(&nap, NULL); /* a compute that lasts */
}

/* The bytes arrive in the stream after the store was asked for. */
static void stores_wait_for_the_stream(void)
{
	struct tutti_key keys[N];
	struct tutti_lease resv;
	size_t hit, bad;
	struct lab b;

	lab_begin(&b, 1);
	for (int round = 0; round < ROUNDS; round++) {
		struct tutti_plan *p;

		rig_keys(&b.r, 100 + (uint64_t)round, N, keys);
		rig_wipe(&b.r, 0);
		for (size_t i = 0; i < N; i++)
			rig_fill(&b.r, 0, b.blocks[i], &keys[i]);
		CHECK_EQ(tutti_lane_pace(b.r.lane[0], TUTTI_STORE, round & 1), 0);
		p = gpu_lab_plan(&b.r, TUTTI_STORE, keys, b.blocks, &resv);
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint64_t at = (uint64_t)((uint8_t *)b.r.layer_base[0][l] - b.r.memory[0]);

			CUDA_OK(cudaLaunchHostFunc(b.stream, take_time, NULL));
			CUDA_OK(cudaMemcpyAsync(b.r.accel[0] + at, b.r.memory[0] + at, (uint64_t)BLOCKS * 2 * SEGMENT,
			                        cudaMemcpyHostToDevice, b.stream));
			CHECK_EQ(tutti_store_layer_stream(p, l, b.stream), 0);
		}
		CHECK_EQ(tutti_plan_poll(p), 0);
		CHECK_EQ(gpu_lab_end(&b.r, p, &resv), 0);
		rig_wipe(&b.r, 0);
		CHECK_EQ(rig_retrieve(&b.r, keys, N, b.blocks, 0, &hit, &bad), 0);
		CHECK_EQ(hit, N);
		CHECK_EQ(bad, 0);
		all_right(&b, b.blocks, keys);
	}
	lab_end(&b);
}

/* ---- graphs ---- */

/* Each layer's compute is a graph; the waits go between their launches, which are the same round by round. */
static void graphs_between_waits(void)
{
	cudaGraphExec_t exec[LAYERS];
	struct tutti_lease lease;
	struct lab b;

	lab_begin(&b, 1);
	for (uint32_t l = 0; l < LAYERS; l++) {
		cudaGraph_t graph;

		CUDA_OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeGlobal));
		layer_out(&b, l);
		CUDA_OK(cudaStreamEndCapture(b.stream, &graph));
		CUDA_OK(cudaGraphInstantiate(&exec[l], graph, 0));
		CUDA_OK(cudaGraphDestroy(graph));
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct tutti_plan *p;

		rig_wipe(&b.r, 0);
		p = gpu_lab_plan(&b.r, TUTTI_RETRIEVE, b.keys, b.blocks, &lease);
		CHECK_EQ(tutti_retrieve(p), 0);
		for (uint32_t l = 0; l < LAYERS; l++) {
			CHECK_EQ(tutti_wait_layer_stream(p, l, b.stream), 0);
			CUDA_OK(cudaGraphLaunch(exec[l], b.stream));
		}
		CUDA_OK(cudaStreamSynchronize(b.stream));
		all_right(&b, b.blocks, b.keys);
		CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
	}
	for (uint32_t l = 0; l < LAYERS; l++)
		CUDA_OK(cudaGraphExecDestroy(exec[l]));
	lab_end(&b);
}

/* What the driver would do with a wait inside a capture; told, not asserted. */
static void say_what_capture_does(cudaStream_t stream)
{
	typedef CUresult (*wait_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
	enum cudaDriverEntryPointQueryResult found;
	cudaGraph_t graph = NULL;
	uint32_t *word;
	wait_fn fn;
	size_t n = 0;
	int rc;

	CUDA_OK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&fn, CUDA_VERSION, cudaEnableDefault,
	                                         &found));
	CUDA_OK(cudaHostAlloc((void **)&word, 64, cudaHostAllocMapped));
	*word = 1;
	CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	rc = (int)fn(stream, (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ);
	if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph)
		cudaGraphGetNodes(graph, NULL, &n);
	cudaGetLastError();
	printf("# a memory operation in a capture: driver's answer %d, %zu nodes\n", rc, n);
	if (graph)
		cudaGraphDestroy(graph);
	CUDA_OK(cudaFreeHost(word));
}

/* Calls on a stream that is captured are refused and do no harm; everything else works beside a capture. */
static void captures_are_left_alone(void)
{
	struct tutti_lease lease, resv;
	struct tutti_key keys[N];
	struct tutti_plan *p, *s;
	cudaGraph_t graph;
	struct lab b;

	lab_begin(&b, 1);
	rig_keys(&b.r, 2, N, keys);
	rig_wipe(&b.r, 0);
	p = gpu_lab_plan(&b.r, TUTTI_RETRIEVE, b.keys, b.blocks, &lease);
	s = gpu_lab_plan(&b.r, TUTTI_STORE, keys, b.blocks, &resv);
	CUDA_OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeGlobal));
	CHECK_EQ(tutti_retrieve(p), 0);
	CHECK_EQ(tutti_wait_layer_stream(p, 0, b.stream), -EBUSY);
	CHECK_EQ(tutti_store_layer_stream(s, 0, b.stream), -EBUSY);
	layer_out(&b, 0);
	CHECK_EQ(tutti_wait_layer(p, LAYERS - 1, rig_now() + GPU_LAB_WAIT_NS), 0);
	CUDA_OK(cudaStreamEndCapture(b.stream, &graph));
	CUDA_OK(cudaGraphDestroy(graph));
	CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
	CHECK_EQ(gpu_lab_end(&b.r, s, &resv), N); /* it was dropped */
	rig_pull(&b.r, 0);
	all_right(&b, b.blocks, b.keys);
	say_what_capture_does(b.stream);
	lab_end(&b);
}

/* ---- the compute domain ---- */

static void compute_has_streams_of_its_own(void)
{
	struct tutti_lease lease;
	struct tutti_plan *p;
	uint32_t sms = 0;
	void *compute;
	struct lab b;
	int rc;

	gpu_lab_need();
	rc = tutti_compute_stream(2, 0, &compute, &sms);
	if (rc)
		printf("# %s\n", tutti_error_message());
	if (rc == -ENOTSUP)
		CHECK_SKIP("the driver has no green contexts");
	CHECK_EQ(rc, 0);
	printf("# compute has %u SMs\n", sms);
	CHECK(sms > 2);
	lab_begin(&b, 1);
	CUDA_OK(cudaStreamDestroy(b.stream));
	b.stream = compute;
	rig_wipe(&b.r, 0);
	p = gpu_lab_plan(&b.r, TUTTI_RETRIEVE, b.keys, b.blocks, &lease);
	CHECK_EQ(tutti_retrieve(p), 0);
	for (uint32_t l = 0; l < LAYERS; l++) {
		CHECK_EQ(tutti_wait_layer_stream(p, l, b.stream), 0);
		layer_out(&b, l);
	}
	CUDA_OK(cudaStreamSynchronize(b.stream));
	all_right(&b, b.blocks, b.keys);
	CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
	lab_end(&b);
}

/* ---- an engine that does what engines do ---- */

static void engine_allocates_meanwhile(void)
{
	struct tutti_key keys[N];
	struct tutti_lease lease;
	struct lab b;

	lab_begin(&b, 1);
	for (int round = 0; round < 40; round++) {
		enum tutti_op op = round & 1 ? TUTTI_STORE : TUTTI_RETRIEVE;
		struct tutti_plan *p;
		void *m;

		rig_keys(&b.r, 200 + (uint64_t)round, N, keys);
		p = gpu_lab_plan(&b.r, op, op == TUTTI_STORE ? keys : b.keys, b.blocks, &lease);
		for (uint32_t l = 0; l < LAYERS; l++)
			CHECK_EQ(op == TUTTI_STORE ? tutti_store_layer(p, l) : tutti_retrieve_layer(p, l), 0);
		CUDA_OK(cudaMalloc(&m, 1 << 20));
		CUDA_OK(cudaFree(m));
		CUDA_OK(cudaDeviceSynchronize());
		CHECK_EQ(tutti_wait_layer(p, LAYERS - 1, rig_now() + GPU_LAB_WAIT_NS), 0);
		CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
	}
	lab_end(&b);
}

/* Eight plans at once through one lane's SMs, waited for backwards. */
static void eight_requests_at_once(void)
{
	enum { PLANS = 8 };
	struct rig_shape shape = {.layers = LAYERS, .blocks = PLANS * N, .segment_bytes = SEGMENT, .order = "LB"};
	struct tutti_key keys[PLANS][N];
	uint64_t blocks[PLANS][N];
	struct tutti_lease lease[PLANS];
	struct tutti_plan *p[PLANS];
	struct rig r;
	size_t stored;

	gpu_lab_need();
	shape.accel = rig_gpu();
	rig_up(&r, &shape);
	for (uint64_t k = 0; k < PLANS; k++) {
		rig_keys(&r, k + 1, N, keys[k]);
		for (uint64_t i = 0; i < N; i++)
			blocks[k][i] = (k * N + i) * 5 % (PLANS * N);
		CHECK_EQ(rig_store(&r, keys[k], N, blocks[k], &stored), 0);
	}
	rig_wipe(&r, 0);
	for (int k = 0; k < PLANS; k++) {
		p[k] = gpu_lab_plan(&r, TUTTI_RETRIEVE, keys[k], blocks[k], &lease[k]);
		CHECK_EQ(tutti_retrieve(p[k]), 0);
	}
	for (int k = PLANS - 1; k >= 0; k--) {
		CHECK_EQ(tutti_wait_layer(p[k], LAYERS - 1, rig_now() + GPU_LAB_WAIT_NS), 0);
		CHECK_EQ(gpu_lab_end(&r, p[k], &lease[k]), 0);
	}
	rig_pull(&r, 0);
	for (int k = 0; k < PLANS; k++)
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(&r, 0, blocks[k][i], &keys[k][i]), 0);
	rig_down(&r);
}

/* ---- two lanes ---- */

struct lane_job {
	struct lab *b;
	struct tutti_lease lease;
	void *blob;
	size_t bytes;
	uint32_t rank;
	int rc;
};

static void *lane_work(void *arg)
{
	struct lane_job *j = arg;

	for (int round = 0; round < 20 && !j->rc; round++) {
		struct tutti_plan *p;

		j->rc = tutti_plan_open(j->b->r.lane[j->rank], j->blob, j->bytes, j->b->blocks, N, &p);
		if (!j->rc)
			j->rc = tutti_retrieve(p);
		for (uint32_t l = 0; l < LAYERS && !j->rc; l++)
			j->rc = tutti_wait_layer(p, l, rig_now() + GPU_LAB_WAIT_NS);
		if (!j->rc)
			j->rc = tutti_plan_finish(p, rig_now() + GPU_LAB_WAIT_NS, NULL, 0, NULL);
	}
	return NULL;
}

static void two_lanes_at_once(void)
{
	struct lane_job job[2];
	pthread_t thread[2];
	size_t n;
	struct lab b;

	lab_begin(&b, 2);
	for (uint32_t k = 0; k < 2; k++) {
		job[k] = (struct lane_job){.b = &b, .rank = k, .bytes = tutti_plan_blob_bytes(N)};
		job[k].blob = malloc(job[k].bytes);
		rig_wipe(&b.r, k);
		CHECK_EQ(tutti_lookup(b.r.ns, b.keys, N, GPU_LAB_LEASE_NS, &n, &job[k].lease), 0);
		CHECK_EQ(tutti_plan_blob(b.r.ns, &job[k].lease, 0, N, job[k].blob, job[k].bytes, &job[k].bytes), 0);
	}
	for (int k = 0; k < 2; k++)
		CHECK_EQ(pthread_create(&thread[k], NULL, lane_work, &job[k]), 0);
	for (uint32_t k = 0; k < 2; k++) {
		pthread_join(thread[k], NULL);
		CHECK_EQ(job[k].rc, 0);
		rig_pull(&b.r, k);
		for (size_t i = 0; i < N; i++)
			CHECK_EQ(rig_wrong(&b.r, k, b.blocks[i], &b.keys[i]), 0);
		CHECK_EQ(tutti_release(b.r.ns, &job[k].lease), 0);
		free(job[k].blob);
	}
	lab_end(&b);
}

/* ---- nothing is left behind ---- */

struct holdings {
	size_t hbm_free;
	int fds, threads;
	long pinned_kb;
};

static struct holdings holdings(void)
{
	struct holdings h = {0};
	char line[256];
	size_t total;
	FILE *f = fopen("/proc/self/status", "re");

	CUDA_OK(cudaMemGetInfo(&h.hbm_free, &total));
	h.fds = gpu_lab_entries("/proc/self/fd");
	h.threads = gpu_lab_entries("/proc/self/task");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmPin: %ld", &h.pinned_kb) == 1)
			break;
	if (f)
		fclose(f);
	printf("# HBM free %zu, %d fds, %d threads, %ld KB pinned\n", h.hbm_free, h.fds, h.threads, h.pinned_kb);
	return h;
}

static void same(struct holdings begin, struct holdings end)
{
	CHECK_EQ(end.hbm_free, begin.hbm_free);
	CHECK_EQ(end.fds, begin.fds);
	CHECK_EQ(end.threads, begin.threads);
	CHECK_EQ(end.pinned_kb, begin.pinned_kb);
}

static void ten_thousand_retrieves(void)
{
	struct holdings begin = {0};
	struct tutti_lease lease;
	struct lab b;

	lab_begin(&b, 1);
	for (int i = 0; i <= 10000; i++) {
		struct tutti_plan *p = gpu_lab_plan(&b.r, TUTTI_RETRIEVE, b.keys, b.blocks, &lease);

		CHECK_EQ(tutti_retrieve(p), 0);
		CHECK_EQ(tutti_wait_layer_stream(p, LAYERS - 1, b.stream), 0);
		CHECK_EQ(gpu_lab_end(&b.r, p, &lease), 0);
		if (i == 0)
			begin = holdings();
	}
	CUDA_OK(cudaStreamSynchronize(b.stream));
	same(begin, holdings());
	lab_end(&b);
}

/* Lanes that come and go; the first may leave what CUDA keeps. */
static void lanes_leave_nothing(void)
{
	struct holdings begin = {0};

	for (int round = 0; round < 6; round++) {
		size_t hit, bad;
		struct lab b;

		lab_begin(&b, 1);
		CHECK_EQ(rig_retrieve(&b.r, b.keys, N, b.blocks, round & 1, &hit, &bad), 0);
		lab_end(&b);
		if (round == 2)
			begin = holdings();
	}
	same(begin, holdings());
}

#endif

#define RUN(name) CHECK_RUN(name);

int main(int argc, char **argv)
{
	check_only = argc > 1 ? argv[1] : NULL;
	rig_dir(scratch_begin_in_memory());
	CASES(RUN)
	scratch_end();
	return check_end();
}
