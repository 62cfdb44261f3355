/* test_model.c - the timing model on an injected clock, and the controller whose medium is RAM. */
#include "ctrl/lab.h"
#include "ctrl/model_time.h"

#include <fcntl.h>

#define N 64u

static struct model_time m;
static struct model_time_cmd cmds[N];

/*
 * Keeps `reads` reads and `writes` writes of so many bytes in flight for a second of model time; bytes moved each way.
 * Looks only when the model says that there is something to see.
 */
static void keep_busy(const struct ctrl_model *cfg, uint32_t reads, uint32_t writes, uint32_t bytes, uint64_t moved[2])
{
	uint64_t now_ns = 1000, from_ns, to_ns;

	model_time_init(&m, cfg, now_ns);
	for (uint32_t i = 0; i < reads + writes; i++) {
		cmds[i] = (struct model_time_cmd){.direction = i < reads ? MODEL_READ : MODEL_WRITE, .bytes = bytes};
		model_time_add(&m, &cmds[i], now_ns);
	}
	moved[0] = moved[1] = 0;
	from_ns = now_ns + 200000000; /* after the start's ramp */
	to_ns = from_ns + 1000000000;
	while (now_ns < to_ns) {
		uint64_t next_ns = model_time_next(&m);
		struct model_time_cmd *c;

		CHECK(next_ns != MODEL_TIME_NEVER && next_ns >= now_ns);
		now_ns = next_ns;
		while ((c = model_time_take(&m, now_ns))) {
			CHECK(c->finish_ns <= now_ns);
			if (now_ns >= from_ns)
				moved[c->direction] += c->bytes;
			model_time_add(&m, c, now_ns);
		}
	}
}

static int close_to(uint64_t value, double want, double percent)
{
	double off = 100 * ((double)value / want - 1);

	if (off > percent || off < -percent)
		printf("# %llu, wanted %.0f: off by %.2f %%\n", (unsigned long long)value, want, off);
	return off <= percent && off >= -percent;
}

static void bandwidth(void)
{
	struct ctrl_model cfg = {.read_bytes_per_s = 7000000000ull,
	                         .write_bytes_per_s = 3000000000ull,
	                         .read_latency_ns = 80000,
	                         .write_latency_ns = 15000};
	static const uint32_t sizes[] = {4096, 32768, 131072, 1 << 20};
	uint64_t moved[2];

	for (int i = 0; i < 4; i++) {
		/* Enough in flight to fill the pipe. */
		uint32_t n = 7000000000ull * 80000 / 1000000000 / sizes[i] * 2 + 4 < N ? 60 : 0;

		if (!n)
			continue;
		keep_busy(&cfg, n, 0, sizes[i], moved);
		CHECK(close_to(moved[0], 7e9, 1));
		CHECK_EQ(moved[1], 0);
		keep_busy(&cfg, 0, n, sizes[i], moved);
		CHECK(close_to(moved[1], 3e9, 1));
	}
}

static void latency(void)
{
	struct ctrl_model cfg = {.read_bytes_per_s = 1000000000, .read_latency_ns = 80000, .write_latency_ns = 20000};
	struct model_time_cmd c = {.direction = MODEL_READ, .bytes = 4096},
	                      w = {.direction = MODEL_WRITE, .bytes = 4096};
	uint64_t moved[2];

	model_time_init(&m, &cfg, 500);
	CHECK_EQ(model_time_next(&m), MODEL_TIME_NEVER);
	model_time_add(&m, &c, 1000);
	model_time_add(&m, &w, 1000);
	CHECK(model_time_take(&m, 20999) == NULL);
	CHECK(model_time_take(&m, 21000) == &w); /* writes have no bandwidth limit here */
	CHECK(model_time_take(&m, 1000 + 4096 + 79999) == NULL);
	CHECK(model_time_take(&m, 1000 + 4096 + 80000) == &c);
	CHECK_EQ(c.finish_ns, 85096);
	CHECK_EQ(model_time_next(&m), MODEL_TIME_NEVER);
	/* One at a time: bytes / (latency + bytes / bandwidth). */
	keep_busy(&cfg, 1, 0, 4096, moved);
	CHECK(close_to(moved[0], 4096 / (84.096e-6), 1));
	/* No limits at all: everything is done on arrival. */
	model_time_init(&m, NULL, 500);
	model_time_add(&m, &c, 600);
	CHECK(model_time_take(&m, 600) == &c);
	CHECK_EQ(c.finish_ns, 600);
}

static void queue_depth(void)
{
	struct ctrl_model cfg = {.read_bytes_per_s = 7000000000ull, .read_latency_ns = 100000, .queue_depth = 8};
	uint64_t moved[2];

	/* 8 work at once, 64 are offered: 8 * 4096 bytes each 100 us and the transfers of one another at most. */
	keep_busy(&cfg, 64, 0, 4096, moved);
	CHECK(close_to(moved[0], 8 * 4096 / 100.585e-6, 3));
	keep_busy(&cfg, 8, 0, 4096, moved);
	CHECK(close_to(moved[0], 8 * 4096 / 100.585e-6, 3));
	cfg.queue_depth = 32;
	keep_busy(&cfg, 64, 0, 4096, moved);
	CHECK(close_to(moved[0], 32 * 4096 / 100.585e-6, 3));
}

static void mixing(void)
{
	struct ctrl_model cfg = {.read_bytes_per_s = 6000000000ull,
	                         .write_bytes_per_s = 2000000000ull,
	                         .read_latency_ns = 50000,
	                         .write_latency_ns = 10000,
	                         .mixed_percent = 60};
	uint64_t moved[2];

	keep_busy(&cfg, 16, 16, 131072, moved);
	CHECK(close_to(moved[0], 0.6 * 6e9, 2));
	CHECK(close_to(moved[1], 0.6 * 2e9, 2));
	/* With an uneven offer too, as long as both pipes are full. */
	keep_busy(&cfg, 60, 2, 131072, moved);
	CHECK(close_to(moved[0], 0.6 * 6e9, 2));
	CHECK(close_to(moved[1], 0.6 * 2e9, 2));
	keep_busy(&cfg, 32, 0, 131072, moved);
	CHECK(close_to(moved[0], 6e9, 2));
	cfg.mixed_percent = 0;
	keep_busy(&cfg, 16, 16, 131072, moved);
	CHECK(close_to(moved[0], 6e9, 2));
	/* Writes that fill half of the time slow reads half of the time: 1 - (1 - 0.6) * share. One write in flight
	 * moves for 131072 / (0.6 * 2e9) s, then its latency passes in as much time. */
	cfg.mixed_percent = 60;
	cfg.write_latency_ns = 109227;
	keep_busy(&cfg, 16, 1, 131072, moved);
	CHECK(close_to(moved[0], 0.8 * 6e9, 2));
}

/* However often one looks, and at what times: the same finish times. */
static void looking_changes_nothing(void)
{
	static uint64_t finish[2][2000];
	static struct model_time_cmd all[2000];
	struct ctrl_model cfg = {.read_bytes_per_s = 3000000000ull,
	                         .write_bytes_per_s = 1000000000,
	                         .read_latency_ns = 70000,
	                         .write_latency_ns = 30000,
	                         .queue_depth = 16,
	                         .mixed_percent = 70};

	for (int run = 0; run < 2; run++) {
		uint64_t seed = 12, look = 99, now_ns = 0;
		uint32_t got = 0;

		model_time_init(&m, &cfg, 0);
		for (uint32_t i = 0; i < 2000; i++) {
			now_ns += check_random(&seed) % 60000;
			all[i] = (struct model_time_cmd){.direction = check_random(&seed) % 2,
			                                 .bytes = 4096 * (uint32_t)(check_random(&seed) % 64)};
			for (int k = 0; run && k < 3; k++) {
				uint64_t at = m.now_ns + (now_ns - m.now_ns) * (check_random(&look) % 100) / 100;

				while (model_time_take(&m, at))
					got++;
			}
			model_time_add(&m, &all[i], now_ns);
		}
		while (model_time_take(&m, now_ns + 10000000000ull))
			got++;
		CHECK_EQ(got, 2000);
		for (uint32_t i = 0; i < 2000; i++)
			finish[run][i] = all[i].finish_ns;
	}
	/* A look splits a transfer's last nanosecond at most. */
	for (uint32_t i = 0; i < 2000; i++)
		CHECK(finish[0][i] <= finish[1][i] + 2000 && finish[1][i] <= finish[0][i] + 2000);
}

/* ---- the controller ---- */

static void data_in_ram(void)
{
	struct ctrl_target t = {.path = "ram:64M", .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;
	uint64_t seed = 1;

	lab_open(&l, &ctrl_model, &o, 64, 4 << 20);
	CHECK_EQ(l.info.ns[0].capacity_bytes, 64 << 20);
	for (int i = 0; i < 200; i++) {
		uint64_t at = 512 * (check_random(&seed) % 120000), word = check_random(&seed);
		uint32_t bytes = 512 * (1 + (uint32_t)(check_random(&seed) % 256));

		for (uint32_t k = 0; k < bytes / 8; k++)
			((uint64_t *)(void *)l.arena)[k] = word + k;
		CHECK_EQ(lab_rw(&l, NVME_CMD_WRITE, 1, at, l.arena, bytes), 0);
		CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, at, l.arena + (2 << 20), bytes), 0);
		CHECK_EQ(memcmp(l.arena, l.arena + (2 << 20), bytes), 0);
	}
	lab_close(&l);
}

static void a_file_persists(void)
{
	const char *path = lab_file(lab_tmp(), "model", 1 << 20, 4);
	struct ctrl_target t = {.path = path, .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1};
	struct lab l;
	uint64_t word;
	int fd;

	lab_open(&l, &ctrl_model, &o, 8, 1 << 20);
	CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 8192, l.arena, 4096), 0);
	CHECK_EQ(*(uint64_t *)(void *)l.arena, lab_pattern(8192, 4));
	memset(l.arena, 0x21, 4096);
	CHECK_EQ(lab_rw(&l, NVME_CMD_WRITE, 1, 4096, l.arena, 4096), 0);
	CHECK_EQ(lab_do(&l, (struct nvme_sqe){.opcode = NVME_CMD_FLUSH, .nsid = 1}), 0);
	lab_close(&l);
	fd = open(path, O_RDONLY);
	CHECK_EQ(pread(fd, &word, 8, 4096), 8);
	CHECK_EQ(word, 0x2121212121212121ull);
	close(fd);
}

/* On the real clock: never early; how late is printed, not judged. */
static void never_early(void)
{
	struct ctrl_model cfg = {.read_bytes_per_s = 1000000000, .read_latency_ns = 300000, .queue_depth = 4};
	struct ctrl_target t = {.path = "ram:16M", .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1, .sgl = 1, .model = &cfg};
	uint64_t late_ns = 0, t0;
	struct lab l;

	lab_open(&l, &ctrl_model, &o, 64, 4 << 20);
	for (int i = 0; i < 20; i++) {
		t0 = port_now_ns();
		CHECK_EQ(lab_rw(&l, NVME_CMD_READ, 1, 0, l.arena, 131072), 0);
		t0 = port_now_ns() - t0;
		CHECK(t0 >= 300000 + 131072);
		late_ns += t0 - 431072;
	}
	printf("# %llu us late on average\n", (unsigned long long)late_ns / 20000);
	/* 32 of 128 KiB at 1 GB/s. */
	t0 = port_now_ns();
	for (uint16_t i = 0; i < 32; i++) {
		struct nvme_sqe e = lab_sqe(&l, NVME_CMD_READ, 1, i * 131072u, l.arena + i * 131072u, 131072);

		e.cid = i;
		dev_qp_post(&l.qp, &e);
	}
	dev_qp_ring(&l.qp);
	for (int i = 0; i < 32; i++)
		CHECK_EQ(NVME_STATUS(lab_wait(&l).cid_status), 0);
	CHECK(port_now_ns() - t0 >= 32 * 131072);
	printf("# %.2f GB/s of 1\n", 32 * 131072.0 / (double)(port_now_ns() - t0));
	lab_close(&l);
}

static int open_path(const char *path)
{
	struct ctrl_target t = {.path = path, .fd = -1};
	struct ctrl_opts o = {.targets = &t, .n_targets = 1};
	struct ctrl *c;
	int rc = ctrl_model.open(&o, &c);

	if (!rc)
		ctrl_model.close(c);
	return rc;
}

static void opening(void)
{
	uint64_t bytes;

	CHECK_EQ(open_path("ram:1G"), 0);
	CHECK_EQ(open_path("ram:12Q"), -ENOENT); /* no size, so it is the name of a file */
	CHECK_EQ(open_path("/nonexistent"), -ENOENT);
	CHECK_EQ(ctrl_size_path("ram:7", "ram:", &bytes), 0);
	CHECK_EQ(bytes, 7);
	CHECK_EQ(ctrl_size_path("ram:7T", "ram:", &bytes), 0);
	CHECK_EQ(bytes, 7ull << 40);
	CHECK_EQ(ctrl_size_path("ram:99999999999T", "ram:", &bytes), -EINVAL);
	CHECK_EQ(ctrl_size_path("ram:99999999999999999999999", "ram:", &bytes), -EINVAL);
	CHECK_EQ(ctrl_size_path("ram:-1", "ram:", &bytes), -EINVAL);
	CHECK_EQ(ctrl_size_path("ram:", "ram:", &bytes), -EINVAL);
	CHECK_EQ(ctrl_size_path("ram:1KK", "ram:", &bytes), -EINVAL);
	CHECK_EQ(ctrl_size_path("rom:1K", "ram:", &bytes), -EINVAL);
}

int main(void)
{
	CHECK_RUN(bandwidth);
	CHECK_RUN(latency);
	CHECK_RUN(queue_depth);
	CHECK_RUN(mixing);
	CHECK_RUN(looking_changes_nothing);
	CHECK_RUN(data_in_ram);
	CHECK_RUN(a_file_persists);
	CHECK_RUN(never_early);
	CHECK_RUN(opening);
	return check_end();
}
