/*
 * null.c - answers at once, moves nothing: the ceiling of the software above it.
 *
 * Commands are checked as always. A target only gives its size: a file or block device, or "null:SIZE".
 */
#include "ctrl/soft.h"

#include "base/err.h"

static int null_open(void *arg, const struct ctrl_opts *opts, struct ctrl_counters *counters, struct ctrl_info *info,
                     void **self)
{
	(void)arg;
	(void)counters;
	*self = NULL;
	info->n_ns = opts->n_targets;
	for (uint32_t i = 0; i < opts->n_targets; i++) {
		struct ctrl_ns_info *ns = &info->ns[i];
		struct ctrl_target t = opts->targets[i];
		struct ctrl_file f;
		int rc;

		if (!ctrl_size_path(t.path, "null:", &ns->capacity_bytes)) {
			ns->lba_bytes = opts->lba_bytes ? opts->lba_bytes : 512;
			ns->capacity_bytes -= ns->capacity_bytes % ns->lba_bytes;
			ns->preferred_io_bytes = 128u << 10;
		} else {
			t.read_only = 1;
			rc = ctrl_file_open(&t, opts->lba_bytes, 1, &f);
			if (rc)
				return rc;
			*ns = f.ns;
			ctrl_file_close(&f);
		}
		ns->mem_align_bytes = 4;
		ns->direct = 1;
	}
	return 0;
}

static void null_close(void *self) { (void)self; }

const struct ctrl_io_ops ctrl_io_null = {.model = "null", .instant = 1, .open = null_open, .close = null_close};

static int ctrl_null_open(const struct ctrl_opts *opts, struct ctrl **out)
{
	return ctrl_soft_open(opts, &ctrl_io_null, NULL, out);
}

const struct ctrl_ops ctrl_null = {
	.name = "null",
	.open = ctrl_null_open,
	.close = ctrl_soft_close,
	.identify = ctrl_soft_identify,
	.qp_create = ctrl_soft_qp_create,
	.qp_delete = ctrl_soft_qp_delete,
	.mem_map = ctrl_soft_mem_map,
	.mem_unmap = ctrl_soft_mem_unmap,
	.counters = ctrl_counters,
	.awake = ctrl_soft_awake,
};
