/*
 * tracefile.c - lines of a file, plain or xz-compressed, with bounded memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/trace.h"

#define READ_BYTES 65536u
#define XZ_MEMORY_MAX (128ull << 20)

struct reader {
	int fd;
	int is_xz, ended;
	lzma_stream xz;
	uint8_t in[READ_BYTES];
	char *line; /* TRACE_LINE_BYTES_MAX + 1 */
	size_t line_bytes;
};

static int next_input(struct reader *r, size_t *bytes)
{
	ssize_t n;

	do {
		n = read(r->fd, r->in, sizeof(r->in));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	*bytes = (size_t)n;
	return 0;
}

/* Takes decoded bytes; hands whole lines to the trace. */
static int take(struct reader *r, struct trace *t, const char *set, const char *bytes, size_t n)
{
	int result = 0;

	while (n && !result) {
		const char *end = memchr(bytes, '\n', n);
		size_t part = end ? (size_t)(end - bytes) : n;
		size_t fits = TRACE_LINE_BYTES_MAX + 1 - r->line_bytes;

		memcpy(r->line + r->line_bytes, bytes, part < fits ? part : fits);
		r->line_bytes += part < fits ? part : fits;
		if (end || r->line_bytes > TRACE_LINE_BYTES_MAX) {
			result = trace_add_line(t, r->line, r->line_bytes, set);
			r->line_bytes = 0;
		}
		bytes += part + (end != NULL);
		n -= part + (end != NULL);
	}
	return result;
}

static int xz_fault(struct trace *t, lzma_ret ret)
{
	snprintf(t->why, sizeof(t->why), "%s",
	         ret == LZMA_MEMLIMIT_ERROR ? "the xz file needs more than 128 MiB of memory to unpack"
	         : ret == LZMA_BUF_ERROR    ? "the xz file ends too early"
	                                    : "the xz file is damaged");
	return -EBADMSG;
}

static int take_xz(struct reader *r, struct trace *t, const char *set, size_t n)
{
	uint8_t out[READ_BYTES];
	int result = 0;

	r->xz.next_in = r->in;
	r->xz.avail_in = n;
	while (!result && !r->ended) {
		lzma_ret ret;

		r->xz.next_out = out;
		r->xz.avail_out = sizeof(out);
		ret = lzma_code(&r->xz, n ? LZMA_RUN : LZMA_FINISH);
		if (ret != LZMA_OK && ret != LZMA_STREAM_END && !(ret == LZMA_BUF_ERROR && n))
			return xz_fault(t, ret);
		r->ended = ret == LZMA_STREAM_END;
		result = take(r, t, set, (const char *)out, sizeof(out) - r->xz.avail_out);
		if (r->xz.avail_out)
			break; /* it wants more input */
	}
	return result;
}

static int read_all(struct reader *r, struct trace *t, const char *set)
{
	int first = 1, result;
	size_t n = 0;

	do {
		result = next_input(r, &n);
		if (result)
			return result;
		if (first && n >= 6 &&
		    memcmp(r->in,
		           "\xFD"
		           "7zXZ",
		           6) == 0) {
			r->is_xz = 1;
			if (lzma_stream_decoder(&r->xz, XZ_MEMORY_MAX, LZMA_CONCATENATED) != LZMA_OK)
				return -ENOMEM;
		}
		first = 0;
		result = r->is_xz ? take_xz(r, t, set, n) : take(r, t, set, (const char *)r->in, n);
	} while (!result && n);
	if (!result && r->is_xz && !r->ended)
		return xz_fault(t, LZMA_BUF_ERROR);
	if (!result && r->line_bytes) /* the last line has no newline */
		result = trace_add_line(t, r->line, r->line_bytes, set);
	return result;
}

int trace_read(struct trace *t, const char *path, const char *set)
{
	struct reader *r = calloc(1, sizeof(*r));
	int result = -ENOMEM;

	t->why[0] = 0;
	if (!r)
		return -ENOMEM;
	r->xz = (lzma_stream)LZMA_STREAM_INIT;
	r->line = malloc(TRACE_LINE_BYTES_MAX + 1);
	r->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (r->fd < 0)
		result = -errno;
	else if (r->line)
		result = read_all(r, t, set);
	if (r->fd >= 0)
		close(r->fd);
	lzma_end(&r->xz);
	free(r->line);
	free(r);
	if (result && !t->why[0])
		snprintf(t->why, sizeof(t->why), "%s", strerror(-result));
	return result;
}
