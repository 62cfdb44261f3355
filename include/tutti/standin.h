/*
 * standin.h - a stand-in for an engine: KV memory and "compute" whose bytes anyone can know. For programs that try a
 * pool, a machine or a path without an engine; `tutti bench`, `replay` and `demo` are made of it.
 *
 * What is computed for a block are bytes that depend on (key, layer, offset) alone, so every byte that comes back can
 * be checked. With the host's executor the memory is the host's and the calling thread computes. With the GPU's the
 * memory is the GPU's (HBM): waits, checks, compute and stores go into a CUDA stream in the order of the calls, and the
 * caller runs ahead, as an engine does; layer n + 1 loads while layer n computes. The calls are the same:
 *
 *   tutti_standin_open (before lanes), tutti_standin_memory, _executor (for the lanes' options)
 *   tutti_standin_worker_open                            one for each thread that works
 *   for each batch of blocks: tutti_standin_begin
 *       for each layer: tutti_standin_wait_layer, _check    of what a plan retrieves
 *                       tutti_standin_compute, _store_layer  of what is missing
 *       tutti_standin_end, then tutti_standin_wrong, tutti_standin_waited_ns
 *
 * Results as in tutti.h. A worker is used by one thread at a time; workers are independent.
 */
#ifndef TUTTI_STANDIN_H
#define TUTTI_STANDIN_H

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tutti_standin;
struct tutti_standin_worker;

/*
 * bytes of KV memory, zero; of the host (aligned to 2 MiB, mapped as it is touched) or of the calling thread's current
 * GPU. TUTTI_EXEC_AUTO: of the GPU if there is a usable one, else of the host; tutti_standin_executor says which.
 * io_sms: SMs of the lanes to come (tutti_lane_opts.sms), off which a GPU's compute keeps where its driver has green
 * contexts. A process that forks opens it afterwards: CUDA does not survive a fork.
 * TUTTI_EXEC_CUDA: -ENOSYS: a build without CUDA; -ENODEV: no GPU; -ENOTSUP: one that can't. -ENOMEM. -EINVAL: 0 bytes.
 */
int tutti_standin_open(enum tutti_executor executor, uint64_t bytes, uint32_t io_sms, struct tutti_standin **out);
/* After its workers, and after lanes that have the memory registered. */
void tutti_standin_close(struct tutti_standin *s);
/* TUTTI_EXEC_HOST or TUTTI_EXEC_CUDA. */
enum tutti_executor tutti_standin_executor(const struct tutti_standin *s);
/* The CPU must not touch it where the executor is the GPU. */
void *tutti_standin_memory(const struct tutti_standin *s);
/* "1GiB of GPU memory (NVIDIA H200, device 0)"; lives as long as s. */
const char *tutti_standin_describe(const struct tutti_standin *s);
/* Zeroes all memory; returns when it is done. */
int tutti_standin_clear(struct tutti_standin *s);

/*
 * layout: of the memory, as lanes have it; its layer_base stays the caller's and must live as long. blocks_max: of one
 * batch. -ENOMEM; -EINVAL: NULL, no layers or blocks.
 */
int tutti_standin_worker_open(struct tutti_standin *s, const struct tutti_kv_layout *layout, size_t blocks_max,
                              struct tutti_standin_worker **out);
/* NULL is fine. Waits for what is in its stream. */
void tutti_standin_worker_close(struct tutti_standin_worker *w);
/* "the calling thread", "a stream on 130 SMs, the I/O kernels on others", "a stream on all SMs". */
const char *tutti_standin_worker_describe(const struct tutti_standin_worker *w);

/* Begins a batch: block i of it is keys[i], in block blocks[i] of the memory. Both are copied. -EINVAL: n is 0 or above
 * blocks_max. After tutti_standin_end of the batch before. */
int tutti_standin_begin(struct tutti_standin_worker *w, const struct tutti_key *keys, const uint64_t *blocks, size_t n);
/* What follows waits for this layer of a plan: tutti_wait_layer on the host, tutti_wait_layer_stream on the GPU, each
 * with its results. deadline_ns: of the host's. */
int tutti_standin_wait_layer(struct tutti_standin_worker *w, struct tutti_plan *p, uint32_t layer,
                             uint64_t deadline_ns);
/* Compares this layer of the batch's blocks [first, first + n) with what they must hold. Nothing is said before
 * tutti_standin_end. */
int tutti_standin_check(struct tutti_standin_worker *w, uint32_t layer, size_t first, size_t n);
/* Writes this layer of those blocks. */
int tutti_standin_compute(struct tutti_standin_worker *w, uint32_t layer, size_t first, size_t n);
/* tutti_store_layer, behind what was computed: on the GPU tutti_store_layer_stream. */
int tutti_standin_store_layer(struct tutti_standin_worker *w, struct tutti_plan *p, uint32_t layer);
/* Waits until all of the batch is done. -ETIMEDOUT at deadline_ns (absolute): the memory is still in use. -EIO: the
 * GPU is in error. */
int tutti_standin_end(struct tutti_standin_worker *w, uint64_t deadline_ns);

/* Of an ended batch: how many bytes of block i differed when it was checked; a block whose retrieve failed
 * (tutti_plan_failed) may differ. *first (may be NULL): offset of the first of them, in the block's bytes, layer after
 * layer; UINT64_MAX: none. */
uint64_t tutti_standin_wrong(const struct tutti_standin_worker *w, size_t i, uint64_t *first);
/* How long the compute stood still in tutti_standin_wait_layer for this layer; 0: it was not waited for. */
uint64_t tutti_standin_waited_ns(const struct tutti_standin_worker *w, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
