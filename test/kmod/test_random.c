/*
 * test_random.c - random calls to the kernel module tutti_nvme from two processes that share a descriptor, in rounds,
 * for TUTTI_TEST_SECONDS (module.h). A round ends in one of three ways: the processes let go of everything and look
 * whether they are charged for anything; they are killed; or the drive is taken away from under them first. After each,
 * nothing is pinned or attached. A kind of call that was tried often must have succeeded: what is only refused tests
 * little.
 */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "kmod/module.h"

#define MEMORY_PAGES 64 /* of a process, to be mapped */
#define VIEWS 8         /* mmap()s of the module's memory that a process has at a time, at most */
#define IDS 20          /* of maps that are named at random */
#define OFTEN 40        /* calls of a kind that don't all fail, */
#define LONGER_NS (30000 * MS) /* if need be with so much more time: what is drawn is not drawn evenly */

#define KINDS(X)                                                                                                       \
	X(OPEN) X(INFO) X(MAP_USER) X(MAP_DMABUF) X(MAP_QUEUE) X(RUNS) X(UNMAP) X(IRQS) X(MASTER) X(RESET) X(SEE_BAR)  \
	X(SEE_QUEUE) X(MOVE)
#define ONE(kind) kind,
#define NAME(kind) #kind,
enum kind { KINDS(ONE) N_KINDS };
static const char *const kind_names[] = {KINDS(NAME)};

/* Of all processes together. */
struct tally {
	_Atomic uint64_t calls[N_KINDS], done[N_KINDS];
	_Atomic int let_go;
};
static struct tally *tally;

enum ending { LET_GO, KILLED, TAKEN_AWAY, N_ENDINGS };

struct caller {
	uint64_t seed;
	int fd, exporter, dmabuf;
	int events[4];
	uint8_t *memory;
	struct view {
		void *p;
		uint64_t bytes;
	} views[VIEWS];
};

static uint64_t pick(struct caller *c, uint64_t n) { return check_random(&c->seed) % n; }

static void did(enum kind kind, int ok)
{
	atomic_fetch_add(&tally->calls[kind], 1);
	if (ok)
		atomic_fetch_add(&tally->done[kind], 1);
}

static void random_map(struct caller *c)
{
	struct tutti_nvme_map m = {.kind = (uint32_t)pick(c, 4), .fd = c->dmabuf};

	m.va = (uint64_t)(uintptr_t)c->memory + pick(c, MEMORY_PAGES + 16) * PAGE;
	m.bytes = pick(c, 40) * PAGE;
	if (m.kind == TUTTI_NVME_MAP_QUEUE)
		m.bytes = pick(c, 4) * PAGE; /* as much as is looked at below */
	if (pick(c, 8) == 0)
		m.va = check_random(&c->seed);
	if (pick(c, 16) == 0)
		m.bytes = check_random(&c->seed);
	if (pick(c, 8) == 0)
		m.fd = (int)pick(c, 16) - 1;
	if (pick(c, 32) == 0)
		ioctl(c->fd, TUTTI_NVME_MAP, NULL);
	else if (m.kind <= TUTTI_NVME_MAP_QUEUE)
		did((enum kind)(MAP_USER + m.kind), ioctl(c->fd, TUTTI_NVME_MAP, &m) == 0);
	else
		ioctl(c->fd, TUTTI_NVME_MAP, &m);
}

static void drop_view(struct view *v)
{
	if (v->p)
		munmap(v->p, v->bytes);
	v->p = NULL;
}

/* A sight of the registers or of a queue's memory, in place of an older one; or half of one is given up. */
static void random_view(struct caller *c)
{
	struct view *v = &c->views[pick(c, VIEWS)];
	uint64_t id = pick(c, 2) ? pick(c, IDS) : 0;

	if (v->p && v->bytes > PAGE && pick(c, 4) == 0) {
		v->bytes -= PAGE;
		munmap((uint8_t *)v->p + v->bytes, PAGE);
		return;
	}
	drop_view(v);
	v->bytes = (1 + pick(c, 3)) * PAGE;
	v->p = mmap(NULL, v->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, (off_t)TUTTI_NVME_MMAP(id));
	did(id ? SEE_QUEUE : SEE_BAR, v->p != MAP_FAILED);
	if (v->p == MAP_FAILED)
		v->p = NULL;
	else
		(void)*(volatile uint32_t *)v->p;
}

/* Refused while the descriptor is good. Behind a removal the drive is a new one, which one of the two can have. */
static void random_open(struct caller *c)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	did(OPEN, fd >= 0);
	if (fd < 0)
		return;
	close(c->fd);
	c->fd = fd;
}

static void random_rest(struct caller *c)
{
	static const unsigned long requests[] = {TUTTI_NVME_INFO, TUTTI_NVME_RUNS,   TUTTI_NVME_IRQS,
	                                         TUTTI_NVME_MAP,  TUTTI_NVME_MASTER, TUTTI_NVME_UNMAP};
	struct tutti_nvme_run runs[16];
	struct tutti_nvme_runs r = {.id = (uint32_t)pick(c, IDS),
	                            .first = (uint32_t)(pick(c, 2) * pick(c, 4)), /* most have one run */
	                            .n = (uint32_t)pick(c, 16),
	                            .runs = (uint64_t)(uintptr_t)runs};
	struct tutti_nvme_irqs irqs = {.fds = (uint64_t)(uintptr_t)c->events, .n = (uint32_t)pick(c, 5)};
	struct tutti_nvme_info info;
	int alive;

	switch (pick(c, 8)) {
	case 0:
		did(RUNS, ioctl(c->fd, TUTTI_NVME_RUNS, &r) == 0);
		break;
	case 1:
		did(IRQS, ioctl(c->fd, TUTTI_NVME_IRQS, &irqs) == 0);
		break;
	case 2:
		did(MASTER, ioctl(c->fd, TUTTI_NVME_MASTER, pick(c, 3)) == 0);
		break;
	case 3:
		alive = ioctl(c->fd, TUTTI_NVME_INFO, &info) == 0;
		did(INFO, alive);
		if (!alive)
			random_open(c);
		break;
	case 4:
		ioctl(c->fd, requests[pick(c, 6)], check_random(&c->seed)); /* a wild pointer */
		break;
	case 5:
		if (pick(c, 50) == 0)
			did(MOVE, ioctl(c->exporter, TUTTI_EXPORT_MOVE, (unsigned long)c->dmabuf) == 0);
		break;
	case 6:
		if (pick(c, 50) == 0)
			did(RESET, ioctl(c->fd, TUTTI_NVME_RESET, 0) == 0);
		break;
	default:
		random_view(c);
	}
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static int left(const char *what)
{
	printf("# a process that let go of everything %s\n", what);
	fflush(stdout);
	return 1;
}

/* Once both have let go nobody is charged for anything. 0, or 1 if something is left. */
static int let_go(struct caller *c, int descriptors_before)
{
	uint64_t end = port_now_ns() + 10 * WAIT_NS;

	for (int i = 0; i < VIEWS; i++)
		drop_view(&c->views[i]);
	if (descriptors() != descriptors_before)
		return left("has other descriptors than before");
	close(c->fd);
	for (atomic_fetch_add(&tally->let_go, 1); atomic_load(&tally->let_go) < 2; usleep(1000)) /* the other */
		if (port_now_ns() > end)
			return left("waited for the other in vain");
	return number("/proc/self/status", "VmLck:") ? left("is charged for locked memory") : 0;
}

static void random_process(struct caller *c, uint64_t end)
{
	int before;

	c->memory = pages(MEMORY_PAGES * PAGE); /* and nothing behind it, with luck */
	for (int i = 0; i < 4; i++)
		c->events[i] = eventfd(0, EFD_CLOEXEC);
	before = descriptors();
	for (uint64_t n = 0; port_now_ns() < end; n++) {
		if (pick(c, 50) == 0)
			random_open(c);
		if (pick(c, 3) == 0)
			random_map(c);
		else if (pick(c, 2))
			did(UNMAP, ioctl(c->fd, TUTTI_NVME_UNMAP, pick(c, IDS)) == 0);
		else
			random_rest(c);
		if (pick(c, 256) == 0)
			madvise(c->memory, MEMORY_PAGES * PAGE, MADV_DONTNEED);
	}
	_exit(let_go(c, before));
}

static void random_round(uint64_t seed, enum ending ending, int exporter, int dmabuf)
{
	uint64_t ms = 100 + check_random(&seed) % 400, end = port_now_ns() + ms * MS;
	int fd = node_open(), status;
	pid_t pid[2];

	did(OPEN, 1);
	atomic_store(&tally->let_go, 0);
	for (uint64_t i = 0; i < 2; i++) {
		struct caller c = {.seed = seed ^ i << 63, .fd = fd, .exporter = exporter, .dmabuf = dmabuf};

		pid[i] = fork();
		if (!pid[i])
			random_process(&c, ending == LET_GO ? end : end + 60000 * MS);
	}
	close(fd);
	if (ending != LET_GO)
		usleep((unsigned)ms * 1000); /* the time they have, not one that is waited for */
	if (ending == TAKEN_AWAY) {
		unbind();
		bind_again();
		usleep(50000); /* for one of them to have it again */
	}
	for (int i = 0; i < 2; i++) {
		if (ending != LET_GO)
			kill(pid[i], SIGKILL);
		CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
		CHECK_EQ(status, ending == LET_GO ? 0 : SIGKILL);
	}
}

/* The number that a new eventfd gets: the lowest that is free, so it tells of one that is held for ever. */
static long long event_number(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	char path[40];
	long long n;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	n = number(path, "eventfd-id:");
	close(fd);
	return n;
}

static int every_kind_succeeded(void)
{
	for (int i = 0; i < N_KINDS; i++)
		if (!tally->done[i] && tally->calls[i] >= OFTEN)
			return 0;
	return 1;
}

static void random_calls(void)
{
	struct tutti_export_new what = {.kind = TUTTI_EXPORT_PAGES, .bytes = 16 * PAGE}, a;
	const char *seconds = getenv("TUTTI_TEST_SECONDS");
	uint64_t seed = port_now_ns(), end = seed + 1000 * MS * (seconds ? strtoull(seconds, NULL, 10) : 3);
	long long before = pinned(), event = event_number();
	unsigned rounds = 0;
	struct drive d;
	int exporter;

	need_function();
	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(tally != MAP_FAILED);
	exporter = export(&what, &a);
	for (;
	     rounds < N_ENDINGS || port_now_ns() < end || (!every_kind_succeeded() && port_now_ns() < end + LONGER_NS);
	     rounds++) {
		random_round(check_random(&seed), (enum ending)(rounds % N_ENDINGS), exporter, a.fd);
		check_held(exporter, 0, 1);
		CHECK_EQ(pinned(), before);
		CHECK_EQ(event_number(), event);
	}
	close(a.fd);
	check_held(exporter, 0, 0);
	close(exporter);
	printf("# %u rounds; of each kind, calls that succeeded:", rounds);
	for (int i = 0; i < N_KINDS; i++)
		printf(" %s %llu/%llu", kind_names[i], (unsigned long long)tally->done[i],
		       (unsigned long long)tally->calls[i]);
	printf("\n");
	CHECK(every_kind_succeeded());
	munmap(tally, sizeof(*tally));
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
