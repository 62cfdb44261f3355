/*
 * lock.h - who has a pool open: open-file-description locks on bytes far behind any data of its first device.
 *
 * One byte is the store's, exclusive. With it the store locks, shared, a byte whose place encodes its pid, and a lane
 * one whose place encodes the pool's epoch and its pid: so that whoever is refused can name who is in the way. A lock
 * goes with its holder, however that dies. A child made by fork shares it for the moment until it runs (base/fork.h):
 * a close does not wait for that (lock_release), and of a parent that died in this moment the next opener does.
 */
#ifndef TUTTI_CORE_LOCK_H
#define TUTTI_CORE_LOCK_H

#include <stdint.h>

/* How long what a dead process left behind is waited for. */
#define LOCK_ORPHAN_NS 200000000ull

/* -EBUSY: another store holds it; or, after LOCK_ORPHAN_NS, what a process left that is gone. */
int lock_store(int fd);
/* Lets go what fd's opener locked, whatever processes share it. */
void lock_release(int fd);
/* 1: there is no such process here, so whoever shares its lock was made by it. */
int lock_gone(int pid);
/* 1: a store has it. *pid: which process opened it; 0: not known yet, it is just coming in. */
int lock_store_held(int fd, int *pid);
/* 0, or the pid of some lane that has the pool open. */
int lock_lane_pid(int fd, uint64_t *epoch);
int lock_lane(int fd, uint64_t epoch);
void lock_lane_release(int fd, uint64_t epoch);
/* Waits to deadline_ns for all lanes to go, but those of epoch `except` (0: none). -EBUSY: *pid is one that stayed. */
int lock_wait_lanes(int fd, uint64_t except, uint64_t deadline_ns, int *pid);

#endif
