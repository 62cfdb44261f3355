/*
 * fault_io.h - a backend for the virtual controller, on ordinary files, that fails on command and remembers.
 *
 *     struct fault_io *f = fault_io_new(64 << 20);
 *     fault_io_rule(f, &(struct fault_rule){.kind = FAULT_DEAD, .ops = FAULT_WRITE, .nth = 17});
 *     opts.io_ops = &fault_io_ops; opts.io_arg = f; ctrl_virt.open(&opts, &c); ...
 *
 * Any number of controllers may share one fault_io: their I/Os are counted and logged together, in the order in
 * which they were carried out; files are told apart by inode, not by path. An "I/O" is one attempt: a command that
 * was cut short and continues counts twice. All functions may be called from any thread, at any time.
 *
 * The log. Every write that reached a file, and every flush, is one event. To see what a power loss may leave:
 *
 *     fault_io_copy(pool, base)                      before the run
 *     ... run, until FAULT_DEAD or as long as you like; close everything ...
 *     for n = 0 .. fault_io_events(f):               the power goes after event n
 *         u = fault_io_unflushed(f, n), k = min(u, 6)
 *         for keep = 0 .. (1 << k) - 1:              any subset of the last k unflushed writes
 *             fault_io_copy(base, image)
 *             fault_io_replay(f, n, k, keep, torn, images, n_images)
 *             open the image, check
 *
 * A write counts as flushed at n if its completion had been given to the controller before a flush of the same file
 * was carried out, and that flush is among the n events; or if it was a completed FUA write. Flushed writes and
 * unflushed ones older than the last k are always applied.
 */
#ifndef TUTTI_TEST_FAULT_IO_H
#define TUTTI_TEST_FAULT_IO_H

#include <stdint.h>

#include "ctrl/soft.h"

enum fault_ops { FAULT_READ = 1, FAULT_WRITE = 2, FAULT_FLUSH = 4 };

enum fault_kind {
	FAULT_ERROR = 1, /* ends with errno `value`; moves nothing. EINTR and EAGAIN are retried, as with a kernel */
	FAULT_SHORT,     /* moves at most `value` bytes of it (the rest is a further I/O) */
	FAULT_DELAY,     /* carried out, but completes `value` ns later */
	FAULT_REORDER,   /* carried out, but completes after `value` I/Os that came later; after 5 ms at the latest */
	FAULT_HANG,      /* carried out, never completes; a cancel ends it */
	FAULT_STUCK,     /* likewise, but a cancel does not help: only fault_io_release */
	FAULT_STOP,      /* this and all later I/O do nothing and never complete; cancels work */
	FAULT_DEAD,      /* this and all later I/O do nothing and end with EIO at once: a power loss without waiting */
	FAULT_TORN,      /* a write of which only the first `value` bytes reach the file; then as FAULT_DEAD */
	FAULT_KILL,      /* the first `value` bytes reach the file, then the process gets SIGKILL */
	FAULT_FLIP,      /* the read succeeds, with bit `value` of its bytes turned over */
};

struct fault_rule {
	enum fault_kind kind;
	uint32_t ops;          /* FAULT_READ | ...; 0: all */
	uint64_t nth;          /* it strikes first at the nth I/O that matches from now on; 0: 1 */
	uint64_t count;        /* and at so many in a row; 0: 1; UINT64_MAX: for ever */
	uint64_t value;
	uint64_t offset_from, offset_to; /* only I/Os that begin in [from, to); 0, 0: anywhere */
};
#define FAULT_RULES_MAX 32

struct fault_io;

/* log_bytes_max: data of writes that the log may hold; 0: no log. */
struct fault_io *fault_io_new(uint64_t log_bytes_max);
/* After all controllers on it are closed. */
void fault_io_free(struct fault_io *f);
/* Adds a rule; 0 or -ENOSPC. The first rule that matches decides. */
int fault_io_rule(struct fault_io *f, const struct fault_rule *rule);
/* Forgets all rules, and that it was stopped or dead. */
void fault_io_clear(struct fault_io *f);
/* Lets everything that FAULT_STUCK or FAULT_HANG holds complete. */
void fault_io_release(struct fault_io *f);
/* I/Os of these kinds since the beginning. */
uint64_t fault_io_count(struct fault_io *f, uint32_t ops);
/* 1: FAULT_STOP, _DEAD or _TORN has struck. */
int fault_io_struck(struct fault_io *f);
/* What controllers opened from now on report as mem_align_bytes; 0: 4. */
void fault_io_set_align(struct fault_io *f, uint32_t mem_align_bytes);

/* ---- the log ---- */
struct fault_event {
	int flush;
	uint32_t file;         /* in order of first opening */
	uint64_t offset_bytes, bytes;
	const void *data;      /* valid until fault_io_free or fault_io_log_reset */
};
uint64_t fault_io_events(struct fault_io *f);
int fault_io_event(struct fault_io *f, uint64_t i, struct fault_event *out);
/* Writes among the first n events that a power loss after them may undo. */
uint32_t fault_io_unflushed(struct fault_io *f, uint64_t n);
/*
 * Applies the first n events to images[file]. Of the last k unflushed writes, number i (0 is the oldest of them) is
 * applied if bit i of keep is set. torn > 0: of the newest applied write only its first `torn` bytes.
 * -ENOSPC: the log was too small; -EINVAL: more files than images, or k > 32; or -errno.
 */
int fault_io_replay(struct fault_io *f, uint64_t n, uint32_t k, uint32_t keep, uint64_t torn, const char *const *images,
                    uint32_t n_images);
/* Forgets all events: the next ones are based on the files as they are now. */
void fault_io_log_reset(struct fault_io *f);
/* Copies a file, leaving holes as holes. 0 or -errno. */
int fault_io_copy(const char *from, const char *to);

extern const struct ctrl_io_ops fault_io_ops;

#endif
