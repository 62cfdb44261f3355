/*
 * ring.h - gio_uring, host side: IOCBs handed out, issued, waited for. The paper's four calls without the launch, which
 * is the executor's (core joins the two).
 *
 * Threads: get, issue and put by one thread at a time; wait and done by any number, at the same time.
 */
#ifndef TUTTI_RING_RING_H
#define TUTTI_RING_RING_H

#include "wire/ring.h"

struct ring;

struct ring_result {
	int32_t status;
	uint32_t failed;
};

/* init_queue: depth IOCBs (a power of two, at most 65536). -EINVAL, -ENOMEM. */
int ring_new(uint32_t depth, struct ring **out);
/*
 * The same, in memory that the caller finds for what the kernel reads and writes: `near` what only it touches, zeroed;
 * else what both sides do. silent: the kernel can't wake anybody (a GPU), so who waits looks now and then.
 */
struct ring_memory {
	void *(*get)(void *arg, uint64_t bytes, int near);
	void (*put)(void *arg, void *p, uint64_t bytes, int near);
	void *arg;
	int silent;
	uint32_t
	    ioctx; /* room for so many in each IOCB, taken at once from get; 0: from the heap, as they are needed */
};
int ring_new_in(uint32_t depth, const struct ring_memory *memory, struct ring **out);
/* Nothing may be in flight. */
void ring_free(struct ring *r);
/* What the kernel is given. */
struct wire_ring *ring_shared(struct ring *r);
/*
 * get_iocb: an IOCB with room for n_ioctx explicit transfers (0: it will name a plan's step). *ioctx (may be NULL when
 * n_ioctx is 0) is valid until put. -EAGAIN: all are out. -EINVAL: n_ioctx > WIRE_IOCTX_MAX. -ENOMEM.
 */
int ring_get(struct ring *r, uint32_t n_ioctx, struct wire_iocb **out, struct wire_ioctx **ioctx);
/*
 * Appends IOCBs to a stream's SQ. *sq_first is what the kernel is launched with. The SQ has as many entries as there
 * are IOCBs: it can't be full. Order of issue is order of launch.
 */
void ring_issue(struct ring *r, uint32_t stream, struct wire_iocb *const *iocbs, uint32_t n, uint32_t *sq_first);
/* Takes back what ring_issue appended last, when the launch failed. */
void ring_unissue(struct ring *r, uint32_t stream, uint32_t n);
/* wait_cqe: 0 and the result; -ETIMEDOUT at deadline_ns (absolute). A completion stays readable until put. */
int ring_wait(struct ring *r, uint32_t id, uint64_t deadline_ns, struct ring_result *out);
/* 1: complete (*out is filled); 0: not yet. Does not wait. */
int ring_done(struct ring *r, uint32_t id, struct ring_result *out);
/*
 * For who takes over from a kernel that gave up: the IOCB is complete with this result, its flag is raised. The kernel
 * has ended. 0: it was complete already, nothing was changed.
 */
int ring_complete(struct ring *r, uint32_t id, int32_t status, uint32_t failed);
/*
 * The IOCB is held until ring_let, or whoever else writes *event (an accelerator's stream; shared memory): event_value.
 * Before its issue. What waits is the executor.
 */
void ring_hold(struct ring *r, struct wire_iocb *io);
void ring_let(struct ring *r, uint32_t id);
/* Gives an IOCB back: it was never issued, or is complete. */
void ring_put(struct ring *r, uint32_t id);

#endif
