/*
 * layout.c - merging: the inner pair disappears when its segments touch, and then the outer one may too, so that K|V
 * fused, k kernel blocks in one and heads that lie together all become few large objects.
 */
#include "core/layout.h"

#include <errno.h>

#include "base/err.h"
#include "base/hash.h"
#include "core/opts.h"
#include "tutti/tutti.h"

static int mul_add(uint64_t *sum, uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(*sum, product, sum);
}

/* A pair whose stride is exactly one segment is no pair: its segments are one. */
static int fold(uint32_t *count, uint64_t *stride, uint64_t *segment_bytes)
{
	if (*count > 1 && *stride == *segment_bytes) {
		if (__builtin_mul_overflow(*segment_bytes, *count, segment_bytes))
			return -1;
		*count = 1;
	}
	if (*count == 1)
		*stride = 0;
	return 0;
}

/*
 * Bytes from the first segment's start to the last one's end; -1 when they overflow or segments overlap. Pairs are
 * taken by ascending stride: each must step over all that the smaller ones cover.
 */
static int extent(const struct layout *l, uint64_t blocks, uint64_t *bytes)
{
	struct {
		uint64_t count, stride;
	} pair[3] = {{l->outer_count, l->outer_stride}, {l->inner_count, l->inner_stride}, {blocks, l->block_stride}},
	  t;

	*bytes = l->segment_bytes;
	for (int i = 0; i < 3; i++) {
		for (int k = i + 1; k < 3; k++) {
			if (pair[k].stride < pair[i].stride) {
				t = pair[i];
				pair[i] = pair[k];
				pair[k] = t;
			}
		}
		if (pair[i].count > 1 && pair[i].stride < *bytes)
			return -1;
		if (mul_add(bytes, pair[i].count - 1, pair[i].stride))
			return -1;
	}
	return *bytes > 1ull << 56 ? -1 : 0;
}

int layout_merge(const struct tutti_kv_layout *in, struct layout *out)
{
	if (!in->layers || !in->blocks || !in->outer_count || !in->inner_count || !in->segment_bytes)
		return err_set(-EINVAL, "KV layout: layers, blocks, counts and segment_bytes must not be zero");
	if (in->blocks > UINT32_MAX)
		return err_set(-EINVAL, "KV layout: %llu blocks are too many", (unsigned long long)in->blocks);
	out->outer_count = in->outer_count;
	out->inner_count = in->inner_count;
	out->outer_stride = in->outer_stride;
	out->inner_stride = in->inner_stride;
	out->segment_bytes = in->segment_bytes;
	out->block_stride = in->blocks > 1 ? in->block_stride : 0;
	if (fold(&out->inner_count, &out->inner_stride, &out->segment_bytes) ||
	    (out->inner_count == 1 && fold(&out->outer_count, &out->outer_stride, &out->segment_bytes)))
		return err_set(-EINVAL, "KV layout: sizes overflow");
	if (out->outer_count == 1)
		out->outer_stride = 0;
	if (extent(out, in->blocks, &out->extent_bytes))
		return err_set(
		    -EINVAL,
		    "KV layout: segments of %llu bytes overlap each other, or the sizes overflow; look at the strides",
		    (unsigned long long)out->segment_bytes);
	return 0;
}

int layout_digest(const struct tutti_kv_layout *in, const struct layout *l, uint8_t digest[TUTTI_KEY_BYTES])
{
	/* Order as the engine sees it, before merging: merged or not, the bytes of an object mean the same only if that
	 * agrees. Strides are left out: they say where memory lies, not what it holds. */
	uint64_t facts[6] = {in->outer_count, in->inner_count, in->segment_bytes,
	                     l->outer_count,  l->inner_count,  l->segment_bytes};
	struct hash *h = hash_new();

	if (!h)
		return err_set(-ENOMEM, "KV layout: no SHA-256");
	hash_begin(h);
	hash_add(h, "tutti layout 1", 14);
	for (int i = 0; i < 6; i++) {
		uint8_t le[8];

		for (int k = 0; k < 8; k++)
			le[k] = (uint8_t)(facts[i] >> (8 * k));
		hash_add(h, le, sizeof(le));
	}
	hash_end(h, digest);
	hash_free(h);
	return 0;
}

int tutti_kv_layout_objects(const struct tutti_kv_layout *layout, struct tutti_ns_spec *spec)
{
	struct tutti_kv_layout own;
	struct layout l;
	int rc = OPTS_TAKE(&own, layout, "tutti_kv_layout_objects", "TUTTI_KV_LAYOUT_INIT");

	if (rc)
		return rc;
	if (!spec || spec->size < offsetof(struct tutti_ns_spec, layout) + sizeof(spec->layout))
		return err_set(-EINVAL, "tutti_kv_layout_objects: spec NULL, or not initialised with "
		                        "TUTTI_NS_SPEC_INIT");
	rc = layout_merge(&own, &l);
	if (rc)
		return rc;
	spec->layers = own.layers;
	spec->objects_per_layer = l.outer_count * l.inner_count;
	spec->object_bytes = l.segment_bytes;
	return layout_digest(&own, &l, spec->layout);
}
