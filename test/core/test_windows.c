/*
 * test_windows.c - stores beside a retrieve that the engine asks for layer by layer, computing in between: they are
 * written in the time that compute leaves, never while a layer is read, and not held until the retrieve is over.
 */
#include <time.h>

#include "check.h"
#include "core/lane.h"
#include "core/rig.h"
#include "core/scratch.h"

#define N 16u
#define LAYERS 24u
#define LEASE_NS 60000000000ull
#define COMPUTE_NS 3000000 /* of a layer; the next read comes within SCHED_READ_LATE_NS where the machine is quiet */

/* Writes take 0.25 ms a layer. */
static const struct rig_shape shape = {.layers = LAYERS,
                                       .blocks = 2 * N,
                                       .segment_bytes = 8192,
                                       .order = "LoB",
                                       .controller = TUTTI_CTRL_MODEL,
                                       .timing = {.write_bytes_per_s = N * 8192ull * 4000}};
static struct rig r;
static uint64_t blocks[2 * N];

/* The lane's policy, and what it allowed; asked under the queue's lock. */
static uint32_t in_windows, against_reads, at_last;

static uint64_t watched(const struct sched *s, uint64_t now_ns)
{
	uint64_t room_bytes = sched_slack.room_bytes(s, now_ns);
	int patient = now_ns - s->writes[s->head].queued_ns < SCHED_WRITE_PATIENCE_NS;

	if (room_bytes && patient) {
		against_reads += s->reads_in_flight != 0;
		in_windows += s->next_read_ns != SCHED_NEVER && room_bytes != SCHED_NEVER;
		at_last += s->next_read_ns == SCHED_NEVER;
	}
	return room_bytes;
}

static const struct sched_policy policy = {.name = "slack, watched", .room_bytes = watched};

static struct tutti_plan *plan(const struct tutti_lease *l, const uint64_t *to)
{
	size_t bytes = tutti_plan_blob_bytes(N);
	void *blob = malloc(bytes);
	struct tutti_plan *p = NULL;

	CHECK_EQ(tutti_plan_blob(r.ns, l, 0, N, blob, bytes, &bytes), 0);
	CHECK_EQ(tutti_plan_open(r.lane[0], blob, bytes, to, N, &p), 0);
	free(blob);
	return p;
}

static void finish(struct tutti_plan *p, const struct tutti_lease *l)
{
	uint8_t done[8192];
	size_t bytes, bad;

	CHECK_EQ(tutti_plan_finish(p, rig_now() + LEASE_NS, done, sizeof(done), &bytes), 0);
	CHECK_EQ(tutti_complete(r.ns, done, bytes, &bad), 0);
	CHECK_EQ(bad, 0);
	CHECK_EQ(tutti_release(r.ns, l), 0);
}

static void stores_use_what_compute_leaves(void)
{
	const struct timespec compute = {.tv_nsec = COMPUTE_NS};
	struct tutti_key have[N], fresh[N];
	struct tutti_lease in, out;
	struct tutti_plan *get, *put;
	size_t stored, hit, first;

	for (uint32_t i = 0; i < 2 * N; i++)
		blocks[i] = i;
	rig_up(&r, &shape);
	rig_keys(&r, 1, N, have);
	rig_keys(&r, 2, N, fresh);
	CHECK_EQ(rig_store(&r, have, N, blocks, &stored), 0);
	for (uint32_t i = 0; i < N; i++)
		rig_fill(&r, 0, blocks[N + i], &fresh[i]);
	CHECK_EQ(tutti_lookup(r.ns, have, N, LEASE_NS, &hit, &in), 0);
	CHECK_EQ(tutti_reserve(r.ns, NULL, fresh, N, LEASE_NS, &first, &stored, &out), 0);
	CHECK(hit == N && stored == N);
	get = plan(&in, blocks);
	put = plan(&out, blocks + N);
	r.lane[0]->writes.sched.policy = &policy; /* nothing is in flight */
	for (uint32_t l = 0; l < LAYERS; l++) {
		CHECK_EQ(tutti_retrieve_layer(get, l), 0);
		CHECK_EQ(tutti_store_layer(put, l), 0); /* of another request: it waits for this one's compute */
		CHECK_EQ(tutti_wait_layer(get, l, rig_now() + LEASE_NS), 0);
		nanosleep(&compute, NULL); /* stands for the layer's compute */
	}
	finish(get, &in);
	finish(put, &out);
	printf("# asked: %u times a window was open, %u times at the end\n", in_windows, at_last);
	CHECK_EQ(against_reads, 0);
	CHECK(in_windows > 0);
	CHECK_EQ(rig_retrieve(&r, fresh, N, blocks, 0, &hit, &first), 0);
	CHECK(hit == N && first == 0);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &fresh[i]), 0);
	rig_down(&r);
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(stores_use_what_compute_leaves);
	scratch_end();
	return check_end();
}
