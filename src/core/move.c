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

/* What of a reservation is not moved would be given up without a word. */
static int check_whole(struct tutti_ns *ns, const struct tutti_lease *lease, const struct wire_blob *plan, size_t n)
{
	size_t bytes = tutti_plan_blob_bytes(1), done;
	void *next = plan->op == TUTTI_STORE ? malloc(bytes) : NULL;
	int more;

	if (plan->op != TUTTI_STORE)
		return 0;
	if (!next)
		return err_set(-ENOMEM, "tutti_move: no memory");
	more = tutti_plan_blob(ns, lease, n, 1, next, bytes, &done) == 0;
	free(next);
	return more ? err_set(-EINVAL,
	                      "tutti_move: the reservation has more than %zu blocks, and what is not moved of "
	                      "it would be given up; give a block of the engine for each",
	                      n)
	            : 0;
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
		rc = check_whole(ns, lease, blob, n);
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
