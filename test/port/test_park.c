/*
 * test_park.c - parking: a wake is never lost, a deadline ends a wait, an awake owner costs the waker no call.
 */
#include "port/port.h"
#include "test/check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#define SECOND 1000000000ull
#define ROUNDS 200000u
#define WAKERS 3u
#define NEWS_EACH 30000u

/* ---- alone ---- */

static void wait_ends_at_its_deadline(void)
{
	struct port_parker p = {0};
	uint64_t t = port_now_ns();

	port_park_announce(&p);
	CHECK_EQ(p.asleep, 1);
	CHECK_EQ(port_park_wait(&p, t + SECOND / 20), -ETIMEDOUT);
	CHECK(port_now_ns() >= t + SECOND / 20);
	CHECK_EQ(p.asleep, 0);
	port_park_announce(&p);
	CHECK_EQ(port_park_wait(&p, t), -ETIMEDOUT); /* long past */
}

static void a_wake_before_the_wait_counts(void)
{
	struct port_parker p = {0};
	uint64_t t = port_now_ns();

	port_park_announce(&p);
	port_unpark(&p);
	CHECK_EQ(port_park_wait(&p, t + 5 * SECOND), 0);
	CHECK(port_now_ns() < t + 4 * SECOND);
}

static void a_wait_without_announce_does_not_sleep(void)
{
	struct port_parker p = {0};

	CHECK_EQ(port_park_wait(&p, 0), 0);
	port_park_announce(&p);
	port_park_cancel(&p);
	CHECK_EQ(p.asleep, 0);
	CHECK_EQ(port_park_wait(&p, 0), 0);
}

static void a_wake_of_one_awake_leaves_nothing_behind(void)
{
	struct port_parker p = {0};

	port_unpark(&p);
	port_park_announce(&p);
	CHECK_EQ(port_park_wait(&p, port_now_ns() + SECOND / 100), -ETIMEDOUT);
}

static void the_clock_goes_forward(void)
{
	uint64_t before = port_now_ns();

	for (int i = 0; i < 100000; i++) {
		uint64_t now = port_now_ns();

		CHECK(now >= before);
		before = now;
	}
}

/* ---- two that hand a number to and fro, each asleep while it is the other's turn ---- */

struct side {
	uint32_t word; /* what this side was told last */
	struct port_parker parker;
	uint32_t timeouts;
	uint32_t sleeps;
};

static struct side ping, pong;

/* Waits until s->word is `want`, after `spins` looks without sleeping. */
static int await(struct side *s, uint32_t want, uint32_t spins)
{
	for (uint32_t i = 0; i < spins; i++) {
		if (port_load_acquire32(&s->word) == want)
			return 0;
		port_pause();
	}
	for (;;) {
		port_park_announce(&s->parker);
		if (port_load_acquire32(&s->word) == want) {
			port_park_cancel(&s->parker);
			return 0;
		}
		s->sleeps++;
		if (port_park_wait(&s->parker, port_now_ns() + 3 * SECOND) == -ETIMEDOUT) {
			s->timeouts++;
			if (port_load_acquire32(&s->word) != want)
				return -ETIMEDOUT;
		}
	}
}

static void *pong_main(void *arg)
{
	(void)arg;
	for (uint32_t i = 1; i <= ROUNDS; i++) {
		if (await(&pong, i, i % 7 * 10))
			break;
		port_store_wake32(&ping.word, i, &ping.parker);
	}
	return NULL;
}

static void no_wake_is_lost_in_200k_rounds(void)
{
	pthread_t t;
	uint32_t i;

	CHECK_EQ(pthread_create(&t, NULL, pong_main, NULL), 0);
	for (i = 1; i <= ROUNDS; i++) {
		port_store_wake32(&pong.word, i, &pong.parker);
		if (await(&ping, i, i % 11 * 10))
			break;
	}
	pthread_join(t, NULL);
	CHECK_EQ(i, ROUNDS + 1);
	CHECK_EQ(ping.timeouts + pong.timeouts, 0);
	CHECK(ping.sleeps + pong.sleeps > 1000); /* else this has tested nothing */
}

/* ---- many wakers of one owner ---- */

static uint32_t news[WAKERS];
static struct port_parker owner;

static void *waker_main(void *arg)
{
	uint32_t *mine = arg;

	for (uint32_t i = 1; i <= NEWS_EACH; i++) {
		port_store_wake32(mine, i, &owner);
		for (uint32_t k = i % 64; k; k--)
			port_pause();
	}
	return NULL;
}

static uint32_t news_sum(void)
{
	uint32_t sum = 0;

	for (uint32_t k = 0; k < WAKERS; k++)
		sum += port_load_acquire32(&news[k]);
	return sum;
}

static void many_wakers_one_sleeper(void)
{
	pthread_t t[WAKERS];
	uint32_t seen = 0, lost = 0;

	for (uint32_t k = 0; k < WAKERS; k++)
		CHECK_EQ(pthread_create(&t[k], NULL, waker_main, &news[k]), 0);
	while (seen < WAKERS * NEWS_EACH && !lost) {
		uint32_t now;

		port_park_announce(&owner);
		now = news_sum();
		if (now != seen) {
			port_park_cancel(&owner);
			seen = now;
			continue;
		}
		if (port_park_wait(&owner, port_now_ns() + 3 * SECOND) == -ETIMEDOUT)
			lost++;
	}
	for (uint32_t k = 0; k < WAKERS; k++)
		pthread_join(t[k], NULL);
	CHECK_EQ(lost, 0);
	CHECK_EQ(seen, WAKERS * NEWS_EACH);
}

/* ---- signals, and idleness ---- */

static void on_signal(int n) { (void)n; }

static void *signal_main(void *arg)
{
	pthread_t *to = arg;

	for (int i = 0; i < 20; i++) {
		struct timespec ms = {0, 2000000};

		nanosleep(&ms, NULL); /* let the other fall asleep again */
		pthread_kill(*to, SIGUSR1);
	}
	return NULL;
}

/* A signal may end a wait early; the one who waits in a loop to an absolute time is not held up by it. */
static void signals_do_not_stretch_a_wait(void)
{
	struct sigaction a = {.sa_handler = on_signal};
	struct port_parker p = {0};
	pthread_t t, self = pthread_self();
	uint64_t start = port_now_ns(), end = start + SECOND / 10, took;
	int rc;

	sigaction(SIGUSR1, &a, NULL);
	CHECK_EQ(pthread_create(&t, NULL, signal_main, &self), 0);
	do {
		port_park_announce(&p);
		rc = port_park_wait(&p, end);
	} while (rc == 0);
	took = port_now_ns() - start;
	pthread_join(t, NULL);
	CHECK_EQ(rc, -ETIMEDOUT);
	CHECK(took >= SECOND / 10 && took < 5 * SECOND);
}

static void one_asleep_uses_no_cpu(void)
{
	struct port_parker p = {0};
	struct rusage a, b;

	getrusage(RUSAGE_THREAD, &a);
	port_park_announce(&p);
	CHECK_EQ(port_park_wait(&p, port_now_ns() + SECOND / 4), -ETIMEDOUT);
	getrusage(RUSAGE_THREAD, &b);
	CHECK(b.ru_nvcsw - a.ru_nvcsw <= 3);
	CHECK((b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000 + b.ru_utime.tv_usec - a.ru_utime.tv_usec < 50000);
}

int main(void)
{
	CHECK_RUN(wait_ends_at_its_deadline);
	CHECK_RUN(a_wake_before_the_wait_counts);
	CHECK_RUN(a_wait_without_announce_does_not_sleep);
	CHECK_RUN(a_wake_of_one_awake_leaves_nothing_behind);
	CHECK_RUN(the_clock_goes_forward);
	CHECK_RUN(no_wake_is_lost_in_200k_rounds);
	CHECK_RUN(many_wakers_one_sleeper);
	CHECK_RUN(signals_do_not_stretch_a_wait);
	CHECK_RUN(one_asleep_uses_no_cpu);
	return check_end();
}
