/*
 * ram_media.h - a store_media in memory that can fail, shorten, stop at the n-th transfer, and crash.
 *
 * `mem` is what a running system reads back. With tracking, `disk` is what a flush made durable, and the writes since
 * the last flush of their device are kept in order: ram_crash() builds what a power loss leaves when any subset of the
 * last six of them got to the medium.
 */
#ifndef TUTTI_TEST_RAM_MEDIA_H
#define TUTTI_TEST_RAM_MEDIA_H

#include "store/media.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RAM_DEVS 16
#define RAM_LAST 6u /* of the unflushed writes: each of these may or may not be on the medium */

enum ram_fault { RAM_OK, RAM_FAIL, RAM_SHORT, RAM_STOP };

struct ram_write {
	uint32_t dev;
	uint64_t offset, bytes;
	uint8_t *data;
};

struct ram_media {
	struct store_media m;
	uint8_t *mem[RAM_DEVS], *disk[RAM_DEVS];
	int track;
	struct ram_write *log;
	size_t n_log, room_log;
	/* The fault strikes at the transfer whose number this is, counted from 0; flushes count. */
	enum ram_fault fault;
	uint64_t fault_at;
	int fault_result, reads_too, stopped;
	/* Reads that touch these bytes of device 0 fail, always. */
	uint64_t bad_from, bad_to;
	uint64_t n_io, n_reads, n_writes, n_flushes, read_bytes, written_bytes;
	/* Called after every write, before the caller goes on. */
	void (*on_write)(void *arg);
	void *on_write_arg;
};

/* For tests that open a store thousands of times: large blocks stay in the heap instead of being faulted in anew. */
static inline void ram_keep_heap(void)
{
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

static inline void *ram_map(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

static inline int ram_strike(struct ram_media *r, int write)
{
	if (r->stopped)
		return r->fault_result ? r->fault_result : -EIO;
	if (r->fault == RAM_OK || (!write && !r->reads_too) || r->n_io++ != r->fault_at)
		return 0;
	if (r->fault == RAM_STOP)
		r->stopped = 1;
	return r->fault_result ? r->fault_result : -EIO;
}

static inline void ram_write_one(struct ram_media *r, const struct store_io *io, uint64_t bytes)
{
	memcpy(r->mem[io->dev] + io->offset_bytes, io->data, bytes);
	r->n_writes++;
	r->written_bytes += bytes;
	if (r->track) {
		if (r->n_log == r->room_log) {
			r->room_log = r->room_log ? 2 * r->room_log : 64;
			r->log = realloc(r->log, r->room_log * sizeof(*r->log));
			if (!r->log)
				abort();
		}
		r->log[r->n_log] = (struct ram_write){io->dev, io->offset_bytes, bytes, malloc(bytes)};
		memcpy(r->log[r->n_log++].data, io->data, bytes);
	}
	if (r->on_write)
		r->on_write(r->on_write_arg);
}

static inline int ram_io(void *self, struct store_io *ios, uint32_t n)
{
	struct ram_media *r = self;
	int first = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct store_io *io = &ios[i];

		if (io->dev >= r->m.n_dev || io->offset_bytes % STORE_MEDIA_ALIGN || io->bytes % STORE_MEDIA_ALIGN ||
		    !io->bytes || (uintptr_t)io->data % STORE_MEDIA_ALIGN || io->offset_bytes > r->m.bytes[io->dev] ||
		    io->bytes > r->m.bytes[io->dev] - io->offset_bytes)
			abort(); /* a caller's mistake, never a fault of a medium */
		io->result = ram_strike(r, io->write);
		if (!io->write && !io->dev && io->offset_bytes < r->bad_to &&
		    io->offset_bytes + io->bytes > r->bad_from)
			io->result = 0x281; /* NVMe: unrecovered read error */
		if (!io->result && io->write) {
			ram_write_one(r, io, io->bytes);
		} else if (!io->result) {
			memcpy(io->data, r->mem[io->dev] + io->offset_bytes, io->bytes);
			r->n_reads++;
			r->read_bytes += io->bytes;
		} else if (io->write && r->fault == RAM_SHORT && !r->stopped) {
			ram_write_one(r, io, io->bytes / 2);
		}
		if (!first)
			first = io->result;
	}
	return first;
}

static inline int ram_flush(void *self, uint32_t dev)
{
	struct ram_media *r = self;
	size_t kept = 0;
	int result = ram_strike(r, 1);

	if (result)
		return result;
	r->n_flushes++;
	for (size_t i = 0; i < r->n_log; i++) {
		struct ram_write *w = &r->log[i];

		if (w->dev != dev) {
			r->log[kept++] = *w;
			continue;
		}
		memcpy(r->disk[w->dev] + w->offset, w->data, w->bytes);
		free(w->data);
	}
	r->n_log = kept;
	return 0;
}

static inline void ram_init(struct ram_media *r, uint32_t n_dev, uint64_t bytes_each, int track)
{
	memset(r, 0, sizeof(*r));
	r->track = track;
	r->m = (struct store_media){
	    .io = ram_io, .flush = ram_flush, .self = r, .n_dev = n_dev, .preferred_io_bytes = 131072};
	for (uint32_t d = 0; d < n_dev; d++) {
		r->m.bytes[d] = bytes_each;
		r->mem[d] = ram_map(bytes_each);
		r->disk[d] = track ? ram_map(bytes_each) : NULL;
	}
}

static inline void ram_free(struct ram_media *r)
{
	for (uint32_t d = 0; d < r->m.n_dev; d++) {
		munmap(r->mem[d], r->m.bytes[d]);
		if (r->disk[d])
			munmap(r->disk[d], r->m.bytes[d]);
	}
	for (size_t i = 0; i < r->n_log; i++)
		free(r->log[i].data);
	free(r->log);
	memset(r, 0, sizeof(*r));
}

/* Unflushed writes of which a subset may be chosen. */
static inline uint32_t ram_open_writes(const struct ram_media *r)
{
	return r->n_log < RAM_LAST ? (uint32_t)r->n_log : RAM_LAST;
}

/*
 * Puts into `to` (same devices, no tracking) what a power loss leaves of `r`: what was flushed, the older
 * unflushed writes if `older`, and of the last six those whose bit is set in `subset`. All bits and older: a kill.
 */
static inline void ram_crash(const struct ram_media *r, struct ram_media *to, uint32_t subset, int older)
{
	uint32_t n = ram_open_writes(r);

	for (uint32_t d = 0; d < r->m.n_dev; d++)
		memcpy(to->mem[d], r->disk[d], r->m.bytes[d]);
	for (size_t i = 0; i < r->n_log; i++) {
		const struct ram_write *w = &r->log[i];
		size_t last = i + n - r->n_log; /* place among the last ones */

		if (i + n < r->n_log ? older : (int)(subset >> last & 1))
			memcpy(to->mem[w->dev] + w->offset, w->data, w->bytes);
	}
}

#endif
