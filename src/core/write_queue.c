/*
 * write_queue.c - what of the stores is issued when. One place, one rule: reads first; writes go out when no read
 * kernel is in flight, or when the oldest has waited WRITE_PATIENCE_NS, a few layers at a time so that a read never
 * waits long.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/err.h"
#include "core/lane.h"

#define WRITE_PATIENCE_NS 50000000ull
#define WRITE_BATCH_LAYERS 16u
#define WRITE_BATCH_BYTES (64ull << 20)
#define WRITES_IN_FLIGHT_MAX 2u
#define DEADLINE_APART_NS 100000000ull /* plans whose deadlines are further apart don't share a kernel */

int write_queue_init(struct write_queue *q, uint32_t room)
{
	pthread_mutex_init(&q->lock, NULL);
	q->room = room;
	q->items = calloc(room, sizeof(*q->items));
	return q->items ? 0 : err_set(-ENOMEM, "no memory for %u queued stores", room);
}

void write_queue_free(struct write_queue *q)
{
	free(q->items);
	pthread_mutex_destroy(&q->lock);
}

static struct write_item *item_at(struct write_queue *q, uint32_t i) { return &q->items[(q->head + i) % q->room]; }

static void write_done(void *arg)
{
	struct tutti_lane *l = arg;

	pthread_mutex_lock(&l->writes.lock);
	l->writes.writes_in_flight--;
	pthread_mutex_unlock(&l->writes.lock);
	write_queue_kick(l);
}

/*
 * How many items from the front go into one kernel, and its deadline: the earliest of their plans'. A kernel fails as a
 * whole, so a plan whose lease leaves it less time than the others have does not go with them.
 */
static uint32_t batch(struct write_queue *q, struct wire_iocb **iocbs, uint64_t *deadline_ns)
{
	uint64_t bytes = 0;
	uint32_t n = 0;

	*deadline_ns = UINT64_MAX;
	while (n < q->n && n < WRITE_BATCH_LAYERS && bytes < WRITE_BATCH_BYTES) {
		const struct write_item *w = item_at(q, n);
		const struct dev_plan *p = &w->plan->dev;
		uint64_t due;

		if (plan_deadline(w->plan, &due))
			due = port_now_ns(); /* too late: the kernel fails it at once, before any I/O */
		if (n && item_at(q, n - 1)->plan != w->plan &&
		    (due < *deadline_ns ? *deadline_ns - due : due - *deadline_ns) > DEADLINE_APART_NS)
			break;
		if (due < *deadline_ns)
			*deadline_ns = due;
		bytes += p->n * p->geom.objects_per_layer * p->geom.object_bytes;
		iocbs[n++] = w->iocb;
	}
	return n;
}

void write_queue_kick(struct tutti_lane *l)
{
	struct write_queue *q = &l->writes;

	pthread_mutex_lock(&q->lock);
	while (q->n && q->writes_in_flight < WRITES_IN_FLIGHT_MAX) {
		struct wire_iocb *iocbs[WRITE_BATCH_LAYERS];
		struct engine_launch go = {.iocbs = iocbs, .stream = ENGINE_WRITES, .done = write_done, .done_arg = l};

		if (q->reads_in_flight && port_now_ns() - item_at(q, 0)->queued_ns < WRITE_PATIENCE_NS)
			break;
		go.n = batch(q, iocbs, &go.deadline_ns);
		if (engine_launch(l->engine, &go))
			break; /* full, or dead: whoever waits for the plan finds out by its deadline */
		q->head = (q->head + go.n) % q->room;
		q->n -= go.n;
		q->writes_in_flight++;
	}
	pthread_mutex_unlock(&q->lock);
}

int write_queue_add(struct tutti_lane *l, struct tutti_plan *p, struct wire_iocb *const *iocbs, uint32_t n)
{
	struct write_queue *q = &l->writes;
	int rc = 0;

	pthread_mutex_lock(&q->lock);
	if (q->room - q->n < n) {
		rc = -EAGAIN;
	} else {
		for (uint32_t i = 0; i < n; i++) {
			struct write_item *w = item_at(q, q->n++);

			w->iocb = iocbs[i];
			w->plan = p;
			w->queued_ns = port_now_ns();
		}
	}
	pthread_mutex_unlock(&q->lock);
	if (!rc)
		write_queue_kick(l);
	return rc;
}

void write_queue_read_begin(struct tutti_lane *l)
{
	pthread_mutex_lock(&l->writes.lock);
	l->writes.reads_in_flight++;
	pthread_mutex_unlock(&l->writes.lock);
}

void write_queue_read_done(void *lane)
{
	struct tutti_lane *l = lane;

	pthread_mutex_lock(&l->writes.lock);
	l->writes.reads_in_flight--;
	pthread_mutex_unlock(&l->writes.lock);
	write_queue_kick(l);
}
