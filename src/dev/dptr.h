/*
 * dptr.h - builds the data pointer of one NVMe command, SGL or PRP, from runs of DMA addresses.
 *
 * The caller adds runs in the order in which the bytes lie on the medium. A run that continues the previous
 * one is merged with it. A run that does not fit (list full; PRP: a gap inside a page) is refused and changes
 * nothing: the caller ends the command there. Each command id owns its list pages; they are mapped once.
 */
#ifndef TUTTI_DEV_DPTR_H
#define TUTTI_DEV_DPTR_H

#include "port/port.h"
#include "wire/nvme.h"

#define DEV_PAGE_BYTES 4096u
#define DEV_SGL_PER_PAGE 256u
#define DEV_PRP_PER_PAGE 512u
#define DEV_LIST_PAGES_MAX 4u

/* Scratch that a command id owns: list pages, where the CPU or GPU writes them and where the controller reads them. */
struct dev_list {
	uint64_t *page[DEV_LIST_PAGES_MAX]; /* DEV_PAGE_BYTES each, page aligned */
	uint64_t dma[DEV_LIST_PAGES_MAX];
	uint32_t n_pages;
};

struct dev_dptr {
	const struct dev_list *list;
	int sgl;              /* 0: PRP */
	uint32_t n;           /* descriptors (SGL) or page entries (PRP) so far */
	uint32_t n_max;
	uint64_t bytes;       /* of all runs */
	uint64_t first_addr;  /* PRP1, or the first descriptor's address */
	uint64_t first_len;   /* of the first descriptor (SGL) */
	uint64_t end;         /* DMA address behind the last run */
};

/* sgl_max: the controller's limit of descriptors (0: PRP is used). */
PORT_FN void dev_dptr_begin(struct dev_dptr *d, const struct dev_list *list, uint32_t sgl_max);

/* 0: added. -1: does not fit; d is as it was. addr must be a multiple of 4 (NVMe), len not 0. */
PORT_FN int dev_dptr_add(struct dev_dptr *d, uint64_t addr, uint64_t len);

/* Writes PSDT and the data pointer into e (which keeps its other fields). At least one run was added. */
PORT_FN void dev_dptr_finish(const struct dev_dptr *d, struct nvme_sqe *e);

#endif
