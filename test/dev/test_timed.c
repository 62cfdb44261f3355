/* test_timed.c - the CPU time of checksums: a system call for one command in eight, which stands for the others. */
#include "check.h"
#include "dev/io.h"

static void one_in_eight_is_timed(void)
{
	struct dev_block b = {0};
	uint32_t timed = 0;

	for (uint32_t i = 1; i <= 8 * DEV_TIMED; i++) {
		uint64_t begin_ns = dev_timed_begin(&b);

		CHECK_EQ(begin_ns != 0, i % DEV_TIMED == 0);
		timed += begin_ns != 0;
		dev_timed_end(&b, begin_ns, 4096);
		CHECK_EQ(b.untimed_bytes, i % DEV_TIMED * 4096);
	}
	CHECK_EQ(timed, 8);
}

static void it_stands_for_the_others(void)
{
	struct dev_block b = {0};
	uint64_t begin_ns, end_ns;

	for (uint32_t i = 1; i < DEV_TIMED; i++)
		dev_timed_end(&b, dev_timed_begin(&b), 1000);
	CHECK_EQ(b.stats.sum_ns, 0);
	begin_ns = dev_timed_begin(&b);
	CHECK(begin_ns != 0);
	while (port_cpu_ns() < begin_ns + 1000000) {
	}
	dev_timed_end(&b, begin_ns, 1000);
	end_ns = port_cpu_ns();
	CHECK(b.stats.sum_ns >= DEV_TIMED * 1000000ull && b.stats.sum_ns <= DEV_TIMED * (end_ns - begin_ns));
}

static void nothing_summed_is_nothing(void)
{
	struct dev_block b = {.untimed = DEV_TIMED - 1};

	dev_timed_end(&b, dev_timed_begin(&b), 0);
	CHECK_EQ(b.stats.sum_ns, 0);
}

int main(void)
{
	CHECK_RUN(one_in_eight_is_timed);
	CHECK_RUN(it_stands_for_the_others);
	CHECK_RUN(nothing_summed_is_nothing);
	return check_end();
}
