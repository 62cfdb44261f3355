/*
 * model.c - a controller whose medium is RAM and whose speed is a data sheet's (model_time.h).
 *
 * A target is memory of its own ("ram:SIZE") or a file that is mapped, so that a file on tmpfs persists. Data is copied
 * by the service thread when a command arrives (or, in place, not at all: the completion of a read names the
 * medium's address, for an I/O kernel that pulls, and a write finds its data there); its completion is posted when the
 * model says so. FLUSH takes the time of a write and does nothing: the medium is what it is. A mapped file must have
 * its blocks: a hole on a full file system ends the process (SIGBUS).
 */
#include "ctrl/model_time.h"
#include "ctrl/soft_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

#define PREFERRED_IO_BYTES (512u << 10) /* as of files: a command costs the same whatever it moves */
#define WAKE_EARLY_NS 30000u /* what a sleep may be late: the rest is spun */

struct medium {
	struct ctrl_file file; /* fd -1: anonymous */
	char *data;
	uint64_t bytes;
	struct model_time time;
};

struct model {
	struct medium media[CTRL_NS_MAX];
	uint32_t n;
	int in_place; /* reads answer with an address */
	struct model_time_cmd *cmds, *free;
};

static void model_close(void *self)
{
	struct model *m = self;

	for (uint32_t i = 0; i < m->n; i++) {
		if (m->media[i].data)
			munmap(m->media[i].data, m->media[i].bytes);
		ctrl_file_close(&m->media[i].file);
	}
	free(m->cmds);
	free(m);
}

static int medium_open(struct medium *d, const struct ctrl_target *t, uint32_t lba_bytes, struct ctrl_ns_info *ns)
{
	int protection = PROT_READ | (t->read_only ? 0 : PROT_WRITE), flags = MAP_SHARED, rc;

	d->file.fd = -1;
	if (!ctrl_size_path(t->path, "ram:", &d->bytes)) {
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
		ns->lba_bytes = lba_bytes ? lba_bytes : 512;
	} else {
		rc = ctrl_file_open(t, lba_bytes, 0, &d->file);
		if (rc)
			return rc;
		*ns = d->file.ns;
		d->bytes = ns->capacity_bytes;
	}
	ns->capacity_bytes = d->bytes - d->bytes % ns->lba_bytes;
	ns->mem_align_bytes = 4;
	ns->preferred_io_bytes = PREFERRED_IO_BYTES;
	ns->direct = 1;
	if (!d->bytes)
		return 0;
	d->data = mmap(NULL, d->bytes, protection, flags, d->file.fd, 0);
	if (d->data != MAP_FAILED)
		return 0;
	rc = -errno;
	d->data = NULL;
	return err_set(rc, "%s: %llu bytes can't be mapped: %s", t->path ? t->path : "(open file)",
	               (unsigned long long)d->bytes, err_name(rc));
}

static int model_open(void *arg, const struct ctrl_opts *opts, struct ctrl_counters *counters, struct ctrl_info *info,
                      void **self)
{
	struct model *m = calloc(1, sizeof(*m));
	int rc = 0;

	(void)arg;
	(void)counters;
	*self = NULL;
	if (m)
		m->cmds = calloc(opts->depth_max, sizeof(*m->cmds));
	if (!m || !m->cmds) {
		free(m);
		return err_set(-ENOMEM, "model controller: no memory");
	}
	for (uint32_t i = 0; !rc && i < opts->n_targets; i++) {
		m->n = i + 1;
		rc = medium_open(&m->media[i], &opts->targets[i], opts->lba_bytes, &info->ns[i]);
		model_time_init(&m->media[i].time, opts->model, port_now_ns());
	}
	if (rc) {
		model_close(m);
		return rc;
	}
	for (uint32_t i = 0; i < opts->depth_max; i++) {
		m->cmds[i].next = m->free;
		m->free = &m->cmds[i];
	}
	info->n_ns = m->n;
	*self = m;
	return 0;
}

/* In place, who writes puts the data there, and then says so. */
static int is_there(const struct ctrl_io *io, const char *at)
{
	return io->n_iov == 1 && io->iov[0].iov_base == at;
}

static void model_submit(void *self, struct ctrl_io *io)
{
	struct model *m = self;
	struct medium *d = &m->media[io->target];
	struct model_time_cmd *cmd = m->free;
	char *at = d->data + io->offset_bytes;

	m->free = cmd->next;
	cmd->direction = io->opcode == NVME_CMD_READ ? MODEL_READ : MODEL_WRITE;
	cmd->bytes = io->bytes;
	cmd->owner = io;
	ctrl_io_begin(io);
	model_time_add(&d->time, cmd, port_now_ns());
	if (io->opcode == NVME_CMD_READ && __atomic_load_n(&m->in_place, __ATOMIC_ACQUIRE))
		io->result = (uint64_t)(uintptr_t)at;
	else if (io->opcode == NVME_CMD_READ)
		ctrl_io_scatter(io, at);
	else if (io->opcode == NVME_CMD_WRITE && !is_there(io, at))
		ctrl_io_gather(io, at);
}

static uint32_t model_reap(void *self, struct ctrl_io **done, uint32_t max)
{
	struct model *m = self;
	uint64_t now_ns = port_now_ns();
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->n; i++) {
		while (n < max) {
			struct model_time_cmd *cmd = model_time_take(&m->media[i].time, now_ns);

			if (!cmd)
				break;
			done[n++] = cmd->owner;
			cmd->next = m->free;
			m->free = cmd;
		}
	}
	return n;
}

static void model_wait(void *self, struct port_parker *parker, uint64_t deadline_ns)
{
	struct model *m = self;
	uint64_t next_ns = deadline_ns ? deadline_ns : MODEL_TIME_NEVER;

	for (uint32_t i = 0; i < m->n; i++) {
		uint64_t ns = model_time_next(&m->media[i].time);

		next_ns = ns < next_ns ? ns : next_ns;
	}
	if (next_ns == MODEL_TIME_NEVER)
		port_park_wait(parker, 0);
	else if (next_ns > port_now_ns() + 2 * WAKE_EARLY_NS)
		port_park_wait(parker, next_ns - WAKE_EARLY_NS);
}

const struct ctrl_io_ops ctrl_io_model = {
	.model = "model RAM",
	.open = model_open,
	.close = model_close,
	.submit = model_submit,
	.reap = model_reap,
	.wait = model_wait,
};

static int model_medium(struct ctrl *c, uint32_t i, void **p, uint64_t *bytes)
{
	struct model *m = c->self;

	if (i >= m->n || !m->media[i].data)
		return err_set(-EINVAL, "model controller: no medium %u", i);
	__atomic_store_n(&m->in_place, 1, __ATOMIC_RELEASE);
	*p = m->media[i].data;
	*bytes = m->media[i].bytes;
	return 0;
}

static int ctrl_model_open(const struct ctrl_opts *opts, struct ctrl **out)
{
	return ctrl_soft_open(opts, &ctrl_io_model, NULL, out);
}

const struct ctrl_ops ctrl_model = {
	.name = "model",
	.open = ctrl_model_open,
	.close = ctrl_soft_close,
	.identify = ctrl_soft_identify,
	.qp_create = ctrl_soft_qp_create,
	.qp_delete = ctrl_soft_qp_delete,
	.mem_map = ctrl_soft_mem_map,
	.mem_unmap = ctrl_soft_mem_unmap,
	.counters = ctrl_counters,
	.awake = ctrl_soft_awake,
	.medium = model_medium,
};
