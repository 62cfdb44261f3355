/* gpu_launch.c - kernels: their shape, their launch, and a first run of everything. */
#include "exec/gpu.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"

#define CLOCK_NS 2000000000ull

/* Stages of shared memory that fit beside the rest; the shape's size. */
static int stages_for(const struct exec *e, const struct dev_block *b, uint32_t n_steps, uint32_t *dyn_bytes)
{
	uint32_t extra = io_extra_bytes(b->n_cmds, b->n_bounce) + (e->small ? 0 : io_near_bytes(n_steps)), n = 0;

	*dyn_bytes = extra;
	if (e->small)
		return extra <= e->dyn_max ? 0 : -EINVAL;
	while (n < IO_STAGES_MAX && (n + 1) * IO_STAGE_BYTES + extra <= e->dyn_max)
		n++;
	if (n < IO_STAGES_MIN || b->n_cmds + 1 >= IO_QUEUE)
		return -EINVAL;
	*dyn_bytes = n * IO_STAGE_BYTES + extra;
	return (int)n;
}

static const void *kernel_of(const struct exec *e)
{
	return e->small ? (const void *)io_small_kernel : (const void *)io_kernel;
}

static cudaError_t start(const struct gpu_stream *s, struct io_params *p, uint32_t blocks, uint32_t dyn_bytes)
{
	void *args[] = {p};
	dim3 grid = {blocks, 1, 1}, block = {s->exec->small ? IO_SMALL_THREADS : IO_THREADS, 1, 1};

	return cudaLaunchKernel(kernel_of(s->exec), grid, block, args, dyn_bytes, s->stream);
}

/* One block's part of what all n have on the link at once. */
static uint32_t part(uint32_t all, uint32_t n, uint32_t most)
{
	uint32_t mine = all / n;

	return mine < 1 ? 1 : mine > most ? most : mine;
}

/* Events first: the stream holds the kernel back until all of them are there. */
static int kernel_launch(struct gpu_stream *s, const struct gpu_job *j, uint32_t at)
{
	struct exec *e = s->exec;
	const struct exec_job *job = &j->job;
	struct io_params p = {.sq_first = job->sq_first,
	                      .count = job->count,
	                      .clock_ns = __atomic_load_n(&e->clock_ns, __ATOMIC_RELAXED),
	                      .exits = &s->exits[at * IO_BLOCKS_MAX],
	                      .stop = s->stop,
	                      .launch = j->launch,
	                      .near = !e->small && io_near_bytes(job->count)};
	uint32_t dyn_bytes;
	int n = stages_for(e, job->blocks[0], job->count, &dyn_bytes), rc = 0;

	if (n < 0)
		return err_set(-EINVAL, "cuda: a queue depth of %u does not fit an SM's shared memory; ask for less",
		               job->blocks[0]->n_cmds);
	p.n_stages = (uint32_t)n;
	p.loads = part(job->gentle ? IO_GENTLE : IO_LOADS_FULL, job->n_blocks, IO_STAGES_MAX);
	p.stores = part(job->gentle ? IO_GENTLE : IO_STORES_FULL, job->n_blocks, IO_STORES_MAX);
	for (uint32_t i = 0; i < job->n_blocks; i++)
		p.blocks[i] = job->blocks[i];
	for (uint32_t i = 0; i < job->n_events && !rc; i++)
		rc = gpu_stream_wait(e, s->stream, job->events[i].word, job->events[i].value);
	return rc ? rc : gpu_error(start(s, &p, job->n_blocks, dyn_bytes), "launching an I/O kernel");
}

int gpu_launch(struct exec *e, uint32_t stream, const struct exec_job *job)
{
	struct gpu_stream *s = &e->streams[stream];
	int rc = 0;

	cudaSetDevice(e->device);
	pthread_mutex_lock(&s->lock);
	if (s->lost || s->tail - s->head == GPU_JOBS_MAX) {
		rc = s->lost ? -ENOTRECOVERABLE : -EAGAIN;
	} else {
		struct gpu_job *j = &s->jobs[s->tail % GPU_JOBS_MAX];

		j->job = *job;
		if (!j->job.n_blocks || j->job.n_blocks > e->blocks)
			j->job.n_blocks = e->blocks;
		j->launched_ns = port_now_ns();
		j->launch = (uint32_t)(s->tail / GPU_JOBS_MAX) + 1; /* differs from the last use of the place */
		j->over = j->late = 0;
		rc = kernel_launch(s, j, (uint32_t)(s->tail % GPU_JOBS_MAX));
		j->job.events = NULL; /* the caller's, for the call */
		if (!rc)
			/* Orders the tail before the look at the watchdog (pairs with its announcement). */
			__atomic_store_n(&s->tail, s->tail + 1, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&s->lock);
	if (!rc) {
		pthread_cond_broadcast(&s->change);
		gpu_watch_wake(e);
	}
	return rc;
}

/* ---- the first run ---- */

static int first_run(struct gpu_stream *s)
{
	struct io_params p = {.exits = s->exits, .stop = s->stop};
	int rc = gpu_error(cudaMemsetAsync(s->stop, 1, sizeof(*s->stop), s->stream), "the first kernel");

	if (!rc) /* it finds the stop word */
		rc = gpu_error(start(s, &p, s->exec->blocks, s->exec->dyn_max), "the first kernel");
	if (!rc)
		rc = gpu_error(cudaMemcpyAsync(s->stop, s->exits, sizeof(*s->stop), cudaMemcpyHostToDevice, s->stream),
		               "the first kernel");
	if (!rc)
		rc = gpu_error(cudaMemsetAsync(s->stop, 0, sizeof(*s->stop), s->stream), "the first kernel");
	if (!rc)
		rc = gpu_error(cudaStreamSynchronize(s->stream), "the first kernel");
	if (!rc && s->exits[0].rc != -EINTR)
		rc = err_set(-EIO, "cuda: the first kernel said %d", s->exits[0].rc);
	return rc;
}

/* The difference of the clocks: the question and answer that took the least time. */
static int clock_ask(struct exec *e, struct io_clock *w)
{
	uint64_t best = ~0ull, give_up = port_now_ns() + CLOCK_NS;
	void *args[] = {&w};
	dim3 one = {1, 1, 1};
	int rc = gpu_error(cudaLaunchKernel((const void *)io_clock_kernel, one, one, args, 0, e->streams[0].stream),
	                   "comparing clocks");

	for (uint32_t i = 1; i <= IO_CLOCK_ROUNDS && !rc; i++) {
		uint64_t t0 = port_now_ns(), t1 = t0;

		port_store_release32(&w->ask, i);
		while (port_load_acquire32(&w->answer) != i && t1 < give_up)
			t1 = port_now_ns();
		t1 = port_now_ns();
		if (t1 >= give_up) {
			rc = err_set(-ETIMEDOUT, "cuda: the GPU does not answer");
		} else if (t1 - t0 < best) {
			best = t1 - t0;
			e->clock_ns = (int64_t)(t0 + (t1 - t0) / 2 - w->time);
		}
	}
	return rc;
}

static int clock_find(struct exec *e)
{
	struct io_clock *w = gpu_memory_get(e, sizeof(*w), EXEC_SHARED);
	int rc = w ? clock_ask(e, w) : -ENOMEM;

	if (w) {
		cudaStreamSynchronize(e->streams[0].stream);
		gpu_memory_put(e, w, sizeof(*w), EXEC_SHARED);
	}
	return rc;
}

int gpu_warm_up(struct exec *e)
{
	struct cudaFuncAttributes attr;
	int most = 0, rc = gpu_error(cudaFuncGetAttributes(&attr, kernel_of(e)), "loading the I/O kernel");

	if (!rc)
		rc = gpu_error(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, e->device),
		               "asking");
	if (rc)
		return rc;
	e->dyn_max = (uint32_t)most - (uint32_t)attr.sharedSizeBytes;
	rc = gpu_error(cudaFuncSetAttribute(kernel_of(e), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)e->dyn_max),
	               "shared memory");
	for (uint32_t i = 0; i < e->n_streams && !rc; i++)
		rc = first_run(&e->streams[i]);
	return rc ? rc : clock_find(e);
}
