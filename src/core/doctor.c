/*
 * doctor.c - what this machine can do: one function a subject, each says one or a few lines. Looks, changes nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "core/path.h"
#include "core/pci.h"
#include "ctrl/pnvme.h"
#include "exec/exec.h"
#include "map/map.h"
#include "tutti/tutti.h"

#define REGISTER_TRY_BYTES (16ull << 20)
#define MEMLOCK_WANTED_BYTES (2ull << 30)
#define PROBE_OPS 64

struct doctor {
	const char *path;
	tutti_doctor_fn fn;
	void *arg;
	int stopped; /* what fn returned */
	const char *unusable; /* what keeps a pool from being used at path; NULL: nothing */
};

static void line(struct doctor *d, const char *name, enum tutti_doctor_state state, const char *remedy,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
static void line(struct doctor *d, const char *name, enum tutti_doctor_state state, const char *remedy,
                 const char *format, ...)
{
	char detail[400];
	struct tutti_doctor_line l = {.name = name, .state = state, .detail = detail, .remedy = remedy};
	va_list ap;

	va_start(ap, format);
	vsnprintf(detail, sizeof(detail), format, ap);
	va_end(ap);
	if (!d->stopped)
		d->stopped = d->fn(d->arg, &l);
}

/* First line of a file without its end; "" if it can't be read. */
static const char *first_line(const char *path, char *text, size_t bytes)
{
	FILE *f = fopen(path, "re");

	text[0] = 0;
	if (f && !fgets(text, (int)bytes, f))
		text[0] = 0;
	if (f)
		fclose(f);
	text[strcspn(text, "\n")] = 0;
	return text;
}

/* ---- io_uring ---- */

static int has_ops(int ring)
{
	union { /* the probe ends in an array whose room the caller gives */
		struct io_uring_probe probe;
		uint8_t room[sizeof(struct io_uring_probe) + PROBE_OPS * sizeof(struct io_uring_probe_op)];
	} p = {.room = {0}};
	static const int wanted[] = {IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_READV, IORING_OP_WRITEV,
	                             IORING_OP_FSYNC};

	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_PROBE, &p, PROBE_OPS))
		return 0;
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (wanted[i] > p.probe.last_op || !(p.probe.ops[wanted[i]].flags & IO_URING_OP_SUPPORTED))
			return 0;
	return 1;
}

static void check_registering(struct doctor *d, int ring)
{
	void *p = mmap(NULL, REGISTER_TRY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec v = {p, REGISTER_TRY_BYTES};
	long result;

	if (p == MAP_FAILED)
		return;
	result = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &v, 1);
	if (result == 0)
		line(d, "registering", TUTTI_DOCTOR_OK, "", "16M of buffers could be registered with the kernel");
	else
		line(d, "registering", TUTTI_DOCTOR_SLOWER,
		     "ulimit -l unlimited  # or LimitMEMLOCK=infinity in the unit",
		     "16M of buffers could not be registered (%s): pages are pinned for each I/O instead",
		     strerror(errno));
	munmap(p, REGISTER_TRY_BYTES);
}

static int ring_of(struct io_uring_params *p)
{
	int ring;

	fork_hold();
	ring = fork_guard((int)syscall(SYS_io_uring_setup, 8, p));
	fork_let();
	return ring;
}

static void check_uring(struct doctor *d)
{
	struct io_uring_params p = {0};
	int ring = ring_of(&p);
	struct utsname u = {0};
	struct rlimit lock = {0};
	int error = errno;
	char off[16], text[24];

	uname(&u);
	if (ring < 0 && error == ENOMEM && !getrlimit(RLIMIT_MEMLOCK, &lock)) {
		d->unusable = "io_uring";
		line(d, "io_uring", TUTTI_DOCTOR_MISSING, "ulimit -l 8192  # or LimitMEMLOCK=8M in the service's unit",
		     "the memlock limit (%s) leaves no room for its rings; files can't be used as pools",
		     tutti_format_bytes(lock.rlim_cur, text));
		return;
	}
	if (ring < 0) {
		first_line("/proc/sys/kernel/io_uring_disabled", off, sizeof(off));
		d->unusable = "io_uring";
		line(d, "io_uring", TUTTI_DOCTOR_MISSING,
		     *off && *off != '0' ? "sysctl kernel.io_uring_disabled=0"
		     : error == EPERM    ? "allow io_uring_setup in the container's seccomp profile"
		                         : "boot a kernel of 5.11 or later",
		     "the kernel (%s) refuses it: %s%s%s; files can't be used as pools", u.release, strerror(error),
		     *off && *off != '0' ? ", kernel.io_uring_disabled=" : "", *off != '0' ? off : "");
		return;
	}
	if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP) || !has_ops(ring))
		d->unusable = "io_uring";
	if (d->unusable)
		line(d, "io_uring", TUTTI_DOCTOR_MISSING, "boot a kernel of 5.11 or later",
		     "kernel %s has it, but too old: features 0x%x", u.release, p.features);
	else
		line(d, "io_uring", TUTTI_DOCTOR_OK, "",
		     "kernel %s, features 0x%x, fixed and vectored reads and writes", u.release, p.features);
	check_registering(d, ring);
	fork_close(ring);
}

static void check_memlock(struct doctor *d)
{
	struct rlimit r;
	char text[24];

	if (getrlimit(RLIMIT_MEMLOCK, &r))
		return;
	if (geteuid() == 0) {
		line(d, "memlock", TUTTI_DOCTOR_OK, "", "root: the limit doesn't bind");
		return;
	}
	if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= MEMLOCK_WANTED_BYTES)
		line(d, "memlock", TUTTI_DOCTOR_OK, "", "limit %s",
		     r.rlim_cur == RLIM_INFINITY ? "unlimited" : tutti_format_bytes(r.rlim_cur, text));
	else
		line(d, "memlock", TUTTI_DOCTOR_SLOWER,
		     "ulimit -l unlimited  # needs 'USER - memlock unlimited' in /etc/security/limits.conf",
		     "limit %s: KV memory beyond that can't be registered, so each I/O pins its pages",
		     tutti_format_bytes(r.rlim_cur, text));
}

/* ---- the file system or device ---- */

static const char *fs_name(const char *path)
{
	static const struct {
		unsigned long magic;
		const char *name;
	} known[] = {{0xEF53, "ext4"},        {0x58465342, "xfs"},   {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
	             {0x794C7630, "overlay"}, {0x2FC12FC1, "zfs"},   {0x6969, "nfs"},       {0xF2F52010, "f2fs"},
	             {0x65735546, "fuse"},    {0x858458F6, "ramfs"}, {0x01021997, "9p"},    {0xCA451A4E, "bcachefs"}};
	struct statfs s;

	if (statfs(path, &s))
		return "unknown";
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].magic == ((unsigned long)s.f_type & 0xfffffffful))
			return known[i].name;
	return "other";
}

static void check_access(struct doctor *d, const struct stat *st)
{
	int folder = S_ISDIR(st->st_mode);

	if (access(d->path, folder ? W_OK | X_OK : R_OK | W_OK) == 0) {
		line(d, "access", TUTTI_DOCTOR_OK, "", "%s: %s", d->path,
		     folder ? "may be written to" : "can be read and written");
		return;
	}
	d->unusable = "access";
	line(d, "access", TUTTI_DOCTOR_MISSING,
	     errno == EROFS ? "mount it read-write, or name another place" : "chown it, or name another place",
	     "%s: %s", d->path, strerror(errno));
}

/* A file in a folder that goes with its descriptor; where there is none without a name, its name goes at once. */
static int open_nameless(const char *folder, int extra)
{
	int fd = fork_open(folder, O_RDWR | O_TMPFILE | extra, 0600);
	char name[PATH_MAX];

	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
		return fd;
	snprintf(name, sizeof(name), "%s/.tutti-doctor-%d", folder, (int)getpid());
	fd = fork_open(name, O_RDWR | O_CREAT | O_EXCL | extra, 0600);
	if (fd >= 0)
		unlink(name);
	return fd;
}

/* A handle to try with: of the file or device itself, read only, or of a nameless file in the folder. */
static int open_to_try(const char *path, const struct stat *st)
{
	int fd;

	if (!S_ISDIR(st->st_mode))
		return fork_open(path, O_RDONLY | O_DIRECT, 0);
	fd = open_nameless(path, O_DIRECT);
	if (fd >= 0 && ftruncate(fd, 8192)) {
		fork_close(fd);
		return -1;
	}
	return fd;
}

/* Can a pool's file be made in the folder, and its space be reserved? */
static void check_files(struct doctor *d, const struct stat *st)
{
	int fd, error;

	if (!S_ISDIR(st->st_mode) || d->unusable)
		return;
	fd = open_nameless(d->path, 0);
	if (fd < 0 || ftruncate(fd, 8192)) {
		error = errno;
		d->unusable = "files";
		line(d, "files", TUTTI_DOCTOR_MISSING, "name a folder on ext4, xfs or another file system for data",
		     "%s (%s): no file can be made there: %s", d->path, fs_name(d->path), strerror(error));
	} else if (fallocate(fd, 0, 0, 8192)) {
		line(d, "files", TUTTI_DOCTOR_SLOWER, "tutti format --prewrite all, or ext4 or xfs",
		     "%s (%s): space can't be reserved (%s), only written in full by format", d->path, fs_name(d->path),
		     strerror(errno));
	} else {
		line(d, "files", TUTTI_DOCTOR_OK, "", "%s (%s): can be made, and their space be reserved", d->path,
		     fs_name(d->path));
	}
	if (fd >= 0)
		fork_close(fd);
}

static void direct_alignment(int fd, unsigned *memory, unsigned *offset)
{
#ifdef STATX_DIOALIGN
	struct statx x = {0};

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 && (x.stx_mask & STATX_DIOALIGN) &&
	    x.stx_dio_offset_align) {
		*memory = x.stx_dio_mem_align;
		*offset = x.stx_dio_offset_align;
	}
#else
	(void)fd;
	(void)memory;
	(void)offset;
#endif
}

static void check_direct(struct doctor *d, const struct stat *st)
{
	const char *fs = S_ISBLK(st->st_mode) ? "block device" : fs_name(d->path);
	unsigned memory = 0, offset = 0;
	int fd = open_to_try(d->path, st);
	int error = errno;
	void *p = NULL;

	if (fd >= 0 && !posix_memalign(&p, 4096, 4096) && pread(fd, p, 4096, 0) < 0) {
		error = errno;
		fork_close(fd);
		fd = -1;
	}
	free(p);
	if (fd < 0 && (error == EACCES || error == EPERM || error == EROFS)) {
		line(d, "O_DIRECT", TUTTI_DOCTOR_MISSING, "", "%s (%s): could not be tried without access", d->path,
		     fs);
		return;
	}
	if (fd < 0) {
		line(d, "O_DIRECT", TUTTI_DOCTOR_SLOWER, "put the pool on ext4, xfs or a block device",
		     "%s (%s): %s; data would go through the page cache, with a copy", d->path, fs, strerror(error));
		return;
	}
	direct_alignment(fd, &memory, &offset);
	fork_close(fd);
	if (!memory)
		line(d, "O_DIRECT", TUTTI_DOCTOR_OK, "", "%s (%s): works; its alignment isn't told, 4096 is assumed",
		     d->path, fs);
	else if (offset > 4096)
		line(d, "O_DIRECT", TUTTI_DOCTOR_MISSING, "put the pool on a device of 512- or 4096-byte blocks",
		     "%s (%s): wants offsets aligned to %u bytes, more than 4096", d->path, fs, offset);
	else
		line(d, "O_DIRECT", TUTTI_DOCTOR_OK, "", "%s (%s): works; memory aligned to %u, offsets to %u bytes",
		     d->path, fs, memory, offset);
}

/* A block device may have nothing behind it. */
static void check_medium(struct doctor *d, const struct stat *st)
{
	int fd = S_ISBLK(st->st_mode) ? fork_open(d->path, O_RDONLY, 0) : -1;
	uint64_t bytes = 1;

	if (fd < 0)
		return;
	if (ioctl(fd, BLKGETSIZE64, &bytes) == 0 && !bytes) {
		d->unusable = "medium";
		line(d, "medium", TUTTI_DOCTOR_MISSING, "lsblk  # shows what has a size",
		     "%s has 0 bytes: no medium is in it, or it is not set up", d->path);
	}
	fork_close(fd);
}

static void check_disk(struct doctor *d, const struct stat *st)
{
	dev_t dev = S_ISBLK(st->st_mode) ? st->st_rdev : st->st_dev;
	char path[128], text[64], logical[16], cache[32];
	struct statfs s;

	if (!S_ISBLK(st->st_mode) && statfs(d->path, &s) == 0)
		line(d, "space", TUTTI_DOCTOR_OK, "", "%s free for a pool",
		     tutti_format_bytes((uint64_t)s.f_bavail * (uint64_t)s.f_bsize, text));
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/rotational", major(dev), minor(dev));
	if (access(path, R_OK)) /* a partition: its disk is one folder up */
		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/../queue/rotational", major(dev), minor(dev));
	first_line(path, text, sizeof(text));
	if (!*text)
		return;
	snprintf(strrchr(path, '/'), 32, "/logical_block_size");
	first_line(path, logical, sizeof(logical));
	snprintf(strrchr(path, '/'), 32, "/write_cache");
	first_line(path, cache, sizeof(cache));
	if (*text == '1')
		line(d, "disk", TUTTI_DOCTOR_SLOWER, "put the pool on an SSD",
		     "blocks of %s bytes; the kernel calls it rotational (virtual disks often are called so)", logical);
	else
		line(d, "disk", TUTTI_DOCTOR_OK, "", "an SSD by what the kernel says; blocks of %s bytes, cache: %s",
		     logical, cache);
}

/* ---- memory, CPU ---- */

static void check_huge(struct doctor *d)
{
	char text[80];

	first_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text));
	if (!*text)
		line(d, "huge pages", TUTTI_DOCTOR_SLOWER, "", "this kernel has no transparent huge pages");
	else if (strstr(text, "[never]"))
		line(d, "huge pages", TUTTI_DOCTOR_SLOWER, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
		     "switched off: pinning KV memory takes 512 times as many entries");
	else
		line(d, "huge pages", TUTTI_DOCTOR_OK, "", "transparent: %s", text);
}

static void check_cpu(struct doctor *d)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		line(d, "CPU", TUTTI_DOCTOR_OK, "", "%ld cores, AVX2: checksums run at memory speed", cores);
	else
		line(d, "CPU", TUTTI_DOCTOR_SLOWER, "run on a CPU of 2014 or later",
		     "%ld cores, no AVX2: checksums take about three times as long", cores);
}

/* ---- devices ---- */

static void check_gpu(struct doctor *d, const struct pci_found *f)
{
	int nodes = 0;
	char node[32];

	for (int i = 0; i < 16; i++) {
		snprintf(node, sizeof(node), "/dev/nvidia%d", i);
		nodes += access(node, F_OK) == 0;
	}
	if (nodes && access("/dev/nvidia0", R_OK | W_OK) == 0)
		line(d, "GPU", TUTTI_DOCTOR_OK, "", "%d NVIDIA device%s, driver loaded", nodes, nodes == 1 ? "" : "s");
	else if (nodes)
		line(d, "GPU", TUTTI_DOCTOR_MISSING, "add the user to the group of /dev/nvidia0",
		     "%d NVIDIA devices, but /dev/nvidia0 can't be opened", nodes);
	else if (f->gpus)
		line(d, "GPU", TUTTI_DOCTOR_MISSING, "install the NVIDIA driver", "%u on the PCI bus, no driver loaded",
		     f->gpus);
	else
		line(d, "GPU", TUTTI_DOCTOR_MISSING, "", "none here: the host executor (CPU threads) does the I/O");
}

static void check_nvme(struct doctor *d, const struct pci_found *f)
{
	char remedy[160];

	if (!f->n_nvme)
		line(d, "NVMe", TUTTI_DOCTOR_MISSING, "",
		     "no NVMe function on the PCI bus: pools live in files or on block devices");
	for (unsigned i = 0; i < f->n_nvme; i++) {
		const struct pci_nvme *n = &f->nvme[i];
		int kernel = strcmp(n->driver, "nvme") == 0;

		snprintf(remedy, sizeof(remedy), "tutti nvme claim %s SERIAL  # only if nothing on it is needed",
		         n->address);
		line(d, "NVMe", kernel ? TUTTI_DOCTOR_SLOWER : TUTTI_DOCTOR_OK, kernel ? remedy : "",
		     "%s is driven by %s: %s", n->address, n->driver[0] ? n->driver : "nobody",
		     kernel ? "used through the kernel's block layer, not directly"
		            : "the kernel's file systems don't use it");
	}
	if (f->n_nvme_left)
		line(d, "NVMe", TUTTI_DOCTOR_OK, "", "and %u more", f->n_nvme_left);
}

static void check_iommu(struct doctor *d, const struct pci_found *f)
{
	if (f->iommu_groups)
		line(d, "IOMMU", TUTTI_DOCTOR_OK, "", "on, %u groups: functions can be given to user space safely",
		     f->iommu_groups);
	else
		line(d, "IOMMU", TUTTI_DOCTOR_MISSING,
		     "boot with intel_iommu=on or amd_iommu=on, and switch it on in the firmware",
		     "off or not there: no NVMe function can be driven from user space through vfio");
}

static void check_cuda(struct doctor *d, const struct pci_found *f)
{
	char text[160];
	int rc = exec_cuda_probe(text, sizeof(text));

	if (!rc)
		line(d, "CUDA", TUTTI_DOCTOR_OK, "", "%s", text);
	else if (rc != -ENOSYS || f->gpus)
		line(d, "CUDA", TUTTI_DOCTOR_MISSING, rc == -ENOSYS ? "make cuda" : "", "%s", text);
	if (rc)
		return;
	rc = map_window_probe(text, sizeof(text));
	line(d, "rings", TUTTI_DOCTOR_OK, "", "in pinned host memory; GPU memory %s the CPU: %s",
	     rc ? "can't be mapped for" : "could be mapped for", text);
}

/* Whether drive and GPU can do without the CPU between them: data into GPU memory, doorbells from GPU threads. */
static void check_drive_to_gpu(struct doctor *d, const struct pci_found *f)
{
	struct nvme_transport t;
	const char *function = NULL;
	char text[160];
	int rc = map_export_probe(text, sizeof(text));

	for (unsigned i = 0; i < f->n_nvme; i++)
		if (!strcmp(f->nvme[i].driver, PNVME_DRIVER))
			function = f->nvme[i].address;
	if (!f->n_nvme && !f->gpus)
		return;
	line(d, "GPU memory", rc || !function ? TUTTI_DOCTOR_MISSING : TUTTI_DOCTOR_OK,
	     function ? "" : "tutti nvme claim --driver tutti FUNCTION SERIAL  # docs/nvme.md", "%s for a drive: %s%s",
	     rc || !function ? "not there" : "can be mapped", text,
	     function ? "" : "; no drive is claimed through the module tutti_nvme");
	if (rc || !function)
		return;
	rc = pnvme_claim(function, &t);
	if (!rc) {
		rc = exec_cuda_registers(t.bar0, t.bar0_bytes);
		t.ops->close(t.self);
	}
	if (rc)
		line(d, "doorbells", TUTTI_DOCTOR_MISSING, "", "GPU threads can't ring: %s", err_text());
	else
		line(d, "doorbells", TUTTI_DOCTOR_OK, "", "GPU threads can ring those of %s", function);
}

static void say_path(struct doctor *d)
{
	char text[160];
	int gpu = exec_cuda_probe(text, sizeof(text)) == 0;

	if (d->unusable) {
		line(d, "would be used", TUTTI_DOCTOR_MISSING, "", "nothing: no pool can be used here, see %s above",
		     d->unusable);
		return;
	}
	line(d, "would be used", TUTTI_DOCTOR_OK, "", "controller virt (io_uring) on %s, executor %s", d->path,
	     gpu ? "cuda where the KV memory is the GPU's, else host (CPU threads)" : "host (CPU threads)");
}

int tutti_doctor(const char *path, tutti_doctor_fn fn, void *arg)
{
	struct doctor d = {.path = path, .fn = fn, .arg = arg};
	struct pci_found found;
	struct stat st;
	int rc;

	if (!path || !fn)
		return err_set(-EINVAL, "tutti_doctor needs a path and a function");
	rc = pool_path_look(path, &st);
	if (rc == POOL_PATH_NONE)
		return err_set(-ENOENT, "there is no %s; name a folder, a file or a block device that exists", path);
	if (rc == POOL_PATH_DRIVE)
		return err_set(-EINVAL,
		               "doctor looks at a folder, a file or a block device; of drives it has a line each, and "
		               "'tutti nvme list' says more");
	if (rc < 0 && rc != -EISDIR)
		return rc;
	check_uring(&d);
	check_memlock(&d);
	check_access(&d, &st);
	check_medium(&d, &st);
	check_files(&d, &st);
	if (!d.unusable || strcmp(d.unusable, "files"))
		check_direct(&d, &st);
	check_disk(&d, &st);
	check_huge(&d);
	check_cpu(&d);
	core_pci_find(&found);
	check_gpu(&d, &found);
	check_cuda(&d, &found);
	check_nvme(&d, &found);
	check_iommu(&d, &found);
	check_drive_to_gpu(&d, &found);
	say_path(&d);
	return d.stopped;
}
