/*
 * table.c - segment records and namespace records: two copies each, the sound one with the higher sequence counts.
 *
 * A segment's record names its owner, the owner's generation at hand-out and the first sequence number that a header in
 * it may bear. So a segment changes hands, or a namespace is emptied, by one durable write, and headers that lie there
 * from earlier can't be mistaken for valid ones: no slot needs to be wiped.
 */
#include "store/state.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_PAGES 256u
#define WRITTEN_BYTES_MIN 64u /* a namespace record has more: magic, uuid, digest, the record itself */

static uint64_t page_sum(const void *page)
{
	struct wire_segment w; /* both kinds of record have their sum at the same place */

	memcpy(&w, page, sizeof(w));
	w.sum = 0;
	return hash_xxh3(&w, sizeof(w));
}

static void segment_fill(struct wire_segment *w, const uint8_t *uuid, uint32_t number)
{
	memset(w, 0, sizeof(*w));
	w->magic = WIRE_SEGMENT_MAGIC;
	w->version = WIRE_DISK_VERSION;
	w->number = number;
	w->owner = WIRE_NONE;
	w->sequence = 1;
	memcpy(w->uuid, uuid, sizeof(w->uuid));
}

int store_table_format(const struct store_media *m, const struct wire_super *super, int prewritten)
{
	uint64_t pages = 2ull * (STORE_NAMESPACES_MAX + super->n_segments);
	uint8_t *batch = store_io_alloc(BATCH_PAGES * WIRE_PAGE_BYTES);
	int r = 0;

	if (!batch)
		return err_set(-ENOMEM, "no memory to format");
	for (uint64_t at = 0; !r && at < pages; at += BATCH_PAGES) {
		uint64_t n = pages - at < BATCH_PAGES ? pages - at : BATCH_PAGES;

		memset(batch, 0, n * WIRE_PAGE_BYTES);
		for (uint64_t i = 0; i < n; i++) {
			uint64_t page = at + i;
			struct wire_segment *w = (struct wire_segment *)(void *)(batch + i * WIRE_PAGE_BYTES);

			if (page < 2 * STORE_NAMESPACES_MAX)
				continue;
			segment_fill(w, super->uuid, (uint32_t)((page - 2 * STORE_NAMESPACES_MAX) / 2));
			w->flags = prewritten ? WIRE_SEGMENT_PREWRITTEN : 0;
			w->sum = page_sum(w);
		}
		r = store_io_write(m, 0, super->ns_start_bytes + at * WIRE_PAGE_BYTES, batch, n * WIRE_PAGE_BYTES);
	}
	free(batch);
	return r;
}

static int ns_sound(const struct wire_ns *w, const struct wire_super *super, uint32_t number)
{
	return w->magic == WIRE_NS_MAGIC && w->version == WIRE_DISK_VERSION && w->number == number &&
	       w->sum == page_sum(w) && !memcmp(w->uuid, super->uuid, sizeof(w->uuid)) &&
	       w->record_bytes <= sizeof(w->record);
}

static int segment_sound(const struct wire_segment *w, const struct wire_super *super, uint32_t number)
{
	return w->magic == WIRE_SEGMENT_MAGIC && w->version == WIRE_DISK_VERSION && w->number == number &&
	       w->sum == page_sum(w) && !memcmp(w->uuid, super->uuid, sizeof(w->uuid));
}

/* Was something written here? A page that was never used is zeros, but for bits that the medium turned over. */
static int was_written(const uint8_t *page)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < WIRE_PAGE_BYTES; i++)
		n += page[i] != 0;
	return n >= WRITTEN_BYTES_MIN;
}

/* Of the two copies at w: the number of the better one, or -1. */
static int ns_choose(const struct wire_ns *w, const struct wire_super *super, uint32_t number)
{
	int first = ns_sound(&w[0], super, number), second = ns_sound(&w[1], super, number);

	if (first && second)
		return w[1].sequence > w[0].sequence;
	return second ? 1 : first ? 0 : -1;
}

static int read_namespaces(struct store *s, uint8_t *batch)
{
	uint64_t bytes = 2ull * STORE_NAMESPACES_MAX * WIRE_PAGE_BYTES;
	uint32_t unread;
	int r = store_io_read_around(&s->media, 0, s->super.ns_start_bytes, batch, bytes, &unread);

	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++) {
		const struct wire_ns *w = (const struct wire_ns *)(void *)(batch + 2ull * i * WIRE_PAGE_BYTES);
		int best = ns_choose(w, &s->super, i);

		if (best >= 0) {
			r = store_ns_make(s, i, &w[best], &s->ns[i]);
			if (!r) {
				s->ns[i]->record_copy = (uint32_t)best;
				s->ns[i]->damaged = !ns_sound(&w[!best], &s->super, i);
			}
			if (r == -EBADMSG) {
				log_warn("namespace %u: its record makes no sense: %s", i, err_text());
				s->ns_damaged |= 1ull << i;
				r = 0;
			}
		} else if (was_written((const uint8_t *)&w[0]) && was_written((const uint8_t *)&w[1])) {
			s->ns_damaged |= 1ull << i;
		}
	}
	return r;
}

static void segment_take(struct store *s, uint32_t number, const struct wire_segment *w, uint32_t copy)
{
	struct segment *g = &s->segments[number];

	g->copy = (uint8_t)copy;
	g->sequence = w->sequence;
	g->prewritten = (w->flags & WIRE_SEGMENT_PREWRITTEN) != 0;
	g->first_sequence = w->first_sequence;
	if (w->owner < STORE_NAMESPACES_MAX)
		s->ns_owning |= 1ull << w->owner;
	if (w->owner >= STORE_NAMESPACES_MAX || !s->ns[w->owner])
		return;
	/* Cleared, by a record that counts, and not handed out since. */
	g->left = s->ns[w->owner]->generation > w->generation;
	if (s->ns[w->owner]->generation != w->generation)
		return;
	g->state = SEGMENT_OWNED;
	g->owner = w->owner;
	s->ns[w->owner]->n_segments++;
}

static int read_segments(struct store *s, uint8_t *batch)
{
	int r = 0;

	for (uint32_t at = 0; !r && at < s->n_segments; at += BATCH_PAGES / 2) {
		uint32_t n = s->n_segments - at < BATCH_PAGES / 2 ? s->n_segments - at : BATCH_PAGES / 2, unread;

		r = store_io_read_around(&s->media, 0, s->super.segment_start_bytes + 2ull * at * WIRE_PAGE_BYTES,
		                         batch, 2ull * n * WIRE_PAGE_BYTES, &unread);
		for (uint32_t i = 0; !r && i < n; i++) {
			const struct wire_segment *w =
			    (const struct wire_segment *)(void *)(batch + 2ull * i * WIRE_PAGE_BYTES);
			int first = segment_sound(&w[0], &s->super, at + i),
			    second = segment_sound(&w[1], &s->super, at + i);

			uint32_t best = first && second ? w[1].sequence > w[0].sequence : (uint32_t)second;

			s->segments[at + i].damaged = (uint8_t)(!first + !second);
			if (first || second)
				segment_take(s, at + i, &w[best], best);
		}
	}
	return r;
}

int store_table_read(struct store *s)
{
	uint8_t *batch = store_io_alloc(BATCH_PAGES * WIRE_PAGE_BYTES);
	int r;

	_Static_assert(2 * STORE_NAMESPACES_MAX <= BATCH_PAGES, "all namespace records in one read");
	if (!batch)
		return err_set(-ENOMEM, "no memory to open the pool");
	r = read_namespaces(s, batch);
	if (!r)
		r = read_segments(s, batch);
	free(batch);
	return r;
}

int store_table_write_ns(struct store_ns *ns)
{
	struct store *s = ns->s;
	struct wire_ns *w = (struct wire_ns *)(void *)s->page;
	uint64_t offset = s->super.ns_start_bytes + 2ull * ns->number * WIRE_PAGE_BYTES;
	int r = 0;

	memset(w, 0, sizeof(*w));
	w->magic = WIRE_NS_MAGIC;
	w->version = WIRE_DISK_VERSION;
	w->number = ns->number;
	memcpy(w->uuid, s->super.uuid, sizeof(w->uuid));
	w->generation = ns->generation;
	w->set_slots = ns->geom.g;
	w->record_bytes = ns->record_bytes;
	memcpy(w->digest, ns->digest.b, sizeof(w->digest));
	memcpy(w->record, ns->record, ns->record_bytes);
	/* Both copies: an older generation must not come back when one copy is lost. */
	for (int i = 0; !r && i < 2; i++) {
		w->sequence = ++ns->record_sequence;
		w->sum = page_sum(w);
		r = store_io_write(&s->media, 0, offset + !ns->record_copy * (uint64_t)WIRE_PAGE_BYTES, w, sizeof(*w));
		if (!r)
			r = store_io_flush(&s->media, 0);
		if (!r)
			ns->record_copy = !ns->record_copy;
	}
	ns->durable = !r;
	return r;
}

int store_table_wipe_ns(struct store *s, uint32_t number)
{
	uint64_t offset = s->super.ns_start_bytes + 2ull * number * WIRE_PAGE_BYTES;
	int r = 0;

	memset(s->page, 0, WIRE_PAGE_BYTES);
	for (int i = 0; !r && i < 2; i++)
		r = store_io_write(&s->media, 0, offset + (uint64_t)i * WIRE_PAGE_BYTES, s->page, WIRE_PAGE_BYTES);
	return r ? r : store_io_flush(&s->media, 0);
}

/* A record newer than both copies, in memory at w. */
static void segment_next(struct store *s, uint32_t segment, struct wire_segment *w)
{
	struct segment *g = &s->segments[segment];

	segment_fill(w, s->super.uuid, segment);
	w->flags = g->prewritten ? WIRE_SEGMENT_PREWRITTEN : 0;
	w->first_sequence = g->first_sequence;
	if (g->state == SEGMENT_OWNED) {
		w->owner = g->owner;
		w->generation = s->ns[g->owner]->generation;
	}
	w->sequence = ++g->sequence;
	w->sum = 0;
	w->sum = page_sum(w);
}

/* Writes one copy of each, at once: the one that does not count. Not flushed. */
static int write_copies(struct store *s, const uint32_t *segments, uint32_t n)
{
	struct store_io ios[SEGMENTS_AT_ONCE];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t copy = !s->segments[segments[i]].copy;

		ios[i] = (struct store_io){.write = 1,
		                           .offset_bytes = s->super.segment_start_bytes +
		                                           (2ull * segments[i] + copy) * WIRE_PAGE_BYTES,
		                           .bytes = WIRE_PAGE_BYTES,
		                           .data = s->page + (uint64_t)i * WIRE_PAGE_BYTES};
		segment_next(s, segments[i], ios[i].data);
	}
	return store_io_many(&s->media, ios, n);
}

static void count_other_copies(struct store *s, const uint32_t *segments, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		s->segments[segments[i]].copy = !s->segments[segments[i]].copy;
}

/*
 * The copies that don't count first, then a flush: from there on the new records are durable, all of them, and count.
 * Then the others, since if only one were new and the medium lost it, the older owner would count, and all blocks be
 * lost. Their flush is whichever comes next; until then the first ones go on to count, so that nothing overwrites them.
 */
int store_table_write_segments(struct store *s, const uint32_t *segments, uint32_t n)
{
	int r = write_copies(s, segments, n);

	if (!r)
		r = store_io_flush(&s->media, 0);
	if (r)
		return r;
	count_other_copies(s, segments, n);
	r = write_copies(s, segments, n);
	for (uint32_t i = 0; i < n && !r; i++)
		s->segments[segments[i]].damaged = 0;
	return r;
}

int store_table_find_ns(const struct store_media *m, const struct wire_super *super, const struct tutti_key *digest,
                        struct wire_ns *out)
{
	uint64_t bytes = 2ull * STORE_NAMESPACES_MAX * WIRE_PAGE_BYTES;
	struct wire_ns *w = store_io_alloc(bytes);
	uint32_t unread;
	int r;

	if (!w)
		return err_set(-ENOMEM, "no memory to read namespace records");
	r = store_io_read_around(m, 0, super->ns_start_bytes, w, bytes, &unread);
	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++) {
		int best = ns_choose(&w[2 * i], super, i);

		if (best >= 0 && !memcmp(w[2 * i + (uint32_t)best].digest, digest->b, sizeof(digest->b))) {
			*out = w[2 * i + (uint32_t)best];
			free(w);
			return 0;
		}
	}
	free(w);
	return r ? r : err_set(-ENOENT, "the pool has no such namespace: the store must open it first");
}

int store_table_geom(const struct wire_super *super, const struct store_ns_facts *facts, uint32_t g, uint32_t rank,
                     struct geom *out)
{
	uint32_t own = super->shared ? super->n_dev : super->n_dev / super->ranks;

	memset(out, 0, sizeof(*out));
	out->layers = facts->layers;
	out->objects_per_layer = facts->objects_per_layer;
	out->object_bytes = facts->object_bytes;
	out->chunk_bytes = super->chunk_bytes;
	out->n_segments = super->n_segments;
	out->g = g;
	out->n_dev = own;
	for (uint32_t d = 0; d < own; d++) {
		out->dev[d] = super->shared ? d : rank * own + d;
		out->start_bytes[d] = super->data_start_bytes[out->dev[d]];
		if (super->shared)
			out->start_bytes[d] += (uint64_t)rank * super->n_segments * super->chunk_bytes;
	}
	return geom_derive(out);
}
