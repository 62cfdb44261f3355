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

/*
 * Asks for huge pages in memory of others, before it is pinned: what nobody has touched yet comes in them then. The
 * kernel's work for a transfer is by the page, so this halves it. Begins and ends at the huge pages around, because one
 * small page at an end makes io_uring keep the whole in small ones. Contents stay.
 */
void pages_advise(void *p, uint64_t bytes);

#endif
