/*
 * media.c - a queue pair of its own and CELLS buffers that the controller can reach; transfers are cut into cells.
 *
 * Metadata is small and rare, so a copy through an arena costs nothing that matters, and any buffer will do. After a
 * timeout the queue pair is reset before a cell is used again; if it can't be, the media is dead.
 */
#include "core/media.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "core/pages.h"
#include "dev/run.h"
#include "map/map.h"

#define CELLS 32u
#define CELL_BYTES (256u << 10)
#define DEALLOCATE_BYTES (1ull << 30) /* of one command */
#define IO_DEADLINE_DEFAULT_NS 30000000000ull
#define RESET_DEADLINE_NS 5000000000ull

static uint64_t io_deadline_ns = IO_DEADLINE_DEFAULT_NS;

void media_use_deadline(uint64_t ns)
{
	__atomic_store_n(&io_deadline_ns, ns ? ns : IO_DEADLINE_DEFAULT_NS, __ATOMIC_RELAXED);
}

/* Set by another thread than those that do I/O. */
static uint64_t io_ns(void) { return __atomic_load_n(&io_deadline_ns, __ATOMIC_RELAXED); }

struct cell {
	struct store_io *io; /* NULL: free */
	uint64_t at;         /* of io, in bytes */
	uint64_t bytes;
	uint64_t zero_bytes; /* of its buffer, from the start: writing zeros again needs no copy */
	struct dev_list list;
};

struct media {
	struct store_media table;
	const struct ctrl_ops *ops;
	struct ctrl *ctrl;
	struct ctrl_info info;
	struct dev_qp qp[CTRL_NS_MAX]; /* one on each unit */
	uint32_t n_qps;
	uint32_t to_ring; /* bit u: unit u has commands that its controller does not know of */
	struct port_parker parker;
	pthread_mutex_t lock;
	uint8_t *arena; /* CELLS buffers, then CELLS list pages */
	uint64_t arena_bytes;
	struct map map; /* of the arena */
	uint64_t data_first[CTRL_NS_MAX], data_end[CTRL_NS_MAX];
	uint32_t cell_bytes;
	struct cell cell[CELLS];
	uint32_t in_flight;
	int dead;
	int mapped;
};

/* Where a transfer stands: cells of ios[io] from byte `at` on are still to be made. */
struct cursor {
	struct store_io *ios;
	uint32_t n, io;
	uint64_t at;
	int zero; /* writes zeros instead of io->data */
	int deallocate; /* neither reads nor writes */
};

static void put_blocks(struct nvme_sqe *e, uint64_t lba, uint64_t blocks)
{
	e->cdw10 = (uint32_t)lba;
	e->cdw11 = (uint32_t)(lba >> 32);
	e->cdw12 = (uint32_t)blocks - 1;
}

/* One range, in the cell's buffer. Returns its bytes. */
static uint64_t put_range(struct media *m, struct nvme_sqe *e, uint32_t id, uint64_t lba, uint64_t blocks)
{
	struct nvme_dsm_range r = {.blocks = (uint32_t)blocks, .slba = lba};

	e->cdw10 = 0;
	e->cdw11 = NVME_DSM_DEALLOCATE;
	memcpy(m->arena + (size_t)id * m->cell_bytes, &r, sizeof(r));
	return sizeof(r);
}

/* The one place where the store's commands are made, and their addresses checked. */
static int post(struct media *m, uint32_t id, uint8_t opcode, uint32_t dev, uint64_t offset, uint64_t bytes)
{
	const struct ctrl_ns_info *ns = &m->info.ns[dev];
	struct wire_map view = map_view(&m->map);
	uint64_t added;
	struct nvme_sqe e;
	struct dev_dptr d;

	memset(&e, 0, sizeof(e));
	e.opcode = opcode;
	e.cid = (uint16_t)id;
	e.nsid = ns->nsid;
	if (opcode != NVME_CMD_FLUSH) {
		uint64_t first = opcode == NVME_CMD_DSM ? m->data_first[dev] : 0;
		uint64_t end = opcode == NVME_CMD_DSM ? m->data_end[dev] : ns->capacity_bytes;

		if (offset % ns->lba_bytes || bytes % ns->lba_bytes || offset < first || bytes > end ||
		    offset > end - bytes)
			return err_set(
			    -ERANGE, "media: bytes %llu..%llu of device %u are outside of it or not whole blocks of %u",
			    (unsigned long long)offset, (unsigned long long)(offset + bytes), dev, ns->lba_bytes);
		if (opcode == NVME_CMD_DSM)
			bytes = put_range(m, &e, id, offset / ns->lba_bytes, bytes / ns->lba_bytes);
		else
			put_blocks(&e, offset / ns->lba_bytes, bytes / ns->lba_bytes);
		dev_dptr_begin(&d, &m->cell[id].list, m->info.sgl_max);
		if (dev_add_memory(&view, &d, (uint64_t)(uintptr_t)m->arena + (uint64_t)id * m->cell_bytes, bytes,
		                   &added) ||
		    added < bytes)
			return err_set(-EINVAL, "media: %llu bytes do not fit one command", (unsigned long long)bytes);
		dev_dptr_finish(&d, &e);
	}
	dev_qp_post(&m->qp[ns->unit], &e);
	m->to_ring |= 1u << ns->unit;
	m->in_flight++;
	return 0;
}

static void ring_all(struct media *m)
{
	for (uint32_t i = 0; i < m->n_qps; i++)
		if (m->to_ring & 1u << i)
			dev_qp_ring(&m->qp[i]);
	m->to_ring = 0;
}

/* Bytes from this one to the next boundary that the device tells. */
static uint64_t to_boundary(const struct media *m, uint32_t dev, uint64_t offset)
{
	uint64_t boundary = m->info.ns[dev].boundary_bytes;

	return boundary ? boundary - offset % boundary : UINT64_MAX;
}

/* Bytes of the next command. */
static uint64_t piece(const struct media *m, const struct cursor *c)
{
	const struct store_io *io = &c->ios[c->io];
	uint64_t left = io->bytes - c->at, most = c->deallocate ? DEALLOCATE_BYTES : m->cell_bytes, edge;

	left = left < most ? left : most;
	edge = c->deallocate ? UINT64_MAX : to_boundary(m, io->dev, io->offset_bytes + c->at);
	return left < edge ? left : edge;
}

/* What the cell's buffer must hold before its command is made. */
static void prepare(struct media *m, uint32_t id, const struct cursor *c)
{
	const struct store_io *io = &c->ios[c->io];
	struct cell *cell = &m->cell[id];
	uint8_t *buffer = m->arena + (size_t)id * m->cell_bytes;

	if (c->zero && cell->zero_bytes < cell->bytes) {
		memset(buffer, 0, cell->bytes);
		cell->zero_bytes = cell->bytes;
	}
	if (c->zero)
		return;
	cell->zero_bytes = 0;
	if (io->write && !c->deallocate)
		memcpy(buffer, (const char *)io->data + c->at, cell->bytes);
}

/* Fills free cells from the cursor. Returns how many commands were made. */
static uint32_t fill(struct media *m, struct cursor *c)
{
	uint32_t made = 0;

	for (uint32_t i = 0; i < CELLS && c->io < c->n; i++) {
		struct store_io *io = &c->ios[c->io];
		uint8_t opcode = io->write ? NVME_CMD_WRITE : NVME_CMD_READ;
		int rc;

		if (m->cell[i].io)
			continue;
		m->cell[i].io = io;
		m->cell[i].at = c->at;
		m->cell[i].bytes = piece(m, c);
		if (c->deallocate)
			opcode = NVME_CMD_DSM;
		prepare(m, i, c);
		rc = post(m, i, opcode, io->dev, io->offset_bytes + c->at, m->cell[i].bytes);
		if (rc) {
			m->cell[i].io = NULL;
			io->result = rc;
			c->at = io->bytes; /* the rest of it is not tried */
		} else {
			c->at += m->cell[i].bytes;
			made++;
		}
		if (c->at == io->bytes) {
			c->io++;
			c->at = 0;
		}
	}
	if (made)
		ring_all(m);
	return made;
}

static uint32_t reap_one(struct media *m, struct dev_qp *qp)
{
	struct nvme_cqe e;
	uint32_t n = 0;

	while (dev_qp_poll(qp, &e)) {
		uint32_t id = NVME_CID(e.cid_status);
		int status = (int)NVME_STATUS(e.cid_status);
		struct cell *c;

		if (id >= CELLS || !m->cell[id].io)
			continue; /* not ours: a controller gone wrong; the deadline catches what is missing */
		c = &m->cell[id];
		if (status && !c->io->result)
			c->io->result = status;
		if (!status && !c->io->write && c->io->data)
			memcpy((char *)c->io->data + c->at, m->arena + (size_t)id * m->cell_bytes, c->bytes);
		c->io = NULL;
		m->in_flight--;
		n++;
	}
	dev_qp_release(qp);
	return n;
}

static uint32_t reap(struct media *m)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->n_qps; i++)
		n += reap_one(m, &m->qp[i]);
	return n;
}

static int qps_new(struct media *m)
{
	int rc = 0;

	while (m->n_qps < m->info.n_units && !rc) {
		rc = ctrl_qp_create(m->ops, m->ctrl, m->n_qps, CELLS * 2, &m->parker, &m->qp[m->n_qps]);
		m->n_qps += rc == 0;
	}
	return rc;
}

static int qps_delete(struct media *m)
{
	uint64_t deadline_ns = port_now_ns() + RESET_DEADLINE_NS;
	int rc = 0;

	while (m->n_qps && !rc) {
		rc = m->ops->qp_delete(m->ctrl, &m->qp[m->n_qps - 1], deadline_ns);
		m->n_qps -= rc == 0;
	}
	return rc;
}

static int reset(struct media *m)
{
	int rc = qps_delete(m);

	m->to_ring = 0;
	if (!rc)
		rc = qps_new(m);
	m->dead = rc != 0;
	for (uint32_t i = 0; i < CELLS; i++) {
		if (m->cell[i].io && !m->cell[i].io->result)
			m->cell[i].io->result = -ETIMEDOUT;
		m->cell[i].io = NULL; /* of a dead one too: nobody will look at its cells again */
	}
	m->in_flight = 0;
	return rc;
}

static int lost(struct media *m)
{
	for (uint32_t i = 0; i < m->n_qps; i++)
		if (ctrl_qp_lost(m->ops, m->ctrl, &m->qp[i]))
			return 1;
	return 0;
}

/* Waits for a completion. -ETIMEDOUT at the deadline; -EIO: the controller was reset meanwhile. */
static int wait_any(struct media *m, uint64_t deadline_ns)
{
	for (int i = 0; i < 200; i++) {
		if (reap(m))
			return 0;
		port_pause();
	}
	port_park_announce(&m->parker);
	/* Orders the announcement before this look (pairs with the controller's store, then its look at asleep). */
	if (reap(m)) {
		port_park_cancel(&m->parker);
		return 0;
	}
	port_park_wait(&m->parker, deadline_ns);
	if (lost(m))
		return -EIO;
	return reap(m) || port_now_ns() < deadline_ns ? 0 : -ETIMEDOUT;
}

static int run(struct media *m, struct cursor *c, const int *stop)
{
	uint64_t deadline_ns = port_now_ns() + io_ns();
	int rc;

	if (lost(m))
		reset(m); /* nothing of ours was under way */
	if (m->dead)
		return err_set(-ENOTRECOVERABLE, "media: the device stopped answering earlier and could not be reset");
	while (c->io < c->n || m->in_flight) {
		if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
			c->io = c->n;
		if (fill(m, c))
			deadline_ns = port_now_ns() + io_ns();
		rc = m->in_flight ? wait_any(m, deadline_ns) : 0;
		if (rc) {
			reset(m);
			return rc == -EIO
			           ? err_set(rc, "media: the drive was reset while it worked for this; try again")
			           : err_set(-ETIMEDOUT,
			                     "media: no answer from the device within %llu s; is the disk alive?",
			                     (unsigned long long)(io_ns() / 1000000000u));
		}
	}
	return 0;
}

static int media_io(void *self, struct store_io *ios, uint32_t n)
{
	struct media *m = self;
	struct cursor c = {.ios = ios, .n = n};
	int rc;

	for (uint32_t i = 0; i < n; i++)
		ios[i].result = 0;
	pthread_mutex_lock(&m->lock);
	rc = run(m, &c, NULL);
	pthread_mutex_unlock(&m->lock);
	for (uint32_t i = c.io; i < n && rc; i++) /* what was not begun, or not to its end, has not succeeded */
		if (!ios[i].result)
			ios[i].result = rc;
	for (uint32_t i = 0; i < n && !rc; i++)
		if (ios[i].result)
			rc = err_set(ios[i].result, "%s of %llu bytes at byte %llu of device %u failed: %s",
			             ios[i].write ? "write" : "read", (unsigned long long)ios[i].bytes,
			             (unsigned long long)ios[i].offset_bytes, ios[i].dev, err_name(ios[i].result));
	return rc;
}

static int media_flush(void *self, uint32_t dev)
{
	struct media *m = self;
	struct store_io io = {.dev = dev};
	int rc;

	pthread_mutex_lock(&m->lock);
	if (lost(m))
		reset(m);
	rc = m->dead ? -ENOTRECOVERABLE : 0;
	if (!rc) {
		m->cell[0].io = &io; /* all cells are free between calls */
		m->cell[0].bytes = 0;
		post(m, 0, NVME_CMD_FLUSH, dev, 0, 0);
		ring_all(m);
		for (uint64_t end = port_now_ns() + io_ns(); m->in_flight && !rc;)
			rc = wait_any(m, end);
		if (rc)
			reset(m);
		else
			rc = io.result;
	}
	pthread_mutex_unlock(&m->lock);
	return rc ? err_set(rc, "flush of device %u failed: %s", dev, err_name(rc)) : 0;
}

int media_zero(struct media *m, uint32_t dev, uint64_t offset_bytes, uint64_t bytes, const int *stop)
{
	struct store_io io = {.dev = dev, .write = 1, .offset_bytes = offset_bytes, .bytes = bytes};
	struct cursor c = {.ios = &io, .n = 1, .zero = 1};
	int rc;

	pthread_mutex_lock(&m->lock);
	rc = run(m, &c, stop);
	pthread_mutex_unlock(&m->lock);
	if (!rc && io.result)
		rc = err_set(io.result, "writing zeros at byte %llu of device %u failed: %s",
		             (unsigned long long)offset_bytes, dev, err_name(io.result));
	return rc ? rc : stop && __atomic_load_n(stop, __ATOMIC_RELAXED) ? -ECANCELED : 0;
}

void media_data_is(struct media *m, uint32_t dev, uint64_t first_byte, uint64_t end_byte)
{
	m->data_first[dev] = first_byte;
	m->data_end[dev] = end_byte < m->info.ns[dev].capacity_bytes ? end_byte : m->info.ns[dev].capacity_bytes;
}

int media_deallocate(struct media *m, uint32_t dev, uint64_t offset_bytes, uint64_t bytes, const int *stop)
{
	struct store_io io = {.dev = dev, .write = 1, .offset_bytes = offset_bytes, .bytes = bytes};
	struct cursor c = {.ios = &io, .n = 1, .deallocate = 1};
	int rc;

	if (!m->info.ns[dev].deallocates)
		return err_set(-EOPNOTSUPP, "device %u knows no Dataset Management", dev);
	pthread_mutex_lock(&m->lock);
	rc = run(m, &c, stop);
	rc = m->dead ? -ENOTRECOVERABLE : rc;
	pthread_mutex_unlock(&m->lock);
	if (!rc && io.result)
		rc = err_set(io.result, "deallocating %llu bytes at byte %llu of device %u failed: %s",
		             (unsigned long long)bytes, (unsigned long long)offset_bytes, dev, err_name(io.result));
	return rc ? rc : stop && __atomic_load_n(stop, __ATOMIC_RELAXED) ? -ECANCELED : 0;
}

const struct store_media *media_table(struct media *m) { return &m->table; }

static int add_run(void *arg, uint64_t va, uint64_t bytes, uint64_t dma)
{
	return map_insert(arg, va, bytes, dma);
}

static int arena_new(struct media *m)
{
	uint64_t lists = (uint64_t)CELLS * DEV_PAGE_BYTES;
	int registered, rc;

	m->cell_bytes = m->info.mdts_bytes < CELL_BYTES ? m->info.mdts_bytes : CELL_BYTES;
	m->arena_bytes = (uint64_t)CELLS * m->cell_bytes + lists;
	m->arena = pages_alloc(m->arena_bytes);
	if (!m->arena)
		return err_set(-ENOMEM, "media: no memory for its buffers");
	rc = ctrl_mem_map_runs(m->ops, m->ctrl, m->arena, m->arena_bytes, &registered, add_run, &m->map);
	m->mapped = rc == 0;
	for (uint32_t i = 0; i < CELLS && !rc; i++) {
		uint8_t *page = m->arena + (uint64_t)CELLS * m->cell_bytes + (uint64_t)i * DEV_PAGE_BYTES;

		m->cell[i].list.n_pages = 1;
		m->cell[i].list.page[0] = (uint64_t *)(void *)page;
		rc = map_find(&m->map, (uint64_t)(uintptr_t)page, DEV_PAGE_BYTES, &m->cell[i].list.dma[0]);
	}
	return rc;
}

int media_new(const struct ctrl_ops *ops, struct ctrl *ctrl, const struct ctrl_info *info, struct media **out)
{
	struct media *m = aligned_alloc(64, (sizeof(*m) + 63) / 64 * 64);
	int rc;

	if (!m)
		return err_set(-ENOMEM, "media: no memory");
	memset(m, 0, sizeof(*m));
	m->ops = ops;
	m->ctrl = ctrl;
	m->info = *info;
	map_init(&m->map);
	pthread_mutex_init(&m->lock, NULL);
	rc = arena_new(m);
	if (!rc)
		rc = qps_new(m);
	if (rc) {
		media_free(m);
		return rc;
	}
	m->table.io = media_io;
	m->table.flush = media_flush;
	m->table.self = m;
	m->table.n_dev = info->n_ns;
	m->table.preferred_io_bytes = UINT32_MAX;
	for (uint32_t i = 0; i < info->n_ns; i++) {
		m->table.bytes[i] = info->ns[i].capacity_bytes;
		if (info->ns[i].preferred_io_bytes < m->table.preferred_io_bytes)
			m->table.preferred_io_bytes = info->ns[i].preferred_io_bytes;
	}
	*out = m;
	return 0;
}

void media_free(struct media *m)
{
	int rc = 0;

	if (!m)
		return;
	rc = qps_delete(m);
	if (rc || m->dead)
		return; /* the controller may still write to the arena: it stays, mapped */
	if (m->mapped)
		m->ops->mem_unmap(m->ctrl, m->arena, m->arena_bytes);
	map_free(&m->map);
	pages_free(m->arena, m->arena_bytes);
	pthread_mutex_destroy(&m->lock);
	free(m);
}
