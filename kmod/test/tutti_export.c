// SPDX-License-Identifier: GPL-2.0-only
/*
 * tutti_export.c - stands in for a GPU's driver in tests: gives out dma-bufs,
 * and counts what importers hold of them.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "export.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif

#define BAR 2

static struct pci_dev *card;
static atomic_t attached, pinned, mapped, alive;

struct buffer {
	u32 kind, piece;
	u64 offset, bytes;
	struct page **pages;
	long n;
};

/* ---- what importers ask for ---- */

static int export_attach(struct dma_buf *buf, struct dma_buf_attachment *att)
{
	struct buffer *e = buf->priv;

	/* as nvidia.ko: the BAR is reached by peers or not at all */
	if (e->kind != TUTTI_EXPORT_PAGES &&
	    dma_buf_attachment_is_dynamic(att) && !att->peer2peer)
		return -EOPNOTSUPP;
	atomic_inc(&attached);
	return 0;
}

static void export_detach(struct dma_buf *buf, struct dma_buf_attachment *att)
{
	atomic_dec(&attached);
}

static int export_pin(struct dma_buf_attachment *att)
{
	dma_resv_assert_held(att->dmabuf->resv);
	atomic_inc(&pinned);
	return 0;
}

static void export_unpin(struct dma_buf_attachment *att)
{
	dma_resv_assert_held(att->dmabuf->resv);
	atomic_dec(&pinned);
}

static void unmap_pieces(struct device *dev, struct sg_table *sgt, int n)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgt->sgl, sg, n, i)
		dma_unmap_resource(dev, sg_dma_address(sg), sg_dma_len(sg),
				   DMA_BIDIRECTIONAL, 0);
}

static int map_pieces(struct buffer *e, struct device *dev,
		      struct sg_table *sgt)
{
	u64 piece = e->piece ?: e->bytes;
	int i, n = e->bytes / piece;
	struct scatterlist *sg;
	int ret = sg_alloc_table(sgt, n, GFP_KERNEL);

	if (ret)
		return ret;
	for_each_sg(sgt->sgl, sg, n, i) {
		/* shuffled: piece i of the buffer lies at place 7 i + 3 */
		phys_addr_t at = pci_resource_start(card, BAR) + e->offset +
				 (n > 1 ? (i * 7 + 3) % n : 0) * piece;
		dma_addr_t dma = at;

		if (e->kind == TUTTI_EXPORT_BAR)
			dma = dma_map_resource(dev, at, piece,
					       DMA_BIDIRECTIONAL, 0);
		if (dma_mapping_error(dev, dma)) {
			unmap_pieces(dev, sgt, i);
			sg_free_table(sgt);
			return -EIO;
		}
		sg_set_page(sg, NULL, piece, 0);
		sg_dma_address(sg) = dma;
		sg_dma_len(sg) = piece;
	}
	return 0;
}

static struct sg_table *export_map(struct dma_buf_attachment *att,
				   enum dma_data_direction dir)
{
	struct sg_table *sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	struct buffer *e = att->dmabuf->priv;
	int ret;

	if (!sgt)
		return ERR_PTR(-ENOMEM);
	if (e->kind == TUTTI_EXPORT_PAGES) {
		ret = sg_alloc_table_from_pages(sgt, e->pages, e->n, 0,
						e->bytes, GFP_KERNEL);
		if (!ret) {
			ret = dma_map_sgtable(att->dev, sgt, dir, 0);
			if (ret)
				sg_free_table(sgt);
		}
	} else {
		ret = map_pieces(e, att->dev, sgt);
	}
	if (ret) {
		kfree(sgt);
		return ERR_PTR(ret);
	}
	atomic_inc(&mapped);
	return sgt;
}

static void export_unmap(struct dma_buf_attachment *att, struct sg_table *sgt,
			 enum dma_data_direction dir)
{
	struct buffer *e = att->dmabuf->priv;

	if (e->kind == TUTTI_EXPORT_PAGES)
		dma_unmap_sgtable(att->dev, sgt, dir, 0);
	else if (e->kind == TUTTI_EXPORT_BAR)
		unmap_pieces(att->dev, sgt, sgt->nents);
	sg_free_table(sgt);
	kfree(sgt);
	atomic_dec(&mapped);
}

static void export_free(struct buffer *e)
{
	while (e->n)
		__free_page(e->pages[--e->n]);
	kvfree(e->pages);
	kfree(e);
}

static void export_release(struct dma_buf *buf)
{
	export_free(buf->priv);
	atomic_dec(&alive);
}

static int export_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	struct buffer *e = buf->priv;

	return e->pages ? vm_map_pages(vma, e->pages, e->n) : -EOPNOTSUPP;
}

static const struct dma_buf_ops pages_ops = {
	.attach = export_attach,
	.detach = export_detach,
	.pin = export_pin,
	.unpin = export_unpin,
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.release = export_release,
	.mmap = export_mmap,
};

static const struct dma_buf_ops bar_ops = {
	.attach = export_attach,
	.detach = export_detach,
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.release = export_release,
};

/* ---- the file ---- */

/* Every second page is taken and given back: neighbours in the buffer are
 * rarely neighbours in memory.
 */
static int scatter(struct buffer *e)
{
	long want = e->bytes >> PAGE_SHIFT;
	struct page *spare;

	e->pages = kvcalloc(want, sizeof(*e->pages), GFP_KERNEL);
	if (!e->pages)
		return -ENOMEM;
	while (e->n < want) {
		spare = alloc_page(GFP_KERNEL);
		e->pages[e->n] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (spare)
			__free_page(spare);
		if (!e->pages[e->n])
			return -ENOMEM;
		e->n++;
	}
	/* and no two in order */
	for (want = 0; want + 2 < e->n; want += 3)
		swap(e->pages[want], e->pages[want + 2]);
	return 0;
}

static bool valid(const struct tutti_export_new *a)
{
	if (!a->bytes || a->bytes > SZ_64M || !PAGE_ALIGNED(a->bytes) ||
	    !PAGE_ALIGNED(a->offset) || !PAGE_ALIGNED(a->piece) || a->rsvd)
		return false;
	if (a->kind == TUTTI_EXPORT_PAGES)
		return true;
	return a->kind <= TUTTI_EXPORT_RAW && card &&
	       a->offset <= pci_resource_len(card, BAR) &&
	       a->bytes <= pci_resource_len(card, BAR) - a->offset &&
	       (!a->piece || a->bytes % a->piece == 0);
}

static int export_new(struct tutti_export_new __user *arg)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct tutti_export_new a;
	struct dma_buf *buf;
	struct buffer *e;
	int ret;

	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	if (!valid(&a))
		return -EINVAL;
	e = kzalloc(sizeof(*e), GFP_KERNEL);
	if (!e)
		return -ENOMEM;
	e->kind = a.kind;
	e->piece = a.piece;
	e->offset = a.offset;
	e->bytes = a.bytes;
	ret = a.kind == TUTTI_EXPORT_PAGES ? scatter(e) : 0;
	info.ops = a.kind == TUTTI_EXPORT_PAGES ? &pages_ops : &bar_ops;
	info.size = e->bytes;
	info.flags = O_RDWR;
	info.priv = e;
	buf = ret ? ERR_PTR(ret) : dma_buf_export(&info);
	if (IS_ERR(buf)) {
		export_free(e);
		return PTR_ERR(buf);
	}
	atomic_inc(&alive);
	a.fd = dma_buf_fd(buf, O_CLOEXEC);
	if (a.fd < 0) {
		dma_buf_put(buf);
		return a.fd;
	}
	return copy_to_user(arg, &a, sizeof(a)) ? -EFAULT : 0;
}

static int export_move(int fd)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	dma_resv_lock(buf->resv, NULL);
	dma_buf_move_notify(buf);
	dma_resv_unlock(buf->resv);
	dma_buf_put(buf);
	return 0;
}

static long export_ioctl(struct file *f, unsigned int cmd, unsigned long arg)
{
	struct tutti_export_held held = {
		.attached = atomic_read(&attached),
		.pinned = atomic_read(&pinned),
		.mapped = atomic_read(&mapped),
		.alive = atomic_read(&alive),
	};

	switch (cmd) {
	case TUTTI_EXPORT_NEW:
		return export_new((void __user *)arg);
	case TUTTI_EXPORT_MOVE:
		return export_move(arg);
	case TUTTI_EXPORT_HELD:
		if (copy_to_user((void __user *)arg, &held, sizeof(held)))
			return -EFAULT;
		return 0;
	}
	return -ENOTTY;
}

static const struct file_operations export_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = export_ioctl,
};

static struct miscdevice export_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "tutti_export",
	.mode = 0600,
	.fops = &export_fops,
};

static int card_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret = pcim_enable_device(pdev);

	if (!ret)
		card = pdev;
	return ret;
}

static void card_remove(struct pci_dev *pdev)
{
	card = NULL;
}

static const struct pci_device_id card_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110) }, /* ivshmem */
	{}
};

static struct pci_driver card_driver = {
	.name = "tutti_export",
	.id_table = card_ids,
	.probe = card_probe,
	.remove = card_remove,
};

/* ---- faults, to see that a test would see them ---- */

static int fault;
module_param(fault, int, 0);
MODULE_PARM_DESC(fault, "1: write behind an allocation, 2: write to a freed one, 3: lose one");

/* Not __init: a stack that leads here must keep its name. */
static noinline int export_fault(void)
{
	char *p = kmalloc(64, GFP_KERNEL);

	if (!p)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(p);
	if (fault == 1)
		WRITE_ONCE(p[64], 1);
	if (fault != 3)
		kfree(p);
	OPTIMIZER_HIDE_VAR(p);
	if (fault == 2)
		WRITE_ONCE(p[32], 1);
	return 0;
}

static int __init export_init(void)
{
	int ret = fault ? export_fault() : 0;

	if (ret)
		return ret;
	ret = misc_register(&export_misc);
	if (ret)
		return ret;
	ret = pci_register_driver(&card_driver);
	if (ret)
		misc_deregister(&export_misc);
	return ret;
}

static void __exit export_exit(void)
{
	pci_unregister_driver(&card_driver);
	misc_deregister(&export_misc);
}

module_init(export_init);
module_exit(export_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stands in for a GPU's driver in tests of tutti_nvme");
