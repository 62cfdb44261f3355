/* test_pages.c - memory in huge pages: what is asked for, and what the kernel gave. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "core/pages.h"

#define HUGE (2ull << 20)
#define BYTES (16 * HUGE)

static int kernel_gives(void)
{
	char text[64] = "";
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");

	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	return text[0] && !strstr(text, "[never]");
}

/* Bytes of the process in huge pages. */
static uint64_t huge_bytes(void)
{
	unsigned long long kib = 0;
	char line[256];
	FILE *f = fopen("/proc/self/smaps_rollup", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "AnonHugePages: %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib << 10;
}

/* A kernel whose memory is in pieces may give fewer than it was asked for. */
static void untouched_memory_of_others_comes_in_huge_pages(void)
{
	uint64_t before = huge_bytes();
	uint8_t *p;

	if (!kernel_gives())
		CHECK_SKIP("this kernel gives no huge pages");
	p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	pages_advise(p + 4096, BYTES - 8192); /* as an allocator's header would leave it */
	memset(p, 1, BYTES);
	CHECK(huge_bytes() >= before + BYTES / 2);
	munmap(p, BYTES);
}

static void contents_stay(void)
{
	uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t wrong = 0;

	CHECK(p != MAP_FAILED);
	memset(p, 7, BYTES);
	pages_advise(p, BYTES);
	pages_advise(p + 1, 1); /* too little for one: nothing */
	for (uint64_t i = 0; i < BYTES; i++)
		wrong += p[i] != 7;
	CHECK_EQ(wrong, 0);
	munmap(p, BYTES);
}

int main(void)
{
	CHECK_RUN(untouched_memory_of_others_comes_in_huge_pages);
	CHECK_RUN(contents_stay);
	return check_end();
}
