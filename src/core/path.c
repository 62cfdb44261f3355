/* path.c - see path.h. */
#include "core/path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int pool_path_is_nvme(const char *path) { return strncmp(path, "nvme:", 5) == 0; }

static int within(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return !strncmp(path, folder, n) && (!path[n] || path[n] == '/');
}

/* 1: whoever names it means a device. Files lie in /dev/shm. */
static int names_device(const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX], real[PATH_MAX];

	if (!slash)
		snprintf(folder, sizeof(folder), ".");
	else
		snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
	if (!realpath(folder, real))
		snprintf(real, sizeof(real), "%s", folder);
	return within(real, "/dev") && !within(real, "/dev/shm");
}

static int missing(const char *path)
{
	struct stat st;

	if (lstat(path, &st) == 0)
		return err_set(-ENOENT, "%s is a symbolic link to something that is not there; remove it, or make that",
		               path);
	if (names_device(path))
		return err_set(-ENODEV,
		               "there is no device %s; is it connected, and its driver loaded? 'lsblk' lists block "
		               "devices, 'tutti nvme list' drives",
		               path);
	return POOL_PATH_NONE;
}

int pool_path_look(const char *path, struct stat *st)
{
	if (pool_path_is_nvme(path))
		return POOL_PATH_DRIVE;
	if (stat(path, st))
		return errno == ENOENT ? missing(path)
		                       : err_set(-errno, "cannot look at %s: %s", path, err_name(-errno));
	switch (st->st_mode & S_IFMT) {
	case S_IFREG:
		return POOL_PATH_FILE;
	case S_IFBLK:
		return POOL_PATH_BLOCK;
	case S_IFDIR:
		return err_set(-EISDIR, "%s is a folder; a pool is a file (name one in it) or a block device", path);
	default:
		return err_set(-ENOTBLK, "%s is a %s; a pool is a file or a block device", path,
		               S_ISCHR(st->st_mode)    ? "character device"
		               : S_ISFIFO(st->st_mode) ? "FIFO"
		                                       : "socket");
	}
}

int pool_path_refused(const char *path, int error)
{
	const char *why = error == ETXTBSY
	                      ? "; it is a program that runs, or space that is swapped to, and neither is a "
	                                     "pool; name another file"
	                  : error == EACCES || error == EPERM
	                      ? "; a pool is read and written, so be the user who owns it, or have its owner allow it "
	                        "(chmod; lsattr shows whether it is immutable)"
	                  : error == EROFS ? "; mount its file system read-write, or name another place"
	                  : error == EMFILE || error == ENFILE ? "; close some files, or raise their limit (ulimit -n)"
	                                                       : "";

	return err_set(-error, "cannot open %s: %s%s", path, err_name(-error), why);
}

int pool_path_same(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) || S_ISBLK(b->st_mode))
		return S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode) && a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
