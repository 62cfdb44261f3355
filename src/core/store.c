/*
 * store.c - the public store: locks the pool, opens store/ over the pool's controller, serialises calls.
 */
#include "core/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "core/lock.h"
#include "core/opts.h"
#include "port/port.h"

#define SYNC_DEFAULT_NS 1000000000ull
#define LOCK_WAIT_DEFAULT_NS 5000000000ull

static uint64_t now(void *arg)
{
	(void)arg;
	return port_now_ns();
}

/* ---- open and close ---- */

/* Who has it: the lock says which process opened it; the superblock, where that runs, once it has come in. */
static int busy(struct tutti_store *s)
{
	const char *path = s->pool.path[0];
	struct store_probe *p = malloc(sizeof(*p));
	int pid, known, rc = p ? store_probe(media_table(s->media), 0, p) : -ENOMEM;

	lock_store_held(s->pool.fd[0], &pid);
	known = !rc && p->owner_pid == pid;
	if (pid && lock_gone(pid))
		err_set(-EBUSY,
		        "%s: process %d%s%s opened this pool and is not here: it runs in another container, or it is "
		        "gone, and a process that it made holds the pool on ('fuser %s' names it: stop that one)",
		        path, pid, known ? " on host " : "", known ? p->owner_host : "", path);
	else if (pid)
		err_set(-EBUSY,
		        "%s: process %d%s%s has this pool open; one store at a time (stop it, or use another pool)",
		        path, pid, known ? " on host " : "", known ? p->owner_host : "");
	else
		err_set(-EBUSY, "%s: another process is just opening this pool, or formatting it", path);
	free(p);
	return -EBUSY;
}

/* Until no lane is left but those of epoch `except`. */
static int wait_lanes(struct tutti_store *s, uint64_t except, uint64_t wait_ns)
{
	int pid, rc = lock_wait_lanes(s->pool.fd[0], except, port_now_ns() + wait_ns, &pid);

	return rc ? err_set(rc, "%s: process %d still has a lane of an earlier store open; wait for it or stop it",
	                    s->pool.path[0], pid)
	          : 0;
}

static int take_lock(struct tutti_store *s, uint64_t wait_ns)
{
	int rc = lock_store(s->pool.fd[0]);

	if (rc)
		return rc == -EBUSY ? busy(s) : err_prefix(rc, "%s", s->pool.path[0]);
	return wait_lanes(s, 0, wait_ns);
}

static void free_store(struct tutti_store *s)
{
	media_free(s->background);
	media_free(s->media);
	pool_close(&s->pool); /* and with it, the lock */
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->lent_end);
	pthread_mutex_destroy(&s->sync_lock);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static int open_store(struct tutti_store *s, const struct tutti_store_opts *o)
{
	struct pool_opts po = {
	    .paths = o->paths, .n_paths = o->n_paths, .controller = o->controller, .timing = o->timing};
	struct store_open_opts so = {
	    .owner_pid = getpid(), .now_ns = now, .progress = o->progress, .progress_arg = o->progress_arg};
	uint64_t wait_ns = o->lock_wait_ns ? o->lock_wait_ns : LOCK_WAIT_DEFAULT_NS;
	char host[STORE_HOST_BYTES] = "";
	int rc;

	if (o->controller == TUTTI_CTRL_NULL)
		return err_set(-EINVAL, "a store can't be on the null controller: it keeps nothing");
	rc = pool_open(&po, &s->pool);
	if (!rc)
		rc = media_new(s->pool.ops, s->pool.ctrl, &s->pool.info, &s->media);
	if (!rc)
		rc = media_new(s->pool.ops, s->pool.ctrl, &s->pool.info, &s->background);
	if (!rc)
		rc = take_lock(s, wait_ns);
	if (rc)
		return rc;
	gethostname(host, sizeof(host) - 1);
	so.owner_host = host;
	rc = store_open(media_table(s->media), &so, &s->st);
	if (rc)
		return pool_blame(&s->pool, rc);
	/* A lane may have come in after the look above and before the new epoch was on the medium: it believes in the
	 * old one. */
	rc = wait_lanes(s, store_epoch(s->st), wait_ns);
	if (rc)
		store_abandon(s->st);
	return rc;
}

int tutti_store_open(const struct tutti_store_opts *opts, struct tutti_store **out)
{
	struct tutti_store_opts own;
	pthread_condattr_t attr;
	struct tutti_store *s;
	int rc = OPTS_TAKE(&own, opts, "tutti_store_open", "TUTTI_STORE_OPTS_INIT");

	if (rc)
		return rc;
	if (!out)
		return err_set(-EINVAL, "tutti_store_open: NULL");
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(-ENOMEM, "no memory for a store");
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->sync_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &attr);
	pthread_cond_init(&s->lent_end, NULL);
	pthread_condattr_destroy(&attr);
	s->controller = own.controller;
	s->timing = own.timing;
	s->sync_interval_ns = own.sync_interval_ns ? own.sync_interval_ns : SYNC_DEFAULT_NS;
	s->prewrite_ahead = own.prewrite_ahead < 0 ? 0 : own.prewrite_ahead ? (uint32_t)own.prewrite_ahead : 1;
	rc = open_store(s, &own);
	if (!rc) {
		rc = background_start(s);
		if (rc)
			store_abandon(s->st);
	}
	if (rc) {
		free_store(s);
		return rc;
	}
	*out = s;
	return 0;
}

int tutti_store_close(struct tutti_store *s)
{
	int rc;

	if (!s)
		return 0;
	rc = pool_own(&s->pool, "tutti_store_close");
	if (rc)
		return rc;
	background_stop(s);
	pthread_mutex_lock(&s->lock);
	rc = store_close(s->st);
	pthread_mutex_unlock(&s->lock);
	free_store(s);
	return rc;
}

int core_enter(struct tutti_store *s, const char *call)
{
	int rc = pool_own(&s->pool, call);

	if (!rc)
		pthread_mutex_lock(&s->lock);
	return rc;
}

int tutti_store_info_sized(struct tutti_store *s, struct tutti_pool_info *out, size_t bytes)
{
	struct tutti_pool_info info;
	int rc;

	if (!s || !out)
		return err_set(-EINVAL, "tutti_store_info: NULL");
	rc = core_enter(s, "tutti_store_info");
	if (rc)
		return rc;
	store_info(s->st, &info);
	pthread_mutex_unlock(&s->lock);
	opts_give(&info, sizeof(info), out, bytes);
	return 0;
}

/* ---- namespaces ---- */

/* The public handle of a namespace; made once. Under the lock. */
static int handle(struct tutti_store *s, struct store_ns *ns, struct tutti_ns **out)
{
	struct tutti_ns *unused = NULL;

	for (uint32_t i = 0; i < s->n_ns; i++) {
		if (s->ns[i].ns == ns) {
			*out = &s->ns[i];
			return 0;
		}
		if (!s->ns[i].ns) /* its namespace was removed */
			unused = &s->ns[i];
	}
	if (!unused && s->n_ns == STORE_NAMESPACES_MAX)
		return err_set(-ENOSPC, "more than %u namespaces", STORE_NAMESPACES_MAX);
	*out = unused ? unused : &s->ns[s->n_ns++];
	(*out)->store = s;
	(*out)->ns = ns;
	return 0;
}

/* Whole, at least as it was first published: a fact that is missing would be another namespace, not a default. */
static int spec_take(struct tutti_ns_spec *own, const struct tutti_ns_spec *given, const char *call)
{
	int rc = OPTS_TAKE(own, given, call, "TUTTI_NS_SPEC_INIT");

	return rc || given->size >= sizeof(*own)
	           ? rc
	           : err_set(-EINVAL, "%s: a spec of %u bytes lacks facts; this one has %zu", call, given->size,
	                     sizeof(*own));
}

int tutti_ns_open(struct tutti_store *s, const struct tutti_ns_spec *spec, struct tutti_ns **out)
{
	struct tutti_ns_spec own;
	struct store_ns *ns;
	int rc = spec_take(&own, spec, "tutti_ns_open");

	if (rc)
		return rc;
	if (!s || !out)
		return err_set(-EINVAL, "tutti_ns_open: NULL");
	rc = core_enter(s, __func__);
	if (rc)
		return rc;
	rc = store_ns_open(s->st, &own, &ns, NULL);
	if (!rc)
		rc = handle(s, ns, out);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int tutti_ns_at(struct tutti_store *s, uint32_t i, struct tutti_ns **out)
{
	struct store_ns *ns;
	int rc;

	if (!s || !out)
		return err_set(-EINVAL, "tutti_ns_at: NULL");
	rc = core_enter(s, __func__);
	if (rc)
		return rc;
	rc = store_ns_at(s->st, i, &ns);
	if (!rc)
		rc = handle(s, ns, out);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int tutti_ns_get_info_sized(struct tutti_ns *ns, struct tutti_ns_info *out, size_t bytes)
{
	struct tutti_ns_info info;
	int rc;

	if (!ns || !out)
		return err_set(-EINVAL, "tutti_ns_get_info: NULL");
	rc = core_enter(ns->store, "tutti_ns_get_info");
	if (rc)
		return rc;
	store_ns_info(ns->ns, &info);
	pthread_mutex_unlock(&ns->store->lock);
	opts_give(&info, sizeof(info), out, bytes);
	return 0;
}

int tutti_ns_clear(struct tutti_ns *ns)
{
	int rc;

	if (!ns)
		return err_set(-EINVAL, "tutti_ns_clear: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_ns_clear(ns->ns);
	background_deallocate(ns->store);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_ns_remove(struct tutti_ns *ns)
{
	int rc;

	if (!ns)
		return err_set(-EINVAL, "tutti_ns_remove: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = ns->ns ? store_ns_remove(ns->ns) : err_set(-EINVAL, "tutti_ns_remove: it is removed already");
	if (!rc)
		ns->ns = NULL;
	background_deallocate(ns->store);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_ns_each(struct tutti_ns *ns, tutti_block_fn fn, void *arg)
{
	int rc;

	if (!ns || !fn)
		return err_set(-EINVAL, "tutti_ns_each: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_ns_each(ns->ns, fn, arg);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_ns_digest(const struct tutti_ns_spec *spec, struct tutti_key *digest)
{
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	size_t bytes = sizeof(record);
	struct tutti_ns_spec own;
	int rc = spec_take(&own, spec, "tutti_ns_digest");

	if (rc)
		return rc;
	if (!digest)
		return err_set(-EINVAL, "tutti_ns_digest: NULL");
	return store_ns_record(&own, record, &bytes, digest);
}

int tutti_keys(const struct tutti_key *ns_digest, const struct tutti_key *parent, const uint32_t *tokens,
               uint32_t block_tokens, const struct tutti_extra *extra, size_t n_blocks, struct tutti_key *keys)
{
	if (!ns_digest || !tokens || !keys || !block_tokens)
		return err_set(-EINVAL, "tutti_keys: NULL, or block_tokens 0");
	return store_keys(ns_digest, parent, tokens, block_tokens, extra, n_blocks, keys);
}
