/*
 * media.h - the store's own I/O (superblock, records, headers at recovery, checkpoint), as a table of functions.
 *
 * core implements it over any controller, so that the store is the same on a file and on a raw NVMe, and tests put
 * faults in at one place. Offsets and lengths are multiples of STORE_MEDIA_ALIGN; buffers are aligned to it.
 */
#ifndef TUTTI_STORE_MEDIA_H
#define TUTTI_STORE_MEDIA_H

#include <stddef.h>
#include <stdint.h>

#define STORE_MEDIA_ALIGN 4096u

struct store_io {
	uint32_t dev; /* index of the device, 0..n_dev-1 */
	int write;
	uint64_t offset_bytes;
	uint64_t bytes;
	void *data;
	int result; /* out: 0, -errno or NVMe status */
};

struct store_media {
	/*
	 * Does all n transfers, in any order, several at a time; sets each result. Returns 0 if all are 0, else the
	 * first failure. A write is not durable before flush. Gives up at a deadline of its own: -ETIMEDOUT.
	 */
	int (*io)(void *self, struct store_io *ios, uint32_t n);
	/* All writes that completed before the call survive a power loss after it. */
	int (*flush)(void *self, uint32_t dev);
	void *self;
	uint32_t n_dev;
	uint64_t bytes[16];          /* capacity of each device */
	uint32_t preferred_io_bytes; /* smallest of the devices' */
};

#endif
