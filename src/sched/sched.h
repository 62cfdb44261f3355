/*
 * sched.h - what of a lane's I/O is issued when: arithmetic over what the caller says. No I/O, no lock, no clock.
 *
 * Reads go at once. Writes wait in one bounded queue, first in first out, and leave it in batches (a batch is one
 * kernel). A policy says how much may go:
 *
 *     sched_slack        what will have been written before the next read is expected (a window that compute leaves),
 *                        at the rate of late; everything where none is expected
 *     sched_reads_first  everything while no read is in flight
 *
 * and both let go what has waited long enough. What does not fit the queue is refused, and its owner drops it.
 *
 *     sched_write_add ... sched_batch -> launch -> sched_batch_issued ... sched_batch_done
 *     sched_read_issued, sched_read_expected ... sched_read_done
 *
 * Threads: one at a time; the caller has the lock.
 */
#ifndef TUTTI_SCHED_SCHED_H
#define TUTTI_SCHED_SCHED_H

#include <stdint.h>

#define SCHED_BATCH_WRITES 16u             /* a read never waits long behind one */
#define SCHED_BATCH_BYTES (64ull << 20)    /* the write that reaches it is the batch's last */
#define SCHED_BATCHES_IN_FLIGHT 2u         /* one works, one is ready behind it */
#define SCHED_WRITE_PATIENCE_NS 50000000ull
#define SCHED_READ_LATE_NS 5000000ull /* an expected read that is so late does not come */
#define SCHED_NEVER UINT64_MAX
#define SCHED_DUE_APART_NS 100000000ull    /* writes of plans due further apart don't share a kernel */
#define SCHED_LEASE_MARGIN_NS 2500000000ull /* of a lease: what taking a failed kernel's queues apart may need */
#define SCHED_LEAST_NS 10000000ull         /* less time than this for I/O is none */

struct sched;

/* One const struct of functions per policy. */
struct sched_policy {
	const char *name;
	/* How many bytes of writes may go now: 0: none; SCHED_NEVER: all. There is one write at least, and a batch more
	 * may be in flight. */
	uint64_t (*room_bytes)(const struct sched *s, uint64_t now_ns);
};
extern const struct sched_policy sched_slack, sched_reads_first;

/* A write that waits: a step of a plan. */
struct sched_write {
	void *owner;        /* the caller's, handed back */
	uint64_t plan;      /* equal for the steps of one plan */
	uint64_t bytes;     /* about what it moves */
	uint64_t expiry_ns; /* of the plan's lease */
	uint64_t queued_ns;
};

struct sched {
	const struct sched_policy *policy;
	uint64_t io_ns;             /* a kernel's time, if its lease allows */
	struct sched_write *writes; /* ring of room */
	uint32_t room, head, n;
	uint32_t reads_in_flight;   /* kernels */
	uint64_t next_read_ns;      /* when one is expected, or SCHED_NEVER; by whom: */
	uint64_t next_read_plan;
	uint32_t batches_in_flight; /* the oldest first: */
	uint64_t batch_bytes[SCHED_BATCHES_IN_FLIGHT], batch_issued_ns[SCHED_BATCHES_IN_FLIGHT];
	uint64_t last_done_ns;
	uint64_t write_bytes_per_ms; /* of late; 0: not known */
};

/* room writes lie in writes[], which stays the caller's. */
void sched_init(struct sched *s, const struct sched_policy *policy, uint64_t io_ns, struct sched_write *writes,
                uint32_t room);

/*
 * The deadline of a kernel that starts now under a lease: io_ns from now, or sooner, so that all I/O is over when the
 * lease is. -ESTALE: no time is left for I/O.
 */
int sched_deadline(uint64_t now_ns, uint64_t expiry_ns, uint64_t io_ns, uint64_t *deadline_ns);

void sched_read_issued(struct sched *s);
void sched_read_done(struct sched *s);
/*
 * The plan's next read will come at next_ns; SCHED_NEVER: none will. The soonest of all plans' counts. One that is
 * forgotten by its plan costs writes SCHED_READ_LATE_NS.
 */
void sched_read_expected(struct sched *s, uint64_t plan, uint64_t next_ns);

/* Queues all n, in order, or none: -EAGAIN. queued_ns is set to now_ns. */
int sched_write_add(struct sched *s, const struct sched_write *writes, uint32_t n, uint64_t now_ns);
/* The i-th oldest. */
const struct sched_write *sched_write_at(const struct sched *s, uint32_t i);

/*
 * How many of the oldest writes go now, as one kernel, and its deadline: the earliest of theirs (a kernel fails as a
 * whole). 0: none. Changes nothing.
 */
uint32_t sched_batch(const struct sched *s, uint64_t now_ns, uint64_t *deadline_ns);
/* The oldest n were launched. */
void sched_batch_issued(struct sched *s, uint32_t n, uint64_t now_ns);
/* The batch that was launched first has ended. */
void sched_batch_done(struct sched *s, uint64_t now_ns);

#endif
