/*
 * map.h - the P2P map, host side: built once per registered region, read by device code for the life of a lane.
 *
 * 60 GB of memory behind one DMA address is one run; only memory that a controller sees in pieces costs more: 16
 * bytes a piece.
 * Not thread-safe: core builds it before the first kernel, under its lock.
 */
#ifndef TUTTI_MAP_MAP_H
#define TUTTI_MAP_MAP_H

#include "wire/map.h"

#include <stddef.h>

struct map {
	struct wire_run *runs; /* as wire/map.h says */
	uint32_t n;
	uint32_t room;
};

void map_init(struct map *m);
void map_free(struct map *m);
/* Adds a run, merging it with its neighbours where va and dma both continue. -EEXIST: overlaps; -ENOMEM; -EINVAL:
 * empty, wraps. */
int map_insert(struct map *m, uint64_t va, uint64_t bytes, uint64_t dma);
/* Gives back the room that more runs would have taken: after the last of many. A map that can't stays as it is. */
void map_fit(struct map *m);
/* The address at which the controller finds [va, va + bytes), if that is one run. -EFAULT: it isn't. */
int map_find(const struct map *m, uint64_t va, uint64_t bytes, uint64_t *dma);
/* Bytes of RAM that the map holds. */
size_t map_ram_bytes(const struct map *m);
/* The table that device code reads; valid until the next insert. */
struct wire_map map_view(const struct map *m);

/* ---- memory across devices (map/export.c; a build without CUDA answers -ENOSYS) ---- */

/*
 * A dma-buf of exactly [va, va + bytes) of an accelerator's memory (whole pages), for a kernel driver to import. The
 * caller closes *fd. -EFAULT: not an accelerator's memory; -EOPNOTSUPP: its driver can't; each said. Any thread.
 */
int map_export(void *va, uint64_t bytes, int *fd);
/* Whether all accelerators here can, as a line of text. 0, or -errno and why not. */
int map_export_probe(char *text, uint32_t text_bytes);
/*
 * Whether the CPU could read and write the accelerator's memory itself, so that rings might lie there: tries it on a
 * piece that it takes and gives back. 0, or -errno; what was found, or why not, as a line of text.
 */
int map_window_probe(char *text, uint32_t text_bytes);

#endif
