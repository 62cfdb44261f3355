/*
 * decode.h - from a submission entry to a checked struct ctrl_io, or to the status that a real controller gives.
 *
 * Nothing that an entry says is trusted: every address, of data and of lists, must lie in mapped regions, and every
 * chain ends after a fixed number of descriptors. Pure: no thread, no I/O.
 */
#ifndef TUTTI_CTRL_DECODE_H
#define TUTTI_CTRL_DECODE_H

#include "ctrl/soft.h"

struct ctrl_region {
	uint64_t va, end;
	int32_t buf; /* first registered piece, -1: none */
	uint32_t rsvd;
};

/* Sorted by address, without overlaps. */
struct ctrl_regions {
	uint32_t n;
	uint32_t last; /* where the last look-up ended: most commands of a lane hit the same region */
	struct ctrl_region r[CTRL_REGIONS_MAX];
};

/* 0, -EEXIST, -ENOSPC, -EINVAL. */
int ctrl_regions_add(struct ctrl_regions *t, uint64_t va, uint64_t bytes, int32_t buf);
/* -ENOENT; *buf is what was given to add. */
int ctrl_regions_remove(struct ctrl_regions *t, uint64_t va, uint64_t bytes, int32_t *buf);
/* 1: all bytes are mapped. *piece is the registered piece that holds them all, or -1. Neighbouring regions count as
 * one. */
int ctrl_regions_cover(struct ctrl_regions *t, uint64_t addr, uint64_t bytes, int32_t *piece);

struct ctrl_decoder {
	struct ctrl_regions *regions;
	const struct ctrl_info *info;
	uint32_t iov_max;                  /* room in io->iov */
	uint8_t lba_shift[CTRL_NS_MAX];
	uint8_t read_only[CTRL_NS_MAX];
};

/* Status; with 0, io's opcode, fua, target, bytes, offset, iov and buf are set. */
uint32_t ctrl_decode(const struct ctrl_decoder *d, const struct nvme_sqe *e, struct ctrl_io *io);

#endif
