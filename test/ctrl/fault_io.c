/* fault_io.c - rules, and the backend that obeys them. The log is in fault_log.c. */
#include "ctrl/fault_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REORDER_MAX_NS 5000000u
#define SLICE_NS 1000000u

/* One command that was carried out and waits to be given back. */
struct pending {
	struct ctrl_io *io;
	uint64_t due_ns;
	uint64_t behind;      /* REORDER: completions that must come first */
	enum fault_kind held; /* HANG, STUCK, STOP: never, unless ended */
	uint64_t event;       /* its write in the log; EVENT_NONE */
};

/* One open controller. */
struct instance {
	struct fault_io *f;
	struct ctrl_counters *counters;
	struct ctrl_file files[CTRL_NS_MAX];
	uint32_t file_number[CTRL_NS_MAX];
	uint32_t n_files, n_pending;
	struct pending *pending;
	uint64_t releases; /* seen */
};

struct fault_io *fault_io_new(uint64_t log_bytes_max)
{
	struct fault_io *f = calloc(1, sizeof(*f));

	if (!f)
		abort();
	pthread_mutex_init(&f->lock, NULL);
	f->log.bytes_max = log_bytes_max;
	return f;
}

void fault_io_free(struct fault_io *f)
{
	fault_io_log_reset(f);
	free(f->log.events);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

int fault_io_rule(struct fault_io *f, const struct fault_rule *rule)
{
	int rc = -ENOSPC;

	pthread_mutex_lock(&f->lock);
	if (f->n_rules < FAULT_RULES_MAX) {
		f->rules[f->n_rules] = *rule;
		f->seen[f->n_rules++] = 0;
		rc = 0;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

void fault_io_clear(struct fault_io *f)
{
	pthread_mutex_lock(&f->lock);
	f->n_rules = 0;
	f->struck = 0;
	pthread_mutex_unlock(&f->lock);
}

void fault_io_release(struct fault_io *f)
{
	pthread_mutex_lock(&f->lock);
	f->releases++;
	pthread_mutex_unlock(&f->lock);
}

uint64_t fault_io_count(struct fault_io *f, uint32_t ops)
{
	uint64_t n = 0;

	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < 3; i++)
		n += ops >> i & 1 ? f->count[i] : 0;
	pthread_mutex_unlock(&f->lock);
	return n;
}

int fault_io_struck(struct fault_io *f)
{
	int struck;

	pthread_mutex_lock(&f->lock);
	struck = f->struck != 0;
	pthread_mutex_unlock(&f->lock);
	return struck;
}

void fault_io_set_align(struct fault_io *f, uint32_t mem_align_bytes)
{
	pthread_mutex_lock(&f->lock);
	f->mem_align_bytes = mem_align_bytes;
	pthread_mutex_unlock(&f->lock);
}

/* ---- rules ---- */

static uint32_t op_index(const struct ctrl_io *io)
{
	return io->opcode == NVME_CMD_READ ? 0 : io->opcode == NVME_CMD_WRITE ? 1 : 2;
}

/* The rule that strikes this I/O; kind 0: none. Under the lock. */
static struct fault_rule strike(struct fault_io *f, const struct ctrl_io *io)
{
	struct fault_rule none = {0}, found = {0};
	uint32_t op = 1u << op_index(io);
	uint64_t at = io->offset_bytes + io->done_bytes;

	f->count[op_index(io)]++;
	if (f->struck) {
		none.kind = f->struck;
		return none;
	}
	for (uint32_t i = 0; i < f->n_rules; i++) {
		const struct fault_rule *r = &f->rules[i];
		uint64_t nth = r->nth ? r->nth : 1, count = r->count ? r->count : 1;

		if ((r->ops && !(r->ops & op)) || (r->offset_to && (at < r->offset_from || at >= r->offset_to)))
			continue;
		f->seen[i]++;
		if (!found.kind && f->seen[i] >= nth && f->seen[i] - nth < count)
			found = *r;
	}
	if (found.kind == FAULT_STOP || found.kind == FAULT_DEAD)
		f->struck = found.kind;
	if (found.kind == FAULT_TORN)
		f->struck = FAULT_DEAD;
	return found;
}

/* ---- one I/O ---- */

/* Moves up to max bytes of the rest. Bytes or -errno. */
static int64_t move(struct instance *s, struct ctrl_io *io, uint64_t max)
{
	int64_t total = 0;
	int fd = s->files[io->target].fd;

	for (uint32_t i = 0; i < io->n_rest && max; i++) {
		size_t n = io->rest[i].iov_len < max ? io->rest[i].iov_len : (size_t)max;
		off_t at = (off_t)(io->offset_bytes + io->done_bytes) + total;
		ssize_t got = io->opcode == NVME_CMD_READ ? pread(fd, io->rest[i].iov_base, n, at)
		                                          : pwrite(fd, io->rest[i].iov_base, n, at);

		if (got < 0)
			return total ? total : -errno;
		total += got;
		max -= (uint64_t)got;
		if ((size_t)got < n)
			break;
	}
	return total;
}

static void flip(struct ctrl_io *io, uint64_t bit)
{
	uint64_t byte = bit / 8;

	for (uint32_t i = 0; i < io->n_rest; i++) {
		if (byte < io->rest[i].iov_len) {
			((uint8_t *)io->rest[i].iov_base)[byte] ^= (uint8_t)(1u << bit % 8);
			return;
		}
		byte -= io->rest[i].iov_len;
	}
}

/* Carries out one attempt under rule r, logs it. Result as of read(2). Under the lock. */
static int64_t attempt(struct instance *s, struct ctrl_io *io, const struct fault_rule *r, uint64_t *event)
{
	uint64_t max = UINT64_MAX;
	int64_t n;

	switch (r->kind) {
	case FAULT_ERROR:
		return -(int64_t)r->value;
	case FAULT_DEAD:
	case FAULT_STOP:
		return -EIO;
	case FAULT_SHORT:
	case FAULT_TORN:
	case FAULT_KILL:
		max = r->value;
		break;
	default:
		break;
	}
	if (io->opcode == NVME_CMD_FLUSH) {
		fault_log_flush(s->f, s->file_number[io->target]);
		n = 0;
	} else {
		n = move(s, io, max);
		if (io->opcode == NVME_CMD_WRITE && n > 0)
			*event = fault_log_write(s->f, s->file_number[io->target], io, (uint64_t)n);
	}
	if (r->kind == FAULT_KILL) {
		kill(getpid(), SIGKILL);
		pause();
	}
	if (r->kind == FAULT_FLIP && n > 0 && io->opcode == NVME_CMD_READ)
		flip(io, r->value % ((uint64_t)n * 8));
	return r->kind == FAULT_TORN ? -EIO : n;
}

static void fault_submit(void *self, struct ctrl_io *io)
{
	struct instance *s = self;
	struct pending *p = &s->pending[s->n_pending++];
	int again;

	*p = (struct pending){.io = io, .event = EVENT_NONE};
	ctrl_io_begin(io);
	pthread_mutex_lock(&s->f->lock);
	do {
		struct fault_rule r = strike(s->f, io);
		int64_t n = attempt(s, io, &r, &p->event);

		again = !ctrl_io_result(io, n, 1);
		if (again)
			ctrl_count(&s->counters->resumed, 1);
		if (r.kind == FAULT_DELAY)
			p->due_ns = port_now_ns() + r.value;
		if (r.kind == FAULT_REORDER) {
			p->due_ns = port_now_ns() + REORDER_MAX_NS;
			p->behind = r.value;
		}
		if (r.kind == FAULT_HANG || r.kind == FAULT_STUCK || r.kind == FAULT_STOP) {
			p->held = r.kind;
			p->due_ns = UINT64_MAX;
			again = 0;
		}
	} while (again);
	pthread_mutex_unlock(&s->f->lock);
}

/* ---- giving back ---- */

/* Those that nothing keeps any more: plain ones, or (late) REORDER after them, be its time up or not. */
static uint32_t give_back(struct instance *s, struct ctrl_io **done, uint32_t n, uint32_t max, int late)
{
	uint64_t now_ns = port_now_ns();
	uint32_t kept = 0, before = n;

	for (uint32_t i = 0; i < s->n_pending; i++) {
		struct pending *p = &s->pending[i];
		int comes = late ? p->behind && (p->behind <= before || p->due_ns <= now_ns)
		                 : !p->behind && p->due_ns <= now_ns;

		if (comes && n < max) {
			fault_log_done(s->f, p->event);
			done[n++] = p->io;
			continue;
		}
		if (late && p->behind)
			p->behind = p->behind > before ? p->behind - before : 1;
		s->pending[kept++] = *p;
	}
	s->n_pending = kept;
	return n;
}

static uint32_t fault_reap(void *self, struct ctrl_io **done, uint32_t max)
{
	struct instance *s = self;
	uint32_t n;

	pthread_mutex_lock(&s->f->lock);
	for (uint32_t i = 0; i < s->n_pending && s->releases != s->f->releases; i++)
		if (s->pending[i].held)
			s->pending[i].due_ns = 0;
	s->releases = s->f->releases;
	n = give_back(s, done, 0, max, 0);
	n = give_back(s, done, n, max, 1);
	pthread_mutex_unlock(&s->f->lock);
	return n;
}

static void fault_wait(void *self, struct port_parker *parker, uint64_t deadline_ns)
{
	struct instance *s = self;
	uint64_t until_ns = deadline_ns ? deadline_ns : UINT64_MAX;

	for (uint32_t i = 0; i < s->n_pending; i++)
		until_ns = s->pending[i].due_ns < until_ns ? s->pending[i].due_ns : until_ns;
	/* A release comes from another thread and wakes nobody. */
	if (s->n_pending && until_ns > port_now_ns() + SLICE_NS)
		until_ns = port_now_ns() + SLICE_NS;
	port_park_wait(parker, until_ns == UINT64_MAX ? 0 : until_ns ? until_ns : 1);
}

static void fault_cancel(void *self, struct ctrl_io *io)
{
	struct instance *s = self;

	for (uint32_t i = 0; i < s->n_pending; i++) {
		struct pending *p = &s->pending[i];

		if (p->io != io || !p->held || p->held == FAULT_STUCK)
			continue;
		p->due_ns = 0;
		io->status = NVME_SC_ABORTED_SQ_DELETED;
	}
}

/* ---- open and close ---- */

/* Number of a file in the log: by inode. */
static uint32_t number_file(struct fault_io *f, int fd)
{
	struct stat st;
	uint32_t i;

	if (fstat(fd, &st) < 0)
		abort();
	pthread_mutex_lock(&f->lock);
	for (i = 0; i < f->n_files; i++)
		if (f->dev[i] == st.st_dev && f->ino[i] == st.st_ino)
			break;
	if (i == f->n_files) {
		if (i == FAULT_FILES_MAX)
			abort();
		f->dev[i] = st.st_dev;
		f->ino[i] = st.st_ino;
		f->n_files++;
	}
	pthread_mutex_unlock(&f->lock);
	return i;
}

static void fault_close(void *self)
{
	struct instance *s = self;

	for (uint32_t i = 0; i < s->n_files; i++)
		ctrl_file_close(&s->files[i]);
	free(s->pending);
	free(s);
}

static int fault_open(void *arg, const struct ctrl_opts *opts, struct ctrl_counters *counters, struct ctrl_info *info,
                      void **self)
{
	struct fault_io *f = arg;
	struct instance *s = calloc(1, sizeof(*s));
	int rc = 0;

	*self = NULL;
	if (!s)
		abort();
	s->pending = calloc(opts->depth_max, sizeof(*s->pending));
	if (!s->pending)
		abort();
	s->f = f;
	s->releases = f->releases;
	s->counters = counters;
	for (uint32_t i = 0; i < opts->n_targets && !rc; i++) {
		rc = ctrl_file_open(&opts->targets[i], opts->lba_bytes, 0, &s->files[i]);
		if (rc)
			break;
		s->n_files++;
		s->file_number[i] = number_file(f, s->files[i].fd);
		info->ns[i] = s->files[i].ns;
		info->ns[i].mem_align_bytes = f->mem_align_bytes ? f->mem_align_bytes : 4;
	}
	if (rc) {
		fault_close(s);
		return rc;
	}
	info->n_ns = s->n_files;
	info->volatile_cache = 1;
	*self = s;
	return 0;
}

const struct ctrl_io_ops fault_io_ops = {
	.model = "virt with faults",
	.open = fault_open,
	.close = fault_close,
	.submit = fault_submit,
	.reap = fault_reap,
	.wait = fault_wait,
	.cancel = fault_cancel,
};
