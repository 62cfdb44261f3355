/* hash.c - thin covers over OpenSSL's SHA-256 and xxhash. */
#include "base/hash.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <xxhash.h>

struct hash {
	EVP_MD *md; /* fetched once: a fetch per digest would cost more than the digest */
	EVP_MD_CTX *ctx;
};

struct hash *hash_new(void)
{
	struct hash *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->md = EVP_MD_fetch(NULL, "SHA256", NULL);
	h->ctx = EVP_MD_CTX_new();
	if (!h->md || !h->ctx) {
		hash_free(h);
		return NULL;
	}
	return h;
}

void hash_free(struct hash *h)
{
	if (!h)
		return;
	EVP_MD_CTX_free(h->ctx);
	EVP_MD_free(h->md);
	free(h);
}

/* With a fetched digest and a context of our own these three can fail only by misuse. */
void hash_begin(struct hash *h) { EVP_DigestInit_ex2(h->ctx, h->md, NULL); }
void hash_add(struct hash *h, const void *data, size_t bytes) { EVP_DigestUpdate(h->ctx, data, bytes); }
void hash_end(struct hash *h, uint8_t digest[HASH_DIGEST_BYTES]) { EVP_DigestFinal_ex(h->ctx, digest, NULL); }

uint64_t hash_xxh3(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }
