// SPDX-License-Identifier: GPL-2.0-only
/*
 * tutti_nvme.c - hands one NVMe function to one program: registers by mmap,
 * and addresses under which the function finds memory.
 *
 * The module drives no queue and knows no command. It binds to a function only
 * by driver_override, and does what user space can't: it maps memory (the
 * program's own, dma-bufs, fresh memory for queues) through the DMA API, which
 * is right with the IOMMU translating, in pass-through and absent.
 *
 * What it promises: memory that was mapped is unpinned only when the function
 * can't reach it. A close takes bus mastering away, resets the function and
 * sees it disabled before the pages go. A removal of the function does the
 * same under the open file, whose registers read as ones from then on.
 *
 * Locks: lock (ioctls, release, remove) > mmap_lock > vm_lock (what mmap and
 * page faults look at). Where the IOMMU does not protect memory from the
 * function, whoever opens it owns the machine: CAP_SYS_RAWIO is asked for.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iommu.h>
#include <linux/iopoll.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/msi.h>
#include <linux/nvme.h>
#include <linux/pci.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/xarray.h>

#include "wire/kmod.h"

#define ID_SHIFT (TUTTI_NVME_MMAP_SHIFT - PAGE_SHIFT)
#define REGISTER_BYTES 0x2000 /* registers, and doorbells behind them */
#define READY_MAX_US (30 * USEC_PER_SEC)

struct tutti_dev {
	struct miscdevice misc;
	char *name;
	char *nodename;
	struct pci_dev *pdev;
	struct kref ref; /* bound, and open */
	void __iomem *regs;
	struct page *ones; /* what the registers look like without a function */
	u64 bar_bytes;
	unsigned int n_vectors;
	unsigned long open; /* bit 0 */
	bool stuck;         /* can't be disabled: bus mastering stays off */

	struct mutex lock;
	struct eventfd_ctx *irq[TUTTI_NVME_VECTORS_MAX];
	unsigned int n_irqs;

	struct mutex vm_lock;
	bool gone; /* both locks to write */
	struct address_space *mapping;
	struct xarray maps; /* both locks to take one out */
};

/* Memory of one of three kinds, and its addresses for the function. */
struct tutti_map {
	struct tutti_dev *td;
	struct sg_table *sgt; /* mapped for the function; NULL: no longer */
	struct sg_table own;  /* of pages and queue */
	struct page **pages;
	long n_pages; /* pinned */
	void *queue;
	size_t queue_bytes;
	struct mm_struct *mm; /* who was charged, for how many pages */
	unsigned long charged;
	struct dma_buf *buf;
	struct dma_buf_attachment *att;
};

/* ---- differences between kernels ---- */

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif

static void tutti_signal(struct eventfd_ctx *ctx)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(ctx);
#else
	eventfd_signal(ctx, 1);
#endif
}

static bool tutti_isolates_msi(struct device *dev)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return msi_device_has_isolated_msi(dev);
#else
	return device_iommu_capable(dev, IOMMU_CAP_INTR_REMAP);
#endif
}

static void tutti_vm_flags(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

/* ---- the function ---- */

/* Its IOMMU domain, if that translates. */
static struct iommu_domain *tutti_domain(struct tutti_dev *td)
{
	struct iommu_domain *dom = iommu_get_domain_for_dev(&td->pdev->dev);

	return dom && dom->type & __IOMMU_DOMAIN_PAGING ? dom : NULL;
}

static int tutti_count(struct device *dev, void *n)
{
	++*(int *)n;
	return 0;
}

/* Functions of one IOMMU group see each other's memory. */
static bool tutti_alone(struct tutti_dev *td)
{
	struct iommu_group *group = iommu_group_get(&td->pdev->dev);
	int n = 0;

	if (!group)
		return false;
	iommu_group_for_each_dev(group, &n, tutti_count);
	iommu_group_put(group);
	return n == 1;
}

/* It reaches nothing but what was mapped for it, and can fake no interrupt. */
static bool tutti_isolated(struct tutti_dev *td)
{
	return tutti_domain(td) && tutti_isolates_msi(&td->pdev->dev) &&
	       tutti_alone(td);
}

static int tutti_disable(struct tutti_dev *td)
{
	u64 us = (u64)NVME_CAP_TIMEOUT(lo_hi_readq(td->regs + NVME_REG_CAP)) *
		 500 * USEC_PER_MSEC;
	u32 cc = readl(td->regs + NVME_REG_CC);
	u32 csts;

	if (cc & NVME_CC_ENABLE)
		writel(cc & ~NVME_CC_ENABLE, td->regs + NVME_REG_CC);
	return readl_poll_timeout(td->regs + NVME_REG_CSTS, csts,
				  !(csts & NVME_CSTS_RDY), 1000,
				  min_t(u64, us, READY_MAX_US));
}

/*
 * No memory is reached any more; and nothing is left that a later opener's bus
 * mastering could wake. by_driver: the caller holds the device's lock.
 */
static void tutti_stop(struct tutti_dev *td, bool by_driver)
{
	struct pci_dev *pdev = td->pdev;
	int ret;

	pci_clear_master(pdev);
	if (!pci_device_is_present(pdev))
		return;
	pci_wait_for_pending_transaction(pdev);
	ret = by_driver ? pci_reset_function_locked(pdev)
			: pci_try_reset_function(pdev);
	if (ret)
		dev_dbg(&pdev->dev, "not reset (%d), only disabled\n", ret);
	ret = tutti_disable(td);
	WRITE_ONCE(td->stuck, ret != 0);
	if (ret)
		dev_err(&pdev->dev, "can't be disabled: stays off the bus\n");
}

static int tutti_master(struct tutti_dev *td, unsigned long on)
{
	if (on > 1)
		return -EINVAL;
	if (on) {
		pci_set_master(td->pdev);
		return 0;
	}
	pci_clear_master(td->pdev);
	return pci_wait_for_pending_transaction(td->pdev) ? 0 : -ETIMEDOUT;
}

static int tutti_reset(struct tutti_dev *td)
{
	int ret;

	pci_clear_master(td->pdev);
	ret = pci_try_reset_function(td->pdev);
	return ret == -ENOTTY ? -EOPNOTSUPP : ret;
}

/* ---- interrupts ---- */

static irqreturn_t tutti_irq(int irq, void *ctx)
{
	tutti_signal(ctx);
	return IRQ_HANDLED;
}

static void tutti_irqs_off(struct tutti_dev *td)
{
	bool any = td->n_irqs;

	while (td->n_irqs) {
		struct eventfd_ctx *ctx = td->irq[--td->n_irqs];

		free_irq(pci_irq_vector(td->pdev, td->n_irqs), ctx);
		eventfd_ctx_put(ctx);
	}
	if (any)
		pci_free_irq_vectors(td->pdev);
}

static int tutti_irqs_on(struct tutti_dev *td, const s32 *fds, unsigned int n)
{
	int ret = pci_alloc_irq_vectors(td->pdev, n, n, PCI_IRQ_MSIX);

	if (ret < 0)
		return ret;
	for (; td->n_irqs < n; td->n_irqs++) {
		struct eventfd_ctx *ctx = eventfd_ctx_fdget(fds[td->n_irqs]);

		ret = PTR_ERR_OR_ZERO(ctx);
		if (ret)
			break;
		ret = request_irq(pci_irq_vector(td->pdev, td->n_irqs),
				  tutti_irq, 0, td->name, ctx);
		if (ret) {
			eventfd_ctx_put(ctx);
			break;
		}
		td->irq[td->n_irqs] = ctx;
	}
	if (td->n_irqs == n)
		return 0;
	if (!td->n_irqs)
		pci_free_irq_vectors(td->pdev);
	tutti_irqs_off(td);
	return ret;
}

static int tutti_irqs(struct tutti_dev *td, void __user *arg)
{
	struct tutti_nvme_irqs a;
	s32 fds[TUTTI_NVME_VECTORS_MAX];

	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	if (a.n > td->n_vectors || a.rsvd)
		return -EINVAL;
	if (copy_from_user(fds, u64_to_user_ptr(a.fds), a.n * sizeof(fds[0])))
		return -EFAULT;
	tutti_irqs_off(td);
	return a.n ? tutti_irqs_on(td, fds, a.n) : 0;
}

/* ---- memory, before the function knows it ---- */

static int tutti_charge(struct tutti_map *m, unsigned long pages)
{
	int ret = account_locked_vm(current->mm, pages, true);

	if (ret)
		return ret;
	m->mm = current->mm;
	mmgrab(m->mm);
	m->charged = pages;
	return 0;
}

static int tutti_get_user(struct tutti_map *m, u64 va, u64 bytes)
{
	long n = bytes >> PAGE_SHIFT;
	int ret;

	if (!bytes || bytes > TUTTI_NVME_MAP_BYTES_MAX ||
	    !PAGE_ALIGNED(va | bytes) || va + bytes < va)
		return -EINVAL;
	ret = tutti_charge(m, n);
	if (ret)
		return ret;
	m->pages = kvcalloc(n, sizeof(*m->pages), GFP_KERNEL_ACCOUNT);
	if (!m->pages)
		return -ENOMEM;
	/* It stops where a page can't be had: what it got is let go below. */
	while (m->n_pages < n) {
		ret = pin_user_pages_fast(
			va + (m->n_pages << PAGE_SHIFT), n - m->n_pages,
			FOLL_WRITE | FOLL_LONGTERM, m->pages + m->n_pages);
		if (ret <= 0)
			return ret ?: -EFAULT;
		m->n_pages += ret;
	}
	return sg_alloc_table_from_pages(&m->own, m->pages, n, 0, bytes,
					 GFP_KERNEL_ACCOUNT);
}

static int tutti_get_queue(struct tutti_map *m, u64 bytes)
{
	int ret;

	if (!bytes || bytes > TUTTI_NVME_QUEUE_BYTES_MAX ||
	    !PAGE_ALIGNED(bytes))
		return -EINVAL;
	ret = tutti_charge(m, bytes >> PAGE_SHIFT);
	if (ret)
		return ret;
	m->queue = alloc_pages_exact(bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO |
						    __GFP_NOWARN);
	if (!m->queue)
		return -ENOMEM;
	m->queue_bytes = bytes;
	ret = sg_alloc_table(&m->own, 1, GFP_KERNEL_ACCOUNT);
	if (!ret)
		sg_set_buf(m->own.sgl, m->queue, bytes);
	return ret;
}

static int tutti_get_dmabuf(struct tutti_map *m, int fd)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	m->buf = buf;
	return 0;
}

/* The function must not know it any more. Takes mmap_lock. */
static void tutti_put(struct tutti_map *m)
{
	if (m->buf)
		dma_buf_put(m->buf);
	sg_free_table(&m->own);
	if (m->n_pages)
		unpin_user_pages_dirty_lock(m->pages, m->n_pages, true);
	kvfree(m->pages);
	if (m->queue)
		free_pages_exact(m->queue, m->queue_bytes);
	if (m->mm) {
		account_locked_vm(m->mm, m->charged, false);
		mmdrop(m->mm);
	}
	kfree(m);
}

/* ---- memory, as the function sees it ---- */

/* Pinned memory is moved: the exporter breaks its word, or revokes it. */
static void tutti_moved(struct dma_buf_attachment *att)
{
	struct tutti_map *m = att->importer_priv;

	if (!m->sgt)
		return;
	pci_clear_master(m->td->pdev);
	dev_err_ratelimited(&m->td->pdev->dev,
			    "%s moves memory that is pinned: stopped\n",
			    m->buf->exp_name);
}

static const struct dma_buf_attach_ops tutti_attach_ops = {
	.allow_peer2peer = true,
	.move_notify = tutti_moved,
};

static int tutti_attach(struct tutti_dev *td, struct tutti_map *m)
{
	struct dma_buf_attachment *att;
	struct sg_table *sgt;
	int ret;

	att = dma_buf_dynamic_attach(m->buf, &td->pdev->dev, &tutti_attach_ops,
				     m);
	if (IS_ERR(att))
		return PTR_ERR(att);
	dma_resv_lock(m->buf->resv, NULL);
	ret = dma_buf_pin(att);
	if (!ret) {
		sgt = dma_buf_map_attachment(att, DMA_BIDIRECTIONAL);
		/* nvidia.ko says no with NULL */
		ret = sgt ? PTR_ERR_OR_ZERO(sgt) : -EOPNOTSUPP;
		if (ret)
			dma_buf_unpin(att);
		else
			m->sgt = sgt;
	}
	dma_resv_unlock(m->buf->resv);
	if (ret)
		dma_buf_detach(m->buf, att);
	else
		m->att = att;
	return ret;
}

/* The IOMMU unmaps lazily: this waits until the addresses are dead. */
static void tutti_flush(struct tutti_dev *td)
{
	struct iommu_domain *dom = tutti_domain(td);

	if (dom)
		iommu_flush_iotlb_all(dom);
}

static void tutti_disconnect(struct tutti_dev *td, struct tutti_map *m)
{
	struct sg_table *sgt = m->sgt;

	if (!sgt)
		return;
	if (m->att) {
		dma_resv_lock(m->buf->resv, NULL);
		m->sgt = NULL;
		dma_buf_unmap_attachment(m->att, sgt, DMA_BIDIRECTIONAL);
		tutti_flush(td);
		dma_buf_unpin(m->att);
		dma_resv_unlock(m->buf->resv);
		dma_buf_detach(m->buf, m->att);
		m->att = NULL;
	} else {
		m->sgt = NULL;
		dma_unmap_sgtable(&td->pdev->dev, sgt, DMA_BIDIRECTIONAL, 0);
		tutti_flush(td);
	}
}

/*
 * Does every run reach the memory itself? Not where a bounce buffer stands
 * between (swiotlb), and not where an exporter gave a bare BAR address though
 * the IOMMU translates: the function would report success for data that went
 * nowhere.
 */
static int tutti_check(struct tutti_dev *td, struct tutti_map *m)
{
	struct iommu_domain *dom = tutti_domain(td);
	struct scatterlist *sg;
	u64 bytes = 0;
	bool bad = false;
	int i;

	for_each_sgtable_dma_sg(m->sgt, sg, i) {
		dma_addr_t at = sg_dma_address(sg);
		unsigned int n = sg_dma_len(sg);

		bytes += n;
		if (!n)
			bad = true;
		else if (dom)
			bad |= !iommu_iova_to_phys(dom, at) ||
			       !iommu_iova_to_phys(dom, at + n - 1);
		else
			bad |= dma_need_sync(&td->pdev->dev, at);
		cond_resched();
	}
	if (m->buf)
		bad |= bytes != m->buf->size;
	if (m->queue)
		bad |= m->sgt->nents != 1;
	if (!bad)
		return 0;
	dev_err_ratelimited(&td->pdev->dev,
			    "memory of %s can't be reached directly\n",
			    m->buf ? m->buf->exp_name : "the program");
	return -EREMOTEIO;
}

static int tutti_connect(struct tutti_dev *td, struct tutti_map *m)
{
	int ret;

	if (m->buf) {
		ret = tutti_attach(td, m);
	} else {
		ret = dma_map_sgtable(&td->pdev->dev, &m->own,
				      DMA_BIDIRECTIONAL, 0);
		if (!ret)
			m->sgt = &m->own;
	}
	if (!ret)
		ret = tutti_check(td, m);
	if (ret)
		tutti_disconnect(td, m);
	return ret;
}

static int tutti_gather(struct tutti_map *m, const struct tutti_nvme_map *a)
{
	switch (a->kind) {
	case TUTTI_NVME_MAP_USER:
		return tutti_get_user(m, a->va, a->bytes);
	case TUTTI_NVME_MAP_DMABUF:
		return tutti_get_dmabuf(m, a->fd);
	case TUTTI_NVME_MAP_QUEUE:
		return tutti_get_queue(m, a->bytes);
	}
	return -EINVAL;
}

static int tutti_insert(struct tutti_dev *td, struct tutti_map *m,
			struct tutti_nvme_map *a)
{
	int ret;

	a->runs = m->sgt->nents;
	if (m->buf)
		a->bytes = m->buf->size;
	ret = xa_alloc(&td->maps, &a->id, m, XA_LIMIT(1, TUTTI_NVME_MAPS_MAX),
		       GFP_KERNEL_ACCOUNT);
	return ret == -EBUSY ? -ENOSPC : ret;
}

static void tutti_erase(struct tutti_dev *td, u32 id)
{
	mutex_lock(&td->vm_lock);
	xa_erase(&td->maps, id);
	mutex_unlock(&td->vm_lock);
}

/* Pinning may wait for user space for ever: the lock is taken after it. */
static int tutti_map(struct tutti_dev *td, void __user *arg)
{
	struct tutti_nvme_map a;
	struct tutti_map *m;
	int ret;

	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
	if (!m)
		return -ENOMEM;
	m->td = td;
	ret = tutti_gather(m, &a);
	mutex_lock(&td->lock);
	if (!ret)
		ret = td->gone ? -ENODEV : tutti_connect(td, m);
	if (!ret) {
		ret = tutti_insert(td, m, &a);
		if (!ret && copy_to_user(arg, &a, sizeof(a))) {
			tutti_erase(td, a.id);
			ret = -EFAULT;
		}
		if (ret)
			tutti_disconnect(td, m);
	}
	mutex_unlock(&td->lock);
	if (ret)
		tutti_put(m);
	return ret;
}

static int tutti_unmap(struct tutti_dev *td, unsigned long id)
{
	struct tutti_map *m = NULL;
	int ret = -ENODEV;

	mutex_lock(&td->lock);
	if (!td->gone) {
		m = xa_load(&td->maps, id);
		ret = m ? 0 : -ENOENT;
	}
	if (m) {
		tutti_erase(td, id);
		tutti_disconnect(td, m);
	}
	mutex_unlock(&td->lock);
	if (m)
		tutti_put(m);
	return ret;
}

static int tutti_runs(struct tutti_dev *td, void __user *arg)
{
	struct tutti_nvme_run __user *to;
	struct tutti_nvme_runs a;
	struct scatterlist *sg;
	struct tutti_map *m;
	int i;

	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	if (a.rsvd)
		return -EINVAL;
	m = xa_load(&td->maps, a.id);
	if (!m)
		return -ENOENT;
	if (a.first > m->sgt->nents || a.n > m->sgt->nents - a.first)
		return -EINVAL;
	to = u64_to_user_ptr(a.runs);
	for_each_sgtable_dma_sg(m->sgt, sg, i) {
		struct tutti_nvme_run run = { sg_dma_address(sg),
					      sg_dma_len(sg) };

		if (i < a.first)
			continue;
		if (i - a.first >= a.n)
			break;
		if (copy_to_user(to + i - a.first, &run, sizeof(run)))
			return -EFAULT;
		cond_resched();
	}
	return 0;
}

/* ---- the file ---- */

static int tutti_info(struct tutti_dev *td, void __user *arg)
{
	struct tutti_nvme_info a = {
		.version = TUTTI_NVME_VERSION,
		.bar_bytes = td->bar_bytes,
		.vectors = td->n_vectors,
	};

	if (tutti_domain(td))
		a.flags |= TUTTI_NVME_TRANSLATES;
	if (tutti_isolated(td))
		a.flags |= TUTTI_NVME_ISOLATED;
	return copy_to_user(arg, &a, sizeof(a)) ? -EFAULT : 0;
}

static int tutti_locked_ioctl(struct tutti_dev *td, unsigned int cmd,
			      unsigned long arg)
{
	switch (cmd) {
	case TUTTI_NVME_INFO:
		return tutti_info(td, (void __user *)arg);
	case TUTTI_NVME_RUNS:
		return tutti_runs(td, (void __user *)arg);
	case TUTTI_NVME_MASTER:
		return tutti_master(td, arg);
	case TUTTI_NVME_RESET:
		return tutti_reset(td);
	case TUTTI_NVME_IRQS:
		return tutti_irqs(td, (void __user *)arg);
	}
	return -ENOTTY;
}

static long tutti_ioctl(struct file *f, unsigned int cmd, unsigned long arg)
{
	struct tutti_dev *td = f->private_data;
	int ret;

	if (cmd == TUTTI_NVME_MAP)
		return tutti_map(td, (void __user *)arg);
	if (cmd == TUTTI_NVME_UNMAP)
		return tutti_unmap(td, arg);
	if (mutex_lock_killable(&td->lock))
		return -EINTR;
	ret = td->gone ? -ENODEV : tutti_locked_ioctl(td, cmd, arg);
	mutex_unlock(&td->lock);
	return ret;
}

static vm_fault_t tutti_fault(struct vm_fault *vmf)
{
	struct tutti_dev *td = vmf->vma->vm_private_data;
	unsigned long pfn;
	vm_fault_t ret;

	mutex_lock(&td->vm_lock);
	if (td->gone)
		pfn = page_to_pfn(td->ones);
	else
		pfn = (pci_resource_start(td->pdev, 0) >> PAGE_SHIFT) +
		      vmf->pgoff;
	ret = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
	mutex_unlock(&td->vm_lock);
	return ret;
}

static const struct vm_operations_struct tutti_bar_ops = {
	.fault = tutti_fault,
};

static int tutti_mmap_bar(struct tutti_dev *td, struct vm_area_struct *vma)
{
	if (vma->vm_pgoff + vma_pages(vma) > td->bar_bytes >> PAGE_SHIFT)
		return -EINVAL;
	tutti_vm_flags(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP |
				    VM_DONTCOPY);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_private_data = td;
	vma->vm_ops = &tutti_bar_ops;
	return 0;
}

/* Ordinary pages, so that others (a GPU's driver) can pin them as well. */
static int tutti_mmap_queue(struct tutti_map *m, struct vm_area_struct *vma)
{
	unsigned long i;
	int ret = 0;

	if (vma_pages(vma) != m->queue_bytes >> PAGE_SHIFT)
		return -EINVAL;
	tutti_vm_flags(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	for (i = 0; i < vma_pages(vma) && !ret; i++)
		ret = vm_insert_page(vma, vma->vm_start + i * PAGE_SIZE,
				     virt_to_page(m->queue + i * PAGE_SIZE));
	return ret;
}

static int tutti_mmap(struct file *f, struct vm_area_struct *vma)
{
	struct tutti_dev *td = f->private_data;
	unsigned long id = vma->vm_pgoff >> ID_SHIFT;
	struct tutti_map *m;
	int ret;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (!id)
		return tutti_mmap_bar(td, vma);
	if (vma->vm_pgoff & (BIT(ID_SHIFT) - 1))
		return -EINVAL;
	mutex_lock(&td->vm_lock);
	m = xa_load(&td->maps, id);
	ret = m && m->queue ? tutti_mmap_queue(m, vma) : -ENOENT;
	mutex_unlock(&td->vm_lock);
	return ret;
}

static void tutti_free(struct kref *ref)
{
	struct tutti_dev *td = container_of(ref, struct tutti_dev, ref);

	xa_destroy(&td->maps);
	if (td->ones)
		__free_page(td->ones);
	pci_dev_put(td->pdev);
	kfree(td->nodename);
	kfree(td->name);
	kfree(td);
}

/* No one else opens while this runs, and remove waits for it: misc's lock. */
static int tutti_open(struct inode *inode, struct file *f)
{
	struct tutti_dev *td =
		container_of(f->private_data, struct tutti_dev, misc);

	if ((f->f_mode & (FMODE_READ | FMODE_WRITE)) !=
	    (FMODE_READ | FMODE_WRITE))
		return -EACCES;
	if (!tutti_isolated(td) && !capable(CAP_SYS_RAWIO))
		return -EPERM;
	if (READ_ONCE(td->stuck))
		return -EIO;
	if (test_and_set_bit_lock(0, &td->open))
		return -EBUSY;
	kref_get(&td->ref);
	td->mapping = f->f_mapping;
	f->private_data = td;
	return 0;
}

static int tutti_release(struct inode *inode, struct file *f)
{
	struct tutti_dev *td = f->private_data;
	struct tutti_map *m;
	unsigned long id;

	mutex_lock(&td->lock);
	if (!td->gone) {
		tutti_stop(td, false);
		tutti_irqs_off(td);
	}
	xa_for_each(&td->maps, id, m)
		tutti_disconnect(td, m);
	mutex_lock(&td->vm_lock);
	td->mapping = NULL;
	mutex_unlock(&td->vm_lock);
	mutex_unlock(&td->lock);
	xa_for_each(&td->maps, id, m) {
		xa_erase(&td->maps, id);
		tutti_put(m);
	}
	clear_bit_unlock(0, &td->open);
	kref_put(&td->ref, tutti_free);
	return 0;
}

static const struct file_operations tutti_fops = {
	.owner = THIS_MODULE,
	.open = tutti_open,
	.release = tutti_release,
	.unlocked_ioctl = tutti_ioctl,
	.mmap = tutti_mmap,
};

/* ---- the driver ---- */

/* The MSI-X table is the kernel's: registers end before its page. */
static void tutti_measure(struct tutti_dev *td)
{
	static const int tables[] = { PCI_MSIX_TABLE, PCI_MSIX_PBA };
	struct pci_dev *pdev = td->pdev;
	int n = pci_msix_vec_count(pdev), i;
	u64 end;
	u32 at;

	td->bar_bytes = pci_resource_len(pdev, 0);
	if (n < 0)
		return;
	end = td->bar_bytes;
	for (i = 0; i < ARRAY_SIZE(tables); i++) {
		pci_read_config_dword(pdev, pdev->msix_cap + tables[i], &at);
		if (!(at & PCI_MSIX_TABLE_BIR))
			end = min_t(u64, end, at & PAGE_MASK);
	}
	if (end < REGISTER_BYTES)
		return; /* no way to part them: no interrupts then */
	td->bar_bytes = end;
	td->n_vectors = min_t(unsigned int, n, TUTTI_NVME_VECTORS_MAX);
}

static int tutti_take(struct tutti_dev *td)
{
	struct pci_dev *pdev = td->pdev;
	int ret = pcim_enable_device(pdev);

	if (ret)
		return ret;
	if (!(pci_resource_flags(pdev, 0) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, 0) < REGISTER_BYTES)
		return -ENODEV;
	ret = pcim_iomap_regions(pdev, BIT(0), "tutti_nvme");
	if (ret)
		return ret;
	td->regs = pcim_iomap_table(pdev)[0];
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	/* nvidia.ko would cut its memory into pieces of 64 KiB */
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	tutti_measure(td);
	tutti_stop(td, true);
	return READ_ONCE(td->stuck) ? -EIO : 0;
}

static struct tutti_dev *tutti_new(struct pci_dev *pdev)
{
	struct tutti_dev *td = kzalloc(sizeof(*td), GFP_KERNEL);

	if (!td)
		return NULL;
	kref_init(&td->ref);
	mutex_init(&td->lock);
	mutex_init(&td->vm_lock);
	xa_init_flags(&td->maps, XA_FLAGS_ALLOC1);
	td->pdev = pci_dev_get(pdev);
	td->name = kasprintf(GFP_KERNEL, "tutti-%s", pci_name(pdev));
	td->nodename = kasprintf(GFP_KERNEL, "tutti/%s", pci_name(pdev));
	td->ones = alloc_page(GFP_KERNEL);
	if (!td->name || !td->nodename || !td->ones) {
		kref_put(&td->ref, tutti_free);
		return NULL;
	}
	memset(page_address(td->ones), 0xff, PAGE_SIZE);
	td->misc = (struct miscdevice){
		.minor = MISC_DYNAMIC_MINOR,
		.name = td->name,
		.nodename = td->nodename,
		.mode = 0600,
		.parent = &pdev->dev,
		.fops = &tutti_fops,
	};
	return td;
}

static int tutti_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct tutti_dev *td;
	int ret;

	if (pdev->class != PCI_CLASS_STORAGE_EXPRESS)
		return -ENODEV;
	if (pdev->untrusted) {
		dev_err(&pdev->dev, "behind an external port: not taken\n");
		return -EPERM;
	}
	td = tutti_new(pdev);
	if (!td)
		return -ENOMEM;
	ret = tutti_take(td);
	if (!ret)
		ret = misc_register(&td->misc);
	if (ret) {
		kref_put(&td->ref, tutti_free);
		return ret;
	}
	pci_set_drvdata(pdev, td);
	return 0;
}

static void tutti_remove(struct pci_dev *pdev)
{
	struct tutti_dev *td = pci_get_drvdata(pdev);
	struct tutti_map *m;
	unsigned long id;

	misc_deregister(&td->misc);
	mutex_lock(&td->lock);
	mutex_lock(&td->vm_lock);
	td->gone = true;
	if (td->mapping)
		unmap_mapping_range(td->mapping, 0, td->bar_bytes, 1);
	mutex_unlock(&td->vm_lock);
	tutti_stop(td, true);
	tutti_irqs_off(td);
	xa_for_each(&td->maps, id, m)
		tutti_disconnect(td, m);
	mutex_unlock(&td->lock);
	kref_put(&td->ref, tutti_free);
}

static struct pci_driver tutti_driver = {
	.name = "tutti_nvme", /* no ids: only driver_override binds it */
	.probe = tutti_probe,
	.remove = tutti_remove,
};
module_pci_driver(tutti_driver);

MODULE_LICENSE("GPL");
MODULE_VERSION("1");
MODULE_DESCRIPTION("Hands an NVMe function and addresses of memory to a program");
