/* plan_room.c - see plan_room.h. */
#include "core/plan_room.h"

#include <errno.h>
#include <stdlib.h>

#define ALIGN_BYTES 256u

int plan_room_get(struct plan_room *r, uint64_t bytes, uint64_t *at)
{
	struct plan_room_piece **link = &r->used, *n;
	uint64_t from = 0;

	bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
	for (; *link && (*link)->at - from < bytes; link = &(*link)->next)
		from = (*link)->at + (*link)->bytes;
	if (!*link && (from > r->bytes || r->bytes - from < bytes))
		return -ENOSPC;
	n = malloc(sizeof(*n));
	if (!n)
		return -ENOMEM;
	*n = (struct plan_room_piece){.next = *link, .at = from, .bytes = bytes};
	*link = n;
	*at = from;
	return 0;
}

void plan_room_put(struct plan_room *r, uint64_t at)
{
	for (struct plan_room_piece **link = &r->used; *link; link = &(*link)->next)
		if ((*link)->at == at) {
			struct plan_room_piece *gone = *link;

			*link = gone->next;
			free(gone);
			return;
		}
}
