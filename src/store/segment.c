/*
 * segment.c - segments change hands: free -> a namespace, or from one namespace to another; prewriting, deallocating.
 *
 * A hand-out is durable before any slot of it is used: the record names the owner and the first sequence number valid
 * in it, so whatever headers lie there from before are void. A segment whose record could not be written is out of use
 * until the next open, since the disk may say either. What a reservation needs is handed out at once, by one flush.
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

/* A namespace that nobody used for so long has no share: its segments are the first to go. */
#define IDLE_NS (600ull * 1000000000ull)

uint32_t store_segments_free(const struct store *s, uint32_t *prewritten)
{
	uint32_t n = 0;

	*prewritten = 0;
	for (uint32_t i = 0; i < s->n_segments; i++)
		if (s->segments[i].state == SEGMENT_FREE) {
			n++;
			*prewritten += s->segments[i].prewritten;
		}
	return n;
}

/* Gives segments, which are free in memory, to ns: durably, then in the index. */
static int give(struct store_ns *ns, const uint32_t *segments, uint32_t n)
{
	struct store *s = ns->s;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		struct segment *g = &s->segments[segments[i]];

		g->state = SEGMENT_OWNED;
		g->owner = ns->number;
		g->first_sequence = s->next_sequence; /* of the reservation that is being made */
		g->stamp = ns->clock;
		g->busy = 0;
		g->left = 0;
	}
	r = store_table_write_segments(s, segments, n);
	for (uint32_t i = 0; i < n; i++) {
		if (r) {
			s->segments[segments[i]].state = SEGMENT_BAD;
			log_warn("segment %u is out of use until the pool is opened again: %s", segments[i],
			         err_text());
			continue;
		}
		ns->n_segments++;
		store_space_add(ns, segments[i]);
	}
	return r;
}

/* The first free segments, at most n, that are written before, or are not. */
static uint32_t choose_free(const struct store *s, int prewritten, uint32_t *list, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < s->n_segments && found < n; i++)
		if (s->segments[i].state == SEGMENT_FREE && s->segments[i].prewritten == prewritten)
			list[found++] = i;
	return found;
}

int store_segment_hand_out(struct store_ns *ns, uint32_t want)
{
	struct store *s = ns->s;
	uint32_t list[SEGMENTS_AT_ONCE], n = 0, wanted = (want - 1) / ns->geom.slots_per_segment + 1;

	if (wanted > SEGMENTS_AT_ONCE)
		wanted = SEGMENTS_AT_ONCE;
	if (!s->all_taken) {
		n = choose_free(s, 1, list, wanted);
		n += choose_free(s, 0, list + n, wanted - n);
	}
	s->all_taken = !n;
	return n ? give(ns, list, n) : -ENOSPC;
}

/* Segments each namespace in use may have. */
static uint64_t fair_share(const struct store_ns *ns, uint64_t now)
{
	uint64_t active = 0;

	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		const struct store_ns *o = ns->s->ns[i];

		if (o && (o == ns || (o->n_segments && now - o->used_ns < IDLE_NS)))
			active++;
	}
	return ns->s->n_segments / active;
}

/* The one furthest above its share; of idle ones, whose share is 0, and of equals the longest unused. */
static struct store_ns *choose_victim(const struct store_ns *ns)
{
	uint64_t now = ns->s->now_ns(ns->s->now_arg), share = fair_share(ns, now), most = 0;
	struct store_ns *best = NULL;

	if (ns->n_segments && ns->n_segments >= share)
		return NULL;
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		struct store_ns *o = ns->s->ns[i];
		uint64_t own, above;

		if (!o || o == ns || !o->n_segments)
			continue;
		/* With no segment at all, one is taken even from someone who has no more than a share. */
		own = now - o->used_ns >= IDLE_NS || !ns->n_segments ? 0 : share;
		above = o->n_segments > own ? o->n_segments - own : 0;
		if (above > most || (above && above == most && o->used_ns < best->used_ns)) {
			most = above;
			best = o;
		}
	}
	return best;
}

#define STEAL_TRIES 16

/* The coldest segment of `from` colder than `last_age` (ties by number), without anything held in it itself. */
static uint32_t coldest(const struct store_ns *from, uint32_t *last_age, uint32_t last)
{
	const struct store *s = from->s;
	uint32_t best = NONE, best_age = 0;

	for (uint32_t i = 0; i < s->n_segments; i++) {
		const struct segment *g = &s->segments[i];
		uint32_t age = from->clock - g->stamp;

		if (g->state != SEGMENT_OWNED || g->owner != from->number || g->busy)
			continue;
		if (last != NONE && (age > *last_age || (age == *last_age && i <= last)))
			continue;
		if (best == NONE || age > best_age) {
			best = i;
			best_age = age;
		}
	}
	*last_age = best_age;
	return best;
}

/* Drops all blocks in the segment, with their descendants: nothing of them is held. */
static void empty(struct store_ns *from, uint32_t segment)
{
	uint32_t spseg = from->geom.slots_per_segment, first = segment * spseg;

	for (uint32_t i = 0; i < spseg; i++)
		if (slot_state(slot_at(from, first + i)) == SLOT_COMMITTED)
			from->n_evicted += store_tree_drop(from, first + i);
	store_space_remove(from, segment);
	memset(slot_at(from, first), 0, (uint64_t)spseg * sizeof(struct slot));
	from->n_segments--;
}

int store_segment_steal(struct store_ns *ns)
{
	struct store_ns *from = choose_victim(ns);
	uint32_t segment = NONE, age = 0;

	if (!from)
		return -ENOSPC;
	for (int i = 0; i < STEAL_TRIES; i++) {
		segment = coldest(from, &age, segment);
		if (segment == NONE)
			return -ENOSPC;
		if (store_tree_idle(from, segment)) {
			empty(from, segment);
			return give(ns, &segment, 1);
		}
	}
	return -ENOSPC;
}

static int extents_of(const struct store *s, uint32_t segment, struct store_extent *extents, uint32_t *n)
{
	uint32_t parts = s->super.shared ? s->super.ranks : 1, at = 0;

	if (*n < parts * s->super.n_dev)
		return err_set(-ENOBUFS, "a segment of this pool has %u extents, room is for %u",
		               parts * s->super.n_dev, *n);
	for (uint32_t d = 0; d < s->super.n_dev; d++)
		for (uint32_t part = 0; part < parts; part++) {
			extents[at].dev = d;
			extents[at].offset_bytes = s->super.data_start_bytes[d] +
			                           ((uint64_t)part * s->n_segments + segment) * s->super.chunk_bytes;
			extents[at++].bytes = s->super.chunk_bytes;
		}
	*n = at;
	return 0;
}

/* Nobody else can have a lent segment. i: n_segments where none was found. */
static int lend(struct store *s, uint32_t i, uint32_t *segment, struct store_extent *extents, uint32_t *n_extents)
{
	int r = i == s->n_segments ? -ENOENT : extents_of(s, i, extents, n_extents);

	if (r)
		return r;
	s->segments[i].state = SEGMENT_LENT;
	*segment = i;
	return 0;
}

/* It is free again. NULL: it was not lent. */
static struct segment *take_back(struct store *s, uint32_t segment)
{
	if (segment >= s->n_segments || s->segments[segment].state != SEGMENT_LENT)
		return NULL;
	s->segments[segment].state = SEGMENT_FREE;
	s->all_taken = 0;
	return &s->segments[segment];
}

int store_prewrite_next(struct store *s, uint32_t ahead, uint32_t *segment, struct store_extent *extents,
                        uint32_t *n_extents)
{
	uint32_t prewritten, i = 0;

	store_segments_free(s, &prewritten);
	if (prewritten >= ahead)
		return -ENOENT;
	while (i < s->n_segments &&
	       (s->segments[i].state != SEGMENT_FREE || s->segments[i].prewritten || s->segments[i].prewrite_failed))
		i++;
	return lend(s, i, segment, extents, n_extents);
}

int store_prewrite_done(struct store *s, uint32_t segment, int result)
{
	struct segment *g = take_back(s, segment);

	if (!g)
		return err_set(-EINVAL, "segment %u is not being prewritten", segment);
	g->prewritten = !result;
	if (!result)
		result = store_table_write_segments(s, &segment, 1);
	if (result && result != -ECANCELED)
		g->prewrite_failed = 1; /* until the next open: the disk would fail again */
	return result;
}

void store_data_range(const struct store *s, uint32_t dev, uint64_t *first_byte, uint64_t *end_byte)
{
	uint64_t parts = s->super.shared ? s->super.ranks : 1;

	*first_byte = s->super.data_start_bytes[dev];
	*end_byte = *first_byte + parts * s->n_segments * s->super.chunk_bytes;
}

int store_deallocate_next(struct store *s, uint32_t *segment, struct store_extent *extents, uint32_t *n_extents)
{
	uint32_t i = 0;

	while (i < s->n_segments && (s->segments[i].state != SEGMENT_FREE || !s->segments[i].left))
		i++;
	return lend(s, i, segment, extents, n_extents);
}

int store_deallocate_done(struct store *s, uint32_t segment, int result)
{
	struct segment *g = take_back(s, segment);

	if (!g)
		return err_set(-EINVAL, "segment %u is not being deallocated", segment);
	g->left = 0; /* once: a medium that refused would refuse again, and one that is wanted is soon written */
	if (result == -ENOTRECOVERABLE)
		g->state = SEGMENT_BAD;
	s->failed_deallocations += result && result != -ECANCELED;
	s->deallocated_segments += !result;
	return 0;
}
