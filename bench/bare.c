/*
 * bare.c - the kernel's own cost of our commands: a bare io_uring loop, and nothing else.
 *
 * Same file (opened for O_DIRECT and registered), same memory (registered), same command size, as many pieces of
 * memory a command, same depth; no checks, no queue pairs, no second thread. Completions are taken many at once, as our
 * controller does. What we cost above this is ours; what this costs is the kernel's for so many pages and pieces.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench.h"

#define DEPTH 64u           /* the lane's default */
#define SEGMENTS_MAX 64u    /* of a command: 2 MiB of 32 KiB */
#define OP_READV_FIXED 60   /* Linux 6.15 */
#define OP_WRITEV_FIXED 61
#define BUFFER_BYTES (1ull << 30) /* io_uring's largest */

struct bare {
	struct bench_bare *o;
	struct io_uring ring;
	int fixed; /* vectors into registered memory */
	struct iovec segments[DEPTH][SEGMENTS_MAX];
	uint32_t bytes[DEPTH]; /* of the command in flight */
	uint32_t free[DEPTH], n_free;
	uint64_t made, made_bytes, done_bytes;
};

/* Scattered, and each once a pass: 40503 is odd and the numbers of pieces are powers of two, or nearly. */
static uint8_t *piece(const struct bench_bare *o, uint64_t k)
{
	uint64_t n = o->memory_bytes / o->segment_bytes;

	return o->memory + k * 40503 % n * o->segment_bytes;
}

/* The next command: sizes differ by one piece, so that their mean is what was asked for. */
static void make(struct bare *b)
{
	static const int opcodes[2][2] = {{IORING_OP_READV, IORING_OP_WRITEV}, {OP_READV_FIXED, OP_WRITEV_FIXED}};
	const struct bench_bare *o = b->o;
	double each = o->command_bytes / (double)o->segment_bytes;
	uint64_t first = (uint64_t)((double)b->made * each), n = (uint64_t)((double)(b->made + 1) * each) - first;
	struct io_uring_sqe *s = io_uring_get_sqe(&b->ring);
	uint32_t at = b->free[--b->n_free];
	struct iovec *v = b->segments[at];

	n = n < 1 ? 1 : n > SEGMENTS_MAX ? SEGMENTS_MAX : n;
	for (uint64_t i = 0; i < n; i++)
		v[i] = (struct iovec){piece(o, first + i), o->segment_bytes};
	io_uring_prep_rw(opcodes[b->fixed][o->write != 0], s, 0, v, (unsigned)n,
	                 o->offset + b->made_bytes % o->span_bytes);
	s->flags |= IOSQE_FIXED_FILE;
	s->user_data = at;
	b->bytes[at] = (uint32_t)(n * o->segment_bytes);
	b->made_bytes += b->bytes[at];
	b->made++;
}

static int reap(struct bare *b)
{
	struct io_uring_cqe *c;
	unsigned head, seen = 0;

	io_uring_for_each_cqe(&b->ring, head, c)
	{
		seen++;
		if (c->res != (int)b->bytes[c->user_data])
			return c->res < 0 ? c->res : -EIO;
		b->done_bytes += b->bytes[c->user_data];
		b->free[b->n_free++] = (uint32_t)c->user_data;
	}
	io_uring_cq_advance(&b->ring, seen);
	return 0;
}

static int loop(struct bare *b)
{
	uint64_t start_ns = bench_now_ns(), cpu_ns = bench_process_cpu_ns();
	int rc = 0;

	while (!rc && b->done_bytes < b->o->io_bytes) {
		uint32_t flying;

		while (b->n_free && b->made_bytes < b->o->io_bytes)
			make(b);
		flying = DEPTH - b->n_free;
		rc = io_uring_submit_and_wait(&b->ring, flying / 4 ? flying / 4 : 1);
		rc = rc < 0 ? rc : reap(b);
	}
	b->o->gbps = (double)b->done_bytes / (double)(bench_now_ns() - start_ns);
	b->o->cpu_per_gb = (double)(bench_process_cpu_ns() - cpu_ns) / (double)b->done_bytes;
	b->o->commands = b->made;
	return rc;
}

static int memory_register(struct bare *b)
{
	struct iovec v = {b->o->memory, b->o->memory_bytes};
	struct io_uring_probe *p = io_uring_get_probe_ring(&b->ring);

	b->fixed = p && io_uring_opcode_supported(p, OP_WRITEV_FIXED) && v.iov_len <= BUFFER_BYTES;
	io_uring_free_probe(p);
	return b->fixed ? io_uring_register_buffers(&b->ring, &v, 1) : 0;
}

int bench_bare(struct bench_bare *o)
{
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	struct bare *b = calloc(1, sizeof(*b));
	int fd = open(o->file, (o->write ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC), rc = fd < 0 ? -errno : 0;

	if (!b || rc) {
		free(b);
		return rc ? rc : -ENOMEM;
	}
	b->o = o;
	for (; b->n_free < DEPTH; b->n_free++)
		b->free[b->n_free] = b->n_free;
	rc = io_uring_queue_init_params(DEPTH, &b->ring, &p);
	if (!rc) {
		rc = io_uring_register_files(&b->ring, &fd, 1);
		rc = rc ? rc : memory_register(b);
		rc = rc ? rc : loop(b);
		io_uring_queue_exit(&b->ring);
	}
	close(fd);
	free(b);
	return rc;
}
