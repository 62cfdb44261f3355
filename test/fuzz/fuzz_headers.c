/*
 * fuzz_headers.c - slot headers of any content, recovered. First byte: bit 0 seals. Then pieces: number of the header
 * among those of the pool, count of patches, patches on its first 256 bytes.
 */
#include "fuzz/pool.h"

#define HEADERS_MAX 64

static uint64_t headers[HEADERS_MAX];
static uint32_t n_headers;

static void find_headers(void)
{
	for (uint64_t at = 0; at < POOL_BYTES && n_headers < HEADERS_MAX; at += 4096)
		if (!memcmp(pool_image + at, "TUTIHDR1", 8))
			headers[n_headers++] = at;
	POOL_MUST(n_headers >= 10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size, *at = data + 1;

	if (size < 1)
		return 0;
	pool_make(0);
	if (!n_headers)
		find_headers();
	pool_restore();
	while (end - at >= 2) {
		uint8_t *page = pool.mem[0] + headers[at[0] % n_headers];
		struct wire_header *h = (struct wire_header *)(void *)page;
		size_t n = (size_t)(at[1] % 64) * 3;

		at += 2;
		if (n > (size_t)(end - at))
			n = (size_t)(end - at);
		pool_patch(page, 256, at, n);
		if ((data[0] & 1) && h->objects <= 400)
			h->sum = geom_header_sum(h);
		at += n;
	}
	pool_use();
	return 0;
}
