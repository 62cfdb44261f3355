/* no_cuda.c - what a build without CUDA says. `make cuda` builds exec/cuda.cu in its place. */
#include "exec/exec.h"

#include <errno.h>
#include <stdio.h>

#if !defined(TUTTI_CUDA)

const struct exec_ops *exec_cuda(void) { return NULL; }

int exec_cuda_probe(char *text, uint32_t text_bytes)
{
	snprintf(text, text_bytes, "this build has no CUDA (make cuda builds one)");
	return -ENOSYS;
}

#endif
