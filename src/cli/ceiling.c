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
#include "cli/kvgen.h"
#include "cli/trace.h"

#define IO_BYTES (4u << 20)
#define THREADS 16u
#define MEASURE_NS 500000000ull

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
	int result = buffer ? 0 : -ENOMEM;

	if (buffer)
		kvgen_fill((uintptr_t)buffer, 0, buffer, IO_BYTES); /* not zeros: some disks are quicker with those */
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

void ceiling_open(struct ceiling *c, const char *beside, uint64_t bytes)
{
	char folder[4000];
	struct stat st;

	*c = (struct ceiling){.fd = -1, .bytes = bytes / IO_BYTES * IO_BYTES};
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
	double r, w;

	if (c->fd < 0)
		return;
	w = measure(c, 1, 0);
	r = measure(c, 0, 0);
	if (r == 0 || w == 0)
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
