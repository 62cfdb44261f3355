/*
 * test_qp.c - a submitter and a tiny controller on two threads, over one queue pair: every command arrives whole and
 * in order, every completion is seen once, over many wraps and at every depth, and nobody sleeps through news.
 *
 * The controller is written here from the specification, with the room's own accesses. Under ThreadSanitizer this is
 * the proof that the orderings in qp.h are enough. A command's data is a cell that the submitter fills before and the
 * controller changes before it completes the command.
 */
#include "dev/qp.h"
#include "test/check.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#define SECOND 1000000000ull
#define DEPTH_MAX 1024u
#define SPINS_MAX 100000000u /* some seconds */

enum pace { SPIN, PARK, MIXED }; /* how each side waits */

struct pair {
	struct nvme_sqe sq[DEPTH_MAX];
	struct nvme_cqe cq[DEPTH_MAX];
	uint64_t cell[DEPTH_MAX]; /* [cid]: the command's data */
	uint32_t sq_doorbell, cq_doorbell;
	struct port_parker submitter, controller;
	uint32_t depth;
	uint32_t commands;
	enum pace pace;
	int shuffle; /* completions of a batch in another order */
	struct dev_qp qp;
	/* What the controller saw; read after it has ended. */
	uint32_t bad, timeouts, sleeps, overrun;
};

static uint64_t secret(uint32_t number) { return (number + 1ull) * 0x9E3779B97F4A7C15ull; }

/* On a busy machine the peer may have no core: the spinner must leave it its own. */
static void spin_once(uint32_t i)
{
	port_pause();
	if (i % 256 == 255)
		sched_yield();
}

static uint32_t spins_of(const struct pair *p, uint32_t turn)
{
	return p->pace == SPIN ? SPINS_MAX : p->pace == PARK ? 0 : turn % 97 * 4;
}

/* ---- the controller ---- */

struct controller {
	uint32_t sq_head, cq_tail, phase;
	uint32_t taken; /* commands so far */
};

/* Waits for a doorbell other than sq_head. 0, or -ETIMEDOUT: it slept to the deadline. */
static int controller_wait(struct pair *p, uint32_t head, uint32_t turn, uint32_t *tail)
{
	for (uint32_t i = 0, n = spins_of(p, turn); i < n; i++) {
		*tail = port_load_acquire32(p->qp.sq_doorbell);
		if (*tail != head)
			return 0;
		spin_once(i);
	}
	while (p->pace != SPIN) {
		port_park_announce(&p->controller);
		/* Pairs with the release in dev_qp_ring: the entries before the tail. */
		*tail = port_load_acquire32(p->qp.sq_doorbell);
		if (*tail != head) {
			port_park_cancel(&p->controller);
			return 0;
		}
		p->sleeps++;
		if (port_park_wait(&p->controller, port_now_ns() + 5 * SECOND) == -ETIMEDOUT)
			break;
	}
	p->timeouts++;
	return -ETIMEDOUT;
}

static void controller_complete(struct pair *p, struct controller *c, const struct nvme_sqe *e)
{
	struct nvme_cqe *out = &p->cq[c->cq_tail];
	uint32_t next = c->cq_tail + 1 == p->depth ? 0 : c->cq_tail + 1;

	/* The submitter gives entries back before it rings for more, so that the queue is never full. */
	if (next == port_load_acquire32(&p->cq_doorbell))
		p->overrun++;
	p->cell[e->cid] ^= secret(e->cdw13);
	out->dw0 = e->cdw10 ^ 0x5555;
	out->dw1 = e->cdw13;
	out->sq_head = (uint16_t)c->sq_head;
	out->sq_id = 3;
	/* Orders data and entry before the phase bit (pairs with the acquire in dev_qp_poll). */
	port_store_wake32(&out->cid_status, e->cid | c->phase << 16 | (e->cdw13 % 5 ? 0u : 0x281u << 17),
	                  p->pace == SPIN ? NULL : &p->submitter);
	c->cq_tail = next;
	c->phase ^= next == 0;
}

static void *controller_main(void *arg)
{
	struct pair *p = arg;
	struct controller c = {0, 0, 1, 0};
	static struct nvme_sqe batch[DEPTH_MAX];
	uint64_t seed = p->depth;

	while (c.taken < p->commands) {
		uint32_t tail, n = 0;

		if (controller_wait(p, c.sq_head, c.taken, &tail))
			break;
		while (c.sq_head != tail) {
			struct nvme_sqe e = p->sq[c.sq_head];

			/* In order, whole, and with the data that was there before the doorbell. */
			if (e.cdw13 != c.taken || e.opcode != NVME_CMD_READ || e.cdw10 != (uint32_t)secret(e.cdw13) ||
			    e.dptr.prp.prp1 != secret(e.cdw13) || p->cell[e.cid] != ~secret(e.cdw13))
				p->bad++;
			c.taken++;
			c.sq_head = c.sq_head + 1 == p->depth ? 0 : c.sq_head + 1;
			batch[n++] = e;
		}
		for (uint32_t i = n; i > 1 && p->shuffle; i--) {
			uint32_t k = (uint32_t)(check_random(&seed) % i);
			struct nvme_sqe t = batch[k];

			batch[k] = batch[i - 1];
			batch[i - 1] = t;
		}
		for (uint32_t i = 0; i < n; i++)
			controller_complete(p, &c, &batch[i]);
	}
	return NULL;
}

/* ---- the submitter ---- */

struct submitter {
	uint16_t free_cid[DEPTH_MAX];
	uint32_t number_of[DEPTH_MAX]; /* [cid]; UINT32_MAX: not in flight */
	uint32_t n_free;
	uint32_t posted, done, sleeps, timeouts;
};

static void submit(struct pair *p, struct submitter *s)
{
	uint16_t cid = s->free_cid[--s->n_free];
	struct nvme_sqe e = {.opcode = NVME_CMD_READ, .cid = cid, .nsid = 1};

	p->cell[cid] = ~secret(s->posted);
	e.dptr.prp.prp1 = secret(s->posted);
	e.cdw10 = (uint32_t)secret(s->posted);
	e.cdw13 = s->posted;
	s->number_of[cid] = s->posted++;
	dev_qp_post(&p->qp, &e);
}

static void take(struct pair *p, struct submitter *s, const struct nvme_cqe *c)
{
	uint16_t cid = NVME_CID(c->cid_status);
	uint32_t number;

	CHECK(cid < p->depth);
	number = s->number_of[cid];
	CHECK(number != UINT32_MAX); /* else it completed twice, or was never sent */
	CHECK_EQ(c->dw0, (uint32_t)secret(number) ^ 0x5555);
	CHECK_EQ(c->dw1, number);
	CHECK_EQ(c->sq_id, 3);
	CHECK_EQ(NVME_STATUS(c->cid_status), number % 5 ? 0 : NVME_SC_READ_ERROR);
	CHECK(p->cell[cid] == (~secret(number) ^ secret(number)));
	s->number_of[cid] = UINT32_MAX;
	s->free_cid[s->n_free++] = cid;
	s->done++;
}

/* 1: *c is the next completion; 0: slept to the deadline with nothing. */
static int submitter_wait(struct pair *p, struct submitter *s, struct nvme_cqe *c)
{
	for (uint32_t i = 0, n = spins_of(p, s->done); i < n; i++) {
		if (dev_qp_poll(&p->qp, c))
			return 1;
		spin_once(i);
	}
	while (p->pace != SPIN) {
		port_park_announce(&p->submitter);
		if (dev_qp_poll(&p->qp, c)) {
			port_park_cancel(&p->submitter);
			return 1;
		}
		s->sleeps++;
		if (port_park_wait(&p->submitter, port_now_ns() + 5 * SECOND) == -ETIMEDOUT)
			break;
	}
	s->timeouts++;
	return 0;
}

static void pair_init(struct pair *p, uint32_t depth, uint32_t commands, enum pace pace, int shuffle)
{
	memset(p, 0, sizeof(*p));
	p->depth = depth;
	p->commands = commands;
	p->pace = pace;
	p->shuffle = shuffle;
	p->qp = (struct dev_qp){.sq = p->sq, .cq = p->cq, .depth = depth, .id = 3, .phase = 1};
	p->qp.sq_doorbell = &p->sq_doorbell;
	p->qp.cq_doorbell = &p->cq_doorbell;
	p->qp.sq_parker = pace == SPIN ? NULL : &p->controller;
}

/* Sends `commands`, at most `flight` of them in flight and in batches of random size; checks every one. */
static void run(uint32_t depth, uint32_t flight, uint32_t commands, enum pace pace, int shuffle)
{
	static struct pair p;
	static struct submitter s;
	uint64_t seed = depth * 31 + flight;
	struct nvme_cqe c;
	pthread_t t;

	pair_init(&p, depth, commands, pace, shuffle);
	memset(&s, 0, sizeof(s));
	for (uint32_t i = 0; i < flight; i++) {
		s.free_cid[s.n_free++] = (uint16_t)i;
		s.number_of[i] = UINT32_MAX;
	}
	CHECK_EQ(pthread_create(&t, NULL, controller_main, &p), 0);
	while (s.done < commands) {
		uint32_t batch = 1 + (uint32_t)(check_random(&seed) % flight), sent = 0;

		while (sent < batch && s.n_free && s.posted < commands) {
			submit(&p, &s);
			sent++;
		}
		if (sent)
			dev_qp_ring(&p.qp);
		if (!submitter_wait(&p, &s, &c))
			break;
		take(&p, &s, &c);
		while (dev_qp_poll(&p.qp, &c))
			take(&p, &s, &c);
		dev_qp_release(&p.qp);
	}
	pthread_join(t, NULL);
	CHECK_EQ(s.timeouts + p.timeouts, 0);
	CHECK_EQ(s.done, commands);
	CHECK_EQ(s.n_free, flight);
	CHECK_EQ(p.bad, 0);
	CHECK_EQ(p.overrun, 0);
	CHECK_EQ(dev_qp_poll(&p.qp, &c), 0);
	CHECK_EQ(p.qp.tail, commands % depth);
	CHECK_EQ(p.qp.head, commands % depth);
	CHECK_EQ(p.cq_doorbell, commands % depth);
	if (pace == PARK)
		CHECK(s.sleeps + p.sleeps > commands / (flight * 8));
}

/* ---- cases ---- */

static void without_a_thread(void)
{
	static struct pair p;
	struct nvme_sqe e = {.opcode = NVME_CMD_FLUSH, .cid = 9};
	struct nvme_cqe c;

	pair_init(&p, 4, 0, SPIN, 0);
	CHECK_EQ(dev_qp_poll(&p.qp, &c), 0);
	dev_qp_post(&p.qp, &e);
	CHECK_EQ(p.sq_doorbell, 0); /* posted is not rung */
	dev_qp_ring(&p.qp);
	CHECK_EQ(p.sq_doorbell, 1);
	for (uint32_t i = 0; i < 11; i++) {
		uint32_t phase = i / 4 % 2 ? 0 : 1;

		CHECK_EQ(dev_qp_poll(&p.qp, &c), 0);
		p.cq[i % 4] = (struct nvme_cqe){i, i + 1, (uint16_t)(i + 2), 3, i | phase << 16 | 0x481u << 17};
		CHECK_EQ(dev_qp_poll(&p.qp, &c), 1);
		CHECK_EQ(c.dw0, i);
		CHECK_EQ(c.dw1, i + 1);
		CHECK_EQ(c.sq_head, i + 2);
		CHECK_EQ(NVME_CID(c.cid_status), i);
		CHECK_EQ(NVME_STATUS(c.cid_status), 0x481);
		if (i % 3 == 0) {
			dev_qp_release(&p.qp);
			CHECK_EQ(p.cq_doorbell, (i + 1) % 4);
		}
	}
}

static void every_depth_spinning(void)
{
	static const uint32_t depths[] = {2, 3, 4, 5, 7, 8, 16, 63, 64, 65, 255, 1024};

	for (size_t i = 0; i < sizeof(depths) / sizeof(*depths); i++) {
		run(depths[i], depths[i] - 1, 8000 + depths[i] * 5, SPIN, i % 2 == 0);
		run(depths[i], 1, 2000, SPIN, 0);
	}
}

static void both_park_one_command_at_a_time(void) { run(2, 1, 200000, PARK, 0); }
static void both_park_deep(void) { run(32, 31, 100000, PARK, 1); }
static void both_spin_a_little_then_park(void) { run(8, 7, 100000, MIXED, 1); }

static void a_wrong_count_of_phases_would_be_seen(void)
{
	/* Commands that are an exact number of rounds, and one more or less, end at the right place and phase. */
	for (uint32_t depth = 2; depth < 6; depth++)
		for (uint32_t n = depth * 100 - 1; n <= depth * 100 + 1; n++)
			run(depth, depth - 1, n, MIXED, 0);
}

int main(void)
{
	CHECK_RUN(without_a_thread);
	CHECK_RUN(every_depth_spinning);
	CHECK_RUN(both_park_one_command_at_a_time);
	CHECK_RUN(both_park_deep);
	CHECK_RUN(both_spin_a_little_then_park);
	CHECK_RUN(a_wrong_count_of_phases_would_be_seen);
	return check_end();
}
