/* test_timed.c - the CPU time of checksums: a system call for one command in eight, and they stand for all. */
#include "check.h"
#include "dev/io.h"

static void the_first_and_one_in_eight_are_timed(void)
{
	struct dev_block b = {0};
	uint32_t timed = 0;

	for (uint32_t i = 0; i < 8 * DEV_TIMED; i++) {
		uint64_t begin_ns = dev_timed_begin(&b);

		CHECK_EQ(begin_ns != 0, i % DEV_TIMED == 0);
		timed += begin_ns != 0;
		dev_timed_end(&b, begin_ns, 4096);
		CHECK_EQ(b.stats.own_sum_bytes, (i + 1) * 4096);
	}
	CHECK_EQ(timed, 8);
	CHECK_EQ(b.stats.timed_sum_bytes, 8 * 4096);
}

/* At any moment: however few there were, and behind the last one that was timed. */
static void they_stand_for_all(void)
{
	struct dev_block b = {0};
	uint64_t begin_ns = dev_timed_begin(&b), most_ns;

	CHECK(begin_ns != 0);
	while (port_cpu_ns() < begin_ns + 1000000) {
	}
	dev_timed_end(&b, begin_ns, 1000);
	most_ns = port_cpu_ns() - begin_ns;
	for (uint32_t i = 1; i <= DEV_TIMED; i++) {
		CHECK(dev_sum_ns(&b.stats) >= i * 1000000ull && dev_sum_ns(&b.stats) <= i * most_ns);
		if (i < DEV_TIMED)
			dev_timed_end(&b, dev_timed_begin(&b), 1000);
	}
	CHECK_EQ(b.stats.timed_sum_bytes, 1000);
}

static void nothing_summed_is_nothing(void)
{
	struct dev_block b = {0};

	dev_timed_end(&b, dev_timed_begin(&b), 0);
	CHECK_EQ(dev_sum_ns(&b.stats), 0);
	CHECK(dev_timed_begin(&b) != 0); /* the next one is */
}

int main(void)
{
	CHECK_RUN(the_first_and_one_in_eight_are_timed);
	CHECK_RUN(they_stand_for_all);
	CHECK_RUN(nothing_summed_is_nothing);
	return check_end();
}
