/*
 * blocks.c - the decisions: lookup, reserve, and the blobs that carry them to lanes and back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/blob.h"
#include "core/store.h"

int tutti_lookup(struct tutti_ns *ns, const struct tutti_key *keys, size_t n, uint64_t lease_ns, size_t *matched,
                 struct tutti_lease *lease)
{
	int rc;

	if (!ns || (!keys && n) || !matched)
		return err_set(-EINVAL, "tutti_lookup: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_lookup(ns->ns, keys, n, lease_ns, matched, lease);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_reserve(struct tutti_ns *ns, const struct tutti_key *parent, const struct tutti_key *keys, size_t n,
                  uint64_t lease_ns, size_t *first, size_t *count, struct tutti_lease *reservation)
{
	int rc;

	if (!ns || (!keys && n) || !first || !count || !reservation)
		return err_set(-EINVAL, "tutti_reserve: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_reserve(ns->ns, parent, keys, n, lease_ns, first, count, reservation);
	if (rc == -ENOSPC && background_yield(ns->store))
		rc = store_reserve(ns->ns, parent, keys, n, lease_ns, first, count, reservation);
	background_poke(ns->store, 0);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_release(struct tutti_ns *ns, const struct tutti_lease *lease)
{
	int rc;

	if (!ns || !lease)
		return err_set(-EINVAL, "tutti_release: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_release(ns->ns, lease, 0);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

int tutti_cancel(struct tutti_ns *ns, const struct tutti_lease *reservation)
{
	int rc;

	if (!ns || !reservation)
		return err_set(-EINVAL, "tutti_cancel: NULL");
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	rc = store_release(ns->ns, reservation, 1);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}

/* ---- plans ---- */

size_t tutti_plan_blob_bytes(size_t n_blocks) { return blob_bytes(n_blocks); }

static void fill_plan(void *blob, struct tutti_ns *ns, const struct tutti_lease *lease, size_t first,
                      const struct store_hold_info *info, const struct store_block *blocks, uint32_t n)
{
	struct wire_blob b = {.epoch = lease->epoch,
	                      .lease = lease->id,
	                      .expiry_ns = lease->expiry_ns,
	                      .generation = store_ns_generation(ns->ns),
	                      .sequence = info->sequence,
	                      .op = (uint32_t)info->op,
	                      .flags = WIRE_BLOB_SYNCED,
	                      .n = n,
	                      .first = first,
	                      .depth = blocks[0].depth};

	memcpy(b.ns_digest, store_ns_digest(ns->ns)->b, sizeof(b.ns_digest));
	memcpy(b.parent, info->parent.b, sizeof(b.parent));
	for (uint32_t i = 0; i < n; i++) {
		struct wire_blob_entry e = {.slot = blocks[i].slot,
		                            .value = (blocks[i].flags & STORE_BLOCK_HEADER_VALID) != 0};

		memcpy(e.key, blocks[i].key.b, sizeof(e.key));
		blob_entry_put(blob, i, &e);
		if (!(blocks[i].flags & STORE_BLOCK_SYNCED))
			b.flags = 0;
	}
	memcpy(blob, &b, sizeof(b));
	blob_seal(blob, WIRE_BLOB_PLAN);
}

int tutti_plan_blob(struct tutti_ns *ns, const struct tutti_lease *lease, size_t first, size_t count, void *blob,
                    size_t bytes_max, size_t *bytes)
{
	struct store_hold_info info;
	struct store_block *blocks;
	int rc;

	if (!ns || !lease || !blob || !bytes || !count || count > UINT32_MAX)
		return err_set(-EINVAL, "tutti_plan_blob: NULL, or no blocks");
	if (bytes_max < blob_bytes(count))
		return err_set(-ENOBUFS, "plan blob: %zu bytes are needed", blob_bytes(count));
	blocks = malloc(count * sizeof(*blocks));
	if (!blocks)
		return err_set(-ENOMEM, "plan blob: no memory for %zu blocks", count);
	rc = core_enter(ns->store, __func__);
	if (rc) {
		free(blocks);
		return rc;
	}
	rc = store_hold_blocks(ns->ns, lease, first, count, &info, blocks);
	if (!rc) {
		fill_plan(blob, ns, lease, first, &info, blocks, (uint32_t)count);
		*bytes = blob_bytes(count);
	}
	pthread_mutex_unlock(&ns->store->lock);
	free(blocks);
	return rc;
}

/* ---- completions ---- */

static int complete_retrieve(struct tutti_ns *ns, const struct wire_blob *b, const void *data, size_t *bad)
{
	*bad = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		struct wire_blob_entry e = blob_entry_at(data, i);
		struct tutti_key key;

		memcpy(key.b, e.key, sizeof(key.b));
		*bad += e.value != 0;
		if (core_says_damaged(e.value))
			store_drop(ns->ns, e.slot, &key); /* another reader may have dropped it, or its parent */
	}
	return 0;
}

static int complete_store(struct tutti_ns *ns, const struct wire_blob *b, const void *data, size_t *bad)
{
	struct tutti_lease lease = {.epoch = b->epoch, .id = b->lease, .expiry_ns = b->expiry_ns};
	int32_t *results = malloc(b->n * sizeof(*results) + 1);
	int rc;

	if (!results)
		return err_set(-ENOMEM, "completion: no memory for %u blocks", b->n);
	*bad = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		results[i] = blob_entry_at(data, i).value;
		*bad += results[i] != 0;
	}
	rc = store_report(ns->ns, &lease, b->rank, b->first, b->n, results);
	free(results);
	if (!rc)
		background_poke(ns->store, 1);
	return rc;
}

int tutti_completion_result(const void *blob, size_t bytes)
{
	struct wire_blob b;
	int rc = blob_open(blob, bytes, WIRE_BLOB_COMPLETION, &b);

	for (uint32_t i = 0; !rc && i < b.n; i++)
		rc = blob_entry_at(blob, i).value;
	return rc;
}

int tutti_complete(struct tutti_ns *ns, const void *blob, size_t bytes, size_t *bad)
{
	struct wire_blob b;
	size_t none;
	int rc;

	if (!ns)
		return err_set(-EINVAL, "tutti_complete: NULL");
	if (!bad)
		bad = &none;
	rc = blob_open(blob, bytes, WIRE_BLOB_COMPLETION, &b);
	if (rc)
		return rc;
	rc = core_enter(ns->store, __func__);
	if (rc)
		return rc;
	if (memcmp(b.ns_digest, store_ns_digest(ns->ns)->b, sizeof(b.ns_digest)))
		rc = err_set(-EINVAL, "completion: of another namespace");
	else if (b.epoch != store_epoch(ns->store->st))
		rc = err_set(-ESTALE, "completion: of epoch %llu, this store is epoch %llu",
		             (unsigned long long)b.epoch, (unsigned long long)store_epoch(ns->store->st));
	else if (b.op == TUTTI_STORE)
		rc = complete_store(ns, &b, blob, bad);
	else
		rc = complete_retrieve(ns, &b, blob, bad);
	pthread_mutex_unlock(&ns->store->lock);
	return rc;
}
