/* fault_int.h - what fault_io.c and fault_log.c share. */
#ifndef TUTTI_TEST_FAULT_INT_H
#define TUTTI_TEST_FAULT_INT_H

#include <pthread.h>
#include <sys/types.h>

#include "ctrl/fault_io.h"

#define FAULT_FILES_MAX 64u
#define EVENT_NONE UINT64_MAX

struct log_event {
	struct fault_event e;
	uint64_t done_at; /* events there were when its completion was given back; EVENT_NONE: not yet */
	int fua;
};

struct fault_log {
	struct log_event *events;
	uint64_t n, room;
	uint64_t bytes, bytes_max;
	int full;
};

struct fault_io {
	pthread_mutex_t lock;
	struct fault_rule rules[FAULT_RULES_MAX];
	uint64_t seen[FAULT_RULES_MAX];
	uint32_t n_rules;
	enum fault_kind struck; /* FAULT_STOP or FAULT_DEAD, for good */
	uint64_t count[3];
	uint64_t releases;
	uint32_t mem_align_bytes;
	uint32_t n_files;
	dev_t dev[FAULT_FILES_MAX];
	ino_t ino[FAULT_FILES_MAX];
	struct fault_log log;
};

/* Under the lock. The first n bytes of io's rest were written. Returns the event's number. */
uint64_t fault_log_write(struct fault_io *f, uint32_t file, const struct ctrl_io *io, uint64_t n);
void fault_log_flush(struct fault_io *f, uint32_t file);
void fault_log_done(struct fault_io *f, uint64_t event);

#endif
