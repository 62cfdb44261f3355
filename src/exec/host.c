/*
 * host.c - device code on CPU threads: one thread per thread block of each stream.
 *
 * A stream's jobs lie in a bounded ring. Every block keeps its own position in it and takes jobs in order, so blocks of
 * one stream need not meet; a job leaves the ring when its last block has returned. Threads sleep on a condition when
 * there is nothing to do.
 */
#include "exec/exec.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/err.h"
#include "base/thread.h"
#include "port/port.h"

#define STREAMS_MAX 8u
#define BLOCKS_MAX 64u
#define EVENT_POLL_NS 20000

struct worker {
	struct exec_stream *stream;
	uint32_t block;
	uint64_t at; /* number of the next job of this block */
	pthread_t thread;
};

struct entry {
	struct exec_job job;
	struct exec_event event; /* word NULL: none */
	uint32_t blocks_left;
};

struct exec_stream {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct entry *jobs; /* ring of queue_jobs */
	uint64_t head;      /* first job that is not finished by all blocks */
	uint64_t tail;      /* next job to be launched */
	uint32_t queue_jobs, n_blocks, started;
	int stop;
	struct worker workers[BLOCKS_MAX];
};

struct exec {
	uint32_t n_streams;
	struct exec_stream streams[STREAMS_MAX];
};

/* An event is a word that the engine's thread writes: there is nobody to wake us, so look now and then. */
static void wait_event(const struct exec_event *event, uint64_t deadline_ns)
{
	const struct timespec nap = {.tv_nsec = EVENT_POLL_NS};

	while (event->word && port_load_acquire32(event->word) < event->value && port_now_ns() < deadline_ns)
		nanosleep(&nap, NULL); /* nobody wakes us, see above */
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct exec_stream *s = w->stream;

	prctl(PR_SET_NAME, "tutti-io");
	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct entry *e;
		struct exec_event event;
		struct exec_job job;
		int last;

		while (w->at == s->tail && !s->stop)
			pthread_cond_wait(&s->more, &s->lock);
		if (w->at == s->tail)
			break;
		e = &s->jobs[w->at % s->queue_jobs];
		job = e->job;
		event = e->event;
		pthread_mutex_unlock(&s->lock);
		wait_event(&event, job.deadline_ns);
		job.kernel(job.arg, w->block, s->n_blocks, job.sq_first, job.count);
		pthread_mutex_lock(&s->lock);
		w->at++;
		last = --e->blocks_left == 0;
		if (last)
			s->head++; /* blocks keep the order, so jobs end in order */
		if (last && job.done) {
			pthread_mutex_unlock(&s->lock);
			job.done(job.done_arg);
			pthread_mutex_lock(&s->lock);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void stream_close(struct exec_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = 1;
	pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
	for (uint32_t b = 0; b < s->started; b++)
		pthread_join(s->workers[b].thread, NULL);
	free(s->jobs);
	pthread_cond_destroy(&s->more);
	pthread_mutex_destroy(&s->lock);
}

static int stream_open(struct exec_stream *s, const struct exec_opts *o)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	s->queue_jobs = o->queue_jobs;
	s->n_blocks = o->blocks;
	s->jobs = calloc(o->queue_jobs, sizeof(*s->jobs));
	if (!s->jobs)
		return err_set(-ENOMEM, "executor: no memory for %u jobs", o->queue_jobs);
	for (uint32_t b = 0; b < o->blocks; b++) {
		int rc;

		s->workers[b].stream = s;
		s->workers[b].block = b;
		rc = thread_start(&s->workers[b].thread, work, &s->workers[b]);
		if (rc)
			return err_set(rc, "executor: thread %u could not be started; look at ulimit -u", b);
		s->started++;
	}
	return 0;
}

static void host_close(struct exec *e)
{
	for (uint32_t i = 0; i < e->n_streams; i++)
		stream_close(&e->streams[i]);
	free(e);
}

static int host_open(const struct exec_opts *o, struct exec **out)
{
	struct exec *e;

	if (!o->streams || o->streams > STREAMS_MAX || !o->blocks || o->blocks > BLOCKS_MAX || !o->queue_jobs)
		return err_set(-EINVAL, "executor: %u streams of %u blocks; at most %u of %u", o->streams, o->blocks,
		               STREAMS_MAX, BLOCKS_MAX);
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "executor: no memory");
	for (uint32_t i = 0; i < o->streams; i++) {
		int rc = stream_open(&e->streams[i], o);

		e->n_streams++;
		if (rc) {
			host_close(e);
			return rc;
		}
	}
	*out = e;
	return 0;
}

static int host_launch(struct exec *e, uint32_t stream, const struct exec_job *job)
{
	struct exec_stream *s = &e->streams[stream];
	int rc = 0;

	if (job->n_events > 1)
		return err_set(-EINVAL, "executor: a kernel on the host waits for one event at most");
	pthread_mutex_lock(&s->lock);
	if (s->tail - s->head == s->queue_jobs) {
		rc = -EAGAIN;
	} else {
		struct entry *at = &s->jobs[s->tail % s->queue_jobs];

		at->job = *job;
		at->event = job->n_events ? job->events[0] : (struct exec_event){0};
		at->blocks_left = s->n_blocks;
		s->tail++;
	}
	pthread_mutex_unlock(&s->lock);
	/* After the unlock: a worker that wakes would meet the lock, and the unlock would have to wake it once more. */
	if (!rc)
		pthread_cond_broadcast(&s->more);
	return rc;
}

/* ---- memory: there is one kind ---- */

static void *host_memory_get(struct exec *e, uint64_t bytes, enum exec_memory kind)
{
	uint64_t size = (bytes + 63) / 64 * 64;
	void *p = aligned_alloc(64, size);

	(void)e;
	(void)kind;
	if (p)
		memset(p, 0, size);
	return p;
}

static void host_memory_put(struct exec *e, void *p, uint64_t bytes, enum exec_memory kind)
{
	(void)e;
	(void)bytes;
	(void)kind;
	free(p);
}

static int host_share(struct exec *e, void *p, uint64_t bytes)
{
	(void)e;
	(void)p;
	(void)bytes;
	return 0;
}

static void host_unshare(struct exec *e, void *p, uint64_t bytes) { (void)host_share(e, p, bytes); }

static int host_copy_in(struct exec *e, uint32_t stream, void *near, const void *shared, uint64_t bytes)
{
	(void)e;
	(void)stream;
	if (shared)
		memcpy(near, shared, bytes);
	else
		memset(near, 0, bytes);
	return 0;
}

static int host_settle(struct exec *e, uint32_t stream)
{
	(void)e;
	(void)stream;
	return 0;
}

static int host_is_near(const void *p)
{
	(void)p;
	return 0;
}

static int host_stream(struct exec *e, void *stream, uint32_t *flag, uint32_t value)
{
	(void)e;
	(void)stream;
	(void)flag;
	(void)value;
	return err_set(-ENOTSUP, "the host executor knows no streams and events of a GPU");
}

static uint64_t host_near_bytes(const struct exec *e)
{
	(void)e;
	return 0;
}

static const char *host_describe(struct exec *e)
{
	(void)e;
	return "host threads";
}

const struct exec_ops exec_host = {
    .name = "host threads",
    .open = host_open,
    .close = host_close,
    .launch = host_launch,
    .memory_get = host_memory_get,
    .memory_put = host_memory_put,
    .share = host_share,
    .unshare = host_unshare,
    .copy_in = host_copy_in,
    .settle = host_settle,
    .is_near = host_is_near,
    .near_bytes = host_near_bytes,
    .stream_wait = host_stream,
    .stream_write = host_stream,
    .event_write = host_stream,
    .describe = host_describe,
};
