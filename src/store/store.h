/*
 * store.h - the metadata of a pool: what is where, who holds it, what goes next. Pure CPU; no thread, no lock, no
 * data path. core serialises calls, carries blobs, and does the public checks.
 *
 * Layers, from below: media.h (I/O) - super.c (superblock), table.c (segment and namespace records), recover.c,
 * checkpoint.c, repair.c - index.c (hash table, chains, LRU), space.c (sets, free slots), hold.c, reserve.c (leases,
 * reservations) - store.c (this interface).
 */
#ifndef TUTTI_STORE_STORE_H
#define TUTTI_STORE_STORE_H

#include "geom/addr.h"
#include "store/media.h"
#include "tutti/types.h"

#define STORE_NAMESPACES_MAX 64u
#define STORE_LEASES_MAX 4096u /* leases and reservations out at once */
#define STORE_NS_RECORD_BYTES_MAX 3072u
#define STORE_HOST_BYTES 64

struct store;
struct store_ns; /* owned by the store */

/* ---- the pool ---- */

struct store_format_opts {
	const char *const *paths; /* recorded, one a device; "" allowed */
	uint32_t ranks;         /* divides n_dev: each rank has devices of its own; else all ranks share all devices */
	uint64_t bytes;         /* total over all devices; already checked against their capacity */
	uint64_t segment_bytes; /* 0: chosen */
	uint8_t uuid[16];
	int prewritten; /* 1: the caller wrote the whole space: segments are born prewritten */
};

/*
 * Writes superblocks, empty tables. The superblock of device 0 is written and flushed last: an interrupted format
 * leaves no pool. -EINVAL: too small or too large, ranks, segment_bytes.
 */
int store_format(const struct store_media *m, const struct store_format_opts *o);
/* Would it, on a medium of so many devices of such sizes? Moves nothing: m's functions may be missing. */
int store_format_check(const struct store_media *m, const struct store_format_opts *o);

/* What a superblock says, before or without opening: read by lanes, doctor, and for the error of a second opener. */
struct store_probe {
	uint8_t uuid[16];
	uint32_t version, ranks, n_dev, device; /* device: number of the device that was probed */
	uint64_t bytes, device_bytes, chunk_bytes, epoch;
	uint32_t n_segments;
	int clean;
	int32_t owner_pid; /* of the last opener */
	char owner_host[STORE_HOST_BYTES];
	char paths[TUTTI_DEVICES_MAX][256];
};
/* Reads device `dev`. -ENOMEDIUM: no superblock (all zeros or foreign). -EBADMSG: damaged. -EPROTONOSUPPORT: version.
 */
int store_probe(const struct store_media *m, uint32_t dev, struct store_probe *out);

struct store_open_opts {
	int32_t owner_pid;
	const char *owner_host;
	uint64_t (*now_ns)(void *arg); /* injected clock: tests simulate time */
	void *now_arg;
	tutti_progress_fn progress;
	void *progress_arg;
};

/* Reads, recovers, raises the epoch durably, then returns. Media must stay valid until close. */
int store_open(const struct store_media *m, const struct store_open_opts *o, struct store **out);
/* Checkpoint, clean mark, free. Called with no lane at work. Frees on every result. */
int store_close(struct store *s);
/* Frees without writing anything: what a kill would leave (tests), or after a failing device. */
void store_abandon(struct store *s);
void store_info(struct store *s, struct tutti_pool_info *out);
/*
 * The same of a pool that someone else may have open, from its superblock and records: writes nothing, heals nothing.
 * What only the one who has it knows is TUTTI_UNKNOWN. *n in: room of ns; out: namespaces, of which the first are
 * there.
 */
int store_look(const struct store_media *m, const struct store_open_opts *o, struct tutti_pool_info *pool,
               struct tutti_ns_info *ns, uint32_t *n);
uint64_t store_epoch(const struct store *s);

/* Sync in two halves, so that the flush between them needs no lock: everything committed before begin counts as synced
 * after end. begin returns a mark; the caller flushes all devices; end is told whether that worked. */
uint64_t store_sync_begin(struct store *s);
void store_sync_end(struct store *s, uint64_t mark, int flush_result);
int store_dirty(const struct store *s); /* 1: something was committed since the last sync began */

/* Prewriting, likewise: next() picks a free, unwritten segment (-ENOENT: none wanted; keeps `ahead` ready), the caller
 * writes zeros over its chunks, done() records it durably. *n_extents in: room, at least the pool's devices x ranks
 * (-ENOBUFS: less); out: filled. Until done() the segment is nobody's. */
#define STORE_EXTENTS_MAX (TUTTI_DEVICES_MAX * TUTTI_RANKS_MAX)
struct store_extent {
	uint32_t dev;
	uint64_t offset_bytes, bytes;
};
int store_prewrite_next(struct store *s, uint32_t ahead, uint32_t *segment, struct store_extent *extents,
                        uint32_t *n_extents);
int store_prewrite_done(struct store *s, uint32_t segment, int result);
/*
 * Deallocating, likewise: next() picks a free segment that blocks were in, and that the record which frees it, durably,
 * has left (-ENOENT: none); the caller tells the medium that its extents hold nothing. Until done() the segment is
 * nobody's; then it is free whatever the result (-ECANCELED: it was wanted), but for -ENOTRECOVERABLE, which says that
 * the medium may still do it: the segment is out of use until the next open. One that is handed out first is not
 * deallocated any more. All extents of segments lie in the data range of their device.
 */
void store_data_range(const struct store *s, uint32_t dev, uint64_t *first_byte, uint64_t *end_byte);
int store_deallocate_next(struct store *s, uint32_t *segment, struct store_extent *extents, uint32_t *n_extents);
int store_deallocate_done(struct store *s, uint32_t segment, int result);

/*
 * Repair: wipes what the open found damaged and nobody has. First the records, then the headers of each segment, of
 * free slots alone. *wiped counts up.
 */
int store_repair_records(struct store *s, uint64_t *wiped);
int store_repair_headers(struct store *s, uint32_t segment, uint64_t *wiped);

/* ---- keys ---- */

/*
 * tutti_keys: keys of n consecutive whole blocks (docs/format.md). parent NULL or zeros: chain start. extra NULL: none.
 * Any thread. -EINVAL: block_tokens 0 or above 2^20. -ENOMEM: on a thread's first call only.
 */
int store_keys(const struct tutti_key *ns_digest, const struct tutti_key *parent, const uint32_t *tokens,
               uint32_t block_tokens, const struct tutti_extra *extra, size_t n, struct tutti_key *keys);

/* ---- namespaces ---- */

/*
 * Canonical, length-prefixed record of a namespace (docs/format.md); its SHA-256 is the digest. *bytes in: room.
 * -EINVAL: a field is unset, too long or zero; the message names it.
 */
int store_ns_record(const struct tutti_ns_spec *spec, uint8_t *record, size_t *bytes, struct tutti_key *digest);
/* The inverse, for what is read from disk: -EBADMSG for anything store_ns_record would not write. Strings point into
 * record. */
struct store_ns_facts {
	char model[256], kv_dtype[256], backend[256];
	uint8_t weights[32], layout[32];
	uint32_t block_tokens, layers, kv_heads, head_size, tp_size, objects_per_layer;
	uint64_t object_bytes;
};
int store_ns_parse(const uint8_t *record, size_t bytes, struct store_ns_facts *out);

/* Finds or makes it. *created (may be NULL) says which. The record on disk is compared. */
int store_ns_open(struct store *s, const struct tutti_ns_spec *spec, struct store_ns **out, int *created);
int store_ns_at(struct store *s, uint32_t i, struct store_ns **out);
void store_ns_info(struct store_ns *ns, struct tutti_ns_info *out);
const struct tutti_key *store_ns_digest(const struct store_ns *ns);
uint64_t store_ns_generation(const struct store_ns *ns);
/* Addresses for one rank. */
void store_ns_geom(const struct store_ns *ns, uint32_t rank, struct geom *out);
int store_ns_clear(struct store_ns *ns);
/* Clears it and takes its record away, durably; ns is then freed. Its number may be another's later. */
int store_ns_remove(struct store_ns *ns);
int store_ns_each(struct store_ns *ns,
                  int (*fn)(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                            uint32_t slot),
                  void *arg);

/* A lane's view of a pool that another process has open: reads the namespace record and derives addresses; takes
 * nothing, writes nothing. -ENOENT: no such namespace. */
struct store_view {
	struct store_probe pool;
	struct geom geom;
	uint64_t generation;
	uint32_t ns_number;
	struct tutti_key ns_digest;
};
int store_view(const struct store_media *m, const struct tutti_key *ns_digest, uint32_t rank, struct store_view *out);

/* ---- decisions ---- */

enum store_block_flags {
	STORE_BLOCK_HEADER_VALID =
	    1, /* reserve: the slot's header on disk may be valid: invalidate it before the first write */
	STORE_BLOCK_SYNCED = 2, /* lookup: committed and flushed, or verified */
};
struct store_block {
	uint32_t slot;
	uint32_t flags;
	uint32_t depth;
	uint32_t rsvd;
	struct tutti_key key;
};

int store_lookup(struct store_ns *ns, const struct tutti_key *keys, size_t n, uint64_t lease_ns, size_t *matched,
                 struct tutti_lease *lease);
/* A lease of one block (and so of those before it), if it is still there: -ESTALE. -EAGAIN: too many leases are out. */
int store_lease_block(struct store_ns *ns, uint32_t slot, const struct tutti_key *key, uint64_t lease_ns,
                      struct tutti_lease *lease);
int store_reserve(struct store_ns *ns, const struct tutti_key *parent, const struct tutti_key *keys, size_t n,
                  uint64_t lease_ns, size_t *first, size_t *count, struct tutti_lease *reservation);

/* What a lease or reservation holds, in chain order: blocks[0..n) from block `first` of it. */
struct store_hold_info {
	enum tutti_op op;
	uint64_t n_blocks;       /* of the whole lease or reservation */
	uint64_t sequence;       /* of a reservation: goes into its headers */
	struct tutti_key parent; /* of block `first`; zeros: none */
};
int store_hold_blocks(struct store_ns *ns, const struct tutti_lease *lease, size_t first, size_t n,
                      struct store_hold_info *info, struct store_block *blocks);

/*
 * One rank's result for blocks [first, first + n) of a reservation: results[i] is 0 (data and header are on the
 * medium) or why not. Publishes what all ranks have and whose parent is published; releases what failed, and its
 * descendants (theirs too, in other reservations). A second report of the same rank and blocks is ignored.
 * -ESTALE: no such reservation.
 */
int store_report(struct store_ns *ns, const struct tutti_lease *reservation, uint32_t rank, size_t first, size_t n,
                 const int32_t *results);
/* A reader found block (slot, key) damaged: out of the index, with its descendants, unless the slot holds another key
 * by now. Returns 1 if something was dropped. */
int store_drop(struct store_ns *ns, uint32_t slot, const struct tutti_key *key);
/* 1: the slot still holds this key, committed. */
int store_holds(const struct store_ns *ns, uint32_t slot, const struct tutti_key *key);
/* verify found it sound: counts as synced after the next sync. */
void store_mark_sound(struct store_ns *ns, uint32_t slot, const struct tutti_key *key);
/* at_once: no lane can write to it (it never got the plan, or it reported): slots are free now; else after expiry. */
int store_release(struct store_ns *ns, const struct tutti_lease *lease, int at_once);

/* Recounts everything the slow way and compares: 0, or -EUCLEAN with a message. Tests call it everywhere. */
int store_check(struct store *s);

#endif
