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

/* Stores a chain, wipes the memory, retrieves it elsewhere, both ways; every byte of every rank. */
static inline void gpu_lab_round_trip(struct rig *r)
{
	struct tutti_key keys[GPU_LAB_N];
	uint64_t blocks[GPU_LAB_N];
	size_t stored, hit, bad;

	rig_keys(r, 1, GPU_LAB_N, keys);
	gpu_lab_scatter(blocks, r->shape.blocks, 1);
	CHECK_EQ(rig_store(r, keys, GPU_LAB_N, blocks, &stored), 0);
	CHECK_EQ(stored, GPU_LAB_N);
	for (int per_layer = 0; per_layer < 2; per_layer++) {
		for (uint32_t rank = 0; rank < r->shape.ranks; rank++)
			rig_wipe(r, rank);
		gpu_lab_scatter(blocks, r->shape.blocks, 3 + (uint64_t)per_layer);
		CHECK_EQ(rig_retrieve(r, keys, GPU_LAB_N, blocks, per_layer, &hit, &bad), 0);
		CHECK_EQ(hit, GPU_LAB_N);
		CHECK_EQ(bad, 0);
		for (uint32_t rank = 0; rank < r->shape.ranks; rank++)
			for (size_t i = 0; i < GPU_LAB_N; i++)
				CHECK_EQ(rig_wrong(r, rank, blocks[i], &keys[i]), 0);
	}
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
