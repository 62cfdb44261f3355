/* gpu_lab.h - what tests of the GPU, or of what takes its place, share: chains of N blocks, plans, what is held. */
#ifndef TUTTI_TEST_EXEC_GPU_LAB_H
#define TUTTI_TEST_EXEC_GPU_LAB_H

#include <dirent.h>
#include <errno.h>

#include "check.h"
#include "core/rig.h"
#include "exec/exec.h"

#define GPU_LAB_N 37
#define GPU_LAB_WAIT_NS 10000000000ull
#define GPU_LAB_LEASE_NS 60000000000ull

static inline void gpu_lab_need(void)
{
	if (!exec_cuda())
		CHECK_SKIP("this build has no CUDA (make cuda)");
	if (!rig_gpu())
		CHECK_SKIP("no GPU on this machine");
}

static inline void gpu_lab_scatter(uint64_t *blocks, uint64_t of, uint64_t seed)
{
	for (uint64_t i = 0; i < GPU_LAB_N; i++)
		blocks[i] = (i * 7 + seed * 11) % of;
}

static inline struct tutti_plan *gpu_lab_plan(struct rig *r, enum tutti_op op, const struct tutti_key *keys,
                                              const uint64_t *blocks, struct tutti_lease *lease)
{
	size_t n = 0, first = 0, bytes = tutti_plan_blob_bytes(GPU_LAB_N);
	void *blob = malloc(bytes);
	struct tutti_plan *p;

	if (op == TUTTI_RETRIEVE)
		CHECK_EQ(tutti_lookup(r->ns, keys, GPU_LAB_N, GPU_LAB_LEASE_NS, &n, lease), 0);
	else
		CHECK_EQ(tutti_reserve(r->ns, NULL, keys, GPU_LAB_N, GPU_LAB_LEASE_NS, &first, &n, lease), 0);
	CHECK_EQ(n, GPU_LAB_N);
	CHECK_EQ(tutti_plan_blob(r->ns, lease, 0, n, blob, bytes, &bytes), 0);
	CHECK_EQ(tutti_plan_open(r->lane[0], blob, bytes, blocks, n, &p), 0);
	free(blob);
	return p;
}

/* Ends a plan. Returns how many of its blocks were lost. */
static inline size_t gpu_lab_end(struct rig *r, struct tutti_plan *p, const struct tutti_lease *lease)
{
	size_t bytes = tutti_completion_blob_bytes(GPU_LAB_N), bad = 0;
	void *done = malloc(bytes);

	CHECK_EQ(tutti_plan_finish(p, rig_now() + GPU_LAB_WAIT_NS, done, bytes, &bytes), 0);
	CHECK_EQ(tutti_complete(r->ns, done, bytes, &bad), 0);
	CHECK_EQ(tutti_release(r->ns, lease), 0);
	free(done);
	return bad;
}

static inline int gpu_lab_entries(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	CHECK(d != NULL);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#endif
