/*
 * pages.h - large buffers that a controller will reach: page aligned, zeroed, in huge pages where the kernel gives
 * them, so that touching and pinning 16 MiB is 8 faults, not 4096.
 */
#ifndef TUTTI_CORE_PAGES_H
#define TUTTI_CORE_PAGES_H

#include <stdint.h>

/* NULL: no memory. */
void *pages_alloc(uint64_t bytes);
/* bytes as given to pages_alloc. NULL is fine. */
void pages_free(void *p, uint64_t bytes);

#endif
