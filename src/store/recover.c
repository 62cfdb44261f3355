/*
 * recover.c - what is there, read from the slots' headers: after a kill, or when there is no checkpoint.
 *
 * Every header of every owned segment is read, in large runs, many at once, within a bounded window. A slot is admitted
 * when the headers of all ranks are sound, of this namespace, generation and segment owner, and agree. Of two slots
 * with one key the later reservation wins. Then blocks are linked; one whose parent is missing, or not one level above,
 * is an orphan: it is freed, with all below it. (Its header stays on disk; should its parent come back and another
 * recovery follow, the block is right again and is admitted then.) Nothing is written.
 */
#include "store/state.h"

#include "base/err.h"
#include "geom/header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW_BYTES (32ull << 20)
#define RUN_BYTES (1ull << 20)
#define RUNS_MAX 4096u

/* Of an admitted slot, until it is linked. */
struct found {
	struct tutti_key parent;
	uint64_t sequence;
};

/* Neighbouring headers of one set, read from all ranks. */
struct run {
	uint32_t slot, n;
	uint64_t at; /* in the buffer: of rank 0's; the others follow */
};

struct scan {
	struct store *s;
	struct store_ns *ns;
	struct geom geom[TUTTI_RANKS_MAX];
	struct found *found; /* by slot */
	uint8_t *buffer;
	uint64_t room, used;
	struct run runs[RUNS_MAX];
	struct store_io ios[RUNS_MAX];
	uint32_t n_runs, n_ios;
	uint64_t done, total; /* slots */
};

struct ordered {
	uint64_t sequence;
	uint32_t slot, depth;
};

/* One with another number of objects is not damaged: an earlier owner of the segment left it. */
int store_header_damaged(const struct store_ns *ns, const struct wire_header *h)
{
	uint32_t objects = geom_objects(&ns->geom);

	return geom_header_check(h, objects) == GEOM_HEADER_CORRUPT && h->objects == objects;
}

/* One header of one rank: sound and current, or not. *bad: damaged. */
static int header_current(const struct scan *c, const struct wire_header *h, uint32_t rank, uint64_t first_sequence,
                          int *bad)
{
	*bad |= store_header_damaged(c->ns, h);
	return geom_header_check(h, geom_objects(&c->ns->geom)) == GEOM_HEADER_OK && h->rank == rank &&
	       h->generation == c->ns->generation && geom_key_equal(h->ns_digest, c->ns->digest.b) &&
	       h->object_bytes == c->ns->geom.object_bytes && h->sequence >= first_sequence &&
	       h->sequence >> 40 <= c->s->super.epoch && h->depth <= DEPTH_MAX;
}

static int headers_agree(const struct wire_header *a, const struct wire_header *b)
{
	return a->depth == b->depth && a->sequence == b->sequence && geom_key_equal(a->key, b->key) &&
	       geom_key_equal(a->parent, b->parent);
}

static void leave(struct store_ns *ns, uint32_t slot)
{
	store_index_remove(ns, slot);
	ns->n_committed--;
	slot_at(ns, slot)->bits |= SLOT_HEADER;
	store_space_give(ns, slot);
}

static void admit(struct scan *c, uint32_t slot, const struct wire_header *h)
{
	struct store_ns *ns = c->ns;
	struct slot *s = slot_at(ns, slot);
	struct tutti_key key;
	uint32_t other;

	memcpy(key.b, h->key, sizeof(key.b));
	s->bits = SLOT_HEADER;
	other = store_index_find(ns, &key);
	if (other != NONE) {
		if (c->found[other].sequence >= h->sequence)
			return;
		leave(ns, other);
	}
	s->key = key;
	s->bits |= h->depth;
	slot_set_state(s, SLOT_COMMITTED);
	s->commit = COMMIT_NEVER;
	memcpy(c->found[slot].parent.b, h->parent, sizeof(h->parent));
	c->found[slot].sequence = h->sequence;
	ns->n_committed++;
	store_space_take_exactly(ns, slot);
	store_index_insert(ns, slot);
}

/* Looks at the headers of slot i of a run. unread: a rank's could not be read. */
static void judge(struct scan *c, const struct run *run, uint32_t i, int unread)
{
	static const uint8_t none[WIRE_KEY_BYTES];
	uint32_t ranks = c->s->super.ranks, slot = run->slot + i;
	uint64_t first_sequence = segment_of(c->ns, slot)->first_sequence;
	const struct wire_header *first = NULL;
	int current = 0, agree = 1, bad = unread;

	for (uint32_t rank = 0; rank < ranks; rank++) {
		uint64_t at = run->at + ((uint64_t)rank * run->n + i) * c->ns->geom.header_bytes;
		const struct wire_header *h = (const struct wire_header *)(const void *)(c->buffer + at);

		if (!header_current(c, h, rank, first_sequence, &bad))
			continue;
		current++;
		if (!first)
			first = h;
		else if (!headers_agree(first, h))
			agree = 0;
	}
	if (!unread && current == (int)ranks && agree && !geom_key_equal(first->key, none)) {
		admit(c, slot, first);
		return;
	}
	if (current || unread)
		slot_at(c->ns, slot)->bits |= SLOT_HEADER;
	c->s->recovered_bad += (uint64_t)(bad != 0);
}

/* A medium's error costs the blocks that it hides; any other error (a timeout, a lost device) ends the open. */
static int retry(struct scan *c, struct store_io *io)
{
	int r = c->s->media.io(c->s->media.self, io, 1);

	if (r > 0 || r == -EIO) {
		log_warn("device %u: %llu bytes of headers at byte %llu cannot be read (%s); their blocks are lost",
		         io->dev, (unsigned long long)io->bytes, (unsigned long long)io->offset_bytes, err_name(r));
		return 0;
	}
	return r ? err_set(r, "device %u: headers at byte %llu cannot be read: %s", io->dev,
	                   (unsigned long long)io->offset_bytes, err_name(r))
	         : 0;
}

/* Headers that could not be read count as zeros. */
static void judge_run(struct scan *c, uint32_t k)
{
	uint32_t ranks = c->s->super.ranks;
	int unread = 0;

	for (uint32_t rank = 0; rank < ranks; rank++) {
		const struct store_io *io = &c->ios[k * ranks + rank];

		if (io->result)
			memset(io->data, 0, io->bytes);
		unread |= io->result != 0;
	}
	for (uint32_t i = 0; i < c->runs[k].n; i++)
		judge(c, &c->runs[k], i, unread);
	c->done += c->runs[k].n;
}

/* Reads all runs that were added, at once, and looks at them; then the window is empty. */
static int window_read(struct scan *c)
{
	int failed = c->n_ios && c->s->media.io(c->s->media.self, c->ios, c->n_ios);

	for (uint32_t i = 0; failed && i < c->n_ios; i++) {
		int r = c->ios[i].result ? retry(c, &c->ios[i]) : 0;

		if (r)
			return r;
	}
	for (uint32_t k = 0; k < c->n_runs; k++)
		judge_run(c, k);
	c->n_runs = c->n_ios = 0;
	c->used = 0;
	store_progress(c->s, "reading headers", c->done, c->total);
	return 0;
}

static int run_add(struct scan *c, uint32_t slot, uint32_t n)
{
	uint32_t ranks = c->s->super.ranks;
	uint64_t bytes = n * c->ns->geom.header_bytes;

	if (c->used + bytes * ranks > c->room || c->n_ios + ranks > RUNS_MAX) {
		int r = window_read(c);

		if (r)
			return r;
	}
	c->runs[c->n_runs++] = (struct run){.slot = slot, .n = n, .at = c->used};
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct geom_place p = geom_place(&c->geom[rank], slot);

		c->ios[c->n_ios++] = (struct store_io){.dev = c->geom[rank].dev[p.dev],
		                                       .offset_bytes = geom_header_offset(&c->geom[rank], &p),
		                                       .bytes = bytes,
		                                       .data = c->buffer + c->used};
		c->used += bytes;
	}
	return 0;
}

static int scan_set(struct scan *c, uint32_t set)
{
	uint64_t most = RUN_BYTES / c->ns->geom.header_bytes;
	uint32_t first, n = geom_set_slots(&c->ns->geom, set, &first), run_max = most ? (uint32_t)most : 1;
	int r = 0;

	for (uint32_t at = 0; at < n && !r; at += run_max)
		r = run_add(c, first + at, n - at < run_max ? n - at : run_max);
	return r;
}

static int scan_segments(struct scan *c)
{
	struct store_ns *ns = c->ns;
	uint32_t per = geom_sets_per_segment(&ns->geom);

	for (uint32_t i = 0; i < c->s->n_segments; i++) {
		const struct segment *g = &c->s->segments[i];

		if (g->state != SEGMENT_OWNED || g->owner != ns->number)
			continue;
		store_space_add(ns, i);
		for (uint32_t set = i * per; set < (i + 1) * per; set++) {
			int r = scan_set(c, set);

			if (r)
				return r;
		}
	}
	return window_read(c);
}

/* While linking, slot.stamp says what is known of a slot. */
enum { UNKNOWN, GOOD, ORPHAN };

static void link_parent(struct scan *c, uint32_t slot)
{
	static const struct tutti_key none;
	struct slot *s = slot_at(c->ns, slot);
	const struct tutti_key *parent = &c->found[slot].parent;

	s->stamp = UNKNOWN;
	s->parent = NONE;
	if (!memcmp(parent, &none, sizeof(none))) {
		s->stamp = slot_depth(s) ? ORPHAN : GOOD;
		return;
	}
	s->parent = store_index_find(c->ns, parent);
	if (s->parent == NONE || slot_depth(slot_at(c->ns, s->parent)) + 1 != slot_depth(s))
		s->stamp = ORPHAN;
}

/* Depths fall by one at each step up, so a walk ends; it stops at what an earlier walk found out. */
static void judge_chain(struct store_ns *ns, uint32_t slot)
{
	uint32_t top = slot;
	uint32_t verdict;

	while (slot_at(ns, top)->stamp == UNKNOWN)
		top = slot_at(ns, top)->parent;
	verdict = slot_at(ns, top)->stamp;
	for (uint32_t at = slot; at != top; at = slot_at(ns, at)->parent)
		slot_at(ns, at)->stamp = verdict;
}

static int by_sequence(const void *a, const void *b)
{
	const struct ordered *x = a, *y = b;

	if (x->sequence != y->sequence)
		return x->sequence < y->sequence ? -1 : 1;
	/* Of one reservation the end is the coldest: it goes first. */
	return x->depth != y->depth ? (x->depth > y->depth ? -1 : 1) : 0;
}

/* Says of each admitted block whether a chain leads to it, and sorts them: the coldest first. */
static void order_all(struct scan *c, struct ordered *all, uint64_t n)
{
	struct store_ns *ns = c->ns;
	uint64_t at = 0;

	for (uint32_t slot = 0; at < n; slot++)
		if (slot_state(slot_at(ns, slot)) == SLOT_COMMITTED)
			all[at++] = (struct ordered){c->found[slot].sequence, slot, slot_depth(slot_at(ns, slot))};
	for (uint64_t i = 0; i < n; i++)
		link_parent(c, all[i].slot);
	for (uint64_t i = 0; i < n; i++)
		judge_chain(ns, all[i].slot);
	qsort(all, n, sizeof(*all), by_sequence);
}

/* Links what a chain leads to; the rest leaves. */
static int link_all(struct scan *c)
{
	struct store_ns *ns = c->ns;
	uint64_t n = ns->n_committed, good = 0;
	struct ordered *all = malloc((n + 1) * sizeof(*all));
	uint32_t *order = malloc((n + 1) * sizeof(*order));

	if (!all || !order) {
		free(all);
		free(order);
		return err_set(-ENOMEM, "no memory to recover %llu blocks", (unsigned long long)n);
	}
	order_all(c, all, n);
	for (uint64_t i = 0; i < n; i++) {
		if (slot_at(ns, all[i].slot)->stamp == GOOD)
			order[good++] = all[i].slot;
		else
			leave(ns, all[i].slot);
	}
	c->s->recovered_orphans += n - good;
	c->s->recovered_slots += good;
	store_tree_build(ns, order, good);
	free(all);
	free(order);
	return 0;
}

static int scan_ns(struct scan *c, struct store_ns *ns)
{
	uint64_t bytes = ns->slots_max * sizeof(*c->found), largest;
	int r;

	c->ns = ns;
	c->n_runs = c->n_ios = 0;
	c->used = 0;
	for (uint32_t rank = 0; rank < c->s->super.ranks; rank++)
		store_ns_geom(ns, rank, &c->geom[rank]);
	/* No more than a namespace's headers, no less than one slot's. */
	largest = ns->n_segments * ns->geom.slots_per_segment * ns->geom.header_bytes * c->s->super.ranks;
	c->room = largest < WINDOW_BYTES ? largest : WINDOW_BYTES;
	c->found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->found == MAP_FAILED)
		return err_set(-ENOMEM, "no address space to recover namespace %s", ns->facts.model);
	c->buffer = store_io_alloc(c->room);
	r = c->buffer ? scan_segments(c) : err_set(-ENOMEM, "no memory to read headers");
	if (!r)
		r = link_all(c);
	free(c->buffer);
	munmap(c->found, bytes);
	return r;
}

int store_recover(struct store *s)
{
	struct scan *c = calloc(1, sizeof(*c));
	int r = 0;

	if (!c)
		return err_set(-ENOMEM, "no memory to recover the pool");
	_Static_assert(WINDOW_BYTES >= TUTTI_RANKS_MAX * RUN_BYTES, "a run of every rank fits the window");
	c->s = s;
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		if (s->ns[i])
			c->total += s->ns[i]->n_segments * s->ns[i]->geom.slots_per_segment;
	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++)
		if (s->ns[i] && s->ns[i]->n_segments)
			r = scan_ns(c, s->ns[i]);
	free(c);
	return r;
}
