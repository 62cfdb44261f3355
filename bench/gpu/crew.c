/* crew.c - see crew.h. */
#include "bench/gpu/crew.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
	pthread_mutex_t lock;
	pthread_cond_t change;
	pthread_t thread[WORKERS_MAX];
	struct crew_worker worker[WORKERS_MAX];
	uint32_t n, at_work;
	uint32_t seq; /* of the job */
	int closing, no_batches;
	struct crew_job job;
	uint32_t *flags; /* pinned: [WORKERS_MAX][LAYERS] */
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void *work(void *arg)
{
	struct crew_worker *w = arg;
	uint32_t done = 0;

	cudaSetDevice(0);
	pthread_mutex_lock(&crew.lock);
	for (;;) {
		while (crew.seq == done && !crew.closing)
			pthread_cond_wait(&crew.change, &crew.lock);
		if (crew.closing)
			break;
		done = crew.seq;
		pthread_mutex_unlock(&crew.lock);
		crew.job.work(w, &crew.job);
		need_cuda(cudaStreamSynchronize(w->stream), "a worker's stream");
		pthread_mutex_lock(&crew.lock);
		crew.at_work--;
		pthread_cond_broadcast(&crew.change);
	}
	pthread_mutex_unlock(&crew.lock);
	return NULL;
}

static void *pinned(uint64_t bytes)
{
	void *p;

	need_cuda(cudaHostAlloc(&p, bytes ? bytes : 64, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");
	memset(p, 0, bytes);
	return p;
}

/* What a driver makes ready at the first call, it makes now, while no stream waits for anything. */
static void warm_up(struct crew_worker *w)
{
	for (int batched = 0; batched < 2; batched++) {
		crew_piece(w, w->dst + CREW_PIECES / 2, w->src + CREW_PIECES / 2, 64, batched);
		crew_flush(w);
	}
	need_cuda(cudaStreamSynchronize(w->stream), "a worker's stream");
}

void crew_open(uint32_t workers, uint64_t half_bytes)
{
	crew.n = workers;
	crew.seq = 0;
	crew.closing = 0;
	crew.flags = pinned(WORKERS_MAX * LAYERS * sizeof(*crew.flags));
	for (uint32_t i = 0; i < workers; i++) {
		struct crew_worker *w = &crew.worker[i];

		*w = (struct crew_worker){.index = i, .n = workers, .half_bytes = half_bytes};
		need_cuda(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "a stream");
		w->dst = pinned(CREW_PIECES * sizeof(*w->dst));
		w->src = pinned(CREW_PIECES * sizeof(*w->src));
		w->sizes = malloc(CREW_PIECES * sizeof(*w->sizes));
		for (int h = 0; h < 2; h++) {
			w->buffer[h] = pinned(half_bytes);
			need_cuda(cudaEventCreateWithFlags(&w->copied[h], cudaEventDisableTiming), "an event");
		}
		warm_up(w);
		pthread_create(&crew.thread[i], NULL, work, w);
	}
}

void crew_close(void)
{
	pthread_mutex_lock(&crew.lock);
	crew.closing = 1;
	pthread_cond_broadcast(&crew.change);
	pthread_mutex_unlock(&crew.lock);
	for (uint32_t i = 0; i < crew.n; i++) {
		struct crew_worker *w = &crew.worker[i];

		pthread_join(crew.thread[i], NULL);
		for (int h = 0; h < 2; h++) {
			cudaFreeHost(w->buffer[h]);
			cudaEventDestroy(w->copied[h]);
		}
		cudaFreeHost((void *)w->dst);
		cudaFreeHost((void *)w->src);
		free(w->sizes);
		cudaStreamDestroy(w->stream);
	}
	cudaFreeHost(crew.flags);
	crew.n = 0;
}

void crew_start(const struct crew_job *job)
{
	pthread_mutex_lock(&crew.lock);
	crew.job = *job;
	crew.at_work = crew.n;
	crew.seq++;
	pthread_cond_broadcast(&crew.change);
	pthread_mutex_unlock(&crew.lock);
}

void crew_wait(uint32_t layer, cudaStream_t compute)
{
	for (uint32_t i = 0; i < crew.n; i++)
		stream_wait(compute, &crew.flags[i * LAYERS + layer], crew.seq);
}

void crew_wait_here(uint32_t layer)
{
	const struct timespec nap = {.tv_nsec = 10000};

	for (uint32_t i = 0; i < crew.n; i++)
		while (__atomic_load_n(&crew.flags[i * LAYERS + layer], __ATOMIC_ACQUIRE) != crew.seq)
			nanosleep(&nap, NULL); /* a stream wakes nobody */
}

void crew_join(void)
{
	pthread_mutex_lock(&crew.lock);
	while (crew.at_work)
		pthread_cond_wait(&crew.change, &crew.lock);
	pthread_mutex_unlock(&crew.lock);
}

void crew_landed(struct crew_worker *w, uint32_t layer)
{
	crew_flush(w);
	stream_write(w->stream, &crew.flags[w->index * LAYERS + layer], crew.seq);
}

void crew_piece(struct crew_worker *w, void *dst, const void *src, size_t bytes, int batched)
{
	if (!batched) {
		need_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, w->stream), "a copy");
		return;
	}
	if (w->pieces && (w->pieces == CREW_PIECES || (crew.no_batches && w->sizes[0] != bytes)))
		crew_flush(w);
	w->dst[w->pieces] = dst;
	w->src[w->pieces] = src;
	w->sizes[w->pieces++] = bytes;
}

/* Where the driver has no batches: one kernel; its arrays must not change until it has run. */
static void flush_kernel(struct crew_worker *w)
{
	kernel_copy_many((void *const *)w->dst, (const void *const *)w->src, w->pieces, w->sizes[0], w->stream);
	need_cuda(cudaStreamSynchronize(w->stream), "a kernel of copies");
}

void crew_flush(struct crew_worker *w)
{
	struct cudaMemcpyAttributes how = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
	size_t first = 0;
	cudaError_t e = cudaSuccess;

	if (!w->pieces)
		return;
	if (!crew.no_batches)
		e = cudaMemcpyBatchAsync((void *const *)w->dst, (const void *const *)w->src, w->sizes, w->pieces, &how,
		                         &first, 1, w->stream);
	if (e == cudaErrorNotSupported || e == cudaErrorCallRequiresNewerDriver) {
		printf("# this driver has no batched copies: one kernel instead\n");
		crew.no_batches = 1;
		e = cudaSuccess;
	}
	need_cuda(e, "batched copies");
	if (crew.no_batches)
		flush_kernel(w);
	w->pieces = 0;
}
