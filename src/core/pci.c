#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/pci.h"

#define PCI_FOLDER "/sys/bus/pci/devices"
#define CLASS_NVME 0x010802ul
#define CLASS_DISPLAY 0x03ul /* upper byte */
#define VENDOR_NVIDIA 0x10deul

static unsigned long number_of(const char *device, const char *name)
{
	char path[384], text[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), PCI_FOLDER "/%.255s/%s", device, name);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	fclose(f);
	return strtoul(text, NULL, 16);
}

static void driver_of(const char *device, char *driver, size_t bytes)
{
	char path[384], target[512];
	const char *name;
	ssize_t n;

	driver[0] = 0;
	snprintf(path, sizeof(path), PCI_FOLDER "/%.255s/driver", device);
	n = readlink(path, target, sizeof(target) - 1);
	if (n <= 0)
		return;
	target[n] = 0;
	name = strrchr(target, '/');
	snprintf(driver, bytes, "%.31s", name ? name + 1 : target);
}

static void look(struct pci_found *f, const char *device)
{
	unsigned long class_code = number_of(device, "class");

	if (class_code >> 16 == CLASS_DISPLAY && number_of(device, "vendor") == VENDOR_NVIDIA)
		f->gpus++;
	if (class_code != CLASS_NVME)
		return;
	if (f->n_nvme == PCI_NVME_MAX) {
		f->n_nvme_left++;
		return;
	}
	snprintf(f->nvme[f->n_nvme].address, sizeof(f->nvme[0].address), "%.31s", device);
	driver_of(device, f->nvme[f->n_nvme].driver, sizeof(f->nvme[0].driver));
	f->n_nvme++;
}

static unsigned count_entries(const char *folder)
{
	DIR *d = opendir(folder);
	const struct dirent *e;
	unsigned n = 0;

	while (d && (e = readdir(d)))
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

static int by_address(const void *a, const void *b)
{
	return strcmp(((const struct pci_nvme *)a)->address, ((const struct pci_nvme *)b)->address);
}

void core_pci_find(struct pci_found *f)
{
	DIR *d = opendir(PCI_FOLDER);
	const struct dirent *e;

	*f = (struct pci_found){0};
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			look(f, e->d_name);
	if (d)
		closedir(d);
	qsort(f->nvme, f->n_nvme, sizeof(f->nvme[0]), by_address);
	f->iommu_groups = count_entries("/sys/kernel/iommu_groups");
}
