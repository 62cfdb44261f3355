/*
 * gpu_registers.c - registers of another device (a page of a drive's BAR 0, with its doorbells) for GPU threads.
 *
 * All queue pairs of a drive ring in the same page, for all lanes of the process, and CUDA takes a page once: users are
 * counted.
 */
#include "exec/gpu.h"

#include <errno.h>

#include "base/err.h"

#define PAGES_MAX 64u

static struct {
	pthread_mutex_t lock;
	struct {
		void *p;
		uint32_t users;
	} page[PAGES_MAX];
	uint32_t n;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Under the lock: where p is, or n. */
static uint32_t find(const void *p)
{
	uint32_t i = 0;

	while (i < shared.n && shared.page[i].p != p)
		i++;
	return i;
}

int gpu_registers_known(void *p)
{
	uint32_t i;

	pthread_mutex_lock(&shared.lock);
	i = find(p);
	if (i < shared.n)
		shared.page[i].users++;
	pthread_mutex_unlock(&shared.lock);
	return i < shared.n;
}

int gpu_registers_share(void *p, uint64_t bytes)
{
	unsigned flags = cudaHostRegisterIoMemory | cudaHostRegisterMapped | cudaHostRegisterPortable;
	int rc = 0;

	if (gpu_registers_known(p))
		return 0;
	pthread_mutex_lock(&shared.lock);
	if (shared.n == PAGES_MAX)
		rc = err_set(-ENOSPC, "cuda: registers of %u devices are shared, the most possible", PAGES_MAX);
	else
		rc = gpu_error(cudaHostRegister(p, bytes, flags), "giving a drive's doorbells to the GPU");
	if (!rc) {
		shared.page[shared.n].p = p;
		shared.page[shared.n++].users = 1;
	}
	pthread_mutex_unlock(&shared.lock);
	return rc;
}

int gpu_registers_unshare(void *p)
{
	uint32_t i;
	int known;

	pthread_mutex_lock(&shared.lock);
	i = find(p);
	known = i < shared.n;
	if (known && --shared.page[i].users == 0) {
		gpu_error(cudaHostUnregister(p), "taking a drive's doorbells from the GPU");
		shared.page[i] = shared.page[--shared.n];
	}
	pthread_mutex_unlock(&shared.lock);
	return known;
}

int exec_cuda_registers(void *p, uint64_t bytes)
{
	int rc = gpu_registers_share(p, bytes);

	if (!rc)
		gpu_registers_unshare(p);
	return rc;
}
