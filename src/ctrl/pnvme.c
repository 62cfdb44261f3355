/*
 * pnvme.c - one function behind the kernel module: registers and queue memory by mmap, memory by ioctl.
 *
 * Memory is mapped in pieces of at most 1 GiB, so that no call pins for long; a piece is an id of the module's. Where
 * functions share addresses (no translating IOMMU), memory is mapped for each of them, though the answers are the
 * same: the kernel lets go of a dead process's functions one after the other, and pages must outlive the last that
 * knows them.
 */
#include "ctrl/pnvme.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "map/map.h"
#include "wire/kmod.h"

struct piece {
	uint64_t va, bytes;
	uint32_t id, n_runs;
};

struct pnvme_fn {
	char name[32];
	int fd;
	uint8_t *bar0;
	uint64_t bar0_bytes;
	int shares; /* addresses, with all others that do */
	struct piece *pieces;
	uint32_t n_pieces, room;
	struct pnvme_fn *next;
};

/* All functions of this process, and their pieces. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pnvme_fn *functions;

/* ---- pieces ---- */

static int piece_add(struct pnvme_fn *p, uint64_t va, const struct tutti_nvme_map *m)
{
	if (p->n_pieces == p->room) {
		uint32_t room = p->room ? 2 * p->room : 16;
		struct piece *grown = realloc(p->pieces, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		p->pieces = grown;
		p->room = room;
	}
	p->pieces[p->n_pieces++] = (struct piece){.va = va, .bytes = m->bytes, .id = m->id, .n_runs = m->runs};
	return 0;
}

/* All pieces in [va, va + bytes). */
static int pieces_drop(struct pnvme_fn *p, uint64_t va, uint64_t bytes)
{
	int rc = 0;

	for (uint32_t i = p->n_pieces; i-- > 0;) {
		const struct piece *e = &p->pieces[i];

		if (e->va < va || e->va >= va + bytes)
			continue;
		/* ENODEV: the function is gone, and what it could reach went before it. */
		if (ioctl(p->fd, TUTTI_NVME_UNMAP, e->id) && errno != ENODEV)
			rc = -errno;
		else
			p->pieces[i] = p->pieces[--p->n_pieces];
	}
	return rc;
}

static int map_one(struct pnvme_fn *p, uint64_t va, struct tutti_nvme_map *m)
{
	int rc = ioctl(p->fd, TUTTI_NVME_MAP, m) ? -errno : 0;

	if (rc)
		return rc;
	rc = piece_add(p, va, m);
	if (rc)
		ioctl(p->fd, TUTTI_NVME_UNMAP, m->id);
	return rc;
}

/* Memory of an accelerator: its driver gives a dma-buf of exactly this range. */
static int map_accel(struct pnvme_fn *p, uint64_t va, uint64_t bytes)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_DMABUF};
	int rc = map_export((void *)(uintptr_t)va, bytes, &m.fd);

	if (rc)
		return rc;
	rc = map_one(p, va, &m);
	close(m.fd);
	if (rc)
		return err_set(rc, "%s: accelerator memory at %#llx can't be mapped for the drive: %s%s", p->name,
		               (unsigned long long)va, err_name(rc),
		               rc == -EREMOTEIO
		                   ? "; its driver gave addresses that don't pass the IOMMU: boot with iommu=pt"
		                   : "");
	if (m.bytes != bytes) {
		pieces_drop(p, va, bytes);
		return err_set(-EPROTO, "%s: the dma-buf of %llu bytes of accelerator memory has %llu", p->name,
		               (unsigned long long)bytes, (unsigned long long)m.bytes);
	}
	return 0;
}

static int map_host(struct pnvme_fn *p, uint64_t va, uint64_t bytes)
{
	uint64_t done = 0;
	int rc = 0;

	while (done < bytes && !rc) {
		uint64_t n = bytes - done < TUTTI_NVME_MAP_BYTES_MAX ? bytes - done : TUTTI_NVME_MAP_BYTES_MAX;
		struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_USER, .va = va + done, .bytes = n};

		rc = map_one(p, va + done, &m);
		done += rc ? 0 : n;
	}
	if (rc)
		pieces_drop(p, va, done);
	return rc;
}

static int map_pieces(struct pnvme_fn *p, uint64_t va, uint64_t bytes)
{
	int rc = map_host(p, va, bytes), accel;

	if (rc == -EFAULT) { /* not the CPU's */
		accel = map_accel(p, va, bytes);
		if (accel != -ENOSYS && accel != -EFAULT)
			return accel;
	}
	if (rc == -ENOMEM)
		return err_set(rc,
		               "%s: memory at %#llx, %llu bytes, can't be pinned for the drive; is the memlock limit "
		               "(ulimit -l) that large?",
		               p->name, (unsigned long long)va, (unsigned long long)bytes);
	return rc ? err_set(rc, "%s: memory at %#llx, %llu bytes, can't be mapped for the drive: %s", p->name,
	                    (unsigned long long)va, (unsigned long long)bytes, err_name(rc))
	          : 0;
}

/* ---- runs ---- */

static int by_va(const void *a, const void *b)
{
	uint64_t x = ((const struct piece *)a)->va, y = ((const struct piece *)b)->va;

	return x < y ? -1 : x > y;
}

static int piece_runs(const struct pnvme_fn *p, const struct piece *e, struct nvme_run *out, uint64_t *bytes)
{
	struct tutti_nvme_run *runs = calloc(e->n_runs, sizeof(*runs));
	struct tutti_nvme_runs a = {.id = e->id, .n = e->n_runs, .runs = (uint64_t)(uintptr_t)runs};
	int rc = runs ? 0 : -ENOMEM;

	if (!rc && ioctl(p->fd, TUTTI_NVME_RUNS, &a))
		rc = -errno;
	for (uint32_t i = 0; i < e->n_runs && !rc; i++) {
		out[i] = (struct nvme_run){.bytes = runs[i].bytes, .dma = runs[i].addr};
		*bytes += runs[i].bytes;
	}
	free(runs);
	return rc;
}

/* All runs of [va, va + bytes), in its order; neighbours that continue each other become one. */
static int read_runs(struct pnvme_fn *p, uint64_t va, uint64_t bytes, struct nvme_run **runs, uint32_t *n)
{
	uint64_t total = 0, sum = 0;
	uint32_t at = 0, kept = 0;
	struct nvme_run *out;
	int rc = 0;

	qsort(p->pieces, p->n_pieces, sizeof(*p->pieces), by_va);
	for (uint32_t i = 0; i < p->n_pieces; i++)
		if (p->pieces[i].va >= va && p->pieces[i].va < va + bytes)
			total += p->pieces[i].n_runs;
	out = total && total < UINT32_MAX ? calloc(total, sizeof(*out)) : NULL;
	if (!out)
		return err_set(-ENOMEM, "%s: no memory for %llu runs of memory", p->name, (unsigned long long)total);
	for (uint32_t i = 0; i < p->n_pieces && !rc; i++)
		if (p->pieces[i].va >= va && p->pieces[i].va < va + bytes) {
			rc = piece_runs(p, &p->pieces[i], out + at, &sum);
			at += p->pieces[i].n_runs;
		}
	if (rc || sum != bytes) {
		free(out);
		return err_set(rc ? rc : -EPROTO, "%s: the module told %llu bytes of runs for %llu bytes: %s", p->name,
		               (unsigned long long)sum, (unsigned long long)bytes, err_name(rc ? rc : -EPROTO));
	}
	for (uint32_t i = 1; i < at; i++)
		if (out[kept].dma + out[kept].bytes == out[i].dma)
			out[kept].bytes += out[i].bytes;
		else
			out[++kept] = out[i];
	*runs = out;
	*n = kept + 1;
	return 0;
}

/* ---- the transport ---- */

static void drop_all(struct pnvme_fn *p, uint64_t va, uint64_t bytes)
{
	for (struct pnvme_fn *q = functions; q; q = q->next)
		if (q == p || (q->shares && p->shares))
			pieces_drop(q, va, bytes);
}

static int same_runs(const struct nvme_run *a, uint32_t n, struct pnvme_fn *q, uint64_t va, uint64_t bytes)
{
	struct nvme_run *b;
	uint32_t m;
	int rc = read_runs(q, va, bytes, &b, &m);

	if (rc)
		return rc;
	rc = m == n && !memcmp(a, b, n * sizeof(*a)) ? 0 : -EPROTO;
	free(b);
	return rc ? err_set(rc, "%s sees memory at other addresses than the pool's other drives do", q->name) : 0;
}

static int fn_map(void *self, void *memory, uint64_t bytes, struct nvme_run **runs, uint32_t *n)
{
	uint64_t va = (uint64_t)(uintptr_t)memory;
	struct pnvme_fn *p = self;
	int rc;

	pthread_mutex_lock(&lock);
	*runs = NULL;
	rc = map_pieces(p, va, bytes);
	if (!rc)
		rc = read_runs(p, va, bytes, runs, n);
	for (struct pnvme_fn *q = functions; q && !rc; q = q->next)
		if (q != p && q->shares && p->shares) {
			rc = map_pieces(q, va, bytes);
			if (!rc)
				rc = same_runs(*runs, *n, q, va, bytes);
		}
	if (rc) {
		drop_all(p, va, bytes);
		free(*runs);
		*runs = NULL;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static int fn_unmap(void *self, void *memory, uint64_t bytes, const struct nvme_run *runs, uint32_t n)
{
	uint64_t va = (uint64_t)(uintptr_t)memory;
	struct pnvme_fn *p = self;
	int rc = 0, one;

	(void)runs;
	(void)n;
	pthread_mutex_lock(&lock);
	for (struct pnvme_fn *q = functions; q; q = q->next)
		if (q == p || (q->shares && p->shares)) {
			one = pieces_drop(q, va, bytes);
			rc = one ? one : rc;
		}
	pthread_mutex_unlock(&lock);
	return rc ? err_set(rc, "%s: memory at %p, %llu bytes, can't be unmapped: %s", p->name, memory,
	                    (unsigned long long)bytes, err_name(rc))
	          : 0;
}

/* Queue memory is the module's: it stays one run, whatever the IOMMU does. Its id is kept as a piece. */
static int fn_memory_get(void *self, uint64_t bytes, void **va, uint64_t *dma)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_QUEUE, .bytes = bytes};
	struct pnvme_fn *p = self;
	struct tutti_nvme_run run;
	struct tutti_nvme_runs a = {.n = 1, .runs = (uint64_t)(uintptr_t)&run};
	void *at = MAP_FAILED;
	int rc;

	if (ioctl(p->fd, TUTTI_NVME_MAP, &m)) {
		rc = -errno;
		return err_set(rc, "%s: %llu bytes of queue memory can't be had: %s%s", p->name,
		               (unsigned long long)bytes, err_name(rc),
		               rc == -ENOMEM ? "; is the memlock limit (ulimit -l) that large?" : "");
	}
	a.id = m.id;
	rc = ioctl(p->fd, TUTTI_NVME_RUNS, &a) ? -errno : 0;
	if (!rc)
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, (off_t)TUTTI_NVME_MMAP(m.id));
	if (!rc && at == MAP_FAILED)
		rc = -errno;
	pthread_mutex_lock(&lock);
	if (!rc)
		rc = piece_add(p, (uint64_t)(uintptr_t)at, &m);
	pthread_mutex_unlock(&lock);
	if (!rc) {
		*va = at;
		*dma = run.addr;
		return 0;
	}
	ioctl(p->fd, TUTTI_NVME_UNMAP, m.id);
	if (at != MAP_FAILED)
		munmap(at, bytes);
	return err_set(rc, "%s: queue memory: %s", p->name, err_name(rc));
}

static void fn_memory_put(void *self, void *va, uint64_t bytes, uint64_t dma)
{
	struct pnvme_fn *p = self;
	int rc;

	(void)dma;
	pthread_mutex_lock(&lock);
	rc = pieces_drop(p, (uint64_t)(uintptr_t)va, bytes);
	pthread_mutex_unlock(&lock);
	if (rc)
		log_warn("%s: queue memory at %p stays mapped: %s", p->name, va, err_name(rc));
	munmap(va, bytes); /* the pages are the module's: they stay as long as the function knows them */
}

static int fn_bus_master(void *self, int on)
{
	const struct pnvme_fn *p = self;

	if (!ioctl(p->fd, TUTTI_NVME_MASTER, on ? 1L : 0L))
		return 0;
	if (errno == ENODEV && !on)
		return 0; /* a function that is gone writes nothing */
	return err_set(-errno, "%s: bus mastering can't be turned %s: %s", p->name, on ? "on" : "off",
	               err_name(-errno));
}

static int fn_reset(void *self)
{
	const struct pnvme_fn *p = self;

	return ioctl(p->fd, TUTTI_NVME_RESET) ? -errno : 0;
}

static int fn_interrupts(void *self, const int *eventfds, uint32_t n)
{
	struct tutti_nvme_irqs a = {.fds = (uint64_t)(uintptr_t)eventfds, .n = n};
	const struct pnvme_fn *p = self;
	int rc;

	if (!ioctl(p->fd, TUTTI_NVME_IRQS, &a))
		return 0;
	rc = -errno;
	return err_set(rc, "%s: %u MSI-X interrupts can't be had: %s", p->name, n, err_name(rc));
}

static void fn_close(void *self)
{
	struct pnvme_fn *p = self, **at;

	pthread_mutex_lock(&lock);
	for (at = &functions; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	if (p->bar0)
		munmap(p->bar0, p->bar0_bytes);
	if (p->fd >= 0)
		close(p->fd); /* the module stops and resets the function, then lets go of memory */
	free(p->pieces);
	free(p);
}

static const struct nvme_transport_ops pnvme_ops = {.name = "pnvme",
                                                    .memory_get = fn_memory_get,
                                                    .memory_put = fn_memory_put,
                                                    .dma_map = fn_map,
                                                    .dma_unmap = fn_unmap,
                                                    .bus_master = fn_bus_master,
                                                    .reset = fn_reset,
                                                    .interrupts = fn_interrupts,
                                                    .close = fn_close};

/* ---- the claim ---- */

int pnvme_drives(const char *function)
{
	char path[128], target[512];
	const char *slash;
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.31s/driver", function);
	n = readlink(path, target, sizeof(target) - 1);
	if (n <= 0)
		return 0;
	target[n] = 0;
	slash = strrchr(target, '/');
	return slash && !strcmp(slash + 1, PNVME_DRIVER);
}

static int open_node(struct pnvme_fn *p)
{
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/dev/tutti/%s", p->name);
	p->fd = open(path, O_RDWR | O_CLOEXEC);
	if (p->fd >= 0)
		return 0;
	rc = -errno;
	if (rc == -EBUSY)
		return err_set(rc, "%s: another process drives it (%s is open)", p->name, path);
	if (rc == -EACCES)
		return err_set(rc, "%s: no permission for %s; give it to your user: chown USER %s", p->name, path,
		               path);
	if (rc == -EPERM)
		return err_set(
		    rc,
		               "%s: no IOMMU guards memory from the drive, so only root (CAP_SYS_RAWIO) may drive it; turn "
		               "the IOMMU on with interrupt remapping, or run as root",
		    p->name);
	if (rc == -EIO)
		return err_set(rc, "%s: the drive can't be disabled and stays stopped; unbind and bind it, or reboot",
		               p->name);
	return err_set(rc, "%s: cannot open %s: %s", p->name, path, err_name(rc));
}

static int open_function(struct pnvme_fn *p, struct nvme_transport *out)
{
	struct tutti_nvme_info info;
	void *at;
	int rc = open_node(p);

	if (rc)
		return rc;
	if (ioctl(p->fd, TUTTI_NVME_INFO, &info))
		return err_set(-errno, "%s: the module does not answer: %s", p->name, err_name(-errno));
	if (info.version != TUTTI_NVME_VERSION)
		return err_set(-EPROTO, "%s: the module speaks version %u, this program %u; build both from one tree",
		               p->name, info.version, TUTTI_NVME_VERSION);
	at = mmap(NULL, info.bar_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (at == MAP_FAILED)
		return err_set(-errno, "%s: mapping BAR 0 failed: %s", p->name, err_name(-errno));
	p->bar0 = at;
	p->bar0_bytes = info.bar_bytes;
	p->shares = !(info.flags & TUTTI_NVME_TRANSLATES);
	out->bar0 = p->bar0;
	out->bar0_bytes = p->bar0_bytes;
	out->n_vectors = info.vectors;
	out->space = p->shares ? (const void *)&functions : p;
	return 0;
}

int pnvme_claim(const char *function, struct nvme_transport *out)
{
	struct pnvme_fn *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(-ENOMEM, "%s: no memory", function);
	snprintf(p->name, sizeof(p->name), "%.31s", function);
	p->fd = -1;
	*out = (struct nvme_transport){.ops = &pnvme_ops, .self = p};
	rc = open_function(p, out);
	if (rc) {
		fn_close(p);
		return rc;
	}
	pthread_mutex_lock(&lock);
	p->next = functions;
	functions = p;
	pthread_mutex_unlock(&lock);
	return 0;
}
