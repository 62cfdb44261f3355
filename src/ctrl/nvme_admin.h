/*
 * nvme_admin.h - one NVMe function driven from user space: registers, admin queue, I/O queue pairs.
 *
 * How the function was claimed is behind nvme_transport: VFIO, a kernel module of our own, or a mock in a test. Reads
 * and writes of data never pass here: device code posts them on the queue pairs that this file makes.
 *
 * Bad days. A queue pair that must go is deleted by admin command; the controller answers that only when it has let go
 * of all its commands. Where the admin queue does not answer either, the function is fenced: bus mastering is taken
 * from it, after which no memory of ours can change, and it is reset. All its queue pairs are gone then (their
 * generation is past), and the next one that is made brings the controller up again. CC.EN is never cleared while queue
 * pairs that the controller could be asked to delete are still there.
 *
 * There is no Abort. A controller may answer it with "not aborted" and leave the command under way, so that deletion
 * must follow anyway; one that forgot a command has nothing to abort; and it would save little: a kernel's steps have
 * one deadline, and all that is unanswered then has failed. A queue pair is remade by four admin commands.
 *
 * Threads: every call takes the function's lock; a second thread of ours waits for interrupts and wakes parkers.
 */
#ifndef TUTTI_CTRL_NVME_ADMIN_H
#define TUTTI_CTRL_NVME_ADMIN_H

#include <pthread.h>

#include "ctrl/ctrl.h"
#include "dev/dptr.h"
#include "wire/nvme_admin.h"

#define NVME_NS_MAX 16u        /* namespaces of a function that are looked at */
#define NVME_VECTORS_MAX 32u   /* interrupts; queue pairs share them when there are more */
#define NVME_ADMIN_DEPTH 32u

/* Memory as a function sees it: runs that lie one behind the other in our memory. */
struct nvme_run {
	uint64_t bytes, dma;
};

/*
 * What stands between the driver and a function: the only part that knows how it was claimed. dma_map and what follows
 * it are called under no lock of the driver's; bus_master, reset and interrupts under the function's.
 */
struct nvme_transport_ops {
	const char *name; /* "vfio" */
	/* Zeroed memory of ours (whole pages) that is one run for the function: its queues. */
	int (*memory_get)(void *self, uint64_t bytes, void **va, uint64_t *dma);
	void (*memory_put)(void *self, void *va, uint64_t bytes, uint64_t dma);
	/*
	 * Makes memory (whole pages) reachable for every function of the same address space. *runs, of which there are
	 * *n, add up to `bytes`; the caller frees them.
	 */
	int (*dma_map)(void *self, void *va, uint64_t bytes, struct nvme_run **runs, uint32_t *n);
	/* Exactly what was mapped. After it the function can't reach the memory. */
	int (*dma_unmap)(void *self, void *va, uint64_t bytes, const struct nvme_run *runs, uint32_t n);
	/* After off has returned 0 the function changes no memory. */
	int (*bus_master)(void *self, int on);
	/* Resets the function alone. -EOPNOTSUPP: it can't be. Bus mastering is off afterwards, or as it was. */
	int (*reset)(void *self);
	/* Interrupt vectors 0..n - 1 signal these eventfds; n 0: none any more. */
	int (*interrupts)(void *self, const int *eventfds, uint32_t n);
	void (*close)(void *self);
};

struct nvme_transport {
	const struct nvme_transport_ops *ops;
	void *self;
	uint8_t *bar0;
	uint64_t bar0_bytes;
	uint32_t n_vectors;
	const void *space; /* functions whose dma_map means the same addresses have the same */
};

struct nvme_ns {
	uint32_t nsid;
	uint32_t lba_bytes;
	uint32_t metadata_bytes; /* of a block; what has any can't be used */
	uint64_t bytes;
	uint32_t boundary_bytes; /* NOIOB; 0: none */
};

struct nvme_queue {
	void *memory; /* SQ, then CQ; NULL: no such queue pair */
	uint64_t memory_bytes, dma;
	uint32_t depth;
	uint32_t generation; /* of the function when it was made */
	struct port_parker *parker;
};

struct nvme_fn {
	struct nvme_transport t;
	char name[32]; /* "0000:01:00.0" */
	pthread_mutex_t lock;
	uint64_t cap;
	char model[41], serial[21], firmware[9];
	uint32_t mdts_bytes; /* 0: no limit */
	uint32_t depth_max;
	uint32_t qps_max; /* what Set Features granted */
	int sgl;
	int volatile_cache;
	int deallocates;
	struct nvme_ns ns[NVME_NS_MAX];
	uint32_t n_ns, n_ns_left; /* left: more than fit */
	/* The admin queue: submission page, completion page, data page. */
	struct dev_qp admin;
	uint8_t *memory;
	uint64_t memory_dma;
	uint16_t cid;
	uint64_t admin_ns; /* for one admin command, unless its caller has less time; tests make it short */
	int up;         /* enabled, and the admin queue answers */
	int admin_lost; /* an admin command was not answered: only a reset helps */
	uint32_t generation;
	struct nvme_queue queue[CTRL_QPS_MAX + 1]; /* [qid]; 0 is the admin queue's place */
	uint64_t lost_bytes;                       /* memory that may still be written, kept for ever */
	/* Interrupts. */
	pthread_mutex_t irq_lock; /* the parkers of queue[] */
	pthread_t irq_thread;
	int irq_running, irq_stop;
	int irq_fd[NVME_VECTORS_MAX];
	uint32_t n_irqs;
	/* Counters, for reports and tests. */
	uint64_t resets, fences, stray_completions;
};

/* Takes the transport (closes it on failure too), brings the controller up and identifies it. */
int nvme_fn_open(const struct nvme_transport *t, const char *name, struct nvme_fn **out);
/* Deletes queue pairs, shuts the controller down (its cache is then on the medium), closes the transport. */
void nvme_fn_close(struct nvme_fn *f);
/*
 * Makes a queue pair. After a reset it first brings the controller up again. -ENOSPC: none is free. -EINVAL: depth.
 * parker may be NULL (no interrupts then).
 */
int nvme_qp_create(struct nvme_fn *f, uint32_t depth, struct port_parker *parker, struct dev_qp *out);
/* As ctrl_ops.qp_delete. */
int nvme_qp_delete(struct nvme_fn *f, struct dev_qp *qp, uint64_t deadline_ns);
/* 1: the function was fenced since it was made. Takes no lock. */
int nvme_qp_lost(const struct nvme_fn *f, uint32_t qid);
/* One admin command; *dw0 (may be NULL) is its result. 0, NVMe status, -ETIMEDOUT, -ENODEV, -EIO. */
int nvme_admin(struct nvme_fn *f, const struct nvme_sqe *e, uint64_t deadline_ns, uint32_t *dw0);
/* NULL: the function has no such active namespace. */
const struct nvme_ns *nvme_ns_find(const struct nvme_fn *f, uint32_t nsid);

#endif
