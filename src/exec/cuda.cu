/*
 * cuda.cu - device code on a GPU: each job is a kernel of as many thread blocks as the stream has, each of which serves
 * its dev_block as a CPU thread would (dev/io.h), with warps beside that thread that move and sum data (mover.cuh).
 *
 * Everything that CUDA needs is made at open. Afterwards the launching thread launches; a thread per stream sleeps in
 * an event until a kernel is over and then does what is the host's: takes blocks out of a failed kernel, calls back;
 * and a watchdog, which calls no CUDA, looks for kernels that do not end. A block that gives up raises the stream's
 * stop word: kernels behind it end at once, before they touch a queue, until the host has mended what is broken.
 *
 * Streams live in a green context of few SMs where the driver has that; else they have high priority.
 */
#define DEV_MOVERS 1

#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include "base/err.h"
#include "exec/exec.h"
}
#include "exec/mover.cuh"

#define STREAMS_MAX 4u
#define BLOCKS_MAX 16u
#define JOBS_MAX 256u
#define WATCH_NS 100000000ull
#define GRACE_NS 1000000000ull
#define CLOCK_ROUNDS 32u
#define PAGE_BYTES 4096u
#define GREENS_MAX 16u

/* ---- the kernel ---- */

struct io_exit {
	int32_t rc;
	uint32_t first_open;
	uint64_t begin, end; /* GPU's clock */
};

struct io_params {
	struct dev_block *blocks[BLOCKS_MAX];
	uint32_t sq_first, count;
	int64_t clock_ns;
	struct io_exit *exits; /* of this job, one per block */
	uint32_t *stop;
	uint32_t n_stages;
};

/* What lies behind the stages in dynamic shared memory. */
static __host__ __device__ uint32_t io_extra_bytes(uint32_t n_cmds, uint32_t n_bounce)
{
	return n_cmds * (uint32_t)(sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8) + (n_bounce + 8u) / 4 * 8;
}

static __device__ void io_copy8(void *to, const void *from, uint32_t bytes)
{
#pragma unroll 4
	for (uint32_t i = threadIdx.x; i < bytes / 8; i += MOVER_THREADS)
		((uint64_t *)to)[i] = ((const volatile uint64_t *)from)[i];
}

static __device__ void io_mover_init(struct dev_mover *m, const struct io_params *p, uint8_t *dyn, uint32_t *header_bad)
{
	memset(m, 0, offsetof(struct dev_mover, full));
	m->n_stages = p->n_stages;
	m->stages = dyn;
	m->header_bad = header_bad;
	for (uint32_t i = 0; i < p->n_stages; i++) {
		mover_bar_init(&m->full[i], 1);
		mover_bar_init(&m->empty[i], MOVER_SUMMER_WARPS);
	}
	mover_fence();
}

/* The state that outlives the kernel. */
static __device__ void io_leave(const struct io_params *p, struct dev_block *host, struct dev_block *b, int rc)
{
	struct io_exit *x = &p->exits[blockIdx.x];

	for (uint32_t q = 0; q < b->n_qps; q++) {
		host->qp[q].tail = b->qp[q].tail;
		host->qp[q].head = b->qp[q].head;
		host->qp[q].phase = b->qp[q].phase;
		host->qp[q].head_rung = b->qp[q].head_rung;
	}
	b->stats.bounced_bytes += b->mover->moved_bytes;
	b->stats.sum_bytes += b->mover->moved_bytes;
	host->stats = b->stats;
	if (rc)
		atomicExch(p->stop, 1u);
	x->first_open = b->first_open;
	x->rc = rc;
	x->end = port_now_ns();
}

__global__ void __launch_bounds__(MOVER_THREADS, 1) io_kernel(const __grid_constant__ struct io_params p)
{
	extern __shared__ __align__(128) uint8_t dyn[];
	__shared__ __align__(16) struct dev_block b;
	__shared__ __align__(16) struct wire_ring ring;
	__shared__ struct dev_mover m;
	__shared__ uint32_t stopped;
	struct dev_block *host = p.blocks[blockIdx.x];
	uint8_t *at = dyn + p.n_stages * MOVER_STAGE_BYTES;
	uint32_t t = threadIdx.x;

	if (t == 0) {
		p.exits[blockIdx.x].begin = port_now_ns();
		stopped = port_load_acquire32(p.stop);
		if (stopped) {
			p.exits[blockIdx.x].first_open = 0;
			p.exits[blockIdx.x].rc = -EINTR;
			p.exits[blockIdx.x].end = port_now_ns();
		}
	}
	__syncthreads();
	if (stopped)
		return;
	io_copy8(&b, host, sizeof(b));
	__syncthreads();
	io_copy8(at, b.cmds, b.n_cmds * (uint32_t)sizeof(struct dev_cmd));
	io_copy8(at + b.n_cmds * (sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8), b.bounce_next,
	         (b.n_bounce + 4u) / 4 * 8);
	io_copy8(&ring, b.ring, sizeof(ring));
	for (uint32_t i = t; i < 2 * b.n_cmds; i += MOVER_THREADS)
		((uint32_t *)(at + b.n_cmds * (sizeof(struct dev_cmd) + sizeof(struct dev_span))))[i] = 0;
	__syncthreads();
	if (t == 0) {
		uint32_t n = b.n_cmds;

		b.cmds = (struct dev_cmd *)at;
		b.retry = (struct dev_span *)(at + n * sizeof(struct dev_cmd));
		io_mover_init(&m, &p, dyn, (uint32_t *)(at + n * (sizeof(struct dev_cmd) + sizeof(struct dev_span))));
		b.bounce_next = (uint16_t *)(at + n * (sizeof(struct dev_cmd) + sizeof(struct dev_span) + 8));
		b.ring = &ring;
		b.mover = &m;
		b.index = blockIdx.x;
		b.n_blocks = gridDim.x;
		b.clock_ns = p.clock_ns;
		b.map.n = 0;
		dev_steps_begin(&b, p.count);
	}
	__syncthreads();
	for (uint32_t i = t; i < p.count; i += MOVER_THREADS)
		dev_step_load(&b, p.sq_first, i);
	__syncthreads();
	if (t == 0) {
		int rc = dev_io_serve(&b);

		mover_store(&m.stop, 1);
		m.bad = (uint32_t)rc; /* no step is compared any more */
	} else if (t == 32) {
		mover_copier(&b);
	} else if (t >= 64) {
		mover_summer(&b, t - 64);
	}
	__syncthreads();
	if (t == 0)
		io_leave(&p, host, &b, (int)m.bad);
}

struct clock_word {
	uint32_t ask, pad[31];
	uint32_t answer, pad1[29];
	uint64_t time;
};

__global__ void io_clock(struct clock_word *w)
{
	uint64_t start = port_now_ns();

	for (uint32_t i = 1; i <= CLOCK_ROUNDS; i++) {
		while (port_load_acquire32(&w->ask) != i)
			if (port_now_ns() - start > 1000000000ull)
				return;
		w->time = port_now_ns();
		port_store_release32(&w->answer, i);
	}
}

/* ---- the executor ---- */

struct cuda_job {
	struct exec_job job;
	uint64_t launched_ns;
	int over; /* the kernel has ended */
};

struct cuda_stream {
	struct exec *exec;
	CUstream stream;
	pthread_t thread;
	int started;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct cuda_job jobs[JOBS_MAX];
	cudaEvent_t event[JOBS_MAX];
	uint64_t head, tail;
	struct io_exit *exits; /* [JOBS_MAX][BLOCKS_MAX], pinned */
	uint32_t *stop;        /* near */
	int closing, lost;
};

struct exec {
	int device;
	uint32_t n_streams, blocks;
	uint32_t n_stages, dyn_bytes, dyn_max;
	int64_t clock_ns;
	uint32_t sms;
	char text[120];
	pthread_t watchdog;
	int watching, closing;
	pthread_mutex_t watch_lock;
	pthread_cond_t watch_change;
	struct cuda_stream streams[STREAMS_MAX];
};

static int cuda_error(cudaError_t e, const char *what)
{
	int rc = e == cudaErrorMemoryAllocation ? -ENOMEM : e == cudaErrorNoDevice ? -ENODEV : -EIO;

	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* ours, not the application's */
	return err_set(rc, "cuda: %s: %s", what, cudaGetErrorString(e));
}

/* A driver function of the installed driver; NULL: it has none. */
static void *driver_fn(const char *name)
{
	void *fn = NULL;
	cudaDriverEntryPointQueryResult found;

	if (cudaGetDriverEntryPointByVersion(name, &fn, CUDA_VERSION, cudaEnableDefault, &found) != cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		cudaGetLastError();
		return NULL;
	}
	return fn;
}

/* ---- memory ---- */

static void *cuda_memory_get(struct exec *e, uint64_t bytes, enum exec_memory kind)
{
	void *p = NULL;

	cudaSetDevice(e->device);
	if (kind == EXEC_SHARED) {
		if (cuda_error(cudaHostAlloc(&p, bytes + 64, cudaHostAllocMapped | cudaHostAllocPortable),
		               "pinned memory"))
			return NULL;
		memset(p, 0, bytes + 64);
		return p;
	}
	if (cuda_error(cudaMalloc(&p, bytes), "GPU memory"))
		return NULL;
	if (cuda_error(cudaMemset(p, 0, bytes), "GPU memory") || cuda_error(cudaDeviceSynchronize(), "GPU memory")) {
		cudaFree(p);
		return NULL;
	}
	return p;
}

static void cuda_memory_put(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind)
{
	(void)bytes;
	cudaSetDevice(e->device);
	if (kind == EXEC_SHARED)
		cudaFreeHost(p);
	else
		cudaFree(p);
}

static void pages_around(void **p, uint64_t *bytes)
{
	uint64_t from = (uint64_t)(uintptr_t)*p / PAGE_BYTES * PAGE_BYTES;

	*bytes = ((uint64_t)(uintptr_t)*p + *bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES - from;
	*p = (void *)(uintptr_t)from;
}

static int cuda_share(struct exec *e, void *p, uint64_t bytes)
{
	cudaError_t rc;

	cudaSetDevice(e->device);
	pages_around(&p, &bytes);
	rc = cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
	return cuda_error(rc, "pinning memory of the controller");
}

static void cuda_unshare(struct exec *e, void *p, uint64_t bytes)
{
	cudaSetDevice(e->device);
	pages_around(&p, &bytes);
	cuda_error(cudaHostUnregister(p), "unpinning memory of the controller");
}

static int cuda_copy_in(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	cudaStream_t s = (cudaStream_t)e->streams[stream].stream;

	cudaSetDevice(e->device);
	return cuda_error(shared ? cudaMemcpyAsync(near, shared, bytes, cudaMemcpyHostToDevice, s)
	                         : cudaMemsetAsync(near, 0, bytes, s),
	                  "sending a plan");
}

static int cuda_is_near(const void *p)
{
	struct cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return a.type == cudaMemoryTypeDevice;
}

static int cuda_stream_wait(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	typedef CUresult (*wait_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
	static wait_fn fn; /* the same for all */
	CUresult rc;

	cudaSetDevice(e->device);
	if (!fn)
		fn = (wait_fn)driver_fn("cuStreamWaitValue32");
	if (!fn)
		return err_set(-ENOTSUP, "cuda: the driver has no stream memory operations; use tutti_wait_layer");
	rc = fn((CUstream)stream, (CUdeviceptr)(uintptr_t)flag, value, CU_STREAM_WAIT_VALUE_GEQ);
	return rc ? err_set(-EIO, "cuda: the stream can't wait for a layer: error %d", (int)rc) : 0;
}

/* ---- the end of a kernel ---- */

/* Two sure bounds of the difference of the clocks; it drifts slowly. */
static void clock_refine(struct exec *e, const struct cuda_job *j, const struct io_exit *x, uint64_t now_ns)
{
	int64_t low = (int64_t)(j->launched_ns - x->begin), high = (int64_t)(now_ns - x->end);
	int64_t clock = __atomic_load_n(&e->clock_ns, __ATOMIC_RELAXED);

	if (clock < low || clock > high)
		__atomic_store_n(&e->clock_ns, clock < low ? low : high, __ATOMIC_RELAXED);
}

static void job_over(struct cuda_stream *s, struct cuda_job *j, struct io_exit *exits, cudaError_t error)
{
	struct exec *e = s->exec;
	int failed = 0, mend = 0;

	for (uint32_t i = 0; i < e->blocks; i++) {
		struct dev_block *b = j->job.blocks[i];

		b->exit_rc = error ? -EIO : exits[i].rc;
		b->first_open = error ? 0 : exits[i].first_open;
		failed |= b->exit_rc != 0;
		mend |= b->exit_rc != 0 && b->exit_rc != -EINTR;
	}
	if (error) {
		log_warn("cuda: an I/O kernel failed: %s", cudaGetErrorString(error));
		j->job.lost(j->job.arg, j->job.sq_first, j->job.count);
	} else {
		clock_refine(e, j, &exits[0], port_now_ns());
		if (failed)
			j->job.gave_up(j->job.arg, j->job.sq_first, j->job.count);
		if (mend)
			cudaMemsetAsync(s->stop, 0, sizeof(*s->stop), (cudaStream_t)s->stream);
	}
	j->job.ended(j->job.arg);
	if (j->job.done)
		j->job.done(j->job.done_arg);
}

static void *stream_work(void *arg)
{
	struct cuda_stream *s = (struct cuda_stream *)arg;

	cudaSetDevice(s->exec->device);
	pthread_mutex_lock(&s->lock);
	for (;;) {
		uint32_t at;
		cudaError_t error;

		while (s->head == s->tail && !s->closing)
			pthread_cond_wait(&s->change, &s->lock);
		if (s->head == s->tail)
			break;
		at = (uint32_t)(s->head % JOBS_MAX);
		pthread_mutex_unlock(&s->lock);
		error = cudaEventSynchronize(s->event[at]);
		pthread_mutex_lock(&s->lock);
		s->jobs[at].over = 1;
		if (s->lost) /* the watchdog has spoken for it */
			break;
		pthread_mutex_unlock(&s->lock);
		job_over(s, &s->jobs[at], &s->exits[at * BLOCKS_MAX], error);
		pthread_mutex_lock(&s->lock);
		s->head++;
		pthread_cond_broadcast(&s->change);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Calls no CUDA. */
static void stream_watch(struct cuda_stream *s, uint64_t now_ns)
{
	pthread_mutex_lock(&s->lock);
	if (!s->lost && s->head != s->tail && !s->jobs[s->head % JOBS_MAX].over &&
	    now_ns > s->jobs[s->head % JOBS_MAX].job.deadline_ns + GRACE_NS) {
		s->lost = 1;
		for (uint64_t i = s->head; i != s->tail; i++) {
			struct exec_job *j = &s->jobs[i % JOBS_MAX].job;

			j->lost(j->arg, j->sq_first, j->count);
		}
		pthread_cond_broadcast(&s->change);
	}
	pthread_mutex_unlock(&s->lock);
}

static int busy(struct exec *e)
{
	int any = 0;

	for (uint32_t i = 0; i < e->n_streams; i++)
		any |= __atomic_load_n(&e->streams[i].head, __ATOMIC_RELAXED) !=
		       __atomic_load_n(&e->streams[i].tail, __ATOMIC_RELAXED);
	return any;
}

static void *watch(void *arg)
{
	struct exec *e = (struct exec *)arg;

	pthread_mutex_lock(&e->watch_lock);
	while (!e->closing) {
		uint64_t until = port_now_ns() + WATCH_NS;
		struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

		if (!busy(e))
			pthread_cond_wait(&e->watch_change, &e->watch_lock);
		else
			pthread_cond_timedwait(&e->watch_change, &e->watch_lock, &t);
		for (uint32_t i = 0; i < e->n_streams; i++)
			stream_watch(&e->streams[i], port_now_ns());
	}
	pthread_mutex_unlock(&e->watch_lock);
	return NULL;
}

static int cuda_settle(struct exec *e, uint32_t stream)
{
	struct cuda_stream *s = &e->streams[stream];
	int lost;

	pthread_mutex_lock(&s->lock);
	while (s->head != s->tail && !s->lost)
		pthread_cond_wait(&s->change, &s->lock);
	lost = s->lost;
	pthread_mutex_unlock(&s->lock);
	if (lost)
		return -ENOTRECOVERABLE;
	cudaSetDevice(e->device);
	return cuda_error(cudaStreamSynchronize((cudaStream_t)s->stream), "waiting for a stream");
}

/* ---- launch ---- */

static int stages_for(struct exec *e, const struct dev_block *b, uint32_t *dyn_bytes)
{
	uint32_t extra = io_extra_bytes(b->n_cmds, b->n_bounce), n = 0;

	while (n < MOVER_STAGES_MAX && (n + 1) * MOVER_STAGE_BYTES + extra <= e->dyn_max)
		n++;
	if (n < MOVER_STAGES_MIN || b->n_cmds + 1 >= MOVER_QUEUE)
		return -EINVAL;
	*dyn_bytes = n * MOVER_STAGE_BYTES + extra;
	return (int)n;
}

static int kernel_launch(struct cuda_stream *s, const struct exec_job *job, uint32_t at)
{
	struct exec *e = s->exec;
	struct io_params p;
	uint32_t dyn_bytes;
	int n = stages_for(e, job->blocks[0], &dyn_bytes), rc;

	if (n < 0)
		return err_set(-EINVAL, "cuda: a queue depth of %u does not fit an SM's shared memory; ask for less",
		               job->blocks[0]->n_cmds);
	memset(&p, 0, sizeof(p));
	for (uint32_t i = 0; i < e->blocks; i++)
		p.blocks[i] = job->blocks[i];
	p.sq_first = job->sq_first;
	p.count = job->count;
	p.clock_ns = __atomic_load_n(&e->clock_ns, __ATOMIC_RELAXED);
	p.exits = &s->exits[at * BLOCKS_MAX];
	p.stop = s->stop;
	p.n_stages = (uint32_t)n;
	io_kernel<<<e->blocks, MOVER_THREADS, dyn_bytes, (cudaStream_t)s->stream>>>(p);
	rc = cuda_error(cudaGetLastError(), "launching an I/O kernel");
	return rc ? rc : cuda_error(cudaEventRecord(s->event[at], (cudaStream_t)s->stream), "launching an I/O kernel");
}

static int cuda_launch(struct exec *e, uint32_t stream, const struct exec_job *job)
{
	struct cuda_stream *s = &e->streams[stream];
	int rc = 0;

	if (job->event)
		return err_set(-ENOTSUP, "cuda: an IOCB can't wait for a word of the host");
	cudaSetDevice(e->device);
	pthread_mutex_lock(&s->lock);
	if (s->lost || s->tail - s->head == JOBS_MAX) {
		rc = s->lost ? -ENOTRECOVERABLE : -EAGAIN;
	} else {
		uint32_t at = (uint32_t)(s->tail % JOBS_MAX);

		s->jobs[at].job = *job;
		s->jobs[at].launched_ns = port_now_ns();
		s->jobs[at].over = 0;
		rc = kernel_launch(s, job, at);
		if (!rc)
			__atomic_store_n(&s->tail, s->tail + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&s->lock);
	if (!rc) {
		pthread_cond_broadcast(&s->change);
		pthread_cond_signal(&e->watch_change);
	}
	return rc;
}

/* ---- open and close ---- */

int exec_cuda_probe(char *text, uint32_t text_bytes)
{
	cudaDeviceProp p;
	int n = 0, driver = 0, same = 0, device = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || !n) {
		cudaGetLastError();
		snprintf(text, text_bytes, "no usable GPU: %s", e ? cudaGetErrorString(e) : "none");
		return -ENODEV;
	}
	cudaGetDevice(&device);
	cudaDriverGetVersion(&driver);
	e = cudaGetDeviceProperties(&p, device);
	if (!e)
		e = cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
	if (e || !same || !p.canMapHostMemory) {
		cudaGetLastError();
		snprintf(text, text_bytes, "device %d can't use the host's addresses for pinned memory", device);
		return -ENOTSUP;
	}
	snprintf(text, text_bytes, "%s, %d SMs, compute %d.%d, driver %d.%d; %s", p.name, p.multiProcessorCount,
	         p.major, p.minor, driver / 1000, driver % 1000 / 10,
	         p.major >= 9 ? "bulk copies through shared memory" : "no bulk copies: vector loads and stores");
	return 0;
}

/*
 * Green contexts are made once and kept: a process has few kinds, and the driver does not give all of one's memory
 * back. Lanes of equal size share theirs, and so its SMs.
 */
static struct {
	pthread_mutex_t lock;
	uint32_t n;
	struct {
		int device;
		uint32_t asked, sms;
		CUgreenCtx context;
	} made[GREENS_MAX];
} greens = {PTHREAD_MUTEX_INITIALIZER, 0, {}};

static int green_make(int device, uint32_t asked, CUgreenCtx *out, uint32_t *sms)
{
	typedef CUresult (*resource_fn)(CUdevice, CUdevResource *, CUdevResourceType);
	typedef CUresult (*split_fn)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned,
	                             unsigned);
	typedef CUresult (*desc_fn)(CUdevResourceDesc *, CUdevResource *, unsigned);
	typedef CUresult (*create_fn)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
	resource_fn resource = (resource_fn)driver_fn("cuDeviceGetDevResource");
	split_fn split = (split_fn)driver_fn("cuDevSmResourceSplitByCount");
	desc_fn describe = (desc_fn)driver_fn("cuDevResourceGenerateDesc");
	create_fn create = (create_fn)driver_fn("cuGreenCtxCreate");
	CUdevResource all, mine, rest;
	CUdevResourceDesc desc;
	unsigned n = 1;
	CUresult rc;

	if (!resource || !split || !describe || !create)
		return CUDA_ERROR_NOT_FOUND;
	rc = resource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
	if (!rc)
		rc = split(&mine, &n, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, asked);
	if (rc) {
		n = 1;
		rc = split(&mine, &n, &all, &rest, 0, asked);
	}
	if (!rc)
		rc = describe(&desc, &mine, 1);
	if (!rc)
		rc = create(out, desc, device, CU_GREEN_CTX_DEFAULT_STREAM);
	if (!rc)
		*sms = mine.sm.smCount;
	return (int)rc;
}

static int green_find(int device, uint32_t asked, CUgreenCtx *out, uint32_t *sms)
{
	int rc = 0;
	uint32_t i = 0;

	pthread_mutex_lock(&greens.lock);
	while (i < greens.n && (greens.made[i].device != device || greens.made[i].asked != asked))
		i++;
	if (i == GREENS_MAX)
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	else if (i == greens.n)
		rc = green_make(device, asked, &greens.made[i].context, &greens.made[i].sms);
	if (!rc && i == greens.n) {
		greens.made[i].device = device;
		greens.made[i].asked = asked;
		greens.n++;
	}
	if (!rc) {
		*out = greens.made[i].context;
		*sms = greens.made[i].sms;
	}
	pthread_mutex_unlock(&greens.lock);
	return rc;
}

/* Streams on SMs of our own. 0, or the driver's error. */
static int green_open(struct exec *e, uint32_t asked)
{
	typedef CUresult (*stream_fn)(CUstream *, CUgreenCtx, unsigned, int);
	stream_fn stream = (stream_fn)driver_fn("cuGreenCtxStreamCreate");
	CUgreenCtx green;
	int rc = stream ? green_find(e->device, asked, &green, &e->sms) : CUDA_ERROR_NOT_FOUND;

	for (uint32_t i = 0; i < e->n_streams && !rc; i++)
		rc = (int)stream(&e->streams[i].stream, green, CU_STREAM_NON_BLOCKING, 0);
	return rc;
}

static int streams_make(struct exec *e, const struct exec_opts *o)
{
	int rc = o->sm_domain ? green_open(e, o->blocks < 2 ? 2 : o->blocks) : -1, low, high;

	if (!rc) {
		snprintf(e->text, sizeof(e->text), "cuda, %u SMs, green context", e->sms);
		return 0;
	}
	cudaDeviceGetStreamPriorityRange(&low, &high);
	for (uint32_t i = 0; i < e->n_streams; i++) {
		int err = cuda_error(
		    cudaStreamCreateWithPriority((cudaStream_t *)&e->streams[i].stream, cudaStreamNonBlocking, high),
		    "making a stream");
		if (err)
			return err;
	}
	if (o->sm_domain)
		log_warn(
		    "cuda: no green context (error %d): the I/O kernel shares its SMs with compute, and starts late",
		    rc);
	snprintf(e->text, sizeof(e->text), "cuda, %u SMs, priority stream", o->blocks);
	return 0;
}

static int clock_find(struct exec *e)
{
	struct clock_word *w = (struct clock_word *)cuda_memory_get(e, sizeof(*w), EXEC_SHARED);
	uint64_t best = ~0ull, give_up = port_now_ns() + 2000000000ull;
	int rc;

	if (!w)
		return -ENOMEM;
	io_clock<<<1, 1, 0, (cudaStream_t)e->streams[0].stream>>>(w);
	rc = cuda_error(cudaGetLastError(), "comparing clocks");
	for (uint32_t i = 1; i <= CLOCK_ROUNDS && !rc; i++) {
		uint64_t t0 = port_now_ns(), t1 = t0;

		port_store_release32(&w->ask, i);
		while (port_load_acquire32(&w->answer) != i && t1 < give_up)
			t1 = port_now_ns();
		t1 = port_now_ns();
		if (t1 >= give_up)
			rc = err_set(-ETIMEDOUT, "cuda: the GPU does not answer");
		else if (t1 - t0 < best) {
			best = t1 - t0;
			e->clock_ns = (int64_t)(t0 + (t1 - t0) / 2 - w->time);
		}
	}
	cudaStreamSynchronize((cudaStream_t)e->streams[0].stream);
	cuda_memory_put(e, w, sizeof(*w), EXEC_SHARED);
	return rc;
}

static int thread_start(pthread_t *t, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(t, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? err_set(-rc, "cuda: a thread could not be started; look at ulimit -u") : 0;
}

static int stream_make(struct exec *e, struct cuda_stream *s)
{
	int rc = 0;

	s->exits = (struct io_exit *)cuda_memory_get(e, JOBS_MAX * BLOCKS_MAX * sizeof(*s->exits), EXEC_SHARED);
	s->stop = (uint32_t *)cuda_memory_get(e, 256, EXEC_NEAR);
	if (!s->exits || !s->stop)
		return -ENOMEM;
	for (uint32_t i = 0; i < JOBS_MAX && !rc; i++)
		rc = cuda_error(cudaEventCreateWithFlags(&s->event[i], cudaEventDisableTiming | cudaEventBlockingSync),
		                "making events");
	return rc;
}

/* Loads and runs everything once, so that nothing is loaded while a kernel spins. */
static int warm_up(struct exec *e)
{
	for (uint32_t i = 0; i < e->n_streams; i++) {
		struct cuda_stream *s = &e->streams[i];
		cudaStream_t st = (cudaStream_t)s->stream;
		struct io_params p;
		int rc;

		memset(&p, 0, sizeof(p));
		p.exits = s->exits;
		p.stop = s->stop;
		cudaMemsetAsync(s->stop, 1, sizeof(*s->stop), st);
		io_kernel<<<e->blocks, MOVER_THREADS, e->dyn_max, st>>>(p); /* finds the stop word */
		cudaMemcpyAsync(s->stop, s->exits, sizeof(*s->stop), cudaMemcpyHostToDevice, st);
		cudaMemsetAsync(s->stop, 0, sizeof(*s->stop), st);
		cudaEventRecord(s->event[0], st);
		rc = cuda_error(cudaEventSynchronize(s->event[0]), "the first kernel");
		if (!rc)
			rc = cuda_error(cudaGetLastError(), "the first kernel");
		if (!rc && s->exits[0].rc != -EINTR)
			rc = err_set(-EIO, "cuda: the first kernel said %d", s->exits[0].rc);
		if (rc)
			return rc;
	}
	return 0;
}

static void cuda_close(struct exec *e)
{
	cudaSetDevice(e->device);
	if (e->watching) {
		pthread_mutex_lock(&e->watch_lock);
		e->closing = 1;
		pthread_cond_broadcast(&e->watch_change);
		pthread_mutex_unlock(&e->watch_lock);
		pthread_join(e->watchdog, NULL);
	}
	for (uint32_t i = 0; i < e->n_streams; i++) {
		struct cuda_stream *s = &e->streams[i];

		pthread_mutex_lock(&s->lock);
		s->closing = 1;
		pthread_cond_broadcast(&s->change);
		pthread_mutex_unlock(&s->lock);
		if (s->started)
			pthread_join(s->thread, NULL);
		for (uint32_t k = 0; k < JOBS_MAX; k++)
			if (s->event[k])
				cudaEventDestroy(s->event[k]);
		if (s->stream)
			cudaStreamDestroy((cudaStream_t)s->stream);
		if (s->exits)
			cudaFreeHost(s->exits);
		if (s->stop)
			cudaFree(s->stop);
	}
	free(e);
}

static int open_parts(struct exec *e, const struct exec_opts *o)
{
	cudaFuncAttributes attr;
	int most = 0, rc = streams_make(e, o);

	if (!rc)
		rc = cuda_error(cudaFuncGetAttributes(&attr, io_kernel), "loading the I/O kernel");
	if (!rc)
		rc = cuda_error(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, e->device),
		                "asking");
	if (rc)
		return rc;
	e->dyn_max = (uint32_t)most - (uint32_t)attr.sharedSizeBytes;
	rc = cuda_error(cudaFuncSetAttribute(io_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)e->dyn_max),
	                "shared memory");
	for (uint32_t i = 0; i < e->n_streams && !rc; i++)
		rc = stream_make(e, &e->streams[i]);
	if (!rc)
		rc = warm_up(e);
	if (!rc)
		rc = clock_find(e);
	for (uint32_t i = 0; i < e->n_streams && !rc; i++) {
		rc = thread_start(&e->streams[i].thread, stream_work, &e->streams[i]);
		e->streams[i].started = rc == 0;
	}
	if (!rc)
		rc = thread_start(&e->watchdog, watch, e);
	e->watching = rc == 0;
	return rc;
}

static int cuda_open(const struct exec_opts *o, struct exec **out)
{
	pthread_condattr_t attr;
	struct exec *e;
	int rc;

	if (!o->streams || o->streams > STREAMS_MAX || !o->blocks || o->blocks > BLOCKS_MAX)
		return err_set(-EINVAL, "cuda: %u streams of %u blocks; at most %u of %u", o->streams, o->blocks,
		               STREAMS_MAX, BLOCKS_MAX);
	e = (struct exec *)calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "cuda: no memory");
	e->n_streams = o->streams;
	e->blocks = o->blocks;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&e->watch_lock, NULL);
	pthread_cond_init(&e->watch_change, &attr);
	for (uint32_t i = 0; i < e->n_streams; i++) {
		e->streams[i].exec = e;
		pthread_mutex_init(&e->streams[i].lock, NULL);
		pthread_cond_init(&e->streams[i].change, &attr);
	}
	pthread_condattr_destroy(&attr);
	rc = cuda_error(cudaGetDevice(&e->device), "no device");
	if (!rc)
		rc = cuda_error(cudaSetDevice(e->device), "no device");
	if (!rc)
		rc = cuda_error(cudaFree(NULL), "no context");
	if (!rc)
		rc = open_parts(e, o);
	if (rc) {
		cuda_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

static const char *cuda_describe(struct exec *e) { return e->text; }

static const struct exec_ops ops = {
    "cuda",          cuda_open,       cuda_close,       cuda_launch,   1,
    cuda_memory_get, cuda_memory_put, cuda_share,       cuda_unshare,  cuda_copy_in,
    cuda_settle,     cuda_is_near,    cuda_stream_wait, cuda_describe,
};

const struct exec_ops *exec_cuda(void) { return &ops; }
