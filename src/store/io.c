/* io.c - the room's transfers over the media table, with a message for what fails. */
#include "store/state.h"

#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *store_io_alloc(size_t bytes)
{
	size_t whole = (bytes + STORE_MEDIA_ALIGN - 1) / STORE_MEDIA_ALIGN * STORE_MEDIA_ALIGN;

	return aligned_alloc(STORE_MEDIA_ALIGN, whole ? whole : STORE_MEDIA_ALIGN);
}

int store_io_many(const struct store_media *m, struct store_io *ios, uint32_t n)
{
	int r = m->io(m->self, ios, n);

	if (!r)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (ios[i].result)
			return err_set(ios[i].result, "device %u: %s of %llu bytes at byte %llu failed: %s", ios[i].dev,
			               ios[i].write ? "write" : "read", (unsigned long long)ios[i].bytes,
			               (unsigned long long)ios[i].offset_bytes, err_name(ios[i].result));
	return err_set(r, "the pool's metadata could not be read or written: %s", err_name(r));
}

int store_io_read(const struct store_media *m, uint32_t dev, uint64_t offset, void *data, uint64_t bytes)
{
	struct store_io io = {.dev = dev, .offset_bytes = offset, .bytes = bytes, .data = data};

	if (offset > m->bytes[dev] || bytes > m->bytes[dev] - offset)
		return err_set(-ENODEV,
		               "device %u has %llu bytes, metadata is expected up to byte %llu: is it truncated?", dev,
		               (unsigned long long)m->bytes[dev], (unsigned long long)(offset + bytes));
	return store_io_many(m, &io, 1);
}

int store_io_read_around(const struct store_media *m, uint32_t dev, uint64_t offset, void *data, uint64_t bytes,
                         uint32_t *unread)
{
	int r = store_io_read(m, dev, offset, data, bytes);

	*unread = 0;
	if (r <= 0 && r != -EIO)
		return r;
	for (uint64_t at = 0; at < bytes; at += STORE_MEDIA_ALIGN) {
		void *page = (uint8_t *)data + at;

		r = store_io_read(m, dev, offset + at, page, STORE_MEDIA_ALIGN);
		if (r < 0 && r != -EIO)
			return r;
		if (!r)
			continue;
		log_warn("%s", err_text());
		memset(page, 0, STORE_MEDIA_ALIGN);
		++*unread;
	}
	return 0;
}

int store_io_write(const struct store_media *m, uint32_t dev, uint64_t offset, const void *data, uint64_t bytes)
{
	/* A write only reads the buffer. */
	struct store_io io = {
	    .dev = dev, .write = 1, .offset_bytes = offset, .bytes = bytes, .data = (void *)(uintptr_t)data};

	if (offset > m->bytes[dev] || bytes > m->bytes[dev] - offset)
		return err_set(-ENODEV, "device %u has %llu bytes, a write up to byte %llu is wanted: is it truncated?",
		               dev, (unsigned long long)m->bytes[dev], (unsigned long long)(offset + bytes));
	return store_io_many(m, &io, 1);
}

int store_io_flush(const struct store_media *m, uint32_t dev)
{
	int r = m->flush(m->self, dev);

	return r ? err_set(r, "device %u: flush failed: %s", dev, err_name(r)) : 0;
}

void store_progress(struct store *s, const char *what, uint64_t done, uint64_t total)
{
	uint64_t now;

	if (!s->progress)
		return;
	now = s->now_ns(s->now_arg);
	if (done < total && now - s->progress_ns < 250000000u)
		return;
	s->progress_ns = now;
	s->progress(s->progress_arg, what, done, total);
}
