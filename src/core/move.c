/* move.c - tutti_move: a plan's whole life in one call, for programs that have nothing to do meanwhile. */
#include <errno.h>
#include <stdlib.h>

#include "base/err.h"
#include "core/lane.h"

static int issue(struct tutti_plan *p)
{
	int rc = 0;

	if (p->dev.op == WIRE_READ)
		return tutti_retrieve(p);
	for (uint32_t i = 0; i < p->dev.geom.layers && !rc; i++)
		rc = tutti_store_layer(p, i);
	return rc;
}

int tutti_move(struct tutti_ns *ns, struct tutti_lane *l, const struct tutti_lease *lease, const uint64_t *blocks,
               size_t n, size_t *bad)
{
	size_t bytes = n < UINT32_MAX ? tutti_plan_blob_bytes(n) : 0, none, done = 0;
	void *blob = bytes ? malloc(bytes) : NULL;
	struct tutti_plan *p = NULL;
	const int asked = bad != NULL;
	int rc, ended;

	bad = asked ? bad : &none;
	*bad = 0;
	if (!blob)
		return err_set(bytes ? -ENOMEM : -EINVAL, "tutti_move: no memory for a plan of %zu blocks", n);
	rc = tutti_plan_blob(ns, lease, 0, n, blob, bytes, &done);
	if (!rc)
		rc = tutti_plan_open(l, blob, done, blocks, n, &p);
	if (rc) {
		free(blob);
		return rc;
	}
	rc = issue(p);
	/* No deadline here: every kernel has its own, and a lane that misses it is dead. */
	ended = tutti_plan_finish(p, UINT64_MAX, blob, bytes, &done);
	if (!ended)
		ended = tutti_complete(ns, blob, done, bad);
	free(blob);
	if (!ended)
		tutti_release(ns, lease);
	rc = ended ? ended : rc;
	if (!rc && *bad && !asked)
		rc = err_set(-EIO, "tutti_move: %zu of %zu blocks failed", *bad, n);
	return rc;
}
