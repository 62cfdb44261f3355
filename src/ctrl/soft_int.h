/*
 * soft_int.h - inside the software front: soft.c (callers' side) and serve.c (service thread) share it.
 *
 * The service thread owns everything but the mailbox. A caller puts one request into the mailbox, wakes the thread,
 * and sleeps until it is answered; so the tables need no lock, and io_uring sees one thread only.
 */
#ifndef TUTTI_CTRL_SOFT_INT_H
#define TUTTI_CTRL_SOFT_INT_H

#include <pthread.h>

#include "base/err.h"
#include "ctrl/decode.h"

#define SOFT_BATCH 32u

enum soft_qp_state { SOFT_QP_FREE = 0, SOFT_QP_ACTIVE, SOFT_QP_DELETING };

struct soft_qp {
	/* Of the service thread, on each turn. */
	struct nvme_sqe *sq;
	struct nvme_cqe *cq;
	uint32_t *sq_doorbell;
	uint32_t *cq_doorbell;
	struct port_parker *cq_parker;
	uint32_t depth, id;
	uint32_t sq_head, cq_tail, phase;
	uint32_t cq_head;   /* as the submitter told last */
	uint32_t inflight;  /* commands at the backend */
	uint32_t held;      /* entries wait for room in the CQ */
	uint32_t posted;    /* since the last wake */
	uint32_t order;     /* see soft_wake */
	enum soft_qp_state state;
	/* Of the caller. */
	void *memory;
	size_t memory_bytes;
	int deleting;  /* asked for */
	uint32_t gone; /* DELETING ended; a release store by the service thread */
};

enum soft_request { SOFT_MAP = 1, SOFT_UNMAP, SOFT_CREATE, SOFT_DELETE, SOFT_EXIT };
enum { SOFT_MAIL_EMPTY = 0, SOFT_MAIL_POSTED, SOFT_MAIL_ANSWERED };

struct soft_mail {
	uint32_t state;
	enum soft_request request;
	struct soft_qp *qp;
	uint64_t va, bytes;
	int32_t buf;
	int result;
	char text[ERR_TEXT_BYTES];
	struct port_parker caller;
};

struct ctrl {
	struct port_parker parker; /* the service thread's; first, so that it has a cache line of its own */
	const struct ctrl_io_ops *ops;
	void *ops_arg, *self;
	struct ctrl_opts opts; /* targets are the caller's: valid during open only */
	struct ctrl_info info;
	struct ctrl_decoder decoder;
	struct ctrl_regions *regions;
	struct soft_mail mail;
	pthread_t thread;
	uint32_t awake; /* accelerators that look at our queues: no sleep */
	int broken; /* a request was never answered: nothing more is asked */
	uint64_t spin_ns;

	/* Of the service thread. */
	struct ctrl_io *ios;       /* depth_max; a free one is linked through next */
	struct iovec *iovs;
	struct ctrl_io *free;
	uint32_t n_ios, n_free, inflight;
	uint32_t n_active;
	struct soft_qp *active[CTRL_QPS_MAX];
	uint64_t idle_since_ns;
	uint64_t nap_ns;
	int exit;
	struct ctrl_counters counters;
	struct soft_qp qps[CTRL_QPS_MAX];
};

void *soft_serve(void *arg); /* the thread: serve.c */

#endif
