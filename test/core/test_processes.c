/*
 * test_processes.c - the store in one process, the lanes of two ranks in two others, blobs over sockets. Each of the
 * three is killed before every single message of a small story, and a lane in the middle of every write that it makes.
 * Then: who is left is told so, a new store gets in only when the old lanes are gone, the books agree with the disk,
 * and what was acknowledged is there, byte for byte, on both ranks.
 */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "core/party.h"
#include "core/pool.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include "ctrl/fault_io.h"

#define N 6 /* blocks of a chain */
#define CHAINS 3
#define LEASE_NS 60000000000ull
#define BLOB 2048
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRIDE 5 /* the plain build takes every step */
#else
#define STRIDE 1
#endif

enum who { STORE, LANE0, LANE1, PARTIES };
enum op { OPEN = 1, RESERVE, PUT, COMPLETE, LOOKUP, GET, RELEASE, CLOSE };

struct msg {
	int op, chain, rc;
	size_t hit;
	struct tutti_lease lease;
	size_t bytes;
	uint8_t blob[BLOB];
};

static const struct rig_shape shape = {.ranks = 2,
                                       .layers = 2,
                                       .blocks = 16,
                                       .outer_count = 2,
                                       .segment_bytes = 4096,
                                       .order = "LoB",
                                       .pool_bytes = 8u << 20};
static const uint64_t blocks[N] = {3, 9, 1, 14, 7, 4};

static struct party parties[PARTIES];
/* Where the next party kills itself: in its n-th write (0: nowhere), after so many bytes of it. */
static uint64_t kill_write, kill_bytes;

/* ---- the parties ---- */

static void as_store(struct rig *r, struct msg *m)
{
	struct tutti_key keys[N];
	size_t first, n, bad;

	rig_keys(r, (uint64_t)m->chain + 1, N, keys);
	switch (m->op) {
	case OPEN:
		m->rc = rig_open_store(r);
		break;
	case RESERVE:
		m->rc = tutti_reserve(r->ns, NULL, keys, N, LEASE_NS, &first, &n, &m->lease);
		m->rc = m->rc    ? m->rc
		        : n == N ? tutti_plan_blob(r->ns, &m->lease, 0, N, m->blob, BLOB, &m->bytes)
		                 : -ENOSPC;
		break;
	case COMPLETE:
		m->rc = tutti_complete(r->ns, m->blob, m->bytes, &bad);
		m->rc = m->rc ? m->rc : bad ? -EIO : 0;
		break;
	case LOOKUP:
		m->rc = tutti_lookup(r->ns, keys, N, LEASE_NS, &m->hit, &m->lease);
		if (!m->rc && m->hit)
			m->rc = tutti_plan_blob(r->ns, &m->lease, 0, m->hit, m->blob, BLOB, &m->bytes);
		break;
	case RELEASE:
		m->rc = tutti_release(r->ns, &m->lease);
		break;
	case CLOSE:
		m->rc = store_check(r->store->st);
		m->rc = m->rc ? m->rc : tutti_store_close(r->store);
		break;
	}
}

static void as_lane(struct rig *r, uint32_t rank, struct msg *m)
{
	struct tutti_key keys[N];
	size_t bad = 0;

	rig_keys(r, (uint64_t)m->chain + 1, N, keys);
	if (m->op == OPEN) {
		m->rc = rig_open_lane(r, rank);
	} else if (m->op == PUT) {
		for (uint32_t i = 0; i < N; i++)
			rig_fill(r, rank, blocks[i], &keys[i]);
		m->rc = rig_put(r, rank, m->blob, m->bytes, blocks, N, m->blob, BLOB, &m->bytes);
	} else if (m->op == GET) {
		rig_wipe(r, rank);
		m->rc = rig_get(r, rank, m->blob, m->bytes, blocks, m->hit, 0, &bad, m->blob, BLOB, &m->bytes);
		m->rc = m->rc ? m->rc : bad ? -EIO : 0;
		for (uint32_t i = 0; i < m->hit && !m->rc; i++)
			m->rc = rig_wrong(r, rank, blocks[i], &keys[i]) ? -EILSEQ : 0;
	} else if (m->op == CLOSE) {
		m->rc = tutti_lane_close(r->lane[rank]);
	}
}

static void serve(uint32_t who, int fd)
{
	struct fault_io *f = fault_io_new(0);
	struct fault_rule rule = {.kind = FAULT_KILL, .ops = FAULT_WRITE, .nth = kill_write, .value = kill_bytes};
	struct msg m;
	struct rig r;

	rig_shape_memory(&r, &shape);
	if (kill_write) {
		pool_use_io(&fault_io_ops, f);
		fault_io_rule(f, &rule);
	}
	while (recv(fd, &m, sizeof(m), 0) == sizeof(m)) {
		if (who == STORE)
			as_store(&r, &m);
		else
			as_lane(&r, who - LANE0, &m);
		if (send(fd, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m))
			break;
	}
}

/* ---- the story ---- */

struct story {
	int step, kill_at; /* message before which the victim dies; 0: none */
	enum who victim;
	int acknowledged[CHAINS];
	int broken;
};

/* 0: answered; -1: somebody is dead, the story ends. */
static int ask(struct story *s, enum who to, int op, int chain, struct msg *m)
{
	if (s->broken)
		return -1;
	if (++s->step == s->kill_at)
		party_stop(&parties[s->victim], SIGKILL);
	m->op = op;
	m->chain = chain;
	if (!parties[to].pid || send(parties[to].sock, m, sizeof(*m), MSG_NOSIGNAL) != sizeof(*m) ||
	    recv(parties[to].sock, m, sizeof(*m), 0) != sizeof(*m)) {
		s->broken = 1;
		party_stop(&parties[to], SIGKILL); /* it is dying, or dead: wait for that */
		return -1;
	}
	return m->rc ? (s->broken = 2, -1) : 0;
}

static void tell(struct story *s)
{
	static struct msg plan, done[2], m;

	for (enum who w = STORE; w < PARTIES; w++)
		ask(s, w, OPEN, 0, &m);
	for (int c = 0; c < CHAINS && !s->broken; c++) {
		if (ask(s, STORE, RESERVE, c, &plan))
			return;
		for (int rank = 0; rank < 2; rank++) {
			done[rank] = plan;
			if (ask(s, LANE0 + rank, PUT, c, &done[rank]))
				break;
		}
		for (int rank = 0; rank < 2 && !s->broken; rank++)
			ask(s, STORE, COMPLETE, c, &done[rank]);
		s->acknowledged[c] = !s->broken;
	}
	for (int c = 0; c < 2 && !s->broken; c++) {
		if (ask(s, STORE, LOOKUP, c, &plan))
			return;
		for (int rank = 0; rank < 2; rank++) {
			done[rank] = plan;
			if (ask(s, LANE0 + rank, GET, c, &done[rank]))
				return;
		}
		ask(s, STORE, RELEASE, c, &plan);
	}
}

/* A store that lost a lane goes on: it gives back what the lane had, and closes with its books in order. */
static int store_goes_on(const struct story *s)
{
	struct story rest = {.step = s->step, .kill_at = 0};
	static struct msg m;

	if (!parties[STORE].pid)
		return 0;
	party_stop(&parties[LANE0], 0);
	party_stop(&parties[LANE1], 0);
	return ask(&rest, STORE, CLOSE, 0, &m);
}

/* While lanes of a dead store live, a new one is refused, and told by whom. */
static int old_lanes_are_named(void)
{
	struct tutti_store *store;
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct rig r;
	int status;
	pid_t child = fork();

	if (child)
		return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
	rig_shape_memory(&r, &shape);
	o.paths = r.paths;
	o.n_paths = 1;
	o.lock_wait_ns = 1000000;
	_exit(tutti_store_open(&o, &store) == -EBUSY && strstr(tutti_error_message(), "process ") ? 0 : 1);
}

/* In a new process: a new store and new lanes find what was acknowledged, and only whole blocks. */
static int look_again(const struct story *s)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child)
		return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
	struct tutti_key keys[N];
	struct rig r;
	size_t hit, bad;

	rig_shape_memory(&r, &shape);
	if (rig_open_store(&r) || rig_open_lane(&r, 0) || rig_open_lane(&r, 1) || store_check(r.store->st)) {
		printf("# %s\n", tutti_error_message());
		fflush(stdout);
		_exit(1);
	}
	for (int c = 0; c < CHAINS; c++) {
		rig_keys(&r, (uint64_t)c + 1, N, keys);
		rig_wipe(&r, 0);
		rig_wipe(&r, 1);
		if (rig_retrieve(&r, keys, N, blocks, 0, &hit, &bad) || bad)
			_exit(2);
		if (s->acknowledged[c] && hit != N)
			_exit(3);
		for (uint32_t rank = 0; rank < 2; rank++)
			for (size_t i = 0; i < hit; i++)
				if (rig_wrong(&r, rank, blocks[i], &keys[i]))
					_exit(4);
	}
	if (rig_close_lanes(&r) || tutti_store_close(r.store))
		_exit(5);
	_exit(0);
}

static void format_in_a_child(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct rig r;

		rig_shape_memory(&r, &shape);
		rig_format(&r);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void one_story(struct story *s, uint64_t nth_write, uint64_t bytes)
{
	int store_died;

	format_in_a_child();
	for (enum who w = STORE; w < PARTIES; w++) {
		kill_write = w == s->victim ? nth_write : 0;
		kill_bytes = bytes;
		party_start(parties, PARTIES, w, serve);
	}
	tell(s);
	CHECK(s->broken != 2); /* nobody got an error that was not somebody's death */
	store_died = !parties[STORE].pid;
	if (store_died && parties[LANE0].pid && s->step > PARTIES)
		CHECK_EQ(old_lanes_are_named(), 0);
	CHECK_EQ(store_goes_on(s), 0);
	for (enum who w = STORE; w < PARTIES; w++)
		party_stop(&parties[w], 0);
	CHECK_EQ(look_again(s), 0);
}

static void nobody_dies(void)
{
	struct story s = {.victim = STORE};

	one_story(&s, 0, 0);
	CHECK_EQ(s.broken, 0);
	for (int c = 0; c < CHAINS; c++)
		CHECK(s.acknowledged[c]);
	CHECK_EQ(s.step, PARTIES + CHAINS * 5 + 2 * 4);
}

static void each_dies_before_every_message(void)
{
	for (enum who w = STORE; w < PARTIES; w++) {
		for (int k = 1; k <= PARTIES + CHAINS * 5 + 2 * 4; k += STRIDE) {
			struct story s = {.kill_at = k, .victim = w};

			one_story(&s, 0, 0);
		}
	}
}

/* A lane writes data of two layers and headers for each chain: cut off in each of these writes, at several lengths. */
static void a_lane_dies_in_every_write(void)
{
	static const uint64_t lengths[] = {0, 512, 4096, 20000};

	for (uint64_t nth = 1; nth <= 10; nth++) {
		for (enum who w = LANE0; w < PARTIES; w++) {
			struct story s = {.victim = w};

			one_story(&s, nth, lengths[nth % 4]);
		}
	}
}

static void the_store_dies_in_every_write(void)
{
	for (uint64_t nth = 1; nth <= 8; nth++) {
		struct story s = {.victim = STORE};

		one_story(&s, nth, nth % 2 ? 0 : 512);
	}
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(nobody_dies);
	CHECK_RUN(each_dies_before_every_message);
	CHECK_RUN(a_lane_dies_in_every_write);
	CHECK_RUN(the_store_dies_in_every_write);
	scratch_end();
	return check_end();
}
