/* lock.c - open-file-description locks; see lock.h for what they mean. */
#include "core/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "port/port.h"

#define STORE_BYTE ((off_t)1 << 62)
#define STORE_PIDS (STORE_BYTE + 1)
#define LANE_BYTES (STORE_BYTE + ((off_t)1 << 48))
#define LANE_RANGE ((off_t)1 << 48)
#define PID_BITS 24
#define EPOCH_MASK 0xffffull
#define LANE_POLL_NS 20000000
#define ORPHAN_POLL_NS 1000000

static int lock_at(int fd, short type, off_t start)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};

	return fcntl(fd, F_OFD_SETLK, &l) ? -errno : 0;
}

/* Some lock of others in [start, start + bytes): *at is where. 0: there is none. */
static int locked_within(int fd, off_t start, off_t bytes, off_t *at)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes};

	if (!bytes || fcntl(fd, F_OFD_GETLK, &l) || l.l_type == F_UNLCK || l.l_start < start)
		return 0;
	*at = l.l_start;
	return 1;
}

void lock_release(int fd)
{
	struct flock l = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = STORE_BYTE}; /* and all behind it */

	fcntl(fd, F_OFD_SETLK, &l);
}

static off_t own_pid(void) { return getpid() & (((off_t)1 << PID_BITS) - 1); }

int lock_gone(int pid) { return kill(pid, 0) && errno == ESRCH; }

/* Nobody has it any more, or only what a process that is gone left behind. */
static int store_orphaned(int fd)
{
	int pid;

	return !lock_store_held(fd, &pid) || (pid && lock_gone(pid));
}

int lock_store(int fd)
{
	uint64_t until = port_now_ns() + LOCK_ORPHAN_NS;
	int rc = lock_at(fd, F_WRLCK, STORE_BYTE);

	while ((rc == -EAGAIN || rc == -EACCES) && port_now_ns() < until && store_orphaned(fd)) {
		nanosleep(&(struct timespec){.tv_nsec = ORPHAN_POLL_NS}, NULL); /* a lock that goes away wakes nobody */
		rc = lock_at(fd, F_WRLCK, STORE_BYTE);
	}
	if (rc == -EAGAIN || rc == -EACCES)
		return -EBUSY;
	if (!rc)
		rc = lock_at(fd, F_RDLCK, STORE_PIDS + own_pid());
	return rc ? err_set(rc, "cannot lock the pool: %s; does its file system have locks?", err_name(rc)) : 0;
}

int lock_store_held(int fd, int *pid)
{
	off_t at;

	*pid = locked_within(fd, STORE_PIDS, (off_t)1 << PID_BITS, &at) ? (int)(at - STORE_PIDS) : 0;
	return *pid || locked_within(fd, STORE_BYTE, 1, &at);
}

/* Some lane's pid in [start, start + bytes), both counted from LANE_BYTES. 0: none. */
static int pid_within(int fd, off_t start, off_t bytes, uint64_t *epoch)
{
	off_t at;

	if (!locked_within(fd, LANE_BYTES + start, bytes, &at))
		return 0;
	if (epoch)
		*epoch = (uint64_t)(at - LANE_BYTES) >> PID_BITS;
	return (int)((at - LANE_BYTES) & (((off_t)1 << PID_BITS) - 1));
}

int lock_lane_pid(int fd, uint64_t *epoch) { return pid_within(fd, 0, LANE_RANGE, epoch); }

static off_t lane_at(uint64_t epoch) { return (off_t)((epoch & EPOCH_MASK) << PID_BITS); }

static int other_lane_pid(int fd, uint64_t except)
{
	off_t at = lane_at(except), behind = at + ((off_t)1 << PID_BITS);
	int pid;

	if (!except)
		return lock_lane_pid(fd, NULL);
	pid = pid_within(fd, 0, at, NULL);
	return pid ? pid : pid_within(fd, behind, LANE_RANGE - behind, NULL);
}

static off_t own_byte(uint64_t epoch) { return LANE_BYTES + lane_at(epoch) + own_pid(); }

int lock_lane(int fd, uint64_t epoch)
{
	int rc = lock_at(fd, F_RDLCK, own_byte(epoch));

	return rc ? err_set(rc, "cannot lock the pool for a lane: %s", err_name(rc)) : 0;
}

void lock_lane_release(int fd, uint64_t epoch) { lock_at(fd, F_UNLCK, own_byte(epoch)); }

int lock_wait_lanes(int fd, uint64_t except, uint64_t deadline_ns, int *pid)
{
	const struct timespec nap = {.tv_nsec = LANE_POLL_NS};

	while ((*pid = other_lane_pid(fd, except)) != 0) {
		if (port_now_ns() >= deadline_ns)
			return -EBUSY;
		nanosleep(&nap, NULL); /* a lock that goes away wakes nobody */
	}
	return 0;
}
