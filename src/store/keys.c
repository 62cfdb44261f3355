/*
 * keys.c - the chain of keys. A key is the SHA-256 of
 *
 *     "TUTTI-K1" | 32: digest of the namespace | 32: key of the block before, zeros at the start |
 *     4 x block_tokens: token ids | length: extra
 *
 * where each part is preceded by its length (32 bits) and everything is little endian. So a key says the namespace,
 * every token from the first on, and all that is not a token, and is the same in every process.
 */
#include "store/store.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token ids are hashed as they lie");

#define HEAD_BYTES (8u + 4 + TUTTI_KEY_BYTES + 4)
#define BLOCK_TOKENS_MAX (1u << 20)

/* A hash for each thread, fetched once, given back when the thread ends. */
static pthread_key_t slot;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int slot_result;

static void give_back(void *h) { hash_free(h); }
static void make_slot(void) { slot_result = pthread_key_create(&slot, give_back); }

static struct hash *own_hash(void)
{
	struct hash *h;

	if (pthread_once(&once, make_slot) || slot_result)
		return NULL;
	h = pthread_getspecific(slot);
	if (h)
		return h;
	h = hash_new();
	if (h && pthread_setspecific(slot, h)) {
		hash_free(h);
		return NULL;
	}
	return h;
}

int store_keys(const struct tutti_key *ns_digest, const struct tutti_key *parent, const uint32_t *tokens,
               uint32_t block_tokens, const struct tutti_extra *extra, size_t n, struct tutti_key *keys)
{
	uint8_t head[HEAD_BYTES + TUTTI_KEY_BYTES + 4] = "TUTTI-K1";
	const uint32_t key_bytes = TUTTI_KEY_BYTES, token_bytes = block_tokens * 4;
	struct hash *h;

	if (!block_tokens || block_tokens > BLOCK_TOKENS_MAX)
		return err_set(-EINVAL, "keys: block_tokens is %u, it must be 1 to %u", block_tokens, BLOCK_TOKENS_MAX);
	if (n && (!ns_digest || !tokens || !keys))
		return err_set(-EINVAL, "keys: the namespace's digest, the tokens and room for the keys must be given");
	h = own_hash();
	if (!h)
		return err_set(-ENOMEM, "no memory for a digest");
	memcpy(head + 8, &key_bytes, 4);
	if (n)
		memcpy(head + 12, ns_digest->b, TUTTI_KEY_BYTES);
	memcpy(head + HEAD_BYTES - 4, &key_bytes, 4);
	memcpy(head + HEAD_BYTES + TUTTI_KEY_BYTES, &token_bytes, 4);
	for (size_t i = 0; i < n; i++) {
		uint32_t extra_bytes = extra ? extra[i].n_bytes : 0;

		if (i || parent)
			memcpy(head + HEAD_BYTES, i ? keys[i - 1].b : parent->b, TUTTI_KEY_BYTES);
		hash_begin(h);
		hash_add(h, head, sizeof(head));
		hash_add(h, tokens + i * block_tokens, token_bytes);
		hash_add(h, &extra_bytes, 4);
		if (extra_bytes)
			hash_add(h, extra[i].bytes, extra_bytes);
		hash_end(h, keys[i].b);
	}
	return 0;
}
