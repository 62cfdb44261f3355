/*
 * write_queue.c - a lane's stores wait here: what goes when is sched's to say, what happens then is done here.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/err.h"
#include "core/lane.h"

int write_queue_init(struct write_queue *q, uint32_t room, uint64_t io_ns)
{
	struct sched_write *writes = calloc(room, sizeof(*writes));

	pthread_mutex_init(&q->lock, NULL);
	sched_init(&q->sched, &sched_slack, io_ns, writes, room);
	return writes ? 0 : err_set(-ENOMEM, "no memory for %u queued stores", room);
}

void write_queue_free(struct write_queue *q)
{
	free(q->sched.writes);
	pthread_mutex_destroy(&q->lock);
}

static void write_done(void *arg)
{
	struct tutti_lane *l = arg;

	pthread_mutex_lock(&l->writes.lock);
	sched_batch_done(&l->writes.sched, port_now_ns());
	pthread_mutex_unlock(&l->writes.lock);
	write_queue_kick(l);
}

void write_queue_kick(struct tutti_lane *l)
{
	struct sched *s = &l->writes.sched;
	struct wire_iocb *iocbs[SCHED_BATCH_WRITES];
	struct engine_launch go = {.iocbs = iocbs,
	                           .stream = ENGINE_WRITES,
	                           .gentle = plan_gentle(l, ENGINE_WRITES),
	                           .done = write_done,
	                           .done_arg = l};

	pthread_mutex_lock(&l->writes.lock);
	while ((go.n = sched_batch(s, port_now_ns(), &go.deadline_ns))) {
		for (uint32_t i = 0; i < go.n; i++)
			iocbs[i] = sched_write_at(s, i)->owner;
		if (engine_launch(l->engine, &go))
			break; /* full, or dead: whoever waits for the plan finds out by its deadline */
		sched_batch_issued(s, go.n, port_now_ns());
	}
	pthread_mutex_unlock(&l->writes.lock);
}

int write_queue_add(struct tutti_lane *l, struct tutti_plan *p, struct wire_iocb *const *iocbs, uint32_t n)
{
	const struct geom *g = &p->dev.geom;
	struct sched_write writes[2];
	int rc;

	for (uint32_t i = 0; i < n; i++)
		writes[i] = (struct sched_write){.owner = iocbs[i],
		                                 .plan = (uint64_t)(uintptr_t)p,
		                                 .bytes = p->dev.n * g->objects_per_layer * g->object_bytes,
		                                 .expiry_ns = p->blob.expiry_ns};
	pthread_mutex_lock(&l->writes.lock);
	rc = sched_write_add(&l->writes.sched, writes, n, port_now_ns());
	pthread_mutex_unlock(&l->writes.lock);
	if (!rc)
		write_queue_kick(l);
	return rc;
}

void write_queue_read_begin(struct tutti_lane *l, const struct tutti_plan *p, uint64_t next_ns)
{
	pthread_mutex_lock(&l->writes.lock);
	sched_read_issued(&l->writes.sched);
	sched_read_expected(&l->writes.sched, (uint64_t)(uintptr_t)p, next_ns);
	pthread_mutex_unlock(&l->writes.lock);
}

void write_queue_no_more_reads(struct tutti_lane *l, const struct tutti_plan *p)
{
	pthread_mutex_lock(&l->writes.lock);
	sched_read_expected(&l->writes.sched, (uint64_t)(uintptr_t)p, SCHED_NEVER);
	pthread_mutex_unlock(&l->writes.lock);
	write_queue_kick(l);
}

void write_queue_read_done(void *lane)
{
	struct tutti_lane *l = lane;

	pthread_mutex_lock(&l->writes.lock);
	sched_read_done(&l->writes.sched);
	pthread_mutex_unlock(&l->writes.lock);
	write_queue_kick(l);
}
