/*
 * soak_pool.c SECONDS [SEED] - a store and the lanes of two ranks, each in a process of its own, do random work on one
 * pool that is too small for it, and are killed at random moments, for as long as it is told (60 s).
 *
 * Chains of blocks share trunks, so that there is a tree to evict from. After every call the store says which blocks
 * it has; the parent knows what may have changed by that call, and nothing else may. After a kill of the store: what
 * it had said to have must be there, all of it; what was reserved or evicted since the last clear may be (a header
 * outlives its eviction until a lane writes there); nothing else. Bytes follow from key, rank, layer and place: each
 * one that is retrieved is looked at. No process may grow. A third of the time nobody is killed, so that growth could
 * show.
 */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

#include "check.h"
#include "core/party.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"

#define RANKS 2
#define N 12     /* blocks of a chain */
#define TRUNK 4u /* of them shared by SHARE chains */
#define SHARE 4u
#define CHAINS 32u
#define IDS (CHAINS / SHARE * TRUNK + CHAINS * (N - TRUNK)) /* different blocks */
#define LEASE_NS 20000000000ull
#define DEADLINE_NS 10000000000ull
#define BLOB 4096
#define KILL_ONE_IN 150 /* pieces of work */
#define KILL_WITHIN_US 2000
#define LOOK_EVERY 64 /* pieces of work, at memory and descriptors */
#define RSS_MAX (64u << 20)
#define FDS_MAX 32u

enum who { STORE, LANE0, LANE1, PARTIES };
enum op { OPEN = 1, LOOKUP, RESERVE, PUT, GET, COMPLETE, RELEASE, CANCEL, CLEAR, VERIFY, SYNC, CLOSE };

struct msg {
	int op, rc;
	uint32_t chain, n; /* the first n blocks of it */
	size_t first, count, bad;
	struct tutti_lease lease;
	size_t bytes;
	uint8_t blob[BLOB];
	/* what the store says of itself after every call */
	uint8_t present[IDS];
	uint64_t committed, reserved, leased, evicted;
};

static const struct rig_shape shape = {.ranks = RANKS,
                                       .layers = 2,
                                       .blocks = 16,
                                       .outer_count = 2,
                                       .segment_bytes = 4096,
                                       .order = "LoB",
                                       .deadline_ns = DEADLINE_NS,
                                       .pool_bytes = 8u << 20};
static const uint64_t blocks[N] = {3, 9, 1, 14, 7, 4, 0, 12, 5, 15, 2, 8};
static struct tutti_key key[CHAINS][N];
static uint32_t id[CHAINS][N];

static struct party parties[PARTIES];

/* ---- the parties ---- */

static int note(void *arg, const struct tutti_key *k, const struct tutti_key *parent, uint32_t depth, uint32_t slot)
{
	struct msg *m = arg;

	(void)parent;
	(void)slot;
	for (uint32_t c = 0; c < CHAINS; c += depth < TRUNK ? SHARE : 1)
		if (depth < N && !memcmp(&key[c][depth], k, sizeof(*k)) && !m->present[id[c][depth]]) {
			m->present[id[c][depth]] = 1;
			return 0;
		}
	return -EILSEQ; /* a block that nobody stored, or one that is there twice */
}

static void say_what_is_there(struct rig *r, struct msg *m)
{
	struct tutti_ns_info info;
	int rc;

	memset(m->present, 0, sizeof(m->present));
	rc = tutti_ns_each(r->ns, note, m);
	rc = rc ? rc : tutti_ns_get_info(r->ns, &info);
	m->rc = m->rc ? m->rc : rc;
	m->committed = info.committed;
	m->reserved = info.reserved;
	m->leased = info.leased;
	m->evicted = info.evicted;
}

static void as_store(struct rig *r, struct msg *m)
{
	const struct tutti_key *keys = key[m->chain];
	uint64_t checked = 0, damaged = 0;

	switch (m->op) {
	case OPEN:
		m->rc = rig_open_store(r);
		m->rc = m->rc ? m->rc : store_check(r->store->st);
		break;
	case LOOKUP:
		m->rc = tutti_lookup(r->ns, keys, m->n, LEASE_NS, &m->count, &m->lease);
		if (!m->rc && m->count)
			m->rc = tutti_plan_blob(r->ns, &m->lease, 0, m->count, m->blob, BLOB, &m->bytes);
		break;
	case RESERVE:
		m->rc = tutti_reserve(r->ns, NULL, keys, m->n, LEASE_NS, &m->first, &m->count, &m->lease);
		if (!m->rc && m->count)
			m->rc = tutti_plan_blob(r->ns, &m->lease, 0, m->count, m->blob, BLOB, &m->bytes);
		break;
	case COMPLETE:
		m->rc = tutti_complete(r->ns, m->blob, m->bytes, &m->bad);
		break;
	case RELEASE:
		m->rc = tutti_release(r->ns, &m->lease);
		break;
	case CANCEL:
		m->rc = tutti_cancel(r->ns, &m->lease);
		break;
	case CLEAR:
		m->rc = tutti_ns_clear(r->ns);
		break;
	case VERIFY:
		m->rc = tutti_verify(r->ns, 0, NULL, NULL, &checked, &damaged);
		m->count = checked;
		m->bad = damaged;
		break;
	case SYNC:
		m->rc = tutti_store_sync(r->store);
		break;
	case CLOSE:
		m->rc = store_check(r->store->st);
		m->rc = m->rc ? m->rc : tutti_store_close(r->store);
		return;
	}
	if (m->rc && m->rc != -ENOSPC && m->rc != -EBUSY)
		printf("# store, call %d: %s\n", m->op, tutti_error_message());
	if (r->ns)
		say_what_is_there(r, m);
}

static void as_lane(struct rig *r, uint32_t rank, struct msg *m)
{
	const struct tutti_key *keys = key[m->chain] + m->first;
	const uint64_t *at = blocks + m->first;

	m->bad = 0;
	switch (m->op) {
	case OPEN:
		m->rc = rig_open_lane(r, rank);
		break;
	case PUT:
		for (size_t i = 0; i < m->count; i++)
			rig_fill(r, rank, at[i], &keys[i]);
		m->rc = rig_put(r, rank, m->blob, m->bytes, at, m->count, m->blob, BLOB, &m->bytes);
		break;
	case GET:
		rig_wipe(r, rank);
		m->rc = rig_get(r, rank, m->blob, m->bytes, at, m->count, m->n & 1, &m->bad, m->blob, BLOB, &m->bytes);
		for (size_t i = 0; i < m->count && !m->rc; i++)
			m->rc = rig_wrong(r, rank, at[i], &keys[i]) ? -EILSEQ : 0;
		break;
	case CLOSE:
		m->rc = tutti_lane_close(r->lane[rank]);
		return;
	}
	if (m->rc)
		printf("# lane %u, call %d: %s\n", rank, m->op, tutti_error_message());
}

static void serve(uint32_t who, int fd)
{
	struct msg m;
	struct rig r;

	rig_shape_memory(&r, &shape);
	while (recv(fd, &m, sizeof(m), 0) == sizeof(m)) {
		if (who == STORE)
			as_store(&r, &m);
		else
			as_lane(&r, who - LANE0, &m);
		fflush(stdout);
		if (send(fd, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m))
			break;
	}
}

/* ---- the parent: calls ---- */

static struct {
	uint8_t must[IDS]; /* what the store said last */
	uint8_t may[IDS];  /* reserved since the last clear */
	int clearing;      /* a clear was under way when the store died */
	uint64_t evicted;  /* since the store was opened */
	uint64_t held_ns;  /* until then, slots of dead lanes may be held back */
} model;

static struct {
	uint64_t stores, stored, retrieves, retrieved, cancels, clears, verifies, verified, syncs, evictions, back;
	uint64_t kills[PARTIES], clean, rss, fds;
} count;

static uint64_t seed;
static enum who victim = PARTIES; /* dies in the middle of the next call; PARTIES: nobody */

static uint32_t any(uint64_t below) { return (uint32_t)(check_random(&seed) % below); }

static void post(enum who who, int op, struct msg *m)
{
	m->op = op;
	if (parties[who].pid)
		(void)!send(parties[who].sock, m, sizeof(*m), MSG_NOSIGNAL);
	if (victim != PARTIES && any(2)) {
		usleep(any(KILL_WITHIN_US)); /* somewhere in the midst of it */
		count.kills[victim]++;
		party_stop(&parties[victim], SIGKILL);
		victim = PARTIES;
	}
}

/* 0: answered; -1: it is dead. */
static int answer(enum who who, struct msg *m)
{
	if (!parties[who].pid)
		return -1;
	CHECK_EQ(recv(parties[who].sock, m, sizeof(*m), 0), sizeof(*m)); /* else it died of itself */
	return 0;
}

static int ask(enum who who, int op, struct msg *m)
{
	post(who, op, m);
	return answer(who, m);
}

static uint32_t sum(const uint8_t *set)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < IDS; i++)
		n += set[i];
	return n;
}

static uint32_t prefix(const uint8_t *set, uint32_t chain, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && set[id[chain][i]])
		i++;
	return i;
}

static int held(void) { return rig_now() < model.held_ns; }

/* The store answered a call that may not change what is there, but for blocks [first, first + n) of the chain. */
static void nothing_but(const struct msg *m, size_t first, size_t n)
{
	uint8_t want[IDS];

	memcpy(want, model.must, sizeof(want));
	for (size_t i = first; i < first + n; i++)
		want[id[m->chain][i]] = 1;
	CHECK(!memcmp(want, m->present, sizeof(want)));
	CHECK_EQ(m->committed, sum(want));
	memcpy(model.must, want, sizeof(want));
}

static int ask_store(int op, struct msg *m)
{
	if (ask(STORE, op, m))
		return -1;
	CHECK_EQ(m->rc, 0);
	nothing_but(m, 0, 0);
	return 0;
}

static void release(const struct msg *plan, int reservation_of_the_dead)
{
	static struct msg m;

	m.lease = plan->lease;
	if (reservation_of_the_dead)
		model.held_ns = rig_now() + LEASE_NS;
	if (ask_store(RELEASE, &m))
		return;
	CHECK_EQ(m.leased, 0);
	CHECK(m.reserved == 0 || held());
}

/* Both lanes at once. 0: both are through; -1: one is dead. */
static int ask_lanes(int op, const struct msg *plan, struct msg done[RANKS])
{
	int dead = 0;

	for (uint32_t k = 0; k < RANKS; k++) {
		done[k] = *plan;
		post(LANE0 + k, op, &done[k]);
	}
	for (uint32_t k = 0; k < RANKS; k++) {
		done[k].bytes = 0;
		if (answer(LANE0 + k, &done[k])) {
			dead = -1;
			done[k].bytes = 0;
			continue;
		}
		CHECK_EQ(done[k].rc, 0);
		CHECK_EQ(done[k].bad, 0);
	}
	return dead;
}

/* ---- pieces of work ---- */

static void store_some(void)
{
	static struct msg plan, done[RANKS];
	uint32_t before = sum(model.must), there, swap = any(2);
	int dead;

	plan.chain = any(CHAINS);
	plan.n = 1 + any(N);
	there = prefix(model.must, plan.chain, plan.n);
	if (ask(STORE, RESERVE, &plan))
		return;
	for (uint32_t i = 0; i < IDS; i++)
		CHECK(model.must[i] >= plan.present[i]);
	CHECK_EQ(before - sum(plan.present), plan.evicted - model.evicted);
	CHECK_EQ(prefix(plan.present, plan.chain, plan.n), there);
	count.evictions += plan.evicted - model.evicted;
	model.evicted = plan.evicted;
	memcpy(model.must, plan.present, sizeof(plan.present));
	if (plan.rc == -ENOSPC && held())
		return;
	CHECK_EQ(plan.rc, 0);
	CHECK_EQ(plan.first, there);
	CHECK(plan.first + plan.count == plan.n || held());
	if (!plan.count)
		return;
	if (any(8) == 0) {
		count.cancels += !ask_store(CANCEL, &plan);
		return;
	}
	for (size_t i = plan.first; i < plan.first + plan.count; i++)
		model.may[id[plan.chain][i]] = 1;
	dead = ask_lanes(PUT, &plan, done);
	for (uint32_t k = 0; k < RANKS; k++) {
		struct msg *m = &done[k ^ swap];

		if (!m->bytes)
			continue;
		if (ask(STORE, COMPLETE, m))
			return;
		CHECK_EQ(m->rc, 0);
		CHECK_EQ(m->bad, 0);
		nothing_but(m, plan.first, k == RANKS - 1 && !dead ? plan.count : 0);
	}
	count.stores++;
	count.stored += dead ? 0 : plan.count;
	release(&plan, dead);
}

static void retrieve_some(void)
{
	static struct msg plan, done[RANKS];
	int dead;

	plan.chain = any(CHAINS);
	plan.n = 1 + any(N);
	plan.first = 0;
	if (ask_store(LOOKUP, &plan))
		return;
	CHECK_EQ(plan.count, prefix(model.must, plan.chain, plan.n));
	if (!plan.count)
		return;
	dead = ask_lanes(GET, &plan, done);
	for (uint32_t k = 0; k < RANKS; k++)
		if (done[k].bytes && ask_store(COMPLETE, &done[k]))
			return;
	count.retrieves++;
	count.retrieved += dead ? 0 : plan.count;
	release(&plan, 0);
}

static void clear(void)
{
	static struct msg m;

	model.clearing = 1;
	if (ask(STORE, CLEAR, &m))
		return;
	model.clearing = 0;
	if (m.rc == -EBUSY && held())
		return;
	CHECK_EQ(m.rc, 0);
	memset(model.must, 0, sizeof(model.must));
	memset(model.may, 0, sizeof(model.may));
	nothing_but(&m, 0, 0);
	count.clears++;
}

static void verify(void)
{
	static struct msg m;

	if (ask_store(VERIFY, &m))
		return;
	CHECK_EQ(m.count, sum(model.must));
	CHECK_EQ(m.bad, 0);
	count.verifies++;
	count.verified += m.count;
}

static void work(void)
{
	static struct msg m;
	uint32_t dice = any(1000);

	if (dice < 450)
		store_some();
	else if (dice < 950)
		retrieve_some();
	else if (dice < 985)
		count.syncs += !ask_store(SYNC, &m);
	else if (dice < 998)
		verify();
	else
		clear();
}

/* ---- up again ---- */

static void open_lanes(void)
{
	static struct msg m;

	for (enum who w = LANE0; w < PARTIES; w++)
		if (!parties[w].pid) {
			party_start(parties, PARTIES, w, serve);
			CHECK(!ask(w, OPEN, &m));
			CHECK_EQ(m.rc, 0);
		}
}

static void open_store(int clean)
{
	static struct msg m;

	party_start(parties, PARTIES, STORE, serve);
	CHECK(!ask(STORE, OPEN, &m));
	CHECK_EQ(m.rc, 0);
	for (uint32_t i = 0; i < IDS; i++) {
		CHECK(m.present[i] || !model.must[i] || model.clearing);
		CHECK(!m.present[i] || model.must[i] || (model.may[i] && !clean));
		count.back += m.present[i] && !model.must[i];
	}
	CHECK_EQ(m.committed, sum(m.present));
	CHECK_EQ(m.reserved, 0);
	CHECK_EQ(m.leased, 0);
	/* A clear is whole or not there at all. */
	if (model.clearing && !m.committed)
		memset(model.may, 0, sizeof(model.may));
	else
		for (uint32_t i = 0; i < IDS; i++)
			CHECK(m.present[i] || !model.must[i]);
	memcpy(model.must, m.present, sizeof(m.present));
	model.clearing = 0;
	model.evicted = 0;
	model.held_ns = 0;
	if (any(4) == 0)
		verify();
}

static void close_one(enum who who)
{
	static struct msg m;

	if (!ask(who, CLOSE, &m))
		CHECK_EQ(m.rc, 0);
	party_stop(&parties[who], 0);
}

/* Everybody who is dead comes back; lanes of a dead store close, or are killed too. */
static void mend(void)
{
	victim = PARTIES;
	if (!parties[STORE].pid) {
		for (enum who w = LANE0; w < PARTIES; w++) {
			if (any(2))
				close_one(w);
			else
				party_stop(&parties[w], SIGKILL);
		}
		open_store(0);
	}
	open_lanes();
}

static void close_and_open(void)
{
	for (enum who w = PARTIES; w-- > STORE;)
		close_one(w);
	open_store(1);
	open_lanes();
	count.clean++;
}

static void look_at(pid_t pid)
{
	uint64_t resident, fds;

	CHECK_EQ(party_footprint(pid, &resident, &fds), 0);
	count.fds = fds > count.fds ? fds : count.fds;
	count.rss = resident > count.rss ? resident : count.rss;
	CHECK(fds <= FDS_MAX);
	CHECK(resident <= RSS_MAX);
}

/* ---- the whole ---- */

static uint64_t seconds = 60;

static void everything_is_kept(void)
{
	uint64_t begin = rig_now(), n = 0;

	open_store(1);
	open_lanes();
	for (uint64_t s = 0; s < seconds; s = (rig_now() - begin) / 1000000000u, n++) {
		if (s / 10 % 3 != 2 && any(KILL_ONE_IN) == 0)
			victim = any(PARTIES);
		work();
		mend();
		if (any(2000) == 0)
			close_and_open();
		if (n % LOOK_EVERY == 0) {
			look_at(getpid());
			for (enum who w = STORE; w < PARTIES; w++)
				look_at(parties[w].pid);
		}
	}
	close_and_open();
	verify();
	for (enum who w = PARTIES; w-- > STORE;)
		close_one(w);
}

static void make_chains(void)
{
	uint32_t tokens[N * 16];
	struct rig r;

	rig_shape_memory(&r, &shape);
	rig_format(&r);
	for (uint32_t c = 0; c < CHAINS; c++) {
		for (uint32_t i = 0; i < N; i++) {
			int shared = i < TRUNK;

			id[c][i] =
			    shared ? c / SHARE * TRUNK + i : CHAINS / SHARE * TRUNK + c * (N - TRUNK) + i - TRUNK;
			for (uint32_t t = 0; t < 16; t++)
				tokens[i * 16 + t] = id[c][i] * 16 + t;
		}
		CHECK(!tutti_keys(&r.digest, NULL, tokens, 16, NULL, N, key[c]));
	}
	CHECK(tutti_plan_blob_bytes(N) <= BLOB && tutti_completion_blob_bytes(N) <= BLOB);
}

int main(int argc, char **argv)
{
	seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : seconds;
	seed = argc > 2 ? strtoull(argv[2], NULL, 10) : rig_now();
	printf("# seed %llu\n", (unsigned long long)seed);
	rig_dir(scratch_begin());
	CHECK_RUN(make_chains);
	CHECK_RUN(everything_is_kept);
	for (enum who w = STORE; w < PARTIES; w++)
		party_stop(&parties[w], SIGKILL);
	printf("# stores %lu (%lu blocks), retrieves %lu (%lu blocks), cancels %lu, clears %lu, syncs %lu\n",
	       count.stores, count.stored, count.retrieves, count.retrieved, count.cancels, count.clears, count.syncs);
	printf("# verifies %lu (%lu blocks), evictions %lu, clean reopens %lu, blocks back after a kill %lu\n",
	       count.verifies, count.verified, count.evictions, count.clean, count.back);
	printf("# kills: store %lu, lanes %lu and %lu; at most %lu KiB resident and %lu descriptors in a process\n",
	       count.kills[STORE], count.kills[LANE0], count.kills[LANE1], count.rss >> 10, count.fds);
	scratch_end();
	return check_end();
}
