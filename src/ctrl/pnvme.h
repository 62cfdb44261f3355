/*
 * pnvme.h - claims PCI functions through the kernel module tutti_nvme (kmod/), which is then their driver.
 *
 * What it can that VFIO can't: a dma-buf (GPU memory) becomes reachable, and no IOMMU is needed. What VFIO can that it
 * can't: one address space for several functions behind an IOMMU that translates; there each function has addresses of
 * its own, so a pool has one function. Where the IOMMU does not translate, addresses are physical and functions share
 * them.
 */
#ifndef TUTTI_CTRL_PNVME_H
#define TUTTI_CTRL_PNVME_H

#include "ctrl/nvme_admin.h"

#define PNVME_DRIVER "tutti_nvme"

/* 1: the function is bound to the module. */
int pnvme_drives(const char *function);
/*
 * -EBUSY: another process has it; -EACCES, -EPERM: permission; -ENODEV: no such function; -EIO: it can't be disabled;
 * -EPROTO: a module of another version. Each said with what to do.
 */
int pnvme_claim(const char *function, struct nvme_transport *out);

#endif
