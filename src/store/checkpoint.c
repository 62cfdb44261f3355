/*
 * checkpoint.c - the index as one stream (wire/disk.h), written by a clean close, read by the next open.
 *
 * The stream is applied while it is read and its checksum is known only at its end; whatever does not hold on the way
 * or there (-EBADMSG) makes the caller forget all of it and read the headers instead. So a checkpoint can only save
 * time.
 */
#include "store/state.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 4u /* transferred at a time */
#define BATCH 32u /* blocks of the index taken in at a time */

/* A stream being written or read. */
struct stream {
	struct store *s;
	uint8_t *buffer;
	uint64_t room;       /* of the buffer: BLOCKS blocks, or the whole stream if that is less */
	uint64_t at, filled; /* in the buffer */
	uint64_t offset;     /* of the buffer in the stream */
	uint64_t total;      /* bytes of the stream */
	uint64_t chain;
	int result;
};

static int stream_alloc(struct stream *t)
{
	t->room = (uint64_t)BLOCKS * WIRE_CHECKPOINT_BLOCK;
	if (t->total < t->room)
		t->room = geom_round_up(t->total, WIRE_PAGE_BYTES);
	t->buffer = store_io_alloc(t->room);
	return t->buffer ? 0 : err_set(-ENOMEM, "no memory for the checkpoint");
}

static void chain_add(struct stream *t, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += WIRE_CHECKPOINT_BLOCK) {
		uint64_t n = bytes - at < WIRE_CHECKPOINT_BLOCK ? bytes - at : WIRE_CHECKPOINT_BLOCK;
		uint64_t both[2] = {t->chain, hash_xxh3(t->buffer + at, n)};

		t->chain = hash_xxh3(both, sizeof(both));
	}
}

/* Transfers buffer[0..bytes), block by block, all at once. */
static void transfer(struct stream *t, uint64_t bytes, int write)
{
	struct store_io ios[BLOCKS];
	uint64_t whole = geom_round_up(bytes, WIRE_PAGE_BYTES);
	uint32_t n = 0;

	for (uint64_t at = 0; at < whole; at += WIRE_CHECKPOINT_BLOCK, n++)
		ios[n] = (struct store_io){
		    .write = write,
		    .offset_bytes = t->s->super.checkpoint_start_bytes + t->offset + at,
		    .bytes = whole - at < WIRE_CHECKPOINT_BLOCK ? whole - at : WIRE_CHECKPOINT_BLOCK,
		    .data = t->buffer + at,
		};
	t->result = store_io_many(&t->s->media, ios, n);
	store_progress(t->s, write ? "writing checkpoint" : "reading checkpoint", t->offset + bytes, t->total);
}

static void put_out(struct stream *t)
{
	if (t->result || !t->at)
		return;
	memset(t->buffer + t->at, 0, geom_round_up(t->at, WIRE_PAGE_BYTES) - t->at);
	chain_add(t, t->at);
	transfer(t, t->at, 1);
	t->offset += t->at;
	t->at = 0;
}

static void put(struct stream *t, const void *data, uint64_t bytes)
{
	const uint8_t *from = data;

	while (bytes && !t->result) {
		uint64_t room = t->room - t->at, n = bytes < room ? bytes : room;

		memcpy(t->buffer + t->at, from, n);
		t->at += n;
		from += n;
		bytes -= n;
		if (n == room)
			put_out(t);
	}
}

static void put_padding(struct stream *t, uint64_t bytes)
{
	static const uint8_t zeros[8];

	put(t, zeros, (8 - bytes % 8) % 8);
}

static void get(struct stream *t, void *data, uint64_t bytes)
{
	uint8_t *to = data;

	while (bytes && !t->result) {
		uint64_t n = t->filled - t->at < bytes ? t->filled - t->at : bytes;

		if (!n) {
			t->offset += t->filled;
			t->filled = t->total - t->offset;
			if (t->filled > t->room)
				t->filled = t->room;
			t->at = 0;
			if (!t->filled)
				t->result = -EBADMSG;
			else
				transfer(t, t->filled, 0);
			if (!t->result)
				chain_add(t, t->filled);
			continue;
		}
		memcpy(to, t->buffer + t->at, n);
		t->at += n;
		to += n;
		bytes -= n;
	}
}

static uint64_t bitmap_words(const struct store_ns *ns) { return (ns->geom.slots_per_segment + 63) / 64; }

static uint64_t stream_bytes(const struct store *s, uint32_t *n_namespaces)
{
	uint64_t bytes = sizeof(struct wire_checkpoint);

	*n_namespaces = 0;
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		const struct store_ns *ns = s->ns[i];

		if (!ns)
			continue;
		++*n_namespaces;
		bytes += sizeof(struct wire_checkpoint_ns) + geom_round_up(ns->n_segments * 4, 8) +
		         ns->n_segments * bitmap_words(ns) * 8 + ns->n_committed * sizeof(struct wire_checkpoint_block);
	}
	return bytes;
}

static int owns(const struct store_ns *ns, uint32_t segment)
{
	return ns->s->segments[segment].state == SEGMENT_OWNED && ns->s->segments[segment].owner == ns->number;
}

static int unsynced(const struct store *s, const struct slot *slot)
{
	return slot->commit > s->synced || (slot->commit > s->unsafe_low && slot->commit <= s->unsafe_high);
}

static void put_bitmap(struct stream *t, const struct store_ns *ns, uint32_t segment)
{
	uint32_t first = segment * ns->geom.slots_per_segment;

	for (uint64_t w = 0; w < bitmap_words(ns); w++) {
		uint64_t bits = 0;

		for (uint32_t k = 0; k < 64 && w * 64 + k < ns->geom.slots_per_segment; k++) {
			const struct slot *s = slot_at(ns, first + (uint32_t)w * 64 + k);
			int bit;

			switch (slot_state(s)) {
			case SLOT_FREE:
				bit = (s->bits & SLOT_HEADER) != 0;
				break;
			case SLOT_COMMITTED:
				bit = unsynced(t->s, s);
				break;
			default:
				bit = 1;
				break; /* free at the next open, and may have been written */
			}
			bits |= (uint64_t)bit << k;
		}
		put(t, &bits, sizeof(bits));
	}
}

struct aged {
	uint32_t age, slot;
};

static int by_age(const void *a, const void *b)
{
	const struct aged *x = a, *y = b;

	return x->age != y->age ? (x->age > y->age ? -1 : 1) : x->slot < y->slot ? -1 : x->slot > y->slot;
}

static int put_blocks(struct stream *t, const struct store_ns *ns)
{
	uint32_t spseg = ns->geom.slots_per_segment;
	struct aged *all = malloc((ns->n_committed + 1) * sizeof(*all));
	uint64_t n = 0;

	if (!all)
		return err_set(-ENOMEM, "no memory to write the checkpoint of namespace %s", ns->facts.model);
	for (uint32_t i = 0; i < t->s->n_segments; i++)
		for (uint32_t k = 0; owns(ns, i) && k < spseg; k++)
			if (slot_state(slot_at(ns, i * spseg + k)) == SLOT_COMMITTED)
				all[n++] = (struct aged){ns->clock - slot_at(ns, i * spseg + k)->stamp, i * spseg + k};
	qsort(all, n, sizeof(*all), by_age);
	for (uint64_t i = 0; i < n; i++) {
		const struct slot *s = slot_at(ns, all[i].slot);
		struct wire_checkpoint_block b = {.slot = all[i].slot, .parent = s->parent};

		memcpy(b.key, s->key.b, sizeof(b.key));
		put(t, &b, sizeof(b));
	}
	free(all);
	return 0;
}

static int put_ns(struct stream *t, const struct store_ns *ns)
{
	struct wire_checkpoint_ns head = {.number = ns->number,
	                                  .n_segments = (uint32_t)ns->n_segments,
	                                  .generation = ns->generation,
	                                  .n_blocks = ns->n_committed};

	put(t, &head, sizeof(head));
	for (uint32_t i = 0; i < t->s->n_segments; i++)
		if (owns(ns, i))
			put(t, &i, sizeof(i));
	put_padding(t, ns->n_segments * 4);
	for (uint32_t i = 0; i < t->s->n_segments; i++)
		if (owns(ns, i))
			put_bitmap(t, ns, i);
	return put_blocks(t, ns);
}

/* Fills super.checkpoint_*. Bytes 0: it does not fit. */
int store_checkpoint_write(struct store *s)
{
	struct wire_checkpoint head = {
	    .magic = WIRE_CHECKPOINT_MAGIC, .version = WIRE_DISK_VERSION, .epoch = s->super.epoch};
	struct stream t = {.s = s};
	int r = 0;

	s->super.checkpoint_bytes = s->super.checkpoint_sum = 0;
	if (store_repair_pending(s)) /* a checkpoint would say that what is lost was nobody's */
		return 0;
	t.total = stream_bytes(s, &head.n_namespaces);
	if (t.total > s->super.checkpoint_room_bytes) {
		log_note("the index needs a checkpoint of %llu bytes, the pool has room for %llu: the next open reads "
		         "all headers",
		         (unsigned long long)t.total, (unsigned long long)s->super.checkpoint_room_bytes);
		return 0;
	}
	memcpy(head.uuid, s->super.uuid, sizeof(head.uuid));
	r = stream_alloc(&t);
	if (r)
		return r;
	put(&t, &head, sizeof(head));
	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++)
		if (s->ns[i])
			r = put_ns(&t, s->ns[i]);
	put_out(&t);
	free(t.buffer);
	if (r || t.result)
		return r ? r : t.result;
	s->super.checkpoint_bytes = t.offset;
	s->super.checkpoint_sum = t.chain;
	return 0;
}

/* The segments must be those that the records name. */
static void get_segments(struct stream *t, struct store_ns *ns)
{
	uint64_t padding = 0;

	for (uint32_t i = 0; !t->result && i < t->s->n_segments; i++) {
		uint32_t number = NONE;

		if (!owns(ns, i))
			continue;
		get(t, &number, sizeof(number));
		if (number != i)
			t->result = t->result ? t->result : -EBADMSG;
	}
	get(t, &padding, (8 - ns->n_segments * 4 % 8) % 8);
	for (uint32_t i = 0; !t->result && i < t->s->n_segments; i++) {
		uint32_t first = i * ns->geom.slots_per_segment;

		if (!owns(ns, i))
			continue;
		store_space_add(ns, i);
		for (uint64_t w = 0; !t->result && w < bitmap_words(ns); w++) {
			uint64_t bits = 0;

			get(t, &bits, sizeof(bits));
			for (uint32_t k = 0; k < 64 && w * 64 + k < ns->geom.slots_per_segment; k++)
				if (bits >> k & 1)
					slot_at(ns, first + (uint32_t)w * 64 + k)->bits |= SLOT_HEADER;
		}
	}
}

static int place(struct store_ns *ns, const struct wire_checkpoint_block *b)
{
	static const struct tutti_key none;
	struct tutti_key key;
	struct slot *s;

	memcpy(key.b, b->key, sizeof(key.b));
	if (b->slot >= ns->slots_max || !owns(ns, b->slot / ns->geom.slots_per_segment) ||
	    slot_state(slot_at(ns, b->slot)) != SLOT_FREE || !memcmp(&key, &none, sizeof(none)) ||
	    store_index_find(ns, &key) != NONE || (b->parent != NONE && b->parent >= ns->slots_max))
		return -EBADMSG;
	s = slot_at(ns, b->slot);
	s->key = key;
	s->parent = b->parent;
	s->commit = s->bits & SLOT_HEADER ? COMMIT_NEVER : 0;
	s->bits = SLOT_HEADER;
	s->stamp = 0; /* 1 once its depth is known */
	slot_set_state(s, SLOT_COMMITTED);
	ns->n_committed++;
	store_space_take_exactly(ns, b->slot);
	store_index_insert(ns, b->slot);
	return 0;
}

/* Depths, from the parents. -EBADMSG: a parent is not there, or the parents form a circle. */
static int find_depth(struct store_ns *ns, uint32_t slot, uint64_t n)
{
	uint32_t at = slot, depth;
	uint64_t steps = 0;

	while (at != NONE && !slot_at(ns, at)->stamp) {
		if (slot_state(slot_at(ns, at)) != SLOT_COMMITTED || ++steps > n)
			return -EBADMSG;
		at = slot_at(ns, at)->parent;
	}
	depth = at == NONE ? 0 : slot_depth(slot_at(ns, at)) + 1;
	if (depth + steps > (uint64_t)DEPTH_MAX + 1)
		return -EBADMSG;
	for (at = slot; steps-- > 0; at = slot_at(ns, at)->parent) {
		slot_at(ns, at)->bits |= depth + (uint32_t)steps;
		slot_at(ns, at)->stamp = 1;
	}
	return 0;
}

static int get_blocks(struct stream *t, struct store_ns *ns, uint64_t n)
{
	uint32_t *order = malloc((n + 1) * sizeof(*order));
	int r = 0;

	if (!order)
		return err_set(-ENOMEM, "no memory to read the checkpoint");
	for (uint64_t i = 0; !r && i < n; i += BATCH) {
		struct wire_checkpoint_block b[BATCH];
		uint64_t here = n - i < BATCH ? n - i : BATCH;

		/* The table's lines of a batch are fetched together: they are where an insert waits. */
		get(t, b, here * sizeof(*b));
		r = t->result;
		for (uint64_t k = 0; !r && k < here; k++) {
			struct tutti_key key;

			memcpy(key.b, b[k].key, sizeof(key.b));
			store_index_prefetch(ns, &key);
		}
		for (uint64_t k = 0; !r && k < here; k++) {
			r = place(ns, &b[k]);
			order[i + k] = b[k].slot;
		}
	}
	for (uint64_t i = 0; !r && i < n; i++)
		r = find_depth(ns, order[i], n);
	if (!r)
		store_tree_build(ns, order, n);
	free(order);
	return r;
}

static int get_ns(struct stream *t)
{
	struct wire_checkpoint_ns head;
	struct store_ns *ns;

	get(t, &head, sizeof(head));
	if (t->result)
		return t->result;
	if (head.number >= STORE_NAMESPACES_MAX || !t->s->ns[head.number])
		return -EBADMSG;
	ns = t->s->ns[head.number];
	if (head.generation != ns->generation || head.n_segments != ns->n_segments || ns->n_committed || ns->n_free ||
	    head.n_blocks > ns->n_segments * ns->geom.slots_per_segment)
		return -EBADMSG;
	get_segments(t, ns);
	return t->result ? t->result : get_blocks(t, ns, head.n_blocks);
}

int store_checkpoint_load(struct store *s)
{
	struct stream t = {.s = s, .total = s->super.checkpoint_bytes};
	struct wire_checkpoint head;
	int r;

	r = stream_alloc(&t);
	if (r)
		return r;
	get(&t, &head, sizeof(head));
	r = t.result;
	if (!r &&
	    (head.magic != WIRE_CHECKPOINT_MAGIC || head.version != WIRE_DISK_VERSION || head.epoch != s->super.epoch ||
	     memcmp(head.uuid, s->super.uuid, sizeof(head.uuid)) || head.n_namespaces > STORE_NAMESPACES_MAX))
		r = -EBADMSG;
	for (uint32_t i = 0; !r && i < head.n_namespaces; i++)
		r = get_ns(&t);
	if (!r && (t.offset + t.at != t.total || t.chain != s->super.checkpoint_sum))
		r = -EBADMSG;
	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++)
		if (s->ns[i] && s->ns[i]->n_segments && !s->ns[i]->n_free && !s->ns[i]->n_committed)
			r = -EBADMSG; /* it has segments, and the stream did not know it */
	free(t.buffer);
	return r;
}
