/* virt.c - the virtual controller: the software front over io_uring, or over what a test gives. */
#include "ctrl/soft.h"

static int ctrl_virt_open(const struct ctrl_opts *opts, struct ctrl **out)
{
	return ctrl_soft_open(opts, opts->io_ops ? opts->io_ops : &ctrl_io_uring, opts->io_arg, out);
}

const struct ctrl_ops ctrl_virt = {
	.name = "virt",
	.open = ctrl_virt_open,
	.close = ctrl_soft_close,
	.identify = ctrl_soft_identify,
	.qp_create = ctrl_soft_qp_create,
	.qp_delete = ctrl_soft_qp_delete,
	.mem_map = ctrl_soft_mem_map,
	.mem_unmap = ctrl_soft_mem_unmap,
	.counters = ctrl_counters,
	.awake = ctrl_soft_awake,
};
