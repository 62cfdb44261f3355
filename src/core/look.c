/*
 * look.c - a look at a pool from outside: what its superblock and records say, and who has it. Reads alone.
 *
 * Whoever has the pool may write meanwhile. Superblocks and records exist twice and are written one copy after the
 * other, so one of the two is whole at any time; only a look so slow that it meets both writes finds neither, and looks
 * again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/lock.h"
#include "core/opts.h"
#include "core/pool.h"
#include "port/port.h"
#include "tutti/tutti.h"

#define TRIES 3

struct look {
	struct pool pool;
	struct media *media;
	struct store_probe probe;
	struct tutti_pool_info info;
	struct tutti_ns_info ns[STORE_NAMESPACES_MAX];
	struct tutti_pool_look told;
};

static uint64_t now(void *arg)
{
	(void)arg;
	return port_now_ns();
}

static int read_records(struct look *l)
{
	const struct store_open_opts so = {.now_ns = now};
	int rc = -EBADMSG;

	for (int i = 0; i < TRIES && rc == -EBADMSG; i++) {
		uint32_t n = STORE_NAMESPACES_MAX;

		rc = store_look(media_table(l->media), &so, &l->info, l->ns, &n);
		if (!rc)
			rc = store_probe(media_table(l->media), 0, &l->probe);
	}
	return rc ? pool_blame(&l->pool, rc) : 0;
}

int tutti_pool_look(const struct tutti_store_opts *opts, tutti_pool_look_fn fn, void *arg)
{
	struct tutti_store_opts o;
	struct pool_opts po = {.read_only = 1};
	struct look *l;
	int pid, rc = OPTS_TAKE(&o, opts, "tutti_pool_look", "TUTTI_STORE_OPTS_INIT");

	if (rc)
		return rc;
	if (!fn)
		return err_set(-EINVAL, "tutti_pool_look: NULL");
	l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(-ENOMEM, "no memory to look at a pool");
	po.paths = o.paths;
	po.n_paths = o.n_paths;
	rc = pool_open(&po, &l->pool);
	if (!rc)
		rc = media_new(l->pool.ops, l->pool.ctrl, &l->pool.info, &l->media);
	if (!rc)
		rc = read_records(l);
	if (!rc) {
		l->told = (struct tutti_pool_look){.pool = &l->info, .ns = l->ns, .host = ""};
		l->told.held = lock_store_held(l->pool.fd[0], &pid);
		l->told.pid = pid;
		l->told.lane_pid = lock_lane_pid(l->pool.fd[0], NULL);
		/* The superblock names the last opener: of one that is coming in only once it has raised the epoch. */
		if (pid && l->probe.owner_pid == pid)
			l->told.host = l->probe.owner_host;
		rc = fn(arg, &l->told);
	}
	media_free(l->media);
	pool_close(&l->pool);
	free(l);
	return rc;
}
