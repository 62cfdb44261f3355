/*
 * test_kmod.c - the kernel module tutti_nvme: what it hands out, what it refuses, removal, kills, and that nothing
 * stays behind (module.h).
 */
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kmod/module.h"

#define REG_CSTS 7 /* 32-bit words */

/* ---- the file ---- */

static void one_opener(void)
{
	struct tutti_nvme_info info;
	struct stat st;
	int fd, status;
	pid_t pid;

	need_function();
	CHECK_EQ(stat(node, &st), 0);
	CHECK_EQ(st.st_mode & 0777, 0600);
	CHECK_EQ(st.st_uid, 0);
	CHECK_EQ(open(node, O_RDONLY | O_CLOEXEC), -1);
	CHECK_EQ(errno, EACCES);
	fd = node_open();
	CHECK_EQ(open(node, O_RDWR | O_CLOEXEC), -1);
	CHECK_EQ(errno, EBUSY);
	info = info_of(fd);
	printf("# %s: BAR %llu bytes, %u vectors, %s, %s\n", function, (unsigned long long)info.bar_bytes, info.vectors,
	       info.flags & TUTTI_NVME_TRANSLATES ? "translating" : "not translating",
	       info.flags & TUTTI_NVME_ISOLATED ? "isolated" : "not isolated");
	CHECK_EQ(info.version, TUTTI_NVME_VERSION);
	CHECK(info.bar_bytes >= 8192);
	close(fd);
	/* Given to another user, it opens where the IOMMU guards memory, and only there. */
	CHECK_EQ(chmod(node, 0666), 0);
	pid = fork();
	if (!pid) {
		int ok = setuid(65534) == 0 && (fd = open(node, O_RDWR | O_CLOEXEC)) >= 0;

		_exit(ok ? 0 : errno);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(chmod(node, 0600), 0);
	CHECK_EQ(WEXITSTATUS(status), info.flags & TUTTI_NVME_ISOLATED ? 0 : EPERM);
}

static void registers(void)
{
	uint64_t bytes;
	volatile uint32_t *bar;
	int fd;

	need_function();
	fd = node_open();
	bytes = info_of(fd).bar_bytes;
	CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bytes) == MAP_FAILED);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(7)) == MAP_FAILED);
	bar = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(bar != MAP_FAILED);
	CHECK(bar[0] != 0 && bar[0] != 0xffffffffu);
	CHECK_EQ(bar[REG_CSTS] & 1, 0); /* disabled */
	CHECK_EQ(call(fd, TUTTI_NVME_MASTER, 2), -EINVAL);
	CHECK_EQ(call(fd, 0xE763, 0), -ENOTTY);
	CHECK_EQ(call(fd, TUTTI_NVME_RESET, 0), 0);
	munmap((void *)(uintptr_t)bar, bytes);
	close(fd);
}

/* ---- memory ---- */

static void user_memory(void)
{
	struct tutti_nvme_run runs[RUNS_MAX];
	struct tutti_nvme_map m;
	long long before = pinned(), locked;
	uint64_t sum = 0;
	uint8_t *p;
	int fd;

	need_function();
	fd = node_open();
	p = pages(BUFFER + PAGE);
	locked = number("/proc/self/status", "VmLck:");
	CHECK_EQ(map_user(fd, p, BUFFER, &m), 0);
	CHECK_EQ(number("/proc/self/status", "VmLck:") - locked, BUFFER / 1024);
	CHECK(m.id && m.runs && m.runs <= RUNS_MAX);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs, runs), 0);
	for (uint32_t i = 0; i < m.runs; i++)
		sum += runs[i].bytes;
	CHECK_EQ(sum, BUFFER);
	CHECK_EQ(read_runs(fd, m.id, m.runs, 0, runs), 0);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs + 1, runs), -EINVAL);
	CHECK_EQ(read_runs(fd, m.id, m.runs + 1, 0, runs), -EINVAL);
	CHECK_EQ(read_runs(fd, m.id + 1, 0, 1, runs), -ENOENT);
	CHECK_EQ(read_runs(fd, m.id, 0, m.runs, NULL), -EFAULT);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), 0);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), -ENOENT);
	CHECK_EQ(pinned(), before);
	CHECK_EQ(number("/proc/self/status", "VmLck:"), locked);
	CHECK_EQ(map_user(fd, p + 1, PAGE, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, 0, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, PAGE + 1, &m), -EINVAL);
	CHECK_EQ(map_user(fd, p, TUTTI_NVME_MAP_BYTES_MAX + PAGE, &m), -EINVAL);
	m = (struct tutti_nvme_map){.kind = 3};
	CHECK_EQ(map(fd, &m), -EINVAL);
	CHECK_EQ(munmap(p + BUFFER, PAGE), 0);
	CHECK_EQ(map_user(fd, p, BUFFER + PAGE, &m), -EFAULT); /* pins all but the last, lets go of them */
	CHECK_EQ(pinned(), before);
	CHECK_EQ(map_user(fd, p, BUFFER, &m), 0); /* left to the close */
	close(fd);
	CHECK_EQ(pinned(), before);
	CHECK_EQ(number("/proc/self/status", "VmLck:"), locked);
	munmap(p, BUFFER);
}

/* One who is not root, and may lock 64 KiB. */
static void memlock_limit(void)
{
	struct rlimit limit = {65536, 65536};
	struct tutti_nvme_map m;
	int fd, status;
	uint8_t *p;
	pid_t pid;

	need_function();
	fd = node_open();
	p = pages(BUFFER);
	pid = fork();
	if (!pid) {
		int bad = setrlimit(RLIMIT_MEMLOCK, &limit) || setuid(65534);

		bad = bad || map_user(fd, p, BUFFER, &m) != -ENOMEM || map_user(fd, p, 65536, &m);
		m = (struct tutti_nvme_map){.kind = TUTTI_NVME_MAP_QUEUE, .bytes = PAGE};
		_exit(bad || map(fd, &m) != -ENOMEM);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	close(fd); /* of the dead child's memory too */
	munmap(p, BUFFER);
}

static void queue_memory(void)
{
	struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_QUEUE, .bytes = 65536};
	struct tutti_nvme_run run;
	uint8_t *p;
	int fd;

	need_function();
	fd = node_open();
	CHECK_EQ(map(fd, &m), 0);
	CHECK_EQ(m.runs, 1);
	CHECK_EQ(read_runs(fd, m.id, 0, 1, &run), 0);
	CHECK_EQ(run.bytes, 65536);
	CHECK(mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(m.id)) == MAP_FAILED);
	p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)TUTTI_NVME_MMAP(m.id));
	CHECK(p != MAP_FAILED);
	for (uint32_t i = 0; i < 65536; i++)
		CHECK_EQ(p[i], 0);
	memset(p, 0x5A, 65536);
	CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), 0);
	CHECK_EQ(p[65535], 0x5A); /* the caller's mapping keeps the pages */
	munmap(p, 65536);
	m.bytes = TUTTI_NVME_QUEUE_BYTES_MAX + PAGE;
	CHECK_EQ(map(fd, &m), -EINVAL);
	close(fd);
}

/* Free pages of the machine, those in the lists of CPUs too. */
static long long free_pages(void)
{
	FILE *f = fopen("/proc/zoneinfo", "re");
	char line[256];
	long long sum = 0, n;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " nr_free_pages %lld", &n) == 1 || sscanf(line, " count: %lld", &n) == 1)
			sum += n;
	if (f)
		fclose(f);
	return sum;
}

/* Pages that nobody accounts for: far more of them are taken and given up, in each way there is, than may be amiss. */
static void queue_memory_comes_back(void)
{
	const uint64_t bytes = 1 << 20;
	long long before = free_pages();
	uint8_t *p[64];

	need_function();
	for (int way = 0; way < 3; way++) { /* unmapped while it is seen; left to the close, unseen and seen */
		int fd = node_open();

		for (int i = 0; i < 64; i++) {
			struct tutti_nvme_map m = {.kind = TUTTI_NVME_MAP_QUEUE, .bytes = bytes};

			CHECK_EQ(map(fd, &m), 0);
			p[i] = NULL;
			if (way != 1)
				p[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				            (off_t)TUTTI_NVME_MMAP(m.id));
			CHECK(p[i] != MAP_FAILED);
			if (way == 0)
				CHECK_EQ(call(fd, TUTTI_NVME_UNMAP, m.id), 0);
		}
		close(fd);
		for (int i = 0; i < 64; i++)
			if (p[i])
				munmap(p[i], bytes);
		CHECK(before - free_pages() < 32 * (long long)bytes / PAGE); /* of 64 */
	}
}

/* ---- a drive at work ---- */

static void host_memory(void)
{
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 1);
	check_medium(&d, 1);
	printf("# %u KiB of host memory are %u runs\n", (BUFFER + PAGE) >> 10, d.n_runs);
	drive_down(&d);
}

/* A completion's interrupt wakes who sleeps on the queue. */
static void interrupts(void)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), fds[2] = {event, -1};
	struct tutti_nvme_irqs irqs = {.fds = (uint64_t)(uintptr_t)fds, .n = 2};
	struct nvme_sqe e = {.opcode = NVME_CMD_FLUSH, .cid = 1};
	static struct port_parker parker;
	struct nvme_cqe c;
	struct dev_qp q;
	struct drive d;

	need_function();
	drive_up(&d);
	CHECK_EQ(nvme_qp_create(d.fn, 16, &parker, &q), 0);
	e.nsid = d.fn->ns[0].nsid;
	for (int i = 0; i < 20; i++) {
		uint64_t end = port_now_ns() + WAIT_NS;

		dev_qp_post(&q, &e);
		dev_qp_ring(&q);
		for (;;) {
			port_park_announce(&parker);
			if (dev_qp_poll(&q, &c))
				break;
			CHECK_EQ(port_park_wait(&parker, end), 0);
		}
		port_park_cancel(&parker);
		dev_qp_release(&q);
	}
	CHECK_EQ(nvme_qp_delete(d.fn, &q, port_now_ns() + WAIT_NS), 0);
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), -EBADF); /* none is left of the two */
	irqs.n = 1;
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), 0);
	irqs.n = TUTTI_NVME_VECTORS_MAX + 1;
	CHECK_EQ(call(d.fd, TUTTI_NVME_IRQS, (unsigned long)(uintptr_t)&irqs), -EINVAL);
	drive_down(&d);
	close(event);
}

/* ---- removal ---- */

static void removed_while_open(void)
{
	struct tutti_nvme_map m;
	struct tutti_nvme_info info;
	long long before = pinned();
	const volatile uint32_t *bar;
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 5);
	bar = (const volatile uint32_t *)(const void *)d.fn->t.bar0;
	CHECK_EQ(bar[REG_CSTS] & 1, 1);
	unbind();
	CHECK_EQ(bar[REG_CSTS], 0xffffffffu); /* and no SIGBUS */
	CHECK_EQ(access(node, F_OK), -1);
	CHECK_EQ(ioctl(d.fd, TUTTI_NVME_INFO, &info), -1);
	CHECK_EQ(errno, ENODEV);
	CHECK_EQ(map_user(d.fd, d.mem, PAGE, &m), -ENODEV);
	CHECK_EQ(call(d.fd, TUTTI_NVME_MASTER, 1), -ENODEV);
	CHECK_EQ(call(d.fd, TUTTI_NVME_UNMAP, 1), -ENODEV);
	dev_qp_ring(&d.q); /* the doorbell is a page of ours now */
	CHECK_EQ(nvme_qp_delete(d.fn, &d.q, port_now_ns() + 1000 * MS), 0); /* what is gone writes nothing */
	nvme_fn_close(d.fn);
	CHECK_EQ(pinned(), before);
	free(d.runs);
	munmap(d.mem, BUFFER + PAGE);
	bind_again();
	drive_up(&d);
	check_medium(&d, 5);
	drive_down(&d);
}

/* The drive is taken away while a process works on it, again and again. */
static void removed_at_work(void)
{
	long long before = pinned();
	struct drive d;

	need_function();
	for (int round = 0; round < 5; round++) {
		int status, working[2];
		char byte;
		pid_t pid;

		CHECK_EQ(pipe(working), 0);
		pid = fork();
		if (!pid) {
			drive_up(&d);
			status = (int)write(working[1], "", 1);
			while (!transfer(&d, NVME_CMD_READ, d.runs, d.n_runs))
				;
			_exit(0);
		}
		close(working[1]);
		CHECK_EQ(read(working[0], &byte, 1), 1); /* 0, if it dies before */
		close(working[0]);
		usleep(7000u * (unsigned)round); /* into its work */
		unbind();
		kill(pid, SIGKILL);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
		CHECK_EQ(pinned(), before);
		bind_again();
	}
	drive_up(&d);
	check_medium(&d, 5);
	drive_down(&d);
}

/* ---- killed ---- */

static void killed_under_load(void)
{
	long long before = pinned();
	struct drive d;

	need_function();
	drive_up(&d);
	write_medium(&d, 6);
	drive_down(&d);
	for (int round = 0; round < 5; round++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			drive_up(&d);
			for (uint16_t i = 0; i < 60; i++) {
				struct nvme_sqe e = {
				    .opcode = NVME_CMD_READ, .nsid = d.fn->ns[0].nsid, .cid = i, .cdw10 = i};

				e.dptr.prp.prp1 = d.runs[0].dma;
				dev_qp_post(&d.q, &e);
			}
			dev_qp_ring(&d.q);
			kill(getpid(), SIGKILL);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(WTERMSIG(status), SIGKILL);
		CHECK_EQ(pinned(), before);
		drive_up(&d);
		check_medium(&d, 6);
		drive_down(&d);
	}
}

int main(void)
{
	module_begin();
	CHECK_RUN(one_opener);
	CHECK_RUN(registers);
	CHECK_RUN(user_memory);
	CHECK_RUN(memlock_limit);
	CHECK_RUN(queue_memory);
	CHECK_RUN(queue_memory_comes_back);
	CHECK_RUN(host_memory);
	CHECK_RUN(interrupts);
	CHECK_RUN(removed_while_open);
	CHECK_RUN(removed_at_work);
	CHECK_RUN(killed_under_load);
	return check_end();
}
