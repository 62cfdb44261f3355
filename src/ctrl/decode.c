/* decode.c - SGL and PRP walks (NVMe base 2.0, sections 4.1.1 and 4.1.2) and the checks around them. */
#include "ctrl/decode.h"

#include <string.h>

#define PAGE 4096u

/* A walk over one command's data pointer. */
struct walk {
	const struct ctrl_decoder *d;
	struct ctrl_io *io;
	uint64_t end;  /* address behind the last run */
	uint32_t left; /* bytes that the data pointer has not described yet */
};

static uint32_t walk_add(struct walk *w, uint64_t addr, uint32_t len)
{
	struct ctrl_io *io = w->io;
	int32_t piece;

	if (!ctrl_regions_cover(w->d->regions, addr, len, &piece))
		return NVME_SC_DATA_TRANSFER;
	if (io->n_iov == 0)
		io->buf = piece;
	else if (io->buf != piece)
		io->buf = -1;
	w->left -= len;
	if (io->n_iov > 0 && w->end == addr) {
		io->iov[io->n_iov - 1].iov_len += len;
	} else {
		if (io->n_iov == w->d->iov_max)
			return NVME_SC_SGL_COUNT;
		io->iov[io->n_iov++] = (struct iovec){(void *)(uintptr_t)addr, len};
	}
	w->end = addr + len;
	return 0;
}

/* List memory: checked once a segment or page, then read entry by entry; it may lie at any address. */
static int list_mapped(const struct walk *w, uint64_t addr, uint32_t bytes)
{
	int32_t piece;

	return ctrl_regions_cover(w->d->regions, addr, bytes, &piece);
}

static void list_read(uint64_t addr, void *to, uint32_t bytes)
{
	memcpy(to, (const void *)(uintptr_t)addr, bytes);
}

/* A descriptor inside a segment that must be data. */
static uint32_t sgl_data(struct walk *w, const struct nvme_sgl *s)
{
	uint32_t type = s->id >> 4;

	if (type == NVME_SGL_SEGMENT || type == NVME_SGL_LAST_SEGMENT)
		return NVME_SC_SGL_COUNT;
	if (s->id != NVME_SGL_DATA << 4)
		return NVME_SC_SGL_TYPE;
	if (s->len == 0)
		return 0;
	if (s->len > w->left)
		return NVME_SC_SGL_LENGTH;
	return walk_add(w, s->addr, s->len);
}

/* One segment. *next is its last descriptor if that leads to another segment; its id is 0 if not. */
static uint32_t sgl_segment(struct walk *w, const struct nvme_sgl *seg, uint32_t n, struct nvme_sgl *next)
{
	struct nvme_sgl s;
	uint32_t status;

	if (!list_mapped(w, seg->addr, 16 * n))
		return NVME_SC_DATA_TRANSFER;
	for (uint32_t i = 0; i < n; i++) {
		list_read(seg->addr + 16ull * i, &s, sizeof(s));
		if (i == n - 1 && (s.id == NVME_SGL_SEGMENT << 4 || s.id == NVME_SGL_LAST_SEGMENT << 4)) {
			if (seg->id == NVME_SGL_LAST_SEGMENT << 4)
				return NVME_SC_SGL_SEGMENT;
			*next = s;
			return 0;
		}
		status = sgl_data(w, &s);
		if (status)
			return status;
	}
	next->id = 0;
	return 0;
}

static uint32_t walk_sgl(struct walk *w, const struct nvme_sgl *first)
{
	struct nvme_sgl seg = *first;
	uint32_t n_total = 0, status;

	if (seg.id == NVME_SGL_DATA << 4) {
		if (seg.len != w->left)
			return NVME_SC_SGL_LENGTH;
		return walk_add(w, seg.addr, seg.len);
	}
	do {
		uint32_t n = seg.len / 16;

		if ((seg.id != NVME_SGL_SEGMENT << 4 && seg.id != NVME_SGL_LAST_SEGMENT << 4) || n == 0 || seg.len % 16)
			return NVME_SC_SGL_SEGMENT;
		if (seg.addr + seg.len < seg.addr)
			return NVME_SC_SGL_LENGTH;
		/* Also what ends a chain that leads back to itself. */
		if (n > w->d->info->sgl_max - n_total)
			return NVME_SC_SGL_COUNT;
		n_total += n;
		status = sgl_segment(w, &seg, n, &seg);
		if (status)
			return status;
	} while (seg.id);
	return w->left ? NVME_SC_SGL_LENGTH : 0;
}

/* A PRP list may start inside a page; the last entry of a page leads to the next list when more than a page is left. */
static uint32_t walk_prp_list(struct walk *w, uint64_t list)
{
	uint64_t entry;

	if (list % 8)
		return NVME_SC_PRP_OFFSET;
	while (w->left) {
		uint32_t n = (PAGE - (uint32_t)(list % PAGE)) / 8, need = (w->left + PAGE - 1) / PAGE;

		if (n > need)
			n = need;
		if (!list_mapped(w, list, 8 * n))
			return NVME_SC_DATA_TRANSFER;
		for (uint32_t i = 0; i < n && w->left; i++) {
			uint32_t len = w->left < PAGE ? w->left : PAGE, status;

			list_read(list + 8ull * i, &entry, sizeof(entry));
			if (entry % PAGE)
				return NVME_SC_PRP_OFFSET;
			if (i == n - 1 && w->left > PAGE) {
				/* Page aligned from here on: each further list describes 511 pages, so the walk ends.
				 */
				list = entry;
				break;
			}
			status = walk_add(w, entry, len);
			if (status)
				return status;
		}
	}
	return 0;
}

static uint32_t walk_prp(struct walk *w, uint64_t prp1, uint64_t prp2)
{
	uint32_t len = PAGE - (uint32_t)(prp1 % PAGE), status;

	if (prp1 % 4)
		return NVME_SC_PRP_OFFSET;
	if (len > w->left)
		len = w->left;
	status = walk_add(w, prp1, len);
	if (status || !w->left)
		return status;
	if (w->left > PAGE)
		return walk_prp_list(w, prp2);
	return prp2 % PAGE ? NVME_SC_PRP_OFFSET : walk_add(w, prp2, w->left);
}

static uint32_t decode_rw(const struct ctrl_decoder *d, const struct nvme_sqe *e, struct ctrl_io *io)
{
	uint64_t lba = e->cdw10 | (uint64_t)e->cdw11 << 32;
	uint32_t n = (e->cdw12 & 0xffffu) + 1, psdt = e->flags >> 6, shift = d->lba_shift[io->target];
	struct walk w = {.d = d, .io = io};

	if (e->opcode == NVME_CMD_WRITE && d->read_only[io->target])
		return CTRL_SC_READ_ONLY;
	if ((uint64_t)n << shift > d->info->mdts_bytes)
		return NVME_SC_INVALID_FIELD;
	if (lba + n < lba || lba + n > d->info->ns[io->target].capacity_bytes >> shift)
		return NVME_SC_LBA_RANGE;
	io->fua = e->opcode == NVME_CMD_WRITE && e->cdw12 >> 30 & 1;
	io->offset_bytes = lba << shift;
	io->bytes = w.left = n << shift;
	if (psdt == NVME_PSDT_PRP)
		return walk_prp(&w, e->dptr.prp.prp1, e->dptr.prp.prp2);
	if (psdt != NVME_PSDT_SGL || !d->info->sgl_max)
		return NVME_SC_INVALID_FIELD;
	return walk_sgl(&w, &e->dptr.sgl);
}

uint32_t ctrl_decode(const struct ctrl_decoder *d, const struct nvme_sqe *e, struct ctrl_io *io)
{
	if (e->nsid == 0 || e->nsid > d->info->n_ns)
		return NVME_SC_INVALID_NS;
	io->opcode = e->opcode;
	io->target = (uint16_t)(e->nsid - 1);
	io->n_iov = 0;
	io->bytes = 0;
	io->buf = -1;
	io->fua = 0;
	io->offset_bytes = 0;
	/* Fused commands are not offered. */
	if (e->flags & 0x3fu)
		return NVME_SC_INVALID_FIELD;
	switch (e->opcode) {
	case NVME_CMD_FLUSH:
		return 0;
	case NVME_CMD_READ:
	case NVME_CMD_WRITE:
		return decode_rw(d, e, io);
	default:
		return NVME_SC_INVALID_OPCODE;
	}
}
