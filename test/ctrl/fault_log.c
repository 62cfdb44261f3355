/* fault_log.c - what reached the files, in order, and what a power loss would leave of it. */
#include "ctrl/fault_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct log_event *append(struct fault_log *log)
{
	if (log->n == log->room) {
		uint64_t room = log->room ? 2 * log->room : 256;
		struct log_event *grown = realloc(log->events, room * sizeof(*grown));

		if (!grown)
			abort();
		log->events = grown;
		log->room = room;
	}
	memset(&log->events[log->n], 0, sizeof(log->events[0]));
	return &log->events[log->n++];
}

uint64_t fault_log_write(struct fault_io *f, uint32_t file, const struct ctrl_io *io, uint64_t n)
{
	struct fault_log *log = &f->log;
	struct log_event *e;
	char *data, *p;

	if (!log->bytes_max)
		return EVENT_NONE;
	if (log->bytes + n > log->bytes_max) {
		log->full = 1;
		return EVENT_NONE;
	}
	p = data = malloc((size_t)n);
	if (!data)
		abort();
	e = append(log);
	e->e = (struct fault_event){
	    .file = file, .offset_bytes = io->offset_bytes + io->done_bytes, .bytes = n, .data = data};
	e->done_at = EVENT_NONE;
	e->fua = io->fua;
	log->bytes += n;
	for (uint32_t i = 0; n; i++) {
		size_t part = io->rest[i].iov_len < n ? io->rest[i].iov_len : (size_t)n;

		memcpy(p, io->rest[i].iov_base, part);
		p += part;
		n -= part;
	}
	return log->n - 1;
}

void fault_log_flush(struct fault_io *f, uint32_t file)
{
	struct log_event *e;

	if (!f->log.bytes_max)
		return;
	e = append(&f->log);
	e->e = (struct fault_event){.flush = 1, .file = file};
}

void fault_log_done(struct fault_io *f, uint64_t event)
{
	if (event < f->log.n)
		f->log.events[event].done_at = f->log.n;
}

uint64_t fault_io_events(struct fault_io *f)
{
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = f->log.n;
	pthread_mutex_unlock(&f->lock);
	return n;
}

int fault_io_event(struct fault_io *f, uint64_t i, struct fault_event *out)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&f->lock);
	if (i < f->log.n) {
		*out = f->log.events[i].e;
		rc = 0;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* Marks the writes among the first n events that are not safe; returns how many. */
static uint32_t mark_unflushed(const struct fault_log *log, uint64_t n, uint8_t *unsafe)
{
	uint64_t last_flush[FAULT_FILES_MAX] = {0}; /* number + 1, looking backwards: the latest comes first */
	uint32_t count = 0;

	for (uint64_t i = n; i-- > 0;) {
		const struct log_event *e = &log->events[i];
		uint64_t flush = last_flush[e->e.file];

		if (e->e.flush) {
			/* The latest flush covers every write that an earlier one covers. */
			if (!flush)
				last_flush[e->e.file] = i + 1;
			continue;
		}
		unsafe[i] = !(flush && e->done_at < flush) && !(e->fua && e->done_at <= n);
		count += unsafe[i];
	}
	return count;
}

uint32_t fault_io_unflushed(struct fault_io *f, uint64_t n)
{
	uint32_t count;
	uint8_t *unsafe;

	pthread_mutex_lock(&f->lock);
	n = n < f->log.n ? n : f->log.n;
	unsafe = calloc((size_t)n + 1, 1);
	if (!unsafe)
		abort();
	count = mark_unflushed(&f->log, n, unsafe);
	free(unsafe);
	pthread_mutex_unlock(&f->lock);
	return count;
}

static int apply(const struct fault_event *e, uint64_t bytes, const char *image)
{
	int fd = open(image, O_WRONLY | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return -errno;
	if (pwrite(fd, e->data, (size_t)bytes, (off_t)e->offset_bytes) != (ssize_t)bytes)
		rc = -EIO;
	close(fd);
	return rc;
}

/* Clears unsafe for all but the last k, then for those that are kept: what stays marked is left out. */
static void choose(uint8_t *unsafe, uint64_t n, uint32_t k, uint32_t keep)
{
	uint32_t left = k;

	for (uint64_t i = n; i-- > 0;) {
		if (!unsafe[i])
			continue;
		if (!left || keep >> (left - 1) & 1)
			unsafe[i] = 0;
		left -= left > 0;
	}
}

int fault_io_replay(struct fault_io *f, uint64_t n, uint32_t k, uint32_t keep, uint64_t torn, const char *const *images,
                    uint32_t n_images)
{
	uint64_t newest = EVENT_NONE;
	uint32_t count;
	uint8_t *unsafe;
	int rc = 0;

	if (f->log.full)
		return -ENOSPC;
	if (k > 32 || f->n_files > n_images || n > f->log.n)
		return -EINVAL;
	unsafe = calloc((size_t)n + 1, 1);
	if (!unsafe)
		abort();
	count = mark_unflushed(&f->log, n, unsafe);
	choose(unsafe, n, k < count ? k : count, keep);
	for (uint64_t i = 0; i < n; i++)
		if (!f->log.events[i].e.flush && !unsafe[i])
			newest = i;
	for (uint64_t i = 0; i < n && !rc; i++) {
		const struct fault_event *e = &f->log.events[i].e;

		if (!e->flush && !unsafe[i])
			rc = apply(e, i == newest && torn && torn < e->bytes ? torn : e->bytes, images[e->file]);
	}
	free(unsafe);
	return rc;
}

void fault_io_log_reset(struct fault_io *f)
{
	pthread_mutex_lock(&f->lock);
	for (uint64_t i = 0; i < f->log.n; i++)
		free((void *)(uintptr_t)f->log.events[i].e.data);
	f->log.n = 0;
	f->log.bytes = 0;
	f->log.full = 0;
	pthread_mutex_unlock(&f->lock);
}

int fault_io_copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600),
	    rc = 0;
	static _Thread_local char block[1 << 16];
	struct stat st;

	if (in < 0 || out < 0 || fstat(in, &st) < 0 || ftruncate(out, st.st_size) < 0)
		rc = -errno;
	for (off_t at = 0; !rc && at < st.st_size;) {
		off_t data = lseek(in, at, SEEK_DATA), end = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);

		if (data < 0)
			break; /* only a hole is left */
		for (at = data; !rc && at < end;) {
			ssize_t n =
			    pread(in, block, end - at < (off_t)sizeof(block) ? (size_t)(end - at) : sizeof(block), at);

			if (n <= 0 || pwrite(out, block, (size_t)n, at) != n)
				rc = n < 0 ? -errno : -EIO;
			at += n;
		}
	}
	if (in >= 0)
		close(in);
	if (out >= 0)
		close(out);
	return rc;
}
