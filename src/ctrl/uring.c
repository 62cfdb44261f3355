/*
 * uring.c - the backend of the virtual controller: io_uring on files and block devices.
 *
 * One ring, used by the service thread alone. Entries are queued by submit and go to the kernel in wait, in
 * the same system call that waits for completions. A doorbell must end that wait too, so a futex request on the
 * parker's word stays armed in the ring (kernels from 6.7; older ones get short waits instead). Commands whose
 * addresses or lengths O_DIRECT refuses go through a bounded set of aligned buffers.
 */
#include "ctrl/soft.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/err.h"
#include "base/fork.h"

#define OP_FUTEX_WAIT 51  /* Linux 6.7 */
#define OP_READV_FIXED 60 /* Linux 6.15 */
#define OP_WRITEV_FIXED 61
#define FUTEX2_U32_PRIVATE 0x82u
#define TAG_FUTEX 1u      /* user_data below TAG_IO is no command; commands are pointers */
#define TAG_CANCEL 2u
#define TAG_IO 4096u
#define BUFS_MAX 4096u
#define BOUNCES 8u
#define QUEUED_MAX 32u
#define GATHER_NS 2000000u /* how long completions may wait for company */
#define SLICE_NS 100000u  /* waits without the futex request */

struct bounce {
	char *data; /* mdts_bytes, made on first use */
	struct iovec iov;
	struct ctrl_io *io;
};

struct uring {
	struct io_uring ring;
	struct ctrl_counters *counters;
	struct ctrl_file files[CTRL_NS_MAX];
	uint32_t n_files;
	uint32_t mdts_bytes;
	uint32_t inflight;   /* commands, waiting ones included */
	int files_fixed, bufs_fixed, vec_fixed, futex_op, armed;
	int rushed;          /* the last wait got nothing: take the first that comes */
	struct ctrl_io *finished, **finished_end; /* done without the kernel */
	struct ctrl_io *waiting, **waiting_end;   /* for a bounce buffer */
	struct bounce bounces[BOUNCES];
	uint8_t buf_used[BUFS_MAX];
};

static void push(struct ctrl_io ***end, struct ctrl_io *io)
{
	io->next = NULL;
	**end = io;
	*end = &io->next;
}

/* ---- one I/O ---- */

static struct io_uring_sqe *next_sqe(struct uring *u)
{
	struct io_uring_sqe *s = io_uring_get_sqe(&u->ring);

	if (s)
		return s;
	ctrl_count(&u->counters->syscalls, 1);
	io_uring_submit(&u->ring);
	return io_uring_get_sqe(&u->ring);
}

static void finish(struct uring *u, struct ctrl_io *io, uint32_t status)
{
	io->status = status;
	push(&u->finished_end, io);
}

static void prep_rw(struct uring *u, struct ctrl_io *io, struct io_uring_sqe *s, int fd)
{
	static const uint8_t one[2][2] = {{IORING_OP_READ, IORING_OP_WRITE},
	                                  {IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED}};
	static const uint8_t many[2][2] = {{IORING_OP_READV, IORING_OP_WRITEV}, {OP_READV_FIXED, OP_WRITEV_FIXED}};
	int write = io->opcode == NVME_CMD_WRITE;
	uint64_t at = io->offset_bytes + io->done_bytes;
	int fixed = u->bufs_fixed && io->buf >= 0 && !io->priv && (io->n_rest == 1 || u->vec_fixed);
	const struct iovec *v = io->rest;

	if (io->n_rest == 1)
		io_uring_prep_rw(one[fixed][write], s, fd, v->iov_base, (unsigned)v->iov_len, at);
	else
		io_uring_prep_rw(many[fixed][write], s, fd, v, io->n_rest, at);
	if (fixed) {
		s->buf_index = (uint16_t)io->buf;
		ctrl_count(&u->counters->fixed_ios, 1);
	}
	if (io->fua)
		s->rw_flags = RWF_DSYNC;
}

static void start(struct uring *u, struct ctrl_io *io)
{
	struct io_uring_sqe *s = next_sqe(u);
	int fd = u->files_fixed ? io->target : u->files[io->target].fd;

	if (!s) {
		finish(u, io, NVME_SC_INTERNAL);
		return;
	}
	if (io->opcode == NVME_CMD_FLUSH)
		io_uring_prep_fsync(s, fd, IORING_FSYNC_DATASYNC);
	else
		prep_rw(u, io, s, fd);
	if (u->files_fixed)
		s->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(s, io);
}

/* ---- what O_DIRECT refuses ---- */

static int fits_direct(const struct ctrl_file *f, const struct ctrl_io *io)
{
	uint64_t mem = 0, len = 0;

	if (!f->direct)
		return 1;
	for (uint32_t i = 0; i < io->n_iov; i++) {
		mem |= (uint64_t)(uintptr_t)io->iov[i].iov_base;
		len |= io->iov[i].iov_len;
	}
	return !(mem & (f->ns.mem_align_bytes - 1)) && !(len & (f->offset_align - 1));
}

/* Starts io through a bounce buffer, or queues it until one is free. */
static void start_bounced(struct uring *u, struct ctrl_io *io)
{
	struct bounce *b = u->bounces;

	while (b < u->bounces + BOUNCES && b->io)
		b++;
	if (b == u->bounces + BOUNCES) {
		push(&u->waiting_end, io);
		return;
	}
	if (!b->data)
		b->data = aligned_alloc(4096, u->mdts_bytes);
	if (!b->data) {
		finish(u, io, NVME_SC_INTERNAL);
		return;
	}
	b->io = io;
	b->iov = (struct iovec){b->data, io->bytes};
	ctrl_io_begin(io);
	io->priv = b;
	io->rest = &b->iov;
	io->n_rest = 1;
	if (io->opcode == NVME_CMD_WRITE)
		ctrl_io_gather(io, b->data);
	ctrl_count(&u->counters->bounced, 1);
	start(u, io);
}

static void end_bounced(struct uring *u, struct ctrl_io *io)
{
	struct bounce *b = io->priv;
	struct ctrl_io *next = u->waiting;

	if (io->opcode == NVME_CMD_READ && !io->status)
		ctrl_io_scatter(io, b->data);
	b->io = NULL;
	if (!next)
		return;
	u->waiting = next->next;
	if (!u->waiting)
		u->waiting_end = &u->waiting;
	start_bounced(u, next);
}

/* ---- the table's functions ---- */

static void uring_submit(void *self, struct ctrl_io *io)
{
	struct uring *u = self;

	u->inflight++;
	ctrl_io_begin(io);
	if (fits_direct(&u->files[io->target], io))
		start(u, io);
	else
		start_bounced(u, io);
	if (io_uring_sq_ready(&u->ring) >= QUEUED_MAX) {
		ctrl_count(&u->counters->syscalls, 1);
		io_uring_submit_and_get_events(&u->ring);
	}
}

/* 1: io is finished. */
static int digest(struct uring *u, struct ctrl_io *io, int result)
{
	const struct ctrl_file *f = &u->files[io->target];

	if (result == -EINVAL && f->direct && !io->priv && io->bytes && !io->done_bytes) {
		/* Stricter than it said. */
		start_bounced(u, io);
		return 0;
	}
	if (!ctrl_io_result(io, result, f->direct ? f->offset_align : 1)) {
		ctrl_count(&u->counters->resumed, 1);
		start(u, io);
		return 0;
	}
	if (io->priv)
		end_bounced(u, io);
	return 1;
}

static uint32_t uring_reap(void *self, struct ctrl_io **done, uint32_t max)
{
	struct uring *u = self;
	struct io_uring_cqe *c;
	uint32_t n = 0, seen = 0;
	unsigned head;

	for (; u->finished && n < max; n++) {
		done[n] = u->finished;
		u->finished = u->finished->next;
		if (!u->finished)
			u->finished_end = &u->finished;
	}
	io_uring_for_each_cqe(&u->ring, head, c)
	{
		if (n == max)
			break;
		seen++;
		if (c->user_data == TAG_FUTEX)
			u->armed = 0;
		else if (c->user_data >= TAG_IO && digest(u, (struct ctrl_io *)(uintptr_t)c->user_data, c->res))
			done[n++] = (struct ctrl_io *)(uintptr_t)c->user_data;
	}
	io_uring_cq_advance(&u->ring, seen);
	u->inflight -= n;
	return n;
}

static void arm(struct uring *u, struct port_parker *parker)
{
	struct io_uring_sqe *s = u->armed ? NULL : next_sqe(u);

	if (!s)
		return;
	io_uring_prep_rw(OP_FUTEX_WAIT, s, (int)FUTEX2_U32_PRIVATE, &parker->asleep, 0, 1);
	s->addr3 = 0xffffffffu;
	s->user_data = TAG_FUTEX;
	u->armed = 1;
}

static void uring_wait(void *self, struct port_parker *parker, uint64_t deadline_ns)
{
	struct uring *u = self;
	uint64_t now_ns = port_now_ns(), ns = deadline_ns > now_ns ? deadline_ns - now_ns : deadline_ns ? 1 : 0;
	struct __kernel_timespec t;
	struct io_uring_cqe *c;
	uint32_t want = u->inflight / 4;

	if (u->finished)
		return;
	if (!u->futex_op && !u->inflight && !io_uring_sq_ready(&u->ring)) {
		port_park_wait(parker, deadline_ns);
		return;
	}
	/*
	 * A deep queue: a quarter of it may complete before the thread wakes, once for all; the disk has enough to do
	 * meanwhile, so doorbells can wait too and need no system call.
	 */
	want = u->rushed || want < 2 ? 1 : want > 16 ? 16 : want;
	if (want > 1) {
		port_park_cancel(parker);
		ns = ns && ns < GATHER_NS ? ns : GATHER_NS;
	} else if (u->futex_op) {
		arm(u, parker);
	} else {
		ns = ns && ns < SLICE_NS ? ns : SLICE_NS;
	}
	t.tv_sec = (long long)(ns / 1000000000u);
	t.tv_nsec = (long long)(ns % 1000000000u);
	ctrl_count(&u->counters->syscalls, 1);
	io_uring_submit_and_wait_timeout(&u->ring, &c, want, ns ? &t : NULL, NULL);
	u->rushed = want > 1 && !io_uring_cq_ready(&u->ring);
}

static void uring_cancel(void *self, struct ctrl_io *io)
{
	struct uring *u = self;
	struct io_uring_sqe *s;

	for (struct ctrl_io **p = &u->waiting; *p; p = &(*p)->next) {
		if (*p != io)
			continue;
		*p = io->next;
		if (!*p)
			u->waiting_end = p;
		finish(u, io, NVME_SC_ABORTED_SQ_DELETED);
		return;
	}
	s = next_sqe(u);
	if (!s)
		return;
	io_uring_prep_cancel(s, io, 0);
	s->user_data = TAG_CANCEL;
}

/* ---- memory ---- */

static int bufs_find(const struct uring *u, uint32_t n)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < BUFS_MAX; i++) {
		run = u->buf_used[i] ? 0 : run + 1;
		if (run == n)
			return (int)(i + 1 - n);
	}
	return -1;
}

static void bufs_clear(struct uring *u, uint32_t first, uint32_t n)
{
	struct iovec none = {NULL, 0};
	__u64 tag = 0;

	for (uint32_t i = 0; i < n; i++) {
		io_uring_register_buffers_update_tag(&u->ring, first + i, &none, &tag, 1);
		u->buf_used[first + i] = 0;
	}
}

static void warn_unregistered(uint64_t bytes, int rc)
{
	struct rlimit r = {0, 0};

	getrlimit(RLIMIT_MEMLOCK, &r);
	if (rc == -ENOMEM || rc == -EPERM)
		log_warn("memory of %llu bytes is not registered with io_uring: the memlock limit is %llu KiB; more "
		         "CPU per byte. "
		         "Mend: ulimit -l unlimited (or LimitMEMLOCK=infinity in the service's unit)",
		         (unsigned long long)bytes, (unsigned long long)r.rlim_cur >> 10);
	else
		log_warn("memory of %llu bytes is not registered with io_uring (%s); more CPU per byte",
		         (unsigned long long)bytes, err_name(rc));
}

static void uring_mem_map(void *self, void *va, uint64_t bytes, int32_t *buf)
{
	struct uring *u = self;
	uint64_t piece = 1ull << CTRL_BUF_SHIFT;
	uint32_t n = (uint32_t)((bytes + piece - 1) / piece);
	int first = u->bufs_fixed ? bufs_find(u, n) : -1, rc = -ENOSPC;

	*buf = -1;
	for (uint32_t i = 0; first >= 0 && i < n; i++) {
		uint64_t at = i * piece;
		struct iovec v = {(char *)va + at, (size_t)(bytes - at < piece ? bytes - at : piece)};
		__u64 tag = 0;

		rc = io_uring_register_buffers_update_tag(&u->ring, (unsigned)first + i, &v, &tag, 1);
		if (rc < 0) {
			bufs_clear(u, (uint32_t)first, i);
			first = -1;
			break;
		}
		u->buf_used[(uint32_t)first + i] = 1;
	}
	if (first < 0)
		warn_unregistered(bytes, u->bufs_fixed ? rc : -EOPNOTSUPP);
	*buf = first;
}

static void uring_mem_unmap(void *self, void *va, uint64_t bytes, int32_t buf)
{
	uint64_t piece = 1ull << CTRL_BUF_SHIFT;

	(void)va;
	if (buf >= 0)
		bufs_clear(self, (uint32_t)buf, (uint32_t)((bytes + piece - 1) / piece));
}

/* ---- open and close ---- */

static int ring_open(struct uring *u, uint32_t entries)
{
	static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	                                 IORING_SETUP_COOP_TASKRUN, 0};
	int rc = -EINVAL;

	fork_hold();
	for (uint32_t i = 0; i < 3 && rc == -EINVAL; i++) {
		struct io_uring_params p = {.flags = flags[i]};

		rc = io_uring_queue_init_params(entries, &u->ring, &p);
	}
	if (!rc) {
		fork_guard(u->ring.ring_fd);
		io_uring_ring_dontfork(&u->ring); /* its memory holds it, too */
	}
	fork_let();
	if (rc == -EPERM || rc == -EACCES)
		return err_set(
		    rc, "io_uring is forbidden here; allow it (sysctl kernel.io_uring_disabled=0, or the container's "
		               "seccomp profile)");
	if (rc == -ENOSYS)
		return err_set(rc, "this kernel has no io_uring; Linux 5.11 or newer is needed");
	if (rc == -ENOMEM)
		return err_set(
		    rc, "no memory for io_uring's rings: the memlock limit is too low; raise it (ulimit -l 8192)");
	return rc ? err_set(rc, "io_uring can't be set up: %s", err_name(rc)) : 0;
}

static void ring_probe(struct uring *u)
{
	struct io_uring_probe *p = io_uring_get_probe_ring(&u->ring);
	int fds[CTRL_NS_MAX];

	if (p) {
		u->vec_fixed =
		    io_uring_opcode_supported(p, OP_READV_FIXED) && io_uring_opcode_supported(p, OP_WRITEV_FIXED);
		u->futex_op = io_uring_opcode_supported(p, OP_FUTEX_WAIT);
		io_uring_free_probe(p);
	}
	for (uint32_t i = 0; i < u->n_files; i++)
		fds[i] = u->files[i].fd;
	u->files_fixed = io_uring_register_files(&u->ring, fds, u->n_files) == 0;
	u->bufs_fixed = io_uring_register_buffers_sparse(&u->ring, BUFS_MAX) == 0;
}

static void files_close(struct uring *u)
{
	for (uint32_t i = 0; i < u->n_files; i++)
		ctrl_file_close(&u->files[i]);
}

static int uring_open(void *arg, const struct ctrl_opts *opts, struct ctrl_counters *counters, struct ctrl_info *info,
                      void **self)
{
	struct uring *u = calloc(1, sizeof(*u));
	int rc = u ? 0 : err_set(-ENOMEM, "io_uring: no memory");

	(void)arg;
	*self = NULL;
	for (uint32_t i = 0; !rc && i < opts->n_targets; i++) {
		rc = ctrl_file_open(&opts->targets[i], opts->lba_bytes, 1, &u->files[i]);
		if (rc)
			break;
		info->ns[i] = u->files[i].ns;
		u->n_files++;
	}
	if (!rc)
		rc = ring_open(u, opts->depth_max + 16);
	if (rc) {
		if (u)
			files_close(u);
		free(u);
		return rc;
	}
	info->n_ns = u->n_files;
	info->volatile_cache = 1;
	u->counters = counters;
	u->mdts_bytes = info->mdts_bytes;
	u->finished_end = &u->finished;
	u->waiting_end = &u->waiting;
	ring_probe(u);
	*self = u;
	return 0;
}

static void uring_close(void *self)
{
	struct uring *u = self;

	/* The kernel frees a ring some time later; files and pages are let go now, so that a file system can be
	 * unmounted. */
	if (u->files_fixed)
		io_uring_unregister_files(&u->ring);
	if (u->bufs_fixed)
		io_uring_unregister_buffers(&u->ring);
	fork_hold();
	fork_unguard(u->ring.ring_fd);
	io_uring_queue_exit(&u->ring);
	fork_let();
	for (uint32_t i = 0; i < BOUNCES; i++)
		free(u->bounces[i].data);
	files_close(u);
	free(u);
}

const struct ctrl_io_ops ctrl_io_uring = {
	.model = "virt io_uring",
	.open = uring_open,
	.close = uring_close,
	.submit = uring_submit,
	.reap = uring_reap,
	.wait = uring_wait,
	.cancel = uring_cancel,
	.mem_map = uring_mem_map,
	.mem_unmap = uring_mem_unmap,
};
