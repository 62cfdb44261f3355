/* store.c - a pool's store: open, close, sync, info; a look at one that another process has. */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EPOCH_LAST ((1ull << 24) - 1)

static void store_free(struct store *s)
{
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		store_ns_free(s->ns[i]);
	free(s->segments);
	free(s->page);
	free(s);
}

/* What a checkpoint that turned out bad left in the index. */
static void forget(struct store *s)
{
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++) {
		struct store_ns *ns = s->ns[i];
		uint64_t n_segments = ns ? ns->n_segments : 0;

		if (!ns)
			continue;
		madvise(ns->slots, ns->slots_max * sizeof(*ns->slots), MADV_DONTNEED);
		madvise(ns->sets, ns->sets_max * sizeof(*ns->sets), MADV_DONTNEED);
		store_ns_forget(ns);
		ns->n_segments = n_segments;
		ns->clock = 0;
	}
	for (uint32_t i = 0; i < s->n_segments; i++)
		s->segments[i].stamp = 0;
}

/* *known: a checkpoint told all that namespaces have. */
static int fill_index(struct store *s, int *known)
{
	int r = -EBADMSG;

	s->was_clean = (int)s->super.clean;
	if (s->super.clean && s->super.checkpoint_bytes) {
		r = store_checkpoint_load(s);
		*known = !r;
		if (!r)
			return 0;
		if (r != -EBADMSG && r != -EIO && r < 0)
			return r;
		log_note("the checkpoint does not hold (%s): reading all headers", err_name(r));
		forget(s);
	}
	return store_recover(s);
}

/* Raises the epoch and takes the clean mark from both copies, before anything else is written. */
static int take_over(struct store *s, const struct store_open_opts *o)
{
	int r;

	if (s->super.epoch >= EPOCH_LAST)
		return err_set(-EOVERFLOW, "the pool was opened %llu times and must be formatted anew",
		               (unsigned long long)s->super.epoch);
	s->super.epoch++;
	s->super.clean = 0;
	s->super.checkpoint_bytes = s->super.checkpoint_sum = 0;
	s->super.owner_pid = o->owner_pid;
	memset(s->super.owner_host, 0, sizeof(s->super.owner_host));
	snprintf(s->super.owner_host, sizeof(s->super.owner_host), "%s", o->owner_host ? o->owner_host : "");
	s->next_sequence = s->super.epoch << 40;
	r = store_super_write(s);
	return r ? r : store_super_write(s);
}

static int store_begin(struct store *s, const struct store_media *m, const struct store_open_opts *o)
{
	int r;

	s->media = *m;
	s->now_ns = o->now_ns;
	s->now_arg = o->now_arg;
	s->progress = o->progress;
	s->progress_arg = o->progress_arg;
	s->sync_no = 1;
	store_hold_init(s);
	_Static_assert(sizeof(struct wire_super) <= SEGMENTS_AT_ONCE * WIRE_PAGE_BYTES, "a superblock fits there");
	s->page = store_io_alloc((uint64_t)SEGMENTS_AT_ONCE * WIRE_PAGE_BYTES);
	if (!s->page)
		return err_set(-ENOMEM, "no memory to open the pool");
	r = store_super_read(m, 0, &s->super, &s->super_copy, &s->super_damaged[0]);
	if (r)
		return r;
	if (s->super.device)
		return err_set(-ENODEV, "this is device %u of its pool; device 0 must be named first", s->super.device);
	r = store_super_check_devices(m, &s->super, s->super_damaged);
	if (r)
		return r;
	s->n_segments = s->super.n_segments;
	s->segments = calloc(s->n_segments, sizeof(*s->segments));
	return s->segments ? 0 : err_set(-ENOMEM, "no memory for %u segments", s->n_segments);
}

int store_open(const struct store_media *m, const struct store_open_opts *o, struct store **out)
{
	struct store *s = calloc(1, sizeof(*s));
	int known = 0, r;

	if (!s)
		return err_set(-ENOMEM, "no memory to open the pool");
	r = store_begin(s, m, o);
	if (!r)
		r = store_table_read(s);
	if (!r)
		r = fill_index(s, &known);
	if (!r)
		r = take_over(s, o);
	if (r) {
		store_free(s);
		return r;
	}
	store_repair_judge(s, known);
	store_repair_heal(s);
	*out = s;
	return 0;
}

static int close_cleanly(struct store *s)
{
	int r = 0;

	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		if (!r && s->ns[i] && !s->ns[i]->durable)
			r = store_table_write_ns(s->ns[i]);
	/* All that was committed counts as flushed at the next open. */
	for (uint32_t d = 0; !r && d < s->media.n_dev; d++)
		r = store_io_flush(&s->media, d);
	if (r)
		return r;
	s->synced = s->sync_no;
	r = store_checkpoint_write(s);
	if (!r)
		r = store_io_flush(&s->media, 0);
	if (r)
		return r;
	s->super.clean = 1;
	return store_super_write(s);
}

int store_close(struct store *s)
{
	int r = close_cleanly(s);

	store_free(s);
	return r;
}

void store_abandon(struct store *s) { store_free(s); }

uint64_t store_epoch(const struct store *s) { return s->super.epoch; }

uint64_t store_sync_begin(struct store *s)
{
	s->dirty = 0;
	return s->sync_no++;
}

void store_sync_end(struct store *s, uint64_t mark, int flush_result)
{
	uint32_t no = (uint32_t)mark;

	/*
	 * After a flush that failed nobody knows what of the data before it is on the medium, and a later flush that
	 * works does not tell either: those commits count as unflushed until they are verified.
	 */
	s->sync_failing = flush_result != 0;
	s->failed_syncs += flush_result != 0;
	if (flush_result) {
		uint32_t low = no <= s->synced ? no - 1 : s->synced;

		if (s->unsafe_low == s->unsafe_high || low < s->unsafe_low)
			s->unsafe_low = low;
		if (no > s->unsafe_high)
			s->unsafe_high = no;
		s->dirty = 1;
	}
	if (no > s->synced)
		s->synced = no;
}

int store_dirty(const struct store *s) { return s->dirty; }

static uint64_t index_bytes(const struct store_ns *ns)
{
	const struct geom *g = &ns->geom;
	uint64_t table = ns->table_max * sizeof(*ns->table), touched = ns->table_peak * WIRE_PAGE_BYTES;

	return ns->n_segments *
	           (g->slots_per_segment * sizeof(*ns->slots) + geom_sets_per_segment(g) * sizeof(*ns->sets)) +
	       (touched < table ? touched : table);
}

void store_info(struct store *s, struct tutti_pool_info *out)
{
	uint32_t parts = s->super.shared ? s->super.ranks : 1, prewritten;

	store_hold_sweep(s, 0);
	memset(out, 0, sizeof(*out));
	memcpy(out->uuid, s->super.uuid, sizeof(out->uuid));
	out->version = s->super.version;
	out->ranks = s->super.ranks;
	out->n_devices = s->super.n_dev;
	out->bytes = s->super.bytes;
	out->segment_bytes = s->super.chunk_bytes * parts * s->super.n_dev;
	out->segments = s->n_segments;
	out->segments_free = store_segments_free(s, &prewritten);
	for (uint32_t i = 0; i < s->n_segments; i++)
		out->segments_prewritten += s->segments[i].prewritten;
	out->epoch = s->super.epoch;
	out->clean = s->was_clean;
	out->index_bytes = sizeof(*s) + s->n_segments * sizeof(*s->segments);
	for (uint32_t i = 0; i < STORE_NAMESPACES_MAX; i++)
		if (s->ns[i]) {
			out->n_namespaces++;
			out->index_bytes += sizeof(*s->ns[i]) + index_bytes(s->ns[i]);
		}
	out->recovered_slots = s->recovered_slots;
	out->recovered_orphans = s->recovered_orphans;
	out->recovered_bad = s->recovered_bad;
	out->damaged_records = s->damaged_records;
	out->failed_syncs = s->failed_syncs;
	out->sync_failing = s->sync_failing;
	out->healed_copies = s->healed_copies;
	out->deallocated_segments = s->deallocated_segments;
	out->failed_deallocations = s->failed_deallocations;
}

/* What is in an index that was not read, or since an open that was not ours. */
static void forget_unknown(struct tutti_pool_info *p)
{
	p->clean = -1;
	p->healed_copies = UINT32_MAX;
	p->sync_failing = -1;
	p->index_bytes = p->recovered_slots = p->recovered_orphans = p->recovered_bad = TUTTI_UNKNOWN;
	p->damaged_records = p->failed_syncs = TUTTI_UNKNOWN;
	p->deallocated_segments = p->failed_deallocations = TUTTI_UNKNOWN;
}

/* Reads what an open reads before it takes over. */
static int look(struct store *s, const struct store_media *m, const struct store_open_opts *o)
{
	int r = store_begin(s, m, o);

	return r ? r : store_table_read(s);
}

int store_look(const struct store_media *m, const struct store_open_opts *o, struct tutti_pool_info *pool,
               struct tutti_ns_info *ns, uint32_t *n)
{
	struct store *s = calloc(1, sizeof(*s));
	uint32_t room = *n;
	int r = s ? look(s, m, o) : err_set(-ENOMEM, "no memory to look at the pool");

	*n = 0;
	if (!r) {
		store_info(s, pool);
		forget_unknown(pool);
	}
	for (uint32_t i = 0; !r && i < STORE_NAMESPACES_MAX; i++) {
		if (s->ns[i] && *n < room) {
			store_ns_info(s->ns[i], &ns[*n]);
			ns[*n].committed = ns[*n].reserved = ns[*n].leased = ns[*n].evicted = TUTTI_UNKNOWN;
		}
		*n += s->ns[i] != NULL;
	}
	if (s)
		store_free(s);
	return r;
}
