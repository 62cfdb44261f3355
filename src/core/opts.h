/*
 * opts.h - structs whose size the caller states, because it may have been compiled with an older or a newer header.
 */
#ifndef TUTTI_CORE_OPTS_H
#define TUTTI_CORE_OPTS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Copies an option struct, which begins with its size (uint32_t), into this library's form of it: what the caller's
 * does not have is 0. -EINVAL: NULL or not initialised. -E2BIG: it sets something that this library does not know.
 * `call` and `init` are for the message: "tutti_format", "TUTTI_FORMAT_OPTS_INIT".
 */
int opts_take(void *known, uint32_t known_bytes, const void *given, const char *call, const char *init);
#define OPTS_TAKE(known, given, call, init) opts_take((known), sizeof(*(known)), (given), (call), (init))

/* The other way: a filled struct into a caller's of `bytes`, never beyond it; what only the caller has becomes 0. */
void opts_give(const void *known, size_t known_bytes, void *out, size_t bytes);

#endif
