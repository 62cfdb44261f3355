/*
 * test_dptr.c - the data pointer builder against two strangers: a slow model that walks memory page by page and says
 * which runs fit, and a decoder that reads the finished command as a controller does and gives back byte ranges.
 *
 * List pages lie between guard pages, and their DMA addresses are made up, so that a builder which mixes up the two
 * addresses, or writes past its pages, is found.
 */
#include "dev/dptr.h"
#include "test/check.h"

#include <stdbool.h>

#define PAGES DEV_LIST_PAGES_MAX
#define RANGES_MAX 4096u
#define GUARD 0xA5

struct range {
	uint64_t addr, len;
};

struct ranges {
	struct range r[RANGES_MAX];
	uint32_t n;
};

/* ---- list pages between guards ---- */

static unsigned char arena[(2 * PAGES + 1) * DEV_PAGE_BYTES] __attribute__((aligned(4096)));
static struct dev_list list;

static void list_make(uint32_t n_pages)
{
	memset(arena, GUARD, sizeof(arena));
	memset(&list, 0, sizeof(list));
	for (uint32_t i = 0; i < n_pages; i++) {
		list.page[i] = (uint64_t *)(void *)(arena + (2 * i + 1) * DEV_PAGE_BYTES);
		list.dma[i] = 0xdead00000000ull + (7 - i) * 0x30000ull; /* not in order, not the pointer */
	}
	list.n_pages = n_pages;
}

static bool guards_whole(void)
{
	for (uint32_t i = 0; i < 2 * PAGES + 1; i++)
		if (i % 2 == 0 || i / 2 >= list.n_pages)
			for (uint32_t k = 0; k < DEV_PAGE_BYTES; k++)
				if (arena[i * DEV_PAGE_BYTES + k] != GUARD)
					return false;
	return true;
}

static const unsigned char *list_read(uint64_t dma)
{
	for (uint32_t i = 0; i < list.n_pages; i++)
		if (list.dma[i] == dma)
			return (const unsigned char *)list.page[i];
	return NULL;
}

/* Appends, joining what touches: the canonical form in which two lists of ranges are compared. */
static void ranges_add(struct ranges *s, uint64_t addr, uint64_t len)
{
	if (s->n && s->r[s->n - 1].addr + s->r[s->n - 1].len == addr)
		s->r[s->n - 1].len += len;
	else
		s->r[s->n++] = (struct range){addr, len};
}

/* ---- the decoder: what a controller makes of the command ---- */

static bool decode_sgl(const struct nvme_sqe *e, struct ranges *out, uint32_t *descriptors)
{
	struct nvme_sgl at = e->dptr.sgl, d;
	uint32_t segments = 0;

	out->n = *descriptors = 0;
	if (at.id == 0x00) {
		ranges_add(out, at.addr, at.len);
		*descriptors = 1;
		return at.len != 0 && !at.rsvd[0] && !at.rsvd[1] && !at.rsvd[2];
	}
	for (;;) {
		const unsigned char *page = list_read(at.addr);
		bool last = at.id == 0x30;
		uint32_t n = at.len / 16;

		if ((!last && at.id != 0x20) || !page || at.len % 16 || !n || at.len > DEV_PAGE_BYTES || at.rsvd[0] ||
		    at.rsvd[1] || at.rsvd[2] || ++segments > list.n_pages)
			return false;
		for (uint32_t i = 0; i < n; i++) {
			memcpy(&d, page + 16 * i, 16);
			if (!last && i == n - 1)
				break;
			if (d.id != 0x00 || !d.len || d.rsvd[0] || d.rsvd[1] || d.rsvd[2])
				return false;
			ranges_add(out, d.addr, d.len);
			++*descriptors;
		}
		if (last)
			return true;
		at = d;
	}
}

static bool decode_prp(const struct nvme_sqe *e, uint64_t bytes, struct ranges *out)
{
	uint64_t addr = e->dptr.prp.prp1, room = 4096 - addr % 4096, take = bytes < room ? bytes : room, entry;
	const unsigned char *page;
	uint32_t place = 0, pages = 1;

	out->n = 0;
	if (addr % 4)
		return false;
	ranges_add(out, addr, take);
	bytes -= take;
	if (!bytes)
		return e->dptr.prp.prp2 == 0;
	if (bytes <= 4096) {
		ranges_add(out, e->dptr.prp.prp2, bytes);
		return e->dptr.prp.prp2 % 4096 == 0;
	}
	page = list_read(e->dptr.prp.prp2);
	while (page && bytes) {
		memcpy(&entry, page + 8 * place++, 8);
		/* The last place of a page, and more than one page of data to come: a link. */
		if (place == 512 && bytes > 4096) {
			page = list_read(entry);
			place = 0;
			if (++pages > list.n_pages)
				return false;
			continue;
		}
		if (entry % 4096)
			return false;
		take = bytes < 4096 ? bytes : 4096;
		ranges_add(out, entry, take);
		bytes -= take;
	}
	return bytes == 0;
}

/* ---- the model: walks pages, knows no formula ---- */

struct model {
	bool sgl;
	uint32_t n, n_max;
	uint64_t bytes, end;
	struct ranges runs;
};

static void model_begin(struct model *m, uint32_t sgl_max, uint32_t n_pages)
{
	uint32_t place_in_list = 0;

	m->sgl = sgl_max != 0;
	m->n = 0;
	m->bytes = m->end = 0;
	m->runs.n = 0;
	for (uint32_t i = 0; i < n_pages; i++)
		place_in_list += (m->sgl ? 256u : 512u) - (i + 1 < n_pages ? 1u : 0u);
	if (m->sgl) {
		m->n_max = place_in_list > 1 ? place_in_list : 1;
		m->n_max = m->n_max < sgl_max ? m->n_max : sgl_max;
	} else {
		m->n_max = 1 + (place_in_list > 1 ? place_in_list : 1);
	}
}

static bool model_add(struct model *m, uint64_t addr, uint64_t len)
{
	uint32_t n = m->n;
	uint64_t end = m->end;

	if (addr % 4 || len == 0)
		return false;
	if (m->sgl) {
		n += !n || addr != end;
		end = addr + len;
	} else {
		for (uint64_t at = addr, left = len; left;) {
			uint64_t room = 4096 - at % 4096, take = left < room ? left : room;

			if (n && end % 4096 && at != end) /* the page before is not full: only its rest may follow */
				return false;
			if (n && end % 4096 == 0 && at % 4096) /* a new page must be used from its start */
				return false;
			n += !n || at % 4096 == 0;
			at += take;
			end = at;
			left -= take;
		}
	}
	if (n > m->n_max)
		return false;
	m->n = n;
	m->end = end;
	m->bytes += len;
	ranges_add(&m->runs, addr, len);
	return true;
}

/* ---- both together ---- */

static struct model model;
static struct dev_dptr built;

static void both_begin(uint32_t sgl_max, uint32_t n_pages)
{
	list_make(n_pages);
	model_begin(&model, sgl_max, n_pages);
	memset(&built, 0x5a, sizeof(built));
	dev_dptr_begin(&built, &list, sgl_max);
}

/* Adds to both; true: accepted. A refusal must leave every byte of the builder as it was. */
static bool both_add(uint64_t addr, uint64_t len)
{
	unsigned char before[sizeof(built)];
	bool fits = model_add(&model, addr, len);
	int rc;

	memcpy(before, &built, sizeof(built));
	rc = dev_dptr_add(&built, addr, len);
	CHECK_EQ(rc, fits ? 0 : -1);
	if (!fits)
		CHECK(memcmp(before, &built, sizeof(built)) == 0);
	CHECK(built.bytes == model.bytes);
	return fits;
}

static void both_finish(void)
{
	static struct ranges got;
	struct nvme_sqe e, other;
	uint32_t descriptors = 0;

	memset(&e, 0xc3, sizeof(e));
	memset(&other, 0xc3, sizeof(other));
	dev_dptr_finish(&built, &e);
	if (model.sgl) {
		CHECK(decode_sgl(&e, &got, &descriptors));
		CHECK_EQ(descriptors, model.n);
	} else {
		CHECK(decode_prp(&e, model.bytes, &got));
	}
	CHECK_EQ(got.n, model.runs.n);
	CHECK(memcmp(got.r, model.runs.r, got.n * sizeof(got.r[0])) == 0);
	CHECK_EQ(e.flags, 0xc3 % 64 + (model.sgl ? 64 : 0));
	/* All else of the command is as it was. */
	other.flags = e.flags;
	other.dptr = e.dptr;
	CHECK(memcmp(&e, &other, sizeof(e)) == 0);
	CHECK(guards_whole());
}

/* ---- cases ---- */

/* Exactly n entries of a list, then what must fit no more, then what still must. */
static void fill(uint32_t sgl_max, uint32_t n_pages, uint32_t n)
{
	uint64_t gap = 0x10000000, k;

	both_begin(sgl_max, n_pages);
	for (k = 0; k < n; k++)
		CHECK(both_add(gap + k * 0x4000, 4096));
	if (n == model.n_max) {
		CHECK(!both_add(0x40000000, 4096));
		if (sgl_max)
			CHECK(both_add(model.end, 4096)); /* touches: needs no descriptor */
		else
			CHECK(!both_add(model.end, 4)); /* touches, and needs a page */
	}
	both_finish();
}

static void every_number_of_entries(void)
{
	for (uint32_t pages = 0; pages <= PAGES; pages++) {
		for (uint32_t n = 1; n <= (pages ? pages * 255 + 1 : 1); n++)
			fill(100000, pages, n);
		for (uint32_t n = 1; n <= (pages ? pages * 511 + 2 : 2); n += n % 511 > 4 && n % 511 < 505 ? 7 : 1)
			fill(0, pages, n);
	}
}

static void descriptors_up_to_the_controllers_limit(void)
{
	static const uint32_t limits[] = {1, 2, 3, 16, 255, 256, 257, 300, 1021};

	for (uint32_t i = 0; i < sizeof(limits) / sizeof(*limits); i++)
		fill(limits[i], PAGES, limits[i]);
}

static void a_full_page_of_descriptors_is_one_last_segment(void)
{
	struct nvme_sqe e = {0};

	both_begin(1000, PAGES);
	for (uint64_t k = 0; k < 256; k++)
		CHECK(both_add(k * 0x4000, 512));
	dev_dptr_finish(&built, &e);
	CHECK_EQ(e.dptr.sgl.id, NVME_SGL_LAST_SEGMENT << 4);
	CHECK_EQ(e.dptr.sgl.len, 4096);
	CHECK(e.dptr.sgl.addr == list.dma[0]);
	both_begin(1000, PAGES);
	for (uint64_t k = 0; k < 257; k++)
		CHECK(both_add(k * 0x4000, 512));
	dev_dptr_finish(&built, &e);
	CHECK_EQ(e.dptr.sgl.id, NVME_SGL_SEGMENT << 4);
}

static void one_long_run(void)
{
	for (uint32_t pages = 0; pages <= PAGES; pages++)
		for (uint32_t offset = 0; offset < 4096; offset += 1364)
			for (uint64_t len = 1; len < (9u << 20); len = len * 3 / 2 + 5)
				for (uint32_t sgl = 0; sgl < 2; sgl++) {
					both_begin(sgl, pages);
					if (both_add(0x7f0000000000ull + offset, len))
						both_finish();
				}
}

static void lengths_and_addresses_out_of_bounds(void)
{
	for (uint32_t sgl = 0; sgl < 2; sgl++) {
		both_begin(sgl, 1);
		CHECK(!both_add(0x1000, 0));
		CHECK(!both_add(0x1001, 4096));
		CHECK(!both_add(0x1002, 4096));
		CHECK_EQ(dev_dptr_add(&built, 0x1000, 1ull << 32), -1);
		CHECK_EQ(dev_dptr_add(&built, 0xfffffffffffff000ull, 8192), -1);
		CHECK_EQ(dev_dptr_add(&built, 0x1000, UINT64_MAX), -1);
		CHECK_EQ(built.n, 0);
		CHECK(both_add(0x1000, 4096));
		both_finish();
	}
	/* A command stays below 4 GiB, even where one descriptor could grow on. */
	both_begin(16, 1);
	CHECK(both_add(0, 0xfffff000u));
	CHECK_EQ(dev_dptr_add(&built, 0xfffff000u, 4096), -1);
	CHECK(both_add(0xfffff000u, 4092));
	both_finish();
}

static uint64_t random_len(uint64_t *seed, bool sgl)
{
	static const uint32_t usual[] = {4, 512, 656, 4096, 8192, 10496, 32768, 81920, 131072, 1 << 20};
	uint64_t r = check_random(seed);

	if (r % 4 == 0)
		return usual[(r >> 8) % (sizeof(usual) / sizeof(*usual))];
	if (r % 4 == 1)
		return 4096 * (1 + (r >> 8) % 40);
	if (r % 4 == 2)
		return sgl ? 1 + (r >> 8) % (1 << 20) : 4 + (r >> 8) % (1 << 16) / 4 * 4;
	return 512 * (1 + (r >> 8) % 64);
}

static uint64_t random_addr(uint64_t *seed, uint64_t page_percent)
{
	uint64_t r = check_random(seed), addr = 0x7f1200000000ull + (r >> 16) % (1ull << 34);

	if (r % 100 < 40 && model.n)
		return model.end;
	if (check_random(seed) % 100 < page_percent)
		return addr / 4096 * 4096;
	return check_random(seed) % 8 ? addr / 4 * 4 : addr;
}

static void random_command(uint64_t *seed)
{
	static const uint32_t limits[] = {0, 0, 0, 1, 2, 17, 256, 1u << 30};
	uint32_t sgl_max = limits[check_random(seed) % 8], pages = (uint32_t)(check_random(seed) % (PAGES + 1));
	uint64_t page_percent = check_random(seed) % 3 * 45 + 5, most = 3u << check_random(seed) % 10;
	uint64_t tries = 1 + check_random(seed) % most;

	both_begin(sgl_max, pages);
	for (uint64_t i = 0; i < tries; i++) {
		uint64_t len = random_len(seed, sgl_max != 0);

		if (page_percent > 90 && check_random(seed) % 16)
			len = (len + 4095) / 4096 * 4096;
		both_add(random_addr(seed, page_percent), len);
	}
	if (model.n)
		both_finish();
}

static void random_commands(void)
{
	uint64_t seed = 20240229;

	for (int i = 0; i < 30000; i++)
		random_command(&seed);
}

int main(void)
{
	CHECK_RUN(every_number_of_entries);
	CHECK_RUN(descriptors_up_to_the_controllers_limit);
	CHECK_RUN(a_full_page_of_descriptors_is_one_last_segment);
	CHECK_RUN(one_long_run);
	CHECK_RUN(lengths_and_addresses_out_of_bounds);
	CHECK_RUN(random_commands);
	return check_end();
}
