/*
 * nvme_ctrl.h - real NVMe functions as one controller: claimed once for the whole process, shared by its stores and
 * lanes.
 *
 * A target is "nvme:FUNCTION/NSID", as in nvme:0000:01:00.0/1. Targets may lie on several functions; each function is a
 * unit with queue pairs of its own.
 */
#ifndef TUTTI_CTRL_NVME_CTRL_H
#define TUTTI_CTRL_NVME_CTRL_H

#include "ctrl/nvme_admin.h"

#define NVME_NAME_BYTES 32u

/* 0; -ENOENT: not a path of this kind; -EINVAL: it is, but badly written (said). */
int nvme_path(const char *path, char function[NVME_NAME_BYTES], uint32_t *nsid);

/* Takes a function for this process. -EBUSY and others, said with what to do. */
typedef int (*nvme_claim_fn)(void *arg, const char *function, struct nvme_transport *out);
/* For tests: functions are claimed by this from now on; NULL: by whoever drives them again (vfio.h, pnvme.h). */
void nvme_claim_by(nvme_claim_fn claim, void *arg);

/* The function of device `dev` (0..), its serial number in particular. Valid while c is open. */
const struct nvme_fn *nvme_fn_of(const struct ctrl *c, uint32_t dev);
/*
 * A new descriptor for locks between the pools that this process opens on a function: the claim keeps other processes
 * out. The caller closes it. -errno.
 */
int nvme_lock_fd(const struct ctrl *c);

#endif
