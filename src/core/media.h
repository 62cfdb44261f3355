/*
 * media.h - the store's I/O over a controller: a queue pair, a bounded arena, one thread at a time (own lock).
 */
#ifndef TUTTI_CORE_MEDIA_H
#define TUTTI_CORE_MEDIA_H

#include "ctrl/ctrl.h"
#include "store/media.h"

struct media;

/* A media over `ctrl`, whose Identify is `info`. The controller stays the caller's and must outlive it. */
int media_new(const struct ctrl_ops *ops, struct ctrl *ctrl, const struct ctrl_info *info, struct media **out);
void media_free(struct media *m);
/* The table that store works with; valid as long as m. */
const struct store_media *media_table(struct media *m);
/* For tests: how long a transfer may take; 0: 30 s. Not thread-safe. */
void media_use_deadline(uint64_t ns);
/* Writes zeros over an extent, deep queue. *stop (may be NULL) not 0 ends it early with -ECANCELED. */
int media_zero(struct media *m, uint32_t dev, uint64_t offset_bytes, uint64_t bytes, const int *stop);
/* Extents of device `dev` may be deallocated between these bytes only. Nothing may, before. */
void media_data_is(struct media *m, uint32_t dev, uint64_t first_byte, uint64_t end_byte);
/*
 * Tells the device that an extent holds nothing any more (Dataset Management, deallocate). -EOPNOTSUPP: it can't be
 * told; -ERANGE: not all of it is data; another status or -errno: it failed, in part perhaps, and is over;
 * -ENOTRECOVERABLE: the device may still do it. *stop as for media_zero.
 */
int media_deallocate(struct media *m, uint32_t dev, uint64_t offset_bytes, uint64_t bytes, const int *stop);

#endif
