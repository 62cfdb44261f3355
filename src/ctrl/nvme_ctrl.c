/* nvme_ctrl.c - the table of claimed functions, and ctrl_ops over them. */
#include "ctrl/nvme_ctrl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "ctrl/pnvme.h"
#include "ctrl/vfio.h"

#define UNIT_SHIFT 16
#define CLOSE_NS 5000000000ull
#define REGIONS_MAX 4096u
#define MDTS_MAX (1u << 20)     /* a drive without a limit still gets bounded bounce buffers */
#define SGL_MAX 1024u
#define PREFERRED_BYTES (256u << 10)
#define PREFERRED_MIN (128u << 10)
#define PREFERRED_MAX (512u << 10)

struct claim {
	struct nvme_fn *fn;
	uint32_t users;
	pid_t pid;   /* whose it is: a child that was forked since must keep its hands off */
	int lock_fd; /* memory file that pools of this process lock */
};

static pthread_mutex_t claims_lock = PTHREAD_MUTEX_INITIALIZER;
static struct claim claims[CTRL_NS_MAX];
static nvme_claim_fn claim_fn;
static void *claim_arg;

struct region {
	uint64_t va, bytes;          /* as the caller said */
	uint64_t page_va, page_bytes; /* whole pages, as mapped */
	struct nvme_run *runs; /* of the pages */
	uint32_t n_runs;
};

struct ctrl {
	struct claim *unit[CTRL_NS_MAX];
	uint64_t made[CTRL_NS_MAX][2]; /* bit per queue pair of a unit that this handle made */
	uint32_t n_units;
	struct ctrl_info info;
	struct region *regions;
	uint32_t n_regions;
};

/* ---- claims ---- */

void nvme_claim_by(nvme_claim_fn claim, void *arg)
{
	claim_fn = claim;
	claim_arg = arg;
}

static int claim_new(struct claim *c, const char *name)
{
	struct nvme_transport t;
	int rc;

	if (claim_fn)
		rc = claim_fn(claim_arg, name, &t);
	else
		rc = pnvme_drives(name) ? pnvme_claim(name, &t) : vfio_claim(name, &t);
	if (rc)
		return rc;
	rc = nvme_fn_open(&t, name, &c->fn);
	if (rc)
		return rc;
	c->pid = getpid();
	c->lock_fd = memfd_create("tutti-nvme-lock", MFD_CLOEXEC);
	if (c->lock_fd < 0) {
		rc = -errno;
		nvme_fn_close(c->fn);
		c->fn = NULL;
		return err_set(rc, "%s: no memory file for locks: %s", name, err_name(rc));
	}
	return 0;
}

static int claim_get(const char *name, struct claim **out)
{
	struct claim *c = NULL;
	int rc = 0;

	pthread_mutex_lock(&claims_lock);
	for (uint32_t i = CTRL_NS_MAX; i-- > 0;)
		if (!claims[i].fn)
			c = &claims[i];
	for (uint32_t i = 0; i < CTRL_NS_MAX; i++)
		if (claims[i].fn && !strcmp(claims[i].fn->name, name))
			c = &claims[i];
	if (!c)
		rc =
		    err_set(-ENOSPC, "%s: this process has %u functions already, the most possible", name, CTRL_NS_MAX);
	else if (!c->fn)
		rc = claim_new(c, name);
	else if (c->pid != getpid())
		rc = err_set(-EBUSY, "%s: process %d opened it and then made this one by fork; close it before forking",
		             name, (int)c->pid);
	if (!rc) {
		c->users++;
		*out = c;
	}
	pthread_mutex_unlock(&claims_lock);
	return rc;
}

static void claim_put(struct claim *c)
{
	pthread_mutex_lock(&claims_lock);
	if (--c->users == 0) {
		nvme_fn_close(c->fn);
		close(c->lock_fd);
		c->fn = NULL;
	}
	pthread_mutex_unlock(&claims_lock);
}

int nvme_lock_fd(const struct ctrl *c)
{
	char path[40];
	int fd;

	/* Opened anew, not duplicated: such locks belong to the open file. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", c->unit[0]->lock_fd);
	fd = fork_open(path, O_RDWR, 0);
	return fd < 0 ? err_set(-errno, "cannot open %s: %s; is /proc mounted?", path, err_name(-errno)) : fd;
}

const struct nvme_fn *nvme_fn_of(const struct ctrl *c, uint32_t dev) { return c->unit[c->info.ns[dev].unit]->fn; }

/* ---- open and close ---- */

static void mark(struct ctrl *c, uint32_t unit, uint32_t qid, int made)
{
	uint64_t bit = 1ull << qid % 64;

	c->made[unit][qid / 64] = made ? c->made[unit][qid / 64] | bit : c->made[unit][qid / 64] & ~bit;
}

/* Queue pairs that the caller left behind. */
static void delete_left(struct ctrl *c, uint32_t unit)
{
	struct nvme_fn *f = c->unit[unit]->fn;

	for (uint32_t qid = 1; qid <= CTRL_QPS_MAX; qid++) {
		struct dev_qp q = {.id = qid, .sq = f->queue[qid].memory};

		if (c->made[unit][qid / 64] >> qid % 64 & 1)
			nvme_qp_delete(f, &q, port_now_ns() + CLOSE_NS);
	}
}

static void nvme_close(struct ctrl *c)
{
	if (!c)
		return;
	for (uint32_t i = 0; i < c->n_units; i++)
		delete_left(c, i);
	while (c->n_regions) {
		struct region *r = &c->regions[--c->n_regions];
		struct nvme_fn *f = c->unit[0]->fn;

		f->t.ops->dma_unmap(f->t.self, (void *)(uintptr_t)r->page_va, r->page_bytes, r->runs, r->n_runs);
		free(r->runs);
	}
	while (c->n_units)
		claim_put(c->unit[--c->n_units]);
	free(c->regions);
	free(c);
}

static int unit_of(struct ctrl *c, const char *function, uint32_t *unit)
{
	const struct nvme_fn *f;
	int rc;

	for (*unit = 0; *unit < c->n_units; (*unit)++)
		if (!strcmp(c->unit[*unit]->fn->name, function))
			return 0;
	rc = claim_get(function, &c->unit[*unit]);
	if (rc)
		return rc;
	c->n_units++;
	f = c->unit[*unit]->fn;
	if (f->t.space != c->unit[0]->fn->t.space)
		return err_set(-EOPNOTSUPP, "%s and %s have different address spaces; they can't be in one pool",
		               f->name, c->unit[0]->fn->name);
	return 0;
}

/* What can't be used, and what to do about it. */
static int check_ns(const struct nvme_fn *f, const struct nvme_ns *ns, uint32_t nsid)
{
	if (!ns)
		return err_set(-ENODEV, "%s (%s) has no active namespace %u; it has %u, the first is %u", f->name,
		               f->model, nsid, f->n_ns, f->n_ns ? f->ns[0].nsid : 0);
	if (ns->metadata_bytes)
		return err_set(-EOPNOTSUPP,
		               "%s, namespace %u: its blocks carry %u bytes of metadata each; give it a format "
		               "without (nvme format --lbaf, which erases it)",
		               f->name, nsid, ns->metadata_bytes);
	if (ns->lba_bytes != 512 && ns->lba_bytes != 4096)
		return err_set(-EOPNOTSUPP,
		               "%s, namespace %u: blocks of %u bytes; 512 and 4096 are possible (nvme format "
		               "--lbaf, which erases it)",
		               f->name, nsid, ns->lba_bytes);
	if (!ns->bytes)
		return err_set(-ENOSPC, "%s, namespace %u has no space", f->name, nsid);
	return 0;
}

static int add_target(struct ctrl *c, const char *path)
{
	char function[NVME_NAME_BYTES];
	struct ctrl_ns_info *out = &c->info.ns[c->info.n_ns];
	const struct nvme_ns *ns;
	const struct nvme_fn *f;
	uint32_t nsid, unit;
	int rc = nvme_path(path, function, &nsid);

	if (rc == -ENOENT)
		return err_set(-EINVAL,
		               "%s is not a namespace of an NVMe drive (nvme:0000:01:00.0/1); a pool's paths are all "
		               "of one kind",
		               path ? path : "(no path)");
	if (!rc)
		rc = unit_of(c, function, &unit);
	if (rc)
		return rc;
	f = c->unit[unit]->fn;
	ns = nvme_ns_find(f, nsid);
	rc = check_ns(f, ns, nsid);
	if (rc)
		return rc;
	*out = (struct ctrl_ns_info){.capacity_bytes = ns->bytes,
	                             .lba_bytes = ns->lba_bytes,
	                             .mem_align_bytes = 4,
	                             .preferred_io_bytes = PREFERRED_BYTES,
	                             .direct = 1,
	                             .unit = unit,
	                             .nsid = nsid,
	                             .deallocates = f->deallocates};
	if (ns->boundary_bytes >= PREFERRED_MIN && ns->boundary_bytes <= PREFERRED_MAX)
		out->preferred_io_bytes = ns->boundary_bytes;
	if (ns->boundary_bytes >= DEV_PAGE_BYTES && !(ns->boundary_bytes & (ns->boundary_bytes - 1)))
		out->boundary_bytes = ns->boundary_bytes;
	else if (ns->boundary_bytes)
		log_note("%s, namespace %u: its I/O boundary of %u bytes is no power of two of pages; not kept to",
		         f->name, nsid, ns->boundary_bytes);
	c->info.n_ns++;
	return 0;
}

static uint32_t least(uint32_t a, uint32_t b) { return b && b < a ? b : a; }

static int sum_up(struct ctrl *c, const struct ctrl_opts *opts)
{
	struct ctrl_info *info = &c->info;

	info->n_units = c->n_units;
	info->mdts_bytes = least(MDTS_MAX, opts->mdts_bytes);
	info->depth_max = 4096;
	info->qps_max = CTRL_QPS_MAX;
	info->sgl_max = opts->sgl ? SGL_MAX : 0;
	for (uint32_t i = 0; i < c->n_units; i++) {
		const struct nvme_fn *f = c->unit[i]->fn;

		info->mdts_bytes = least(info->mdts_bytes, f->mdts_bytes);
		info->depth_max = least(info->depth_max, f->depth_max);
		info->qps_max = least(info->qps_max, f->qps_max);
		info->volatile_cache |= f->volatile_cache;
		if (!f->sgl)
			info->sgl_max = 0;
	}
	snprintf(info->model, sizeof(info->model), "%.8s: %.29s", c->unit[0]->fn->t.ops->name, c->unit[0]->fn->model);
	for (uint32_t i = 0; i < info->n_ns; i++)
		if (info->mdts_bytes % info->ns[i].lba_bytes)
			return err_set(-EOPNOTSUPP, "%s: transfers of %u bytes at most are less than a block of %u",
			               c->unit[info->ns[i].unit]->fn->name, info->mdts_bytes, info->ns[i].lba_bytes);
	return 0;
}

static int nvme_open(const struct ctrl_opts *opts, struct ctrl **out)
{
	struct ctrl *c = calloc(1, sizeof(*c));
	int rc = 0;

	*out = NULL;
	if (!c)
		return err_set(-ENOMEM, "nvme: no memory for a controller");
	if (!opts->n_targets || opts->n_targets > CTRL_NS_MAX)
		rc = err_set(-EINVAL, "controller: %u targets; 1 to %u are possible", opts->n_targets, CTRL_NS_MAX);
	for (uint32_t i = 0; i < opts->n_targets && !rc; i++)
		rc = add_target(c, opts->targets[i].path);
	if (!rc)
		rc = sum_up(c, opts);
	if (rc) {
		nvme_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

static int nvme_identify(struct ctrl *c, struct ctrl_info *out)
{
	*out = c->info;
	return 0;
}

/* ---- queue pairs ---- */

static int nvme_create_on(struct ctrl *c, uint32_t unit, uint32_t depth, struct port_parker *parker, struct dev_qp *out)
{
	int rc;

	if (unit >= c->n_units)
		return err_set(-EINVAL, "queue pair: no unit %u; the controller has %u", unit, c->n_units);
	rc = nvme_qp_create(c->unit[unit]->fn, depth, parker, out);
	if (rc)
		return rc;
	mark(c, unit, out->id, 1);
	out->id |= unit << UNIT_SHIFT;
	return rc;
}

static int nvme_create(struct ctrl *c, uint32_t depth, struct port_parker *parker, struct dev_qp *out)
{
	return nvme_create_on(c, 0, depth, parker, out);
}

static int nvme_delete(struct ctrl *c, struct dev_qp *qp, uint64_t deadline_ns)
{
	struct dev_qp own = *qp;
	uint32_t unit = qp->id >> UNIT_SHIFT;
	int rc;

	if (unit >= c->n_units)
		return err_set(-EINVAL, "queue pair %#x is not one of this controller", qp->id);
	own.id &= (1u << UNIT_SHIFT) - 1;
	rc = nvme_qp_delete(c->unit[unit]->fn, &own, deadline_ns);
	if (!rc)
		mark(c, unit, qp->id & ((1u << UNIT_SHIFT) - 1), 0);
	if (!rc)
		memset(qp, 0, sizeof(*qp));
	return rc;
}

static int nvme_lost(struct ctrl *c, const struct dev_qp *qp)
{
	return nvme_qp_lost(c->unit[qp->id >> UNIT_SHIFT]->fn, qp->id & ((1u << UNIT_SHIFT) - 1));
}

/* ---- memory ---- */

static int region_check(const struct ctrl *c, uint64_t va, uint64_t bytes)
{
	if (!va || !bytes || va + bytes < va)
		return err_set(-EINVAL, "memory at %#llx, %llu bytes: not a range", (unsigned long long)va,
		               (unsigned long long)bytes);
	if (c->n_regions == REGIONS_MAX)
		return err_set(-ENOSPC,
		               "memory at %#llx: %u regions are mapped, the most possible; map fewer, larger ones",
		               (unsigned long long)va, REGIONS_MAX);
	for (uint32_t i = 0; i < c->n_regions; i++)
		if (va < c->regions[i].va + c->regions[i].bytes && c->regions[i].va < va + bytes)
			return err_set(-EEXIST, "memory at %#llx, %llu bytes: overlaps memory that is mapped already",
			               (unsigned long long)va, (unsigned long long)bytes);
	return 0;
}

static int nvme_map(struct ctrl *c, void *memory, uint64_t bytes, uint64_t *dma_addr, int *registered)
{
	const struct nvme_transport *t = &c->unit[0]->fn->t;
	uint64_t va = (uint64_t)(uintptr_t)memory;
	struct region r = {.va = va, .bytes = bytes};
	int rc = region_check(c, va, bytes);

	if (rc)
		return rc;
	if (c->n_regions % 64 == 0) {
		struct region *grown = realloc(c->regions, (c->n_regions + 64) * sizeof(*grown));

		if (!grown)
			return err_set(-ENOMEM, "nvme: no memory for %u regions", c->n_regions + 64);
		c->regions = grown;
	}
	r.page_va = dev_page_of(va);
	r.page_bytes = dev_page_of(va + bytes + DEV_PAGE_BYTES - 1) - r.page_va;
	rc = t->ops->dma_map(t->self, (void *)(uintptr_t)r.page_va, r.page_bytes, &r.runs, &r.n_runs);
	if (rc)
		return rc;
	c->regions[c->n_regions++] = r;
	if (dma_addr)
		*dma_addr = r.runs[0].dma + (va - r.page_va);
	if (registered)
		*registered = 1;
	return 0;
}

static struct region *region_find(struct ctrl *c, const void *memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < c->n_regions; i++)
		if (c->regions[i].va == (uint64_t)(uintptr_t)memory && c->regions[i].bytes == bytes)
			return &c->regions[i];
	err_set(-ENOENT, "memory at %p, %llu bytes: not mapped like this", memory, (unsigned long long)bytes);
	return NULL;
}

static int nvme_unmap(struct ctrl *c, void *memory, uint64_t bytes)
{
	const struct nvme_transport *t = &c->unit[0]->fn->t;
	struct region *r = region_find(c, memory, bytes);
	int rc;

	if (!r)
		return -ENOENT;
	rc = t->ops->dma_unmap(t->self, (void *)(uintptr_t)r->page_va, r->page_bytes, r->runs, r->n_runs);
	if (rc)
		return rc;
	free(r->runs);
	*r = c->regions[--c->n_regions];
	return 0;
}

static int nvme_runs(struct ctrl *c, const void *memory, uint64_t bytes, ctrl_run_fn run, void *arg)
{
	const struct region *r = region_find(c, memory, bytes);
	uint64_t at, end;
	int rc = r ? 0 : -ENOENT;

	/* Runs cover whole pages; what was asked for may begin and end inside of one. */
	at = r ? r->page_va : 0;
	for (uint32_t i = 0; r && i < r->n_runs && !rc; i++, at = end) {
		uint64_t from = at < r->va ? r->va : at, to;

		end = at + r->runs[i].bytes;
		to = end < r->va + r->bytes ? end : r->va + r->bytes;
		if (from < to)
			rc = run(arg, from, to - from, r->runs[i].dma + (from - at));
	}
	return rc;
}

const struct ctrl_ops ctrl_vfio = {
    .name = "vfio",
    .open = nvme_open,
    .close = nvme_close,
    .identify = nvme_identify,
    .qp_create = nvme_create,
    .qp_create_on = nvme_create_on,
    .qp_delete = nvme_delete,
    .mem_map = nvme_map,
    .mem_runs = nvme_runs,
    .mem_unmap = nvme_unmap,
    .qp_lost = nvme_lost,
};
