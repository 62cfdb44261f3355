/*
 * tutti.h - a pool of KV cache on SSDs that keeps and gives back.
 *
 * In reading order. An engine has two sides. Its scheduler process opens the *store* (index, allocation,
 * eviction, recovery: no data passes here). Its worker processes open a *lane* each (the data path of one rank).
 * What the store decides travels to the lane as a plan blob, what the lane did travels back as a completion blob:
 * plain bytes, which the engine carries in its own messages.
 *
 *   store                                    lane
 *   tutti_format (once)
 *   tutti_store_open, tutti_ns_open          tutti_lane_open, tutti_lane_register
 *   tutti_keys
 *   tutti_lookup  -> plan blob ------------> tutti_plan_open(blob, blocks)
 *                                            tutti_retrieve, or tutti_retrieve_layer per layer
 *                                            tutti_wait_layer before each layer's compute
 *   tutti_complete <------ completion blob - tutti_plan_finish
 *   tutti_reserve -> plan blob ------------> tutti_plan_open, tutti_store_layer after each layer's compute
 *   tutti_complete <------ completion blob - tutti_plan_finish
 *
 * Results: 0; a negative errno; or a positive NVMe status (SCT << 8 | SC). Counts are out-parameters.
 * tutti_strerror names any of them; tutti_error_message says what, where, why and what to do for the calling
 * thread's last failure.
 *
 * Calls that fill a struct have a second form, ..._sized, which is told how many bytes the caller's has and never
 * writes beyond them; the plain form calls it with those of this header.
 *
 * Threads. What has no handle (sections 1 and 2, tutti_format, tutti_completion_result, sizes): any thread, at once.
 * A store and its namespaces: any threads, at once; calls are serialised inside. A lane and its plans: one thread at a
 * time, whichever; but at once with those and with each other, from any thread, may run tutti_wait_layer,
 * tutti_wait_layer_stream and tutti_plan_failed (of layers issued before, until tutti_plan_finish is called) and
 * tutti_lane_stats and tutti_lane_pace (until tutti_lane_close is). tutti_move counts as a call of both. Different
 * lanes are independent. With tutti_store_close, tutti_ns_remove, tutti_plan_finish and tutti_lane_close no other call
 * on the same handle, or on what hangs on it, may be running; afterwards it is gone. Callbacks (progress, log,
 * tutti_block_fn) run in the calling thread, warnings of the store's background work in a thread of the library; none
 * may call back.
 *
 * Fork. What was opened before a fork is the parent's: its threads are not in the child. There every call on it, of
 * gio_uring.h too, says so (-EINVAL, and a message) and does nothing, so destructors may run; the memory is gone with
 * the child. The child has none of the library's descriptors: fork closes them there, so it holds neither the pool nor
 * its space, however long it lives (a drive it does, until it ends or calls exec). For that, fork waits for other
 * threads' opens and closes, 5 s at most. Memory of the application's that is registered with a lane and pinned for I/O
 * a fork copies at once: with much of it, tell the kernel that children don't get it (madvise, MADV_DONTFORK). What
 * makes a process without fork's handlers (_Fork, clone) leaves the descriptors, and the pool is held if its opener
 * dies before it closes. An opener that comes in the moment between a fork and its child's first step, and finds the
 * parent gone, waits for the child, 0.2 s at most. The child may open pools of its own.
 *
 * Ownership: what a call is given stays the caller's and is read during the call alone, but for the memory of
 * tutti_lane_register. Times are CLOCK_MONOTONIC in ns; sizes are bytes. -ENOMEM may come from any call that opens,
 * makes or sends something; an error of the disk is that of the call that met it: -EIO or an NVMe status.
 */
#ifndef TUTTI_H
#define TUTTI_H

#include <tutti/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

struct tutti_store;
struct tutti_ns;
struct tutti_lane;
struct tutti_plan;

/* ---- 1. words ---- */

/* "0.1.0", of the library that runs. */
const char *tutti_version(void);
/* A name for any result of this library. Static; never NULL. */
const char *tutti_strerror(int result);
/* What went wrong in the calling thread's last failing call, where, why and what to do. Valid until its next call. */
const char *tutti_error_message(void);
/* Receives warnings (level 1) and notes (level 2). Default: none. fn NULL: none. Set before any other call. */
void tutti_set_log(void (*fn)(void *arg, int level, const char *message), void *arg);

/* ---- 2. identity ---- */

/*
 * Merges segments that touch in memory; writes the number and size of objects of a (block, layer) and the fingerprint
 * of their order into spec (objects_per_layer, object_bytes, layout, layers). Does not look at the memory.
 * -EINVAL: zero, overflowing or overlapping strides.
 */
int tutti_kv_layout_objects(const struct tutti_kv_layout *layout, struct tutti_ns_spec *spec);

/* Digest of the namespace's canonical record. -EINVAL: a field is unset or too long; the message names it. */
int tutti_ns_digest(const struct tutti_ns_spec *spec, struct tutti_key *digest);

/*
 * Keys of n_blocks consecutive whole blocks: tokens has n_blocks * block_tokens ids. parent: key of the block before
 * the first, NULL or zeros at the start. extra: NULL, or one per block. The same in every process. No allocation.
 * -EINVAL: block_tokens 0.
 */
int tutti_keys(const struct tutti_key *ns_digest, const struct tutti_key *parent, const uint32_t *tokens,
               uint32_t block_tokens, const struct tutti_extra *extra, size_t n_blocks, struct tutti_key *keys);

/* ---- 3. the pool ---- */

/*
 * Creates a pool. Reserves opts->bytes in full; the pool never grows past it. Files are created with mode 0600. With
 * overwrite, what was there is lost only when all is ready: a format that fails before its first write loses nothing.
 * -EEXIST: content is there and overwrite is 0 (nothing was touched). -ENOSPC: the space is not there (what was
 * created is removed). -EBUSY: a store or lane has it open. -EINVAL: too small, bad ranks, a device under two names.
 * -EISDIR, -ENOTBLK: a path is neither a file nor a block device. -ENODEV: there is no such device (a drive, or below
 * /dev, where no file is made). -ENOMEDIUM: a block device of 0 bytes. -EPERM: a drive whose serial was not named.
 */
int tutti_format(const struct tutti_format_opts *opts);

/*
 * Opens a pool for its one store. Recovers if it was not closed cleanly: reads all headers, with progress.
 * -EBUSY: another store has it (named by pid and host), or lanes of an earlier one are still at work. -ENOENT: there is
 * no such file. -ENODEV: there is no such device, or a device of the pool is missing, truncated or another pool's.
 * -ENOMEDIUM: what is there holds no pool. -EBADMSG: no sound superblock. -EPROTONOSUPPORT: of another version.
 * -EINVAL: a device under two names. -EACCES, -EPERM: not allowed.
 */
int tutti_store_open(const struct tutti_store_opts *opts, struct tutti_store **out);
/*
 * Writes the index checkpoint and closes. Leases and reservations end. The store, its namespaces too, is freed in every
 * case; an error (of the disk) means that the next open reads all headers. NULL: 0.
 */
int tutti_store_close(struct tutti_store *s);
/*
 * Makes everything committed so far survive a power loss. Does not block other calls while it flushes. What the flush
 * ended with: then what it covered counts as unsynced until tutti_verify, and a later sync is tried by itself.
 */
int tutti_store_sync(struct tutti_store *s);
/* What the pool is and holds. -EINVAL: NULL. */
int tutti_store_info_sized(struct tutti_store *s, struct tutti_pool_info *out, size_t bytes);
static inline int tutti_store_info(struct tutti_store *s, struct tutti_pool_info *out)
{
	return tutti_store_info_sized(s, out, sizeof(*out));
}

/*
 * Looks at a pool from outside, also while a store has it open: reads its superblock and its records of namespaces and
 * segments, as they are on the medium now. Takes no lock, writes no byte, mends nothing, holds up nobody. Calls fn once
 * and returns what it returns. What a pool's store alone knows is TUTTI_UNKNOWN, or -1 (`clean`, `sync_failing`): of
 * the pool what is in its index and what happened since it was opened; of a namespace how many blocks are committed,
 * reserved, leased, evicted. Counts of segments and slots are those of the records. Texts and structs live for the
 * call. Any thread. Errors as of tutti_store_open, but that a store or lanes at work are none; of opts only the paths
 * count. -EBUSY: a drive, which one process alone can reach.
 */
struct tutti_pool_look {
	const struct tutti_pool_info *pool;
	const struct tutti_ns_info *ns; /* pool->n_namespaces */
	int held;        /* 1: a store has it open, or a format is at work */
	int32_t pid;     /* which process opened it; 0: nobody has it, or it is just being opened */
	const char *host; /* where that runs; "": not known, as long as it is being opened */
	int32_t lane_pid; /* a process with a lane on it; 0: there is none */
};
typedef int (*tutti_pool_look_fn)(void *arg, const struct tutti_pool_look *look);
int tutti_pool_look(const struct tutti_store_opts *opts, tutti_pool_look_fn fn, void *arg);

/*
 * Opens a namespace, making it on first use. *out is owned by the store and lives as long.
 * -EINVAL: spec (message names the field), tp_size differs from the pool's ranks, or a slot does not fit a segment.
 * -ENOSPC: namespace table full. -EBADMSG: the record on disk is not the one of this digest.
 */
int tutti_ns_open(struct tutti_store *s, const struct tutti_ns_spec *spec, struct tutti_ns **out);
/* The i-th namespace of the pool, the store's; those behind one that is removed move up. -ENOENT: no such i. */
int tutti_ns_at(struct tutti_store *s, uint32_t i, struct tutti_ns **out);
int tutti_ns_get_info_sized(struct tutti_ns *ns, struct tutti_ns_info *out, size_t bytes);
static inline int tutti_ns_get_info(struct tutti_ns *ns, struct tutti_ns_info *out)
{
	return tutti_ns_get_info_sized(ns, out, sizeof(*out));
}
/* Empties it at once (durably); space comes back as it is needed. -EBUSY: leases or reservations are out. */
int tutti_ns_clear(struct tutti_ns *ns);
/*
 * Empties it and takes it out of the pool's table (which has room for 64), durably; ns is then gone, and no other call
 * may be using it. Lanes that have it open find nothing more in it. Errors as of tutti_ns_clear.
 */
int tutti_ns_remove(struct tutti_ns *ns);
/*
 * Calls fn for each committed block, in no order, until it returns non-zero (which is returned). fn must not call back,
 * and everyone else waits for it. Keys live for the call; parent: zeros at a chain's start.
 */
typedef int (*tutti_block_fn)(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                              uint32_t slot);
int tutti_ns_each(struct tutti_ns *ns, tutti_block_fn fn, void *arg);

/* ---- 4. decisions: what is there, where to put ---- */

/*
 * *matched = length of the longest prefix of keys that is committed. If lease is not NULL and *matched > 0, the
 * prefix is held against eviction until released or expired (lease_ns from now). keys must be a chain. A miss is 0 with
 * *matched 0; then lease holds nothing, which may be released. No I/O begins in the last 2.6 s of a lease: what is
 * shorter is for looking only. Does not touch the disk. -EAGAIN: 4096 leases and reservations are out.
 */
int tutti_lookup(struct tutti_ns *ns, const struct tutti_key *keys, size_t n, uint64_t lease_ns, size_t *matched,
                 struct tutti_lease *lease);

/*
 * Takes slots for keys[first..first + count): *first is the number of leading keys that are there already. Evicts this
 * namespace's least recently used leaves, or takes a cold segment of another namespace, when there is no free slot;
 * never grows. count may be smaller than asked (a key is being written by someone else, or nothing can be evicted).
 * parent: key before keys[0], NULL at a chain's start; it must be committed or reserved. The slots stay invisible until
 * tutti_complete. -ENOENT: parent unknown. -ENOSPC: not one slot can be had. -EAGAIN: too many reservations.
 */
int tutti_reserve(struct tutti_ns *ns, const struct tutti_key *parent, const struct tutti_key *keys, size_t n,
                  uint64_t lease_ns, size_t *first, size_t *count, struct tutti_lease *reservation);

/*
 * The plan of a lease (TUTTI_RETRIEVE, keys[first..first + count)) or of a reservation (TUTTI_STORE), as bytes for a
 * lane. bytes_max >= tutti_plan_blob_bytes(count). -ESTALE: the lease is gone. -ENOBUFS: buffer too small.
 */
size_t tutti_plan_blob_bytes(size_t n_blocks);
int tutti_plan_blob(struct tutti_ns *ns, const struct tutti_lease *lease, size_t first, size_t count, void *blob,
                    size_t bytes_max, size_t *bytes);

/*
 * A lane's completion blob. Of a store: publishes its keys once all ranks' blobs are in and their parents are
 * published; blocks that failed, and their descendants, are released. Of a retrieve: blocks that failed their checksum
 * are dropped from the index. *bad (may be NULL) counts the blocks that failed, for whatever reason and whoever dropped
 * them: where it is not 0, memory of some of the plan's blocks is wrong (tutti_plan_failed says which). The same blob
 * once more changes nothing and returns 0 again. -EBADMSG: not a completion blob. -ESTALE: of an older epoch, or the
 * reservation ended in another way before (released, expired).
 */
int tutti_complete(struct tutti_ns *ns, const void *blob, size_t bytes, size_t *bad);
/* Why the first block that failed did, of a completion blob; 0: none failed. -EBADMSG: also of what is no such blob. */
int tutti_completion_result(const void *blob, size_t bytes);
/* Ends a lease or reservation. Idempotent: an unknown one, of an older epoch too, is fine. Slots of a reservation that
 * a lane may still write come back after its expiry. */
int tutti_release(struct tutti_ns *ns, const struct tutti_lease *lease);
/* Ends a reservation whose plan never reached a lane: its slots are free at once. */
int tutti_cancel(struct tutti_ns *ns, const struct tutti_lease *reservation);

/* ---- 5. the data path ---- */

/*
 * -ENOENT: the pool has no such namespace (open it on the store first), or there is no such file; the message says
 * which. -EBUSY, -EBADMSG, -ENODEV, -ENOMEDIUM as for the store.
 */
int tutti_lane_open(const struct tutti_lane_opts *opts, const struct tutti_key *ns_digest, struct tutti_lane **out);
/*
 * Waits for I/O in flight to its deadline. -EBUSY: plans are open (of a lane that is not dead); nothing was done.
 * -ENOTRECOVERABLE: something may still write; the lane and its registered memory stay as they are. NULL: 0.
 */
int tutti_lane_close(struct tutti_lane *l);
/*
 * Registers the engine's KV memory. Once. All of it must stay mapped, readable and writable, until the lane is closed:
 * the library's threads copy into it and sum what is there. Nobody tells the library of an munmap, and to ask before
 * each access would race with it. So what is gone faults in such a thread, as it would in the caller's own (SIGSEGV);
 * what is mapped there anew, by whomever, may be written.
 * Where base, strides or sizes miss the controller's alignment the lane copies through bounded bounce buffers and
 * tutti_lane_get_info says so. Host memory of 2 MiB or more is asked to be in huge pages (madvise; contents stay),
 * which halves the kernel's work for a transfer: those not touched before come so.
 * -EINVAL: layout does not give the namespace's objects, or memory of the other executor's kind. -EEXIST: registered
 * already.
 */
int tutti_lane_register(struct tutti_lane *l, const struct tutti_kv_layout *layout);
int tutti_lane_get_info_sized(struct tutti_lane *l, struct tutti_lane_info *out, size_t bytes);
static inline int tutti_lane_get_info(struct tutti_lane *l, struct tutti_lane_info *out)
{
	return tutti_lane_get_info_sized(l, out, sizeof(*out));
}
/*
 * How much of the link between GPU and host memory retrieves (or stores) take that begin from now on. Not gentle, as a
 * lane begins: all of it, for a request that waits. Gentle: half of it and more, for others' sake: what waits for the
 * link is in the way of all of the GPU's memory traffic, so decoding beside a gentle retrieve loses a fifth of what it
 * loses beside another (figures: docs/performance.md). Nothing to executors on the host. Any thread. -EINVAL: op.
 */
int tutti_lane_pace(struct tutti_lane *l, enum tutti_op op, int gentle);
int tutti_lane_stats_sized(struct tutti_lane *l, struct tutti_lane_stats *out, size_t bytes);
static inline int tutti_lane_stats(struct tutti_lane *l, struct tutti_lane_stats *out)
{
	return tutti_lane_stats_sized(l, out, sizeof(*out));
}

/*
 * Takes a plan blob and the engine's block number of each of its blocks. Nothing is read or written yet.
 * -EBADMSG: blob damaged. -ESTALE: other epoch, or expired. -EINVAL: a block number out of range, or twice in a
 * retrieve. -EAGAIN: too many plans. -EPERM: no_verify, and the plan holds blocks that were not synced.
 */
int tutti_plan_open(struct tutti_lane *l, const void *blob, size_t bytes, const uint64_t *blocks, size_t n_blocks,
                    struct tutti_plan **out);
/*
 * Issues all layers in one go (one kernel of up to 1023, layer after layer). -EINVAL: a store's plan, or a layer was
 * issued. -ESTALE: too late for the lease. -EAGAIN: queue full. After an error the leading layers may be issued and are
 * served all the same: issue the rest by tutti_retrieve_layer, or none (tutti_wait_layer refuses those, and a plan that
 * is finished without them says so of each block in its blob: -ECANCELED). A block that can't be read fails alone, at
 * its layer.
 */
int tutti_retrieve(struct tutti_plan *p);
/*
 * Issues one layer, each once, in any order; they are served in the order of the calls. Cost does not depend on the
 * number of blocks. -EINVAL: a store's plan, no such layer, or issued already. -ESTALE: too late for the lease.
 * -EAGAIN: queue full; nothing was issued, and the same call may be made again.
 */
int tutti_retrieve_layer(struct tutti_plan *p, uint32_t layer);
/*
 * Waits until layer's bytes are in the engine's memory and checked. 0: all blocks. -EBADMSG or another error: at least
 * one block failed, here or in a layer served before (tutti_plan_failed says which); the others are good. -ETIMEDOUT:
 * deadline_ns (absolute) passed. -EINVAL: the layer was not issued. -ENOTRECOVERABLE: the lane is dead. Any thread.
 */
int tutti_wait_layer(struct tutti_plan *p, uint32_t layer, uint64_t deadline_ns);
/*
 * The same on the GPU: `stream` (a CUstream or cudaStream_t) goes on when the layer is done; the caller does not wait.
 * In every outcome: ask tutti_wait_layer or tutti_plan_failed whether all blocks are good before the result is used.
 * Any thread. After tutti_plan_finish such waits remain satisfied. -ENOTSUP: the lane's executor is not the GPU, or its
 * driver has no stream memory operations. -EBUSY: the stream is being captured into a CUDA graph, which would wait for
 * nothing when it is launched again: call this between graphs. Both leave the stream as it was.
 */
int tutti_wait_layer_stream(struct tutti_plan *p, uint32_t layer, void *stream);
/*
 * Queues one layer's store; the engine must not change the blocks until tutti_plan_finish returned. Deferred while
 * reads are in flight. -EAGAIN: the bounded queue is full; the whole plan is dropped (nothing of it will be
 * published) and later calls return -ECANCELED. Layers may come in any order, each once.
 */
int tutti_store_layer(struct tutti_plan *p, uint32_t layer);
/*
 * The same on the GPU, called before the layer is computed to its end: the store begins when `stream` (a CUstream or
 * cudaStream_t) has done all that it holds now. The caller does not wait, nor does any thread; nor does an I/O kernel,
 * whose stream the GPU holds back. A stream that does not get there by the kernel's deadline fails the store. The lane
 * must not be closed before the stream has. -ENOTSUP (nothing is dropped): the lane's executor is not the GPU. -EBUSY:
 * the stream is being captured into a CUDA graph; this plan is dropped, as for any other failure.
 */
int tutti_store_layer_stream(struct tutti_plan *p, uint32_t layer, void *stream);
/*
 * Waits (to deadline_ns, absolute) for everything issued, writes the headers of a store whose layers are all there,
 * and fills the completion blob (NULL: not wanted). Frees the plan, but for three results: -ETIMEDOUT
 * and -ENOBUFS (bytes_max is below tutti_completion_blob_bytes), to be called again, and -ENOTRECOVERABLE (the lane is
 * dead: its memory may still be written). A store with a layer missing completes as dropped. 0 also when blocks
 * failed: the blob says so.
 */
size_t tutti_completion_blob_bytes(size_t n_blocks);
int tutti_plan_finish(struct tutti_plan *p, uint64_t deadline_ns, void *blob, size_t bytes_max, size_t *bytes);
/*
 * The whole of it in one call, for a program that holds both sides and has nothing to compute meanwhile: moves all n
 * blocks of a lease into the engine's blocks, or of a reservation out of them, waits, tells the store, releases. Errors
 * as of the calls above, and -EINVAL: n is not all of a reservation; after that, or one of tutti_plan_blob or
 * tutti_plan_open, the lease is still there. *bad (may be NULL): blocks that failed, as tutti_complete counts them; 0
 * is returned all the same. -EIO: some failed, and bad is NULL.
 */
int tutti_move(struct tutti_ns *ns, struct tutti_lane *l, const struct tutti_lease *lease, const uint64_t *blocks,
               size_t n, size_t *bad);
/* 1 if everything issued so far is done (finish would not wait long); 0 if not. Does not wait. */
int tutti_plan_poll(struct tutti_plan *p);
/* Result of block i of the plan so far: 0, or why it failed. */
int tutti_plan_failed(struct tutti_plan *p, size_t i);

/*
 * A stream for the engine's compute on the SMs that lanes of io_sms SMs leave (0: of the least SMs), so that I/O
 * kernels start at once however busy the GPU is: *stream is a CUstream, the caller's to destroy; *sms says on how many
 * it runs. Of the calling thread's current device, and before I/O is in flight: it may have to make the two domains
 * (green contexts), which lanes of that many SMs then use, and which the process keeps. priority as
 * cudaStreamCreateWithPriority has it, 0: the lowest. -ENOTSUP: no GPU, no CUDA in this build, or a driver without
 * green contexts.
 */
int tutti_compute_stream(uint32_t io_sms, int priority, void **stream, uint32_t *sms);

/* ---- 6. keeping it sound ---- */

/*
 * Reads and checks every committed block of a namespace through a lane of this process, by CPU threads. *bad counts
 * damaged blocks; with repair they leave the index and the disk, with those below them. Blocks found sound count as
 * synced after the next sync. An error says that blocks could not be read for a reason that is not theirs (a timeout);
 * *checked is then 0.
 */
int tutti_verify(struct tutti_ns *ns, int repair, tutti_progress_fn progress, void *arg, uint64_t *checked,
                 uint64_t *bad);

/*
 * Wipes what the open found damaged and what holds nothing any more: records of namespaces and segments that are lost,
 * headers that belong to no block; so that no later open finds them again. Nothing that can be read is touched. Reads
 * all headers; the store's other calls wait for a segment's at most. *wiped (may be NULL) counts. Any thread.
 */
int tutti_store_repair(struct tutti_store *s, uint64_t *wiped);

/*
 * What this machine can do for a pool at `path` (a folder, a file or a block device), and which path would be used:
 * calls fn once per line, until it returns non-zero (which is returned). Changes nothing; a file of a few KiB in the
 * folder is made, without a name or with one that goes at once, where it has to be tried. remedy is a command, "" where
 * nothing is to be mended. Texts live for the call. -ENOENT, -EACCES: path. -ENOTBLK: it is none of the three. -EINVAL:
 * NULL, or a drive.
 */
enum tutti_doctor_state { TUTTI_DOCTOR_OK = 0, TUTTI_DOCTOR_SLOWER = 1, TUTTI_DOCTOR_MISSING = 2 };
struct tutti_doctor_line {
	const char *name; /* "io_uring" */
	enum tutti_doctor_state state;
	const char *detail, *remedy;
};
typedef int (*tutti_doctor_fn)(void *arg, const struct tutti_doctor_line *line);
int tutti_doctor(const char *path, tutti_doctor_fn fn, void *arg);

/*
 * NVMe drives on the PCI bus. fn is called once per drive, until it returns non-zero (which is returned). What in_use
 * says keeps a drive from being claimed; model and serial are known only while the kernel's driver has it.
 */
struct tutti_nvme {
	char function[32]; /* "0000:01:00.0" */
	char driver[32];   /* "nvme", "vfio-pci", "tutti_nvme"; "": none */
	char model[64], serial[32];
	uint64_t bytes;    /* of all namespaces */
	uint32_t namespaces;
	int claimed;
	char in_use[160];
};
typedef int (*tutti_nvme_fn)(void *arg, const struct tutti_nvme *drive);
int tutti_nvme_list(tutti_nvme_fn fn, void *arg);
/* Who hands a claimed drive over: Linux's vfio-pci, or the project's own module (kmod/), which reaches GPU memory. */
enum tutti_nvme_driver { TUTTI_NVME_VFIO = 0, TUTTI_NVME_MODULE = 1 };
/*
 * Takes a drive from the kernel's driver; writes nothing to it. Needs root. -EPERM: serial is not its serial number;
 * -EBUSY: mounted, in md, lvm or swap, or partitioned; -EALREADY; -ENODEV; -EOPNOTSUPP: that module is not loaded.
 */
int tutti_nvme_claim(const char *function, const char *serial, enum tutti_nvme_driver by);
/*
 * Gives it back to the driver that had it, also after a crash, of a claim or a release too. -EBUSY: a process drives
 * it; -EALREADY: not claimed.
 */
int tutti_nvme_release(const char *function);

/* "4G", "512MiB", "1.38GiB", "64k" -> bytes: powers of 1024; what tutti_format_bytes writes is read. -EINVAL, -ERANGE.
 */
int tutti_parse_bytes(const char *text, uint64_t *bytes);
/* 4294967296 -> "4GiB"; two digits behind the point where it isn't whole. buf of at least 16 bytes; returns it. */
char *tutti_format_bytes(uint64_t bytes, char *buf);

#ifdef __cplusplus
}
#endif
#endif
