/*
 * test_gio.c - the raw calls on files: random programs of reads and writes against a model of the medium, every
 * byte compared; merging counted; errors kept per IOCTX.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "core/scratch.h"
#include <tutti/gio_uring.h>
#include <tutti/tutti.h>

#define FILE_BYTES (8u << 20)
#define ARENA (4u << 20)
#define UNIT 4096u

static uint64_t soon(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)(t.tv_sec + 20) * 1000000000u;
}

static const char *make_file(const char *name)
{
	const char *path = scratch_path(name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || ftruncate(fd, FILE_BYTES) || close(fd))
		exit(1);
	return path;
}

static void *arena(void)
{
	void *p = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		exit(1);
	return p;
}

struct shape {
	uint32_t devices, sms, depth;
	int no_sgl;
	enum tutti_controller controller;
};

/* n transfers at ascending places of each device: often touching, so that they merge, never overlapping. */
static void make_program(struct gio_ioctx *c, uint32_t n, const struct shape *sh, int write, uint8_t *mem,
                         uint64_t *seed)
{
	uint32_t at[4] = {0}, room = ARENA / n / UNIT, most = room < 96 ? room : 96;

	if (most > FILE_BYTES / n / UNIT / 2)
		most = FILE_BYTES / n / UNIT / 2;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t dev = (uint32_t)(check_random(seed) % sh->devices);

		if (check_random(seed) % 3 == 0)
			at[dev] += UNIT * (uint32_t)(check_random(seed) % (most + 1));
		c[i].mem = (uint64_t)(uintptr_t)mem + (uint64_t)i * room * UNIT;
		c[i].offset_bytes = at[dev];
		c[i].bytes = UNIT * (1 + (uint32_t)(check_random(seed) % most));
		c[i].dev = (uint16_t)dev;
		c[i].op = write ? GIO_WRITE : GIO_READ;
		at[dev] += c[i].bytes;
	}
}

static void prepare(struct gio_ioctx *c, uint32_t n, int write, uint8_t model[4][FILE_BYTES], uint64_t *seed)
{
	for (uint32_t i = 0; i < n; i++) {
		uint8_t *at = (uint8_t *)(uintptr_t)c[i].mem;

		memset(at, 0xee, c[i].bytes);
		for (uint32_t k = 0; write && k < c[i].bytes; k += 8) {
			uint64_t v = check_random(seed);

			memcpy(at + k, &v, 8);
		}
		if (write)
			memcpy(&model[c[i].dev][c[i].offset_bytes], at, c[i].bytes);
	}
}

/* Each round: an IOCB of writes, then one of reads elsewhere; the model of the medium says what must come. */
static void random_program(const struct shape *sh, uint64_t seed, int rounds)
{
	static uint8_t model[4][FILE_BYTES];
	static const char *const names[4] = {"a", "b", "c", "d"};
	struct gio_opts o = GIO_OPTS_INIT;
	const char *paths[4];
	uint8_t *mem = arena();
	struct gio *g;

	memset(model, 0, sizeof(model));
	for (uint32_t i = 0; i < sh->devices; i++)
		paths[i] = make_file(names[i]);
	o.paths = paths;
	o.n_paths = sh->devices;
	o.sms = sh->sms;
	o.queue_depth = sh->depth;
	o.no_sgl = sh->no_sgl;
	o.controller = sh->controller;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_register(g, mem, ARENA), 0);
	for (int round = 0; round < 2 * rounds; round++) {
		int write = round % 2 == 0;
		uint32_t n = 1 + (uint32_t)(check_random(&seed) % 64), id;
		struct gio_ioctx *c;
		struct gio_result r;

		CHECK_EQ(gio_get_iocb(g, n, NULL, &id, &c), 0);
		make_program(c, n, sh, write, mem, &seed);
		prepare(c, n, write, model, &seed);
		CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
		CHECK_EQ(gio_wait_cqe(g, id, soon(), &r), 0);
		CHECK_EQ(r.status, 0);
		CHECK_EQ(r.failed, 0);
		for (uint32_t i = 0; i < n && !write; i++)
			CHECK(!memcmp((void *)(uintptr_t)c[i].mem, &model[c[i].dev][c[i].offset_bytes], c[i].bytes));
		gio_put_iocb(g, id);
	}
	CHECK_EQ(gio_close(g), 0);
	munmap(mem, ARENA);
}

static void virt_sgl(void)
{
	struct shape s = {.devices = 1, .sms = 1, .depth = 16};

	random_program(&s, 1, 30);
}

static void virt_prp_three_devices(void)
{
	struct shape s = {.devices = 3, .sms = 2, .depth = 4, .no_sgl = 1};

	random_program(&s, 2, 30);
}

static void virt_four_blocks_depth_one(void)
{
	struct shape s = {.devices = 2, .sms = 4, .depth = 1};

	random_program(&s, 3, 20);
}

static void model_controller(void)
{
	struct shape s = {.devices = 2, .sms = 2, .depth = 64, .controller = TUTTI_CTRL_MODEL};

	random_program(&s, 4, 30);
}

static void errors_per_ioctx(void)
{
	struct gio_opts o = GIO_OPTS_INIT;
	const char *path = make_file("e");
	uint8_t *mem = arena();
	struct gio_ioctx *c;
	struct gio_result r;
	struct gio *g;
	uint32_t id;

	o.paths = &path;
	o.n_paths = 1;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_register(g, mem, ARENA), 0);
	CHECK_EQ(gio_get_iocb(g, 6, NULL, &id, &c), 0);
	for (uint32_t i = 0; i < 6; i++) {
		c[i].mem = (uint64_t)(uintptr_t)mem + i * 65536;
		c[i].bytes = 4096;
		c[i].offset_bytes = i * 4096;
		c[i].op = GIO_READ;
	}
	c[1].offset_bytes = FILE_BYTES;        /* behind the end */
	c[2].mem = 4096;                       /* not registered */
	c[3].offset_bytes = FILE_BYTES - 2048; /* crosses the end */
	c[5].offset_bytes = ~0ull - 4095;      /* its end wraps around to 0 */
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
	CHECK_EQ(gio_wait_cqe(g, id, soon(), &r), 0);
	CHECK_EQ(r.failed, 4);
	CHECK(r.status != 0);
	CHECK_EQ(c[0].status, 0);
	CHECK_EQ(c[1].status, -ERANGE);
	CHECK_EQ(c[2].status, -EFAULT);
	CHECK_EQ(c[3].status, -ERANGE);
	CHECK_EQ(c[4].status, 0);
	CHECK_EQ(c[5].status, -ERANGE);
	gio_put_iocb(g, id);
	CHECK_EQ(gio_get_iocb(g, GIO_IOCTX_MAX + 1, NULL, &id, &c), -EINVAL);
	CHECK_EQ(gio_get_iocb(g, 1, NULL, &id, &c), 0);
	c[0].dev = 1;
	c[0].op = GIO_READ;
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), -EINVAL);
	gio_put_iocb(g, id);
	CHECK_EQ(gio_close(g), 0);
	munmap(mem, ARENA);
}

/* The kernel starts when the event comes, not before. */
static void event_orders(void)
{
	struct gio_opts o = GIO_OPTS_INIT;
	const char *path = make_file("v");
	uint8_t *mem = arena();
	uint32_t word = 0, id;
	struct gio_event ev = {.word = &word, .value = 1};
	struct gio_ioctx *c;
	struct gio_result r;
	struct gio *g;
	struct timespec t;
	uint8_t got[4096];
	int fd;

	o.paths = &path;
	o.n_paths = 1;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_register(g, mem, ARENA), 0);
	CHECK_EQ(gio_get_iocb(g, 1, &ev, &id, &c), 0);
	c[0] = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)mem, .bytes = 4096, .op = GIO_WRITE};
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
	clock_gettime(CLOCK_MONOTONIC, &t);
	CHECK_EQ(gio_wait_cqe(g, id, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 20000000u, &r),
	         -ETIMEDOUT);
	memset(mem, 0x5a, 4096);
	__atomic_store_n(&word, 1, __ATOMIC_RELEASE);
	CHECK_EQ(gio_wait_cqe(g, id, soon(), &r), 0);
	CHECK_EQ(r.status, 0);
	CHECK_EQ(gio_close(g), 0);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && read(fd, got, 4096) == 4096);
	close(fd);
	CHECK(got[0] == 0x5a && got[4095] == 0x5a);
	munmap(mem, ARENA);
}

int main(void)
{
	scratch_begin();
	CHECK_RUN(virt_sgl);
	CHECK_RUN(virt_prp_three_devices);
	CHECK_RUN(virt_four_blocks_depth_one);
	CHECK_RUN(model_controller);
	CHECK_RUN(errors_per_ioctx);
	CHECK_RUN(event_orders);
	scratch_end();
	return check_end();
}
