#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/ceiling.h"
#include "cli/cli.h"
#include "cli/trace.h"
#include "tutti/gio_uring.h"

#define IO_BYTES (4u << 20)
#define THREADS 16u
#define MEASURE_NS 500000000ull
#define DRIVE_IO_BYTES (1u << 20)
#define DRIVE_BATCH 8u /* reads of one IOCB */
#define DRIVE_BATCHES 4u
#define DRIVE_WAIT_NS 10000000000ull

struct meter {
	const struct ceiling *c;
	int writing, in_order; /* in_order: once over the whole file, and then stop */
	uint64_t until_ns;
	atomic_uint_least64_t next, done;
	atomic_int result;
};

static int one_io(const struct meter *m, uint8_t *buffer, uint64_t offset)
{
	size_t done = 0;

	while (done < IO_BYTES) {
		ssize_t n = m->writing ? pwrite(m->c->fd, buffer + done, IO_BYTES - done, (off_t)(offset + done))
		                       : pread(m->c->fd, buffer + done, IO_BYTES - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

static void *loop(void *arg)
{
	struct meter *m = arg;
	uint64_t ios = m->c->bytes / IO_BYTES;
	uint8_t *buffer = aligned_alloc(4096, IO_BYTES);
	uint64_t random = (uintptr_t)buffer;
	int result = buffer ? 0 : -ENOMEM;

	/* Not zeros: some disks are quicker with those. */
	for (size_t i = 0; buffer && i < IO_BYTES; i += sizeof(random)) {
		uint64_t word = trace_random(&random);

		memcpy(buffer + i, &word, sizeof(word));
	}
	while (!result && !atomic_load(&m->result)) {
		uint64_t i = atomic_fetch_add(&m->next, 1);

		if (m->in_order ? i >= ios : cli_now_ns() >= m->until_ns)
			break;
		/* Every place once in a round, scattered, so that no cache below finds an order. */
		result = one_io(m, buffer, (m->in_order ? i : trace_mix(i) % ios) * IO_BYTES);
		if (!result)
			atomic_fetch_add(&m->done, IO_BYTES);
	}
	if (result)
		atomic_store(&m->result, result);
	free(buffer);
	return NULL;
}

/* Bytes a second, or 0 with why in c->how. */
static double measure(struct ceiling *c, int writing, int in_order)
{
	struct meter m = {.c = c, .writing = writing, .in_order = in_order, .until_ns = cli_now_ns() + MEASURE_NS};
	uint64_t start = cli_now_ns();
	pthread_t threads[THREADS];
	unsigned n = 0;

	while (n < THREADS && pthread_create(&threads[n], NULL, loop, &m) == 0)
		n++;
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (!n || atomic_load(&m.result)) {
		snprintf(c->how, sizeof(c->how), "not measured: %s",
		         n ? strerror(-atomic_load(&m.result)) : "no thread could be started");
		return 0;
	}
	return (double)atomic_load(&m.done) * 1e9 / (double)(cli_now_ns() - start);
}

/* ---- a whole drive ---- */

static int drive_batch(struct ceiling *c, uint32_t slot, uint64_t *at, uint32_t *id)
{
	uint64_t ios = c->bytes / DRIVE_IO_BYTES;
	struct gio_ioctx *x;
	int result = gio_get_iocb(c->gio, DRIVE_BATCH, NULL, id, &x);

	for (uint32_t i = 0; i < DRIVE_BATCH && !result; i++)
		x[i] = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)c->memory +
		                                 (uint64_t)(slot * DRIVE_BATCH + i) * DRIVE_IO_BYTES,
		                          .offset_bytes = trace_mix((*at)++) % ios * DRIVE_IO_BYTES,
		                          .bytes = DRIVE_IO_BYTES,
		                          .op = GIO_READ};
	return result ? result : gio_issue_io(c->gio, id, 1, 0);
}

/* Reads of half a second: DRIVE_BATCHES are always under way. Bytes a second, or 0 with why in c->how. */
static double measure_drive(struct ceiling *c)
{
	uint64_t start = cli_now_ns(), at = 0, done = 0;
	uint32_t id[DRIVE_BATCHES], n = 0;
	struct gio_result r = {0};
	int result = 0;

	for (; n < DRIVE_BATCHES && !result; n++)
		result = drive_batch(c, n, &at, &id[n]);
	for (uint32_t i = 0; !result; i = (i + 1) % DRIVE_BATCHES) {
		result = gio_wait_cqe(c->gio, id[i], cli_now_ns() + DRIVE_WAIT_NS, &r);
		result = result ? result : r.status;
		gio_put_iocb(c->gio, id[i]);
		done += (uint64_t)DRIVE_BATCH * DRIVE_IO_BYTES;
		if (!result && cli_now_ns() - start < MEASURE_NS)
			result = drive_batch(c, i, &at, &id[i]);
		else if (--n == 0)
			break;
	}
	if (!result)
		return (double)done * 1e9 / (double)(cli_now_ns() - start);
	snprintf(c->how, sizeof(c->how), "not measured: %s", tutti_strerror(result));
	return 0;
}

/* Open only while it measures: a drive that is open can't be shared with a child. */
static int open_drive(struct ceiling *c)
{
	const char *path = c->path;
	struct gio_opts o = GIO_OPTS_INIT;
	struct gio_info info;
	int result;

	o.paths = &path;
	o.n_paths = 1;
	o.read_only = 1;
	result = gio_init_queue(&o, &c->gio);
	if (!result)
		result = gio_get_info(c->gio, &info);
	c->memory = result ? NULL : aligned_alloc(4096, DRIVE_BATCHES * DRIVE_BATCH * DRIVE_IO_BYTES);
	if (!result)
		result =
		    c->memory ? gio_register(c->gio, c->memory, DRIVE_BATCHES * DRIVE_BATCH * DRIVE_IO_BYTES) : -ENOMEM;
	if (result)
		snprintf(c->how, sizeof(c->how), "not measured: %.200s", tutti_error_message());
	else
		c->bytes = info.capacity_bytes[0];
	return result;
}

static void close_drive(struct ceiling *c)
{
	if (c->gio && gio_close(c->gio))
		return; /* it may still write there */
	c->gio = NULL;
	free(c->memory);
	c->memory = NULL;
}

/* ---- */

void ceiling_open(struct ceiling *c, const char *beside, uint64_t bytes)
{
	char folder[4000];
	struct stat st;

	*c = (struct ceiling){.fd = -1, .bytes = bytes / IO_BYTES * IO_BYTES};
	if (strncmp(beside, "nvme:", 5) == 0) {
		c->drive = 1;
		snprintf(c->path, sizeof(c->path), "%s", beside);
		snprintf(c->how, sizeof(c->how),
		         "reads of %s, %u under way, scattered over the first of the pool's drives, through a queue of "
		         "its own, half a second, best of some runs; writes are not measured: all of it is the pool's",
		         cli_size(DRIVE_IO_BYTES), DRIVE_BATCHES * DRIVE_BATCH);
		return;
	}
	snprintf(folder, sizeof(folder), "%s", beside);
	if (stat(beside, &st) == 0 && S_ISBLK(st.st_mode)) {
		snprintf(c->how, sizeof(c->how), "not measured: the pool is a whole block device");
		return;
	}
	snprintf(c->path, sizeof(c->path), "%s/.tutti-ceiling-%d", dirname(folder), (int)getpid());
	c->fd = open(c->path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
	if (c->fd < 0) {
		snprintf(c->how, sizeof(c->how), "not measured: no O_DIRECT file beside the pool (%s)",
		         strerror(errno));
		unlink(c->path); /* some file systems make the file and then refuse the flag */
		return;
	}
	unlink(c->path); /* it goes with this process, however that ends */
	if (posix_fallocate(c->fd, 0, (off_t)c->bytes) || measure(c, 1, 1) == 0) {
		snprintf(c->how, sizeof(c->how), "not measured: no room for a file of %s beside the pool",
		         cli_size(c->bytes));
		ceiling_close(c);
		return;
	}
	snprintf(c->how, sizeof(c->how),
	         "%u threads of pread/pwrite, O_DIRECT, %s each, scattered over a file of %s that was written before, "
	         "half a second each way, best of some runs before, between and after",
	         THREADS, cli_size(IO_BYTES), cli_size(c->bytes));
}

static void note(double now, int first, double *best, double *worst)
{
	if (first || now > *best)
		*best = now;
	if (first || now < *worst)
		*worst = now;
}

void ceiling_measure(struct ceiling *c)
{
	double r, w = 0;

	if (c->fd < 0 && !c->drive)
		return;
	if (c->drive) {
		r = open_drive(c) ? 0 : measure_drive(c);
		close_drive(c);
	} else {
		w = measure(c, 1, 0);
		r = measure(c, 0, 0);
	}
	if (r == 0 || (w == 0 && !c->drive))
		return;
	note(r, c->runs == 0, &c->read_best, &c->read_worst);
	note(w, c->runs == 0, &c->write_best, &c->write_worst);
	c->runs++;
}

void ceiling_close(struct ceiling *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}
