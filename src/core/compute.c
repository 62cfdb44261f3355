/* compute.c - streams for the engine's compute, off the I/O kernels' SMs. */
#include <errno.h>

#include "base/err.h"
#include "exec/exec.h"
#include "tutti/tutti.h"

int tutti_compute_stream(uint32_t io_sms, int priority, void **stream, uint32_t *sms)
{
	if (!stream || !sms)
		return err_set(-EINVAL, "tutti_compute_stream: NULL");
	return exec_cuda_compute_stream(io_sms, priority, stream, sms);
}
