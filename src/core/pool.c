/* pool.c - opens a pool's devices and their controller. */
#include "core/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "core/lock.h"
#include "core/path.h"
#include "ctrl/nvme_ctrl.h"

#define BLAMED_BYTES 256

static const struct ctrl_io_ops *test_io_ops;
static void *test_io_arg;

void pool_use_io(const struct ctrl_io_ops *ops, void *arg)
{
	test_io_ops = ops;
	test_io_arg = arg;
}

static uint32_t test_lba_bytes, test_mdts_bytes;

void pool_use_blocks(uint32_t lba_bytes, uint32_t mdts_bytes)
{
	test_lba_bytes = lba_bytes;
	test_mdts_bytes = mdts_bytes;
}

const struct ctrl_ops *pool_ctrl_ops(enum tutti_controller kind)
{
	switch (kind) {
	case TUTTI_CTRL_AUTO:
	case TUTTI_CTRL_VIRT:
		return &ctrl_virt;
	case TUTTI_CTRL_MODEL:
		return &ctrl_model;
	case TUTTI_CTRL_NULL:
		return &ctrl_null;
	}
	return NULL;
}

/* Is there something at path i that can be opened, and not what an earlier path names? */
static int look(const struct pool *p, const struct pool_opts *o, const char *const *paths, uint32_t i, struct stat *st)
{
	int kind = pool_path_look(paths[i], &st[i]);

	if (kind == -EISDIR || kind == -ENOTBLK)
		return o->as_given ? kind : err_prefix(-ENOMEDIUM, "no pool there");
	if (kind == POOL_PATH_NONE)
		return err_set(-ENOENT,
		               "there is no file %s; tutti_format, or the command 'tutti format', makes a pool",
		               paths[i]);
	if (kind < 0)
		return kind;
	if ((kind == POOL_PATH_DRIVE) != p->nvme)
		return err_set(-EINVAL, "%s and %s: a pool lies on drives alone, or on files and block devices",
		               paths[0], paths[i]);
	for (uint32_t k = 0; k < i; k++)
		if (p->nvme ? !strcmp(paths[i], paths[k]) : pool_path_same(&st[i], &st[k]))
			return err_set(-EINVAL, "%s and %s are one and the same; name each device once", paths[k],
			               paths[i]);
	return 0;
}

static int open_fds(struct pool *p, const struct pool_opts *o, const char *const *paths, uint32_t n)
{
	struct stat st[TUTTI_DEVICES_MAX] = {0};

	for (uint32_t i = 0; i < n; i++) {
		int rc;

		if (strlen(paths[i]) >= POOL_PATH_BYTES)
			return err_set(-ENAMETOOLONG, "pool path %u is longer than %d bytes", i, POOL_PATH_BYTES);
		memcpy(p->path[i], paths[i], strlen(paths[i]) + 1);
		p->fd[i] = -1;
		p->nvme = pool_path_is_nvme(paths[0]);
		rc = look(p, o, paths, i, st);
		if (rc)
			return rc;
		if (p->nvme) {
			p->n_dev++;
			continue;
		}
		p->fd[i] = fork_open(paths[i], o->read_only ? O_RDONLY : O_RDWR, 0);
		if (p->fd[i] < 0) {
			rc = pool_path_refused(paths[i], errno);
			return rc == -ETXTBSY && !o->as_given ? err_prefix(-ENOMEDIUM, "no pool there") : rc;
		}
		p->n_dev++;
	}
	return 0;
}

static int open_ctrl(struct pool *p, const struct pool_opts *o)
{
	struct ctrl_model timing = {
	    .read_bytes_per_s = o->timing.read_bytes_per_s,
	    .write_bytes_per_s = o->timing.write_bytes_per_s,
	    .read_latency_ns = o->timing.read_latency_ns,
	    .write_latency_ns = o->timing.write_latency_ns,
	    .queue_depth = o->timing.queue_depth,
	    .mixed_percent = o->timing.mixed_percent,
	};
	struct ctrl_target targets[TUTTI_DEVICES_MAX];
	struct ctrl_opts co = {.targets = targets,
	                       .n_targets = p->n_dev,
	                       .sgl = !o->no_sgl,
	                       .mdts_bytes = test_mdts_bytes,
	                       .lba_bytes = test_lba_bytes,
	                       .model = &timing,
	                       .io_ops = test_io_ops,
	                       .io_arg = test_io_arg};
	int rc;

	p->ops = p->nvme && o->controller == TUTTI_CTRL_AUTO ? &ctrl_vfio : pool_ctrl_ops(o->controller);
	if (p->nvme && p->ops != &ctrl_vfio)
		return err_set(-EINVAL, "%s: a drive answers for itself; no other controller can stand in for it",
		               p->path[0]);
	if (!p->ops)
		return err_set(-EINVAL, "unknown controller %d", (int)o->controller);
	for (uint32_t i = 0; i < p->n_dev; i++) {
		targets[i].path = p->path[i];
		targets[i].fd = -1;
		targets[i].read_only = o->read_only;
	}
	rc = p->ops->open(&co, &p->ctrl);
	if (!rc)
		rc = p->ops->identify(p->ctrl, &p->info);
	if (!rc && p->nvme) {
		p->fd[0] = nvme_lock_fd(p->ctrl);
		rc = p->fd[0] < 0 ? p->fd[0] : 0;
	}
	return rc;
}

/* The names of a pool's other devices, from the superblock of the one that is open. *n_dev is 1 when there are none. */
static int read_names(struct pool *p, struct store_probe *probe)
{
	struct media *m;
	int rc = media_new(p->ops, p->ctrl, &p->info, &m);

	if (rc)
		return rc;
	rc = store_probe(media_table(m), 0, probe);
	media_free(m);
	return rc ? err_prefix(rc, "%s", p->path[0]) : 0;
}

/* 1: the list of serial numbers has this one. */
static int names_serial(const char *list, const char *serial)
{
	size_t n = strlen(serial);

	for (const char *at = list; at && n; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, serial, n) && (!at[n] || at[n] == ','))
			return 1;
	return 0;
}

/* A drive is written only if it carries a pool, or was named by its serial number for erasing. */
static int guard_drives(struct pool *p, const struct pool_opts *o)
{
	struct store_probe *probe;
	int rc;

	if (o->erase_serial) {
		for (uint32_t i = 0; i < p->n_dev; i++) {
			const struct nvme_fn *f = nvme_fn_of(p->ctrl, i);

			if (!names_serial(o->erase_serial, f->serial))
				return err_set(-EPERM, "%s is a %s with serial number %s, not %s; nothing was touched",
				               p->path[i], f->model, f->serial, o->erase_serial);
		}
		return 0;
	}
	probe = malloc(sizeof(*probe));
	rc = probe ? read_names(p, probe) : err_set(-ENOMEM, "pool: no memory");
	free(probe);
	return rc ? err_set(-EPERM,
	                    "%s carries no pool, and is not written before it does; make one with: tutti format "
	                    "--yes-erase SERIAL %s",
	                    p->path[0], p->path[0])
	          : 0;
}

static void close_all(struct pool *p)
{
	if (p->ctrl)
		p->ops->close(p->ctrl);
	p->ctrl = NULL;
	for (uint32_t i = 0; i < p->n_dev; i++)
		if (p->fd[i] >= 0) {
			lock_release(p->fd[i]);
			fork_close(p->fd[i]);
		}
	p->n_dev = 0;
}

/* Devices that the superblock names, and nobody else did. */
static int find_rest(const struct pool *p, const struct store_probe *probe)
{
	struct stat st;

	for (uint32_t i = 0; i < probe->n_dev; i++) {
		int kind = pool_path_look(probe->paths[i], &st);

		if (kind == POOL_PATH_NONE || kind == -ENOENT || kind == -ENODEV)
			return err_set(
			    -ENODEV,
			               "%s is a device of a pool whose device %u, %s, is not there; bring it back under "
			               "that name, or name all devices where they are now, in order",
			    p->path[0], i, probe->paths[i]);
	}
	return 0;
}

static int open_rest(struct pool *p, const struct pool_opts *o)
{
	const char *names[TUTTI_DEVICES_MAX];
	struct store_probe *probe = malloc(sizeof(*probe));
	int rc = probe ? read_names(p, probe) : err_set(-ENOMEM, "pool: no memory");

	if (!rc && probe->n_dev > 1)
		rc = find_rest(p, probe);
	if (!rc && probe->n_dev > 1) {
		close_all(p);
		for (uint32_t i = 0; i < probe->n_dev; i++)
			names[i] = probe->paths[i];
		rc = open_fds(p, o, names, probe->n_dev);
		if (!rc)
			rc = open_ctrl(p, o);
		else
			err_prefix(rc, "a device of the pool (name all devices if they moved)");
	}
	free(probe);
	return rc;
}

int pool_open(const struct pool_opts *o, struct pool *p)
{
	int rc;

	memset(p, 0, sizeof(*p));
	p->forks = fork_depth();
	if (!o->paths || !o->n_paths || o->n_paths > TUTTI_DEVICES_MAX)
		return err_set(-EINVAL, "%u paths given; a pool has 1 to %d", o->n_paths, TUTTI_DEVICES_MAX);
	for (uint32_t i = 0; i < o->n_paths; i++)
		if (!o->paths[i])
			return err_set(-EINVAL, "path %u is NULL", i);
	rc = open_fds(p, o, o->paths, o->n_paths);
	if (!rc)
		rc = open_ctrl(p, o);
	if (!rc && p->nvme && o->as_given && !o->read_only)
		rc = guard_drives(p, o);
	if (!rc && o->n_paths == 1 && !o->as_given)
		rc = open_rest(p, o);
	if (rc)
		close_all(p);
	return rc;
}

void pool_close(struct pool *p) { close_all(p); }

int pool_blame(const struct pool *p, int rc)
{
	char names[BLAMED_BYTES];
	size_t n = 0;

	for (uint32_t i = 0; i < p->n_dev && n < sizeof(names); i++)
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", p->path[i]);
	return err_prefix(rc, "%s%s", p->n_dev ? names : "", n < sizeof(names) ? "" : "...");
}

int pool_own(const struct pool *p, const char *call)
{
	return p->forks == fork_depth()
	           ? 0
	           : err_set(-EINVAL,
	                     "%s: it was opened before a fork, and this is the child, which has neither its threads "
	                     "nor its files; leave it alone, and open the pool anew where it is used",
	                     call);
}
