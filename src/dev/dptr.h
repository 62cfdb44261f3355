/*
 * dptr.h - builds the data pointer of one NVMe command, SGL or PRP, from runs of DMA addresses.
 *
 * The caller adds runs in the order in which the bytes lie on the medium. A run that continues the previous
 * one is merged with it. A run that does not fit (list full; PRP: a gap inside a page) is refused and changes
 * nothing: the caller ends the command there. Each command id owns its list pages; they are mapped once.
 *
 * Both kinds of list look alike: entries fill a page but for its last place, which links to the next page, unless
 * the entry there is the list's very last, which then takes that place itself (NVMe base 2.0, 4.1.1 and 4.1.2). So
 * the last entry stays in the builder, where a touching run can still extend it, and finish puts it where it
 * belongs. List pages are only written, never read: they may lie behind PCIe. DEV_PAGE_BYTES is the memory
 * page of the controller (CC.MPS 0).
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
	uint32_t n_pages; /* 0: commands of one run (SGL) or two pages (PRP) only */
};

struct dev_dptr {
	const struct dev_list *list;
	int sgl;    /* 0: PRP */
	uint32_t n; /* descriptors (SGL) or memory pages (PRP, the first included) so far */
	uint32_t n_max;
	uint64_t bytes;      /* of all runs */
	uint64_t first_addr; /* of the first run: PRP1 */
	uint64_t run_addr;   /* SGL: where the last descriptor, still open, begins */
	uint64_t end;        /* DMA address behind the last run */
};

/* Entries that a list of n_pages pages holds when each but the last gives one place to a link. */
PORT_FN uint32_t dev_list_entries(uint32_t n_pages, uint32_t per_page)
{
	n_pages = n_pages < DEV_LIST_PAGES_MAX ? n_pages : DEV_LIST_PAGES_MAX;
	return n_pages ? n_pages * (per_page - 1) + 1 : 0;
}

/*
 * Empties d. sgl_max: the controller's limit of descriptors (0: PRP is used). list stays the caller's, and is in
 * use until the command has completed.
 */
PORT_FN void dev_dptr_begin(struct dev_dptr *d, const struct dev_list *list, uint32_t sgl_max)
{
	uint32_t fit;

	d->list = list;
	d->sgl = sgl_max != 0;
	d->n = 0;
	if (d->sgl) {
		fit = dev_list_entries(list->n_pages, DEV_SGL_PER_PAGE);
		fit = fit ? fit : 1;
		d->n_max = sgl_max < fit ? sgl_max : fit;
	} else {
		fit = dev_list_entries(list->n_pages, DEV_PRP_PER_PAGE);
		d->n_max = 1 + (fit ? fit : 1);
	}
	d->bytes = 0;
	d->first_addr = 0;
	d->run_addr = 0;
	d->end = 0;
}

PORT_FN uint64_t dev_sgl_word(uint64_t len, uint32_t type) { return len | (uint64_t)type << 60; }

/* SGL descriptor of a list page: two words, as struct nvme_sgl lies in memory. */
PORT_FN void dev_sgl_put(uint64_t *page, uint32_t place, uint64_t addr, uint64_t len, uint32_t type)
{
	page[2 * place] = addr;
	page[2 * place + 1] = dev_sgl_word(len, type);
}

PORT_FN int dev_sgl_add(struct dev_dptr *d, uint64_t addr, uint64_t len)
{
	if (d->n && addr == d->end) {
		d->end += len;
		return 0;
	}
	if (d->n == d->n_max)
		return -1;
	if (d->n) { /* the open descriptor is not the last one any more */
		uint32_t at = d->n - 1;

		dev_sgl_put(d->list->page[at / (DEV_SGL_PER_PAGE - 1)], at % (DEV_SGL_PER_PAGE - 1), d->run_addr,
		            d->end - d->run_addr, NVME_SGL_DATA);
	} else {
		d->first_addr = addr;
	}
	d->run_addr = addr;
	d->end = addr + len;
	d->n++;
	return 0;
}

/* Writes list entry at..at + n: n memory pages from addr on. */
PORT_FN void dev_prp_put(const struct dev_list *list, uint32_t at, uint32_t n, uint64_t addr)
{
	uint32_t p = at / (DEV_PRP_PER_PAGE - 1), place = at % (DEV_PRP_PER_PAGE - 1);

	while (n) {
		uint64_t *page = list->page[p++];
		uint32_t room = DEV_PRP_PER_PAGE - 1 - place;
		uint32_t k = n < room ? n : room;

		for (uint32_t i = 0; i < k; i++, addr += DEV_PAGE_BYTES)
			page[place + i] = addr;
		n -= k;
		place = 0;
	}
}

PORT_FN uint64_t dev_page_of(uint64_t addr) { return addr & ~(uint64_t)(DEV_PAGE_BYTES - 1); }

PORT_FN int dev_prp_add(struct dev_dptr *d, uint64_t addr, uint64_t len)
{
	uint64_t end = addr + len;
	/* Where the pages begin that this run is the first to touch, and their number. */
	uint64_t fresh = dev_page_of(d->n ? addr + DEV_PAGE_BYTES - 1 : addr);
	uint32_t n_fresh = end > fresh ? (uint32_t)((end - fresh + DEV_PAGE_BYTES - 1) / DEV_PAGE_BYTES) : 0;

	if (d->n && addr != d->end && ((addr | d->end) & (DEV_PAGE_BYTES - 1)))
		return -1;
	if (n_fresh > d->n_max - d->n)
		return -1;
	if (!d->n)
		d->first_addr = addr;
	/* All pages but the first (PRP1) and the last (still open) go into the list. */
	if (n_fresh && d->n >= 2)
		dev_prp_put(d->list, d->n - 2, 1, dev_page_of(d->end - 1));
	if (n_fresh > 1 && d->n)
		dev_prp_put(d->list, d->n - 1, n_fresh - 1, fresh);
	else if (n_fresh > 2)
		dev_prp_put(d->list, 0, n_fresh - 2, fresh + DEV_PAGE_BYTES);
	d->n += n_fresh;
	d->end = end;
	return 0;
}

/*
 * 0: added. -1: does not fit; d is as it was. addr must be a multiple of 4 (NVMe), len not 0, and a command stays
 * below 4 GiB; what breaks these is refused as well. A run that an empty d refuses will never fit.
 */
PORT_FN int dev_dptr_add(struct dev_dptr *d, uint64_t addr, uint64_t len)
{
	int rc;

	if ((addr & 3u) || !len || len > 0xffffffffu - d->bytes || addr + len < addr)
		return -1;
	rc = d->sgl ? dev_sgl_add(d, addr, len) : dev_prp_add(d, addr, len);
	if (!rc)
		d->bytes += len;
	return rc;
}

PORT_FN void dev_sgl_finish(const struct dev_dptr *d, struct nvme_sgl *out)
{
	const struct dev_list *list = d->list;
	uint32_t at = d->n - 1; /* of the last descriptor */
	uint32_t page = at / (DEV_SGL_PER_PAGE - 1), place = at % (DEV_SGL_PER_PAGE - 1);
	uint32_t type = NVME_SGL_LAST_SEGMENT;
	uint64_t len;

	out->rsvd[0] = out->rsvd[1] = out->rsvd[2] = 0;
	if (d->n == 1) {
		out->addr = d->run_addr;
		out->len = (uint32_t)(d->end - d->run_addr);
		out->id = NVME_SGL_DATA << 4;
		return;
	}
	if (place == 0) { /* it would be alone in a page: it takes the link's place in the one before */
		page--;
		place = DEV_SGL_PER_PAGE - 1;
	}
	dev_sgl_put(list->page[page], place, d->run_addr, d->end - d->run_addr, NVME_SGL_DATA);
	/* From the last segment back: each link names the one behind it. */
	for (len = 16ull * (place + 1); page; page--) {
		dev_sgl_put(list->page[page - 1], DEV_SGL_PER_PAGE - 1, list->dma[page], len, type);
		len = DEV_PAGE_BYTES;
		type = NVME_SGL_SEGMENT;
	}
	out->addr = list->dma[0];
	out->len = (uint32_t)len;
	out->id = (uint8_t)(type << 4);
}

PORT_FN uint64_t dev_prp2_finish(const struct dev_dptr *d)
{
	const struct dev_list *list = d->list;
	uint64_t last = dev_page_of(d->end - 1);
	uint32_t at, page, place;

	if (d->n < 3)
		return d->n == 2 ? last : 0;
	at = d->n - 2; /* of the last list entry */
	page = at / (DEV_PRP_PER_PAGE - 1);
	place = at % (DEV_PRP_PER_PAGE - 1);
	if (at && place == 0) {
		page--;
		place = DEV_PRP_PER_PAGE - 1;
	}
	list->page[page][place] = last;
	for (; page; page--)
		list->page[page - 1][DEV_PRP_PER_PAGE - 1] = list->dma[page];
	return list->dma[0];
}

/*
 * Writes PSDT and the data pointer into e (which keeps its other fields), and the list's last entry and links. At
 * least one run was added. The list is seen by the controller with the doorbell, as e is.
 */
PORT_FN void dev_dptr_finish(const struct dev_dptr *d, struct nvme_sqe *e)
{
	uint32_t psdt = d->sgl ? NVME_PSDT_SGL : NVME_PSDT_PRP;

	e->flags = (uint8_t)((e->flags & 0x3fu) | psdt << 6);
	if (d->sgl) {
		dev_sgl_finish(d, &e->dptr.sgl);
	} else {
		e->dptr.prp.prp1 = d->first_addr;
		e->dptr.prp.prp2 = dev_prp2_finish(d);
	}
}

#endif
