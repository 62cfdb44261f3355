/*
 * format.c - makes a pool: checks what is there, reserves the space, has store/ write the metadata.
 *
 * Nothing is lost before every path was looked at, the pool was laid out, its space is reserved and its controller has
 * read from every device: so an old pool survives whatever keeps a new one from being made. Files that a failed format
 * created are removed again, those that it enlarged get their size back.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "core/lock.h"
#include "core/opts.h"
#include "core/path.h"
#include "core/pool.h"
#include "port/port.h"
#include "tutti/tutti.h"

#define PREWRITE_STEP (256ull << 20)

struct work {
	const struct tutti_format_opts *o;
	uint64_t each; /* bytes of each device */
	int created[TUTTI_DEVICES_MAX], is_file[TUTTI_DEVICES_MAX];
	off_t old_bytes[TUTTI_DEVICES_MAX];
	int begun; /* what was there is lost from now on */
	int fd[TUTTI_DEVICES_MAX];
	char *names[TUTTI_DEVICES_MAX]; /* as the superblock names them: a pool is opened from any directory */
	struct store_format_opts format;
	struct pool pool;
};

static int block_bytes(const char *path, uint64_t *bytes)
{
	int fd, rc = 0;

	/* O_EXCL on a block device fails while it is mounted, or in use by md or lvm. */
	fd = fork_open(path, O_RDWR | O_EXCL, 0);
	if (fd < 0 || ioctl(fd, BLKGETSIZE64, bytes)) {
		rc = -errno;
		err_set(rc, "cannot take block device %s: %s%s", path, err_name(rc),
		        rc == -EBUSY ? " (mounted, or part of md or lvm?)" : "");
	}
	if (fd >= 0)
		fork_close(fd);
	if (!rc && !*bytes)
		rc = err_set(-ENOMEDIUM, "block device %s has 0 bytes: no medium is in it, or it is not set up", path);
	return rc;
}

static int twice(const char *one, const char *other)
{
	return err_set(-EINVAL, "%s and %s are one and the same; name each device once", one, other);
}

/* Looks at every path before anything is changed. *smallest_block: bytes of the smallest block device, 0 if there is
 * none. */
static int survey(const struct tutti_format_opts *o, uint64_t *smallest_block)
{
	struct stat st[TUTTI_DEVICES_MAX] = {0};

	*smallest_block = 0;
	for (uint32_t i = 0; i < o->n_paths; i++) {
		int kind = pool_path_look(o->paths[i], &st[i]), rc = 0;
		uint64_t bytes = (uint64_t)st[i].st_size;

		if (kind < 0)
			return kind;
		for (uint32_t k = 0; k < i; k++)
			if (!strcmp(o->paths[i], o->paths[k]) ||
			    (kind != POOL_PATH_NONE && pool_path_same(&st[i], &st[k])))
				return twice(o->paths[k], o->paths[i]);
		if (kind == POOL_PATH_DRIVE)
			return err_set(-EINVAL, "%s and %s: a pool lies on drives alone, or on files and block devices",
			               o->paths[0], o->paths[i]);
		if (kind == POOL_PATH_BLOCK)
			rc = block_bytes(o->paths[i], &bytes);
		if (rc)
			return rc;
		if (bytes && !o->overwrite)
			return err_set(-EEXIST,
			               "%s exists and holds %llu bytes (a pool, an unfinished one, or something else); "
			               "nothing was touched",
			               o->paths[i], (unsigned long long)bytes);
		if (kind == POOL_PATH_BLOCK && (!*smallest_block || bytes < *smallest_block))
			*smallest_block = bytes;
	}
	return 0;
}

/* A file that was not there yet when all were surveyed may have two names all the same: z and ./z. */
static int check_once(const struct work *w, uint32_t i)
{
	struct stat st, other;

	if (fstat(w->fd[i], &st))
		return err_set(-errno, "cannot look at %s: %s", w->o->paths[i], err_name(-errno));
	for (uint32_t k = 0; k < i; k++)
		if (!fstat(w->fd[k], &other) && pool_path_same(&st, &other))
			return twice(w->o->paths[k], w->o->paths[i]);
	return 0;
}

/* Nobody else may have it open: neither a store nor a lane. */
static int check_unused(int fd, const char *path)
{
	int pid, rc;

	if (lock_wait_lanes(fd, 0, port_now_ns() + LOCK_ORPHAN_NS, &pid))
		return err_set(-EBUSY, "%s: process %d has it open as a pool; stop it, or name another path", path,
		               pid);
	rc = lock_store(fd);
	if (rc == -EBUSY && lock_store_held(fd, &pid) && pid)
		return err_set(rc, "%s: process %d has it open as a pool, or formats it; stop it, or name another path",
		               path, pid);
	return rc == -EBUSY
	           ? err_set(rc, "%s: another process has it open (fuser names it); stop it, or name another path",
	                     path)
	           : rc;
}

static int open_file(struct work *w, uint32_t i)
{
	const char *path = w->o->paths[i];
	int rc;

	w->fd[i] = fork_open(path, O_RDWR, 0);
	if (w->fd[i] < 0 && errno == ENOENT) {
		w->fd[i] = fork_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
		w->created[i] = w->fd[i] >= 0;
	}
	if (w->fd[i] < 0) {
		rc = -errno;
		return rc == -ENOENT ? err_set(rc, "cannot create %s: %s; is there that folder?", path, err_name(rc))
		                     : pool_path_refused(path, -rc);
	}
	rc = check_once(w, i);
	return rc ? rc : check_unused(w->fd[i], path);
}

/* Does the pool fit what its file systems have left, once the files that it replaces are gone? */
static int check_room(const struct work *w)
{
	for (uint32_t i = 0; i < w->o->n_paths && w->o->prewrite != TUTTI_PREWRITE_NONE; i++) {
		struct stat one, other;
		struct statvfs fs;
		uint64_t want = 0, room;

		if (fstat(w->fd[i], &one) || fstatvfs(w->fd[i], &fs))
			return err_set(-errno, "cannot look at %s: %s", w->o->paths[i], err_name(-errno));
		if (S_ISBLK(one.st_mode) || !fs.f_blocks) /* no blocks: a file system without a limit */
			continue;
		room = (uint64_t)(geteuid() ? fs.f_bavail : fs.f_bfree) * fs.f_frsize;
		for (uint32_t k = 0; k < w->o->n_paths; k++)
			if (!fstat(w->fd[k], &other) && !S_ISBLK(other.st_mode) && other.st_dev == one.st_dev) {
				want += w->each;
				room += (uint64_t)other.st_blocks * 512;
			}
		if (want > room)
			return err_set(-ENOSPC,
			               "%s: the pool needs %llu bytes on its file system, which has %llu; nothing was "
			               "touched",
			               w->o->paths[i], (unsigned long long)want, (unsigned long long)room);
	}
	return 0;
}

/* The space that a file lacks, so that nothing in it changes. */
static int grow_file(struct work *w, uint32_t i)
{
	const char *path = w->o->paths[i];
	struct stat st;
	int rc = 0;

	if (fstat(w->fd[i], &st))
		return err_set(-errno, "cannot look at %s: %s", path, err_name(-errno));
	if (S_ISBLK(st.st_mode))
		return 0;
	w->old_bytes[i] = st.st_size;
	w->is_file[i] = 1;
	if (w->o->prewrite != TUTTI_PREWRITE_NONE && fallocate(w->fd[i], 0, 0, (off_t)w->each)) {
		rc = -errno;
		if (rc == -EOPNOTSUPP && w->o->prewrite == TUTTI_PREWRITE_ALL)
			rc = 0; /* writing it all reserves it */
	}
	if (rc)
		return err_set(
		    rc, "cannot reserve %llu bytes for %s: %s%s", (unsigned long long)w->each, path, err_name(rc),
		    rc == -EOPNOTSUPP ? "; this file system can only reserve by writing it all (prewrite)" : "");
	if ((uint64_t)st.st_size < w->each && ftruncate(w->fd[i], (off_t)w->each))
		return err_set(-errno, "cannot size %s to %llu bytes: %s", path, (unsigned long long)w->each,
		               err_name(-errno));
	return 0;
}

/* What is behind the pool's end goes; of a sparse one, all. */
static int cut_file(const struct work *w, uint32_t i)
{
	if (!w->is_file[i])
		return 0;
	if ((w->o->prewrite == TUTTI_PREWRITE_NONE && ftruncate(w->fd[i], 0)) || ftruncate(w->fd[i], (off_t)w->each))
		return err_set(-errno, "cannot size %s to %llu bytes: %s", w->o->paths[i], (unsigned long long)w->each,
		               err_name(-errno));
	return 0;
}

/* Does I/O work at all? Says so before anything is lost. */
static int try_io(const struct store_media *m)
{
	struct store_io io = {.bytes = STORE_MEDIA_ALIGN, .data = aligned_alloc(STORE_MEDIA_ALIGN, STORE_MEDIA_ALIGN)};
	int rc = io.data ? 0 : err_set(-ENOMEM, "format: no memory");

	for (io.dev = 0; io.dev < m->n_dev && !rc; io.dev++) {
		rc = m->io(m->self, &io, 1);
		if (rc)
			err_set(rc, "device %u can't be read: %s; nothing was touched", io.dev, err_name(rc));
	}
	free(io.data);
	return rc;
}

static int prewrite(const struct work *w, struct media *m)
{
	uint64_t total = w->each * w->o->n_paths, done = 0;

	for (uint32_t i = 0; i < w->o->n_paths; i++) {
		for (uint64_t at = 0; at < w->each; at += PREWRITE_STEP) {
			uint64_t bytes = w->each - at < PREWRITE_STEP ? w->each - at : PREWRITE_STEP;
			int rc = media_zero(m, i, at, bytes, NULL);

			if (rc)
				return rc;
			done += bytes;
			if (w->o->progress)
				w->o->progress(w->o->progress_arg, "bytes written", done, total);
		}
	}
	return 0;
}

/* A drive that was used before keeps what it held, and wears by moving it about, unless it is told. */
static int deallocate(const struct work *w, struct media *m)
{
	for (uint32_t i = 0; i < w->o->n_paths; i++) {
		int rc = 0;

		media_data_is(m, i, 0, w->each);
		if (w->pool.info.ns[i].deallocates)
			rc = media_deallocate(m, i, 0, w->each, NULL);
		if (rc == -ENOTRECOVERABLE)
			return rc;
		if (rc)
			log_warn("%s keeps what it held until it is written over: %s", w->o->paths[i], err_text());
	}
	return 0;
}

static int open_pool(struct work *w)
{
	struct pool_opts po = {
	    .paths = w->o->paths, .n_paths = w->o->n_paths, .as_given = 1, .erase_serial = w->o->erase_serial};

	return pool_open(&po, &w->pool);
}

/* What is to be written, and whether a pool can be laid out so. */
static int plan_pool(struct work *w)
{
	struct store_media m = {.n_dev = w->o->n_paths};
	struct store_format_opts *f = &w->format;

	f->ranks = w->o->ranks;
	f->segment_bytes = w->o->segment_bytes;
	f->bytes = w->each ? w->each * w->o->n_paths : w->o->bytes; /* too few all the same, but told as asked for */
	f->prewritten = w->o->prewrite != TUTTI_PREWRITE_SEGMENT;
	f->paths = (const char *const *)w->names;
	for (uint32_t i = 0; i < w->o->n_paths; i++) {
		const char *path = w->o->paths[i];

		m.bytes[i] = w->each;
		w->names[i] = pool_path_is_nvme(path) ? strdup(path) : realpath(path, NULL);
		if (!w->names[i])
			return err_set(-errno, "%s: %s", path, err_name(-errno));
	}
	if (getrandom(f->uuid, sizeof(f->uuid), 0) != sizeof(f->uuid))
		return err_set(-EIO, "no random numbers for the pool's id");
	return store_format_check(&m, f);
}

static int write_pool(struct work *w)
{
	struct pool *p = &w->pool;
	struct media *m = NULL;
	int rc = media_new(p->ops, p->ctrl, &p->info, &m);

	if (!rc)
		rc = try_io(media_table(m));
	w->begun = !rc;
	for (uint32_t i = 0; i < w->o->n_paths && !rc; i++)
		rc = cut_file(w, i);
	if (!rc)
		rc = deallocate(w, m);
	if (!rc && w->o->prewrite == TUTTI_PREWRITE_ALL)
		rc = prewrite(w, m);
	if (!rc)
		rc = store_format(media_table(m), &w->format);
	media_free(m);
	return rc;
}

/* Drives have to be open to say how large they are. */
static int survey_drives(struct work *w, uint64_t *smallest)
{
	int rc;

	if (!w->o->erase_serial)
		return err_set(-EPERM,
		               "%s is a whole drive, erased only when its serial number is named ('tutti nvme list' "
		               "shows it)",
		               w->o->paths[0]);
	rc = open_pool(w);
	if (!rc)
		rc = check_unused(w->pool.fd[0], w->o->paths[0]);
	for (uint32_t i = 0; i < w->pool.n_dev; i++)
		if (!i || w->pool.info.ns[i].capacity_bytes < *smallest)
			*smallest = w->pool.info.ns[i].capacity_bytes;
	return rc;
}

static int size_each(struct work *w, uint64_t smallest)
{
	const struct tutti_format_opts *o = w->o;

	w->each = o->bytes / o->n_paths;
	if (!o->bytes && !smallest)
		return err_set(-EINVAL, "a pool in files needs a size: say how many bytes it may have");
	if (!w->each && smallest)
		w->each = smallest;
	if (smallest && w->each > smallest)
		return err_set(-ENOSPC, "the smallest block device has %llu bytes, %llu were asked of each",
		               (unsigned long long)smallest, (unsigned long long)w->each);
	w->each = w->each / STORE_MEDIA_ALIGN * STORE_MEDIA_ALIGN;
	return 0;
}

static int check_opts(const struct tutti_format_opts *o)
{
	if (!o->paths || !o->n_paths || o->n_paths > TUTTI_DEVICES_MAX)
		return err_set(-EINVAL, "%u paths given; a pool has 1 to %d", o->n_paths, TUTTI_DEVICES_MAX);
	for (uint32_t i = 0; i < o->n_paths; i++)
		if (!o->paths[i])
			return err_set(-EINVAL, "tutti_format: path %u is NULL", i);
	if (!o->ranks || o->ranks > TUTTI_RANKS_MAX)
		return err_set(-EINVAL, "%u ranks; a pool has 1 to %d", o->ranks, TUTTI_RANKS_MAX);
	if (o->bytes > 1ull << 60)
		return err_set(-EINVAL, "%llu bytes are too many for a pool", (unsigned long long)o->bytes);
	return 0;
}

int tutti_format(const struct tutti_format_opts *opts)
{
	struct tutti_format_opts own;
	const struct tutti_format_opts *o = &own;
	struct work *w;
	uint64_t smallest = 0;
	int nvme, rc = OPTS_TAKE(&own, opts, "tutti_format", "TUTTI_FORMAT_OPTS_INIT");

	if (!rc)
		rc = check_opts(o);
	if (rc)
		return rc;
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(-ENOMEM, "format: no memory");
	w->o = o;
	for (uint32_t i = 0; i < TUTTI_DEVICES_MAX; i++)
		w->fd[i] = -1;
	nvme = pool_path_is_nvme(o->paths[0]);
	rc = nvme ? survey_drives(w, &smallest) : survey(o, &smallest);
	if (!rc)
		rc = size_each(w, smallest);
	/* All of them are ours before the first one is changed. */
	for (uint32_t i = 0; i < o->n_paths && !rc && !nvme; i++)
		rc = open_file(w, i);
	if (!rc)
		rc = plan_pool(w);
	if (!rc && !nvme)
		rc = check_room(w);
	for (uint32_t i = 0; i < o->n_paths && !rc && !nvme; i++)
		rc = grow_file(w, i);
	if (!rc && !nvme)
		rc = open_pool(w);
	if (!rc)
		rc = write_pool(w);
	pool_close(&w->pool);
	for (uint32_t i = 0; i < o->n_paths; i++) {
		if (rc && w->created[i])
			unlink(o->paths[i]);
		else if (rc && w->is_file[i] && !w->begun && ftruncate(w->fd[i], w->old_bytes[i]))
			log_warn("%s: could not be given its old size back: %s", o->paths[i], err_name(-errno));
		if (w->fd[i] >= 0) {
			lock_release(w->fd[i]);
			fork_close(w->fd[i]);
		}
		free(w->names[i]);
	}
	free(w);
	return rc;
}
