/*
 * path.h - what the name of a pool's device stands for. Looked up before it is opened: to open a FIFO may hang, to open
 * a tape rewinds it.
 */
#ifndef TUTTI_CORE_PATH_H
#define TUTTI_CORE_PATH_H

#include <sys/stat.h>

enum pool_path { POOL_PATH_NONE, POOL_PATH_FILE, POOL_PATH_BLOCK, POOL_PATH_DRIVE };

/* 1: it begins like the name of a drive. */
int pool_path_is_nvme(const char *path);
/*
 * An enum pool_path; of a file or block device *st is filled. NONE: nothing is there, and a file could be. -ENODEV: no
 * such device below /dev. -EISDIR, -ENOTBLK: something else, which can't be a pool. -ENOENT: a symbolic link to
 * nothing. Otherwise what stat says.
 */
int pool_path_look(const char *path, struct stat *st);
/*
 * For who could not open it, for reading and writing: says why, and what to do. Returns -error; -ETXTBSY is that of a
 * program that runs.
 */
int pool_path_refused(const char *path, int error);
/* 1: two names of one file or one block device. */
int pool_path_same(const struct stat *a, const struct stat *b);

#endif
