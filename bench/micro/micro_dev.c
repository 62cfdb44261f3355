/*
 * micro_dev.c - what the pieces of the I/O path cost by themselves: data pointers and checksums, one thread.
 *
 * Prints `name value unit`, one a line. Each figure is the median of several timed rounds; contenders take turns.
 * The results of the work are added up and printed last, so that no compiler may leave it out.
 */
#include "dev/dptr.h"
#include "geom/objsum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 9
#define COMMANDS 200000u
#define CIDS 64u
#define PIECE_BYTES (128u << 10) /* one object */
#define BIG_BYTES (256u << 20)
#define RUNS_MAX 16u

static uint64_t guard; /* of results */

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v)
{
	qsort(v, ROUNDS, sizeof(*v), less);
	return v[ROUNDS / 2];
}

/* ---- data pointers ---- */

struct dptr_row {
	const char *name;
	uint32_t sgl_max, runs;
	uint64_t run_bytes;
};

static const struct dptr_row dptr_rows[] = {
    {"dptr_sgl_1_run_128KiB", 256, 1, 128 << 10}, {"dptr_prp_1_run_4KiB", 0, 1, 4096},
    {"dptr_prp_1_run_8KiB", 0, 1, 8192},          {"dptr_prp_1_run_128KiB", 0, 1, 128 << 10},
    {"dptr_sgl_16_runs_32KiB", 256, 16, 32 << 10}, {"dptr_prp_16_runs_32KiB", 0, 16, 32 << 10},
};
#define DPTR_ROWS (sizeof(dptr_rows) / sizeof(*dptr_rows))

static double dptr_round(const struct dptr_row *row, struct dev_list *lists, const uint64_t *addr)
{
	static struct nvme_sqe ring[CIDS];
	uint64_t t = port_now_ns();

	for (uint32_t i = 0; i < COMMANDS; i++) {
		struct dev_dptr d;

		dev_dptr_begin(&d, &lists[i % CIDS], row->sgl_max);
		for (uint32_t r = 0; r < row->runs; r++)
			guard += (uint64_t)dev_dptr_add(&d, addr[(i + r * 7) % 1024], row->run_bytes);
		dev_dptr_finish(&d, &ring[i % CIDS]);
	}
	t = port_now_ns() - t;
	for (uint32_t i = 0; i < CIDS; i++)
		guard += ring[i].dptr.prp.prp1 ^ ring[i].dptr.prp.prp2;
	return (double)t / COMMANDS;
}

static void dptr_all(void)
{
	static struct dev_list lists[CIDS];
	static uint64_t addr[1024];
	double v[DPTR_ROWS][ROUNDS];
	unsigned char *pages = aligned_alloc(DEV_PAGE_BYTES, (size_t)CIDS * DEV_PAGE_BYTES);

	if (!pages)
		exit(3);
	memset(pages, 0, (size_t)CIDS * DEV_PAGE_BYTES);
	for (uint32_t i = 0; i < CIDS; i++) {
		lists[i].page[0] = (uint64_t *)(void *)(pages + (size_t)i * DEV_PAGE_BYTES);
		lists[i].dma[0] = (uint64_t)(uintptr_t)lists[i].page[0];
		lists[i].n_pages = 1;
	}
	for (uint64_t i = 0; i < 1024; i++)
		addr[i] = 0x7f0000000000ull + i * 521 % 1024 * (1u << 20);
	for (uint32_t k = 0; k < ROUNDS; k++)
		for (uint32_t r = 0; r < DPTR_ROWS; r++)
			v[r][k] = dptr_round(&dptr_rows[r], lists, addr);
	for (uint32_t r = 0; r < DPTR_ROWS; r++)
		printf("%s %.2f ns/command\n", dptr_rows[r].name, median(v[r]));
	free(pages);
}

/* ---- checksums ---- */

/* GB/s of one pass over `bytes` in pieces of an object, repeated until it is worth timing. dst NULL: sum only. */
static double sum_round(enum objsum_isa isa, unsigned char *dst, const unsigned char *src, uint64_t bytes,
                        uint32_t times)
{
	uint64_t t = port_now_ns();

	for (uint32_t k = 0; k < times; k++)
		for (uint64_t at = 0; at < bytes; at += PIECE_BYTES)
			guard += objsum_isa_part(isa, dst ? dst + at : NULL, src + at, PIECE_BYTES, 0);
	return (double)bytes * times / (double)(port_now_ns() - t);
}

static double memcpy_round(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint32_t times)
{
	uint64_t t = port_now_ns();

	for (uint32_t k = 0; k < times; k++)
		for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
			memcpy(dst + at, src + at, PIECE_BYTES);
			guard += dst[at];
		}
	return (double)bytes * times / (double)(port_now_ns() - t);
}

static void sums_of(const char *place, unsigned char *dst, const unsigned char *src, uint64_t bytes, uint32_t times)
{
	int n = (int)objsum_isa_best() + 1;
	double sum[OBJSUM_ISAS][ROUNDS], copy[OBJSUM_ISAS][ROUNDS], plain[ROUNDS];

	for (int k = 0; k < ROUNDS; k++) {
		for (int isa = 0; isa < n; isa++) {
			sum[isa][k] = sum_round((enum objsum_isa)isa, NULL, src, bytes, times);
			copy[isa][k] = sum_round((enum objsum_isa)isa, dst, src, bytes, times);
		}
		plain[k] = memcpy_round(dst, src, bytes, times);
	}
	for (int isa = 0; isa < n; isa++)
		printf("objsum_%s_%s %.2f GB/s\n", objsum_isa_name((enum objsum_isa)isa), place, median(sum[isa]));
	for (int isa = 0; isa < n; isa++)
		printf("objsum_copy_%s_%s %.2f GB/s\n", objsum_isa_name((enum objsum_isa)isa), place,
		       median(copy[isa]));
	printf("memcpy_%s %.2f GB/s\n", place, median(plain));
}

int main(void)
{
	unsigned char *src = aligned_alloc(DEV_PAGE_BYTES, BIG_BYTES), *dst = aligned_alloc(DEV_PAGE_BYTES, BIG_BYTES);

	if (!src || !dst)
		return 3;
	for (uint64_t i = 0; i < BIG_BYTES; i += 8)
		memcpy(src + i, &(uint64_t){i * OBJSUM_LANE_KEY}, 8);
	memset(dst, 1, BIG_BYTES);
	dptr_all();
	sums_of("128KiB_in_cache", dst, src, PIECE_BYTES, 500);
	sums_of("256MiB", dst, src, BIG_BYTES, 1);
	printf("check %llu -\n", (unsigned long long)(guard & 0xff));
	free(src);
	free(dst);
	return 0;
}
