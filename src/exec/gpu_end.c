/*
 * gpu_end.c - the end of kernels. A thread per stream looks at the words that a kernel's blocks write last, with naps
 * between, and then does what is the host's: takes blocks out of a failed kernel, calls back. It asks the driver only
 * now and then, for a kernel that ended with the device in error. A watchdog, which calls no CUDA, raises what late
 * kernels wait for, and speaks for kernels that do not end.
 */
#include "exec/gpu.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/err.h"
#include "base/thread.h"

#define WATCH_NS 100000000ull
#define GRACE_NS 1000000000ull
#define NAP_MIN_NS 10000u
#define NAP_MAX_NS 100000u
#define SLACK_NS 1000ul
#define ASK_NAPS 128u /* between two questions to the driver */
#define LINGER_NS 2000000ull /* a kernel that follows so soon finds its thread awake: waking it costs the caller */
#define LINGER_NAP_NS 50000
#define WATCH_LINGER 10u /* likewise, in turns of WATCH_NS */

/* ---- the end of a kernel ---- */

/* Two sure bounds of the difference of the clocks; it drifts slowly. */
static void clock_refine(struct exec *e, const struct gpu_job *j, const struct io_exit *x, uint64_t now_ns)
{
	int64_t low = (int64_t)(j->launched_ns - x->begin), high = (int64_t)(now_ns - x->end);
	int64_t clock = __atomic_load_n(&e->clock_ns, __ATOMIC_RELAXED);

	if (clock < low || clock > high)
		__atomic_store_n(&e->clock_ns, clock < low ? low : high, __ATOMIC_RELAXED);
}

static void job_over(struct gpu_stream *s, struct gpu_job *j, const struct io_exit *exits, cudaError_t error)
{
	struct exec *e = s->exec;
	int failed = 0, mend = 0;

	for (uint32_t i = 0; i < j->job.n_blocks; i++) {
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
			cudaMemsetAsync(s->stop, 0, sizeof(*s->stop), s->stream);
	}
	j->job.ended(j->job.arg);
	if (j->job.done)
		j->job.done(j->job.done_arg);
}

static int kernel_over(const struct io_exit *exits, uint32_t n_blocks, uint32_t launch)
{
	for (uint32_t i = 0; i < n_blocks; i++)
		/* Orders the word before all that the block wrote (pairs with io_exit_put's release). */
		if (port_load_acquire32(&exits[i].over) != launch)
			return 0;
	return 1;
}

/* Looks until the kernel is over, the device is in error (returned), or the watchdog has spoken. */
static cudaError_t kernel_wait(struct gpu_stream *s, const struct io_exit *exits, const struct gpu_job *j)
{
	struct timespec nap = {.tv_nsec = NAP_MIN_NS};
	uint32_t blocks = j->job.n_blocks, launch = j->launch;

	for (uint32_t n = 1; !kernel_over(exits, blocks, launch) && !__atomic_load_n(&s->lost, __ATOMIC_RELAXED); n++) {
		cudaError_t error = n % ASK_NAPS ? cudaErrorNotReady : cudaStreamQuery(s->stream);

		/* The driver's "all done" may be ahead of the words only if the kernel died without a word. */
		if (error == cudaSuccess && !kernel_over(exits, blocks, launch))
			return cudaErrorLaunchFailure;
		if (error != cudaErrorNotReady && error != cudaSuccess)
			return error;
		nanosleep(&nap, NULL); /* a GPU wakes nobody */
		nap.tv_nsec = nap.tv_nsec * 2 < NAP_MAX_NS ? nap.tv_nsec * 2 : NAP_MAX_NS;
	}
	return cudaSuccess;
}

/* Under the lock: until there is a job, or the last one is long over. */
static void linger(struct gpu_stream *s)
{
	const struct timespec nap = {.tv_nsec = LINGER_NAP_NS};
	uint64_t until = port_now_ns() + LINGER_NS;

	while (s->head == s->tail && !s->closing && port_now_ns() < until) {
		pthread_mutex_unlock(&s->lock);
		nanosleep(&nap, NULL); /* so that nobody need wake us */
		pthread_mutex_lock(&s->lock);
	}
}

static void *stream_work(void *arg)
{
	struct gpu_stream *s = arg;
	/* Our calls must not end an application's capture of a graph. */
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

	cudaSetDevice(s->exec->device);
	cudaThreadExchangeStreamCaptureMode(&mode);
	prctl(PR_SET_NAME, "tutti-gpu");
	prctl(PR_SET_TIMERSLACK, SLACK_NS);
	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct gpu_job *j;
		struct io_exit *exits;
		cudaError_t error;

		if (s->head)
			linger(s);
		while (s->head == s->tail && !s->closing)
			pthread_cond_wait(&s->change, &s->lock);
		if (s->head == s->tail)
			break;
		j = &s->jobs[s->head % GPU_JOBS_MAX];
		exits = &s->exits[s->head % GPU_JOBS_MAX * IO_BLOCKS_MAX];
		pthread_mutex_unlock(&s->lock);
		error = kernel_wait(s, exits, j);
		pthread_mutex_lock(&s->lock);
		j->over = 1;
		if (s->lost) /* the watchdog has spoken for it */
			break;
		pthread_mutex_unlock(&s->lock);
		job_over(s, j, exits, error);
		pthread_mutex_lock(&s->lock);
		__atomic_store_n(&s->head, s->head + 1, __ATOMIC_SEQ_CST);
		pthread_cond_broadcast(&s->change);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- the watchdog ---- */

/* Calls no CUDA. */
static void stream_watch(struct gpu_stream *s, uint64_t now_ns)
{
	pthread_mutex_lock(&s->lock);
	for (uint64_t i = s->head; i != s->tail && !s->lost; i++) {
		struct gpu_job *j = &s->jobs[i % GPU_JOBS_MAX];

		if (!j->over && !j->late && j->job.late && now_ns > j->job.deadline_ns) {
			j->late = 1;
			j->job.late(j->job.arg, j->job.sq_first, j->job.count);
		}
	}
	if (!s->lost && s->head != s->tail && !s->jobs[s->head % GPU_JOBS_MAX].over &&
	    now_ns > s->jobs[s->head % GPU_JOBS_MAX].job.deadline_ns + GRACE_NS) {
		__atomic_store_n(&s->lost, 1, __ATOMIC_RELAXED);
		for (uint64_t i = s->head; i != s->tail; i++) {
			struct exec_job *j = &s->jobs[i % GPU_JOBS_MAX].job;

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
		any |= __atomic_load_n(&e->streams[i].head, __ATOMIC_SEQ_CST) !=
		       __atomic_load_n(&e->streams[i].tail, __ATOMIC_SEQ_CST);
	return any;
}

static void *watch(void *arg)
{
	struct exec *e = arg;
	uint32_t turns = WATCH_LINGER; /* since something was to be watched */

	prctl(PR_SET_NAME, "tutti-watch");
	pthread_mutex_lock(&e->watch_lock);
	while (!e->closing) {
		uint64_t until = port_now_ns() + WATCH_NS;
		struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

		/* Orders the announcement before the look at the tails (pairs with gpu_launch). */
		turns = busy(e) ? 0 : turns + 1;
		__atomic_store_n(&e->watch_idle, turns > WATCH_LINGER, __ATOMIC_SEQ_CST);
		if (turns > WATCH_LINGER && !busy(e))
			pthread_cond_wait(&e->watch_change, &e->watch_lock);
		else
			pthread_cond_timedwait(&e->watch_change, &e->watch_lock, &t);
		__atomic_store_n(&e->watch_idle, 0, __ATOMIC_SEQ_CST);
		for (uint32_t i = 0; i < e->n_streams; i++)
			stream_watch(&e->streams[i], port_now_ns());
	}
	pthread_mutex_unlock(&e->watch_lock);
	return NULL;
}

void gpu_watch_wake(struct exec *e)
{
	if (!__atomic_load_n(&e->watch_idle, __ATOMIC_SEQ_CST))
		return;
	pthread_mutex_lock(&e->watch_lock);
	pthread_cond_signal(&e->watch_change);
	pthread_mutex_unlock(&e->watch_lock);
}

/* ---- threads ---- */

int gpu_watch_start(struct exec *e)
{
	int rc = 0;

	for (uint32_t i = 0; i < e->n_streams && !rc; i++) {
		rc = thread_start(&e->streams[i].thread, stream_work, &e->streams[i]);
		e->streams[i].started = rc == 0;
	}
	if (!rc)
		rc = thread_start(&e->watchdog, watch, e);
	e->watching = rc == 0;
	return rc ? err_set(rc, "cuda: a thread could not be started; look at ulimit -u") : 0;
}

void gpu_watch_stop(struct exec *e)
{
	if (e->watching) {
		pthread_mutex_lock(&e->watch_lock);
		e->closing = 1;
		pthread_cond_broadcast(&e->watch_change);
		pthread_mutex_unlock(&e->watch_lock);
		pthread_join(e->watchdog, NULL);
	}
	for (uint32_t i = 0; i < e->n_streams; i++) {
		struct gpu_stream *s = &e->streams[i];

		pthread_mutex_lock(&s->lock);
		s->closing = 1;
		pthread_cond_broadcast(&s->change);
		pthread_mutex_unlock(&s->lock);
		if (s->started)
			pthread_join(s->thread, NULL);
	}
}

int gpu_settle(struct exec *e, uint32_t stream)
{
	struct gpu_stream *s = &e->streams[stream];
	int lost;

	pthread_mutex_lock(&s->lock);
	while (s->head != s->tail && !s->lost)
		pthread_cond_wait(&s->change, &s->lock);
	lost = s->lost;
	pthread_mutex_unlock(&s->lock);
	if (lost)
		return -ENOTRECOVERABLE;
	cudaSetDevice(e->device);
	return gpu_error(cudaStreamSynchronize(s->stream), "waiting for a stream");
}
