/*
 * micro_ctrl.c - what the virtual controllers cost by themselves: one submitting thread, one service thread.
 *
 *     micro_ctrl [FILE [pairs]]
 *
 * Without FILE only the null controller's rate. With it (a file of at least 256 MiB whose blocks are written, or a
 * block device; it is only read) random reads through the virtual controller, in turns with a bare io_uring loop:
 * same file, sizes, depth and memory. Prints `name value unit`, one a line; medians, and of pairs their ratio's.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/err.h"
#include "ctrl/soft.h"

#define DEPTH 64u
#define ARENA_BYTES (64ull << 20)
#define READ_BYTES (512ull << 20) /* of one timed round */
#define NULL_COMMANDS 10000000u
#define NULL_ROUNDS 5
#define PAIRS_MAX 40
#define WAIT_NS 30000000000ull

struct result {
	double gb_per_s, cpu_s_per_gb;
};

static uint64_t seed = 1;

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static double cpu_s(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void die(const char *what)
{
	fprintf(stderr, "micro_ctrl: %s: %s\n", what, err_text()[0] ? err_text() : strerror(errno));
	exit(3);
}

struct bed {
	const struct ctrl_ops *ops;
	struct ctrl *c;
	struct ctrl_info info;
	struct dev_qp qp;
	struct port_parker parker;
	char *arena;
};

static void bed_open(struct bed *b, const struct ctrl_ops *ops, const char *path, uint32_t depth, char *arena)
{
	struct ctrl_target t = {.path = path, .fd = -1, .read_only = 1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};

	b->ops = ops;
	b->arena = arena;
	memset(&b->parker, 0, sizeof(b->parker));
	if (ops->open(&o, &b->c) || ops->identify(b->c, &b->info) ||
	    ops->mem_map(b->c, arena, ARENA_BYTES, NULL, NULL) || ops->qp_create(b->c, depth, &b->parker, &b->qp))
		die(path);
}

static void bed_close(struct bed *b)
{
	if (b->ops->qp_delete(b->c, &b->qp, port_now_ns() + WAIT_NS))
		die("deleting the queue pair");
	b->ops->close(b->c);
}

static void post(struct bed *b, uint64_t offset_bytes, char *to, uint32_t bytes, uint16_t cid)
{
	uint32_t lba = b->info.ns[0].lba_bytes;
	struct nvme_sqe e = {.opcode = NVME_CMD_READ, .flags = NVME_PSDT_SGL << 6, .nsid = 1, .cid = cid};

	e.dptr.sgl = (struct nvme_sgl){.addr = (uint64_t)(uintptr_t)to, .len = bytes};
	e.cdw10 = (uint32_t)(offset_bytes / lba);
	e.cdw11 = (uint32_t)(offset_bytes / lba >> 32);
	e.cdw12 = bytes / lba - 1;
	dev_qp_post(&b->qp, &e);
}

/* ---- null ---- */

static double null_rate(struct bed *b, uint32_t batch)
{
	uint32_t sent = 0, got = 0, bad = 0;
	uint64_t t0 = port_now_ns();

	while (got < NULL_COMMANDS) {
		struct nvme_cqe e;
		uint32_t n = 0;

		for (; n < batch && sent < NULL_COMMANDS && sent - got < b->qp.depth - 1; n++, sent++)
			post(b, sent % 4096 * 32768ull, b->arena + sent % 2048 * 32768ull, 32768, (uint16_t)sent);
		if (n)
			dev_qp_ring(&b->qp);
		for (n = 0; n < batch && dev_qp_poll(&b->qp, &e); n++, got++)
			bad += NVME_STATUS(e.cid_status) != 0 || NVME_CID(e.cid_status) != (uint16_t)got;
		dev_qp_release(&b->qp);
	}
	if (bad) {
		fprintf(stderr, "micro_ctrl: %u of the null controller's completions are wrong\n", bad);
		exit(1);
	}
	return NULL_COMMANDS / ((double)(port_now_ns() - t0) * 1e-9) / 1e6;
}

static void null_rows(char *arena)
{
	static const uint32_t batches[] = {1, 8, 32};

	for (int i = 0; i < 3; i++) {
		double rate[NULL_ROUNDS];
		struct bed b;

		bed_open(&b, &ctrl_null, "null:1G", 512, arena);
		for (int k = 0; k < NULL_ROUNDS; k++)
			rate[k] = null_rate(&b, batches[i]);
		bed_close(&b);
		printf("null_batch_%u %.2f M_commands/s\n", batches[i], median(rate, NULL_ROUNDS));
	}
}

/* ---- virt, and io_uring alone ---- */

static struct result virt_read(struct bed *b, uint32_t bytes, uint64_t file_bytes)
{
	uint64_t n = READ_BYTES / bytes, sent = 0, got = 0, t0 = port_now_ns();
	uint16_t free_cid[DEPTH];
	double c0 = cpu_s(), gb = (double)READ_BYTES / 1e9;
	uint32_t n_free = DEPTH;

	for (uint16_t i = 0; i < DEPTH; i++)
		free_cid[i] = i;
	while (got < n) {
		struct nvme_cqe e;
		int any = 0;

		for (; n_free && sent < n; sent++, any = 1) {
			uint16_t cid = free_cid[--n_free];

			post(b, next_random() % (file_bytes / bytes) * bytes, b->arena + (uint64_t)cid * bytes, bytes,
			     cid);
		}
		if (any)
			dev_qp_ring(&b->qp);
		while (dev_qp_poll(&b->qp, &e)) {
			if (NVME_STATUS(e.cid_status))
				die("a read failed");
			free_cid[n_free++] = NVME_CID(e.cid_status);
			got++;
			any = 2;
		}
		dev_qp_release(&b->qp);
		if (any == 2)
			continue;
		port_park_announce(&b->parker);
		if (NVME_PHASE(port_load_acquire32(&b->qp.cq[b->qp.head].cid_status)) == b->qp.phase)
			port_park_cancel(&b->parker);
		else if (port_park_wait(&b->parker, port_now_ns() + WAIT_NS))
			die("no completion in 30 s");
	}
	return (struct result){gb / ((double)(port_now_ns() - t0) * 1e-9), (cpu_s() - c0) / gb};
}

static void bare_prep(struct io_uring *r, char *arena, uint32_t i, uint32_t bytes, uint64_t file_bytes)
{
	struct io_uring_sqe *s = io_uring_get_sqe(r);

	io_uring_prep_read_fixed(s, 0, arena + (uint64_t)i * bytes, bytes, next_random() % (file_bytes / bytes) * bytes,
	                         0);
	s->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data64(s, i);
}

static struct result bare_read(struct io_uring *r, char *arena, uint32_t bytes, uint64_t file_bytes)
{
	uint64_t n = READ_BYTES / bytes, sent = 0, got = 0, t0 = port_now_ns();
	double c0 = cpu_s(), gb = (double)READ_BYTES / 1e9;

	for (; sent < DEPTH && sent < n; sent++)
		bare_prep(r, arena, (uint32_t)sent, bytes, file_bytes);
	while (got < n) {
		uint64_t left = sent - got;
		struct io_uring_cqe *c;
		unsigned head, seen = 0;
		int rc = io_uring_submit_and_wait(r, left < 8 ? (unsigned)left : 8);

		if (rc < 0 && rc != -EINTR)
			die("io_uring");
		io_uring_for_each_cqe(r, head, c)
		{
			if (c->res != (int)bytes)
				die("a bare read failed");
			if (sent < n) {
				bare_prep(r, arena, (uint32_t)c->user_data, bytes, file_bytes);
				sent++;
			}
			seen++;
		}
		io_uring_cq_advance(r, seen);
		got += seen;
	}
	return (struct result){gb / ((double)(port_now_ns() - t0) * 1e-9), (cpu_s() - c0) / gb};
}

static void bare_open(struct io_uring *r, int fd, char *arena)
{
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	struct iovec v = {arena, ARENA_BYTES};

	if (io_uring_queue_init_params(2 * DEPTH, r, &p) || io_uring_register_files(r, &fd, 1) ||
	    io_uring_register_buffers(r, &v, 1))
		die("a bare io_uring");
}

static void read_rows(const char *path, uint32_t bytes, int pairs, char *arena)
{
	double v[4][PAIRS_MAX], ratio[PAIRS_MAX];
	struct io_uring r;
	struct bed b;
	uint64_t file_bytes;
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);

	if (fd < 0)
		die(path);
	bed_open(&b, &ctrl_virt, path, DEPTH + 1, arena);
	bare_open(&r, fd, arena);
	file_bytes = b.info.ns[0].capacity_bytes;
	for (int i = 0; i < pairs; i++) {
		struct result virt = {0, 0}, bare = {0, 0};

		/* Which one is first changes, too. */
		for (int k = 0; k < 2; k++) {
			if ((i + k) % 2)
				virt = virt_read(&b, bytes, file_bytes);
			else
				bare = bare_read(&r, arena, bytes, file_bytes);
		}
		v[0][i] = virt.gb_per_s;
		v[1][i] = bare.gb_per_s;
		v[2][i] = virt.cpu_s_per_gb;
		v[3][i] = bare.cpu_s_per_gb;
		ratio[i] = virt.gb_per_s / bare.gb_per_s;
	}
	io_uring_queue_exit(&r);
	bed_close(&b);
	close(fd);
	printf("virt_read_%uk %.3f GB/s\nbare_read_%uk %.3f GB/s\n", bytes >> 10, median(v[0], pairs), bytes >> 10,
	       median(v[1], pairs));
	printf("virt_to_bare_%uk %.3f ratio\n", bytes >> 10, median(ratio, pairs));
	printf("virt_cpu_%uk %.4f s/GB\nbare_cpu_%uk %.4f s/GB\n", bytes >> 10, median(v[2], pairs), bytes >> 10,
	       median(v[3], pairs));
}

int main(int argc, char **argv)
{
	int pairs = argc > 2 ? atoi(argv[2]) : 7;
	char *arena =
	    mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (arena == MAP_FAILED)
		die("memory");
	pairs = pairs < 1 ? 1 : pairs > PAIRS_MAX ? PAIRS_MAX : pairs;
	null_rows(arena);
	if (argc > 1) {
		read_rows(argv[1], 128u << 10, pairs, arena);
		read_rows(argv[1], 32u << 10, pairs, arena);
	}
	return 0;
}
