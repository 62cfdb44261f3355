/* nvme_identify.c - asks a controller what it is and can do, and how many queues we may have. */
#include "ctrl/nvme_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

static int identify(struct nvme_fn *f, uint32_t cns, uint32_t nsid, const void **data)
{
	struct nvme_sqe e = {.opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns};
	int rc;

	e.dptr.prp.prp1 = f->memory_dma + 2 * DEV_PAGE_BYTES;
	memset(f->memory + 2 * DEV_PAGE_BYTES, 0, DEV_PAGE_BYTES);
	rc = nvme_admin_run(f, &e, port_now_ns() + f->admin_ns, NULL);
	*data = f->memory + 2 * DEV_PAGE_BYTES;
	if (rc > 0)
		return err_set(rc, "%s: Identify (CNS %u, namespace %u) failed: %s", f->name, cns, nsid, err_name(rc));
	return rc;
}

/* Padded with blanks, not ended: as text. What isn't printable becomes a question mark. */
static void text_of(char *to, const char *from, size_t n)
{
	while (n && (from[n - 1] == ' ' || !from[n - 1]))
		n--;
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	to[n] = 0;
}

static int controller(struct nvme_fn *f)
{
	const struct nvme_id_ctrl *id;
	const void *data;
	int rc = identify(f, NVME_CNS_CONTROLLER, 0, &data);

	if (rc)
		return rc;
	id = data;
	text_of(f->model, id->mn, sizeof(id->mn));
	text_of(f->serial, id->sn, sizeof(id->sn));
	text_of(f->firmware, id->fr, sizeof(id->fr));
	if ((id->sqes & 15) > 6 || (id->cqes & 15) > 4)
		return err_set(-EOPNOTSUPP,
		               "%s: the controller's queue entries are larger than 64 and 16 bytes (%#x, %#x)", f->name,
		               id->sqes, id->cqes);
	f->mdts_bytes = id->mdts == 0 ? 0 : id->mdts < 19 ? 4096u << id->mdts : 1u << 31;
	f->sgl = (id->sgls & 3) != 0; /* all our addresses and lengths are multiples of four */
	f->volatile_cache = id->vwc & 1;
	f->deallocates = (id->oncs & NVME_ONCS_DSM) != 0;
	return 0;
}

static int name_space(struct nvme_fn *f, uint32_t nsid)
{
	const struct nvme_id_ns *id;
	struct nvme_ns *ns;
	const void *data;
	uint32_t lbaf;
	int rc;

	if (f->n_ns == NVME_NS_MAX) {
		f->n_ns_left++;
		return 0;
	}
	rc = identify(f, NVME_CNS_NAMESPACE, nsid, &data);
	if (rc)
		return rc;
	id = data;
	lbaf = id->flbas & 15;
	ns = &f->ns[f->n_ns++];
	*ns = (struct nvme_ns){.nsid = nsid, .metadata_bytes = id->lbaf[lbaf].ms};
	if (id->lbaf[lbaf].lbads >= 9 && id->lbaf[lbaf].lbads < 32) {
		ns->lba_bytes = 1u << id->lbaf[lbaf].lbads;
		if (id->nsze <= UINT64_MAX >> id->lbaf[lbaf].lbads)
			ns->bytes = id->nsze << id->lbaf[lbaf].lbads;
		if ((uint64_t)id->noiob * ns->lba_bytes < 1u << 31)
			ns->boundary_bytes = id->noiob * ns->lba_bytes;
	}
	return 0;
}

int nvme_fn_identify(struct nvme_fn *f)
{
	uint32_t list[DEV_PAGE_BYTES / sizeof(uint32_t)];
	const void *data;
	int rc = controller(f);

	if (!rc)
		rc = identify(f, NVME_CNS_ACTIVE_LIST, 0, &data);
	if (rc)
		return rc;
	memcpy(list, data, sizeof(list)); /* the next Identify uses the page again */
	for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]) && list[i] && !rc; i++)
		rc = name_space(f, list[i]);
	if (f->n_ns_left)
		log_warn("%s: %u namespaces; only the first %u can be used", f->name, f->n_ns + f->n_ns_left,
		         NVME_NS_MAX);
	return rc;
}

int nvme_fn_features(struct nvme_fn *f)
{
	struct nvme_sqe e = {.opcode = NVME_ADMIN_SET_FEATURES,
	                     .cdw10 = NVME_FEATURE_QUEUES,
	                     .cdw11 = (CTRL_QPS_MAX - 1) << 16 | (CTRL_QPS_MAX - 1)};
	uint32_t granted = 0, sqs, cqs;
	uint64_t room;
	int rc = nvme_admin_run(f, &e, port_now_ns() + f->admin_ns, &granted);

	if (rc)
		return rc > 0 ? err_set(rc, "%s: the controller refuses a number of queues: %s", f->name, err_name(rc))
		              : rc;
	sqs = (granted & 0xffff) + 1;
	cqs = (granted >> 16) + 1;
	f->qps_max = sqs < cqs ? sqs : cqs;
	/* Doorbells behind the mapped part of BAR 0 are out of reach. */
	room = (f->t.bar0_bytes - NVME_REG_DOORBELLS) / (8u << NVME_CAP_DSTRD(f->cap));
	if (f->qps_max > room - 1)
		f->qps_max = (uint32_t)(room - 1);
	if (f->qps_max > CTRL_QPS_MAX)
		f->qps_max = CTRL_QPS_MAX;
	return 0;
}

const struct nvme_ns *nvme_ns_find(const struct nvme_fn *f, uint32_t nsid)
{
	for (uint32_t i = 0; i < f->n_ns; i++)
		if (f->ns[i].nsid == nsid)
			return &f->ns[i];
	return NULL;
}
