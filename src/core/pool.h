/*
 * pool.h - a pool's devices, opened: files or block devices, and the controller that answers for them.
 *
 * Device i of the pool is namespace i + 1 of the controller.
 */
#ifndef TUTTI_CORE_POOL_H
#define TUTTI_CORE_POOL_H

#include "core/media.h"
#include "ctrl/ctrl.h"
#include "store/store.h"

#define POOL_PATH_BYTES 4096

struct pool {
	uint32_t n_dev;
	int fd[TUTTI_DEVICES_MAX];
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
};

/*
 * For tests: every virtual controller that this process opens from now on does its I/O through ops (NULL: io_uring again).
 * Not thread-safe.
 */
void pool_use_io(const struct ctrl_io_ops *ops, void *arg);
/* Likewise: their logical block and largest transfer (0: what the medium has). */
void pool_use_blocks(uint32_t lba_bytes, uint32_t mdts_bytes);

/*
 * Opens the devices and the controller. One path of a pool of several devices is enough: the others' names are in its
 * superblock. -ENOENT, -EACCES...: a path; -ENODEV: a device is missing, truncated or of another pool.
 */
int pool_open(const struct pool_opts *o, struct pool *p);
void pool_close(struct pool *p);
/* The controller of this process's choice for a data path; NULL for an unknown kind. */
const struct ctrl_ops *pool_ctrl_ops(enum tutti_controller kind);

#endif
