/*
 * vfio.c - the container: the kernel's IOMMU domain of this process, and an allocator of addresses in it.
 *
 * Free addresses are a sorted list of ranges, first fit, from what the IOMMU says it can translate (its reserved
 * windows left out). Pieces of 2 MiB and more begin at a multiple of that, so that the IOMMU can use large pages.
 */
#include "ctrl/vfio.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/err.h"

#define RANGES_MAX 8192u
#define LARGE (2ull << 20)
#define IOVA_FIRST (1ull << 20) /* not 0: a wrong address of 0 is to be a fault */
#define INFO_BYTES 4096u

struct range {
	uint64_t first, end;
};

static struct {
	pthread_mutex_t lock;
	int fd;
	uint32_t users;
	struct range free[RANGES_MAX];
	uint32_t n_free;
} space = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

const void *vfio_space(void) { return &space; }

/* ---- addresses ---- */

static int insert(uint32_t at, struct range r)
{
	if (space.n_free == RANGES_MAX)
		return -ENOSPC;
	memmove(&space.free[at + 1], &space.free[at], (space.n_free - at) * sizeof(r));
	space.free[at] = r;
	space.n_free++;
	return 0;
}

static void take_out(uint32_t at)
{
	space.n_free--;
	memmove(&space.free[at], &space.free[at + 1], (space.n_free - at) * sizeof(space.free[0]));
}

static int iova_take(uint64_t bytes, uint64_t *iova)
{
	uint64_t align = bytes >= LARGE ? LARGE : DEV_PAGE_BYTES;

	for (uint32_t i = 0; i < space.n_free; i++) {
		struct range *r = &space.free[i], old = *r;
		uint64_t at = (r->first + align - 1) / align * align;

		if (at < r->first || at >= r->end || r->end - at < bytes)
			continue;
		*iova = at;
		r->end = at;
		if (at + bytes < old.end && insert(i + 1, (struct range){at + bytes, old.end})) {
			*r = old;
			return -ENOSPC;
		}
		if (space.free[i].first == space.free[i].end)
			take_out(i);
		return 0;
	}
	return -ENOSPC;
}

static void iova_give(uint64_t iova, uint64_t bytes)
{
	uint32_t i = 0;

	while (i < space.n_free && space.free[i].first < iova)
		i++;
	if (i && space.free[i - 1].end == iova) {
		space.free[i - 1].end += bytes;
		if (i < space.n_free && space.free[i].first == iova + bytes) {
			space.free[i - 1].end = space.free[i].end;
			take_out(i);
		}
	} else if (i < space.n_free && space.free[i].first == iova + bytes) {
		space.free[i].first = iova;
	} else {
		insert(i, (struct range){iova, iova + bytes}); /* no room: the addresses are not used again */
	}
}

/* ---- the container ---- */

static void add_usable(uint64_t first, uint64_t last)
{
	first = first < IOVA_FIRST ? IOVA_FIRST : first;
	if (last > first && last - first >= DEV_PAGE_BYTES)
		insert(space.n_free, (struct range){first, last / DEV_PAGE_BYTES * DEV_PAGE_BYTES});
}

/* What the IOMMU can translate; the interrupt window and other reserved ranges are not in it. */
static int read_ranges(void)
{
	struct vfio_iommu_type1_info *info = calloc(1, INFO_BYTES);
	uint32_t at;

	if (!info)
		return err_set(-ENOMEM, "vfio: no memory");
	space.n_free = 0;
	info->argsz = INFO_BYTES;
	if (!ioctl(space.fd, VFIO_IOMMU_GET_INFO, info) && (info->flags & VFIO_IOMMU_INFO_CAPS) &&
	    info->argsz <= INFO_BYTES) {
		for (at = info->cap_offset; at && at + sizeof(struct vfio_info_cap_header) <= info->argsz;) {
			const void *here = (const uint8_t *)info + at;
			const struct vfio_info_cap_header *h = here;
			const struct vfio_iommu_type1_info_cap_iova_range *c = here;

			for (uint32_t i = 0; h->id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE && i < c->nr_iovas; i++)
				add_usable(c->iova_ranges[i].start, c->iova_ranges[i].end);
			at = h->next;
		}
	}
	free(info);
	return space.n_free ? 0
	                    : err_set(-EOPNOTSUPP, "vfio: the kernel does not say which addresses its IOMMU takes; "
	                                  "Linux 5.4 or later is needed");
}

static int open_container(void)
{
	int rc;

	space.fd = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	if (space.fd < 0) {
		rc = -errno;
		return err_set(rc, "cannot open /dev/vfio/vfio: %s; %s", err_name(rc),
		               rc == -ENOENT ? "load the module: modprobe vfio-pci"
		                             : "see docs/nvme.md, 'Without root'");
	}
	if (ioctl(space.fd, VFIO_GET_API_VERSION) == VFIO_API_VERSION &&
	    ioctl(space.fd, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) == 1)
		return 0;
	close(space.fd);
	space.fd = -1;
	return err_set(-EOPNOTSUPP, "VFIO has no type 1 IOMMU here: modprobe vfio_iommu_type1, and is an IOMMU on "
	                            "(firmware: VT-d or AMD-Vi; kernel: intel_iommu=on)?");
}

static int join(int group, const char *function)
{
	int rc;

	if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &space.fd)) {
		rc = -errno;
		return err_set(rc, "%s: its IOMMU group can't join this process's address space: %s", function,
		               err_name(rc));
	}
	if (space.users)
		return 0;
	if (ioctl(space.fd, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU)) {
		rc = -errno;
		return err_set(rc, "%s: the IOMMU can't be set up: %s%s", function, err_name(rc),
		               rc == -EPERM ? "; without interrupt remapping vfio_iommu_type1 needs "
		                              "allow_unsafe_interrupts=1"
		                            : "");
	}
	return read_ranges();
}

int vfio_space_join(int group, const char *function, int *container)
{
	int rc = 0;

	pthread_mutex_lock(&space.lock);
	if (space.fd < 0)
		rc = open_container();
	if (!rc)
		rc = join(group, function);
	if (!rc)
		space.users++;
	if (rc && !space.users && space.fd >= 0) {
		close(space.fd);
		space.fd = -1;
	}
	*container = space.fd;
	pthread_mutex_unlock(&space.lock);
	return rc;
}

void vfio_space_leave(int group)
{
	pthread_mutex_lock(&space.lock);
	ioctl(group, VFIO_GROUP_UNSET_CONTAINER, &space.fd);
	if (--space.users == 0) {
		close(space.fd);
		space.fd = -1;
	}
	pthread_mutex_unlock(&space.lock);
}

int vfio_space_map(void *va, uint64_t bytes, uint64_t *iova)
{
	struct vfio_iommu_type1_dma_map m = {.argsz = sizeof(m),
	                                     .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
	                                     .vaddr = (uint64_t)(uintptr_t)va,
	                                     .size = bytes};
	int rc;

	pthread_mutex_lock(&space.lock);
	rc = iova_take(bytes, iova);
	if (!rc) {
		m.iova = *iova;
		if (ioctl(space.fd, VFIO_IOMMU_MAP_DMA, &m)) {
			rc = -errno;
			iova_give(*iova, bytes);
		}
	}
	pthread_mutex_unlock(&space.lock);
	if (rc == -ENOMEM)
		return err_set(
		    rc,
		    "memory at %p, %llu bytes, can't be pinned for the drive; is the memlock limit (ulimit -l) "
		    "that large?",
		    va, (unsigned long long)bytes);
	return rc ? err_set(rc, "memory at %p, %llu bytes, can't be mapped for the drive: %s", va,
	                    (unsigned long long)bytes, err_name(rc))
	          : 0;
}

int vfio_space_unmap(uint64_t iova, uint64_t bytes)
{
	struct vfio_iommu_type1_dma_unmap u = {.argsz = sizeof(u), .iova = iova, .size = bytes};
	int rc = 0;

	pthread_mutex_lock(&space.lock);
	if (ioctl(space.fd, VFIO_IOMMU_UNMAP_DMA, &u))
		rc = -errno;
	else if (u.size != bytes)
		rc = -EIO; /* less was mapped than we thought: the addresses are not used again */
	else
		iova_give(iova, bytes);
	pthread_mutex_unlock(&space.lock);
	return rc ? err_set(rc, "the drive's address %#llx, %llu bytes, can't be unmapped: %s",
	                    (unsigned long long)iova, (unsigned long long)bytes, err_name(rc))
	          : 0;
}
