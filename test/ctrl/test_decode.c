/* test_decode.c - from entries to memory: SGL and PRP against a slow model, every bad input against its status. */
#include "check.h"
#include "ctrl/decode.h"

#include <errno.h>
#include <sys/mman.h>

#define PAGES 1024u
#define ARENA (PAGES * 4096ull)
#define MDTS (1u << 20)
#define LIST_PAGES 64u /* at the end of the arena */

static struct ctrl_regions *regions;
static struct ctrl_info info;
static struct ctrl_decoder decoder;
static struct iovec iov[1024];
static struct ctrl_io io;
static char *arena, *lists;

static void set_up(void)
{
	if (arena)
		return;
	arena = mmap(NULL, ARENA + 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(arena != MAP_FAILED);
	arena += 4096; /* with an unmapped page on either side */
	lists = arena + ARENA - LIST_PAGES * 4096;
	regions = calloc(1, sizeof(*regions));
	CHECK(regions != NULL);
	/* Three neighbours, of which two are one registered buffer each. */
	CHECK_EQ(ctrl_regions_add(regions, (uint64_t)(uintptr_t)arena, ARENA / 2, 10), 0);
	CHECK_EQ(ctrl_regions_add(regions, (uint64_t)(uintptr_t)arena + ARENA / 2, 4096 + 512, -1), 0);
	CHECK_EQ(ctrl_regions_add(regions, (uint64_t)(uintptr_t)arena + ARENA / 2 + 4608, ARENA / 2 - 4608, 20), 0);
	info = (struct ctrl_info){.n_ns = 2, .mdts_bytes = MDTS, .sgl_max = 512};
	info.ns[0] = (struct ctrl_ns_info){.capacity_bytes = 1 << 30, .lba_bytes = 512};
	info.ns[1] = (struct ctrl_ns_info){.capacity_bytes = 1 << 30, .lba_bytes = 4096};
	decoder = (struct ctrl_decoder){
	    .regions = regions, .info = &info, .iov_max = 512, .lba_shift = {9, 12}, .read_only = {0, 1}};
	io.iov = iov;
}

/* ---- the slow model: one address per byte ---- */

static uint64_t want[MDTS / 4]; /* address of each 4-byte word */
static uint32_t n_want;

static void model_add(uint64_t addr, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 4)
		want[n_want++] = addr + i;
}

static void check_model(uint32_t status)
{
	uint32_t at = 0;
	int one_buffer = 1;
	uint64_t base = (uint64_t)(uintptr_t)arena;

	CHECK_EQ(status, 0);
	for (uint32_t i = 0; i < io.n_iov; i++) {
		CHECK(io.iov[i].iov_len > 0);
		if (i)
			CHECK((char *)io.iov[i - 1].iov_base + io.iov[i - 1].iov_len != (char *)io.iov[i].iov_base);
		for (uint64_t k = 0; k < io.iov[i].iov_len; k += 4, at++)
			CHECK(at < n_want && want[at] == (uint64_t)(uintptr_t)io.iov[i].iov_base + k);
	}
	CHECK_EQ(at, n_want);
	CHECK_EQ(io.bytes, n_want * 4);
	for (uint32_t i = 0; i < n_want; i++)
		one_buffer &= want[i] < base + ARENA / 2;
	CHECK_EQ(io.buf == 10, one_buffer);
	for (uint32_t i = 0; i < n_want; i++)
		CHECK(io.buf != 20 || want[i] >= base + ARENA / 2 + 4608);
}

static struct nvme_sqe rw(uint32_t nsid, uint64_t offset, uint32_t bytes, int sgl)
{
	uint32_t lba = nsid <= 2 && nsid ? info.ns[nsid - 1].lba_bytes : 512;

	return (struct nvme_sqe){.opcode = NVME_CMD_READ,
	                         .flags = (uint8_t)(sgl ? NVME_PSDT_SGL << 6 : 0),
	                         .nsid = nsid,
	                         .cdw10 = (uint32_t)(offset / lba),
	                         .cdw11 = (uint32_t)(offset / lba >> 32),
	                         .cdw12 = bytes / lba - 1};
}

/* ---- random SGLs ---- */

/* Cuts bytes into random pieces at random addresses; some continue the one before, some are empty. */
static uint32_t random_pieces(uint64_t *seed, uint32_t bytes, struct nvme_sgl *out, uint32_t max)
{
	uint64_t room = ARENA - LIST_PAGES * 4096;
	uint32_t n = 0;

	while (bytes) {
		uint32_t len = 4 * (uint32_t)(1 + check_random(seed) % (check_random(seed) % 4 ? 2048 : 40));
		uint64_t at = 4 * (check_random(seed) % ((room - 65536) / 4));

		if (n + 2 >= max || len > bytes)
			len = bytes;
		if (n && check_random(seed) % 4 == 0)
			at = out[n - 1].addr + out[n - 1].len - (uint64_t)(uintptr_t)arena;
		if (at + len > room)
			at = 0;
		if (n + 2 < max && check_random(seed) % 16 == 0)
			len = 0;
		out[n++] = (struct nvme_sgl){.addr = (uint64_t)(uintptr_t)arena + at, .len = len};
		model_add(out[n - 1].addr, len);
		bytes -= len;
	}
	return n;
}

/* Puts the pieces into a random chain of segments; returns the first descriptor. */
static struct nvme_sgl chain(uint64_t *seed, const struct nvme_sgl *pieces, uint32_t n)
{
	struct nvme_sgl first = {0}, *link = &first;
	char *at = lists + check_random(seed) % 64; /* at any byte */
	uint32_t done = 0;

	if (n == 1 && check_random(seed) % 2)
		return pieces[0];
	while (done < n) {
		uint32_t k = 1 + (uint32_t)(check_random(seed) % (n - done)), last = k == n - done;
		struct nvme_sgl d = {.addr = (uint64_t)(uintptr_t)at, .len = 16 * (k + !last)};

		d.id = (uint8_t)((last ? NVME_SGL_LAST_SEGMENT : NVME_SGL_SEGMENT) << 4);
		memcpy(link, &d, 16);
		memcpy(at, &pieces[done], 16ull * k);
		link = (struct nvme_sgl *)(void *)(at + 16ull * k); /* only ever memcpy'd to */
		at += 16ull * (k + 1) + check_random(seed) % 32;
		done += k;
	}
	return first;
}

static void sgl_random(void)
{
	static struct nvme_sgl pieces[300];
	uint64_t seed = 3;

	set_up();
	for (int round = 0; round < 20000; round++) {
		uint32_t bytes =
		    512 * (uint32_t)(1 + check_random(&seed) % (check_random(&seed) % 8 ? 16 : MDTS / 512));
		struct nvme_sqe e = rw(1, 512 * (check_random(&seed) % 1000), bytes, 1);
		uint32_t n;

		n_want = 0;
		n = random_pieces(&seed, bytes, pieces, 250);
		e.dptr.sgl = chain(&seed, pieces, n);
		check_model(ctrl_decode(&decoder, &e, &io));
		CHECK_EQ(io.offset_bytes, e.cdw10 * 512ull);
	}
}

/* ---- random PRPs ---- */

static void prp_random(void)
{
	uint64_t seed = 5, base = (uint64_t)(uintptr_t)arena;

	set_up();
	for (int round = 0; round < 20000; round++) {
		uint32_t offset = 4 * (uint32_t)(check_random(&seed) % 1024), bytes, left, len;
		uint64_t page = check_random(&seed) % (PAGES - LIST_PAGES), *list, list_at;
		struct nvme_sqe e;

		bytes = 512 * (uint32_t)(1 + check_random(&seed) % (check_random(&seed) % 8 ? 64 : MDTS / 512));
		e = rw(1, 0, bytes, 0);
		n_want = 0;
		e.dptr.prp.prp1 = base + page * 4096 + offset;
		len = 4096 - offset < bytes ? 4096 - offset : bytes;
		model_add(e.dptr.prp.prp1, len);
		left = bytes - len;
		/* The list starts at a random entry of a page, mostly near its end, so that it chains. */
		list_at = 8 * (check_random(&seed) % 3 ? 480 + check_random(&seed) % 32 : check_random(&seed) % 512);
		list = (uint64_t *)(void *)(lists + list_at);
		e.dptr.prp.prp2 = (uint64_t)(uintptr_t)list;
		for (uint32_t used = (uint32_t)list_at / 8, pages = 0; left; used++) {
			len = left < 4096 ? left : 4096;
			page = check_random(&seed) % 3 ? page + 1 : check_random(&seed);
			page %= PAGES - LIST_PAGES;
			if (n_want && left <= 4096 && bytes <= 8192 - offset) {
				e.dptr.prp.prp2 = base + page * 4096;
			} else if (used == 511 && left > 4096) {
				pages += 1 + (uint32_t)(check_random(&seed) % 4);
				*list = (uint64_t)(uintptr_t)lists + pages * 4096ull;
				list = (uint64_t *)(void *)(lists + pages * 4096ull);
				used = UINT32_MAX;
				continue;
			} else {
				*list++ = base + page * 4096;
			}
			model_add(base + page * 4096, len);
			left -= len;
		}
		check_model(ctrl_decode(&decoder, &e, &io));
	}
}

/* ---- bad input ---- */

static uint32_t decode(struct nvme_sqe e) { return ctrl_decode(&decoder, &e, &io); }

static uint32_t sgl(uint32_t bytes, uint64_t addr, uint32_t len, uint32_t id)
{
	struct nvme_sqe e = rw(1, 0, bytes, 1);

	e.dptr.sgl = (struct nvme_sgl){.addr = addr, .len = len, .id = (uint8_t)id};
	return decode(e);
}

static uint32_t prp(uint32_t bytes, uint64_t prp1, uint64_t prp2)
{
	struct nvme_sqe e = rw(1, 0, bytes, 0);

	e.dptr.prp.prp1 = prp1;
	e.dptr.prp.prp2 = prp2;
	return decode(e);
}

static void bad_commands(void)
{
	struct nvme_sqe e;
	uint64_t a;

	set_up();
	a = (uint64_t)(uintptr_t)arena;
	CHECK_EQ(sgl(4096, a, 4096, 0), 0);
	e = rw(0, 0, 512, 0);
	CHECK_EQ(decode(e), NVME_SC_INVALID_NS);
	e.nsid = 3;
	CHECK_EQ(decode(e), NVME_SC_INVALID_NS);
	e.nsid = 0xffffffffu;
	CHECK_EQ(decode(e), NVME_SC_INVALID_NS);
	for (uint32_t op = 3; op < 256; op++) {
		e = rw(1, 0, 512, 1);
		e.opcode = (uint8_t)op;
		CHECK_EQ(decode(e), NVME_SC_INVALID_OPCODE);
	}
	e = rw(1, 1ull << 30, 512, 1);
	CHECK_EQ(decode(e), NVME_SC_LBA_RANGE);
	e = rw(1, (1ull << 30) - 512, 1024, 1);
	CHECK_EQ(decode(e), NVME_SC_LBA_RANGE);
	e = rw(1, 0, 65536, 1);
	e.cdw10 = 0xffffffffu - 3;
	e.cdw11 = 0xffffffffu;
	CHECK_EQ(decode(e), NVME_SC_LBA_RANGE);
	e = rw(1, 0, MDTS + 512, 1);
	CHECK_EQ(decode(e), NVME_SC_INVALID_FIELD);
	e = rw(1, 0, MDTS + 512, 0);
	CHECK_EQ(decode(e), NVME_SC_INVALID_FIELD);
	for (uint32_t psdt = 2; psdt < 4; psdt++) {
		e = rw(1, 0, 512, 0);
		e.flags = (uint8_t)(psdt << 6);
		CHECK_EQ(decode(e), NVME_SC_INVALID_FIELD);
	}
	e = rw(1, 0, 512, 1);
	e.flags |= 1; /* fused */
	CHECK_EQ(decode(e), NVME_SC_INVALID_FIELD);
	e = rw(2, 0, 4096, 1);
	e.opcode = NVME_CMD_WRITE;
	CHECK_EQ(decode(e), CTRL_SC_READ_ONLY);
	e = (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 2};
	CHECK_EQ(decode(e), 0);
	CHECK_EQ(io.bytes, 0);
	CHECK_EQ(io.target, 1);
	e = rw(1, 0, 512, 1);
	e.opcode = NVME_CMD_WRITE;
	e.cdw12 |= 1u << 30;
	e.dptr.sgl = (struct nvme_sgl){.addr = a, .len = 512};
	CHECK_EQ(decode(e), 0);
	CHECK_EQ(io.fua, 1);
	info.sgl_max = 0;
	CHECK_EQ(sgl(4096, a, 4096, 0), NVME_SC_INVALID_FIELD);
	info.sgl_max = 512;
}

static void bad_sgls(void)
{
	struct nvme_sgl *s;
	uint64_t a, l;

	set_up();
	a = (uint64_t)(uintptr_t)arena;
	l = (uint64_t)(uintptr_t)lists;
	s = (struct nvme_sgl *)(void *)lists;
	CHECK_EQ(sgl(4096, a, 4095, 0), NVME_SC_SGL_LENGTH);
	CHECK_EQ(sgl(4096, a, 8192, 0), NVME_SC_SGL_LENGTH);
	CHECK_EQ(sgl(4096, a, 0, 0), NVME_SC_SGL_LENGTH);
	CHECK_EQ(sgl(4096, a - 1, 4096, 0), NVME_SC_DATA_TRANSFER);
	CHECK_EQ(sgl(4096, a + ARENA - 4095, 4096, 0), NVME_SC_DATA_TRANSFER);
	CHECK_EQ(sgl(4096, 0, 4096, 0), NVME_SC_DATA_TRANSFER);
	CHECK_EQ(sgl(4096, UINT64_MAX - 100, 4096, 0), NVME_SC_DATA_TRANSFER);
	for (uint32_t id = 1; id < 256; id++)
		if (id != NVME_SGL_SEGMENT << 4 && id != NVME_SGL_LAST_SEGMENT << 4)
			CHECK_EQ(sgl(4096, a, 4096, id), NVME_SC_SGL_SEGMENT);
	for (uint32_t id = NVME_SGL_SEGMENT << 4; id <= NVME_SGL_LAST_SEGMENT << 4; id += 16) {
		CHECK_EQ(sgl(4096, l, 0, id), NVME_SC_SGL_SEGMENT);
		CHECK_EQ(sgl(4096, l, 15, id), NVME_SC_SGL_SEGMENT);
		CHECK_EQ(sgl(4096, l, 17, id), NVME_SC_SGL_SEGMENT);
		CHECK_EQ(sgl(4096, a - 16, 32, id), NVME_SC_DATA_TRANSFER);
		CHECK_EQ(sgl(4096, UINT64_MAX - 15, 32, id), NVME_SC_SGL_LENGTH);
		CHECK_EQ(sgl(4096, l, 513 * 16, id), NVME_SC_SGL_COUNT);
		CHECK_EQ(sgl(4096, l, 0xfffffff0u, id), NVME_SC_SGL_COUNT);
		s[0] = (struct nvme_sgl){.addr = a, .len = 2048};
		s[1] = (struct nvme_sgl){.addr = a + 8192, .len = 2048};
		s[2] = (struct nvme_sgl){.addr = a, .len = 4};
		CHECK_EQ(sgl(4096, l, 32, id), 0);
		CHECK_EQ(sgl(4096, l, 16, id), NVME_SC_SGL_LENGTH);
		CHECK_EQ(sgl(4096, l, 48, id), NVME_SC_SGL_LENGTH);
		s[1].len = 2049;
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_SGL_LENGTH);
		s[0].id = NVME_SGL_SEGMENT << 4;
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_SGL_COUNT);
		s[0].id = NVME_SGL_LAST_SEGMENT << 4;
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_SGL_COUNT);
		s[0].id = 0x10; /* bit bucket */
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_SGL_TYPE);
		s[0].id = 0x01; /* data block by offset */
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_SGL_TYPE);
		s[0] = (struct nvme_sgl){.addr = a - 4, .len = 2048};
		CHECK_EQ(sgl(4096, l, 32, id), NVME_SC_DATA_TRANSFER);
	}
	/* A last segment that leads on; a chain that leads back to itself. */
	s[0] = (struct nvme_sgl){.addr = l, .len = 16, .id = NVME_SGL_SEGMENT << 4};
	CHECK_EQ(sgl(4096, l, 16, NVME_SGL_LAST_SEGMENT << 4), NVME_SC_SGL_SEGMENT);
	CHECK_EQ(sgl(4096, l, 16, NVME_SGL_SEGMENT << 4), NVME_SC_SGL_COUNT);
	s[0].len = 8;
	CHECK_EQ(sgl(4096, l, 16, NVME_SGL_SEGMENT << 4), NVME_SC_SGL_SEGMENT);
}

static void bad_prps(void)
{
	uint64_t a, l, *list;

	set_up();
	a = (uint64_t)(uintptr_t)arena;
	l = (uint64_t)(uintptr_t)lists;
	list = (uint64_t *)(void *)lists;
	CHECK_EQ(prp(4096, a, 0), 0);
	CHECK_EQ(prp(8192, a, a + 4096), 0);
	CHECK_EQ(prp(4096, a + 2, 0), NVME_SC_PRP_OFFSET);
	CHECK_EQ(prp(8192, a, a + 4096 + 4), NVME_SC_PRP_OFFSET);
	CHECK_EQ(prp(4096, a + 4, 0), NVME_SC_DATA_TRANSFER); /* needs a second page: address 0 is mapped nowhere */
	CHECK_EQ(prp(4096, a - 4096, 0), NVME_SC_DATA_TRANSFER);
	CHECK_EQ(prp(8192, a, a + ARENA), NVME_SC_DATA_TRANSFER);
	list[0] = a;
	list[1] = a + 8192;
	CHECK_EQ(prp(12288, a, l), 0);
	CHECK_EQ(prp(12288, a, l + 4), NVME_SC_PRP_OFFSET);
	CHECK_EQ(prp(12288, a, a + ARENA), NVME_SC_DATA_TRANSFER);
	list[1] = a + 8192 + 512;
	CHECK_EQ(prp(12288, a, l), NVME_SC_PRP_OFFSET);
	list[1] = a + ARENA;
	CHECK_EQ(prp(12288, a, l), NVME_SC_DATA_TRANSFER);
	list[511] = a + 8;
	CHECK_EQ(prp(12288, a, l + 4088), NVME_SC_PRP_OFFSET); /* a chain pointer inside a page */
	list[511] = a + ARENA;
	CHECK_EQ(prp(12288, a, l + 4088), NVME_SC_DATA_TRANSFER);
	list[511] = l; /* back to itself: ends, with garbage */
	list[0] = list[1] = a;
	CHECK_EQ(prp(12288, a, l + 4088), 0);
}

static void regions_random(void)
{
	static struct ctrl_regions t;
	static uint8_t bytes[4096];
	uint64_t seed = 9;
	int32_t buf;

	for (int round = 0; round < 20000; round++) {
		uint64_t at = 1 + check_random(&seed) % 4000, n = 1 + check_random(&seed) % 90;
		int any = 0, all = 1, rc;

		for (uint64_t i = at; i < at + n; i++) {
			any |= i < 4096 && bytes[i];
			all &= i < 4096 && bytes[i];
		}
		CHECK_EQ(ctrl_regions_cover(&t, at, n, &buf), all);
		if (round % 3) {
			rc = ctrl_regions_add(&t, at, n, (int32_t)at);
			CHECK_EQ(rc, any ? -EEXIST : 0);
			if (!rc)
				memset(bytes + at, 1, at + n > 4096 ? 4096 - at : n);
		} else if (t.n) {
			struct ctrl_region r = t.r[check_random(&seed) % t.n];

			CHECK_EQ(ctrl_regions_remove(&t, r.va, r.end - r.va + 1, &buf), -ENOENT);
			CHECK_EQ(ctrl_regions_remove(&t, r.va, r.end - r.va, &buf), 0);
			CHECK_EQ(buf, (int32_t)r.va);
			memset(bytes + r.va, 0, r.end > 4096 ? 4096 - r.va : r.end - r.va);
		}
	}
	CHECK_EQ(ctrl_regions_add(&t, 1ull << 40, 0, 0), -EINVAL);
	CHECK_EQ(ctrl_regions_add(&t, UINT64_MAX - 5, 10, 0), -EINVAL);
	/* Pieces of 1 GiB. */
	t.n = 0;
	CHECK_EQ(ctrl_regions_add(&t, 4096, 5ull << 30, 100), 0);
	CHECK(ctrl_regions_cover(&t, 4096 + (1ull << 30) - 512, 512, &buf) && buf == 100);
	CHECK(ctrl_regions_cover(&t, 4096 + (1ull << 30) - 512, 1024, &buf) && buf == -1);
	CHECK(ctrl_regions_cover(&t, 4096 + (4ull << 30), 1 << 20, &buf) && buf == 104);
}

int main(void)
{
	CHECK_RUN(sgl_random);
	CHECK_RUN(prp_random);
	CHECK_RUN(bad_commands);
	CHECK_RUN(bad_sgls);
	CHECK_RUN(bad_prps);
	CHECK_RUN(regions_random);
	return check_end();
}
