/* fake_gpu.c - see fake_gpu.h. */
#include "exec/fake_gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dev/io.h"
#include "exec/sim.h"

#define STREAMS 2u
#define JOBS 256u
#define NAP_NS 50000

/* Called on the streams' threads, too, where a CHECK may not be: it leaves the case, which runs on another. */
#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: MUST(%s)\n", __FILE__, __LINE__, #cond);                               \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static enum fake_gpu_kernel used;

void fake_gpu_use(enum fake_gpu_kernel kernel) { used = kernel; }

/* ---- memory ---- */

static struct {
	uint8_t *at;
	uint64_t bytes;
} hbm[8];

void *fake_gpu_get(uint64_t bytes)
{
	for (unsigned i = 0; i < 8; i++)
		if (!hbm[i].at) {
			hbm[i].at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
			hbm[i].bytes = bytes;
			return hbm[i].at;
		}
	return NULL;
}

void fake_gpu_put(void *p)
{
	for (unsigned i = 0; i < 8; i++)
		if (hbm[i].at == p) {
			free(p);
			hbm[i].at = NULL;
		}
}

static void hbm_copy(void *dst, const void *src, uint64_t bytes) { memcpy(dst, src, bytes); }

const struct rig_accel fake_gpu_accel = {.get = fake_gpu_get, .put = fake_gpu_put, .copy = hbm_copy};

static int is_near(const void *p)
{
	for (unsigned i = 0; i < 8; i++)
		if (hbm[i].at && (const uint8_t *)p >= hbm[i].at && (const uint8_t *)p < hbm[i].at + hbm[i].bytes)
			return 1;
	return 0;
}

void fake_gpu_let(struct app_stream *s)
{
	s->busy = 0;
	for (unsigned i = 0; i < s->n; i++)
		port_store_release32(s->writes[i].word, s->writes[i].value);
	s->n = 0;
}

/* ---- streams ---- */

struct fake_stream {
	struct exec *exec;
	uint32_t stop;
	uint64_t stop_end; /* first job that the stop word is not for */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct exec_job jobs[JOBS];
	struct exec_event events[JOBS][32];
	uint64_t head, tail;
	int closing;
};

struct exec {
	uint32_t blocks;
	uint64_t near_bytes;
	struct fake_stream streams[STREAMS];
};

static int words_there(const struct exec_event *events, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (port_load_acquire32(events[i].word) < events[i].value)
			return 0;
	return 1;
}

static int blocks_run(struct exec *e, const struct exec_job *job)
{
	int failed = 0;

	for (uint32_t i = 0; i < e->blocks; i++) {
		struct dev_block *b = job->blocks[i];

		b->index = i;
		b->n_blocks = e->blocks;
		b->exit_rc = dev_io_run(b, job->sq_first, job->count);
		failed |= b->exit_rc != 0;
		for (uint32_t k = b->first_open; k < b->n_steps && b->exit_rc; k++) {
			dev_step_fail_open(b, k, b->exit_rc);
			if (dev_step_verifies(&b->steps[k]))
				dev_step_verify(&b->steps[k]);
		}
	}
	return failed;
}

/* A block that gave up raises the stop word; what was launched by then ends at once (gpu_end.c). */
static int blocks_sim(struct fake_stream *s, const struct exec_job *job)
{
	uint32_t n = job->n_blocks && job->n_blocks < s->exec->blocks ? job->n_blocks : s->exec->blocks;
	int failed = 0, mend = 0;

	if (s->head == s->stop_end)
		s->stop = 0;
	sim_kernel(job->blocks, n, job->sq_first, job->count, &s->stop);
	for (uint32_t i = 0; i < n; i++) {
		int rc = job->blocks[i]->exit_rc;

		failed |= rc != 0;
		mend |= rc && rc != -EINTR;
	}
	pthread_mutex_lock(&s->lock);
	if (mend)
		s->stop_end = s->tail;
	pthread_mutex_unlock(&s->lock);
	return failed;
}

static void job_run(struct fake_stream *s, const struct exec_job *job, const struct exec_event *events)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	int failed, late = 0;

	while (!words_there(events, job->n_events)) { /* a stream has no deadline: it needs job->late */
		if (!late && port_now_ns() > job->deadline_ns) {
			job->late(job->arg, job->sq_first, job->count);
			late = 1;
		}
		nanosleep(&nap, NULL); /* nobody wakes us */
	}
	failed = used == FAKE_GPU_SIM ? blocks_sim(s, job) : blocks_run(s->exec, job);
	if (failed)
		job->gave_up(job->arg, job->sq_first, job->count);
	job->ended(job->arg);
	if (job->done)
		job->done(job->done_arg);
}

static void *stream_work(void *arg)
{
	struct fake_stream *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct exec_job *job;

		while (s->head == s->tail && !s->closing)
			pthread_cond_wait(&s->change, &s->lock);
		if (s->head == s->tail)
			break;
		job = &s->jobs[s->head % JOBS];
		pthread_mutex_unlock(&s->lock);
		job_run(s, job, s->events[s->head % JOBS]);
		pthread_mutex_lock(&s->lock);
		s->head++;
		pthread_cond_broadcast(&s->change);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int fake_open(const struct exec_opts *o, struct exec **out)
{
	struct exec *e = calloc(1, sizeof(*e));

	e->blocks = o->blocks;
	MUST(o->streams == STREAMS);
	for (uint32_t i = 0; i < STREAMS; i++) {
		e->streams[i].exec = e;
		pthread_mutex_init(&e->streams[i].lock, NULL);
		pthread_cond_init(&e->streams[i].change, NULL);
		MUST(!pthread_create(&e->streams[i].thread, NULL, stream_work, &e->streams[i]));
	}
	*out = e;
	return 0;
}

static void fake_close(struct exec *e)
{
	for (uint32_t i = 0; i < STREAMS; i++) {
		pthread_mutex_lock(&e->streams[i].lock);
		e->streams[i].closing = 1;
		pthread_cond_broadcast(&e->streams[i].change);
		pthread_mutex_unlock(&e->streams[i].lock);
		pthread_join(e->streams[i].thread, NULL);
	}
	MUST(e->near_bytes == 0);
	free(e);
}

static int fake_launch(struct exec *e, uint32_t stream, const struct exec_job *job)
{
	struct fake_stream *s = &e->streams[stream];

	MUST(job->n_events <= 32);
	pthread_mutex_lock(&s->lock);
	s->jobs[s->tail % JOBS] = *job;
	memcpy(s->events[s->tail % JOBS], job->events, job->n_events * sizeof(*job->events));
	s->tail++;
	pthread_cond_broadcast(&s->change);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static int fake_settle(struct exec *e, uint32_t stream)
{
	struct fake_stream *s = &e->streams[stream];

	pthread_mutex_lock(&s->lock);
	while (s->head != s->tail)
		pthread_cond_wait(&s->change, &s->lock);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static void *fake_memory_get(struct exec *e, uint64_t bytes, enum exec_memory kind)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	memset(p, 0, bytes);
	e->near_bytes += kind == EXEC_NEAR ? bytes : 0;
	return p;
}

static void fake_memory_put(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind)
{
	e->near_bytes -= kind == EXEC_NEAR ? bytes : 0;
	free(p);
}

static int fake_share(struct exec *e, void *p, uint64_t bytes) { return e && p && bytes ? 0 : -EINVAL; }

static void fake_unshare(struct exec *e, void *p, uint64_t bytes) { MUST(!fake_share(e, p, bytes)); }

/* In the stream's order: nothing of a plan may be touched while a kernel before works on it. */
static int fake_copy_in(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	(void)e;
	(void)stream;
	if (shared)
		memcpy(near, shared, bytes);
	else
		memset(near, 0, bytes);
	return 0;
}

static uint64_t fake_near_bytes(const struct exec *e) { return e->near_bytes; }

static int fake_stream_wait(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};

	(void)e;
	(void)stream;
	while (port_load_acquire32(flag) < value)
		nanosleep(&nap, NULL); /* nobody wakes us */
	return 0;
}

static int fake_stream_write(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	struct app_stream *s = stream;

	(void)e;
	MUST(s->n < 64);
	s->writes[s->n++] = (struct exec_event){flag, value};
	if (!s->busy)
		fake_gpu_let(s);
	return 0;
}

static const char *fake_describe(struct exec *e) { return e->blocks ? "cuda, but not really" : ""; }

const struct exec_ops fake_gpu = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .launch = fake_launch,
    .remote = 1,
    .memory_get = fake_memory_get,
    .memory_put = fake_memory_put,
    .share = fake_share,
    .unshare = fake_unshare,
    .copy_in = fake_copy_in,
    .settle = fake_settle,
    .is_near = is_near,
    .near_bytes = fake_near_bytes,
    .stream_wait = fake_stream_wait,
    .stream_write = fake_stream_write,
    .event_write = fake_stream_write,
    .describe = fake_describe,
};
