/* map.h - the P2P map as both sides see it: runs of memory and the address at which a controller finds them. */
#ifndef TUTTI_WIRE_MAP_H
#define TUTTI_WIRE_MAP_H

#include <stdint.h>

/* From va on, to where the next one begins. Two words, since memory in pieces has as many of these as pieces. */
struct wire_run {
	uint64_t va;
	uint64_t dma; /* virtual controller: va; VFIO: the IOVA; kernel module: the DMA address. Or WIRE_MAP_HOLE */
};
#define WIRE_MAP_HOLE UINT64_MAX

/*
 * Sorted by va; maximal: no run continues the one before in dma, no two holes are neighbours. The first is no hole, the
 * last one is: it ends the map.
 */
struct wire_map {
	const struct wire_run *runs;
	uint32_t n;
	uint32_t rsvd;
};

#endif
