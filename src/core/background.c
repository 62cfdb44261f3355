/*
 * background.c - the store's one thread: syncs commits after an interval, tells drives which segments a clear left, and
 * writes free segments before they are needed. Sleeps without a timer when there is nothing to do. What fails is tried
 * again: a sync after the interval, then after twice as long, and so on; of segments the next one.
 */
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/err.h"
#include "base/thread.h"
#include "core/store.h"
#include "port/port.h"

#define RETRY_MAX_NS 60000000000ull

static uint64_t after(uint64_t ns)
{
	uint64_t now = port_now_ns();

	return ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
}

/* Under the lock: when to try again, and what to say. */
static void sync_failed(struct tutti_store *s)
{
	uint64_t wait = s->sync_interval_ns, most = wait > RETRY_MAX_NS ? wait : RETRY_MAX_NS;

	for (uint32_t i = 0; i < s->syncs_failed && wait < most; i++)
		wait *= 2;
	wait = wait < most ? wait : most;
	s->syncs_failed++;
	s->sync_asked = 1;
	s->sync_due_ns = after(wait);
	if (s->sync_interval_ns == UINT64_MAX)
		return; /* nobody but the caller syncs, and is told */
	log_warn("sync failed, %u times in a row now: %s. What was committed before counts as unsynced; the next try "
	         "is in %llu ms",
	         s->syncs_failed, err_text(), (unsigned long long)(wait / 1000000u));
	pthread_cond_signal(&s->wake);
}

static void sync_worked(struct tutti_store *s)
{
	if (s->syncs_failed)
		log_note("sync works again, after %u that failed; what these covered counts as unsynced until it is "
		         "verified",
		         s->syncs_failed);
	s->syncs_failed = 0;
}

static int sync_now(struct tutti_store *s, struct media *m)
{
	const struct store_media *t = media_table(m);
	uint64_t mark;
	int rc = 0;

	pthread_mutex_lock(&s->sync_lock);
	pthread_mutex_lock(&s->lock);
	mark = store_sync_begin(s->st);
	pthread_mutex_unlock(&s->lock);
	/* All devices, whatever one of them says: the others' data is as dear. */
	for (uint32_t d = 0; d < t->n_dev; d++) {
		int r = t->flush(t->self, d);

		rc = rc ? rc : r;
	}
	pthread_mutex_lock(&s->lock);
	store_sync_end(s->st, mark, rc);
	if (rc)
		sync_failed(s);
	else
		sync_worked(s);
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_unlock(&s->sync_lock);
	return rc;
}

int tutti_store_sync(struct tutti_store *s)
{
	int rc = s ? pool_own(&s->pool, __func__) : err_set(-EINVAL, "tutti_store_sync: NULL");

	return rc ? rc : sync_now(s, s->background);
}

/* ---- work on free segments, each lent meanwhile: nobody can have it, so nothing late meets what an owner wrote ----
 */

struct chore {
	const char *what; /* "segments can't be ..." */
	int (*next)(struct tutti_store *s, uint32_t *segment, struct store_extent *extents, uint32_t *n);
	int (*work)(struct tutti_store *s, const struct store_extent *extents, uint32_t n); /* without the lock */
	int (*done)(struct tutti_store *s, uint32_t segment, int rc); /* 1: there may be more to do */
};

/* One segment. Under the lock, which is given up meanwhile. */
static void chore_in_background(struct tutti_store *s, const struct chore *c, int *asked)
{
	struct store_extent e[STORE_EXTENTS_MAX];
	uint32_t segment, n = sizeof(e) / sizeof(e[0]);
	int rc = c->next(s, &segment, e, &n);

	*asked = 0;
	if (rc && rc != -ENOENT)
		log_warn("segments can't be %s: %s", c->what, err_text());
	if (rc)
		return;
	s->lent = 1;
	__atomic_store_n(&s->lent_cancel, s->stop, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&s->lock);
	rc = c->work(s, e, n);
	pthread_mutex_lock(&s->lock);
	*asked |= c->done(s, segment, rc);
	s->lent = 0;
	pthread_cond_broadcast(&s->lent_end);
}

static int prewrite_next(struct tutti_store *s, uint32_t *segment, struct store_extent *extents, uint32_t *n)
{
	return store_prewrite_next(s->st, s->prewrite_ahead, segment, extents, n);
}

static int prewrite(struct tutti_store *s, const struct store_extent *e, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++)
		rc = media_zero(s->background, e[i].dev, e[i].offset_bytes, e[i].bytes, &s->lent_cancel);
	return rc;
}

static int prewrite_done(struct tutti_store *s, uint32_t segment, int rc)
{
	if (rc && rc != -ECANCELED)
		log_warn("segment %u could not be written ahead of use: %s", segment, err_text());
	/* One that failed is not tried again before the next open, so this comes to an end. */
	store_prewrite_done(s->st, segment, rc);
	return rc != -ECANCELED;
}

static const struct chore prewriting = {"written ahead of use", prewrite_next, prewrite, prewrite_done};

static int deallocate_next(struct tutti_store *s, uint32_t *segment, struct store_extent *extents, uint32_t *n)
{
	return store_deallocate_next(s->st, segment, extents, n);
}

/* 0 too where no device of the extents can be told. */
static int deallocate(struct tutti_store *s, const struct store_extent *e, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++)
		if (s->pool.info.ns[e[i].dev].deallocates)
			rc = media_deallocate(s->background, e[i].dev, e[i].offset_bytes, e[i].bytes, &s->lent_cancel);
	return rc;
}

static int deallocate_done(struct tutti_store *s, uint32_t segment, int rc)
{
	store_deallocate_done(s->st, segment, rc);
	if (rc && rc != -ECANCELED && !s->deallocation_told) {
		s->deallocation_told = 1;
		log_warn("segment %u, which a clear left, could not be deallocated: %s. The drive keeps its old data; "
		         "that costs wear, nothing else. Further ones are counted, not told",
		         segment, err_text());
	}
	return rc != -ENOTRECOVERABLE;
}

static const struct chore deallocating = {"deallocated", deallocate_next, deallocate, deallocate_done};

int background_yield(struct tutti_store *s)
{
	if (!s->lent)
		return 0;
	__atomic_store_n(&s->lent_cancel, 1, __ATOMIC_RELAXED);
	while (s->lent)
		pthread_cond_wait(&s->lent_end, &s->lock);
	return 1;
}

/* Under the lock, which is given up meanwhile. */
static void sync_in_background(struct tutti_store *s)
{
	s->sync_asked = 0;
	pthread_mutex_unlock(&s->lock);
	sync_now(s, s->background); /* says itself what failed */
	pthread_mutex_lock(&s->lock);
}

static void *background(void *arg)
{
	struct tutti_store *s = arg;

	prctl(PR_SET_NAME, "tutti-store");
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		int wanted = s->sync_asked && s->sync_interval_ns != UINT64_MAX;

		/* A sync that is due comes before writing ahead: there may be no end of segments to write. */
		if (wanted && port_now_ns() >= s->sync_due_ns) {
			sync_in_background(s);
		} else if (s->deallocate_asked) {
			chore_in_background(s, &deallocating, &s->deallocate_asked);
		} else if (s->prewrite_asked) {
			chore_in_background(s, &prewriting, &s->prewrite_asked);
		} else if (wanted) {
			struct timespec due = {.tv_sec = (time_t)(s->sync_due_ns / 1000000000u),
			                       .tv_nsec = (long)(s->sync_due_ns % 1000000000u)};

			pthread_cond_timedwait(&s->wake, &s->lock, &due);
		} else {
			pthread_cond_wait(&s->wake, &s->lock);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void background_poke(struct tutti_store *s, int committed)
{
	int wake = 0;

	if (committed && !s->sync_asked) {
		/* From the commit on, whatever else happens meanwhile. */
		s->sync_due_ns = after(s->sync_interval_ns);
		wake = s->sync_asked = 1;
	}
	if (!committed && s->prewrite_ahead && !s->prewrite_asked)
		wake = s->prewrite_asked = 1;
	if (wake)
		pthread_cond_signal(&s->wake);
}

void background_deallocate(struct tutti_store *s)
{
	for (uint32_t i = 0; i < s->pool.info.n_ns; i++)
		s->deallocate_asked |= s->pool.info.ns[i].deallocates;
	if (s->deallocate_asked)
		pthread_cond_signal(&s->wake);
}

int background_start(struct tutti_store *s)
{
	int rc;

	for (uint32_t d = 0; d < s->pool.info.n_ns; d++) {
		uint64_t first, end;

		store_data_range(s->st, d, &first, &end);
		media_data_is(s->background, d, first, end);
	}
	s->prewrite_asked = s->prewrite_ahead != 0;
	background_deallocate(s); /* of what an earlier opener had no time for */
	rc = thread_start(&s->thread, background, s);
	s->thread_started = rc == 0;
	return rc ? err_set(rc, "the store's background thread could not be started; look at ulimit -u") : 0;
}

void background_stop(struct tutti_store *s)
{
	if (!s->thread_started)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = 1;
	__atomic_store_n(&s->lent_cancel, 1, __ATOMIC_RELAXED);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	s->thread_started = 0;
}
