/* vfio_pci.c - one PCI function bound to vfio-pci: its BAR 0, configuration space, reset and MSI-X. */
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "ctrl/vfio.h"

#define PCI_COMMAND 4
#define PCI_COMMAND_MEMORY 2u
#define PCI_COMMAND_MASTER 4u
#define PCI_COMMAND_NO_INTX 0x400u

struct vfio_fn {
	char name[32];
	int group, device;
	int joined;
	uint64_t config_at;
	uint8_t *bar0;
	uint64_t bar0_bytes;
};

/* ---- the transport ---- */

static int fn_memory_get(void *self, uint64_t bytes, void **va, uint64_t *dma)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	int rc;

	(void)self;
	if (p == MAP_FAILED)
		return err_set(-ENOMEM, "no memory for %llu bytes", (unsigned long long)bytes);
	rc = vfio_space_map(p, bytes, dma);
	if (rc)
		munmap(p, bytes);
	else
		*va = p;
	if (!rc)
		madvise(p, bytes, MADV_DONTFORK); /* a child must not make our pages copies of what the drive uses */
	return rc;
}

static void fn_memory_put(void *self, void *va, uint64_t bytes, uint64_t dma)
{
	(void)self;
	if (!vfio_space_unmap(dma, bytes)) /* else the function may still reach it */
		munmap(va, bytes);
}

/* The IOMMU makes one run of any memory. */
static int fn_map(void *self, void *va, uint64_t bytes, struct nvme_run **runs, uint32_t *n)
{
	struct nvme_run *r = malloc(sizeof(*r));
	int rc;

	(void)self;
	if (!r)
		return err_set(-ENOMEM, "no memory to map %llu bytes", (unsigned long long)bytes);
	r->bytes = bytes;
	rc = vfio_space_map(va, bytes, &r->dma);
	if (rc) {
		free(r);
		return rc;
	}
	*runs = r;
	*n = 1;
	return 0;
}

static int fn_unmap(void *self, void *va, uint64_t bytes, const struct nvme_run *runs, uint32_t n)
{
	(void)self;
	(void)va;
	(void)n;
	return vfio_space_unmap(runs[0].dma, bytes);
}

static int fn_bus_master(void *self, int on)
{
	const struct vfio_fn *v = self;
	off_t at = (off_t)(v->config_at + PCI_COMMAND);
	uint16_t command, wanted, seen;

	if (pread(v->device, &command, sizeof(command), at) != sizeof(command) || command == 0xffff)
		return err_set(-ENODEV, "%s: its configuration space can't be read; was it removed?", v->name);
	wanted = (uint16_t)((command & ~PCI_COMMAND_MASTER) | PCI_COMMAND_MEMORY | PCI_COMMAND_NO_INTX);
	wanted |= on ? PCI_COMMAND_MASTER : 0;
	if (pwrite(v->device, &wanted, sizeof(wanted), at) != sizeof(wanted) ||
	    pread(v->device, &seen, sizeof(seen), at) != sizeof(seen) ||
	    (seen & PCI_COMMAND_MASTER) != (wanted & PCI_COMMAND_MASTER))
		return err_set(-EIO, "%s: bus mastering can't be turned %s", v->name, on ? "on" : "off");
	return 0;
}

static int fn_reset(void *self)
{
	const struct vfio_fn *v = self;

	return ioctl(v->device, VFIO_DEVICE_RESET) ? -errno : 0;
}

static int fn_interrupts(void *self, const int *eventfds, uint32_t n)
{
	const struct vfio_fn *v = self;
	union {
		struct vfio_irq_set set;
		uint8_t bytes[sizeof(struct vfio_irq_set) + NVME_VECTORS_MAX * sizeof(int32_t)];
	} u;
	int rc;

	memset(&u, 0, sizeof(u));
	u.set.argsz = (uint32_t)(sizeof(u.set) + n * sizeof(int32_t));
	u.set.flags = VFIO_IRQ_SET_ACTION_TRIGGER | (n ? VFIO_IRQ_SET_DATA_EVENTFD : VFIO_IRQ_SET_DATA_NONE);
	u.set.index = VFIO_PCI_MSIX_IRQ_INDEX;
	u.set.count = n;
	if (n)
		memcpy(u.set.data, eventfds, n * sizeof(int32_t));
	if (!ioctl(v->device, VFIO_DEVICE_SET_IRQS, &u.set))
		return 0;
	rc = -errno;
	return err_set(rc, "%s: %u MSI-X interrupts can't be had: %s", v->name, n, err_name(rc));
}

static void fn_close(void *self)
{
	struct vfio_fn *v = self;

	if (v->bar0)
		munmap(v->bar0, v->bar0_bytes);
	if (v->device >= 0)
		close(v->device); /* vfio-pci stops and resets it */
	if (v->joined)
		vfio_space_leave(v->group);
	if (v->group >= 0)
		close(v->group);
	free(v);
}

static const struct nvme_transport_ops vfio_ops = {.name = "vfio",
                                                   .memory_get = fn_memory_get,
                                                   .memory_put = fn_memory_put,
                                                   .dma_map = fn_map,
                                                   .dma_unmap = fn_unmap,
                                                   .bus_master = fn_bus_master,
                                                   .reset = fn_reset,
                                                   .interrupts = fn_interrupts,
                                                   .close = fn_close};

/* ---- the claim ---- */

/* The last word of a symbolic link of the function's, "" if there is none. */
static void link_name(const char *function, const char *what, char *out, size_t bytes)
{
	char path[128], target[512];
	const char *slash;
	ssize_t n;

	out[0] = 0;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", function, what);
	n = readlink(path, target, sizeof(target) - 1);
	if (n <= 0)
		return;
	target[n] = 0;
	slash = strrchr(target, '/');
	snprintf(out, bytes, "%.63s", slash ? slash + 1 : target);
}

static int check_binding(const char *function, char *group, size_t bytes)
{
	char path[128], driver[64];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", function);
	if (access(path, F_OK))
		return err_set(-ENODEV, "there is no PCI function %s ('tutti nvme list' shows what there is)",
		               function);
	link_name(function, "driver", driver, sizeof(driver));
	if (strcmp(driver, "vfio-pci"))
		return err_set(-EBUSY, "%s belongs to %s%s; take it for tutti with: tutti nvme claim %s SERIAL",
		               function, driver[0] ? "the kernel's driver " : "no driver", driver, function);
	link_name(function, "iommu_group", group, bytes);
	if (!group[0])
		return err_set(-EOPNOTSUPP,
		               "%s is behind no IOMMU, and without one VFIO can't protect memory from it; turn it "
		               "on (firmware: VT-d or AMD-Vi; kernel: intel_iommu=on)",
		               function);
	return 0;
}

static int open_group(struct vfio_fn *v, const char *number)
{
	struct vfio_group_status status = {.argsz = sizeof(status)};
	char path[96];
	int rc;

	snprintf(path, sizeof(path), "/dev/vfio/%.60s", number);
	v->group = open(path, O_RDWR | O_CLOEXEC);
	if (v->group < 0) {
		rc = -errno;
		if (rc == -EBUSY)
			return err_set(rc, "%s: another process drives it (%s is open)", v->name, path);
		if (rc == -EACCES || rc == -EPERM)
			return err_set(rc, "%s: no permission for %s; give it to your user: chown USER %s", v->name,
			               path, path);
		return err_set(rc, "%s: cannot open %s: %s", v->name, path, err_name(rc));
	}
	if (ioctl(v->group, VFIO_GROUP_GET_STATUS, &status))
		return err_set(-errno, "%s: %s does not answer: %s", v->name, path, err_name(-errno));
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return err_set(-EPERM,
		               "%s shares IOMMU group %s with functions that kernel drivers have; bind all of "
		               "/sys/kernel/iommu_groups/%s/devices to vfio-pci, or move the drive to another slot",
		               v->name, number, number);
	return 0;
}

static int open_device(struct vfio_fn *v, uint32_t *n_vectors)
{
	struct vfio_region_info bar = {.argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX};
	struct vfio_region_info config = {.argsz = sizeof(config), .index = VFIO_PCI_CONFIG_REGION_INDEX};
	struct vfio_irq_info irq = {.argsz = sizeof(irq), .index = VFIO_PCI_MSIX_IRQ_INDEX};
	void *p;

	v->device = ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, v->name);
	if (v->device < 0)
		return err_set(-errno, "%s: VFIO does not give the device: %s", v->name, err_name(-errno));
	if (ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &bar) ||
	    ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &config) || ioctl(v->device, VFIO_DEVICE_GET_IRQ_INFO, &irq))
		return err_set(-errno, "%s: VFIO does not describe the device: %s", v->name, err_name(-errno));
	if (!(bar.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return err_set(-EOPNOTSUPP, "%s: its BAR 0 can't be mapped", v->name);
	p = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, v->device, (off_t)bar.offset);
	if (p == MAP_FAILED)
		return err_set(-errno, "%s: mapping BAR 0 failed: %s", v->name, err_name(-errno));
	v->bar0 = p;
	v->bar0_bytes = bar.size;
	v->config_at = config.offset;
	*n_vectors = irq.count;
	return fn_bus_master(v, 0); /* memory space on: registers can be read */
}

int vfio_claim(const char *function, struct nvme_transport *out)
{
	struct vfio_fn *v;
	char group[64];
	int container, rc = check_binding(function, group, sizeof(group));

	if (rc)
		return rc;
	v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(-ENOMEM, "%s: no memory", function);
	snprintf(v->name, sizeof(v->name), "%s", function);
	v->group = v->device = -1;
	*out = (struct nvme_transport){.ops = &vfio_ops, .self = v, .space = vfio_space()};
	rc = open_group(v, group);
	if (!rc)
		rc = vfio_space_join(v->group, function, &container);
	v->joined = rc == 0;
	if (!rc)
		rc = open_device(v, &out->n_vectors);
	if (rc) {
		fn_close(v);
		return rc;
	}
	out->bar0 = v->bar0;
	out->bar0_bytes = v->bar0_bytes;
	return 0;
}
