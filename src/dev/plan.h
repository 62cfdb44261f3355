/*
 * plan.h - what the I/O kernel works on: plans, and the resources of one thread block.
 *
 * A plan is the list of (slot, block) pairs of one retrieve or store, made once; every step of it (headers, a layer,
 * commit) is then named by an IOCB. Its arrays lie in memory that both sides see. A thread block owns a contiguous
 * share of a plan's entries for all steps, so nothing here needs a lock: results[i] and sums of entry i have one
 * writer.
 */
#ifndef TUTTI_DEV_PLAN_H
#define TUTTI_DEV_PLAN_H

#include "dev/dptr.h"
#include "dev/qp.h"
#include "geom/addr.h"
#include "wire/header.h"
#include "wire/map.h"
#include "wire/ring.h"

enum dev_plan_flags {
	DEV_PLAN_VERIFY = 1,     /* retrieve: compare checksums */
	DEV_PLAN_BOUNCE = 2,     /* memory misses the controller's alignment: copy through bounce buffers */
	DEV_PLAN_NO_HEADERS = 4, /* null controller: there are none */
};

struct dev_entry {
	uint32_t slot;
	uint32_t block;        /* of the engine */
	uint32_t header_valid; /* store: the slot's header on disk may be valid */
	uint32_t rsvd;
};

/* The engine's KV memory after merging; see tutti_kv_layout. */
struct dev_layout {
	const uint64_t *layer_base;
	uint64_t block_stride;
	uint64_t outer_stride;
	uint64_t inner_stride;
	uint32_t inner_count;
	uint32_t rsvd;
};

struct dev_plan {
	struct geom geom;
	struct dev_layout mem;
	uint32_t op; /* enum wire_io_op */
	uint32_t flags;
	uint32_t n; /* entries */
	uint32_t rank;
	uint64_t generation;
	uint64_t sequence;
	uint64_t epoch;
	uint8_t ns_digest[WIRE_KEY_BYTES];
	uint8_t parent[WIRE_KEY_BYTES]; /* of entry 0; entry i's is key i - 1 */
	uint32_t depth;                 /* of entry 0 */
	uint32_t rsvd;
	const struct dev_entry *entries;
	const uint8_t (*keys)[WIRE_KEY_BYTES];
	/*
	 * [layer][entry][object], zero at first. Store: the sum of what was written, without the seed. Retrieve: the
	 * header adds what must be there, the data takes away what is; zero at the end is a match. Sums have no order,
	 * so header and data may arrive in any.
	 */
	uint64_t *sums;
	int32_t *results;      /* [entry]: 0, or the first failure: sticky. Near the device code */
	int32_t *results_host; /* the same, where the host looks; equal to results where that is one memory */
	uint32_t *first_error; /* of any entry (a result, as its bits): what a wait for a layer returns */
};

/* How a device of the pool is reached. */
struct dev_target {
	uint32_t qp; /* index into dev_block.qp */
	uint32_t nsid;
	uint32_t lba_shift;
	uint32_t boundary_bytes; /* commands don't cross its multiples; a power of two, pages; 0: none */
	uint64_t first_byte; /* of the pool on it: the one place where addresses are checked before a command is made */
	uint64_t end_byte;
	/* Not 0: device code writes objects straight into the medium, which lies here, and the command follows: this
	 * stands for the drive's own DMA (model controller, in place). */
	uint64_t medium;
};

enum dev_cmd_kind { DEV_CMD_DATA = 1, DEV_CMD_HEADER_READ, DEV_CMD_HEADER_WIPE, DEV_CMD_HEADER_WRITE, DEV_CMD_IOCTX };

/*
 * A piece of a step: `n` elements from element `pos` of a run. A run is `len` entries from `first`, neighbours in one
 * set. Elements of a data run are numbered object by object: element e is object e / len of entry first + e % len,
 * which is the order on disk. Elements of a header run are its entries; of explicit IOCTX, the IOCTX.
 */
struct dev_span {
	uint32_t step; /* index into dev_block.steps */
	uint32_t first;
	uint32_t len;
	uint32_t pos;
	uint32_t n;
	uint32_t part_bytes;  /* not 0: n is 1 and only these bytes of the element, */
	uint64_t part_offset; /* from this one on (an object above MDTS) */
};

struct dev_cmd {
	struct dev_span span;
	struct nvme_sqe sqe; /* made, and posted when its data is where the controller will look */
	uint64_t medium;     /* in place: where the data lies; 0: in the buffer. Reads: the controller says so */
	uint16_t next_free;
	uint16_t bounce; /* number of the buffer; DEV_NONE: direct */
	uint16_t qp;
	uint8_t work; /* enum dev_work */
	uint8_t kind;
	uint8_t alone; /* a retry of one element: its failure is final */
	uint8_t busy;
	struct dev_list list;
};

/* What is to be done with a command's data on our side; see move.h. */
enum dev_work {
	DEV_WORK_NONE = 0,
	DEV_WORK_IN,          /* from the bounce buffer (or the medium) to the engine's memory, summed on the way */
	DEV_WORK_OUT,         /* from the engine's memory to the bounce buffer, likewise */
	DEV_WORK_SUM,         /* the controller moved it: sum it where it lies */
	DEV_WORK_HEADERS_IN,  /* check headers, keep their sums */
	DEV_WORK_HEADERS_OUT, /* make headers */
};

/* dev_cmd.busy: who has it. */
enum { DEV_CMD_FREE = 0, DEV_CMD_THEIRS = 1, DEV_CMD_OURS = 2 };

#define DEV_NONE 0xffffu
#define DEV_STEPS_MAX 1024u
#define DEV_QPS_MAX 16u

/* One IOCB as a thread block sees it. */
struct dev_step {
	struct wire_iocb *iocb;
	struct dev_plan *plan;
	uint64_t deadline_ns;
	uint32_t id;      /* of the IOCB */
	uint32_t kind;    /* enum wire_step, or a layer */
	uint32_t lo, hi;  /* this block's entries */
	uint32_t next;    /* generator: next entry that no run covers yet */
	uint32_t pending; /* commands in flight or at work, retries included */
	uint32_t failed;
	int32_t status;
	uint8_t issued; /* all commands were made */
	uint8_t done;
	uint8_t verifying; /* the movers compare its sums */
	uint8_t rsvd;
};

/* Counters of a thread block; core adds them up at any time. Only the owner writes, by dev_count. */
struct dev_stats {
	uint64_t commands, elements, bytes_read, bytes_written, direct_bytes, bounced_bytes, sum_bytes;
	/* What this thread itself summed, without a GPU's movers; of it, what was timed, and how long that took. */
	uint64_t own_sum_bytes, timed_sum_bytes, timed_sum_ns;
	uint64_t failed_elements, retries;
};

PORT_FN void dev_count(uint64_t *counter, uint64_t n)
{
#if defined(__CUDA_ARCH__)
	*counter += n;
#else
	/* One writer: no read-modify-write is needed, only that a reader never sees half of it. */
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
#endif
}

/* What all own sums took, as far as those that were timed say. */
PORT_FN uint64_t dev_sum_ns(const struct dev_stats *s)
{
	double part = s->timed_sum_bytes ? (double)s->own_sum_bytes / (double)s->timed_sum_bytes : 0;

	return (uint64_t)((double)s->timed_sum_ns * part);
}

/* Resources of one thread block, for the life of a lane. */
struct dev_block {
	struct dev_qp qp[DEV_QPS_MAX];
	uint32_t n_qps;
	uint32_t n_cmds; /* at most depth - 1 of the smallest queue */
	struct dev_target dev[GEOM_DEVS_MAX];
	uint32_t n_devs;
	uint32_t sgl_max; /* 0: PRP */
	uint32_t mdts_bytes;
	uint32_t spin_ns; /* before parking; CPU threads only */
	struct wire_map map;
	struct dev_cmd *cmds;
	uint16_t free_cmd; /* head of the free list */
	uint16_t free_bounce;
	uint16_t n_bounce;
	uint16_t in_flight;
	uint8_t *bounce; /* n_bounce buffers of bounce_bytes, mapped for the controller */
	uint64_t bounce_dma; /* 0: not one run, found through the map */
	uint64_t bounce_bytes;
	uint32_t in_place;     /* completions of reads name the medium's address */
	uint32_t bounce_ioctx; /* explicit IOCTX name memory that the controller can't reach: bounced, too */
	int32_t exit_rc;       /* of the last kernel, where the host did not run it */
	int64_t clock_ns;      /* what to add to port_now_ns() for the host's clock; 0 on the host */
	uint16_t *bounce_next; /* free list */
	struct port_parker *parker;
	const uint32_t *abort; /* not 0: give up */
	struct wire_ring *ring;
	uint32_t stream; /* whose SQ of the ring this block serves */

	/* During a kernel. */
	uint32_t index, n_blocks;
	struct dev_step *steps; /* DEV_STEPS_MAX */
	uint32_t n_steps;
	uint32_t issuing;       /* step that makes commands now */
	uint32_t first_open;    /* all steps before it are done */
	struct dev_span run;    /* what is left of the current run: pos..pos+n */
	struct dev_span *retry; /* ring of failed spans, n_cmds entries */
	uint32_t retry_head, n_retry;
	uint32_t rung;           /* bit per queue pair: posted, not rung */
	struct dev_mover *mover; /* warps that move and sum data for this block (exec/mover.cuh); NULL on the host */
	struct dev_stats stats;
	uint32_t untimed; /* commands until the next one whose sums are timed */
};

/* The host's clock, on either side. */
PORT_FN uint64_t dev_now_ns(const struct dev_block *b) { return port_now_ns() + (uint64_t)b->clock_ns; }

#endif
