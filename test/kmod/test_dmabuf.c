/*
 * test_dmabuf.c - dma-bufs through the kernel module tutti_nvme: the drive reads into them and writes from them.
 * kmod/test gives them out, TUTTI_TEST_BAR is the file of the BAR that it uses (module.h).
 */
#include <signal.h>
#include <sys/wait.h>

#include "kmod/module.h"

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

int main(void)
{
	module_begin();
	CHECK_RUN(scattered_pages);
	CHECK_RUN(bar_without_pages);
	CHECK_RUN(bare_bus_addresses);
	CHECK_RUN(wrong_descriptors);
	CHECK_RUN(moved_memory);
	CHECK_RUN(killed_with_dmabuf);
	return check_end();
}
