/*
 * kvgen.h - the stand-in for attention: the bytes that a block's layer must hold, a function of (key, layer, offset).
 *
 * The bytes of a layer are 64-bit words, each a cheap mix of the layer's seed and the word's number, so that bytes of
 * another key, layer or place never match. Filling and comparing run at memory speed; comparing needs no buffer.
 */
#ifndef TUTTI_CLI_KVGEN_H
#define TUTTI_CLI_KVGEN_H

#include <stddef.h>
#include <stdint.h>
#include <tutti/types.h>

uint64_t kvgen_seed(const struct tutti_key *key, uint32_t layer);
/* Writes bytes [offset, offset + bytes) of the layer to `to`. */
void kvgen_fill(uint64_t seed, uint64_t offset, void *to, size_t bytes);
/* Number of bytes in `from` that are not bytes [offset, offset + bytes) of the layer. */
uint64_t kvgen_mismatches(uint64_t seed, uint64_t offset, const void *from, size_t bytes);

#endif
