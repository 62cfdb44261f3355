/*
 * super.c - the superblock: format writes it, probe reads it, open and close change its state.
 *
 * Two copies, and every write goes over the older one. An open writes both, so that no clean mark of an earlier close
 * is left for a later reader to fall back on; a close writes one, so that the loss of that one means a scan, no more.
 */
#include "store/state.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUPER_BYTES ((uint64_t)sizeof(struct wire_super))
#define HEAD_BYTES (2 * SUPER_BYTES)
#define SEGMENTS_MAX 65536u
#define CHUNK_BYTES_MIN 8192u
#define CHUNK_BYTES_MAX (1ull << 40)
#define EPOCH_MAX ((1ull << 24) - 1)
#define CHOSEN_BYTES_MAX (1ull << 30) /* where they are not too many */
#define MIB (1ull << 20)

static uint64_t super_sum(struct wire_super *w)
{
	uint64_t kept = w->sum, sum;

	w->sum = 0;
	sum = hash_xxh3(w, sizeof(*w));
	w->sum = kept;
	return sum;
}

/* A sum says that the bytes are those that were written, not that they make sense. */
static int super_makes_sense(const struct wire_super *w)
{
	uint64_t parts = w->shared ? w->ranks : 1, total = 0;

	if (!w->n_dev || w->n_dev > TUTTI_DEVICES_MAX || !w->ranks || w->ranks > TUTTI_RANKS_MAX ||
	    w->device >= w->n_dev || w->shared > 1 || (!w->shared && w->n_dev % w->ranks) || !w->n_segments ||
	    w->n_segments > SEGMENTS_MAX || w->chunk_bytes < CHUNK_BYTES_MIN || w->chunk_bytes > CHUNK_BYTES_MAX ||
	    w->chunk_bytes % WIRE_PAGE_BYTES || w->clean > 1 || w->epoch > EPOCH_MAX || w->bytes > INT64_MAX)
		return 0;
	for (uint32_t d = 0; d < w->n_dev; d++) {
		if (w->device_bytes[d] > w->bytes - total || w->data_start_bytes[d] % WIRE_PAGE_BYTES ||
		    w->data_start_bytes[d] < HEAD_BYTES || w->data_start_bytes[d] > w->device_bytes[d] ||
		    w->chunk_bytes > (w->device_bytes[d] - w->data_start_bytes[d]) / parts / w->n_segments ||
		    w->paths[d][WIRE_PATH_BYTES - 1])
			return 0;
		total += w->device_bytes[d];
	}
	return w->ns_start_bytes == HEAD_BYTES &&
	       w->segment_start_bytes == HEAD_BYTES + 2ull * STORE_NAMESPACES_MAX * WIRE_PAGE_BYTES &&
	       w->checkpoint_start_bytes == w->segment_start_bytes + 2ull * w->n_segments * WIRE_PAGE_BYTES &&
	       w->checkpoint_room_bytes % WIRE_PAGE_BYTES == 0 && w->checkpoint_start_bytes <= w->data_start_bytes[0] &&
	       w->checkpoint_room_bytes <= w->data_start_bytes[0] - w->checkpoint_start_bytes &&
	       w->checkpoint_bytes <= w->checkpoint_room_bytes && !w->owner_host[WIRE_HOST_BYTES - 1];
}

int store_super_read(const struct store_media *m, uint32_t dev, struct wire_super *out, uint32_t *copy,
                     uint8_t *damaged)
{
	struct wire_super *w;
	int best = -1, seen = 0, other_version = 0, r;
	uint32_t unread = 0;
	uint8_t bad = 3;

	if (m->bytes[dev] < HEAD_BYTES)
		return err_set(-ENOMEDIUM, "device %u holds no pool: it is too small for one", dev);
	w = store_io_alloc(HEAD_BYTES);
	if (!w)
		return err_set(-ENOMEM, "no memory to read a superblock");
	r = store_io_read_around(m, dev, 0, w, HEAD_BYTES, &unread);
	for (int i = 0; !r && i < 2; i++) {
		if (w[i].magic != WIRE_SUPER_MAGIC)
			continue;
		seen = 1;
		if (w[i].version != WIRE_DISK_VERSION)
			other_version = (int)w[i].version;
		else if (super_sum(&w[i]) == w[i].sum && super_makes_sense(&w[i])) {
			bad &= (uint8_t) ~(1 << i);
			if (best < 0 || w[i].sequence > w[best].sequence)
				best = i;
		}
	}
	if (damaged)
		*damaged = bad;
	if (!r && best >= 0) {
		*out = w[best];
		*copy = (uint32_t)best;
	} else if (!r && unread) {
		r = err_set(-EIO, "device %u: the superblock cannot be read, neither copy of it is whole", dev);
	} else if (!r && other_version) {
		r = err_set(-EPROTONOSUPPORT,
		            "device %u holds a pool of format version %d, this library knows version %u", dev,
		            other_version, WIRE_DISK_VERSION);
	} else if (!r && seen) {
		r = err_set(-EBADMSG,
		            "device %u: both copies of the superblock are damaged; the pool must be formatted anew",
		            dev);
	} else if (!r) {
		r = err_set(-ENOMEDIUM, "device %u holds no pool: format it first", dev);
	}
	free(w);
	return r;
}

int store_super_check_devices(const struct store_media *m, const struct wire_super *super,
                              uint8_t damaged[TUTTI_DEVICES_MAX])
{
	struct wire_super *w;
	int r = 0;

	if (m->n_dev != super->n_dev)
		return err_set(
		    -ENODEV,
		               "the first is of a pool of %u device%s, and %u were given; name one pool alone: any one of "
		               "its paths, or all of them in order",
		    super->n_dev, super->n_dev == 1 ? "" : "s", m->n_dev);
	w = malloc(sizeof(*w));
	if (!w)
		return err_set(-ENOMEM, "no memory to read a superblock");
	for (uint32_t d = 0; !r && d < super->n_dev; d++) {
		uint32_t copy;

		if (m->bytes[d] < super->device_bytes[d])
			r = err_set(-ENODEV, "device %u has %llu bytes, the pool needs %llu of it: it was truncated", d,
			            (unsigned long long)m->bytes[d], (unsigned long long)super->device_bytes[d]);
		else if (d)
			r = store_super_read(m, d, w, &copy, damaged ? &damaged[d] : NULL);
		if (!r && d && memcmp(w->uuid, super->uuid, sizeof(w->uuid)))
			r = err_set(-ENODEV, "device %u belongs to another pool", d);
		else if (!r && d && w->device != d)
			r = err_set(-ENODEV, "device %u of the pool was given in place of device %u: wrong order",
			            w->device, d);
	}
	free(w);
	return r;
}

/* Puts one copy onto a device; does not flush. */
static int super_put(const struct store_media *m, uint32_t dev, uint32_t copy, const struct wire_super *super)
{
	struct wire_super *w = store_io_alloc(SUPER_BYTES);
	int r;

	if (!w)
		return err_set(-ENOMEM, "no memory to write a superblock");
	*w = *super;
	w->sum = super_sum(w);
	r = store_io_write(m, dev, copy * SUPER_BYTES, w, SUPER_BYTES);
	free(w);
	return r;
}

int store_super_write(struct store *s)
{
	int r;

	s->super.sequence++;
	r = super_put(&s->media, 0, !s->super_copy, &s->super);
	if (!r)
		r = store_io_flush(&s->media, 0);
	if (!r)
		s->super_copy = !s->super_copy;
	return r;
}

int store_super_heal(const struct store_media *m, uint32_t dev)
{
	struct wire_super *w = malloc(sizeof(*w));
	uint8_t damaged = 0;
	uint32_t copy;
	int r = w ? store_super_read(m, dev, w, &copy, &damaged) : err_set(-ENOMEM, "no memory to read a superblock");

	if (!r && damaged)
		r = super_put(m, dev, !copy, w);
	if (!r && damaged)
		r = store_io_flush(m, dev);
	free(w);
	return r;
}

int store_probe(const struct store_media *m, uint32_t dev, struct store_probe *out)
{
	struct wire_super *w;
	uint32_t copy;
	int r;

	memset(out, 0, sizeof(*out));
	if (dev >= m->n_dev)
		return err_set(-EINVAL, "there is no device %u", dev);
	w = malloc(sizeof(*w));
	if (!w)
		return err_set(-ENOMEM, "no memory to read a superblock");
	r = store_super_read(m, dev, w, &copy, NULL);
	if (!r) {
		memcpy(out->uuid, w->uuid, sizeof(out->uuid));
		out->version = w->version;
		out->ranks = w->ranks;
		out->n_dev = w->n_dev;
		out->device = w->device;
		out->bytes = w->bytes;
		out->device_bytes = w->device_bytes[w->device];
		out->chunk_bytes = w->chunk_bytes;
		out->epoch = w->epoch;
		out->n_segments = w->n_segments;
		out->clean = (int)w->clean;
		out->owner_pid = w->owner_pid;
		memcpy(out->owner_host, w->owner_host, sizeof(out->owner_host));
		memcpy(out->paths, w->paths, sizeof(out->paths));
	}
	free(w);
	return r;
}

/*
 * 1/64 of a member's range, between 64 MiB and 1 GiB: small enough to share a pool finely, large enough that a slot's
 * worth of loss at the end of a chunk is little. Below 2 GiB 1/32, so that small pools too have segments to hand out;
 * above 64 TiB as many as there may be.
 */
static uint64_t choose_chunk(uint64_t range)
{
	uint64_t chunk = range / 64, least = CHUNK_BYTES_MIN;

	if (chunk > CHOSEN_BYTES_MAX) {
		chunk = geom_round_up(range / SEGMENTS_MAX, MIB);
		return chunk < CHOSEN_BYTES_MAX ? CHOSEN_BYTES_MAX : chunk > CHUNK_BYTES_MAX ? CHUNK_BYTES_MAX : chunk;
	}
	if (chunk >= 64 * MIB)
		return chunk / MIB * MIB;
	if (range >= 2048 * MIB)
		return 64 * MIB;
	chunk = range / 32;
	if (chunk > 64 * MIB)
		chunk = 64 * MIB;
	least = range / 4 < 65536 ? CHUNK_BYTES_MIN : 65536;
	return chunk < least ? least : chunk / WIRE_PAGE_BYTES * WIRE_PAGE_BYTES;
}

/* Fills w's geometry from bytes, n_dev, ranks. -ENOSPC: too few bytes; -EDOM: segments too small or too large; -E2BIG:
 * too many of them. */
static int lay_out(struct wire_super *w, uint64_t segment_bytes)
{
	uint64_t device = w->bytes / w->n_dev / WIRE_PAGE_BYTES * WIRE_PAGE_BYTES;
	uint64_t parts, head, align, n;

	w->shared = w->ranks == 1 || w->n_dev % w->ranks != 0;
	parts = w->shared ? w->ranks : 1;
	w->ns_start_bytes = HEAD_BYTES;
	w->segment_start_bytes = HEAD_BYTES + 2ull * STORE_NAMESPACES_MAX * WIRE_PAGE_BYTES;
	/* Of device 0, and so of all, since segments are equal: room for slots of 8 KiB on one device, 32 KiB on four.
	 */
	w->checkpoint_room_bytes = device / 192 / WIRE_PAGE_BYTES * WIRE_PAGE_BYTES;
	if (w->checkpoint_room_bytes < WIRE_PAGE_BYTES)
		w->checkpoint_room_bytes = WIRE_PAGE_BYTES;
	if (w->checkpoint_room_bytes > 512 * MIB)
		w->checkpoint_room_bytes = 512 * MIB;
	head = w->segment_start_bytes + w->checkpoint_room_bytes;
	if (device <= head && !segment_bytes)
		return -ENOSPC;
	w->chunk_bytes = segment_bytes ? geom_round_up(segment_bytes / (w->n_dev * parts), WIRE_PAGE_BYTES)
	                               : choose_chunk((device - head) / parts);
	if (w->chunk_bytes < CHUNK_BYTES_MIN || w->chunk_bytes > CHUNK_BYTES_MAX)
		return -EDOM;
	align = w->chunk_bytes >= 64 * MIB ? MIB : WIRE_PAGE_BYTES;
	if (device < head + align)
		return -ENOSPC;
	n = (device - head - (align - WIRE_PAGE_BYTES)) / (w->chunk_bytes * parts + 2 * WIRE_PAGE_BYTES);
	w->n_segments = (uint32_t)n;
	if (!n || n > SEGMENTS_MAX)
		return n ? -E2BIG : -ENOSPC;
	w->checkpoint_start_bytes = w->segment_start_bytes + 2 * n * WIRE_PAGE_BYTES;
	for (uint32_t d = 0; d < w->n_dev; d++) {
		uint64_t start = d ? HEAD_BYTES : w->checkpoint_start_bytes + w->checkpoint_room_bytes;

		w->data_start_bytes[d] = geom_round_up(start, align);
		w->device_bytes[d] = w->data_start_bytes[d] + n * w->chunk_bytes * parts;
	}
	return 0;
}

static int does(uint32_t n_dev, uint32_t ranks, uint64_t bytes, uint64_t segment_bytes, uint64_t chunk_bytes)
{
	struct wire_super w = {.n_dev = n_dev, .ranks = ranks, .bytes = bytes};

	return !lay_out(&w, segment_bytes) && w.chunk_bytes >= chunk_bytes;
}

uint64_t store_super_least_bytes(uint32_t n_dev, uint32_t ranks, uint64_t segment_bytes, uint64_t chunk_bytes)
{
	uint64_t step = (uint64_t)n_dev * WIRE_PAGE_BYTES, little = 0, enough = 1; /* in steps */

	if (!segment_bytes && chunk_bytes > CHOSEN_BYTES_MAX)
		return 0; /* more than 64 TiB, for a chunk's sake */
	while (!does(n_dev, ranks, enough * step, segment_bytes, chunk_bytes)) {
		little = enough;
		enough *= 2;
		if (enough > INT64_MAX / step)
			return 0;
	}
	while (enough - little > 1) { /* for a larger pool never has smaller chunks */
		uint64_t middle = little + (enough - little) / 2;

		if (does(n_dev, ranks, middle * step, segment_bytes, chunk_bytes))
			enough = middle;
		else
			little = middle;
	}
	return enough * step;
}

/* Why it can't be laid out so, and how it could. */
static int refuse_layout(const struct wire_super *w, uint64_t segment_bytes, int why)
{
	uint64_t pieces = (uint64_t)w->n_dev * (w->shared ? w->ranks : 1);

	if (why == -ENOSPC)
		return err_set(
		    -EINVAL,
		               "%llu bytes are too few for a pool over %u device%s with %u rank%s%s: its metadata and one "
		               "segment take %llu; give at least that",
		    (unsigned long long)w->bytes, w->n_dev, w->n_dev == 1 ? "" : "s", w->ranks,
		    w->ranks == 1 ? "" : "s", segment_bytes ? " and segments of that size" : "",
		    (unsigned long long)store_super_least_bytes(w->n_dev, w->ranks, segment_bytes, 0));
	if (!segment_bytes)
		return err_set(
		    -EINVAL,
		               "%llu bytes over %u device%s are too many for a pool: a device, or a rank's share of it, "
		               "is %u segments of %llu bytes at most; give fewer",
		    (unsigned long long)w->bytes, w->n_dev, w->n_dev == 1 ? "" : "s", SEGMENTS_MAX,
		    (unsigned long long)CHUNK_BYTES_MAX);
	if (why == -E2BIG)
		return err_set(
		    -EINVAL,
		               "segments of %llu bytes would be more than the %u that a pool can have; make them %llu bytes "
		               "or larger, or leave the choice (0)",
		    (unsigned long long)segment_bytes, SEGMENTS_MAX,
		    (unsigned long long)geom_round_up(w->bytes / SEGMENTS_MAX + 1, pieces * WIRE_PAGE_BYTES));
	if (w->chunk_bytes < CHUNK_BYTES_MIN)
		return err_set(
		    -EINVAL,
		               "segments of %llu bytes are too small: each is cut into %llu pieces (devices, ranks on one "
		               "device) of at least %u bytes; give %llu or more, or leave the choice (0)",
		    (unsigned long long)segment_bytes, (unsigned long long)pieces, CHUNK_BYTES_MIN,
		    (unsigned long long)(pieces * CHUNK_BYTES_MIN));
	return err_set(-EINVAL, "segments of %llu bytes are too large; give %llu or less, or leave the choice (0)",
	               (unsigned long long)segment_bytes, (unsigned long long)(pieces * CHUNK_BYTES_MAX));
}

static int devices_check(const struct store_media *m, const struct store_format_opts *o)
{
	if (!m->n_dev || m->n_dev > TUTTI_DEVICES_MAX)
		return err_set(-EINVAL, "a pool has 1 to %u devices, not %u", TUTTI_DEVICES_MAX, m->n_dev);
	if (!o->ranks || o->ranks > TUTTI_RANKS_MAX)
		return err_set(-EINVAL, "a pool has 1 to %u ranks, not %u", TUTTI_RANKS_MAX, o->ranks);
	if (o->bytes > INT64_MAX)
		return err_set(-EINVAL, "a pool of %llu bytes is too large", (unsigned long long)o->bytes);
	for (uint32_t d = 0; d < m->n_dev; d++) {
		const char *path = o->paths && o->paths[d] ? o->paths[d] : "";

		if (m->bytes[d] < o->bytes / m->n_dev / WIRE_PAGE_BYTES * WIRE_PAGE_BYTES)
			return err_set(
			    -EINVAL,
			    "device %u (%s) has %llu bytes, an equal share of the pool is %llu: give fewer bytes", d,
			    path, (unsigned long long)m->bytes[d], (unsigned long long)(o->bytes / m->n_dev));
		if (strlen(path) >= WIRE_PATH_BYTES)
			return err_set(-EINVAL, "path of device %u is longer than %d bytes", d, WIRE_PATH_BYTES - 1);
	}
	return 0;
}

/* The old pool, if any, ends here: from now on device 0 carries no superblock until the last write of all. */
static int format_erase(const struct store_media *m)
{
	void *zeros = store_io_alloc(HEAD_BYTES);
	int r;

	if (!zeros)
		return err_set(-ENOMEM, "no memory to format");
	memset(zeros, 0, HEAD_BYTES);
	r = store_io_write(m, 0, 0, zeros, HEAD_BYTES);
	if (!r)
		r = store_io_flush(m, 0);
	free(zeros);
	return r;
}

static int format_write(const struct store_media *m, struct wire_super *w, int prewritten)
{
	int r = format_erase(m);

	if (!r)
		r = store_table_format(m, w, prewritten);
	for (uint32_t d = m->n_dev - 1; !r && d > 0; d--) {
		w->device = d;
		for (uint32_t copy = 0; !r && copy < 2; copy++)
			r = super_put(m, d, copy, w);
	}
	for (uint32_t d = 0; !r && d < m->n_dev; d++)
		r = store_io_flush(m, d);
	w->device = 0;
	for (uint32_t copy = 0; !r && copy < 2; copy++) {
		w->sequence = 2 - copy;
		r = super_put(m, 0, copy, w);
		if (!r)
			r = store_io_flush(m, 0);
	}
	return r;
}

/* Fills an empty w. */
static int format_plan(const struct store_media *m, const struct store_format_opts *o, struct wire_super *w)
{
	int r = devices_check(m, o);

	if (r)
		return r;
	w->magic = WIRE_SUPER_MAGIC;
	w->version = WIRE_DISK_VERSION;
	w->sequence = 1;
	memcpy(w->uuid, o->uuid, sizeof(w->uuid));
	w->ranks = o->ranks;
	w->n_dev = m->n_dev;
	w->bytes = o->bytes;
	for (uint32_t d = 0; o->paths && d < m->n_dev; d++)
		snprintf(w->paths[d], sizeof(w->paths[d]), "%s", o->paths[d] ? o->paths[d] : "");
	r = lay_out(w, o->segment_bytes);
	if (r)
		return refuse_layout(w, o->segment_bytes, r);
	if (!super_makes_sense(w))
		r = err_set(-EINVAL, "a pool of %llu bytes with segments of %llu can't be laid out",
		            (unsigned long long)o->bytes, (unsigned long long)o->segment_bytes);
	return r;
}

static int format(const struct store_media *m, const struct store_format_opts *o, int write)
{
	struct wire_super *w = calloc(1, sizeof(*w));
	int r = w ? format_plan(m, o, w) : err_set(-ENOMEM, "no memory to format");

	if (!r && write)
		r = format_write(m, w, o->prewritten);
	free(w);
	return r;
}

int store_format_check(const struct store_media *m, const struct store_format_opts *o) { return format(m, o, 0); }

int store_format(const struct store_media *m, const struct store_format_opts *o) { return format(m, o, 1); }
