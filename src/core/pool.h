/*
 * pool.h - a pool's devices, opened: files, block devices or NVMe drives, and the controller that answers for them.
 *
 * Device i of the pool is the i-th namespace of the controller. A drive is claimed by the process; what locks it
 * between the process's own stores and lanes is a memory file that stands in for its first device.
 */
#ifndef TUTTI_CORE_POOL_H
#define TUTTI_CORE_POOL_H

#include "core/media.h"
#include "ctrl/ctrl.h"
#include "store/store.h"

#define POOL_PATH_BYTES 4096

struct pool {
	uint32_t n_dev;
	int fd[TUTTI_DEVICES_MAX]; /* [0] carries the pool's locks; of a drive, the others are -1 */
	int nvme;
	uint32_t forks; /* fork_depth of the process that opened it */
	char path[TUTTI_DEVICES_MAX][POOL_PATH_BYTES];
	const struct ctrl_ops *ops;
	struct ctrl *ctrl;
	struct ctrl_info info;
};

struct pool_opts {
	const char *const *paths;
	uint32_t n_paths;
	enum tutti_controller controller; /* AUTO is virt */
	struct tutti_model_timing timing;
	int read_only;
	int as_given; /* 1: no superblock yet: take the paths as they are (format) */
	int no_sgl;
	const char *erase_serial; /* as in tutti_format_opts */
};

/*
 * For tests: every virtual controller that this process opens from now on does its I/O through ops (NULL: io_uring
 * again). Not thread-safe.
 */
void pool_use_io(const struct ctrl_io_ops *ops, void *arg);
/* Likewise: their logical block and largest transfer (0: what the medium has). */
void pool_use_blocks(uint32_t lba_bytes, uint32_t mdts_bytes);

/*
 * Opens the devices and the controller. One path of a pool of several devices is enough: the others' names are in its
 * superblock. -ENOENT, -ENODEV: no such file, no such device; also -ENODEV: a device of the pool is missing, truncated
 * or of another pool. -ENOMEDIUM (as_given: -EISDIR, -ENOTBLK): what is no file or block device holds none. -EINVAL:
 * one device under two names. -EACCES...: a path.
 */
int pool_open(const struct pool_opts *o, struct pool *p);
/* Puts the names of its devices before the message. Returns rc. */
int pool_blame(const struct pool *p, int rc);
void pool_close(struct pool *p);
/* -EINVAL: it was opened before a fork, and this is the child, which can't even close it. `call` is for the message. */
int pool_own(const struct pool *p, const char *call);
/* The controller of this process's choice for a data path; NULL for an unknown kind. */
const struct ctrl_ops *pool_ctrl_ops(enum tutti_controller kind);

#endif
