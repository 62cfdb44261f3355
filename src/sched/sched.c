/* sched.c - see sched.h. */
#include "sched/sched.h"

#include <errno.h>

static uint64_t reads_first(const struct sched *s, uint64_t now_ns)
{
	int patient = now_ns - s->writes[s->head].queued_ns < SCHED_WRITE_PATIENCE_NS;

	return s->reads_in_flight && patient ? 0 : SCHED_NEVER;
}

/* Bytes that are written from now until the next read, but for those in flight. */
static uint64_t window_bytes(const struct sched *s, uint64_t now_ns)
{
	uint64_t ns = s->next_read_ns - now_ns, bytes, before = 0;

	if (!s->write_bytes_per_ms) /* one write at a time tells */
		return s->batches_in_flight ? 0 : s->writes[s->head].bytes;
	if (ns > SCHED_WRITE_PATIENCE_NS)
		ns = SCHED_WRITE_PATIENCE_NS; /* enough for all that may be in flight, and no product overflows */
	bytes = ns * s->write_bytes_per_ms / 1000000;
	for (uint32_t i = 0; i < s->batches_in_flight; i++)
		before += s->batch_bytes[i];
	return before < bytes ? bytes - before : 0;
}

static uint64_t slack(const struct sched *s, uint64_t now_ns)
{
	uint64_t room = reads_first(s, now_ns);

	if (!room || s->reads_in_flight || s->next_read_ns == SCHED_NEVER ||
	    now_ns - s->writes[s->head].queued_ns >= SCHED_WRITE_PATIENCE_NS)
		return room;
	if (now_ns >= s->next_read_ns)
		return now_ns - s->next_read_ns < SCHED_READ_LATE_NS ? 0 : SCHED_NEVER;
	return window_bytes(s, now_ns);
}

const struct sched_policy sched_reads_first = {.name = "reads first", .room_bytes = reads_first};
const struct sched_policy sched_slack = {.name = "slack", .room_bytes = slack};

void sched_init(struct sched *s, const struct sched_policy *policy, uint64_t io_ns, struct sched_write *writes,
                uint32_t room)
{
	*s = (struct sched){
	    .policy = policy, .io_ns = io_ns, .writes = writes, .room = room, .next_read_ns = SCHED_NEVER};
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

void sched_read_expected(struct sched *s, uint64_t plan, uint64_t next_ns)
{
	if (plan != s->next_read_plan && next_ns >= s->next_read_ns)
		return;
	s->next_read_plan = plan;
	s->next_read_ns = next_ns;
}

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
	uint64_t bytes = 0, room_bytes;
	uint32_t n = 0;

	*deadline_ns = UINT64_MAX;
	if (!s->n || s->batches_in_flight >= SCHED_BATCHES_IN_FLIGHT)
		return 0;
	room_bytes = s->policy->room_bytes(s, now_ns);
	while (n < s->n && n < SCHED_BATCH_WRITES && bytes < SCHED_BATCH_BYTES) {
		const struct sched_write *w = at(s, n);
		uint64_t due_ns;

		if (!room_bytes || w->bytes > room_bytes - bytes)
			break;
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

void sched_batch_issued(struct sched *s, uint32_t n, uint64_t now_ns)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += at(s, i)->bytes;
	s->batch_bytes[s->batches_in_flight] = bytes;
	s->batch_issued_ns[s->batches_in_flight++] = now_ns;
	s->head = (s->head + n) % s->room;
	s->n -= n;
}

/* A rise counts at once, a fall slowly: a batch may have waited for compute, which says nothing of the drives. */
static void learn_rate(struct sched *s, uint64_t bytes, uint64_t ns)
{
	uint64_t rate = bytes < UINT64_MAX / 1000000 ? bytes * 1000000 / (ns ? ns : 1) : 0, old = s->write_bytes_per_ms;

	if (bytes)
		s->write_bytes_per_ms = rate > old ? rate : old - old / 8 + rate / 8;
}

void sched_batch_done(struct sched *s, uint64_t now_ns)
{
	uint64_t from_ns = s->batch_issued_ns[0] > s->last_done_ns ? s->batch_issued_ns[0] : s->last_done_ns;

	learn_rate(s, s->batch_bytes[0], now_ns - from_ns);
	s->last_done_ns = now_ns;
	s->batches_in_flight--;
	for (uint32_t i = 0; i < s->batches_in_flight; i++) {
		s->batch_bytes[i] = s->batch_bytes[i + 1];
		s->batch_issued_ns[i] = s->batch_issued_ns[i + 1];
	}
}
