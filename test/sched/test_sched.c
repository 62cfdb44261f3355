/* test_sched.c - what is issued when: each rule alone, and all of them against a naive twin on random calls. */
#include "check.h"

#include <errno.h>

#include "sched/sched.h"

#define ROOM 64u
#define IO_NS 30000000000ull
#define LONG_NS 600000000000ull
#define T0 1000000000000ull

static struct sched_write memory[ROOM];
static struct sched s;

static void begin(void) { sched_init(&s, &sched_reads_first, IO_NS, memory, ROOM); }

static int add(uint64_t plan, uint64_t bytes, uint64_t now_ns)
{
	struct sched_write w = {.plan = plan, .bytes = bytes, .expiry_ns = now_ns + LONG_NS};

	return sched_write_add(&s, &w, 1, now_ns);
}

static void writes_go_when_nothing_reads(void)
{
	uint64_t due;

	begin();
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
	CHECK_EQ(due, T0 + IO_NS);
	CHECK_EQ(s.n, 1); /* asked, not taken */
	sched_batch_issued(&s, 1, T0);
	CHECK_EQ(s.n, 0);
	CHECK_EQ(s.batches_in_flight, 1);
}

static void reads_go_first_until_patience_ends(void)
{
	uint64_t due;

	begin();
	sched_read_issued(&s);
	CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	CHECK_EQ(sched_batch(&s, T0 + SCHED_WRITE_PATIENCE_NS - 1, &due), 0);
	CHECK_EQ(sched_batch(&s, T0 + SCHED_WRITE_PATIENCE_NS, &due), 1);
	sched_read_done(&s);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
}

static void a_batch_is_bounded(void)
{
	uint64_t due;

	begin();
	for (uint32_t i = 0; i < ROOM; i++)
		CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), SCHED_BATCH_WRITES);
	begin();
	for (uint32_t i = 0; i < 8; i++)
		CHECK_EQ(add(1, SCHED_BATCH_BYTES / 3, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 4); /* three don't quite fill it */
	begin();
	CHECK_EQ(add(1, 4 * SCHED_BATCH_BYTES, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 1); /* one alone may be larger */
}

static void few_batches_are_in_flight(void)
{
	uint64_t due;

	begin();
	for (uint32_t i = 0; i < SCHED_BATCHES_IN_FLIGHT; i++) {
		CHECK_EQ(add(1, 4096, T0), 0);
		CHECK_EQ(sched_batch(&s, T0, &due), 1);
		sched_batch_issued(&s, 1, T0);
	}
	CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	sched_batch_done(&s, T0);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
}

static void the_queue_is_bounded(void)
{
	struct sched_write two[2] = {{.plan = 1, .expiry_ns = T0 + LONG_NS}, {.plan = 1, .expiry_ns = T0 + LONG_NS}};

	begin();
	for (uint32_t i = 0; i < ROOM - 1; i++)
		CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_write_add(&s, two, 2, T0), -EAGAIN); /* all or none */
	CHECK_EQ(s.n, ROOM - 1);
	CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(add(1, 4096, T0), -EAGAIN);
}

static void a_kernel_has_the_earliest_deadline(void)
{
	struct sched_write w = {.plan = 1, .bytes = 1, .expiry_ns = T0 + LONG_NS};
	uint64_t due, close_ns = SCHED_LEASE_MARGIN_NS + IO_NS;

	begin();
	CHECK_EQ(sched_write_add(&s, &w, 1, T0), 0);
	w.plan = 2;
	w.expiry_ns = T0 + close_ns - SCHED_DUE_APART_NS; /* just near enough */
	CHECK_EQ(sched_write_add(&s, &w, 1, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 2);
	CHECK_EQ(due, T0 + IO_NS - SCHED_DUE_APART_NS);
	w.plan = 3;
	w.expiry_ns = T0 + close_ns - 3 * SCHED_DUE_APART_NS; /* that plan's failure must not be the others' */
	CHECK_EQ(sched_write_add(&s, &w, 1, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 2);
	sched_batch_issued(&s, 2, T0);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
	CHECK_EQ(due, T0 + IO_NS - 3 * SCHED_DUE_APART_NS);
}

static void what_is_too_late_goes_at_once(void)
{
	struct sched_write w = {.plan = 1, .bytes = 1, .expiry_ns = T0 + 1};
	uint64_t due;

	begin();
	CHECK_EQ(sched_write_add(&s, &w, 1, T0), 0);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
	CHECK_EQ(due, T0);
}

static void a_lease_bounds_the_deadline(void)
{
	uint64_t due = 0, least = SCHED_LEASE_MARGIN_NS + SCHED_LEAST_NS;

	CHECK_EQ(sched_deadline(T0, T0 + LONG_NS, IO_NS, &due), 0);
	CHECK_EQ(due, T0 + IO_NS);
	CHECK_EQ(sched_deadline(T0, T0 + least, IO_NS, &due), 0);
	CHECK_EQ(due, T0 + SCHED_LEAST_NS);
	CHECK_EQ(sched_deadline(T0, T0 + least - 1, IO_NS, &due), -ESTALE);
	CHECK_EQ(sched_deadline(T0, T0 - 1, IO_NS, &due), -ESTALE);
	CHECK_EQ(sched_deadline(T0, 0, IO_NS, &due), -ESTALE);
	CHECK_EQ(sched_deadline(T0, UINT64_MAX, UINT64_MAX - T0 - 1, &due), 0);
	CHECK(due > T0);
}

static uint64_t never(const struct sched *x, uint64_t now_ns) { return x->n && now_ns == 0; }

static void a_policy_is_asked(void)
{
	static const struct sched_policy policy = {.name = "never", .room_bytes = never};
	uint64_t due;

	sched_init(&s, &policy, IO_NS, memory, ROOM);
	CHECK_EQ(add(1, 4096, T0), 0);
	CHECK_EQ(sched_batch(&s, T0 + LONG_NS, &due), 0);
}

/* ---- windows that compute leaves ---- */

#define MS 1000000ull

static void begin_slack(uint64_t bytes_per_ms)
{
	sched_init(&s, &sched_slack, IO_NS, memory, ROOM);
	s.write_bytes_per_ms = bytes_per_ms;
}

static void windows_bound_what_is_written(void)
{
	uint64_t due;

	begin_slack(1000);
	for (uint32_t i = 0; i < 8; i++)
		CHECK_EQ(add(1, 1000, T0), 0); /* a millisecond each */
	CHECK_EQ(sched_batch(&s, T0, &due), 8); /* no read is expected: all go */
	sched_read_expected(&s, 7, T0 + 3 * MS + MS / 2);
	CHECK_EQ(sched_batch(&s, T0, &due), 3);
	CHECK_EQ(sched_batch(&s, T0 + MS, &due), 2);
	sched_batch_issued(&s, 2, T0 + MS);
	CHECK_EQ(sched_batch(&s, T0 + MS, &due), 0); /* the window is used */
	sched_batch_done(&s, T0 + 3 * MS);
	CHECK_EQ(s.write_bytes_per_ms, 1000);
	CHECK_EQ(sched_batch(&s, T0 + 3 * MS, &due), 0); /* none fits in what is left */
	CHECK_EQ(sched_batch(&s, T0 + 3 * MS + MS / 2, &due), 0); /* the read is due */
	CHECK_EQ(sched_batch(&s, T0 + 3 * MS + MS / 2 + SCHED_READ_LATE_NS - 1, &due), 0);
	CHECK_EQ(sched_batch(&s, T0 + 3 * MS + MS / 2 + SCHED_READ_LATE_NS, &due), 6); /* it does not come */
}

static void reads_that_come_close_the_window(void)
{
	uint64_t due;

	begin_slack(1000);
	CHECK_EQ(add(1, 1000, T0), 0);
	sched_read_expected(&s, 7, T0 + 10 * MS);
	sched_read_issued(&s);
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	sched_read_done(&s);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
	sched_read_expected(&s, 7, T0 + 1);
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	CHECK_EQ(sched_batch(&s, T0 + SCHED_WRITE_PATIENCE_NS, &due), 1); /* as for reads in flight */
	sched_read_expected(&s, 7, SCHED_NEVER);
	CHECK_EQ(sched_batch(&s, T0, &due), 1);
}

static void the_soonest_read_counts(void)
{
	begin_slack(1000);
	sched_read_expected(&s, 1, T0 + 5 * MS);
	sched_read_expected(&s, 2, T0 + 9 * MS);
	sched_read_expected(&s, 2, SCHED_NEVER);
	CHECK_EQ(s.next_read_ns, T0 + 5 * MS);
	sched_read_expected(&s, 3, T0 + MS);
	CHECK_EQ(s.next_read_ns, T0 + MS);
	sched_read_expected(&s, 3, T0 + 20 * MS); /* its own it may move */
	CHECK_EQ(s.next_read_ns, T0 + 20 * MS);
}

static void the_rate_is_learnt(void)
{
	uint64_t due;

	begin_slack(0);
	for (uint32_t i = 0; i < 8; i++)
		CHECK_EQ(add(1, 8000, T0), 0);
	sched_read_expected(&s, 7, T0 + 20 * MS);
	CHECK_EQ(sched_batch(&s, T0, &due), 1); /* one tells */
	sched_batch_issued(&s, 1, T0);
	CHECK_EQ(sched_batch(&s, T0, &due), 0);
	sched_batch_done(&s, T0 + 2 * MS);
	CHECK_EQ(s.write_bytes_per_ms, 4000);
	CHECK_EQ(sched_batch(&s, T0 + 4 * MS, &due), 7); /* 64,000 bytes would fit */
	sched_batch_issued(&s, 2, T0 + 4 * MS);
	sched_batch_issued(&s, 1, T0 + 4 * MS);
	sched_batch_done(&s, T0 + 8 * MS);
	CHECK_EQ(s.write_bytes_per_ms, 4000);
	sched_batch_done(&s, T0 + 16 * MS); /* it worked from the first one's end: 1000, slowly */
	CHECK_EQ(s.write_bytes_per_ms, 4000 - 4000 / 8 + 1000 / 8);
}

/* ---- a naive twin ---- */

#define CALLS 300000u
#define TWIN_MAX 4096u

static struct twin_write {
	uint64_t plan, bytes, expiry_ns, queued_ns, id;
} twin[TWIN_MAX];
static uint32_t twin_n;

static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (random_state >> 33) % below;
}

static uint64_t twin_due(const struct twin_write *w, uint64_t now_ns)
{
	int64_t left = (int64_t)(w->expiry_ns - now_ns) - (int64_t)SCHED_LEASE_MARGIN_NS;

	if (left < (int64_t)SCHED_LEAST_NS)
		return now_ns;
	return left > (int64_t)IO_NS ? now_ns + IO_NS : now_ns + (uint64_t)left;
}

static uint32_t twin_batch(uint64_t now_ns, uint32_t reads, uint32_t batches, uint64_t *due_ns)
{
	uint64_t bytes = 0, least = UINT64_MAX;
	uint32_t n = 0;

	if (!twin_n || batches >= 2 || (reads && now_ns < twin[0].queued_ns + 50000000))
		return 0;
	for (; n < twin_n && n < 16 && bytes < 67108864; n++) {
		uint64_t due = twin_due(&twin[n], now_ns);
		uint64_t apart = due > least ? due - least : least - due;

		if (n && twin[n].plan != twin[n - 1].plan && apart > 100000000)
			break;
		least = due < least ? due : least;
		bytes += twin[n].bytes;
	}
	*due_ns = least;
	return n;
}

static void twin_add(uint64_t now_ns, uint64_t *next_id)
{
	uint32_t n = 1 + (uint32_t)draw(2);
	uint64_t plan = draw(5), expiry = now_ns + draw(4) * 20000000000ull + draw(300000000);
	struct sched_write w[2];
	int rc;

	for (uint32_t i = 0; i < n; i++)
		w[i] = (struct sched_write){.owner = (void *)(uintptr_t)(*next_id + i),
		                            .plan = plan,
		                            .bytes = draw(40u << 20),
		                            .expiry_ns = expiry};
	rc = sched_write_add(&s, w, n, now_ns);
	CHECK_EQ(rc, ROOM - twin_n < n ? -EAGAIN : 0);
	for (uint32_t i = 0; i < n && !rc; i++) {
		twin[twin_n++] = (struct twin_write){plan, w[i].bytes, expiry, now_ns, *next_id + i};
	}
	*next_id += n;
}

static void agrees_with_a_naive_twin(void)
{
	uint64_t now_ns = T0, next_id = 1;
	uint32_t reads = 0, batches = 0, issued = 0, refused_late = 0;

	begin();
	twin_n = 0;
	random_state = 42;
	for (uint32_t i = 0; i < CALLS; i++) {
		uint64_t what = draw(8), due = 0, due_twin = 0;
		uint32_t n;

		now_ns += draw(4) ? draw(2000000) : draw(60000000);
		if (what < 3) {
			twin_add(now_ns, &next_id);
		} else if (what == 3 && reads < 4) {
			sched_read_issued(&s);
			reads++;
		} else if (what == 4 && reads) {
			sched_read_done(&s);
			reads--;
		} else if (what == 5 && batches) {
			sched_batch_done(&s, now_ns);
			batches--;
		}
		n = sched_batch(&s, now_ns, &due);
		CHECK_EQ(n, twin_batch(now_ns, reads, batches, &due_twin));
		if (!n || draw(3) == 0) { /* a launch that failed: asked again later */
			refused_late += n != 0;
			continue;
		}
		CHECK_EQ(due, due_twin);
		for (uint32_t k = 0; k < n; k++)
			CHECK_EQ((uintptr_t)sched_write_at(&s, k)->owner, twin[k].id);
		sched_batch_issued(&s, n, now_ns);
		memmove(twin, twin + n, (twin_n - n) * sizeof(*twin));
		twin_n -= n;
		batches++;
		issued += n;
		CHECK_EQ(s.n, twin_n);
	}
	CHECK(issued > CALLS / 10 && refused_late > 1000); /* the calls went everywhere */
}

int main(void)
{
	CHECK_RUN(writes_go_when_nothing_reads);
	CHECK_RUN(reads_go_first_until_patience_ends);
	CHECK_RUN(a_batch_is_bounded);
	CHECK_RUN(few_batches_are_in_flight);
	CHECK_RUN(the_queue_is_bounded);
	CHECK_RUN(a_kernel_has_the_earliest_deadline);
	CHECK_RUN(what_is_too_late_goes_at_once);
	CHECK_RUN(a_lease_bounds_the_deadline);
	CHECK_RUN(a_policy_is_asked);
	CHECK_RUN(windows_bound_what_is_written);
	CHECK_RUN(reads_that_come_close_the_window);
	CHECK_RUN(the_soonest_read_counts);
	CHECK_RUN(the_rate_is_learnt);
	CHECK_RUN(agrees_with_a_naive_twin);
	return check_end();
}
