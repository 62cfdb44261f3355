/* test_map.c - the P2P map against a table of single pages, in random order of registration. */
#include <errno.h>

#include "check.h"
#include "map/map.h"

#define PAGES 512u
#define PAGE 4096u

static uint64_t dma_of(uint32_t page, uint64_t seed)
{
	/* Runs of up to 8 pages are contiguous in dma, the runs lie anywhere. */
	uint64_t s = seed ^ (page / 8);

	return (check_random(&s) % 100000) * 16 * PAGE + page % 8 * PAGE;
}

/* What is found, of any length, against the pages one by one. */
static void check_finds(const struct map *m, const uint8_t *there, uint64_t *seed)
{
	for (int i = 0; i < 300; i++) {
		uint64_t at = check_random(seed) % (PAGES * PAGE), bytes = 1 + check_random(seed) % (4 * PAGE), dma;
		uint32_t first = (uint32_t)(at / PAGE), last = (uint32_t)((at + bytes - 1) / PAGE);
		int one = last < PAGES;

		for (uint32_t p = first; p <= last && one; p++)
			one = there[p] && dma_of(p, 99) == dma_of(first, 99) + (uint64_t)(p - first) * PAGE;
		CHECK_EQ(map_find(m, 0x10000000ull + at, bytes, &dma), one ? 0 : -EFAULT);
		CHECK(!one || dma == dma_of(first, 99) + at % PAGE);
	}
}

static void random_pages(void)
{
	uint64_t seed = 11;

	for (int round = 0; round < 50; round++) {
		uint32_t order[PAGES], inserted = 0, expect = 0;
		uint8_t there[PAGES] = {0};
		struct wire_map v;
		struct map m;

		map_init(&m);
		for (uint32_t i = 0; i < PAGES; i++)
			order[i] = i;
		for (uint32_t i = 0; i < PAGES; i++) {
			uint32_t k = i + (uint32_t)(check_random(&seed) % (PAGES - i)), t = order[i];

			order[i] = order[k];
			order[k] = t;
		}
		for (uint32_t i = 0; i < PAGES; i++) {
			uint32_t p = order[i];

			if (check_random(&seed) % 10 == 0)
				continue;
			CHECK_EQ(map_insert(&m, 0x10000000ull + p * PAGE, PAGE, dma_of(p, 99)), 0);
			CHECK_EQ(map_insert(&m, 0x10000000ull + p * PAGE + 100, 50, 0), -EEXIST);
			there[p] = 1;
			inserted++;
		}
		v = map_view(&m);
		for (uint32_t p = 0; p < PAGES; p++) {
			uint32_t found = 0;

			for (uint32_t k = 0; k + 1 < v.n; k++) {
				const struct wire_run *r = &v.runs[k];
				uint64_t va = 0x10000000ull + p * PAGE;

				if (r->dma != WIRE_MAP_HOLE && va >= r->va && va < r[1].va) {
					CHECK_EQ(r->dma + (va - r->va), dma_of(p, 99));
					found++;
				}
			}
			CHECK_EQ(found, there[p]);
			expect += there[p] && !(p && there[p - 1] && dma_of(p - 1, 99) + PAGE == dma_of(p, 99));
			expect += p && there[p - 1] && !there[p]; /* a hole begins */
		}
		CHECK_EQ(v.n, expect + there[PAGES - 1]); /* maximal runs and holes, sorted; at the end a hole */
		CHECK(v.runs[0].dma != WIRE_MAP_HOLE && v.runs[v.n - 1].dma == WIRE_MAP_HOLE);
		for (uint32_t k = 1; k < v.n; k++)
			CHECK(v.runs[k - 1].va < v.runs[k].va);
		map_fit(&m);
		CHECK_EQ(map_ram_bytes(&m), v.n * sizeof(struct wire_run));
		check_finds(&m, there, &seed);
		map_free(&m);
		CHECK(inserted > 0);
	}
}

static void bad_regions(void)
{
	struct map m;

	map_init(&m);
	CHECK_EQ(map_insert(&m, 4096, 0, 0), -EINVAL);
	CHECK_EQ(map_insert(&m, UINT64_MAX - 100, 4096, 0), -EINVAL);
	CHECK_EQ(map_insert(&m, 0, 4096, UINT64_MAX - 100), -EINVAL);
	CHECK_EQ(map_insert(&m, 4096, 8192, 4096), 0);
	CHECK_EQ(map_insert(&m, 0, 4097, 0), -EEXIST);
	CHECK_EQ(map_view(&m).n, 2);
	map_free(&m);
}

static void sixty_gigabytes_are_one_run(void)
{
	struct map m;

	map_init(&m);
	for (uint64_t gib = 0; gib < 60; gib++)
		CHECK_EQ(map_insert(&m, (1ull << 40) + (gib << 30), 1ull << 30, (1ull << 41) + (gib << 30)), 0);
	CHECK_EQ(map_view(&m).n, 2); /* and the end */
	CHECK(map_ram_bytes(&m) < 1024);
	map_free(&m);
}

/* What 60 GB of KV memory cost, by how large the pieces are in which a controller sees it. None touches another. */
static void sixty_gigabytes(void)
{
	static const struct {
		const char *what;
		uint64_t piece_bytes, most;
	} cases[] = {{"2 MiB hugepages", 2 << 20, 500000}, {"64 KiB pieces of a dma-buf", 64 << 10, 15000000}};

	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t n = 60000000000ull / cases[k].piece_bytes, dma;
		struct map m;

		map_init(&m);
		for (uint64_t i = 0; i < n; i++)
			CHECK_EQ(map_insert(&m, (1ull << 40) + i * cases[k].piece_bytes, cases[k].piece_bytes,
			                    (1ull << 42) + 3 * i * cases[k].piece_bytes),
			         0);
		map_fit(&m);
		CHECK_EQ(map_view(&m).n, n + 1);
		CHECK_EQ(map_find(&m, (1ull << 40) + (n - 1) * cases[k].piece_bytes + 512, 4096, &dma), 0);
		CHECK_EQ(dma, (1ull << 42) + 3 * (n - 1) * cases[k].piece_bytes + 512);
		CHECK_EQ(map_find(&m, (1ull << 40) + cases[k].piece_bytes - 512, 4096, &dma), -EFAULT);
		printf("# %s: %u runs, %.2f MB of map\n", cases[k].what, map_view(&m).n,
		       (double)map_ram_bytes(&m) / 1e6);
		CHECK(map_ram_bytes(&m) <= cases[k].most);
		map_free(&m);
	}
	printf("# 4 KiB pages, no two together: %.0f MB of map\n",
	       60e9 / 4096 * sizeof(struct wire_run) / 1e6); /* computed: memory for KV has larger pages */
}

int main(void)
{
	CHECK_RUN(random_pages);
	CHECK_RUN(bad_regions);
	CHECK_RUN(sixty_gigabytes_are_one_run);
	CHECK_RUN(sixty_gigabytes);
	return check_end();
}
