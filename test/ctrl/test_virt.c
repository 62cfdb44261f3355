/* test_virt.c - the virtual controller on real files: data, several targets, idle, deletion, what it reports. */
#include "ctrl/lab.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define FILE_BYTES (16u << 20)

static struct ctrl_target target(const char *path) { return (struct ctrl_target){.path = path, .fd = -1}; }

static void reads_and_writes(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "a", FILE_BYTES, 7));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;
	uint64_t *p;

	lab_open(&l, &ctrl_virt, &o, 64, 4 << 20);
	p = (uint64_t *)l.arena;
	CHECK_EQ(l.info.n_ns, 1);
	CHECK_EQ(l.info.ns[0].capacity_bytes, FILE_BYTES);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 1 << 20, p, 1 << 20), 0);
	for (uint64_t i = 0; i < (1 << 20) / 8; i++)
		CHECK(p[i] == lab_pattern((1 << 20) + i * 8, 7));
	memset(p, 0x5a, 8192);
	CHECK_EQ(lab_rw(&l, NVME_CMD_WRITE, 1, 4096, p, 8192), 0);
	CHECK_EQ(lab_do(&l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), 0);
	memset(p, 0, 16384);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, p, 16384), 0);
	CHECK_EQ(p[0], lab_pattern(0, 7));
	CHECK_EQ(p[511], lab_pattern(4088, 7));
	CHECK_EQ(p[512], 0x5a5a5a5a5a5a5a5all);
	CHECK_EQ(p[1535], 0x5a5a5a5a5a5a5a5all);
	CHECK_EQ(p[1536], lab_pattern(12288, 7));
	lab_close(&l);
}

/* O_DIRECT's alignment is the controller's business: any address and any cut of the memory gives the right bytes. */
static void odd_memory(const char *dir)
{
	struct ctrl_target t = target(lab_file(dir, "odd", FILE_BYTES, 3));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct nvme_sgl *list;
	struct nvme_sqe e;
	struct lab l;
	uint64_t seed = 1;

	lab_open(&l, &ctrl_virt, &o, 64, 8 << 20);
	list = (struct nvme_sgl *)(void *)(l.arena + (7 << 20));
	for (int round = 0; round < 100; round++) {
		uint32_t bytes = 4096 * (1 + (uint32_t)(check_random(&seed) % 64)), n = 0;
		uint64_t at = 4096 * (check_random(&seed) % 1024), left = bytes, place = 0, offset = at;
		int write = round % 4 == 3;

		e = lab_sqe(&l, write ? NVME_CMD_WRITE : NVME_CMD_READ, 1, at, l.arena, bytes);
		for (; left && n < 256; n++) {
			uint32_t len = n == 255 ? (uint32_t)left : 4 * (uint32_t)(1 + check_random(&seed) % 4000);

			len = len < left ? len : (uint32_t)left;
			list[n] = (struct nvme_sgl){
			    .addr = (uint64_t)(uintptr_t)l.arena + place + 4 * (check_random(&seed) % 3), .len = len};
			for (uint32_t k = 0; k < len; k++)
				*(uint8_t *)(uintptr_t)(list[n].addr + k) =
				    (uint8_t)(lab_pattern((at + k) & ~7ull, 3) >> (at + k) % 8 * 8);
			if (!write)
				memset((void *)(uintptr_t)list[n].addr, 0xee, len);
			place += len + 16;
			at += len;
			left -= len;
		}
		e.dptr.sgl = (struct nvme_sgl){
			.addr = (uint64_t)(uintptr_t)list, .len = 16 * n, .id = NVME_SGL_LAST_SEGMENT << 4};
		CHECK_EQ(lab_do(&l, e), 0);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < list[i].len; k++, offset++)
				CHECK(*(uint8_t *)(uintptr_t)(list[i].addr + k) ==
				      (uint8_t)(lab_pattern(offset & ~7ull, 3) >> offset % 8 * 8));
	}
	if (l.info.ns[0].direct && l.info.ns[0].mem_align_bytes > 4)
		CHECK(lab_counters(&l).bounced > 0);
	printf("# direct %d, memory alignment %u, bounced %llu, resumed %llu\n", l.info.ns[0].direct,
	       l.info.ns[0].mem_align_bytes, (unsigned long long)lab_counters(&l).bounced,
	       (unsigned long long)lab_counters(&l).resumed);
	lab_close(&l);
}

static void odd_memory_on_disk(void) { odd_memory(lab_tmp()); }

static void odd_memory_on_tmpfs(void)
{
	char dir[] = "/dev/shm/tutti-ctrl-XXXXXX", command[64];

	if (!mkdtemp(dir))
		CHECK_SKIP("no tmpfs at /dev/shm");
	odd_memory(dir);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK_EQ(system(command), 0);
}

/* Aligned pieces inside registered memory need no copy; and PRP lists arrive as well as SGLs. */
static void prp_and_vectors(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "prp", FILE_BYTES, 5));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 0};
	struct nvme_sqe e;
	struct lab l;
	uint64_t *list;

	lab_open(&l, &ctrl_virt, &o, 64, 4 << 20);
	CHECK_EQ(l.info.sgl_max, 0);
	list = (uint64_t *)(void *)(l.arena + (3 << 20));
	for (uint32_t i = 0; i < 31; i++)
		list[i] = (uint64_t)(uintptr_t)l.arena + 8192ull * (i + 1);
	e = lab_sqe(&l, NVME_CMD_READ, 1, 65536, l.arena, 32 * 4096);
	e.flags = 0;
	e.dptr.prp.prp1 = (uint64_t)(uintptr_t)l.arena;
	e.dptr.prp.prp2 = (uint64_t)(uintptr_t)list;
	CHECK_EQ(lab_do(&l, e), 0);
	for (uint32_t i = 0; i < 32; i++)
		for (uint32_t k = 0; k < 512; k++)
			CHECK(*(uint64_t *)(void *)(l.arena + 8192 * i + 8 * k) ==
			      lab_pattern(65536 + 4096 * i + 8 * k, 5));
	CHECK_EQ(lab_counters(&l).bounced, 0);
	lab_close(&l);
}

static void several_files_in_turn(void)
{
	struct ctrl_target t[3];
	struct ctrl_opts o = {.targets = t, .n_targets = 3, .sgl = 1};
	struct nvme_sqe e;
	struct lab l;
	uint32_t sent = 0, got = 0;

	for (uint32_t i = 0; i < 3; i++) {
		char name[8] = {'r', (char)('0' + i), 0};

		t[i] = target(lab_file(lab_tmp(), name, FILE_BYTES, i));
	}
	lab_open(&l, &ctrl_virt, &o, 48, 24 << 20);
	CHECK_EQ(l.info.n_ns, 3);
	/* Stripes of 64 KiB over the three files, 192 of them, in any order of completion. */
	while (got < 192) {
		for (; sent < 192 && sent - got < 47; sent++) {
			e = lab_sqe(&l, NVME_CMD_READ, 1 + sent % 3, sent / 3 * 65536, l.arena + sent * 65536, 65536);
			e.cid = (uint16_t)sent;
			dev_qp_post(&l.qp, &e);
		}
		dev_qp_ring(&l.qp);
		CHECK_EQ(NVME_STATUS(lab_wait(&l).cid_status), 0);
		got++;
	}
	for (uint32_t i = 0; i < 192; i++)
		for (uint32_t k = 0; k < 65536; k += 8)
			CHECK(*(uint64_t *)(void *)(l.arena + i * 65536 + k) == lab_pattern(i / 3 * 65536 + k, i % 3));
	lab_close(&l);
}

struct worker {
	struct lab l;
	uint32_t nsid, bad;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t seed = w->nsid;

	for (int i = 0; i < 400; i++) {
		uint64_t at = 4096 * (check_random(&seed) % (FILE_BYTES / 4096 - 8)),
		         *p = (uint64_t *)(void *)w->l.arena;
		struct nvme_sqe e = lab_sqe(&w->l, NVME_CMD_READ, w->nsid, at, p, 32768);
		struct nvme_cqe c;

		e.cid = (uint16_t)i;
		dev_qp_post(&w->l.qp, &e);
		dev_qp_ring(&w->l.qp);
		while (!dev_qp_poll(&w->l.qp, &c))
			port_pause();
		dev_qp_release(&w->l.qp);
		w->bad += NVME_STATUS(c.cid_status) != 0 || NVME_CID(c.cid_status) != i ||
		          p[0] != lab_pattern(at, w->nsid) || p[4095] != lab_pattern(at + 32760, w->nsid);
	}
	return NULL;
}

static void two_threads_two_queues(void)
{
	struct ctrl_target t[2];
	struct ctrl_opts o = {.targets = t, .n_targets = 2, .sgl = 1};
	struct worker w[2];
	pthread_t id[2];

	t[0] = target(lab_file(lab_tmp(), "t1", FILE_BYTES, 1));
	t[1] = target(lab_file(lab_tmp(), "t2", FILE_BYTES, 2));
	lab_open(&w[0].l, &ctrl_virt, &o, 8, 2 << 20);
	w[1].l = w[0].l;
	CHECK_EQ(ctrl_virt.qp_create(w[0].l.c, 8, NULL, &w[1].l.qp), 0);
	w[1].l.arena += 1 << 20;
	for (uint32_t i = 0; i < 2; i++) {
		w[i].nsid = i + 1;
		w[i].bad = 0;
		CHECK_EQ(pthread_create(&id[i], NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(id[i], NULL);
	CHECK_EQ(w[0].bad + w[1].bad, 0);
	CHECK_EQ(ctrl_virt.qp_delete(w[1].l.c, &w[1].l.qp, port_now_ns() + LAB_WAIT_NS), 0);
	lab_close(&w[0].l);
}

/* ---- idle ---- */

/* Of a thread: its context switches, if it is a controller's or one that io_uring made (sanitizers have threads too).
 */
static uint64_t switches_of(const char *task)
{
	char path[300], line[256];
	uint64_t sum = 0;
	int ours = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "ctxt_switches:");

		ours |= strstr(line, "tutti-ctrl") || strstr(line, "iou-");
		sum += at ? strtoull(at + 14, NULL, 10) : 0;
	}
	if (f)
		fclose(f);
	return ours ? sum : 0;
}

static uint64_t switches(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	uint64_t sum = 0;

	CHECK(d != NULL);
	while ((e = readdir(d)))
		sum += switches_of(e->d_name);
	closedir(d);
	return sum;
}

/* Of the whole process. */
static uint64_t cpu_us(void)
{
	struct rusage r;

	CHECK_EQ(getrusage(RUSAGE_SELF, &r), 0);
	return (uint64_t)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void idle_costs_nothing(const struct ctrl_ops *ops, const char *path)
{
	struct ctrl_target t = target(path);
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	uint64_t before, used_us;
	int tries = 0;
	struct lab l;

	lab_open(&l, ops, &o, 16, 1 << 20);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 65536), 0);
	for (int i = 0; i < 5; i++) {
		usleep(10000); /* until it has parked; then it is woken for nothing */
		dev_qp_ring(&l.qp);
	}
	do { /* until it has parked for good */
		before = switches();
		usleep(100000); /* nobody says when it has */
	} while (switches() != before && ++tries < 100);
	CHECK(before > 0);
	used_us = cpu_us();
	usleep(1000000); /* the second that is measured */
	CHECK_EQ(switches() - before, 0);
	CHECK(cpu_us() - used_us < 20000);
	/* And it wakes. */
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 65536, l.arena, 65536), 0);
	CHECK(lab_counters(&l).parks > 0);
	lab_close(&l);
}

static void idle_virt(void) { idle_costs_nothing(&ctrl_virt, lab_file(lab_tmp(), "idle", 1 << 20, 1)); }
static void idle_null(void) { idle_costs_nothing(&ctrl_null, "null:1M"); }
static void idle_model(void) { idle_costs_nothing(&ctrl_model, "ram:1M"); }

/* ---- what can go wrong with files ---- */

static void a_file_cut_behind_our_back(void)
{
	const char *path = lab_file(lab_tmp(), "cut", 1 << 20, 1);
	struct ctrl_target t = target(path);
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;

	lab_open(&l, &ctrl_virt, &o, 16, 1 << 20);
	CHECK_EQ(truncate(path, 524288), 0);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 524288 - 65536, l.arena, 131072), NVME_SC_READ_ERROR);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 786432, l.arena, 4096), NVME_SC_READ_ERROR);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 65536), 0);
	CHECK(lab_counters(&l).resumed > 0);
	lab_close(&l);
}

static void a_full_disk(void)
{
	char command[8500], path[4300];
	struct ctrl_target t = target(path);
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;
	uint32_t status = 0;

	snprintf(command, sizeof(command), "mkdir '%s/full' && mount -t tmpfs -o size=1m none '%s/full' 2>/dev/null",
	         lab_tmp(), lab_tmp());
	if (system(command))
		CHECK_SKIP("can't mount a small tmpfs (needs root)");
	snprintf(path, sizeof(path), "%s/full/f", lab_tmp());
	close(open(path, O_RDWR | O_CREAT, 0600));
	CHECK_EQ(truncate(path, 4 << 20), 0);
	lab_open(&l, &ctrl_virt, &o, 16, 1 << 20);
	memset(l.arena, 1, 1 << 20);
	for (uint64_t at = 0; at < 4 << 20 && !status; at += 262144)
		status = lab_rw(&l, NVME_CMD_WRITE, 1, at, l.arena, 262144);
	lab_close(&l);
	snprintf(command, sizeof(command), "umount '%s/full' || { sleep 1; umount '%s/full'; }", lab_tmp(), lab_tmp());
	CHECK_EQ(system(command), 0);
	CHECK_EQ(status, NVME_SC_CAPACITY);
}

static int open_of(const char *path, int fd, int read_only, uint32_t lba)
{
	struct ctrl_target t = {.path = path, .fd = fd, .read_only = read_only};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1, .lba_bytes = lba};
	struct ctrl *c = NULL;
	int rc;

	err_clear();
	rc = ctrl_virt.open(&o, &c);
	CHECK((rc == 0) == (c != NULL));
	CHECK(rc == 0 || err_text()[0]);
	if (c)
		ctrl_virt.close(c);
	return rc;
}

static void opening(void)
{
	const char *path = lab_file(lab_tmp(), "open", 1 << 20, 1);
	struct ctrl_opts o = {.n_targets = 0};
	struct ctrl *c;
	int fd = open(path, O_RDWR);

	CHECK_EQ(open_of(path, -1, 0, 0), 0);
	CHECK_EQ(open_of(path, -1, 0, 4096), 0);
	CHECK_EQ(open_of(path, -1, 0, 1024), -EINVAL);
	CHECK_EQ(open_of(NULL, fd, 0, 0), 0);
	CHECK(fcntl(fd, F_GETFD) >= 0); /* still the caller's, and without O_DIRECT put on it */
	CHECK_EQ(fcntl(fd, F_GETFL) & O_DIRECT, 0);
	close(fd);
	CHECK_EQ(open_of("/nonexistent/file", -1, 0, 0), -ENOENT);
	CHECK(strstr(err_text(), "/nonexistent/file") != NULL);
	CHECK_EQ(open_of(lab_tmp(), -1, 1, 0), -ENOTBLK);
	CHECK_EQ(open_of("", -1, 0, 0), -EINVAL);
	CHECK_EQ(ctrl_virt.open(&o, &c), -EINVAL);
	CHECK_EQ(open_of("/dev/null", -1, 0, 0), -ENOTBLK);
}

static void read_only_target(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "ro", 1 << 20, 1));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;

	t.read_only = 1;
	lab_open(&l, &ctrl_virt, &o, 16, 1 << 20);
	CHECK_EQ(lab_rw(&l, NVME_CMD_WRITE, 1, 0, l.arena, 4096), CTRL_SC_READ_ONLY);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), 0);
	lab_close(&l);
}

/* ---- memory ---- */

static char warned[512];

static void on_log(void *arg, int level, const char *message)
{
	(void)arg;
	if (level == LOG_WARN)
		snprintf(warned, sizeof(warned), "%s", message);
}

static void memory_that_cannot_be_registered(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "lock", 1 << 20, 6));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;
	char *p = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t dma;
	int registered = 7;

	CHECK(p != MAP_FAILED);
	lab_open(&l, &ctrl_virt, &o, 16, 1 << 20);
	log_set(on_log, NULL);
	warned[0] = 0;
	/* Pages that can't be pinned now; they become readable later. The limit itself doesn't bind root. */
	CHECK_EQ(ctrl_virt.mem_map(l.c, p, 1 << 20, &dma, &registered), 0);
	log_set(NULL, NULL);
	CHECK_EQ(registered, 0);
	CHECK(strstr(warned, "not registered") != NULL);
	CHECK_EQ(mprotect(p, 1 << 20, PROT_READ | PROT_WRITE), 0);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 4096, p, 8192), 0);
	CHECK_EQ(*(uint64_t *)(void *)p, lab_pattern(4096, 6));
	CHECK_EQ(ctrl_virt.mem_unmap(l.c, p, 1 << 20), 0);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 4096, p, 8192), NVME_SC_DATA_TRANSFER);
	munmap(p, 1 << 20);
	lab_close(&l);
}

/* What the child of the next case finds, as an exit status. */
static int limited_child(const char *path)
{
	struct ctrl_target t = target(path);
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct rlimit small = {65536, 65536};
	struct ctrl *c;
	int registered = 7;
	void *p = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (setrlimit(RLIMIT_MEMLOCK, &small) || (getuid() == 0 && setresuid(65534, 65534, 65534)))
		return 1;
	log_set(on_log, NULL);
	warned[0] = 0;
	if (ctrl_virt.open(&o, &c))
		return 2;
	if (ctrl_virt.mem_map(c, p, 4 << 20, NULL, &registered) || registered)
		return 3;
	if (!strstr(warned, "ulimit -l"))
		return 4;
	ctrl_virt.close(c);
	return 0;
}

static void memlock_too_low(void)
{
	const char *path = lab_file(lab_tmp(), "limit", 1 << 20, 6);
	pid_t pid;
	int status;

	CHECK_EQ(chmod(lab_tmp(), 0755) | chmod(path, 0666), 0);
	pid = fork();
	if (pid == 0)
		_exit(limited_child(path));
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
}

static void mapping(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "map", 1 << 20, 6));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	uint64_t fixed;
	struct lab l;

	lab_open(&l, &ctrl_virt, &o, 16, 4 << 20);
	CHECK_EQ(ctrl_virt.mem_map(l.c, l.arena + 4096, 4096, NULL, NULL), -EEXIST);
	CHECK_EQ(ctrl_virt.mem_map(l.c, NULL, 4096, NULL, NULL), -EINVAL);
	CHECK_EQ(ctrl_virt.mem_map(l.c, l.arena, 0, NULL, NULL), -EINVAL);
	CHECK_EQ(ctrl_virt.mem_unmap(l.c, l.arena, 4096), -ENOENT);
	CHECK_EQ(ctrl_virt.mem_unmap(l.c, l.arena, 4 << 20), 0);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 4096), NVME_SC_DATA_TRANSFER);
	/* Registered again in many pieces, of which each command uses its own. */
	for (uint32_t i = 0; i < 1024; i++)
		CHECK_EQ(ctrl_virt.mem_map(l.c, l.arena + 4096 * i, 4096, NULL, &l.registered), 0);
	fixed = lab_counters(&l).fixed_ios;
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 4096, l.arena + 4096 * 77, 4096), 0);
	CHECK_EQ(*(uint64_t *)(void *)(l.arena + 4096 * 77), lab_pattern(4096, 6));
	if (l.registered)
		CHECK_EQ(lab_counters(&l).fixed_ios, fixed + 1);
	/* Across the pieces: right, only not by the fixed path. */
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena + 4096 * 10, 1 << 20), 0);
	CHECK_EQ(*(uint64_t *)(void *)(l.arena + 4096 * 200), lab_pattern(4096 * 190, 6));
	for (uint32_t i = 0; i < 1024; i++)
		CHECK_EQ(ctrl_virt.mem_unmap(l.c, l.arena + 4096 * i, 4096), 0);
	lab_close(&l);
}

/* Delete with real I/O in flight, again and again. */
static void deletion_in_flight(void)
{
	struct ctrl_target t = target(lab_file(lab_tmp(), "del", FILE_BYTES, 1));
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;

	lab_open(&l, &ctrl_virt, &o, 64, 16 << 20);
	for (int round = 0; round < 30; round++) {
		for (uint32_t i = 0; i < 60; i++) {
			struct nvme_sqe e = lab_sqe(&l, round % 2 ? NVME_CMD_READ : NVME_CMD_WRITE, 1, i * 262144,
			                            l.arena + i * 262144, 262144);

			e.cid = (uint16_t)i;
			dev_qp_post(&l.qp, &e);
		}
		dev_qp_ring(&l.qp);
		usleep((useconds_t)(round * 20)); /* deletes at different moments of the I/O */
		CHECK_EQ(ctrl_virt.qp_delete(l.c, &l.qp, port_now_ns() + LAB_WAIT_NS), 0);
		memset(l.arena, 0x5c, 15 << 20);
		CHECK_EQ(ctrl_virt.qp_create(l.c, 64, &l.parker, &l.qp), 0);
		for (uint32_t i = 0; i < 15 << 20; i += 512)
			CHECK(l.arena[i] == 0x5c);
	}
	lab_close(&l);
}

int main(void)
{
	CHECK_RUN(reads_and_writes);
	CHECK_RUN(odd_memory_on_disk);
	CHECK_RUN(odd_memory_on_tmpfs);
	CHECK_RUN(prp_and_vectors);
	CHECK_RUN(several_files_in_turn);
	CHECK_RUN(two_threads_two_queues);
	CHECK_RUN(idle_virt);
	CHECK_RUN(idle_null);
	CHECK_RUN(idle_model);
	CHECK_RUN(a_file_cut_behind_our_back);
	CHECK_RUN(a_full_disk);
	CHECK_RUN(opening);
	CHECK_RUN(read_only_target);
	CHECK_RUN(memory_that_cannot_be_registered);
	CHECK_RUN(memlock_too_low);
	CHECK_RUN(mapping);
	CHECK_RUN(deletion_in_flight);
	return check_end();
}
