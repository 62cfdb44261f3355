/*
 * repair.c - metadata that open found damaged: what was lost with it, what is written again, what repair wipes.
 *
 * Of what exists twice (superblocks, records), one damaged copy loses nothing: the other one counts, and open writes it
 * over the damaged one, so that either may be lost again. When both copies of a record are damaged, its blocks are
 * lost. Such a record stays as it is, and every open says so, until its place is needed or repair wipes it. (Until then
 * no checkpoint is written: one that holds names all that namespaces have, so that a damaged record was nobody's.)
 */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BOTH 2

void store_repair_judge(struct store *s, int all_known)
{
	s->ns_lost = all_known ? 0 : s->ns_damaged & s->ns_owning;
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		if (s->ns_lost >> i & 1) {
			log_warn("namespace %u: both copies of its record are damaged; its blocks are lost", i);
			s->damaged_records++;
		}
	for (uint32_t i = 0; i < s->n_segments; i++) {
		if (s->segments[i].damaged != BOTH)
			continue;
		if (all_known) {
			s->segments[i].damaged = 1; /* it was free: what it says is known */
			continue;
		}
		log_warn("segment %u: both copies of its record are damaged; blocks that it held are lost", i);
		s->damaged_records++;
	}
}

/* Says what comes of writing something again. */
static void healed(struct store *s, int r, const char *what, uint32_t number)
{
	s->healed_copies++;
	if (r)
		log_warn("%s %u: a copy is damaged and could not be written again: %s", what, number, err_text());
	else
		log_warn("%s %u: a copy was damaged and is written again", what, number);
}

void store_repair_heal(struct store *s)
{
	for (uint32_t d = 0; d < s->super.n_dev; d++)
		if (s->super_damaged[d]) /* device 0's was written again already: open writes both copies */
			healed(s, store_super_heal(&s->media, d), "superblock of device", d);
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		if (s->ns[i] && s->ns[i]->damaged)
			healed(s, store_table_write_ns(s->ns[i]), "record of namespace", i);
		else if ((s->ns_damaged & ~s->ns_lost) >> i & 1) /* nobody's */
			healed(s, store_table_wipe_ns(s, i), "unused record of a namespace", i);
	}
	for (uint32_t i = 0; i < s->n_segments; i++)
		if (s->segments[i].damaged == 1)
			healed(s, store_table_write_segments(s, &i, 1), "record of segment", i);
}

int store_repair_pending(const struct store *s)
{
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		if ((s->ns_lost >> i & 1) && !s->ns[i])
			return 1;
	for (uint32_t i = 0; i < s->n_segments; i++)
		if (s->segments[i].damaged == BOTH)
			return 1;
	return 0;
}

int store_repair_records(struct store *s, uint64_t *wiped)
{
	int r = 0;

	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX && !r; i++) {
		if (!(s->ns_lost >> i & 1) || s->ns[i])
			continue;
		r = store_table_wipe_ns(s, i);
		*wiped += !r;
	}
	for (uint32_t i = 0; i < s->n_segments && !r; i++) {
		if (s->segments[i].damaged != BOTH)
			continue;
		r = store_table_write_segments(s, &i, 1);
		*wiped += !r;
	}
	if (!r)
		s->ns_lost = 0;
	return r;
}

/* One rank's headers of one set: zeros over those that are damaged, or can't be read, and belong to free slots. */
static int repair_set(struct store_ns *ns, uint32_t rank, uint32_t set, uint8_t *buffer, uint64_t *wiped)
{
	const struct store_media *m = &ns->s->media;
	struct store_io ios[GEOM_SET_SLOTS_MAX];
	uint32_t first, n = geom_set_slots(&ns->geom, set, &first), bad = 0;
	struct geom g;
	int r;

	store_ns_geom(ns, rank, &g);
	for (uint32_t i = 0; i < n; i++) {
		struct geom_place p = geom_place(&g, first + i);

		ios[i] = (struct store_io){.dev = g.dev[p.dev],
		                           .offset_bytes = geom_header_offset(&g, &p),
		                           .bytes = g.header_bytes,
		                           .data = buffer + i * g.header_bytes};
	}
	r = m->io(m->self, ios, n);
	if (r < 0 && r != -EIO)
		return err_set(r, "headers can't be read: %s", err_name(r));
	for (uint32_t i = 0; i < n; i++) {
		const struct wire_header *h = ios[i].data;

		if (slot_state(slot_at(ns, first + i)) != SLOT_FREE || (!ios[i].result && !store_header_damaged(ns, h)))
			continue;
		memset(ios[i].data, 0, g.header_bytes);
		ios[bad] = ios[i];
		ios[bad++].write = 1;
	}
	*wiped += bad;
	return bad ? store_io_many(m, ios, bad) : 0;
}

int store_repair_headers(struct store *s, uint32_t segment, uint64_t *wiped)
{
	const struct segment *g = &s->segments[segment];
	struct store_ns *ns = g->state == SEGMENT_OWNED ? s->ns[g->owner] : NULL;
	uint8_t *buffer;
	uint32_t per;
	int r = 0;

	if (!ns)
		return 0;
	per = geom_sets_per_segment(&ns->geom);
	buffer = store_io_alloc(GEOM_SET_SLOTS_MAX * ns->geom.header_bytes);
	if (!buffer)
		return err_set(-ENOMEM, "no memory to repair headers");
	for (uint32_t set = segment * per; set < (segment + 1) * per && !r; set++)
		for (uint32_t rank = 0; rank < s->super.ranks && !r; rank++)
			r = repair_set(ns, rank, set, buffer, wiped);
	free(buffer);
	return r;
}
