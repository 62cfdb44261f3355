/*
 * disk.h - a pool's metadata, as it lies on disk. docs/format.md says the same byte by byte, with test vectors.
 *
 *     device 0:  super A | super B | namespace records | segment records | checkpoint | chunks ...
 *     others:    super A | super B | chunks ...
 *
 * Everything here is little endian, starts on a multiple of 4096 and carries an XXH3-64 of itself (computed with the
 * sum field 0). Superblocks and records exist twice; the sound copy with the higher sequence counts, and the other
 * one is overwritten next, so that a torn write loses nothing. Slot headers are in wire/header.h.
 */
#ifndef TUTTI_WIRE_DISK_H
#define TUTTI_WIRE_DISK_H

#include <stdint.h>

#define WIRE_DISK_VERSION 1u
#define WIRE_PAGE_BYTES 4096u
#define WIRE_SUPER_MAGIC 0x314c4f5049545554ull      /* "TUTIPOL1" */
#define WIRE_NS_MAGIC 0x31534d4e49545554ull         /* "TUTINMS1" */
#define WIRE_SEGMENT_MAGIC 0x3147455349545554ull    /* "TUTISEG1" */
#define WIRE_CHECKPOINT_MAGIC 0x31504b4349545554ull /* "TUTICKP1" */
#define WIRE_DEVICES 16
#define WIRE_PATH_BYTES 256
#define WIRE_HOST_BYTES 64
#define WIRE_NONE 0xffffffffu

/* Two copies at offsets 0 and 8192 of every device. */
struct wire_super {
	uint64_t magic;
	uint64_t sum;
	uint32_t version;
	uint32_t device; /* number of this device */
	uint64_t sequence;
	uint8_t uuid[16];
	uint32_t ranks;
	uint32_t n_dev;
	uint32_t n_segments;
	uint32_t shared; /* 1: every device is divided among all ranks; 0: each rank has devices of its own */
	uint64_t bytes;  /* the cap */
	uint64_t chunk_bytes;
	uint64_t ns_start_bytes; /* these four: on device 0 */
	uint64_t segment_start_bytes;
	uint64_t checkpoint_start_bytes;
	uint64_t checkpoint_room_bytes;
	uint64_t data_start_bytes[WIRE_DEVICES];
	uint64_t device_bytes[WIRE_DEVICES]; /* what the pool may use of each */
	/* State. Kept on device 0 only; elsewhere as format wrote it. */
	uint64_t epoch; /* raised by every open */
	uint32_t clean; /* 1: closed, and the checkpoint below (if checkpoint_bytes is not 0) says what is there */
	int32_t owner_pid;
	uint64_t checkpoint_bytes;
	uint64_t checkpoint_sum;
	char owner_host[WIRE_HOST_BYTES];
	uint8_t rsvd[3632];
	char paths[WIRE_DEVICES][WIRE_PATH_BYTES]; /* at 4096 */
};
_Static_assert(sizeof(struct wire_super) == 8192, "superblock: two pages");
_Static_assert(__builtin_offsetof(struct wire_super, paths) == 4096, "paths: the second page");

/* Record i: copies at ns_start_bytes + (2 i) pages and the page after. All zeros: never used. */
struct wire_ns {
	uint64_t magic;
	uint64_t sum;
	uint32_t version;
	uint32_t number;
	uint64_t sequence;
	uint8_t uuid[16];
	uint64_t generation;
	uint32_t set_slots;    /* G */
	uint32_t record_bytes; /* canonical record */
	uint8_t digest[32];    /* SHA-256 of it */
	uint8_t record[3072];
	uint8_t rsvd[928];
};
_Static_assert(sizeof(struct wire_ns) == 4096, "namespace record: one page");

#define WIRE_SEGMENT_PREWRITTEN 1u

/* Record i: copies at segment_start_bytes + (2 i) pages and the page after. */
struct wire_segment {
	uint64_t magic;
	uint64_t sum;
	uint32_t version;
	uint32_t number;
	uint64_t sequence;
	uint8_t uuid[16];
	uint32_t owner; /* number of the namespace; WIRE_NONE: free */
	uint32_t flags;
	uint64_t generation;     /* the owner's, when it got the segment; another one by now: the segment is free */
	uint64_t first_sequence; /* headers of an older sequence belong to an earlier owner */
	uint8_t rsvd[4024];
};
_Static_assert(sizeof(struct wire_segment) == 4096, "segment record: one page");

/*
 * The checkpoint is one stream: this head, then for each namespace a wire_checkpoint_ns, the numbers of its segments
 * (ascending, 32 bits each, padded to 8 bytes), a bitmap per segment (a bit per slot, padded to 8 bytes: of a free
 * slot, its header may be valid; of a committed one, it was neither flushed nor verified), and its blocks, least
 * recently used first. Its checksum is a chain over blocks of WIRE_CHECKPOINT_BLOCK bytes (the last one shorter):
 * c = XXH3(c, XXH3(block)), from c = 0, both as 64 bits.
 */
#define WIRE_CHECKPOINT_BLOCK (1u << 20)

struct wire_checkpoint {
	uint64_t magic;
	uint32_t version;
	uint32_t n_namespaces;
	uint64_t epoch;
	uint8_t uuid[16];
};
_Static_assert(sizeof(struct wire_checkpoint) == 40, "checkpoint head");

struct wire_checkpoint_ns {
	uint32_t number;
	uint32_t n_segments;
	uint64_t generation;
	uint64_t n_blocks;
};
_Static_assert(sizeof(struct wire_checkpoint_ns) == 24, "checkpoint, head of a namespace");

struct wire_checkpoint_block {
	uint8_t key[32];
	uint32_t slot;
	uint32_t parent; /* slot; WIRE_NONE: first block of a chain */
};
_Static_assert(sizeof(struct wire_checkpoint_block) == 40, "checkpoint, a block");

#endif
