/* sched.c - see sched.h. */
#include "sched/sched.h"

#include <errno.h>

static int reads_first(const struct sched *s, uint64_t now_ns)
{
	return !s->reads_in_flight || now_ns - s->writes[s->head].queued_ns >= SCHED_WRITE_PATIENCE_NS;
}

const struct sched_policy sched_reads_first = {.name = "reads first", .write_now = reads_first};

void sched_init(struct sched *s, const struct sched_policy *policy, uint64_t io_ns, struct sched_write *writes,
                uint32_t room)
{
	*s = (struct sched){.policy = policy, .io_ns = io_ns, .writes = writes, .room = room};
}

int sched_deadline(uint64_t now_ns, uint64_t expiry_ns, uint64_t io_ns, uint64_t *deadline_ns)
{
	if (expiry_ns < now_ns || expiry_ns - now_ns < SCHED_LEASE_MARGIN_NS + SCHED_LEAST_NS)
		return -ESTALE;
	expiry_ns -= SCHED_LEASE_MARGIN_NS;
	*deadline_ns = io_ns < expiry_ns - now_ns ? now_ns + io_ns : expiry_ns;
	return 0;
}

void sched_read_issued(struct sched *s) { s->reads_in_flight++; }

void sched_read_done(struct sched *s) { s->reads_in_flight--; }

static struct sched_write *at(const struct sched *s, uint32_t i) { return &s->writes[(s->head + i) % s->room]; }

const struct sched_write *sched_write_at(const struct sched *s, uint32_t i) { return at(s, i); }

int sched_write_add(struct sched *s, const struct sched_write *writes, uint32_t n, uint64_t now_ns)
{
	if (s->room - s->n < n)
		return -EAGAIN;
	for (uint32_t i = 0; i < n; i++) {
		struct sched_write *w = at(s, s->n++);

		*w = writes[i];
		w->queued_ns = now_ns;
	}
	return 0;
}

static uint64_t apart(uint64_t a, uint64_t b) { return a < b ? b - a : a - b; }

uint32_t sched_batch(const struct sched *s, uint64_t now_ns, uint64_t *deadline_ns)
{
	uint64_t bytes = 0;
	uint32_t n = 0;

	*deadline_ns = UINT64_MAX;
	if (!s->n || s->batches_in_flight >= SCHED_BATCHES_IN_FLIGHT || !s->policy->write_now(s, now_ns))
		return 0;
	while (n < s->n && n < SCHED_BATCH_WRITES && bytes < SCHED_BATCH_BYTES) {
		const struct sched_write *w = at(s, n);
		uint64_t due_ns;

		if (sched_deadline(now_ns, w->expiry_ns, s->io_ns, &due_ns))
			due_ns = now_ns; /* too late: its kernel fails at once, before any I/O */
		if (n && w->plan != at(s, n - 1)->plan && apart(due_ns, *deadline_ns) > SCHED_DUE_APART_NS)
			break;
		if (due_ns < *deadline_ns)
			*deadline_ns = due_ns;
		bytes += w->bytes;
		n++;
	}
	return n;
}

void sched_batch_issued(struct sched *s, uint32_t n)
{
	s->head = (s->head + n) % s->room;
	s->n -= n;
	s->batches_in_flight++;
}

void sched_batch_done(struct sched *s) { s->batches_in_flight--; }
