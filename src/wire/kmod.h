/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * kmod.h - what the kernel module tutti_nvme and the program that opens /dev/tutti/FUNCTION say to each other.
 *
 * One program at a time has a function. It sees the controller's registers by mmap() at offset 0, and makes memory
 * reachable for the function with TUTTI_NVME_MAP: its own memory, a dma-buf, or fresh memory for queues that is one run
 * for the function; this last is seen by mmap() at TUTTI_NVME_MMAP(id). The function begins, and after a close ends,
 * without bus mastering and disabled.
 *
 * All calls: -ENODEV once the function is gone (its registers then read as ones), -EINVAL for what is not described.
 */
#ifndef TUTTI_WIRE_KMOD_H
#define TUTTI_WIRE_KMOD_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TUTTI_NVME_VERSION 1u
#define TUTTI_NVME_MAP_BYTES_MAX (1ull << 30) /* of one map of the caller's memory */
#define TUTTI_NVME_QUEUE_BYTES_MAX (4ull << 20)
#define TUTTI_NVME_MAPS_MAX 65535u
#define TUTTI_NVME_VECTORS_MAX 32u

/* Where mmap() finds the memory of map `id`; the registers are at 0. */
#define TUTTI_NVME_MMAP_SHIFT 32
#define TUTTI_NVME_MMAP(id) ((__u64)(id) << TUTTI_NVME_MMAP_SHIFT)

/* Flags. The IOMMU translates: addresses mean something for this function only. */
#define TUTTI_NVME_TRANSLATES 1u
/* And interrupts are remapped, its IOMMU group is its own: it reaches what was mapped. Else CAP_SYS_RAWIO opens it. */
#define TUTTI_NVME_ISOLATED 2u

struct tutti_nvme_info {
	__u32 version; /* TUTTI_NVME_VERSION */
	__u32 flags;
	__u64 bar_bytes; /* of the registers that may be mapped */
	__u32 vectors;   /* MSI-X interrupts to be had; 0: poll */
	__u32 rsvd;
};

enum tutti_nvme_map_kind {
	TUTTI_NVME_MAP_USER,   /* va, bytes: whole pages of the caller, charged to its memlock limit */
	TUTTI_NVME_MAP_DMABUF, /* fd: the whole of it; bytes is an answer */
	TUTTI_NVME_MAP_QUEUE,  /* bytes: zeroed memory, one run; charged like the caller's own */
};

/*
 * -ENOMEM: none, or the memlock limit; -EFAULT: not memory that can be pinned; -EREMOTEIO: its addresses don't reach
 * the function; -ENOSPC: too many maps; and what the exporter of a dma-buf says.
 */
struct tutti_nvme_map {
	__u64 va;
	__u64 bytes;
	__u32 kind;
	__s32 fd;
	__u32 id;   /* out: 1 .. TUTTI_NVME_MAPS_MAX */
	__u32 runs; /* out */
};

/* Memory as the function sees it. Runs lie in the map one behind the other. */
struct tutti_nvme_run {
	__u64 addr;
	__u64 bytes;
};

/* Reads runs first .. first + n - 1 of a map. -ENOENT: no such map. */
struct tutti_nvme_runs {
	__u32 id;
	__u32 first;
	__u32 n;
	__u32 rsvd;
	__u64 runs; /* pointer to n of struct tutti_nvme_run */
};

/* Vectors 0 .. n - 1 signal these eventfds; n 0: none any more. */
struct tutti_nvme_irqs {
	__u64 fds; /* pointer to n of __s32 */
	__u32 n;
	__u32 rsvd;
};

#define TUTTI_NVME_INFO _IOR(0xE7, 0, struct tutti_nvme_info)
#define TUTTI_NVME_MAP _IOWR(0xE7, 1, struct tutti_nvme_map)
#define TUTTI_NVME_RUNS _IOW(0xE7, 2, struct tutti_nvme_runs)
#define TUTTI_NVME_UNMAP _IO(0xE7, 3)  /* argument: the id. The function can't reach the memory afterwards. */
#define TUTTI_NVME_MASTER _IO(0xE7, 4) /* argument 1: bus mastering; 0: none. -ETIMEDOUT: something is under way */
#define TUTTI_NVME_RESET _IO(0xE7, 5)  /* the function alone; bus mastering is off. -EOPNOTSUPP: it can't be */
#define TUTTI_NVME_IRQS _IOW(0xE7, 6, struct tutti_nvme_irqs)

#endif
