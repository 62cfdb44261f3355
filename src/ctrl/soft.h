/*
 * soft.h - what a controller made of software does with a decoded command, and the front that all of them share.
 *
 * The front (soft.c, serve.c, decode.c) owns the queues: one service thread polls doorbells, checks and decodes
 * each entry into a struct ctrl_io, hands it to the backend, and posts the completion entry when the backend gives it
 * back. The backend (uring.c, null.c, model.c, a test's) only moves bytes. All its functions are called on
 * the service thread, so it needs no lock and may keep state that belongs to one thread (an io_uring).
 */
#ifndef TUTTI_CTRL_SOFT_H
#define TUTTI_CTRL_SOFT_H

#include <sys/uio.h>

#include "ctrl/ctrl.h"

#define CTRL_IO_DEPTH_DEFAULT 256u
#define CTRL_IO_DEPTH_MAX 4096u
#define CTRL_MDTS_DEFAULT (1u << 20)
#define CTRL_MDTS_MAX (2u << 20)
#define CTRL_SGL_MAX 512u        /* descriptors of a command, segment descriptors included */
#define CTRL_QUEUE_DEPTH_MAX 4096u
#define CTRL_REGIONS_MAX 4096u
#define CTRL_BUF_SHIFT 30        /* a region is registered in pieces of 1 << CTRL_BUF_SHIFT bytes */

/* Attempted write to a read-only range (NVM command set 1.0, figure 13). */
#define CTRL_SC_READ_ONLY 0x182u

struct soft_qp;

/* One decoded command. It belongs to the backend from submit until reap gives it back. */
struct ctrl_io {
	uint8_t opcode;        /* NVME_CMD_READ, NVME_CMD_WRITE or NVME_CMD_FLUSH */
	uint8_t fua;           /* a write that must be durable when it completes */
	uint16_t target;       /* nsid - 1 */
	uint32_t bytes;        /* 0: flush */
	uint64_t offset_bytes;
	struct iovec *iov;     /* memory, in the order of the medium; every byte lies in mapped regions */
	uint32_t n_iov;
	int32_t buf;           /* registered buffer that holds all of iov; -1: none */
	uint32_t status;       /* out: 0 or an NVMe status */
	uint64_t result;       /* out: dw0 and dw1 of the completion */
	/* The backend's, while it has the io; ctrl_io_begin and ctrl_io_result use the first four. */
	struct iovec *rest;    /* what is left to transfer; starts as iov, is consumed in place */
	uint32_t n_rest;
	uint32_t done_bytes;
	uint32_t tries;
	struct ctrl_io *next;
	void *priv;
	uint64_t due_ns;
	/* The front's. */
	struct soft_qp *qp;
	uint16_t cid;
	uint16_t busy;
};

struct ctrl_io_ops {
	const char *model; /* for ctrl_info */
	int instant;       /* 1: every checked command is done at once with status 0; only open and close are called */
	/*
	 * Opens the targets. Fills info's n_ns, ns[] and volatile_cache; the front fills the rest. counters are the
	 * backend's to add to with ctrl_count: syscalls, fixed_ios, bounced, resumed. 0 or -errno with a message.
	 */
	int (*open)(void *arg, const struct ctrl_opts *opts, struct ctrl_counters *counters, struct ctrl_info *info,
	            void **self);
	/* Frees everything. Called with nothing in flight, or (after a deadline) with I/O that never came back. */
	void (*close)(void *self);
	/* Takes io; at most depth_max at once. May only queue it until the next wait. */
	void (*submit)(void *self, struct ctrl_io *io);
	/* Gives back up to max finished ones. Never waits. */
	uint32_t (*reap)(void *self, struct ctrl_io **done, uint32_t max);
	/*
	 * Starts what is queued, then sleeps until something can be reaped, somebody wakes the parker (already
	 * announced), or the deadline (0: none). May return early. NULL: the front parks.
	 */
	void (*wait)(void *self, struct port_parker *parker, uint64_t deadline_ns);
	/* Tries to end an io early; it still comes back through reap. NULL: can't. */
	void (*cancel)(void *self, struct ctrl_io *io);
	/* Registers a region: *buf is the number of its first piece, or -1 if that was not possible. NULL: never. */
	void (*mem_map)(void *self, void *va, uint64_t bytes, int32_t *buf);
	void (*mem_unmap)(void *self, void *va, uint64_t bytes, int32_t buf);
};

/* The front's functions, for the tables in virt.c, null.c, model.c. */
int ctrl_soft_open(const struct ctrl_opts *opts, const struct ctrl_io_ops *ops, void *arg, struct ctrl **out);
void ctrl_soft_close(struct ctrl *c);
int ctrl_soft_identify(struct ctrl *c, struct ctrl_info *out);
int ctrl_soft_qp_create(struct ctrl *c, uint32_t depth, struct port_parker *cq_parker, struct dev_qp *out);
int ctrl_soft_qp_delete(struct ctrl *c, struct dev_qp *qp, uint64_t deadline_ns);
int ctrl_soft_mem_map(struct ctrl *c, void *va, uint64_t bytes, uint64_t *dma_addr, int *registered);
int ctrl_soft_mem_unmap(struct ctrl *c, void *va, uint64_t bytes);
void ctrl_soft_awake(struct ctrl *c, int by);

extern const struct ctrl_io_ops ctrl_io_uring, ctrl_io_null, ctrl_io_model;

/* ---- for backends: io.c ---- */

/* Adds to a counter that only this thread writes and others read. */
static inline void ctrl_count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* NVMe status of an errno (positive) of a read, write or flush. */
uint32_t ctrl_io_status(uint8_t opcode, int error);
/* Sets rest to the whole command. */
void ctrl_io_begin(struct ctrl_io *io);
/*
 * Digests one result (bytes or -errno, as read(2) counts) of a transfer of rest at offset_bytes + done_bytes.
 * 1: finished, status is set. 0: submit the rest again (short, EINTR, EAGAIN; a bounded number of times).
 * A short count is rounded down to align_bytes first, because O_DIRECT can't continue inside a sector.
 */
int ctrl_io_result(struct ctrl_io *io, int64_t result, uint32_t align_bytes);
/* Copies between iov and one buffer. */
void ctrl_io_gather(const struct ctrl_io *io, void *to);
void ctrl_io_scatter(const struct ctrl_io *io, const void *from);

/* ---- for backends: target.c ---- */

/* An opened file or block device. */
struct ctrl_file {
	int fd;
	int own;              /* close it */
	int direct;
	uint32_t offset_align; /* of offsets and of each piece's length, when direct */
	struct ctrl_ns_info ns;
};

/* Opens for I/O, with O_DIRECT where the file system has it. lba_bytes as in ctrl_opts. 0 or -errno with a message. */
int ctrl_file_open(const struct ctrl_target *t, uint32_t lba_bytes, int want_direct, struct ctrl_file *out);
void ctrl_file_close(struct ctrl_file *f);
/* "ram:64M" and the like: bytes behind the prefix. -EINVAL: not that form. */
int ctrl_size_path(const char *path, const char *prefix, uint64_t *bytes);

#endif
