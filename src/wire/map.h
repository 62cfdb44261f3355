/* map.h - the P2P map as both sides see it: runs of memory and the address at which a controller finds them. */
#ifndef TUTTI_WIRE_MAP_H
#define TUTTI_WIRE_MAP_H

#include <stdint.h>

struct wire_region {
	uint64_t va;
	uint64_t bytes;
	uint64_t dma; /* virtual controller: va; VFIO: the IOVA; kernel module: the DMA address */
};

/* Sorted by va, without overlap, maximal: neighbours that continue each other in va and dma are one. */
struct wire_map {
	const struct wire_region *regions;
	uint32_t n;
	uint32_t rsvd;
};

#endif
