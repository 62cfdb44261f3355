/*
 * nvme.c - which drives there are, and who has them: the kernel's nvme driver or, for us, vfio-pci or our own module.
 * All through /sys.
 *
 * A claim is three changes in /sys (unbind, driver_override, probe); whatever of them was done when something died, a
 * release undoes. What the drive is and whose it was is written down before the first (note.h).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "core/note.h"
#include "core/pci.h"
#include "ctrl/nvme_ctrl.h"
#include "ctrl/pnvme.h"
#include "tutti/tutti.h"

#define PCI "/sys/bus/pci"
#define PATH 512

static const char *const drivers[] = {[TUTTI_NVME_VFIO] = "vfio-pci", [TUTTI_NVME_MODULE] = PNVME_DRIVER};

/* First line of a file, without blanks at its end; "" if it can't be read. */
static void read_line(const char *path, char *out, size_t bytes)
{
	FILE *f = fopen(path, "re");
	size_t n;

	out[0] = 0;
	if (!f)
		return;
	if (!fgets(out, (int)bytes, f))
		out[0] = 0;
	fclose(f);
	for (n = strlen(out); n && (out[n - 1] == '\n' || out[n - 1] == ' ');)
		out[--n] = 0;
}

static int write_word(const char *path, const char *word)
{
	int fd = fork_open(path, O_WRONLY, 0), rc = 0;

	if (fd < 0 || write(fd, word, strlen(word)) != (ssize_t)strlen(word))
		rc = -errno;
	if (fd >= 0)
		fork_close(fd);
	return rc ? err_set(rc, "cannot write '%.40s' to %s: %s%s", word[0] == '\n' ? "" : word, path, err_name(rc),
	                    rc == -EACCES ? "; this needs root" : "")
	          : 0;
}

static void last_word(const char *link, char *out, size_t bytes)
{
	char target[PATH];
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	const char *slash;

	out[0] = 0;
	if (n <= 0)
		return;
	target[n] = 0;
	slash = strrchr(target, '/');
	snprintf(out, bytes, "%.63s", slash ? slash + 1 : target);
}

static void driver_of(const char *function, char *out, size_t bytes)
{
	char path[PATH];

	snprintf(path, sizeof(path), PCI "/devices/%.31s/driver", function);
	last_word(path, out, bytes);
}

/* ---- what a drive holds ---- */

static int has_partitions(const char *disk)
{
	char path[PATH];
	const struct dirent *e;
	DIR *d;
	int found = 0;

	snprintf(path, sizeof(path), "/sys/block/%.64s", disk);
	d = opendir(path);
	while (d && (e = readdir(d)))
		found |= strncmp(e->d_name, disk, strlen(disk)) == 0;
	if (d)
		closedir(d);
	return found;
}

/* Adds what this disk holds to out, and makes *busy what stands in the way. */
static void look_at_disk(const char *disk, struct tutti_nvme *out)
{
	char path[PATH], text[32];
	int fd;

	snprintf(path, sizeof(path), "/sys/block/%.64s/size", disk);
	read_line(path, text, sizeof(text));
	out->bytes += strtoull(text, NULL, 10) * 512;
	out->namespaces++;
	snprintf(path, sizeof(path), "/dev/%.64s", disk);
	/* Fails while it, or a partition of it, is mounted or in md, lvm, swap. */
	fd = fork_open(path, O_RDONLY | O_EXCL, 0);
	if (fd < 0)
		snprintf(out->in_use, sizeof(out->in_use), "%.40s: %s", path,
		         errno == EBUSY                     ? "mounted, or part of md, lvm or swap"
		         : errno == EACCES || errno == EPERM ? "to see whether it is in use needs root"
		                                             : err_name(-errno));
	else if (has_partitions(disk) && !out->in_use[0])
		snprintf(out->in_use, sizeof(out->in_use),
		         "%.40s has partitions (wipefs -a %.40s, if they are not wanted)", path, path);
	if (fd >= 0)
		fork_close(fd);
}

/* "nvme0c1n2", a path of a shared namespace, belongs to disk "nvme0n2". */
static void disk_name(const char *entry, char *out, size_t bytes)
{
	const char *c = strchr(entry + 4, 'c'), *n = c ? strchr(c, 'n') : NULL;

	if (n)
		snprintf(out, bytes, "%.*s%.32s", (int)(c - entry), entry, n);
	else
		snprintf(out, bytes, "%.63s", entry);
}

/* The kernel's controller "nvmeN" of a function. */
static void look_at_controller(const char *folder, struct tutti_nvme *out)
{
	char path[PATH], disk[64];
	const struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "%.400s/model", folder);
	read_line(path, out->model, sizeof(out->model));
	snprintf(path, sizeof(path), "%.400s/serial", folder);
	read_line(path, out->serial, sizeof(out->serial));
	d = opendir(folder);
	while (d && (e = readdir(d)))
		if (strncmp(e->d_name, "nvme", 4) == 0 && strchr(e->d_name + 4, 'n')) {
			disk_name(e->d_name, disk, sizeof(disk));
			look_at_disk(disk, out);
		}
	if (d)
		closedir(d);
}

static void look(const char *function, struct tutti_nvme *out)
{
	char path[PATH], former[32];
	const struct dirent *e;
	DIR *d;

	*out = (struct tutti_nvme){0};
	snprintf(out->function, sizeof(out->function), "%.31s", function);
	driver_of(function, out->driver, sizeof(out->driver));
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		out->claimed |= strcmp(out->driver, drivers[i]) == 0;
	if (out->claimed)
		core_note_read(function, out, former);
	snprintf(path, sizeof(path), PCI "/devices/%.31s/nvme", function);
	d = opendir(path);
	while (d && (e = readdir(d)))
		if (strncmp(e->d_name, "nvme", 4) == 0) {
			snprintf(path, sizeof(path), PCI "/devices/%.31s/nvme/%.64s", function, e->d_name);
			look_at_controller(path, out);
		}
	if (d)
		closedir(d);
}

int tutti_nvme_list(tutti_nvme_fn fn, void *arg)
{
	struct pci_found found;
	struct tutti_nvme one;
	int rc = 0;

	if (!fn)
		return err_set(-EINVAL, "tutti_nvme_list: NULL");
	core_pci_find(&found);
	for (unsigned i = 0; i < found.n_nvme && !rc; i++) {
		look(found.nvme[i].address, &one);
		rc = fn(arg, &one);
	}
	return rc;
}

/* ---- who has it ---- */

static int find(const char *function, struct tutti_nvme *out)
{
	struct pci_found found;

	core_pci_find(&found);
	for (unsigned i = 0; function && i < found.n_nvme; i++)
		if (!strcmp(found.nvme[i].address, function)) {
			look(function, out);
			return 0;
		}
	return err_set(-ENODEV, "there is no NVMe drive at %s ('tutti nvme list' shows what there is)",
	               function ? function : "(nothing)");
}

static int step(const char *path, const char *word)
{
	if (core_before_step)
		core_before_step();
	return write_word(path, word);
}

/* Gives the function to the driver of that name; "\n": to whoever the kernel chooses. */
static int rebind(const char *function, const char *driver)
{
	char path[PATH], now[64];
	int rc = 0;

	driver_of(function, now, sizeof(now));
	snprintf(path, sizeof(path), PCI "/devices/%.31s/driver/unbind", function);
	if (now[0])
		rc = step(path, function);
	snprintf(path, sizeof(path), PCI "/devices/%.31s/driver_override", function);
	if (!rc)
		rc = step(path, driver);
	return rc ? rc : step(PCI "/drivers_probe", function);
}

/* Gives it back: to who had it, if the kernel chooses another or nobody. */
static int give_back(const char *function, const char *former)
{
	char path[PATH], now[64];
	int rc = rebind(function, "\n");

	driver_of(function, now, sizeof(now));
	if (!rc && former[0] && strcmp(now, former)) {
		snprintf(path, sizeof(path), PCI "/devices/%.31s/driver/unbind", function);
		if (now[0])
			rc = step(path, function);
		snprintf(path, sizeof(path), PCI "/drivers/%.31s/bind", former);
		if (!rc)
			rc = step(path, function);
	}
	if (!rc)
		core_note_remove(function);
	return rc;
}

/* What stands in the way of the drive n and the driver wanted. */
static int check_claim(const struct tutti_nvme *n, const char *serial, const char *wanted)
{
	char path[PATH];

	if (n->claimed)
		return err_set(-EALREADY, "%s is claimed already, by %s", n->function, n->driver);
	if (!n->driver[0])
		return err_set(
		    -EPERM,
		               "%s has no driver, so that its serial number can't be asked for; give it back to the kernel "
		               "first: tutti nvme release %s",
		    n->function, n->function);
	if (!serial || !n->serial[0] || strcmp(serial, n->serial))
		return err_set(-EPERM, "%s is a %s with serial number '%s', not '%s'; nothing was done", n->function,
		               n->model, n->serial, serial ? serial : "");
	if (n->in_use[0])
		return err_set(-EBUSY, "%s stays with the kernel: %s", n->function, n->in_use);
	snprintf(path, sizeof(path), PCI "/drivers/%s", wanted);
	if (access(path, F_OK))
		return err_set(-EOPNOTSUPP, "the driver %s is not loaded: modprobe %s%s", wanted, wanted,
		               strcmp(wanted, PNVME_DRIVER) ? "" : " (docs/nvme.md says how to build it)");
	return 0;
}

int tutti_nvme_claim(const char *function, const char *serial, enum tutti_nvme_driver by)
{
	const char *wanted = by == TUTTI_NVME_VFIO || by == TUTTI_NVME_MODULE ? drivers[by] : NULL;
	struct tutti_nvme n;
	char driver[64];
	int rc = wanted ? find(function, &n) : err_set(-EINVAL, "tutti_nvme_claim: there is no driver %d", (int)by);

	if (!rc)
		rc = check_claim(&n, serial, wanted);
	if (rc)
		return rc;
	rc = core_note_write(&n);
	if (rc)
		return rc;
	rc = rebind(function, wanted);
	driver_of(function, driver, sizeof(driver));
	if (!rc && strcmp(driver, wanted))
		rc = err_set(-EIO, "%s was not taken by %s%s (see dmesg)", function, wanted,
		             by == TUTTI_NVME_VFIO ? "; is an IOMMU on?" : "");
	if (rc && strcmp(driver, n.driver)) {
		char why[ERR_TEXT_BYTES];

		snprintf(why, sizeof(why), "%s", err_text());
		give_back(function, n.driver); /* as it was */
		err_set(rc, "%s", why);
	}
	return rc;
}

/* The file that one process at a time can open: to see whether one has. */
static void node_of(const struct tutti_nvme *n, char *out, size_t bytes)
{
	char path[PATH], group[64];

	if (!strcmp(n->driver, PNVME_DRIVER)) {
		snprintf(out, bytes, "/dev/tutti/%.31s", n->function);
		return;
	}
	snprintf(path, sizeof(path), PCI "/devices/%.31s/iommu_group", n->function);
	last_word(path, group, sizeof(group));
	snprintf(out, bytes, "/dev/vfio/%.63s", group);
}

int tutti_nvme_release(const char *function)
{
	struct tutti_nvme n;
	char path[96], former[32] = "";
	int fd, noted, rc = find(function, &n);

	if (rc)
		return rc;
	noted = core_note_read(function, &n, former) == 0;
	if (!n.claimed && n.driver[0] && !noted) /* with a note: a claim or a release that died before its end */
		return err_set(-EALREADY, "%s is not claimed: its driver is %s", function, n.driver);
	if (!n.claimed)
		return give_back(function, former);
	node_of(&n, path, sizeof(path));
	fd = fork_open(path, O_RDWR, 0);
	if (fd < 0 && errno == EBUSY)
		return err_set(-EBUSY, "%s: a process drives it (%s is open); stop that first", function, path);
	if (fd >= 0)
		fork_close(fd);
	return give_back(function, former);
}
