/*
 * module.h - what the tests of the kernel module tutti_nvme share: calls by hand, a drive at work, an exporter.
 *
 * They run where a function bound to the module is named, whose first namespace may be overwritten:
 * TUTTI_TEST_KMOD=0000:00:03.0. tools/nvme-guest runs them in a virtual machine, as root.
 */
#ifndef TUTTI_TEST_KMOD_MODULE_H
#define TUTTI_TEST_KMOD_MODULE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "ctrl/nvme_ctrl.h"
#include "ctrl/pnvme.h"
#include "kmod/test/export.h"
#include "wire/kmod.h"

#define PAGE 4096u
#define BUFFER (256u << 10)
#define MS 1000000ull
#define WAIT_NS (2000 * MS)
#define RUNS_MAX (BUFFER / PAGE)

static const char *function;
static char node[64];

static inline void module_begin(void)
{
	function = getenv("TUTTI_TEST_KMOD");
	snprintf(node, sizeof(node), "/dev/tutti/%s", function ? function : "");
}

static inline void need_function(void)
{
	if (!function)
		CHECK_SKIP("no function is named in TUTTI_TEST_KMOD");
}

static inline void *pages(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static inline int node_open(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

/* 0 or -errno */
static inline int map(int fd, struct tutti_nvme_map *m) { return ioctl(fd, TUTTI_NVME_MAP, m) ? -errno : 0; }
static inline int call(int fd, unsigned long request, unsigned long arg)
{
	return ioctl(fd, request, arg) ? -errno : 0;
}

static inline int read_runs(int fd, uint32_t id, uint32_t first, uint32_t n, struct tutti_nvme_run *runs)
{
	struct tutti_nvme_runs a = {.id = id, .first = first, .n = n, .runs = (uint64_t)(uintptr_t)runs};

	return ioctl(fd, TUTTI_NVME_RUNS, &a) ? -errno : 0;
}

static inline int map_user(int fd, void *p, uint64_t bytes, struct tutti_nvme_map *m)
{
	*m = (struct tutti_nvme_map){.kind = TUTTI_NVME_MAP_USER, .va = (uint64_t)(uintptr_t)p, .bytes = bytes};
	return map(fd, m);
}

/* A number from a file with lines "name number". */
static inline long long number(const char *path, const char *name)
{
	char line[256];
	long long value = -1;
	FILE *f = fopen(path, "re");
	size_t n = strlen(name);

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, n))
			value = strtoll(line + n, NULL, 10);
	if (f)
		fclose(f);
	return value;
}

/* Pages that are pinned for long, by anybody. */
static inline long long pinned(void)
{
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && write(fd, "1", 1) == 1); /* the counters of all CPUs are added up */
	close(fd);
	return number("/proc/vmstat", "nr_foll_pin_acquired ") - number("/proc/vmstat", "nr_foll_pin_released ");
}

static inline struct tutti_nvme_info info_of(int fd)
{
	struct tutti_nvme_info info;

	CHECK_EQ(ioctl(fd, TUTTI_NVME_INFO, &info), 0);
	return info;
}

static inline void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* Takes the function away from the module, as a removal of the drive does. */
static inline void unbind(void) { write_to("/sys/bus/pci/drivers/" PNVME_DRIVER "/unbind", function); }
static inline void bind_again(void)
{
	write_to("/sys/bus/pci/drivers_probe", function);
	CHECK_EQ(access(node, F_OK), 0);
}

/* ---- a drive at work ---- */

struct drive {
	struct nvme_fn *fn;
	struct dev_qp q;
	int fd;       /* of the node */
	uint8_t *mem; /* BUFFER of data, then a page of descriptors */
	struct nvme_run *runs;
	uint32_t n_runs;
	uint64_t list_dma;
};

/* The descriptor that the driver has of the node. */
static inline int fd_of_node(void)
{
	char path[40], target[128];

	for (int fd = 0; fd < 256; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && (size_t)n == strlen(node) && !memcmp(target, node, (size_t)n))
			return fd;
	}
	return -1;
}

static inline void drive_up(struct drive *d)
{
	struct nvme_transport t;
	uint64_t at = 0;

	memset(d, 0, sizeof(*d));
	CHECK_EQ(pnvme_drives(function), 1);
	CHECK_EQ(pnvme_claim(function, &t), 0);
	CHECK_EQ(nvme_fn_open(&t, function, &d->fn), 0);
	CHECK_EQ(nvme_qp_create(d->fn, 64, NULL, &d->q), 0);
	d->fd = fd_of_node();
	CHECK(d->fd >= 0);
	d->mem = pages(BUFFER + PAGE);
	CHECK_EQ(d->fn->t.ops->dma_map(d->fn->t.self, d->mem, BUFFER + PAGE, &d->runs, &d->n_runs), 0);
	for (uint32_t i = 0; i < d->n_runs; at += d->runs[i++].bytes)
		if (at + d->runs[i].bytes == BUFFER + PAGE)
			d->list_dma = d->runs[i].dma + (BUFFER - at);
}

static inline void drive_down(struct drive *d)
{
	CHECK_EQ(nvme_qp_delete(d->fn, &d->q, port_now_ns() + WAIT_NS), 0);
	CHECK_EQ(d->fn->t.ops->dma_unmap(d->fn->t.self, d->mem, BUFFER + PAGE, d->runs, d->n_runs), 0);
	nvme_fn_close(d->fn);
	free(d->runs);
	munmap(d->mem, BUFFER + PAGE);
}

/* BUFFER bytes at the start of the namespace from or to n runs (in order, perhaps more than BUFFER). */
static inline int transfer(struct drive *d, uint8_t opcode, const struct nvme_run *runs, uint32_t n)
{
	struct nvme_sgl *list = (struct nvme_sgl *)(void *)(d->mem + BUFFER);
	struct nvme_sqe e = {.opcode = opcode,
	                     .nsid = d->fn->ns[0].nsid,
	                     .cid = 7,
	                     .flags = NVME_PSDT_SGL << 6,
	                     .cdw12 = BUFFER / d->fn->ns[0].lba_bytes - 1};
	uint64_t end = port_now_ns() + WAIT_NS, left = BUFFER;
	struct nvme_cqe c;
	uint32_t k = 0;

	for (; k < n && left; k++) {
		uint64_t bytes = runs[k].bytes < left ? runs[k].bytes : left;

		list[k] = (struct nvme_sgl){.addr = runs[k].dma, .len = (uint32_t)bytes, .id = NVME_SGL_DATA << 4};
		left -= bytes;
	}
	CHECK_EQ(left, 0);
	e.dptr.sgl = (struct nvme_sgl){.addr = d->list_dma, .len = k * 16, .id = NVME_SGL_LAST_SEGMENT << 4};
	dev_qp_post(&d->q, &e);
	dev_qp_ring(&d->q);
	while (!dev_qp_poll(&d->q, &c))
		if (port_now_ns() > end)
			return -ETIMEDOUT;
	dev_qp_release(&d->q);
	return (int)NVME_STATUS(c.cid_status);
}

static inline void fill(uint8_t *p, uint64_t seed)
{
	for (uint32_t i = 0; i < BUFFER; i += 8)
		*(uint64_t *)(void *)(p + i) = check_random(&seed);
}

/* What is on the medium is what the seed says. */
static inline void check_medium(struct drive *d, uint64_t seed)
{
	memset(d->mem, 0, BUFFER);
	CHECK_EQ(transfer(d, NVME_CMD_READ, d->runs, d->n_runs), 0);
	for (uint32_t i = 0; i < BUFFER; i += 8)
		CHECK_EQ(*(uint64_t *)(void *)(d->mem + i), check_random(&seed));
}

static inline void write_medium(struct drive *d, uint64_t seed)
{
	fill(d->mem, seed);
	CHECK_EQ(transfer(d, NVME_CMD_WRITE, d->runs, d->n_runs), 0);
}

/* ---- the exporter ---- */

static inline int export(const struct tutti_export_new *what, struct tutti_export_new *a)
{
	int fd = open("/dev/tutti_export", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	*a = *what;
	CHECK_EQ(ioctl(fd, TUTTI_EXPORT_NEW, a), 0);
	return fd;
}

static inline void check_held(int fd, int attached, int alive)
{
	struct tutti_export_held held;

	for (int i = 0; i < 100; i++) { /* the last reference goes in the background */
		CHECK_EQ(ioctl(fd, TUTTI_EXPORT_HELD, &held), 0);
		if (held.alive == alive)
			break;
		usleep(10000); /* for that */
	}
	CHECK_EQ(held.attached, attached);
	CHECK_EQ(held.mapped, attached);
	CHECK_EQ(held.alive, alive);
	if (!attached)
		CHECK_EQ(held.pinned, 0);
}

#endif
