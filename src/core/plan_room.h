/*
 * plan_room.h - room for plans in memory that was reserved at open: a plan's arrays come and go with requests, and
 * neither pinning memory nor cudaMalloc belongs on that way. First fit, in a list by address; freed neighbours join.
 */
#ifndef TUTTI_CORE_PLAN_ROOM_H
#define TUTTI_CORE_PLAN_ROOM_H

#include <stdint.h>

struct plan_room_piece {
	struct plan_room_piece *next;
	uint64_t at, bytes;
};

/* Offsets into something of `bytes` bytes; where that lies is the caller's business. Not thread-safe. */
struct plan_room {
	uint64_t bytes;
	struct plan_room_piece *used; /* by offset */
};

/* 0 and *at, a multiple of 256; -ENOSPC; -ENOMEM. */
int plan_room_get(struct plan_room *r, uint64_t bytes, uint64_t *at);
void plan_room_put(struct plan_room *r, uint64_t at);

#endif
