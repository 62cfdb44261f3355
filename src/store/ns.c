/* ns.c - one namespace: its record, its memory, opening, clearing, telling. */
#include "store/state.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_FROM_BYTES (16u << 20) /* below, whole huge pages would be most of what is used */

/* Address space only: pages come with use, and a page that was never touched reads as zeros. */
static void *reserve_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* Fewer TLB misses in lookups; where the kernel has no huge pages this is refused and nothing is lost. */
	if (bytes >= HUGE_FROM_BYTES)
		madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static int ns_memory(struct store_ns *ns)
{
	ns->slots_max = (uint64_t)ns->geom.slots_per_segment * ns->geom.n_segments;
	ns->sets_max = (uint64_t)geom_sets_per_segment(&ns->geom) * ns->geom.n_segments;
	ns->table_max = ns->slots_max * 2 + 64; /* half full at most */
	ns->slots = reserve_memory(ns->slots_max * sizeof(*ns->slots));
	ns->sets = reserve_memory(ns->sets_max * sizeof(*ns->sets));
	ns->table = reserve_memory(ns->table_max * sizeof(*ns->table));
	if (ns->slots && ns->sets && ns->table)
		return 0;
	return err_set(-ENOMEM, "namespace %s: no address space for an index of %llu slots", ns->facts.model,
	               (unsigned long long)ns->slots_max);
}

static void release_memory(void *p, uint64_t bytes)
{
	if (p)
		munmap(p, bytes);
}

void store_ns_free(struct store_ns *ns)
{
	if (!ns)
		return;
	release_memory(ns->slots, ns->slots_max * sizeof(*ns->slots));
	release_memory(ns->sets, ns->sets_max * sizeof(*ns->sets));
	release_memory(ns->table, ns->table_max * sizeof(*ns->table));
	free(ns);
}

int store_ns_make(struct store *s, uint32_t number, const struct wire_ns *w, struct store_ns **out)
{
	struct store_ns *ns = calloc(1, sizeof(*ns));
	struct tutti_key digest;
	struct hash *h = hash_new();
	int r = 0;

	if (!ns || !h) {
		free(ns);
		hash_free(h);
		return err_set(-ENOMEM, "no memory for a namespace");
	}
	hash_begin(h);
	hash_add(h, w->record, w->record_bytes);
	hash_end(h, digest.b);
	hash_free(h);
	ns->s = s;
	ns->number = number;
	ns->durable = 1;
	ns->generation = w->generation;
	ns->record_sequence = w->sequence;
	ns->record_bytes = w->record_bytes;
	ns->digest = digest;
	memcpy(ns->record, w->record, w->record_bytes);
	if (memcmp(digest.b, w->digest, sizeof(w->digest)))
		r = err_set(-EBADMSG, "the digest is not the record's");
	if (!r)
		r = store_ns_parse(w->record, w->record_bytes, &ns->facts);
	if (!r && ns->facts.tp_size != s->super.ranks)
		r = err_set(-EBADMSG, "tensor-parallel size %u in a pool of %u ranks", ns->facts.tp_size,
		            s->super.ranks);
	if (!r && store_table_geom(&s->super, &ns->facts, w->set_slots, 0, &ns->geom))
		r = err_set(-EBADMSG, "a block of its geometry does not fit a segment");
	if (!r)
		r = ns_memory(ns);
	if (r) {
		store_ns_free(ns);
		return r;
	}
	store_space_init(ns);
	ns->cold = ns->hot = NONE;
	ns->used_ns = s->now_ns(s->now_arg);
	*out = ns;
	return 0;
}

/* A number of its own for each (pool, namespace, time of making): headers of an earlier pool on the same disk, or of a
 * namespace whose record was lost or removed, are foreign. next_sequence tells apart what one epoch made and removed:
 * without a reservation in between there are no blocks to be confused. */
static uint64_t first_generation(const struct store *s, const struct tutti_key *digest)
{
	uint8_t all[16 + TUTTI_KEY_BYTES + 16];

	memcpy(all, s->super.uuid, 16);
	memcpy(all + 16, digest->b, TUTTI_KEY_BYTES);
	memcpy(all + 16 + TUTTI_KEY_BYTES, &s->super.epoch, 8);
	memcpy(all + 16 + TUTTI_KEY_BYTES + 8, &s->next_sequence, 8);
	return (hash_xxh3(all, sizeof(all)) >> 1 & ~0xffffffull) | 1;
}

/* Slots of a set: by what the devices like, within what the merging of neighbours is worth. */
static uint32_t choose_set_slots(const struct store *s, uint64_t object_bytes)
{
	uint64_t preferred = s->media.preferred_io_bytes;

	if (preferred < 131072)
		preferred = 131072;
	if (preferred > 524288)
		preferred = 524288;
	return geom_choose_g(geom_round_up(object_bytes, GEOM_PITCH_ALIGN), preferred);
}

/* A block that no segment of the pool can hold: which pool could. */
static int too_large(const struct wire_super *p, const char *model, uint64_t slot_bytes)
{
	uint64_t segment = slot_bytes * p->n_dev * (p->shared ? p->ranks : 1);
	uint64_t chosen = store_super_least_bytes(p->n_dev, p->ranks, 0, slot_bytes);
	uint64_t given = store_super_least_bytes(p->n_dev, p->ranks, segment, slot_bytes);
	char what[160] = "blocks of fewer tokens are needed: no pool holds such a one";

	if (given && given <= p->bytes && chosen)
		snprintf(what, sizeof(what),
		         "format a pool of %llu bytes or more, or this one with segments of %llu or more",
		         (unsigned long long)chosen, (unsigned long long)segment);
	else if (given && given <= p->bytes)
		snprintf(what, sizeof(what), "format it with segments of %llu bytes or more",
		         (unsigned long long)segment);
	else if (chosen)
		snprintf(what, sizeof(what), "format a pool of %llu bytes or more", (unsigned long long)chosen);
	else if (given)
		snprintf(what, sizeof(what), "format a pool of %llu bytes or more, with segments of %llu or more",
		         (unsigned long long)given, (unsigned long long)segment);
	return err_set(-EINVAL,
	               "namespace %s: a block, with its header, takes %llu bytes of each rank, and a segment of this "
	               "pool has %llu on each device; %s",
	               model, (unsigned long long)slot_bytes, (unsigned long long)p->chunk_bytes, what);
}

/* Why the pool can't have such a namespace. */
static int misfit(const struct store *s, const struct tutti_ns_spec *spec, uint32_t set_slots)
{
	const struct store_ns_facts facts = {.layers = spec->layers,
	                                     .objects_per_layer = spec->objects_per_layer,
	                                     .object_bytes = spec->object_bytes};
	struct geom g;

	store_table_geom(&s->super, &facts, set_slots, 0, &g); /* fails, and leaves as far as it came */
	if (!g.slot_bytes)
		return err_set(
		    -EINVAL,
		               "namespace %s: %u layers x %u objects of %llu bytes; a block has at most %u objects, of at "
		               "most 1 GiB each",
		    spec->model, spec->layers, spec->objects_per_layer, (unsigned long long)spec->object_bytes,
		    GEOM_OBJECTS_MAX);
	if (g.slot_bytes > g.chunk_bytes)
		return too_large(&s->super, spec->model, g.slot_bytes);
	return err_set(-EINVAL,
	               "namespace %s: this pool would have room for more blocks of %llu bytes than can be counted; use "
	               "blocks of more tokens, or a smaller pool",
	               spec->model, (unsigned long long)g.slot_bytes);
}

static int ns_create(struct store *s, const struct tutti_ns_spec *spec, const uint8_t *record, size_t bytes,
                     const struct tutti_key *digest, struct store_ns **out)
{
	struct wire_ns w = {.generation = first_generation(s, digest), .record_bytes = (uint32_t)bytes};
	struct store_ns *ns;
	uint32_t i = 0;
	int r;

	if (spec->tp_size != s->super.ranks)
		return err_set(-EINVAL, "namespace %s: tp_size is %u, the pool was formatted for %u ranks", spec->model,
		               spec->tp_size, s->super.ranks);
	while (i < STORE_NAMESPACES_MAX && s->ns[i])
		i++;
	if (i == STORE_NAMESPACES_MAX)
		return err_set(-ENOSPC, "the pool has its %u namespaces already: remove one, or format another pool",
		               STORE_NAMESPACES_MAX);
	memcpy(w.digest, digest->b, sizeof(w.digest));
	memcpy(w.record, record, bytes);
	w.set_slots = choose_set_slots(s, spec->object_bytes);
	r = store_ns_make(s, i, &w, &ns);
	if (r == -EBADMSG)
		return misfit(s, spec, w.set_slots);
	if (r)
		return r;
	/* Above every sequence that a lost record at this place may bear. */
	ns->record_sequence = s->super.epoch << 32;
	r = store_table_write_ns(ns);
	if (r) {
		store_ns_free(ns);
		return r;
	}
	s->ns[i] = ns;
	*out = ns;
	return 0;
}

int store_ns_open(struct store *s, const struct tutti_ns_spec *spec, struct store_ns **out, int *created)
{
	uint8_t record[STORE_NS_RECORD_BYTES_MAX];
	size_t bytes = sizeof(record);
	struct tutti_key digest;
	int r = store_ns_record(spec, record, &bytes, &digest);

	if (created)
		*created = 0;
	if (r)
		return r;
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		struct store_ns *ns = s->ns[i];

		if (!ns || memcmp(&ns->digest, &digest, sizeof(digest)))
			continue;
		if (ns->record_bytes != bytes || memcmp(ns->record, record, bytes))
			return err_set(-EBADMSG, "namespace %s: the record on disk is not the one of this digest",
			               spec->model);
		*out = ns;
		return 0;
	}
	r = ns_create(s, spec, record, bytes, &digest, out);
	if (!r && created)
		*created = 1;
	return r;
}

int store_ns_at(struct store *s, uint32_t i, struct store_ns **out)
{
	for (uint32_t k = 0; k < STORE_NAMESPACES_MAX; k++)
		if (s->ns[k] && !i--) {
			*out = s->ns[k];
			return 0;
		}
	return err_set(-ENOENT, "the pool has fewer namespaces");
}

const struct tutti_key *store_ns_digest(const struct store_ns *ns) { return &ns->digest; }
uint64_t store_ns_generation(const struct store_ns *ns) { return ns->generation; }

void store_ns_geom(const struct store_ns *ns, uint32_t rank, struct geom *out)
{
	store_table_geom(&ns->s->super, &ns->facts, ns->geom.g, rank, out); /* derived once before: cannot fail */
}

void store_ns_info(struct store_ns *ns, struct tutti_ns_info *out)
{
	const struct store_ns_facts *f = &ns->facts;

	store_hold_sweep(ns->s, 0);
	memset(out, 0, sizeof(*out));
	memcpy(out->model, f->model, sizeof(out->model));
	memcpy(out->digest, ns->digest.b, sizeof(out->digest));
	out->generation = ns->generation;
	out->layers = f->layers;
	out->objects_per_layer = f->objects_per_layer;
	out->block_tokens = f->block_tokens;
	out->kv_heads = f->kv_heads;
	out->head_size = f->head_size;
	out->tp_size = f->tp_size;
	out->object_bytes = f->object_bytes;
	out->set_slots = ns->geom.g;
	out->slot_bytes = ns->geom.slot_bytes;
	out->segments = ns->n_segments;
	out->slots = ns->n_segments * ns->geom.slots_per_segment;
	out->committed = ns->n_committed;
	out->reserved = ns->n_reserved + ns->n_dead;
	out->leased = ns->n_leases;
	out->evicted = ns->n_evicted;
}

void store_ns_forget(struct store_ns *ns)
{
	/* Gives the pages back too. */
	madvise(ns->table, ns->table_max * sizeof(*ns->table), MADV_DONTNEED);
	store_space_init(ns);
	ns->cold = ns->hot = NONE;
	ns->n_free = ns->n_committed = ns->n_reserved = ns->n_dead = ns->n_zombie = ns->n_lru = ns->n_segments = 0;
	ns->table_peak = 0;
}

/* A block in every slot: all of the segment was written, and need not be written ahead of its next use. */
static int is_full(struct store_ns *ns, uint64_t first)
{
	for (uint64_t i = 0; i < ns->geom.slots_per_segment; i++)
		if (slot_state(&ns->slots[first + i]) != SLOT_COMMITTED)
			return 0;
	return 1;
}

void store_ns_empty(struct store_ns *ns)
{
	uint64_t spseg = ns->geom.slots_per_segment, sets = geom_sets_per_segment(&ns->geom);

	for (uint32_t i = 0; i < ns->s->n_segments; i++) {
		struct segment *g = &ns->s->segments[i];

		if (g->state != SEGMENT_OWNED || g->owner != ns->number)
			continue;
		g->prewritten |= (uint8_t)is_full(ns, i * spseg);
		memset(ns->slots + i * spseg, 0, spseg * sizeof(*ns->slots));
		memset(ns->sets + i * sets, 0, sets * sizeof(*ns->sets));
		g->state = SEGMENT_FREE;
		ns->s->all_taken = 0;
		g->stamp = g->busy = 0;
		g->left = 1;
	}
	store_ns_forget(ns);
}

int store_ns_clear(struct store_ns *ns)
{
	int r;

	store_hold_sweep(ns->s, 1);
	if (ns->n_leases || ns->n_reservations)
		return err_set(
		    -EBUSY,
		    "namespace %s: %llu leases and %llu reservations are out; release them or wait until they expire",
		    ns->facts.model, (unsigned long long)ns->n_leases, (unsigned long long)ns->n_reservations);
	/* The segments' records bear the old generation, so on disk too they are free with this one write. */
	ns->generation++;
	store_ns_empty(ns);
	r = store_table_write_ns(ns);
	/* The disk may still say that the blocks are there: they must not be taken from under a later open. */
	for (uint32_t i = 0; r && i < ns->s->n_segments; i++)
		if (ns->s->segments[i].owner == ns->number)
			ns->s->segments[i].left = 0;
	return r;
}

int store_ns_remove(struct store_ns *ns)
{
	struct store *s = ns->s;
	int r = store_ns_clear(ns);

	/* A wipe that is cut short leaves a record of an empty namespace, or none. */
	if (!r)
		r = store_table_wipe_ns(s, ns->number);
	if (r)
		return r;
	s->ns[ns->number] = NULL;
	store_ns_free(ns);
	return 0;
}

int store_ns_each(struct store_ns *ns,
                  int (*fn)(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                            uint32_t slot),
                  void *arg)
{
	static const struct tutti_key none;
	uint32_t spseg = ns->geom.slots_per_segment;

	for (uint32_t i = 0; i < ns->s->n_segments; i++) {
		const struct segment *g = &ns->s->segments[i];

		for (uint32_t k = 0; g->state == SEGMENT_OWNED && g->owner == ns->number && k < spseg; k++) {
			const struct slot *s = slot_at(ns, i * spseg + k);
			int r;

			if (slot_state(s) != SLOT_COMMITTED)
				continue;
			r = fn(arg, &s->key, s->parent == NONE ? &none : &slot_at(ns, s->parent)->key, slot_depth(s),
			       i * spseg + k);
			if (r)
				return r;
		}
	}
	return 0;
}

int store_view(const struct store_media *m, const struct tutti_key *ns_digest, uint32_t rank, struct store_view *out)
{
	struct wire_super *super = malloc(sizeof(*super));
	struct wire_ns *w = malloc(sizeof(*w));
	struct store_ns_facts *facts = malloc(sizeof(*facts));
	uint32_t copy;
	int r;

	memset(out, 0, sizeof(*out));
	if (!super || !w || !facts)
		r = err_set(-ENOMEM, "no memory to look at the pool");
	else
		r = store_super_read(m, 0, super, &copy, NULL);
	if (!r)
		r = store_super_check_devices(m, super, NULL);
	if (!r && rank >= super->ranks)
		r = err_set(-EINVAL, "rank %u: the pool has %u ranks", rank, super->ranks);
	if (!r)
		r = store_probe(m, 0, &out->pool);
	if (!r)
		r = store_table_find_ns(m, super, ns_digest, w);
	if (!r)
		r = store_ns_parse(w->record, w->record_bytes, facts);
	if (!r && store_table_geom(super, facts, w->set_slots, rank, &out->geom))
		r = err_set(-EBADMSG, "namespace %s: its record's geometry does not fit the pool", facts->model);
	if (!r) {
		out->generation = w->generation;
		out->ns_number = w->number;
	}
	free(super);
	free(w);
	free(facts);
	return r;
}
