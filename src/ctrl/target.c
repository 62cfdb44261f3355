/*
 * target.c - opens a file or block device and says what it is: size, sector, and whether O_DIRECT works there.
 *
 * O_DIRECT is asked for at open; a file system that refuses it is used through the page cache and says so. What
 * alignment it needs comes from statx where the kernel knows, else from a reading that tries.
 */
#include "ctrl/soft.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"

/*
 * The upper end of what a drive likes (128 to 512 KiB): a command costs the CPU the same whatever it moves. What the
 * kernel calls optimal (BLKIOOPT) is 0 or one page on most drives.
 */
#define PREFERRED_IO_BYTES (512u << 10)

/* glibc's statx is newer or older than the kernel's; the kernel's own struct says where dio alignment lies. */
struct dio_statx {
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, spare0;
	uint64_t ino, size, blocks, attributes_mask;
	uint64_t times[8];
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t mnt_id;
	uint32_t dio_mem_align, dio_offset_align;
	uint64_t spare[12];
};
_Static_assert(sizeof(struct dio_statx) == 256, "struct statx");
#define DIO_STATX_MASK 0x2000u /* STATX_DIOALIGN, Linux 6.1 */

static const char *name_of(const struct ctrl_target *t) { return t->path && t->path[0] ? t->path : "(open file)"; }

/* 1: the kernel said; *mem and *offset are 0 if O_DIRECT does not work on this file. */
static int dio_ask(int fd, uint32_t *mem, uint32_t *offset)
{
	struct dio_statx sx;

	memset(&sx, 0, sizeof(sx));
	if (syscall(SYS_statx, fd, "", 0x1000 /* AT_EMPTY_PATH */, DIO_STATX_MASK, &sx) < 0 ||
	    !(sx.mask & DIO_STATX_MASK))
		return 0;
	*mem = sx.dio_mem_align;
	*offset = sx.dio_offset_align;
	return 1;
}

/* Reads at sector 1 of each size, into memory that is aligned to that size and no more. 0: nothing works. */
static uint32_t dio_try(int fd)
{
	static const uint32_t sizes[] = {512, 4096};
	uint32_t works = 0;
	char *p = aligned_alloc(16384, 16384);

	for (uint32_t i = 0; p && i < 2 && !works; i++)
		if (pread(fd, p + sizes[i], sizes[i], (off_t)sizes[i]) >= 0)
			works = sizes[i];
	free(p);
	return works;
}

static int open_fd(const struct ctrl_target *t, int extra)
{
	int flags = (t->read_only ? O_RDONLY : O_RDWR) | extra;
	char self[64];

	if (t->fd < 0)
		return fork_open(t->path, flags, 0);
	/* A description of our own, so that O_DIRECT is not put on the caller's. */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", t->fd);
	return fork_open(self, flags, 0);
}

static int open_any(const struct ctrl_target *t, int want_direct, struct ctrl_file *f)
{
	int failed;

	f->own = 1;
	if (want_direct) {
		f->direct = 1;
		f->fd = open_fd(t, O_DIRECT);
		if (f->fd >= 0)
			return 0;
	}
	f->direct = 0;
	f->fd = open_fd(t, 0);
	failed = errno;
	if (f->fd < 0 && t->fd >= 0) {
		/* No way to a second description (no /proc, no permission): the caller's own must do. */
		f->fd = t->fd;
		f->own = 0;
		f->direct = fcntl(t->fd, F_GETFL) & O_DIRECT ? 1 : 0;
		if (want_direct && !f->direct)
			log_warn("%s: can't be reopened with O_DIRECT (%s); I/O goes through the page cache",
			         name_of(t), err_name(-failed));
		return 0;
	}
	if (f->fd >= 0)
		return 0;
	return err_set(-failed, "%s: can't be opened for %s: %s", name_of(t),
	               t->read_only ? "reading" : "reading and writing", err_name(-failed));
}

/* Turns direct off where it does not work after all; learns the alignments. */
static void learn_direct(const struct ctrl_target *t, struct ctrl_file *f)
{
	uint32_t mem = 0, offset = 0;

	if (f->direct && !dio_ask(f->fd, &mem, &offset))
		mem = offset = dio_try(f->fd);
	if (f->direct && (!mem || !offset)) {
		int flags = fcntl(f->fd, F_GETFL);

		/* Ours, so the flag may go. */
		if (f->own && flags >= 0)
			fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
		f->direct = 0;
	}
	f->offset_align = f->direct ? offset : 1;
	f->ns.mem_align_bytes = f->direct ? mem : 1;
	f->ns.direct = f->direct;
	(void)t;
}

static int learn_size(const struct ctrl_target *t, struct ctrl_file *f)
{
	struct stat st;
	uint64_t bytes = 0;
	int sector = 512;

	if (fstat(f->fd, &st) < 0)
		return err_set(-errno, "%s: can't be examined: %s", name_of(t), err_name(-errno));
	if (S_ISBLK(st.st_mode)) {
		if (ioctl(f->fd, BLKGETSIZE64, &bytes) < 0 || ioctl(f->fd, BLKSSZGET, &sector) < 0)
			return err_set(-errno, "%s: its size can't be read: %s", name_of(t), err_name(-errno));
	} else if (S_ISREG(st.st_mode)) {
		bytes = (uint64_t)st.st_size;
	} else {
		return err_set(-ENOTBLK, "%s: neither a file nor a block device", name_of(t));
	}
	if (S_ISBLK(st.st_mode) && !bytes)
		return err_set(-ENOMEDIUM, "%s: a block device of 0 bytes: no medium is in it, or it is not set up",
		               name_of(t));
	f->ns.capacity_bytes = bytes;
	f->ns.lba_bytes = (uint32_t)sector;
	f->ns.preferred_io_bytes = PREFERRED_IO_BYTES;
	return 0;
}

int ctrl_file_open(const struct ctrl_target *t, uint32_t lba_bytes, int want_direct, struct ctrl_file *out)
{
	struct ctrl_file f = {.fd = -1};
	uint32_t smallest;
	int rc;

	if (t->fd < 0 && (!t->path || !t->path[0]))
		return err_set(-EINVAL, "controller: a target has neither a path nor an open file");
	rc = open_any(t, want_direct, &f);
	if (!rc)
		rc = learn_size(t, &f);
	if (rc) {
		ctrl_file_close(&f);
		return rc;
	}
	learn_direct(t, &f);
	smallest = f.ns.lba_bytes > f.offset_align ? f.ns.lba_bytes : f.offset_align;
	if (lba_bytes && lba_bytes < smallest) {
		ctrl_file_close(&f);
		return err_set(-EINVAL, "%s: LBA size %u is smaller than the %u that it can do; use %u", name_of(t),
		               lba_bytes, smallest, smallest);
	}
	f.ns.lba_bytes = lba_bytes ? lba_bytes : smallest;
	if (f.ns.lba_bytes & (f.ns.lba_bytes - 1)) {
		ctrl_file_close(&f);
		return err_set(-EINVAL, "%s: sector size %u is no power of two", name_of(t), f.ns.lba_bytes);
	}
	f.ns.capacity_bytes -= f.ns.capacity_bytes % f.ns.lba_bytes;
	*out = f;
	return 0;
}

void ctrl_file_close(struct ctrl_file *f)
{
	if (f->own && f->fd >= 0)
		fork_close(f->fd);
	f->fd = -1;
}

int ctrl_size_path(const char *path, const char *prefix, uint64_t *bytes)
{
	size_t n = strlen(prefix);
	uint64_t value;
	char *end;
	int shift = 0;

	if (!path || strncmp(path, prefix, n) || path[n] < '0' || path[n] > '9')
		return -EINVAL;
	errno = 0;
	value = strtoull(path + n, &end, 10);
	if (*end) {
		const char *unit = strchr("KMGT", *end);

		if (!unit || end[1])
			return -EINVAL;
		shift = 10 * (int)(unit - "KMGT" + 1);
	}
	if (errno || (value << shift) >> shift != value)
		return -EINVAL;
	*bytes = value << shift;
	return 0;
}
