/*
 * state.h - what the files of this room share: the plain structs behind store.h, and who does what.
 *
 * A namespace has one array of 64-byte slots (slot number = segment x slots_per_segment + i), one of 16-byte sets,
 * and one open-addressing table (tag, slot). All three are reserved once for the namespace that owns the whole pool and
 * touched only where segments are owned, so nothing ever grows or is rehashed.
 *
 * A slot's life:
 *
 *     FREE -> RESERVED -> COMMITTED -> FREE            the usual way
 *             RESERVED -> DEAD -> FREE                 it failed: out of the index, but a lane may still write to it
 *                         COMMITTED -> ZOMBIE -> FREE  damaged or below a damaged block, while a lease holds it
 *
 * RESERVED and COMMITTED slots are in the table and linked as a tree (parent, first child, siblings). Only committed
 * leaves without a lease are in the LRU list, so its cold end can always be evicted, and a lease need only pin the last
 * block of its prefix: everything above has a child. Because a slot in the LRU list has neither child nor pin, the
 * list's two links share their words with those (see struct slot).
 */
#ifndef TUTTI_STORE_STATE_H
#define TUTTI_STORE_STATE_H

#include "store/store.h"
#include "wire/disk.h"
#include "wire/header.h"

#define NONE UINT32_MAX
#define SEGMENTS_AT_ONCE 16u /* handed out at once, at most */
#define DEPTH_MAX 0xffffffu
#define LISTS_WHOLE 64u /* lists of sets: 1..63 by free slots; then wholly free ones by device */
#define LISTS (LISTS_WHOLE + GEOM_DEVS_MAX)

enum slot_state { SLOT_FREE, SLOT_RESERVED, SLOT_DEAD, SLOT_COMMITTED, SLOT_ZOMBIE };

#define SLOT_STATE_SHIFT 24
#define SLOT_STATE_MASK (7u << SLOT_STATE_SHIFT)
#define SLOT_HEADER (1u << 27)  /* the header on disk may be valid */
#define SLOT_LRU (1u << 28)     /* in the LRU list */
#define SLOT_VISITED (1u << 29) /* by a walk; cleared before the call returns */

/* All zeros is a free slot whose header is not valid. */
struct slot {
	struct tutti_key key;
	uint32_t parent;
	uint32_t a; /* SLOT_LRU: colder neighbour. Else: first child */
	uint32_t
	    b; /* SLOT_LRU: hotter neighbour. COMMITTED, ZOMBIE: pins. RESERVED, DEAD: next block of the reservation */
	uint32_t sib_next, sib_prev; /* children of one parent; roots are not linked */
	uint32_t bits;               /* depth (24), state (3), flags */
	uint32_t stamp;              /* last use. RESERVED, DEAD: the hold's index */
	uint32_t commit;             /* sync number of the commit. RESERVED, DEAD: mask of ranks that reported */
};
_Static_assert(sizeof(struct slot) == 64, "a slot is a cache line");

struct set {
	uint64_t free; /* bit i: slot i of the set is free */
	uint32_t prev, next;
};

struct entry {
	uint32_t tag;  /* hash of the key */
	uint32_t slot; /* plus one; 0: empty */
};

#define COMMIT_NEVER UINT32_MAX /* not flushed as far as we know */

struct store_ns {
	struct store *s;
	uint32_t number;
	int used;    /* there is such a namespace */
	int durable; /* its record on disk says what is here */
	int damaged; /* a copy of it, at open */
	uint64_t generation;
	uint64_t record_sequence;
	uint32_t record_copy; /* the newer one: 0, 1 */
	uint32_t record_bytes;
	struct tutti_key digest;
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	struct store_ns_facts facts;
	struct geom geom; /* of rank 0 */

	struct slot *slots;
	struct set *sets;
	struct entry *table;
	uint64_t slots_max, sets_max, table_max;

	struct {
		uint32_t head, tail;
	} lists[LISTS];
	uint64_t partial; /* bit i: lists[i] is not empty */
	uint32_t whole;   /* bit d: lists[LISTS_WHOLE + d] is not empty */
	uint32_t next_dev;

	uint32_t cold, hot; /* ends of the LRU list */
	uint32_t clock;     /* of stamps; compared by difference */
	uint64_t used_ns;   /* time of the last lookup or reservation */
	uint64_t n_free, n_committed, n_reserved, n_dead, n_zombie, n_lru, n_segments, n_leases, n_reservations,
	    n_evicted;
	uint64_t table_peak; /* most entries so far */
};

enum segment_state {
	SEGMENT_FREE,
	SEGMENT_OWNED,
	SEGMENT_LENT, /* free, and the caller writes to it or deallocates it */
	SEGMENT_BAD,        /* its record could not be written: not used until the next open */
};

struct segment {
	uint8_t state, prewritten, prewrite_failed, copy;
	uint8_t damaged; /* copies of its record, until it is written again */
	uint8_t left; /* free: what lies in it is void by a durable record, and the medium may be told so */
	uint32_t owner; /* number of the namespace */
	uint32_t stamp; /* last use of any of its blocks, or of a descendant: the owner's clock */
	uint32_t busy;  /* slots that are RESERVED, DEAD, ZOMBIE or pinned */
	uint64_t first_sequence;
	uint64_t sequence; /* of the newer record */
};

enum hold_kind { HOLD_NONE, HOLD_LEASE, HOLD_RESERVATION };

struct hold {
	uint64_t id, done_id; /* done_id: the last one that ended because all was reported */
	uint64_t expiry_ns, sequence;
	struct store_ns *ns;
	enum hold_kind kind;
	int released;  /* a reservation that only waits for lanes */
	uint32_t slot; /* lease: the last block. Reservation: the first block that is not published */
	uint32_t n_blocks;
	uint32_t published;  /* blocks before `slot` */
	uint32_t live;       /* RESERVED blocks */
	uint32_t unreported; /* blocks that not all ranks have reported */
	uint32_t prev, next; /* of those in use, or free */
	int listed;          /* to be looked at again: store_hold_look */
	uint32_t look_next;
	struct tutti_key parent; /* of block `slot` of a reservation */
};

struct store {
	struct store_media media;
	struct wire_super super; /* as on disk; epoch: this open's */
	uint32_t super_copy;     /* the newer one */
	uint32_t n_segments;
	struct segment *segments;
	int all_taken; /* no segment is free, as the last search found: an insert into a full pool must not search */
	struct store_ns *ns[STORE_NAMESPACES_MAX];
	struct hold holds[STORE_LEASES_MAX];
	uint32_t hold_first, hold_free, hold_look; /* lists: used, free, to be looked at before the call returns */
	uint32_t n_holds, hold_fresh;              /* in use; first one never used */
	uint64_t hold_generation;
	uint64_t next_expiry_ns; /* no hold expires before */
	uint64_t next_sequence;
	uint32_t sync_no, synced, unsafe_low, unsafe_high; /* commits in (low, high]: their flush failed */
	uint64_t failed_syncs, deallocated_segments, failed_deallocations;
	int dirty, was_clean, sync_failing;
	uint64_t recovered_slots, recovered_orphans, recovered_bad, damaged_records;
	/* What open found damaged; see repair.c. Bit i: namespace i, device i's copy. */
	uint64_t ns_damaged, ns_owning, ns_lost;
	uint8_t super_damaged[TUTTI_DEVICES_MAX];
	uint32_t healed_copies;
	uint64_t (*now_ns)(void *arg);
	void *now_arg;
	tutti_progress_fn progress;
	void *progress_arg;
	uint64_t progress_ns;
	uint8_t *page; /* SEGMENTS_AT_ONCE pages, aligned: for records and superblocks */
};

static inline struct slot *slot_at(const struct store_ns *ns, uint32_t slot) { return &ns->slots[slot]; }
static inline uint32_t slot_depth(const struct slot *s) { return s->bits & DEPTH_MAX; }
static inline enum slot_state slot_state(const struct slot *s)
{
	return (enum slot_state)((s->bits & SLOT_STATE_MASK) >> SLOT_STATE_SHIFT);
}
static inline void slot_set_state(struct slot *s, enum slot_state state)
{
	s->bits = (s->bits & ~SLOT_STATE_MASK) | (uint32_t)state << SLOT_STATE_SHIFT;
}
static inline uint32_t slot_first_child(const struct slot *s) { return s->bits & SLOT_LRU ? NONE : s->a; }
/* Only of COMMITTED and ZOMBIE slots. */
static inline uint32_t slot_pins(const struct slot *s) { return s->bits & SLOT_LRU ? 0 : s->b; }
static inline struct segment *segment_of(const struct store_ns *ns, uint32_t slot)
{
	return &ns->s->segments[slot / ns->geom.slots_per_segment];
}

/* io.c: aligned memory, single transfers with a message. */
void *store_io_alloc(size_t bytes);
int store_io_read(const struct store_media *m, uint32_t dev, uint64_t offset, void *data, uint64_t bytes);
/* Pages that the medium cannot read become zeros, and are counted: for what exists twice. */
int store_io_read_around(const struct store_media *m, uint32_t dev, uint64_t offset, void *data, uint64_t bytes,
                         uint32_t *unread);
int store_io_write(const struct store_media *m, uint32_t dev, uint64_t offset, const void *data, uint64_t bytes);
int store_io_flush(const struct store_media *m, uint32_t dev);
/* Many transfers; a message for the first that failed. */
int store_io_many(const struct store_media *m, struct store_io *ios, uint32_t n);

/* super.c */
/* *damaged (may be NULL): bit i, copy i is not sound. */
int store_super_read(const struct store_media *m, uint32_t dev, struct wire_super *out, uint32_t *copy,
                     uint8_t *damaged);
int store_super_check_devices(const struct store_media *m, const struct wire_super *super,
                              uint8_t damaged[TUTTI_DEVICES_MAX]);
/* The fewest bytes of a pool whose segments have at least chunk_bytes on each device (segment_bytes 0: of a chosen
 * size), as format lays it out. 0: no pool has, or none below 64 TiB a device. */
uint64_t store_super_least_bytes(uint32_t n_dev, uint32_t ranks, uint64_t segment_bytes, uint64_t chunk_bytes);
/* Writes the sound copy over the damaged one of a device. */
int store_super_heal(const struct store_media *m, uint32_t dev);
/* Writes s->super over the older copy and flushes. */
int store_super_write(struct store *s);

/* table.c: records of namespaces and segments. */
int store_table_format(const struct store_media *m, const struct wire_super *super, int prewritten);
int store_table_read(struct store *s);
int store_table_write_ns(struct store_ns *ns);
/* Zeros, durably, over both copies of the record. */
int store_table_wipe_ns(struct store *s, uint32_t number);
/* Durably, by one flush for all of them. After an error the disk may say either of each. */
int store_table_write_segments(struct store *s, const uint32_t *segments, uint32_t n);
/* For a lane: the record of a digest. */
int store_table_find_ns(const struct store_media *m, const struct wire_super *super, const struct tutti_key *digest,
                        struct wire_ns *out);
int store_table_geom(const struct wire_super *super, const struct store_ns_facts *facts, uint32_t g, uint32_t rank,
                     struct geom *out);

/* record.c: store_ns_record, store_ns_parse. keys.c: store_keys. */

/* ns.c */
int store_ns_make(struct store *s, uint32_t number, const struct wire_ns *w, struct store_ns **out);
void store_ns_free(struct store_ns *ns);
/* Forgets all blocks and owns no segment; the record is not touched. */
void store_ns_empty(struct store_ns *ns);
/* The part of it that knows no slots: table, lists, counts. */
void store_ns_forget(struct store_ns *ns);

/* index.c: the table. */
uint32_t store_index_find(const struct store_ns *ns, const struct tutti_key *key);
void store_index_prefetch(const struct store_ns *ns, const struct tutti_key *key);
void store_index_insert(struct store_ns *ns, uint32_t slot);
void store_index_remove(struct store_ns *ns, uint32_t slot);
/* Length of the longest prefix of keys that is committed; *last: its last slot. Marks the segments as used. */
size_t store_index_match(struct store_ns *ns, const struct tutti_key *keys, size_t n, uint32_t *last);

/* tree.c: parents, children, LRU, what leaves. */
void store_tree_link(struct store_ns *ns, uint32_t slot, uint32_t parent);
void store_tree_unlink(struct store_ns *ns, uint32_t slot);
void store_lru_push(struct store_ns *ns, uint32_t slot, int hot);
void store_lru_remove(struct store_ns *ns, uint32_t slot);
/* A committed slot may have become an unpinned leaf: puts it into the list. */
void store_lru_settle(struct store_ns *ns, uint32_t slot, int hot);
void store_tree_touch(struct store_ns *ns, uint32_t slot);
void store_tree_pin(struct store_ns *ns, uint32_t slot);
void store_tree_unpin(struct store_ns *ns, uint32_t slot);
void store_tree_commit(struct store_ns *ns, uint32_t slot);
/* Takes the slot and all below it out of the index. Returns how many blocks. Call store_hold_settle afterwards. */
uint64_t store_tree_drop(struct store_ns *ns, uint32_t slot);
/* Evicts one of the coldest leaves. -1: there is none. */
int store_tree_evict(struct store_ns *ns, uint32_t *slot);
/* 1 if nothing in the segment or below its blocks is held. */
int store_tree_idle(struct store_ns *ns, uint32_t segment);
/* Links what was placed at open (parents known, all COMMITTED) and orders it: order[0] is the coldest. */
void store_tree_build(struct store_ns *ns, const uint32_t *order, uint64_t n);

/* space.c: sets and free slots of one namespace. */
void store_space_init(struct store_ns *ns);
void store_space_add(struct store_ns *ns, uint32_t segment);
void store_space_remove(struct store_ns *ns, uint32_t segment);
uint32_t store_space_take(struct store_ns *ns, uint32_t parent, uint32_t want, int *result);
void store_space_take_exactly(struct store_ns *ns, uint32_t slot);
/* The slot becomes FREE. */
void store_space_give(struct store_ns *ns, uint32_t slot);
uint32_t store_space_set_free(const struct store_ns *ns, uint32_t slot);

/* segment.c: handing out. */
/* As many as `want` blocks need, but not above SEGMENTS_AT_ONCE. */
int store_segment_hand_out(struct store_ns *ns, uint32_t want);
int store_segment_steal(struct store_ns *ns);
uint32_t store_segments_free(const struct store *s, uint32_t *prewritten);

/* hold.c */
void store_hold_init(struct store *s);
static inline uint32_t store_hold_index(const struct store *s, const struct hold *h)
{
	return (uint32_t)(h - s->holds);
}
/* A new one, to lease_ns from now. NULL: too many are out; says so. */
struct hold *store_hold_take(struct store_ns *ns, enum hold_kind kind, uint64_t lease_ns, uint64_t now);
void store_hold_give(struct store *s, struct hold *h);
void store_hold_sweep(struct store *s, int now);
void store_hold_look(struct store *s, uint32_t hold);
void store_hold_settle(struct store *s);

/* repair.c */
void store_repair_judge(struct store *s, int all_known);
void store_repair_heal(struct store *s);
/* 1: records are lost, and neither wiped nor used again. */
int store_repair_pending(const struct store *s);

/* recover.c, checkpoint.c. load: -EBADMSG where the checkpoint does not hold; then scan. */
int store_recover(struct store *s);
int store_header_damaged(const struct store_ns *ns, const struct wire_header *h);
int store_checkpoint_write(struct store *s);
int store_checkpoint_load(struct store *s);
void store_progress(struct store *s, const char *what, uint64_t done, uint64_t total);

#endif
