/* nvme_admin.c - registers and the admin queue: reset, enable, one command at a time. */
#include "ctrl/nvme_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define SPIN_NS 20000u
#define NAP_NS 50000
#define SHUTDOWN_NS 5000000000ull
#define ADMIN_NS 10000000000ull

/* ---- registers ---- */

static uint32_t *reg(const struct nvme_fn *f, uint32_t at) { return (uint32_t *)(void *)(f->t.bar0 + at); }

static uint32_t reg_read(const struct nvme_fn *f, uint32_t at) { return port_load_acquire32(reg(f, at)); }

static void reg_write(struct nvme_fn *f, uint32_t at, uint32_t v) { port_store_release32(reg(f, at), v); }

static void reg_write64(struct nvme_fn *f, uint32_t at, uint64_t v)
{
	reg_write(f, at, (uint32_t)v);
	reg_write(f, at + 4, (uint32_t)(v >> 32));
}

uint32_t *nvme_doorbell(const struct nvme_fn *f, uint32_t qid, int cq)
{
	return reg(f, NVME_REG_DOORBELLS + (2 * qid + (cq ? 1u : 0u)) * (4u << NVME_CAP_DSTRD(f->cap)));
}

static void nap(void)
{
	const struct timespec t = {.tv_nsec = NAP_NS};

	nanosleep(&t, NULL); /* a register changes without waking anybody */
}

static int gone(const struct nvme_fn *f)
{
	return err_set(-ENODEV, "%s: the function does not answer on the bus; was it removed, is the slot's power on?",
	               f->name);
}

/* Waits for (CSTS & mask) == value. A fatal status ends it, unless the controller is to stop. */
static int wait_status(struct nvme_fn *f, uint32_t mask, uint32_t value, uint64_t deadline_ns)
{
	for (;;) {
		uint32_t csts = reg_read(f, NVME_REG_CSTS);

		if (csts == NVME_GONE)
			return gone(f);
		if ((csts & mask) == value)
			return 0;
		if ((csts & NVME_CSTS_CFS) && value)
			return err_set(-EIO, "%s: the controller reports a fatal status (CSTS %#x)", f->name, csts);
		if (port_now_ns() >= deadline_ns)
			return err_set(-ETIMEDOUT,
			               "%s: CSTS is %#x, wanted %#x of %#x in the time that CAP.TO allows; "
			               "power-cycle the drive",
			               f->name, csts, value, mask);
		nap();
	}
}

static uint64_t ready_deadline(const struct nvme_fn *f)
{
	return port_now_ns() + (NVME_CAP_TO_500MS(f->cap) + 1) * 500000000ull;
}

/* ---- the admin queue ---- */

static void admin_queue_reset(struct nvme_fn *f)
{
	memset(f->memory, 0, 2 * DEV_PAGE_BYTES); /* an old phase bit would look like a completion */
	f->admin = (struct dev_qp){.sq = (struct nvme_sqe *)(void *)f->memory,
	                           .cq = (struct nvme_cqe *)(void *)(f->memory + DEV_PAGE_BYTES),
	                           .sq_doorbell = nvme_doorbell(f, 0, 0),
	                           .cq_doorbell = nvme_doorbell(f, 0, 1),
	                           .depth = NVME_ADMIN_DEPTH,
	                           .phase = 1};
}

/* 1: the answer to cid was taken. Anything else in the queue is an answer too late, or twice: nobody waits for it. */
static int admin_poll(struct nvme_fn *f, uint16_t cid, struct nvme_cqe *out)
{
	int found = 0;

	while (!found && dev_qp_poll(&f->admin, out)) {
		found = NVME_CID(out->cid_status) == cid;
		f->stray_completions += !found;
	}
	dev_qp_release(&f->admin);
	return found;
}

int nvme_admin_run(struct nvme_fn *f, const struct nvme_sqe *e, uint64_t deadline_ns, uint32_t *dw0)
{
	uint64_t start = port_now_ns();
	struct nvme_sqe own = *e;
	struct nvme_cqe c;

	if (!f->up || f->admin_lost)
		return err_set(-EIO, "%s: the admin queue is lost until the controller was reset", f->name);
	own.cid = f->cid++;
	dev_qp_post(&f->admin, &own);
	dev_qp_ring(&f->admin);
	while (!admin_poll(f, own.cid, &c)) {
		uint32_t csts = reg_read(f, NVME_REG_CSTS);
		uint64_t now = port_now_ns();

		if (csts == NVME_GONE || (csts & NVME_CSTS_CFS) || now >= deadline_ns) {
			f->admin_lost = 1;
			if (csts == NVME_GONE)
				return gone(f);
			if (csts & NVME_CSTS_CFS)
				return err_set(-EIO, "%s: the controller reports a fatal status (CSTS %#x)", f->name,
				               csts);
			return err_set(-ETIMEDOUT, "%s: admin command %#x was not answered in time", f->name,
			               own.opcode);
		}
		if (now - start > SPIN_NS)
			nap();
	}
	if (dw0)
		*dw0 = c.dw0;
	return (int)NVME_STATUS(c.cid_status);
}

int nvme_admin(struct nvme_fn *f, const struct nvme_sqe *e, uint64_t deadline_ns, uint32_t *dw0)
{
	int rc;

	pthread_mutex_lock(&f->lock);
	rc = nvme_admin_run(f, e, deadline_ns, dw0);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* ---- up and down ---- */

/* CC.EN to 0. Its caller knows that no I/O queue pair is at work. */
static int disable(struct nvme_fn *f)
{
	uint32_t cc = reg_read(f, NVME_REG_CC), csts = reg_read(f, NVME_REG_CSTS);

	if (cc == NVME_GONE || csts == NVME_GONE)
		return gone(f);
	if (cc & NVME_CC_EN) {
		/* A controller that is still coming up must have come up before it may be told to go down. */
		if (!(csts & (NVME_CSTS_RDY | NVME_CSTS_CFS)))
			wait_status(f, NVME_CSTS_RDY, NVME_CSTS_RDY, ready_deadline(f));
		reg_write(f, NVME_REG_CC, cc & ~(NVME_CC_EN | NVME_CC_SHN_MASK));
	}
	return wait_status(f, NVME_CSTS_RDY, 0, ready_deadline(f));
}

int nvme_fn_up(struct nvme_fn *f)
{
	int rc = disable(f);

	f->up = 0;
	if (!rc)
		rc = f->t.ops->bus_master(f->t.self, 1);
	if (rc)
		return rc;
	f->resets++;
	admin_queue_reset(f);
	reg_write(f, NVME_REG_AQA, (NVME_ADMIN_DEPTH - 1) << 16 | (NVME_ADMIN_DEPTH - 1));
	reg_write64(f, NVME_REG_ASQ, f->memory_dma);
	reg_write64(f, NVME_REG_ACQ, f->memory_dma + DEV_PAGE_BYTES);
	reg_write(f, NVME_REG_CC,
	          NVME_CC_ENTRIES | NVME_CC_EN); /* memory pages of 4096, NVM command set, round robin */
	rc = wait_status(f, NVME_CSTS_RDY, NVME_CSTS_RDY, ready_deadline(f));
	if (rc)
		return rc;
	f->up = 1;
	f->admin_lost = 0;
	rc = nvme_fn_features(f);
	if (rc)
		f->up = 0;
	return rc;
}

int nvme_fn_fence(struct nvme_fn *f)
{
	int rc = f->t.ops->bus_master(f->t.self, 0);

	if (rc)
		return rc;
	f->fences++;
	__atomic_fetch_add(&f->generation, 1, __ATOMIC_RELEASE);
	f->up = 0;
	nvme_wake_all(f);
	/* Best effort: the next nvme_fn_up finds out. Where it can't be reset alone, clearing CC.EN does the same. */
	f->t.ops->reset(f->t.self);
	return f->t.ops->bus_master(f->t.self, 0);
}

/* What the controller cached goes to the medium; then it is off. */
static void shut_down(struct nvme_fn *f)
{
	uint32_t cc = reg_read(f, NVME_REG_CC);

	if (!f->up || f->admin_lost || cc == NVME_GONE) {
		nvme_fn_fence(f);
		return;
	}
	reg_write(f, NVME_REG_CC, (cc & ~NVME_CC_SHN_MASK) | NVME_CC_SHN_NORMAL);
	wait_status(f, 3u << 2, NVME_SHST_DONE << 2, port_now_ns() + SHUTDOWN_NS);
	disable(f);
	f->t.ops->bus_master(f->t.self, 0);
	f->up = 0;
}

static int check_registers(struct nvme_fn *f)
{
	uint64_t doorbells;

	f->cap = reg_read(f, NVME_REG_CAP) | (uint64_t)reg_read(f, NVME_REG_CAP + 4) << 32;
	if ((uint32_t)f->cap == NVME_GONE)
		return gone(f);
	f->depth_max = NVME_CAP_MQES(f->cap);
	if (!NVME_CAP_CSS_NVM(f->cap))
		return err_set(-EOPNOTSUPP, "%s: the controller has no NVM command set (CAP %#llx)", f->name,
		               (unsigned long long)f->cap);
	if (NVME_CAP_MPSMIN(f->cap))
		return err_set(-EOPNOTSUPP, "%s: the controller wants memory pages of %u KiB; this program's are of 4",
		               f->name, 4u << NVME_CAP_MPSMIN(f->cap));
	doorbells = NVME_REG_DOORBELLS + 4ull * (4u << NVME_CAP_DSTRD(f->cap));
	if (f->depth_max < 2 || f->t.bar0_bytes < doorbells)
		return err_set(-EOPNOTSUPP, "%s: CAP %#llx with a BAR 0 of %llu bytes is not a usable controller",
		               f->name, (unsigned long long)f->cap, (unsigned long long)f->t.bar0_bytes);
	return 0;
}

static int fn_memory(struct nvme_fn *f)
{
	void *p;
	int rc = f->t.ops->memory_get(f->t.self, 3 * DEV_PAGE_BYTES, &p, &f->memory_dma);

	if (rc)
		return err_prefix(rc, "%s: admin queues", f->name);
	f->memory = p;
	return 0;
}

static void fn_free(struct nvme_fn *f)
{
	if (f->irq_running)
		nvme_irq_stop(f);
	if (f->memory && !f->lost_bytes)
		f->t.ops->memory_put(f->t.self, f->memory, 3 * DEV_PAGE_BYTES, f->memory_dma);
	f->t.ops->close(f->t.self);
	pthread_mutex_destroy(&f->irq_lock);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

int nvme_fn_open(const struct nvme_transport *t, const char *name, struct nvme_fn **out)
{
	struct nvme_fn *f = calloc(1, sizeof(*f));
	int rc;

	if (!f) {
		t->ops->close(t->self);
		return err_set(-ENOMEM, "%s: no memory", name);
	}
	f->t = *t;
	f->admin_ns = ADMIN_NS;
	snprintf(f->name, sizeof(f->name), "%s", name);
	pthread_mutex_init(&f->lock, NULL);
	pthread_mutex_init(&f->irq_lock, NULL);
	rc = check_registers(f);
	if (!rc)
		rc = fn_memory(f);
	if (!rc)
		rc = nvme_irq_start(f);
	if (!rc)
		rc = nvme_fn_up(f);
	if (!rc)
		rc = nvme_fn_identify(f);
	if (rc) {
		if (f->memory && nvme_fn_fence(f))
			f->lost_bytes = 3 * DEV_PAGE_BYTES;
		fn_free(f);
		return rc;
	}
	*out = f;
	return 0;
}

void nvme_fn_close(struct nvme_fn *f)
{
	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	nvme_queues_delete(f);
	shut_down(f);
	pthread_mutex_unlock(&f->lock);
	fn_free(f);
}
