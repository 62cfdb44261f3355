/*
 * gpu_green.c - SMs of our own: green contexts, one for the I/O kernels and one for what they leave.
 *
 * They are made once and kept: a process has few kinds, and the driver does not give all of one's memory back. Lanes of
 * equal size share theirs, and so its SMs.
 */
#include "exec/gpu.h"

#include <string.h>

#define GREENS_MAX 16u

struct green {
	int device;
	uint32_t asked;
	CUgreenCtx context[2]; /* ours, the rest */
	uint32_t sms[2];
};

static struct {
	pthread_mutex_t lock;
	uint32_t n;
	struct green made[GREENS_MAX];
} greens = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef CUresult (*resource_fn)(CUdevice, CUdevResource *, CUdevResourceType);
typedef CUresult (*split_fn)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned);
typedef CUresult (*desc_fn)(CUdevResourceDesc *, CUdevResource *, unsigned);
typedef CUresult (*create_fn)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
typedef CUresult (*stream_fn)(CUstream *, CUgreenCtx, unsigned, int);

static CUresult split(int device, uint32_t asked, CUdevResource part[2])
{
	resource_fn resource = (resource_fn)gpu_driver_fn("cuDeviceGetDevResource");
	split_fn divide = (split_fn)gpu_driver_fn("cuDevSmResourceSplitByCount");
	CUdevResource all;
	unsigned n = 1;
	CUresult rc;

	if (!resource || !divide)
		return CUDA_ERROR_NOT_FOUND;
	rc = resource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
	if (rc)
		return rc;
	/* Without neighbours' company two SMs will do; a driver that doesn't know that gives eight. */
	rc = divide(&part[0], &n, &all, &part[1], CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, asked);
	if (!rc)
		return rc;
	n = 1;
	return divide(&part[0], &n, &all, &part[1], 0, asked);
}

static CUresult make(struct green *g)
{
	desc_fn describe = (desc_fn)gpu_driver_fn("cuDevResourceGenerateDesc");
	create_fn create = (create_fn)gpu_driver_fn("cuGreenCtxCreate");
	CUdevResource part[2];
	CUresult rc = describe && create ? split(g->device, g->asked, part) : CUDA_ERROR_NOT_FOUND;

	for (int i = 0; i < 2 && !rc; i++) {
		CUdevResourceDesc desc;

		rc = describe(&desc, &part[i], 1);
		if (!rc)
			rc = create(&g->context[i], desc, g->device, CU_GREEN_CTX_DEFAULT_STREAM);
		g->sms[i] = part[i].sm.smCount;
	}
	return rc;
}

static CUresult find(int device, uint32_t asked, struct green *out)
{
	CUresult rc = CUDA_SUCCESS;
	uint32_t i = 0;

	pthread_mutex_lock(&greens.lock);
	while (i < greens.n && (greens.made[i].device != device || greens.made[i].asked != asked))
		i++;
	if (i == GREENS_MAX) {
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (i == greens.n) {
		greens.made[i] = (struct green){.device = device, .asked = asked};
		rc = make(&greens.made[i]);
		greens.n += rc == CUDA_SUCCESS;
	}
	if (!rc)
		*out = greens.made[i];
	pthread_mutex_unlock(&greens.lock);
	return rc;
}

int gpu_green_stream(int device, uint32_t asked, int rest, int priority, CUstream *out, uint32_t *sms)
{
	stream_fn create = (stream_fn)gpu_driver_fn("cuGreenCtxStreamCreate");
	struct green g;
	CUresult rc = create ? find(device, asked, &g) : CUDA_ERROR_NOT_FOUND;

	if (!rc)
		rc = create(out, g.context[rest], CU_STREAM_NON_BLOCKING, priority);
	if (!rc)
		*sms = g.sms[rest];
	return (int)rc;
}
