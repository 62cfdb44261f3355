/*
 * verify.c - reads every committed block of a namespace through lanes of this process and checks it.
 *
 * At first no lease is held, so that a block may be evicted, and its slot reused, while it is read: even by the same
 * block anew. What looks damaged then is read again under a lease, and only that counts. What could not be read for a
 * reason that says nothing about the block (a timeout) is an error of verify, never a damaged block.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "core/blob.h"
#include "core/store.h"
#include "port/port.h"

#define BATCH_BYTES (64ull << 20)
#define BATCH_BLOCKS_MAX 1024u
#define BATCH_BLOCKS_MIN 2u /* one alone would leave no gap between its objects, and they would be merged */
#define LEASE_NS 120000000000ull
#define SUSPECTS_MAX 256u /* read again at once, each under a lease of its own */

struct block {
	struct tutti_key key;
	uint32_t slot;
	uint32_t depth;
	int32_t result; /* of all ranks so far: 0, or why it is bad */
};

struct list {
	struct block *blocks;
	size_t n, room;
};

struct batch {
	struct tutti_ns *ns;
	struct tutti_lane *lane;
	uint8_t *memory;
	size_t bytes;
	uint32_t blocks; /* that fit memory */
	void **layer_base;
	struct geom geom;
};

static int collect(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                   uint32_t slot)
{
	struct list *l = arg;

	if (l->n == l->room) {
		size_t room = l->room ? l->room * 2 : 1024;
		struct block *grown = realloc(l->blocks, room * sizeof(*grown));

		if (!grown)
			return err_set(-ENOMEM, "verify: no memory for %zu blocks", room);
		l->blocks = grown;
		l->room = room;
	}
	(void)parent;
	l->blocks[l->n++] = (struct block){.key = *key, .slot = slot, .depth = depth};
	return 0;
}

static int by_slot(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static int deepest_first(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return x->depth > y->depth ? -1 : x->depth < y->depth;
}

/* A lane of one rank, with a buffer that a batch of blocks fits. */
static int batch_open(struct batch *b, struct tutti_ns *ns, uint32_t rank)
{
	struct tutti_store *s = ns->store;
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	struct tutti_kv_layout kv = TUTTI_KV_LAYOUT_INIT;
	const char *paths[TUTTI_DEVICES_MAX];
	uint64_t layer;
	int rc;

	memset(b, 0, sizeof(*b));
	b->ns = ns;
	store_ns_geom(ns->ns, rank, &b->geom);
	layer = b->geom.objects_per_layer * b->geom.pitch_bytes;
	b->blocks = (uint32_t)(BATCH_BYTES / (layer * b->geom.layers));
	b->blocks = b->blocks < BATCH_BLOCKS_MIN   ? BATCH_BLOCKS_MIN
	            : b->blocks > BATCH_BLOCKS_MAX ? BATCH_BLOCKS_MAX
	                                           : b->blocks;
	b->bytes = layer * b->geom.layers * b->blocks;
	b->memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	b->layer_base = calloc(b->geom.layers, sizeof(void *));
	if (b->memory == MAP_FAILED || !b->layer_base) {
		b->memory = b->memory == MAP_FAILED ? NULL : b->memory;
		return err_set(-ENOMEM, "verify: no memory for %zu bytes", b->bytes);
	}
	for (uint32_t i = 0; i < b->geom.layers; i++)
		b->layer_base[i] = b->memory + i * layer * b->blocks;
	for (uint32_t i = 0; i < s->pool.n_dev; i++)
		paths[i] = s->pool.path[i];
	lo.paths = paths;
	lo.n_paths = s->pool.n_dev;
	lo.rank = rank;
	lo.controller = s->controller;
	lo.timing = s->timing;
	rc = tutti_lane_open(&lo, store_ns_digest(ns->ns), &b->lane);
	if (rc)
		return rc;
	kv.layers = b->geom.layers;
	kv.blocks = b->blocks;
	kv.layer_base = b->layer_base;
	kv.block_stride = layer;
	kv.inner_count = b->geom.objects_per_layer;
	kv.inner_stride = b->geom.pitch_bytes;
	kv.segment_bytes = b->geom.object_bytes;
	/* Objects that are whole pitches would be merged into one: keep a gap between them in another dimension. */
	if (b->geom.pitch_bytes == b->geom.object_bytes && b->geom.objects_per_layer > 1) {
		kv.block_stride = b->geom.pitch_bytes;
		kv.inner_stride = b->geom.pitch_bytes * b->blocks;
	}
	return tutti_lane_register(b->lane, &kv);
}

static int batch_close(struct batch *b)
{
	int rc = tutti_lane_close(b->lane);

	if (rc)
		return rc; /* the controller may still write to the memory */
	if (b->memory)
		munmap(b->memory, b->bytes);
	free(b->layer_base);
	return rc;
}

/* Reads n blocks, wherever they are in their chains, and sets their results. */
static int batch_read(struct batch *b, struct block *blocks, uint32_t n)
{
	struct wire_blob *blob = calloc(1, blob_bytes(n));
	uint64_t *numbers = malloc(n * sizeof(*numbers));
	struct tutti_plan *plan = NULL;
	int rc = blob && numbers ? 0 : err_set(-ENOMEM, "verify: no memory");

	for (uint32_t i = 0; i < n && !rc; i++) {
		numbers[i] = i;
		blob_entries(blob)[i].slot = blocks[i].slot;
		memcpy(blob_entries(blob)[i].key, blocks[i].key.b, sizeof(blocks[i].key.b));
	}
	if (!rc) {
		blob->epoch = store_epoch(b->ns->store->st);
		blob->expiry_ns = port_now_ns() + LEASE_NS;
		blob->generation = store_ns_generation(b->ns->ns);
		blob->op = TUTTI_RETRIEVE;
		blob->n = n;
		memcpy(blob->ns_digest, store_ns_digest(b->ns->ns)->b, sizeof(blob->ns_digest));
		blob_seal(blob, WIRE_BLOB_PLAN);
		rc = tutti_plan_open(b->lane, blob, blob_bytes(n), numbers, n, &plan);
	}
	if (!rc) {
		size_t bytes;
		int finished;

		rc = tutti_retrieve(plan);
		finished = tutti_plan_finish(plan, port_now_ns() + LEASE_NS, blob, blob_bytes(n), &bytes);
		rc = rc ? rc : finished;
	}
	for (uint32_t i = 0; i < n && !rc; i++) {
		int32_t result = blob_entries(blob)[i].value;

		if (result && !core_says_damaged(result))
			rc = err_set(result, "verify: blocks could not be read (%s); that says nothing about them",
			             err_name(result));
		if (!blocks[i].result)
			blocks[i].result = result;
	}
	free(numbers);
	free(blob);
	return rc;
}

/* Wipes the header of a dropped block, so that no recovery finds it again. */
static int wipe_header(struct tutti_ns *ns, uint32_t rank, uint32_t slot)
{
	const struct store_media *m = media_table(ns->store->media);
	struct geom g;
	struct geom_place p;
	struct store_io io = {.write = 1};
	int rc;

	store_ns_geom(ns->ns, rank, &g);
	p = geom_place(&g, slot);
	io.dev = g.dev[p.dev];
	io.offset_bytes = geom_header_offset(&g, &p);
	io.bytes = g.header_bytes;
	io.data = aligned_alloc(STORE_MEDIA_ALIGN, g.header_bytes);
	if (!io.data)
		return err_set(-ENOMEM, "verify: no memory");
	memset(io.data, 0, g.header_bytes);
	rc = m->io(m->self, &io, 1);
	free(io.data);
	return rc;
}

static int verify_rank(struct tutti_ns *ns, uint32_t rank, const struct list *l, tutti_progress_fn progress, void *arg)
{
	struct batch b;
	int rc = batch_open(&b, ns, rank), closed;

	for (size_t at = 0; at < l->n && !rc;) {
		uint32_t n = l->n - at < b.blocks ? (uint32_t)(l->n - at) : b.blocks;

		rc = batch_read(&b, &l->blocks[at], n);
		at += n;
		if (progress && !rc)
			progress(arg, "blocks checked", at, l->n);
	}
	closed = batch_close(&b);
	return rc ? rc : closed;
}

/* Blocks that looked damaged, and are still there, under leases. */
struct suspects {
	struct block blocks[SUSPECTS_MAX];
	struct tutti_lease leases[SUSPECTS_MAX];
	uint32_t n;
};

/* Takes blocks that look damaged from l, from `*at` on. */
static int suspects_hold(struct tutti_ns *ns, const struct list *l, size_t *at, struct suspects *s)
{
	int rc = 0;

	pthread_mutex_lock(&ns->store->lock);
	for (s->n = 0; *at < l->n && s->n < SUSPECTS_MAX && !rc; ++*at) {
		struct block *b = &s->blocks[s->n];

		*b = l->blocks[*at];
		if (b->result)
			rc = store_lease_block(ns->ns, b->slot, &b->key, LEASE_NS, &s->leases[s->n]);
		if (b->result && !rc)
			s->n++;
		b->result = 0;
		rc = rc == -ESTALE ? 0 : rc;
	}
	pthread_mutex_unlock(&ns->store->lock);
	return rc ? err_set(rc,
	                    "verify: no lease is free to read blocks again that look damaged; try when fewer are out")
	          : 0;
}

/* Lets them go; those that were damaged again are counted, and with repair dropped. */
static int suspects_judge(struct tutti_ns *ns, uint32_t ranks, const struct suspects *s, int read, int repair,
                          uint64_t *bad)
{
	int rc = read;

	pthread_mutex_lock(&ns->store->lock);
	for (uint32_t i = 0; i < s->n; i++) {
		const struct block *b = &s->blocks[i];
		int released = store_release(ns->ns, &s->leases[i], 1);

		rc = rc ? rc : released;
		if (rc || !b->result)
			continue;
		if (!repair) {
			*bad += (uint64_t)store_holds(ns->ns, b->slot, &b->key);
		} else if (store_drop(ns->ns, b->slot, &b->key)) {
			++*bad;
			for (uint32_t rank = 0; rank < ranks && !rc; rank++)
				rc = wipe_header(ns, rank, b->slot);
		}
	}
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

/* What all ranks together found. *bad counts the blocks that are damaged and still what the index says. */
static int judge(struct tutti_ns *ns, uint32_t ranks, const struct list *l, int repair, uint64_t *bad)
{
	struct suspects *s = malloc(sizeof(*s));
	int rc = s ? 0 : err_set(-ENOMEM, "verify: no memory");

	pthread_mutex_lock(&ns->store->lock);
	for (size_t i = 0; i < l->n && !rc; i++)
		if (!l->blocks[i].result)
			store_mark_sound(ns->ns, l->blocks[i].slot, &l->blocks[i].key);
	pthread_mutex_unlock(&ns->store->lock);
	for (size_t at = 0; at < l->n && !rc;) {
		int read = suspects_hold(ns, l, &at, s);
		struct list again = {.blocks = s->blocks, .n = s->n};

		for (uint32_t rank = 0; rank < ranks && !read && s->n; rank++)
			read = verify_rank(ns, rank, &again, NULL, NULL);
		rc = suspects_judge(ns, ranks, s, read, repair, bad);
	}
	free(s);
	return rc;
}

int tutti_store_repair(struct tutti_store *s, uint64_t *wiped)
{
	struct tutti_pool_info info;
	uint64_t n = 0;
	int rc;

	if (!s)
		return err_set(-EINVAL, "tutti_store_repair: NULL");
	rc = tutti_store_info(s, &info); /* refuses what is not this process's */
	for (uint64_t i = 0; i <= info.segments && !rc; i++) {
		pthread_mutex_lock(&s->lock);
		rc = i ? store_repair_headers(s->st, (uint32_t)i - 1, &n) : store_repair_records(s->st, &n);
		pthread_mutex_unlock(&s->lock);
	}
	if (wiped)
		*wiped = n;
	return rc;
}

int tutti_verify(struct tutti_ns *ns, int repair, tutti_progress_fn progress, void *arg, uint64_t *checked,
                 uint64_t *bad)
{
	struct tutti_pool_info info;
	struct list l = {0};
	int rc;

	if (!ns || !checked || !bad)
		return err_set(-EINVAL, "tutti_verify: NULL");
	*checked = *bad = 0;
	rc = tutti_ns_each(ns, collect, &l);
	if (!rc)
		rc = tutti_store_info(ns->store, &info);
	if (!rc && l.n) {
		qsort(l.blocks, l.n, sizeof(*l.blocks), by_slot);
		for (uint32_t rank = 0; rank < info.ranks && !rc; rank++)
			rc = verify_rank(ns, rank, &l, progress, arg);
		/* Children before their parents: dropping a parent takes them along, and their headers would stay. */
		qsort(l.blocks, l.n, sizeof(*l.blocks), deepest_first);
		if (!rc)
			rc = judge(ns, info.ranks, &l, repair, bad);
		*checked = rc ? 0 : l.n;
	}
	free(l.blocks);
	return rc;
}
