/*
 * ctrl.h - what answers NVMe queues. One const struct of functions per controller.
 *
 * A controller has namespaces (NVMe's word; one per file, block device or real namespace) and queue pairs; those of
 * one unit reach the namespaces of that unit. Device code writes submission entries and reads completions in memory;
 * only set-up and teardown go through these functions. Queue pair memory belongs to the controller.
 *
 * Threads: open, close, qp_create, qp_delete, map and unmap are called by one thread at a time (core's
 * lock). A queue pair is used by one device thread block at a time.
 */
#ifndef TUTTI_CTRL_H
#define TUTTI_CTRL_H

#include "dev/qp.h"

#define CTRL_NS_MAX 16u
#define CTRL_QPS_MAX 64u

struct ctrl; /* each controller's own */
struct ctrl_counters;

/* What Identify says. Nothing in the project assumes any of these. */
struct ctrl_ns_info {
	uint64_t capacity_bytes;
	uint32_t lba_bytes;
	uint32_t
	    mem_align_bytes; /* alignment of data addresses that the fast path needs (statx dio_mem_align, else lba) */
	uint32_t preferred_io_bytes;   /* 128 to 512 KiB */
	uint32_t boundary_bytes;       /* commands don't cross its multiples: a power of two, 4096 at least; 0: none */
	int direct;                    /* 0: the file system has no O_DIRECT; I/O goes through the page cache */
	uint32_t unit;                 /* whose queue pairs reach it */
	uint32_t nsid;                 /* what commands call it */
	/* Knows Dataset Management. 0 for files, also where holes could be punched: a pool's space stays reserved. */
	int deallocates;
};

struct ctrl_info {
	char model[40]; /* for reports: "virt io_uring", "vfio: QEMU NVMe Ctrl" */
	uint32_t n_ns;
	struct ctrl_ns_info ns[CTRL_NS_MAX]; /* in the order of the targets */
	uint32_t n_units;        /* functions: each has queue pairs of its own; software has one */
	uint32_t mdts_bytes;     /* largest transfer of one command */
	uint32_t depth_max;      /* entries of a queue, at most */
	uint32_t qps_max;        /* of each unit */
	uint32_t sgl_max;        /* descriptors of a command; 0: no SGL support */
	int reaches_accel;       /* can move data straight into accelerator memory */
	int volatile_cache;      /* FLUSH matters */
};

/* A file, block device or function to open. fd is used if it is >= 0 (and stays the caller's), else path is opened. */
struct ctrl_target {
	const char *path;
	int fd;
	int read_only;
};

struct ctrl_io_ops; /* ctrl/soft.h: what a soft controller does with a decoded command; tests put faults here */

struct ctrl_opts {
	const struct ctrl_target *targets;
	uint32_t n_targets;
	uint32_t depth_max;          /* commands in flight at the backend, 0: default 256 */
	uint32_t spin_us;            /* how long a service thread spins before it parks, 0: default */
	int sgl;                     /* 0: pretend to have no SGL support (tests of PRP) */
	uint32_t mdts_bytes;         /* 0: default */
	uint32_t lba_bytes;          /* 0: the medium's own; 512 or 4096 to force (tests) */
	const struct ctrl_model *model;    /* model: timing; NULL: no limits */
	const struct ctrl_io_ops *io_ops;  /* virt: NULL is io_uring; tests give their own */
	void *io_arg;
};

/* Timing of the model controller (bytes and nanoseconds; 0 is unlimited). */
struct ctrl_model {
	uint64_t read_bytes_per_s;
	uint64_t write_bytes_per_s;
	uint64_t read_latency_ns;
	uint64_t write_latency_ns;
	uint32_t queue_depth;        /* commands that the medium works on at once */
	uint32_t mixed_percent;      /* of each bandwidth that is left while reads and writes overlap; 0: 100 */
};

/* One run of memory, and the address at which the controller finds it. Not 0: the walk ends with this. */
typedef int (*ctrl_run_fn)(void *arg, uint64_t va, uint64_t bytes, uint64_t dma);

struct ctrl_ops {
	const char *name;
	/* 0; -errno of opening a target, of io_uring or memory. On failure nothing is left open. */
	int (*open)(const struct ctrl_opts *opts, struct ctrl **out);
	/* Waits for commands in flight, to a bounded time; deletes all queue pairs, frees everything. */
	void (*close)(struct ctrl *c);
	int (*identify)(struct ctrl *c, struct ctrl_info *out);
	/*
	 * Makes a queue pair of `depth` entries. cq_parker (may be NULL: the caller polls) is woken after completions
	 * were posted. *out is ready for dev/qp.h. -ENOSPC: no free queue pair; -EINVAL: depth.
	 */
	int (*qp_create)(struct ctrl *c, uint32_t depth, struct port_parker *cq_parker, struct dev_qp *out);
	/*
	 * Deletes it. After 0 the controller touches neither its memory nor the data of its commands. -ETIMEDOUT at
	 * deadline_ns: it might still; the memory must then stay mapped for ever.
	 */
	int (*qp_delete)(struct ctrl *c, struct dev_qp *qp, uint64_t deadline_ns);
	/*
	 * Makes memory reachable for data transfers and lists. dma_addr (may be NULL) is what device code must put into
	 * descriptors. The virtual controller registers it with io_uring where that is possible; where it is not
	 * (memlock limit, memory that can't be pinned) the call still returns 0, *registered (may be NULL) says 0, and
	 * a warning in the log says how to mend it. Commands that name other memory end with status 0x04. -EEXIST:
	 * overlaps a mapped region; -ENOSPC: too many regions; -EINVAL. Pinning many GB takes seconds, in which the
	 * controller answers nothing.
	 */
	int (*mem_map)(struct ctrl *c, void *va, uint64_t bytes, uint64_t *dma_addr, int *registered);
	/*
	 * Memory that mem_map has mapped, run by run in the order of its addresses: a controller may see it in pieces,
	 * and then *dma_addr was that of the first one only. NULL: it is always one run. 0, -ENOENT, or what `run`
	 * returned.
	 */
	int (*mem_runs)(struct ctrl *c, const void *va, uint64_t bytes, ctrl_run_fn run, void *arg);
	/* Exactly what was mapped. -EBUSY: a command in flight uses it; -ENOENT: not mapped so. */
	int (*mem_unmap)(struct ctrl *c, void *va, uint64_t bytes);
	/* qp_create on unit `unit` (qp_create is unit 0). NULL: there is one unit. */
	int (*qp_create_on)(struct ctrl *c, uint32_t unit, uint32_t depth, struct port_parker *cq_parker,
	                    struct dev_qp *out);
	/* 1: the controller was reset since, by someone else's need: no command of it will be answered. NULL: never.
	 * Any thread. */
	int (*qp_lost)(struct ctrl *c, const struct dev_qp *qp);
	/*
	 * by 1: an accelerator begins to look at its queues, which can't wake a service thread: it must not sleep until
	 * as many calls with -1 have come. Any thread. NULL: there is no such thread.
	 */
	void (*awake)(struct ctrl *c, int by);
	/*
	 * From now on reads move no data: their completions name its address in the medium (dw0, dw1), and who asked
	 * gets it there. A write whose data pointer is its own place in the medium (mapped with mem_map) moves none
	 * either. *p, *bytes: the medium of namespace i. NULL: can't.
	 */
	int (*medium)(struct ctrl *c, uint32_t i, void **p, uint64_t *bytes);
	/* NULL: it has none. */
	int (*counters)(struct ctrl *c, struct ctrl_counters *out);
};

static inline int ctrl_qp_lost(const struct ctrl_ops *ops, struct ctrl *c, const struct dev_qp *qp)
{
	return ops->qp_lost && ops->qp_lost(c, qp);
}

/* qp_create on any unit of any controller. */
static inline int ctrl_qp_create(const struct ctrl_ops *ops, struct ctrl *c, uint32_t unit, uint32_t depth,
                                 struct port_parker *cq_parker, struct dev_qp *out)
{
	return unit ? ops->qp_create_on(c, unit, depth, cq_parker, out) : ops->qp_create(c, depth, cq_parker, out);
}

/* mem_map, and then each run of the memory. Nothing stays mapped when it fails. */
static inline int ctrl_mem_map_runs(const struct ctrl_ops *ops, struct ctrl *c, void *va, uint64_t bytes,
                                    int *registered, ctrl_run_fn run, void *arg)
{
	uint64_t dma;
	int rc = ops->mem_map(c, va, bytes, &dma, registered);

	if (rc)
		return rc;
	rc = ops->mem_runs ? ops->mem_runs(c, va, bytes, run, arg) : run(arg, (uint64_t)(uintptr_t)va, bytes, dma);
	if (rc)
		ops->mem_unmap(c, va, bytes);
	return rc;
}

extern const struct ctrl_ops ctrl_null, ctrl_virt, ctrl_model, ctrl_vfio;

/* Counters of a soft controller, for tests, bench and doctor. Any thread; values are a snapshot. */
struct ctrl_counters {
	uint64_t commands, reads, writes, flushes, bytes_read, bytes_written, syscalls, parks, errors;
	uint64_t fixed_ios; /* I/Os on registered buffers */
	uint64_t bounced;   /* commands whose addresses or lengths O_DIRECT refuses: copied through an aligned buffer */
	uint64_t resumed;   /* short, interrupted or refused I/Os of which the rest was submitted again */
};
/* Of a soft controller. */
int ctrl_counters(struct ctrl *c, struct ctrl_counters *out);

#endif
