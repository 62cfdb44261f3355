/*
 * pci.h - what the PCI bus has for us, as /sys tells it.
 */
#ifndef TUTTI_CORE_PCI_H
#define TUTTI_CORE_PCI_H

#define PCI_NVME_MAX 16

struct pci_nvme {
	char address[32]; /* "0000:01:00.0" */
	char driver[32];  /* "": nobody */
};

struct pci_found {
	struct pci_nvme nvme[PCI_NVME_MAX];
	unsigned n_nvme, n_nvme_left; /* left: more than fit */
	unsigned gpus;                /* of NVIDIA */
	unsigned iommu_groups;
};

/* Nothing found where /sys can't be read. */
void core_pci_find(struct pci_found *f);

#endif
