/*
 * model_time.h - when would an SSD have finished this? Arithmetic over an injected clock, nothing else.
 *
 * The medium works on up to queue_depth commands at once; the others wait in order of arrival. A command first
 * moves its bytes through the pipe of its direction, one command after the other, then its latency passes; so
 * depth * bytes / (latency + transfer time) and the bandwidth are the two limits, as on a data sheet. While
 * both pipes are moving, each runs at mixed_percent of its bandwidth. The same calls give the same times.
 */
#ifndef TUTTI_CTRL_MODEL_TIME_H
#define TUTTI_CTRL_MODEL_TIME_H

#include <stdint.h>

#include "ctrl/ctrl.h"

enum { MODEL_READ = 0, MODEL_WRITE = 1 };
#define MODEL_TIME_NEVER UINT64_MAX

struct model_time_cmd {
	struct model_time_cmd *next;
	uint32_t direction;
	uint32_t bytes;     /* at most CTRL_MDTS_MAX */
	uint64_t finish_ns; /* out */
	void *owner;
};

struct model_time_queue {
	struct model_time_cmd *head, **end;
};

struct model_time {
	struct ctrl_model model;
	uint64_t now_ns;                    /* the state is that of this moment */
	uint32_t working;                   /* at the medium: moving or landing */
	struct model_time_queue waiting;    /* for a place at the medium */
	struct model_time_queue moving[2];  /* the head moves, the others follow */
	uint64_t left[2];                   /* of the head: bytes * 1e9 * 100 */
	struct model_time_queue landing[2]; /* moved; latency passes */
	struct model_time_queue finished;
};

void model_time_init(struct model_time *t, const struct ctrl_model *model, uint64_t now_ns);
/* cmd arrives at now_ns (not before an earlier call's) and belongs to t until it is taken. */
void model_time_add(struct model_time *t, struct model_time_cmd *cmd, uint64_t now_ns);
/* The next one that has finished at now_ns, in order of time; NULL: none. */
struct model_time_cmd *model_time_take(struct model_time *t, uint64_t now_ns);
/* When to look again: nothing finishes before; MODEL_TIME_NEVER with nothing in it. */
uint64_t model_time_next(const struct model_time *t);

#endif
