/*
 * test_random.c - random calls to the kernel module tutti_nvme from two processes that share a descriptor, for
 * TUTTI_TEST_SECONDS (module.h).
 */
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "kmod/module.h"

static void random_map(int fd, uint64_t *seed, uint8_t *memory, int dmabuf)
{
	struct tutti_nvme_map m = {.kind = (uint32_t)(check_random(seed) % 4), .fd = -1};

	m.va = (uint64_t)(uintptr_t)memory + check_random(seed) % 80 * PAGE;
	m.bytes = check_random(seed) % 40 * PAGE;
	if (check_random(seed) % 8 == 0)
		m.va = check_random(seed);
	if (check_random(seed) % 16 == 0)
		m.bytes = check_random(seed);
	if (check_random(seed) % 2)
		m.fd = dmabuf;
	ioctl(fd, TUTTI_NVME_MAP, check_random(seed) % 32 ? (void *)&m : NULL);
}

static void random_rest(int fd, uint64_t *seed, const int *events)
{
	static const unsigned long requests[] = {TUTTI_NVME_INFO, TUTTI_NVME_RUNS,   TUTTI_NVME_IRQS,
	                                         TUTTI_NVME_MAP,  TUTTI_NVME_MASTER, TUTTI_NVME_UNMAP};
	struct tutti_nvme_run runs[64];
	struct tutti_nvme_runs r = {.id = (uint32_t)(check_random(seed) % 20),
	                            .first = (uint32_t)(check_random(seed) % 40),
	                            .n = (uint32_t)(check_random(seed) % 64),
	                            .runs = (uint64_t)(uintptr_t)runs};
	struct tutti_nvme_irqs irqs = {.fds = (uint64_t)(uintptr_t)events, .n = (uint32_t)(check_random(seed) % 5)};
	void *p;

	switch (check_random(seed) % 6) {
	case 0:
		ioctl(fd, TUTTI_NVME_RUNS, &r);
		break;
	case 1:
		ioctl(fd, TUTTI_NVME_IRQS, &irqs);
		break;
	case 2:
		ioctl(fd, TUTTI_NVME_MASTER, check_random(seed) % 3);
		break;
	case 3:
		p = mmap(NULL, (1 + check_random(seed) % 8) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		         (off_t)TUTTI_NVME_MMAP(check_random(seed) % 20));
		if (p != MAP_FAILED) {
			(void)*(volatile uint32_t *)p;
			munmap(p, PAGE); /* the rest stays until the process ends */
		}
		break;
	case 4:
		ioctl(fd, requests[check_random(seed) % 6], check_random(seed)); /* a wild pointer */
		break;
	default:
		if (check_random(seed) % 50 == 0)
			ioctl(fd, TUTTI_NVME_RESET, 0);
	}
}

/* Until the time is over: random calls on a descriptor that two processes have; now and then it is opened anew. */
static void random_process(uint64_t seed, int fd, uint64_t end, int dmabuf)
{
	int events[4], own = -1;
	uint8_t *memory = pages(64 * PAGE); /* and nothing behind it, with luck */

	for (int i = 0; i < 4; i++)
		events[i] = eventfd(0, EFD_CLOEXEC);
	for (uint64_t n = 0; port_now_ns() < end; n++) {
		if (n % 1000 == 999) { /* only one of the two gets it, and only when the other has let go as well */
			close(fd);
			if (own >= 0)
				close(own);
			fd = own = open(node, O_RDWR | O_CLOEXEC);
		}
		if (check_random(&seed) % 3 == 0)
			random_map(fd, &seed, memory, dmabuf);
		else if (check_random(&seed) % 2)
			ioctl(fd, TUTTI_NVME_UNMAP, check_random(&seed) % 20);
		else
			random_rest(fd, &seed, events);
		if (n % 64 == 0 && check_random(&seed) % 4 == 0)
			madvise(memory, 64 * PAGE, MADV_DONTNEED);
	}
	_exit(0);
}

static void random_calls(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_PAGES, .bytes = 16 * PAGE}, a;
	const char *seconds = getenv("TUTTI_TEST_SECONDS");
	uint64_t end = port_now_ns() + 1000 * MS * (seconds ? strtoull(seconds, NULL, 10) : 3);
	long long before = pinned();
	int fd, exporter, status;
	struct drive d;
	pid_t pid[2];

	need_function();
	exporter = export(&what, &a);
	fd = node_open();
	for (uint64_t i = 0; i < 2; i++) {
		pid[i] = fork();
		if (!pid[i])
			random_process(end ^ i, fd, end, a.fd);
	}
	close(fd);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
		CHECK_EQ(status, 0);
	}
	close(a.fd);
	check_held(exporter, 0, 0);
	close(exporter);
	CHECK_EQ(pinned(), before);
	drive_up(&d);
	write_medium(&d, 8);
	check_medium(&d, 8);
	drive_down(&d);
}

int main(void)
{
	module_begin();
	CHECK_RUN(random_calls);
	return check_end();
}
