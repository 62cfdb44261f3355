/*
 * test_kmod.c - the kernel module tutti_nvme: what it hands out, what it refuses, and that nothing stays behind.
 *
 * Runs where a function bound to it is named, whose first namespace may be overwritten: TUTTI_TEST_KMOD=0000:00:03.0.
 * TUTTI_TEST_BAR is the file of the BAR that kmod/test/tutti_export.c gives out as dma-bufs; TUTTI_TEST_SECONDS how
 * long random calls go on. tools/nvme-guest runs it in a virtual machine, as root.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
#define REG_CSTS 7 /* 32-bit words */

static const char *function;
static char node[64];

static void need_function(void)
{
	if (!function)
		CHECK_SKIP("no function is named in TUTTI_TEST_KMOD");
}

static void *pages(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static int node_open(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

/* 0 or -errno */
static int map(int fd, struct tutti_nvme_map *m) { return ioctl(fd, TUTTI_NVME_MAP, m) ? -errno : 0; }
static int call(int fd, unsigned long request, unsigned long arg) { return ioctl(fd, request, arg) ? -errno : 0; }

static int read_runs(int fd, uint32_t id, uint32_t first, uint32_t n, struct tutti_nvme_run *runs)
{
	struct tutti_nvme_runs a = {.id = id, .first = first, .n = n, .runs = (uint64_t)(uintptr_t)runs};

	return ioctl(fd, TUTTI_NVME_RUNS, &a) ? -errno : 0;
}

static int map_user(int fd, void *p, uint64_t bytes, struct tutti_nvme_map *m)
{
	*m = (struct tutti_nvme_map){.kind = TUTTI_NVME_MAP_USER, .va = (uint64_t)(uintptr_t)p, .bytes = bytes};
	return map(fd, m);
}

/* A number from a file with lines "name number". */
static long long number(const char *path, const char *name)
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
static long long pinned(void)
{
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && write(fd, "1", 1) == 1); /* the counters of all CPUs are added up */
	close(fd);
	return number("/proc/vmstat", "nr_foll_pin_acquired ") - number("/proc/vmstat", "nr_foll_pin_released ");
}

static struct tutti_nvme_info info_of(int fd)
{
	struct tutti_nvme_info info;

	CHECK_EQ(ioctl(fd, TUTTI_NVME_INFO, &info), 0);
	return info;
}

/* ---- the file ---- */

static void one_opener(void)
{
	struct tutti_nvme_info info;
	struct stat st;
	int fd, status;
	pid_t pid;

	need_function();
	CHECK_EQ(stat(node, &st), 0);
	CHECK_EQ(st.st_mode & 0777, 0600);
	CHECK_EQ(st.st_uid, 0);
	CHECK_EQ(open(node, O_RDONLY | O_CLOEXEC), -1);
	CHECK_EQ(errno, EACCES);
	fd = node_open();
	CHECK_EQ(open(node, O_RDWR | O_CLOEXEC), -1);
	CHECK_EQ(errno, EBUSY);
	info = info_of(fd);
	printf("# %s: BAR %llu bytes, %u vectors, %s, %s\n", function, (unsigned long long)info.bar_bytes, info.vectors,
	       info.flags & TUTTI_NVME_TRANSLATES ? "translating" : "not translating",
	       info.flags & TUTTI_NVME_ISOLATED ? "isolated" : "not isolated");
	CHECK_EQ(info.version, TUTTI_NVME_VERSION);
	CHECK(info.bar_bytes >= 8192);
	close(fd);
	/* Given to another user, it opens where the IOMMU guards memory, and only there. */
	CHECK_EQ(chmod(node, 0666), 0);
	pid = fork();
	if (!pid) {
		int ok = setuid(65534) == 0 && (fd = open(node, O_RDWR | O_CLOEXEC)) >= 0;

		_exit(ok ? 0 : errno);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(chmod(node, 0600), 0);
	CHECK_EQ(WEXITSTATUS(status), info.flags & TUTTI_NVME_ISOLATED ? 0 : EPERM);
}

static void registers(void)
{
	uint64_t bytes;
	volatile uint32_t *bar;
	int fd;

	need_function();
	fd = node_open();
	bytes = info_of(fd).bar_bytes;
	CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bytes) == MAP_FAILED);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(7)) == MAP_FAILED);
	bar = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(bar != MAP_FAILED);
	CHECK(bar[0] != 0 && bar[0] != 0xffffffffu);
	CHECK_EQ(bar[REG_CSTS] & 1, 0); /* disabled */
	CHECK_EQ(call(fd, TUTTI_NVME_MASTER, 2), -EINVAL);
	CHECK_EQ(call(fd, 0xE763, 0), -ENOTTY);
	CHECK_EQ(call(fd, TUTTI_NVME_RESET, 0), 0);
	munmap((void *)(uintptr_t)bar, bytes);
	close(fd);
}

/* ---- memory ---- */

static void user_memory(void)
{
	struct tutti_nvme_run runs[RUNS_MAX];
	struct tutti_nvme_map m;
	long long before = pinned(), locked;
	uint64_t sum = 0;
	uint8_t *p;
	int fd;

	need_function();
	fd = node_open();
	p = pages(BUFFER + PAGE);
	locked = number("/proc/self/status", "VmLck:");
	CHECK_EQ(map_user(fd, p, BUFFER, &m), 0);
	CHECK_EQ(number("/proc/self/status", "VmLck:") - locked, BUFFER / 1024);
	CHECK(m.id && m.runs && m.runs <= RUNS_MAX);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs, runs), 0);
	for (uint32_t i = 0; i < m.runs; i++)
		sum += runs[i].bytes;
	CHECK_EQ(sum, BUFFER);
	CHECK_EQ(read_runs(fd, m.id, m.runs, 0, runs), 0);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs + 1, runs), -EINVAL);
	CHECK_EQ(read_runs(fd, m.id, m.runs + 1, 0, runs), -EINVAL);
	CHECK_EQ(read_runs(fd, m.id + 1, 0, 1, runs), -ENOENT);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs, NULL), -EFAULT);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), 0);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), -ENOENT);
	CHECK_EQ(pinned(), before);
	CHECK_EQ(number("/proc/self/status", "VmLck:"), locked);
	CHECK_EQ(map_user(fd, p + 1, PAGE, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, 0, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, PAGE + 1, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, TUTTI_NVME_MAP_BYTES_MAX + PAGE, &m), -EINVAL);
	m = (struct tutti_nvme_map){.kind = 3};
	CHECK_EQ(map(fd, &m), -EINVAL);
	CHECK_EQ(munmap(p + BUFFER, PAGE), 0);
	CHECK_EQ(map_user(fd, p, BUFFER + PAGE, &m), -EFAULT); /* pins all but the last, lets go of them */
	CHECK_EQ(pinned(), before);
	CHECK_EQ(map_user(fd, p, BUFFER, &m), 0); /* left to the close */
	close(fd);
	CHECK_EQ(pinned(), before);
	CHECK_EQ(number("/proc/self/status", "VmLck:"), locked);
	munmap(p, BUFFER);
}

/* One who is not root, and may lock 64 KiB. */
static void memlock_limit(void)
{
	struct rlimit limit = {65536, 65536};
	struct tutti_nvme_map m;
	int fd, status;
	uint8_t *p;
	pid_t pid;

	need_function();
	fd = node_open();
	p = pages(BUFFER);
	pid = fork();
	if (!pid) {
		int bad = setrlimit(RLIMIT_MEMLOCK, &limit) || setuid(65534);

		bad = bad || map_user(fd, p, BUFFER, &m) != -ENOMEM || map_user(fd, p, 65536, &m);
		m = (struct tutti_nvme_map){.kind = TUTTI_NVME_MAP_QUEUE, .bytes = PAGE};
		_exit(bad || map(fd, &m) != -ENOMEM);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	close(fd); /* of the dead child's memory too */
	munmap(p, BUFFER);
}

static void queue_memory(void)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_QUEUE, .bytes = 65536};
	struct tutti_nvme_run run;
	uint8_t *p;
	int fd;

	need_function();
	fd = node_open();
	CHECK_EQ(map(fd, &m), 0);
	CHECK_EQ(m.runs, 1);
	CHECK_EQ(read_runs(fd, m.id, 0, 1, &run), 0);
	CHECK_EQ(run.bytes, 65536);
	CHECK(mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(m.id)) == MAP_FAILED);
	p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(m.id));
	CHECK(p != MAP_FAILED);
	for (uint32_t i = 0; i < 65536; i++)
		CHECK_EQ(p[i], 0);
	memset(p, 0x5A, 65536);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), 0);
	CHECK_EQ(p[65535], 0x5A); /* the caller's mapping keeps the pages */
	munmap(p, 65536);
	m.bytes = TUTTI_NVME_QUEUE_BYTES_MAX + PAGE;
	CHECK_EQ(map(fd, &m), -EINVAL);
	close(fd);
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
static int fd_of_node(void)
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

static void drive_up(struct drive *d)
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

static void drive_down(struct drive *d)
{
	CHECK_EQ(nvme_qp_delete(d->fn, &d->q, port_now_ns() + WAIT_NS), 0);
	CHECK_EQ(d->fn->t.ops->dma_unmap(d->fn->t.self, d->mem, BUFFER + PAGE, d->runs, d->n_runs), 0);
	nvme_fn_close(d->fn);
	free(d->runs);
	munmap(d->mem, BUFFER + PAGE);
}

/* BUFFER bytes at the start of the namespace from or to n runs (in order, perhaps more than BUFFER). */
static int transfer(struct drive *d, uint8_t opcode, const struct nvme_run *runs, uint32_t n)
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

static void fill(uint8_t *p, uint64_t seed)
{
	for (uint32_t i = 0; i < BUFFER; i += 8)
		*(uint64_t *)(void *)(p + i) = check_random(&seed);
}

/* What is on the medium is what the seed says. */
static void check_medium(struct drive *d, uint64_t seed)
{
	memset(d->mem, 0, BUFFER);
	CHECK_EQ(transfer(d, NVME_CMD_READ, d->runs, d->n_runs), 0);
	for (uint32_t i = 0; i < BUFFER; i += 8)
		CHECK_EQ(*(uint64_t *)(void *)(d->mem + i), check_random(&seed));
}

static void write_medium(struct drive *d, uint64_t seed)
{
	fill(d->mem, seed);
	CHECK_EQ(transfer(d, NVME_CMD_WRITE, d->runs, d->n_runs), 0);
}

static void host_memory(void)
{
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 1);
	check_medium(&d, 1);
	printf("# %u KiB of host memory are %u runs\n", (BUFFER + PAGE) >> 10, d.n_runs);
	drive_down(&d);
}

/* A completion's interrupt wakes who sleeps on the queue. */
static void interrupts(void)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), fds[2] = {event, -1};
	struct tutti_nvme_irqs irqs = {.fds = (uint64_t)(uintptr_t)fds, .n = 2};
	struct nvme_sqe e = {.opcode = NVME_CMD_FLUSH, .cid = 1};
	static struct port_parker parker;
	struct nvme_cqe c;
	struct dev_qp q;
	struct drive d;

	need_function();
	drive_up(&d);
	CHECK_EQ(nvme_qp_create(d.fn, 16, &parker, &q), 0);
	e.nsid = d.fn->ns[0].nsid;
	for (int i = 0; i < 20; i++) {
		uint64_t end = port_now_ns() + WAIT_NS;

		dev_qp_post(&q, &e);
		dev_qp_ring(&q);
		for (;;) {
			port_park_announce(&parker);
			if (dev_qp_poll(&q, &c))
				break;
			CHECK_EQ(port_park_wait(&parker, end), 0);
		}
		port_park_cancel(&parker);
		dev_qp_release(&q);
	}
	CHECK_EQ(nvme_qp_delete(d.fn, &q, port_now_ns() + WAIT_NS), 0);
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), -EBADF); /* none is left of the two */
	irqs.n = 1;
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), 0);
	irqs.n = TUTTI_NVME_VECTORS_MAX + 1;
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), -EINVAL);
	drive_down(&d);
	close(event);
}

/* ---- dma-bufs ---- */

static int export(const struct tutti_export_new *what, struct tutti_export_new *a)
{
	int fd = open("/dev/tutti_export", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	*a = *what;
	CHECK_EQ(ioctl(fd, TUTTI_EXPORT_NEW, a), 0);
	return fd;
}

static void check_held(int fd, int attached, int alive)
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

/* The drive reads into the buffer and writes from it; the CPU's own view of it (order: piece i at place[i]) says so. */
static void through(const struct tutti_export_new *what, uint8_t *view, uint32_t piece, uint32_t n_pieces)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF};
	struct tutti_nvme_run runs[RUNS_MAX];
	struct nvme_run r[RUNS_MAX];
	struct tutti_export_new a;
	struct drive d;
	uint64_t seed = 3;
	int exporter;

	drive_up(&d);
	write_medium(&d, 2);
	exporter = export(what, &a);
	m.fd = a.fd;
	CHECK_EQ(map(d.fd, &m), 0);
	CHECK_EQ(m.bytes, BUFFER);
	CHECK(m.runs <= RUNS_MAX);
	check_held(exporter, 1, 1);
	CHECK_EQ(read_runs(d.fd, m.id, 0, m.runs, runs), 0);
	for (uint32_t i = 0; i < m.runs; i++)
		r[i] = (struct nvme_run){.bytes = runs[i].bytes, .dma = runs[i].addr};
	if (!view) {
		view = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
		CHECK(view != MAP_FAILED);
	}
	memset(view, 0, BUFFER);
	CHECK_EQ(transfer(&d, NVME_CMD_READ, r, m.runs), 0);
	fill(d.mem, 2);
	for (uint32_t i = 0; i < n_pieces; i++)
		CHECK(!memcmp(d.mem + i * piece, view + (n_pieces > 1 ? (i * 7 + 3) % n_pieces : 0) * piece, piece));
	for (uint32_t i = 0; i < n_pieces; i++)
		for (uint32_t k = 0; k < piece; k += 8)
			*(uint64_t *)(void *)(view + (n_pieces > 1 ? (i * 7 + 3) % n_pieces : 0) * piece + k) =
			    check_random(&seed);
	CHECK_EQ(transfer(&d, NVME_CMD_WRITE, r, m.runs), 0);
	check_medium(&d, 3);
	printf("# %u KiB of a dma-buf are %u runs\n", BUFFER >> 10, m.runs);
	close(a.fd);
	check_held(exporter, 1, 1); /* the map holds it */
	CHECK_EQ(call(d.fd, TUTTI_NVME_UNMAP, m.id), 0);
	if (what->kind == TUTTI_EXPORT_PAGES)
		munmap(view, BUFFER);
	check_held(exporter, 0, 0);
	drive_down(&d);
	close(exporter);
}

static void scattered_pages(void)
{
	need_function();
	through(&(struct tutti_export_new){.kind = TUTTI_EXPORT_PAGES, .bytes = BUFFER}, NULL, BUFFER, 1);
}

/* The BAR as the CPU sees it. */
static uint8_t *bar_view(uint64_t offset)
{
	int fd = open(getenv("TUTTI_TEST_BAR"), O_RDWR | O_CLOEXEC);
	uint8_t *p = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

	CHECK(p != MAP_FAILED);
	close(fd);
	return p;
}

static void bar_without_pages(void)
{
	const uint64_t offset = 1 << 20;
	uint8_t *view;

	need_function();
	if (!getenv("TUTTI_TEST_BAR"))
		CHECK_SKIP("TUTTI_TEST_BAR names no BAR");
	view = bar_view(offset);
	through(&(struct tutti_export_new){.kind = TUTTI_EXPORT_BAR, .bytes = BUFFER, .offset = offset}, view, BUFFER,
	        1);
	through(
	    &(struct tutti_export_new){
	            .kind = TUTTI_EXPORT_BAR, .bytes = BUFFER, .offset = offset, .piece = BUFFER / 16},
	    view, BUFFER / 16, 16);
	munmap(view, BUFFER);
}

/* An exporter that maps for nobody: refused where the IOMMU translates, right where addresses are physical. */
static void bare_bus_addresses(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_RAW, .bytes = BUFFER}, a;
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF};
	int fd, exporter;
	uint32_t flags;
	uint8_t *view;

	need_function();
	if (!getenv("TUTTI_TEST_BAR"))
		CHECK_SKIP("TUTTI_TEST_BAR names no BAR");
	fd = node_open();
	flags = info_of(fd).flags;
	exporter = export(&what, &a);
	m.fd = a.fd;
	CHECK_EQ(map(fd, &m), flags & TUTTI_NVME_TRANSLATES ? -EREMOTEIO : 0);
	close(fd);
	close(a.fd);
	check_held(exporter, 0, 0);
	close(exporter);
	if (flags & TUTTI_NVME_TRANSLATES)
		return;
	view = bar_view(0);
	through(&what, view, BUFFER, 1);
	munmap(view, BUFFER);
}

static void wrong_descriptors(void)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF, .fd = -1};
	int fd;

	need_function();
	fd = node_open();
	CHECK_EQ(map(fd, &m), -EBADF);
	m.fd = fd;
	CHECK_EQ(map(fd, &m), -EINVAL);
	close(fd);
}

/* Memory moves that was promised to stay: the drive is stopped before it can write there. */
static void moved_memory(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_PAGES, .bytes = BUFFER}, a;
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF};
	struct drive d;
	int exporter;

	need_function();
	drive_up(&d);
	write_medium(&d, 4);
	exporter = export(&what, &a);
	m.fd = a.fd;
	CHECK_EQ(map(d.fd, &m), 0);
	CHECK_EQ(ioctl(exporter, TUTTI_EXPORT_MOVE, (unsigned long)a.fd), 0);
	CHECK_EQ(transfer(&d, NVME_CMD_READ, d.runs, d.n_runs), -ETIMEDOUT);
	CHECK_EQ(call(d.fd, TUTTI_NVME_UNMAP, m.id), 0);
	close(a.fd);
	check_held(exporter, 0, 0);
	drive_down(&d); /* the driver fences it */
	drive_up(&d);
	check_medium(&d, 4);
	drive_down(&d);
	close(exporter);
}

/* A dma-buf and its drive's process die together: the exporter has everything back. */
static void killed_with_dmabuf(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_PAGES, .bytes = BUFFER}, a;
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF};
	int exporter, status;
	pid_t pid;

	need_function();
	exporter = export(&what, &a);
	pid = fork();
	if (!pid) {
		int fd = node_open();

		m.fd = a.fd;
		kill(getpid(), map(fd, &m) ? SIGTERM : SIGKILL);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WTERMSIG(status), SIGKILL);
	close(a.fd);
	check_held(exporter, 0, 0);
	close(exporter);
}

/* ---- removal ---- */

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void bind_again(void)
{
	write_to("/sys/bus/pci/drivers_probe", function);
	CHECK_EQ(access(node, F_OK), 0);
}

static void removed_while_open(void)
{
	struct tutti_nvme_map m;
	struct tutti_nvme_info info;
	long long before = pinned();
	const volatile uint32_t *bar;
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 5);
	bar = (const volatile uint32_t *)(const void *)d.fn->t.bar0;
	CHECK_EQ(bar[REG_CSTS] & 1, 1);
	write_to("/sys/bus/pci/drivers/" PNVME_DRIVER "/unbind", function);
	CHECK_EQ(bar[REG_CSTS], 0xffffffffu); /* and no SIGBUS */
	CHECK_EQ(access(node, F_OK), -1);
	CHECK_EQ(ioctl(d.fd, TUTTI_NVME_INFO, &info), -1);
	CHECK_EQ(errno, ENODEV);
	CHECK_EQ(map_user(d.fd, d.mem, PAGE, &m), -ENODEV);
	CHECK_EQ(call(d.fd, TUTTI_NVME_MASTER, 1), -ENODEV);
	CHECK_EQ(call(d.fd, TUTTI_NVME_UNMAP, 1), -ENODEV);
	dev_qp_ring(&d.q); /* the doorbell is a page of ours now */
	CHECK_EQ(nvme_qp_delete(d.fn, &d.q, port_now_ns() + 1000 * MS), 0); /* what is gone writes nothing */
	nvme_fn_close(d.fn);
	CHECK_EQ(pinned(), before);
	free(d.runs);
	munmap(d.mem, BUFFER + PAGE);
	bind_again();
	drive_up(&d);
	check_medium(&d, 5);
	drive_down(&d);
}

/* The drive is taken away while a process works on it, again and again. */
static void removed_at_work(void)
{
	long long before = pinned();
	struct drive d;

	need_function();
	for (int round = 0; round < 5; round++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			drive_up(&d);
			while (!transfer(&d, NVME_CMD_READ, d.runs, d.n_runs))
				;
			_exit(0);
		}
		usleep(400000u + 7000u * (unsigned)round); /* until it works */
		write_to("/sys/bus/pci/drivers/" PNVME_DRIVER "/unbind", function);
		kill(pid, SIGKILL);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
		CHECK_EQ(pinned(), before);
		bind_again();
	}
	drive_up(&d);
	check_medium(&d, 5);
	drive_down(&d);
}

/* ---- killed ---- */

static void killed_under_load(void)
{
	long long before = pinned();
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 6);
	drive_down(&d);
	for (int round = 0; round < 5; round++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			drive_up(&d);
			for (uint16_t i = 0; i < 60; i++) {
				struct nvme_sqe e = {
				    .opcode = NVME_CMD_READ, .nsid = d.fn->ns[0].nsid, .cid = i, .cdw10 = i};

				e.dptr.prp.prp1 = d.runs[0].dma;
				dev_qp_post(&d.q, &e);
			}
			dev_qp_ring(&d.q);
			kill(getpid(), SIGKILL);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(WTERMSIG(status), SIGKILL);
		CHECK_EQ(pinned(), before);
		drive_up(&d);
		check_medium(&d, 6);
		drive_down(&d);
	}
}

/* ---- random calls ---- */

static void random_map(int fd, uint64_t *seed, uint8_t *memory, int dmabuf)
{
	struct tutti_nvme_map m = {.kind = (uint32_t)(check_random(seed) % 4), .fd = -1};

	m.va = (uint64_t)(uintptr_t)memory + check_random(seed) % 80 * PAGE;
	m.bytes = check_random(seed) % 40 * PAGE;
	if (check_random(seed) % 8 == 0)
		m.va = check_random(seed);
	if (check_random(seed) % 16 == 0)
		m.bytes = check_random(seed);
	if (check_random(seed) % 2)
		m.fd = dmabuf;
	ioctl(fd, TUTTI_NVME_MAP, check_random(seed) % 32 ? (void *)&m : NULL);
}

static void random_rest(int fd, uint64_t *seed, const int *events)
{
	static const unsigned long requests[] = {TUTTI_NVME_INFO, TUTTI_NVME_RUNS,   TUTTI_NVME_IRQS,
	                                         TUTTI_NVME_MAP,  TUTTI_NVME_MASTER, TUTTI_NVME_UNMAP};
	struct tutti_nvme_run runs[64];
	struct tutti_nvme_runs r = {.id = (uint32_t)(check_random(seed) % 20),
	                            .first = (uint32_t)(check_random(seed) % 40),
	                            .n = (uint32_t)(check_random(seed) % 64),
	                            .runs = (uint64_t)(uintptr_t)runs};
	struct tutti_nvme_irqs irqs = {.fds = (uint64_t)(uintptr_t)events, .n = (uint32_t)(check_random(seed) % 5)};
	void *p;

	switch (check_random(seed) % 6) {
	case 0:
		ioctl(fd, TUTTI_NVME_RUNS, &r);
		break;
	case 1:
		ioctl(fd, TUTTI_NVME_IRQS, &irqs);
		break;
	case 2:
		ioctl(fd, TUTTI_NVME_MASTER, check_random(seed) % 3);
		break;
	case 3:
		p = mmap(NULL, (1 + check_random(seed) % 8) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		         (off_t)TUTTI_NVME_MMAP(check_random(seed) % 20));
		if (p != MAP_FAILED) {
			(void)*(volatile uint32_t *)p;
			munmap(p, PAGE); /* the rest stays until the process ends */
		}
		break;
	case 4:
		ioctl(fd, requests[check_random(seed) % 6], check_random(seed)); /* a wild pointer */
		break;
	default:
		if (check_random(seed) % 50 == 0)
			ioctl(fd, TUTTI_NVME_RESET, 0);
	}
}

/* Until the time is over: random calls on a descriptor that two processes have; now and then it is opened anew. */
static void random_process(uint64_t seed, int fd, uint64_t end, int dmabuf)
{
	int events[4], own = -1;
	uint8_t *memory = pages(64 * PAGE); /* and nothing behind it, with luck */

	for (int i = 0; i < 4; i++)
		events[i] = eventfd(0, EFD_CLOEXEC);
	for (uint64_t n = 0; port_now_ns() < end; n++) {
		if (n % 1000 == 999) { /* only one of the two gets it, and only when the other has let go as well */
			close(fd);
			if (own >= 0)
				close(own);
			fd = own = open(node, O_RDWR | O_CLOEXEC);
		}
		if (check_random(&seed) % 3 == 0)
			random_map(fd, &seed, memory, dmabuf);
		else if (check_random(&seed) % 2)
			ioctl(fd, TUTTI_NVME_UNMAP, check_random(&seed) % 20);
		else
			random_rest(fd, &seed, events);
		if (n % 64 == 0 && check_random(&seed) % 4 == 0)
			madvise(memory, 64 * PAGE, MADV_DONTNEED);
	}
	_exit(0);
}

static void random_calls(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_PAGES, .bytes = 16 * PAGE}, a;
	const char *seconds = getenv("TUTTI_TEST_SECONDS");
	uint64_t end = port_now_ns() + 1000 * MS * (seconds ? strtoull(seconds, NULL, 10) : 3);
	long long before = pinned();
	int fd, exporter, status;
	struct drive d;
	pid_t pid[2];

	need_function();
	exporter = export(&what, &a);
	fd = node_open();
	for (uint64_t i = 0; i < 2; i++) {
		pid[i] = fork();
		if (!pid[i])
			random_process(end ^ i, fd, end, a.fd);
	}
	close(fd);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
		CHECK_EQ(status, 0);
	}
	close(a.fd);
	check_held(exporter, 0, 0);
	close(exporter);
	CHECK_EQ(pinned(), before);
	drive_up(&d);
	write_medium(&d, 8);
	check_medium(&d, 8);
	drive_down(&d);
}

int main(int argc, char **argv)
{
	function = getenv("TUTTI_TEST_KMOD");
	snprintf(node, sizeof(node), "/dev/tutti/%s", function ? function : "");
	if (argc > 1 && !strcmp(argv[1], "random")) {
		CHECK_RUN(random_calls);
		return check_end();
	}
	CHECK_RUN(one_opener);
	CHECK_RUN(registers);
	CHECK_RUN(user_memory);
	CHECK_RUN(memlock_limit);
	CHECK_RUN(queue_memory);
	CHECK_RUN(host_memory);
	CHECK_RUN(interrupts);
	CHECK_RUN(scattered_pages);
	CHECK_RUN(bar_without_pages);
	CHECK_RUN(bare_bus_addresses);
	CHECK_RUN(wrong_descriptors);
	CHECK_RUN(moved_memory);
	CHECK_RUN(killed_with_dmabuf);
	CHECK_RUN(removed_while_open);
	CHECK_RUN(removed_at_work);
	CHECK_RUN(killed_under_load);
	CHECK_RUN(random_calls);
	return check_end();
}
