/* SPDX-License-Identifier: GPL-2.0-only */
/* export.h - what tutti_export.ko, which stands in for a GPU's driver in tests, offers at /dev/tutti_export. */
#ifndef TUTTI_KMOD_TEST_EXPORT_H
#define TUTTI_KMOD_TEST_EXPORT_H

#include <linux/ioctl.h>
#include <linux/types.h>

enum tutti_export_kind {
	TUTTI_EXPORT_PAGES, /* scattered pages; can be mmap()ed; says when it moves */
	TUTTI_EXPORT_BAR,   /* BAR 2 of QEMU's ivshmem: no struct pages, no pin, wants peer to peer */
	TUTTI_EXPORT_RAW,   /* the same, with bare bus addresses, mapped for nobody */
};

struct tutti_export_new {
	__u64 bytes;
	__u64 offset; /* in the BAR */
	__u32 kind;
	__u32 piece; /* bytes of each, shuffled; BAR only */
	__s32 fd;    /* out */
	__u32 rsvd;
};

/* What importers hold, of all buffers. */
struct tutti_export_held {
	__s32 attached, pinned, mapped, alive;
};

#define TUTTI_EXPORT_NEW _IOWR(0xE8, 0, struct tutti_export_new)
#define TUTTI_EXPORT_HELD _IOR(0xE8, 1, struct tutti_export_held)
#define TUTTI_EXPORT_MOVE _IO(0xE8, 2) /* argument: a dma-buf's descriptor; its importers are told that it moves */

#endif
