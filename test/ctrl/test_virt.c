/* test_virt.c - the virtual controller on real files: data, several targets, idle, deletion, what it reports. */
#include "ctrl/lab.h"

#include <dirent.h>
#include <pthread.h>

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

int main(void)
{
	CHECK_RUN(reads_and_writes);
	return check_end();
}
