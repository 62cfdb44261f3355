/*
 * ring.h - the rings between the CPU and the I/O kernel: all that ring (host side), dev (kernel) and exec share.
 *
 * SQ: numbers of IOCBs, in order of issue. An IOCB is a batch for one layer: either a plan and a step of it (the short
 * form, whose cost does not depend on the number of blocks), or explicit IOCTX. CQ: one entry per IOCB, written by the
 * thread block that finishes last. The CQ has as many entries as there are IOCBs, so it can't overflow. So has each SQ;
 * and as kernels of a stream read it in order, an entry is used again only when its reader is done with it.
 */
#ifndef TUTTI_WIRE_RING_H
#define TUTTI_WIRE_RING_H

#include <stdint.h>

#ifdef __cplusplus
#define RING_ASSERT(c, m) static_assert(c, m)
#else
#define RING_ASSERT(c, m) _Static_assert(c, m)
#endif

struct port_parker; /* port/port.h */

#define WIRE_STREAMS 2u      /* independent orders of kernels: reads, writes */
#define WIRE_IOCTX_MAX 2048u /* of an IOCB (paper, section 4.2) */

enum wire_io_op { WIRE_READ = 1, WIRE_WRITE = 2 };

/* One object's transfer. */
struct wire_ioctx {
	uint64_t mem;          /* address in registered memory */
	uint64_t offset_bytes; /* on the device */
	uint32_t bytes;
	uint16_t dev;   /* index of the device, 0.. */
	uint16_t op;    /* enum wire_io_op */
	int32_t status; /* out: 0, -errno, NVMe status */
	uint32_t rsvd;
};
RING_ASSERT(sizeof(struct wire_ioctx) == 32, "IOCTX");

/* Steps of a plan. A layer's step is its number; the others are above any layer. */
enum wire_step {
	WIRE_STEP_HEADERS = 0x10000,    /* retrieve: read and check the slots' headers */
	WIRE_STEP_INVALIDATE = 0x10001, /* store: wipe headers that might still be valid */
	WIRE_STEP_COMMIT = 0x10002,     /* store: write the headers */
	WIRE_STEP_EXPLICIT = 0x10003,   /* no plan: ioctx */
};

struct wire_iocb {
	uint32_t id;
	uint32_t step;
	uint64_t plan;  /* struct dev_plan, where the kernel reads it; 0 for explicit */
	uint64_t ioctx; /* struct wire_ioctx array; of a plan's step: the plan, where the host reads it */
	uint32_t n;     /* IOCTX */
	uint32_t flag_value;
	uint64_t deadline_ns; /* absolute */
	/* Start only when *event >= event_value (0: at once). The executor waits, not the kernel. */
	uint64_t event;
	uint32_t event_value;
	uint32_t rsvd;
	/* Raised to flag_value when the IOCB is done, whatever came of it: a stream of an accelerator waits for it. */
	uint64_t flag;
};
RING_ASSERT(sizeof(struct wire_iocb) == 64, "IOCB");

/* What the thread blocks of a kernel count together; zeros again when the last one has posted the completion. */
struct wire_iocb_state {
	uint32_t blocks_done;
	uint32_t failed; /* blocks of KV (or IOCTX) that failed */
	int32_t status;  /* first failure that a block met; 0: none */
	uint32_t rsvd;
};

struct wire_ring_cqe {
	uint32_t seq; /* number of the entry + 1, written last with release: the entry is there */
	uint32_t id;
	int32_t status;
	uint32_t failed;
};
RING_ASSERT(sizeof(struct wire_ring_cqe) == 16, "ring CQE");

struct wire_ring {
	uint32_t entries; /* power of two: IOCBs, SQ entries, CQ entries */
	uint32_t rsvd;
	struct wire_iocb *iocb;
	uint32_t *sq[WIRE_STREAMS]; /* IOCB numbers, of each stream of kernels */
	struct wire_ring_cqe *cq;
	struct wire_iocb_state *state; /* of each IOCB; near the kernel: the host does not look */
	uint32_t *cq_tail;             /* claimed by the kernel's blocks; near it, too */
	struct port_parker *host;       /* who waits for completions */
	uint32_t sq_tail[WIRE_STREAMS]; /* written by the host, with release */
};

#endif
