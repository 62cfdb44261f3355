/* layout.h - the engine's description of its KV memory: merged, measured, turned into what device code reads. */
#ifndef TUTTI_CORE_LAYOUT_H
#define TUTTI_CORE_LAYOUT_H

#include "dev/plan.h"
#include "tutti/types.h"

/* Two nested (count, stride) pairs after merging of segments that touch; objects are outer x inner. */
struct layout {
	uint32_t outer_count, inner_count;
	uint64_t outer_stride, inner_stride, segment_bytes, block_stride;
	uint64_t extent_bytes; /* of a layer: from its base to behind the last block's last segment */
};

/* -EINVAL: a zero, an overflow, or segments that overlap. Does not look at the memory. */
int layout_merge(const struct tutti_kv_layout *in, struct layout *out);
/* Fingerprint of the logical order of bytes of a block in a layer. -ENOMEM. */
int layout_digest(const struct tutti_kv_layout *in, const struct layout *l, uint8_t digest[TUTTI_KEY_BYTES]);

#endif
