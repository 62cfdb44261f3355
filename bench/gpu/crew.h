/*
 * crew.h - threads of the baselines. Each has a stream, two halves of pinned buffers, and a flag per layer (pinned),
 * which its stream raises when its share of the layer has landed; a compute stream waits for the flags of all.
 */
#ifndef TUTTI_BENCH_GPU_CREW_H
#define TUTTI_BENCH_GPU_CREW_H

#include "bench/gpu/gpu.h"

#define CREW_PIECES 2048u /* of a batch of copies */

struct crew_worker {
	uint32_t index, n;  /* of n */
	cudaStream_t stream;
	uint8_t *buffer[2]; /* pinned, half_bytes each */
	uint64_t half_bytes;
	cudaEvent_t copied[2];
	/* A batch being collected: pinned arrays. */
	void **dst;
	const void **src;
	size_t *sizes;
	size_t pieces;
};

struct crew_job {
	void (*work)(struct crew_worker *w, const struct crew_job *job);
	struct lab *lab;
	size_t n;
	int store, batched;
};

/* workers threads with 2 x half_bytes of buffers each. */
void crew_open(uint32_t workers, uint64_t half_bytes);
void crew_close(void);
void crew_start(const struct crew_job *job);
/* The compute stream goes on when the layer has landed. */
void crew_wait(uint32_t layer, cudaStream_t compute);
/* The caller goes on when it has. */
void crew_wait_here(uint32_t layer);
/* All threads are done, and their streams. */
void crew_join(void);
/* By a worker: behind all that its stream holds, its share of the layer has landed. */
void crew_landed(struct crew_worker *w, uint32_t layer);
/* One more piece for the batch; crew_flush sends what was collected: in one call, or one call a piece. */
void crew_piece(struct crew_worker *w, void *dst, const void *src, size_t bytes, int batched);
void crew_flush(struct crew_worker *w);

#endif
