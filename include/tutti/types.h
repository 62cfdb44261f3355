/*
 * types.h - plain data of libtutti: options, geometry, tokens that travel between processes.
 *
 * Every option struct begins with its own size; set it with the matching TUTTI_..._INIT. So a program and the library
 * may come from different versions: fields are only ever added at the end, and 0 means what was before them. Of a
 * struct that is smaller than the library's, the rest counts as 0; a larger one is taken if all that the library does
 * not know is 0, else the call returns -E2BIG; a size that can't be one is -EINVAL. What the library fills is bounded
 * by the caller's size likewise. Structs without either (keys, leases, timings) never change.
 *
 * All sizes are bytes, all times nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef TUTTI_TYPES_H
#define TUTTI_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_KEY_BYTES 32
#define TUTTI_DEVICES_MAX 16
#define TUTTI_RANKS_MAX 16

/* Chained digest of a block: namespace, parent key, token ids, extra keys. All zeros: no key (the parent of a first
 * block). */
struct tutti_key {
	uint8_t b[TUTTI_KEY_BYTES];
};

/*
 * The engine's KV memory of one rank. Byte address of segment (o, i) of `block` in `layer`:
 *
 *     layer_base[layer] + block * block_stride + o * outer_stride + i * inner_stride
 *
 * and segment_bytes bytes from there. Examples, with page = bytes of a block in a layer:
 *   K and V split (2, blocks, ...): outer_count 2, outer_stride = blocks * page / 2, inner_count 1, segment = page / 2
 *   fused (blocks, ...):            outer_count 1, inner_count 1, segment_bytes = page
 *   heads outermost (2, heads, blocks, ...): outer_count 2, inner_count heads
 *   k kernel blocks in one manager block:    the innermost pair has count k
 * Segments that touch in memory are merged into one object before anything else is decided.
 */
struct tutti_kv_layout {
	uint32_t size;
	uint32_t layers;
	uint64_t blocks;          /* block numbers are below this */
	void *const *layer_base;  /* layers pointers */
	uint64_t block_stride;
	uint32_t outer_count;
	uint32_t inner_count;
	uint64_t outer_stride;
	uint64_t inner_stride;
	uint64_t segment_bytes;
};
#define TUTTI_KV_LAYOUT_INIT {.size = sizeof(struct tutti_kv_layout), .outer_count = 1, .inner_count = 1}

/*
 * Everything that changes what a block's bytes mean. Every field must be set: an unknown fact is an error, never
 * a default. Strings are UTF-8, at most 255 bytes. weights is a digest of the weights' content, never of names.
 */
struct tutti_ns_spec {
	uint32_t size;
	const char *model;             /* "meta-llama/Meta-Llama-3-8B" */
	uint8_t weights[TUTTI_KEY_BYTES];
	const char *kv_dtype;          /* "bfloat16" */
	const char *backend;           /* attention backend, and ISA where it matters: "flash-attn-3", "cpu-avx512" */
	uint32_t block_tokens;
	uint32_t layers;
	uint32_t kv_heads;             /* of the whole model, all ranks together */
	uint32_t head_size;
	uint32_t tp_size;              /* must equal the pool's ranks */
	uint32_t objects_per_layer;    /* after merging; see tutti_kv_layout_objects */
	uint64_t object_bytes;         /* of one rank */
	uint8_t layout[TUTTI_KEY_BYTES]; /* fingerprint of the order of bytes: tutti_kv_layout_objects fills it */
};
#define TUTTI_NS_SPEC_INIT {.size = sizeof(struct tutti_ns_spec)}

/* Facts of one block that are not its tokens. Empty (all zero) for most. Full digests, never names. */
struct tutti_extra {
	const uint8_t *bytes; /* canonical, length-prefixed by tutti_keys */
	uint32_t n_bytes;
};

/* What one lookup or reservation holds. Travels between processes; release is idempotent. */
struct tutti_lease {
	uint64_t epoch;      /* of the store that gave it */
	uint64_t id;         /* 0: holds nothing */
	uint64_t expiry_ns;
};

enum tutti_op { TUTTI_RETRIEVE = 1, TUTTI_STORE = 2 };

/* Which controller answers a lane's queues. */
enum tutti_controller { TUTTI_CTRL_AUTO = 0, TUTTI_CTRL_VIRT = 1, TUTTI_CTRL_MODEL = 2, TUTTI_CTRL_NULL = 3 };

/* Who runs the I/O kernels. AUTO: the GPU when the registered KV memory is the GPU's, else host threads. */
enum tutti_executor { TUTTI_EXEC_AUTO = 0, TUTTI_EXEC_HOST = 1, TUTTI_EXEC_CUDA = 2 };

/* Timing of the model controller. 0 is unlimited. */
struct tutti_model_timing {
	uint64_t read_bytes_per_s;
	uint64_t write_bytes_per_s;
	uint64_t read_latency_ns;
	uint64_t write_latency_ns;
	uint32_t queue_depth;
	uint32_t mixed_percent; /* of each bandwidth that is left while reads and writes overlap; 0: 100 */
};

enum tutti_prewrite {
	TUTTI_PREWRITE_SEGMENT = 0, /* in the background, ahead of use */
	TUTTI_PREWRITE_ALL = 1,     /* at format: slowest format, fastest first writes */
	TUTTI_PREWRITE_NONE = 2,    /* sparse; for metadata tests. Space is then not reserved */
};

/* Progress of a long call; done and total in `unit`. Called at most some times a second, from the calling thread. */
typedef void (*tutti_progress_fn)(void *arg, const char *what, uint64_t done, uint64_t total);

struct tutti_format_opts {
	uint32_t size;
	/* Files (created), block devices, or namespaces of NVMe drives (nvme:0000:01:00.0/1); stripe sets go round
	 * robin. */
	const char *const *paths;
	uint32_t n_paths;
	uint32_t ranks;               /* shares of each slot: tensor-parallel size; default 1 */
	uint64_t bytes;               /* the cap: total over all paths. Block devices: 0 takes all */
	uint64_t segment_bytes;       /* 0: chosen */
	enum tutti_prewrite prewrite;
	int overwrite;                /* 1: an existing pool or other content may be overwritten */
	tutti_progress_fn progress;
	void *progress_arg;
	const char *erase_serial;     /* NVMe drives (nvme:...): their serials, separated by commas; else untouched */
};
#define TUTTI_FORMAT_OPTS_INIT {.size = sizeof(struct tutti_format_opts), .ranks = 1}

struct tutti_store_opts {
	uint32_t size;
	const char *const *paths;     /* the first is enough if all names still hold; else all, in order */
	uint32_t n_paths;
	enum tutti_controller controller;
	struct tutti_model_timing timing;
	uint64_t sync_interval_ns;    /* background tutti_store_sync after a commit; 0: 1 s; UINT64_MAX: never */
	uint64_t lock_wait_ns;        /* how long to wait for lanes of an older opener; 0: 5 s */
	int prewrite_ahead;           /* segments to prewrite ahead of use; 0: 1; -1: none */
	tutti_progress_fn progress;
	void *progress_arg;
};
#define TUTTI_STORE_OPTS_INIT {.size = sizeof(struct tutti_store_opts)}

struct tutti_lane_opts {
	uint32_t size;
	const char *const *paths;     /* as in tutti_store_opts */
	uint32_t n_paths;
	uint32_t rank;
	enum tutti_controller controller;
	struct tutti_model_timing timing;
	uint32_t sms;                 /* executor blocks that serve reads, and as many for writes; 0: 1 */
	uint32_t queue_depth;         /* commands in flight a block; 0: 64 */
	uint64_t bounce_bytes;        /* bound of bounce buffers; 0: 16 MiB, 64 on a GPU */
	uint64_t deadline_ns;         /* of one kernel's I/O; 0: 30 s */
	uint32_t store_queue_layers;  /* bound of queued layer stores; 0: 4096 */
	int no_verify;                /* 1: checksums are not compared on retrieve. Refused for what was not synced */
	int no_sgl;                   /* 1: use PRP lists */
	enum tutti_executor executor;
	/*
	 * GPU: 1: kernels of one warp a block, with little shared memory, on no SMs of their own. For engines that keep
	 * all SMs for compute: they start beside a running matrix product, where the usual kernel waits for its end.
	 * Each moves less, so sms (warps then) is best 8 to 16, and queue_depth 16, which keeps them small.
	 */
	int small_kernels;
	uint32_t rsvd; /* 0 */
};
#define TUTTI_LANE_OPTS_INIT {.size = sizeof(struct tutti_lane_opts)}

/* Of a count: it can't be had, from where the caller stands (tutti_pool_look). */
#define TUTTI_UNKNOWN UINT64_MAX

struct tutti_ns_info {
	char model[256];
	uint8_t digest[TUTTI_KEY_BYTES];
	uint64_t generation;
	uint32_t layers, objects_per_layer, block_tokens, kv_heads, head_size, tp_size;
	uint64_t object_bytes;
	uint32_t set_slots;        /* G */
	uint64_t slot_bytes;       /* of one rank's share, header included */
	uint64_t segments, slots, committed, reserved, leased;
	uint64_t evicted;          /* since open */
};

struct tutti_pool_info {
	uint8_t uuid[16];
	uint32_t version;
	uint32_t ranks, n_devices;
	uint64_t bytes;            /* the cap */
	uint64_t segment_bytes;    /* all ranks and devices together */
	uint64_t segments, segments_free, segments_prewritten;
	uint64_t epoch;
	int clean;                 /* closed cleanly the last time; -1: not known (tutti_pool_look) */
	uint32_t n_namespaces;
	uint64_t index_bytes;      /* RAM held by the index */
	uint64_t recovered_slots, recovered_orphans, recovered_bad; /* of the last open */
	uint64_t damaged_records; /* at the last open: of namespaces and segments, lost with all their blocks; each
	                           * open says so again, until tutti_store_repair */
	uint64_t failed_syncs;    /* since it was opened; what they covered counts as unsynced until verified */
	int sync_failing;      /* 1: the last one failed; it is tried again at growing intervals, a minute at most.
	                        * -1: not known */
	/* At the last open: superblocks and records of which one copy was damaged (by the medium, or torn by a crash).
	 * Nothing was lost: the other copy counts, and was written over it. UINT32_MAX: not known. */
	uint32_t healed_copies;
	/* Since it was opened, of drives that know Dataset Management: segments that a clear left and the drive was
	 * told to forget, and those where that failed (which costs nothing but the drive's wear). */
	uint64_t deallocated_segments, failed_deallocations;
};

/* Counters of a lane since it was opened; a snapshot. */
struct tutti_lane_stats {
	uint64_t commands, objects, bytes_read, bytes_written;
	uint64_t direct_bytes, bounced_bytes;   /* moved without / with a copy of ours */
	uint64_t checksum_bytes, checksum_ns;   /* CPU time, for all by one command in eight; not of a GPU's movers */
	uint64_t failed_objects, failed_blocks, retries;
	uint64_t layers_retrieved, layers_stored, stores_dropped;
	uint64_t ctrl_syscalls, ctrl_parks, ctrl_fixed_ios;
};

/* What a lane's path is; for reports. */
struct tutti_lane_info {
	char controller[40];
	char executor[40];
	uint32_t sms, queue_depth, mdts_bytes, lba_bytes, mem_align_bytes;
	int direct_io;       /* O_DIRECT */
	int zero_copy;       /* of the registered KV memory */
	int registered;      /* KV memory is registered with the kernel */
	int sgl;
	char why[160];       /* what makes it slower than it could be; empty: nothing */
	uint64_t
	    accel_bytes; /* of the accelerator's memory that this lane holds, beyond the registered KV; its driver's
	                       * own needs are not in it */
};

#ifdef __cplusplus
}
#endif
#endif
