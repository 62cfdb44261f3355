/*
 * vfio.h - claims PCI functions through Linux's VFIO (type 1 IOMMU), without any module of ours.
 *
 * The process has one container: one address space, in which every function that it claims sees the same memory at the
 * same address (IOVA). The function must be bound to vfio-pci (`tutti nvme claim`); opening its group is the claim,
 * which no second process can get.
 */
#ifndef TUTTI_CTRL_VFIO_H
#define TUTTI_CTRL_VFIO_H

#include "ctrl/nvme_admin.h"

/*
 * -ENODEV: no such function; -EBUSY: not bound to vfio-pci, or another process has it; -EOPNOTSUPP: no IOMMU, or no
 * VFIO; -EACCES: permission; -EPERM: the IOMMU group holds others. Each said with what to do.
 */
int vfio_claim(const char *function, struct nvme_transport *out);

/* ---- the address space, for vfio_pci.c ---- */

/* Puts an opened group into the container (made on first use). *container is its descriptor. */
int vfio_space_join(int group, const char *function, int *container);
/* The last one to leave closes it. */
void vfio_space_leave(int group);
int vfio_space_map(void *va, uint64_t bytes, uint64_t *iova);
int vfio_space_unmap(uint64_t iova, uint64_t bytes);
/* The same for all functions of this process. */
const void *vfio_space(void);

#endif
