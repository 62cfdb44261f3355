/* no_cuda.c - what a build without CUDA says. `make cuda` builds exec/gpu*.c in its place. */
#include "exec/exec.h"

#include <errno.h>
#include <stdio.h>

#if !defined(TUTTI_CUDA)

#include "base/err.h"
#include "exec/standin.h"

static const char why[] = "this build has no CUDA (make cuda builds one)";

const struct exec_ops *exec_cuda(void) { return NULL; }
const struct standin_ops *standin_cuda(void) { return NULL; }

int exec_cuda_probe(char *text, uint32_t text_bytes)
{
	snprintf(text, text_bytes, "%s", why);
	return -ENOSYS;
}

int exec_cuda_registers(void *p, uint64_t bytes)
{
	(void)p;
	(void)bytes;
	return err_set(-ENOSYS, "%s", why);
}

int exec_cuda_compute_stream(uint32_t io_sms, int priority, void **stream, uint32_t *sms)
{
	(void)io_sms;
	(void)priority;
	(void)stream;
	(void)sms;
	return err_set(-ENOTSUP, "%s", why);
}

#endif
