/* test_host.c - the host executor: order, bounds, events, ends. Meant to be run under ThreadSanitizer too. */
#include <errno.h>
#include <time.h>

#include "check.h"
#include "exec/exec.h"
#include "port/port.h"

#define JOBS 2000u
#define BLOCKS 3u

struct world {
	uint32_t last[BLOCKS]; /* of each block: number of the last job it ran */
	uint32_t out_of_order;
	uint32_t ran;
	uint32_t done;
	uint32_t gate;
};

static void kernel(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count)
{
	struct world *w = arg;

	(void)count;
	if (n_blocks != BLOCKS || w->last[block] + 1 != sq_first)
		port_add_acqrel32(&w->out_of_order, 1);
	w->last[block] = sq_first;
	port_add_acqrel32(&w->ran, 1);
}

static void blocked(void *arg, uint32_t block, uint32_t n_blocks, uint32_t sq_first, uint32_t count)
{
	struct world *w = arg;
	const struct timespec nap = {.tv_nsec = 100000};

	while (!port_load_acquire32(&w->gate))
		nanosleep(&nap, NULL); /* the gate is opened by the test's own thread */
	kernel(arg, block, n_blocks, sq_first, count);
}

static void count_done(void *arg)
{
	struct world *w = arg;

	port_add_acqrel32(&w->done, 1);
}

static void order_and_end(void)
{
	struct exec_opts o = {.streams = 2, .blocks = BLOCKS, .queue_jobs = 4096};
	struct world w[2];
	struct exec *e;

	memset(w, 0, sizeof(w));
	CHECK_EQ(exec_host.open(&o, &e), 0);
	for (uint32_t i = 1; i <= JOBS; i++)
		for (uint32_t s = 0; s < 2; s++) {
			struct exec_job j = {
			    .kernel = kernel, .arg = &w[s], .sq_first = i, .done = count_done, .done_arg = &w[s]};

			CHECK_EQ(exec_host.launch(e, s, &j), 0);
		}
	exec_host.close(e); /* runs what was launched */
	for (uint32_t s = 0; s < 2; s++) {
		CHECK_EQ(w[s].ran, JOBS * BLOCKS);
		CHECK_EQ(w[s].out_of_order, 0);
		CHECK_EQ(w[s].done, JOBS);
	}
}

static void queue_is_bounded(void)
{
	struct exec_opts o = {.streams = 1, .blocks = BLOCKS, .queue_jobs = 4};
	struct world w;
	struct exec *e;

	memset(&w, 0, sizeof(w));
	CHECK_EQ(exec_host.open(&o, &e), 0);
	for (uint32_t i = 1; i <= 4; i++) {
		struct exec_job j = {.kernel = blocked, .arg = &w, .sq_first = i};

		CHECK_EQ(exec_host.launch(e, 0, &j), 0);
	}
	struct exec_job one_more = {.kernel = blocked, .arg = &w, .sq_first = 5};

	CHECK_EQ(exec_host.launch(e, 0, &one_more), -EAGAIN);
	port_store_release32(&w.gate, 1);
	exec_host.close(e);
	CHECK_EQ(w.ran, 4 * BLOCKS);
}

static void event_holds_a_job_to_its_deadline(void)
{
	struct exec_opts o = {.streams = 1, .blocks = BLOCKS, .queue_jobs = 4};
	const struct timespec nap = {.tv_nsec = 20000000};
	uint32_t word = 0;
	struct exec_event event = {.word = &word, .value = 1};
	struct world w;
	struct exec *e;

	memset(&w, 0, sizeof(w));
	CHECK_EQ(exec_host.open(&o, &e), 0);
	struct exec_job j = {.kernel = kernel,
	                     .arg = &w,
	                     .sq_first = 1,
	                     .events = &event,
	                     .n_events = 1,
	                     .deadline_ns = port_now_ns() + 60000000000ull};

	CHECK_EQ(exec_host.launch(e, 0, &j), 0);
	nanosleep(&nap, NULL); /* time in which it must not start */
	CHECK_EQ(port_load_acquire32(&w.ran), 0);
	port_store_release32(&word, 1);
	j.sq_first = 2;
	event.value = 2; /* never comes: the deadline ends the wait */
	j.deadline_ns = port_now_ns() + 5000000;
	CHECK_EQ(exec_host.launch(e, 0, &j), 0);
	exec_host.close(e);
	CHECK_EQ(w.ran, 2 * BLOCKS);
	CHECK_EQ(w.out_of_order, 0);
}

static void bad_options(void)
{
	struct exec_opts o = {.streams = 0, .blocks = 1, .queue_jobs = 1};
	struct exec *e;

	CHECK_EQ(exec_host.open(&o, &e), -EINVAL);
	o.streams = 1;
	o.blocks = 65;
	CHECK_EQ(exec_host.open(&o, &e), -EINVAL);
	o.blocks = 1;
	o.queue_jobs = 0;
	CHECK_EQ(exec_host.open(&o, &e), -EINVAL);
}

int main(void)
{
	CHECK_RUN(order_and_end);
	CHECK_RUN(queue_is_bounded);
	CHECK_RUN(event_holds_a_job_to_its_deadline);
	CHECK_RUN(bad_options);
	return check_end();
}
