/*
 * micro_path.c - the software's own ceiling: unmerged commands per second through ring, kernel, queue pair and the null
 * controller, one executor thread and one controller thread. Every SQE is built by the product's builder, every CQE
 * checked. Prints "name value unit".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <tutti/gio_uring.h>
#include <tutti/tutti.h>

#define IOCBS 16u
#define SECONDS 3

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int need(int rc, const char *what)
{
	if (rc) {
		fprintf(stderr, "%s: %s\n", what, tutti_error_message());
		exit(1);
	}
	return rc;
}

/* Transfers that are neighbours neither on disk nor in memory: nothing merges. */
static void fill(struct gio_ioctx *c, uint8_t *mem)
{
	for (uint32_t i = 0; i < GIO_IOCTX_MAX; i++) {
		c[i].mem = (uint64_t)(uintptr_t)mem + (uint64_t)(i * 7919u % GIO_IOCTX_MAX) * 8192;
		c[i].offset_bytes = (uint64_t)i * 8192;
		c[i].bytes = 4096;
		c[i].op = GIO_READ;
	}
}

static void measure(const char *name, int no_sgl, const char *path)
{
	struct gio_opts o = GIO_OPTS_INIT;
	uint8_t *mem = mmap(NULL, GIO_IOCTX_MAX * 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gio_ioctx *c;
	struct gio_result r;
	uint32_t id[IOCBS];
	uint64_t t0, commands = 0;
	struct gio *g;

	o.paths = &path;
	o.n_paths = 1;
	o.controller = TUTTI_CTRL_NULL;
	o.no_sgl = no_sgl;
	o.queue_depth = 255;
	need(gio_init_queue(&o, &g), "gio_init_queue");
	need(gio_register(g, mem, GIO_IOCTX_MAX * 8192), "gio_register");
	for (uint32_t i = 0; i < IOCBS; i++) {
		need(gio_get_iocb(g, GIO_IOCTX_MAX, NULL, &id[i], &c), "gio_get_iocb");
		fill(c, mem);
	}
	t0 = now_ns();
	while (now_ns() - t0 < SECONDS * 1000000000ull) {
		need(gio_issue_io(g, id, IOCBS, 0), "gio_issue_io");
		for (uint32_t i = 0; i < IOCBS; i++) {
			need(gio_wait_cqe(g, id[i], now_ns() + 10000000000ull, &r), "gio_wait_cqe");
			if (r.status || r.failed)
				need(r.status, "a command failed");
			gio_put_iocb(g, id[i]);
		}
		/* The same IOCBs again: taken back in the order in which they were given. */
		for (uint32_t i = 0; i < IOCBS; i++) {
			need(gio_get_iocb(g, GIO_IOCTX_MAX, NULL, &id[i], &c), "gio_get_iocb");
			fill(c, mem);
		}
		commands += (uint64_t)IOCBS * GIO_IOCTX_MAX;
	}
	printf("%s %.2f million/s\n", name, (double)commands / (double)(now_ns() - t0) * 1e3);
	need(gio_close(g), "gio_close");
	munmap(mem, GIO_IOCTX_MAX * 8192);
}

int main(void)
{
	char path[] = "/tmp/tutti-micro-XXXXXX";
	int fd = mkstemp(path);

	if (fd < 0 || ftruncate(fd, 1 << 30)) {
		perror(path);
		return 1;
	}
	measure("null_commands_sgl", 0, path);
	measure("null_commands_prp", 1, path);
	close(fd);
	unlink(path);
	return 0;
}
