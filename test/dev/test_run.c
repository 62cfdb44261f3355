/*
 * test_run.c - which entries of a plan are neighbours on disk: runs, and the shares of thread blocks, against a naive
 * twin that asks where every single entry lies.
 */
#include "check.h"

#include "dev/io.h"

#define ENTRIES 200u
#define ROUNDS 4000u

static struct dev_entry entries[ENTRIES];
static int32_t results[ENTRIES];
static struct dev_plan plan = {.entries = entries, .results = results};
static struct wire_iocb iocb;
static struct dev_step step = {.iocb = &iocb, .plan = &plan};
static uint64_t state = 7;

static uint32_t draw(uint32_t below)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(state >> 33) % below;
}

/* Chains of neighbouring slots, which end anywhere, in a pool of several segments; some entries have failed. */
static void draw_plan(void)
{
	struct geom *g = &plan.geom;
	uint32_t slot = 0;

	*g = (struct geom){.layers = 1 + draw(4),
	                   .objects_per_layer = 1 + draw(2),
	                   .object_bytes = 4096,
	                   .g = 1u << draw(7),
	                   .chunk_bytes = 4096ull * 2000,
	                   .n_segments = 3,
	                   .n_dev = 1 + draw(4)};
	CHECK_EQ(geom_derive(g), 0);
	plan.n = 1 + draw(ENTRIES);
	for (uint32_t i = 0; i < plan.n; i++) {
		slot = i && draw(20) ? slot + 1 : draw(3 * g->slots_per_segment);
		slot %= 3 * g->slots_per_segment;
		entries[i] = (struct dev_entry){.slot = slot, .header_valid = draw(4) != 0};
		results[i] = draw(30) ? 0 : -5;
	}
	step.kind = draw(3) ? draw(g->layers) : draw(2) ? WIRE_STEP_INVALIDATE : WIRE_STEP_HEADERS;
}

static int twin_adjoins(uint32_t i)
{
	return entries[i].slot + 1 == entries[i + 1].slot &&
	       geom_place(&plan.geom, entries[i].slot).set == geom_place(&plan.geom, entries[i + 1].slot).set;
}

static void runs_are_a_twins(void)
{
	uint32_t n_long = 0;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct dev_span run;
		uint32_t i = 0;

		draw_plan();
		step.next = step.lo = 0;
		step.hi = plan.n;
		while (dev_run_next(&step, 3, &run)) {
			while (!dev_step_takes(&step, i))
				i++;
			CHECK(run.step == 3 && run.first == i && run.pos == 0 && run.len);
			for (i++; i < run.first + run.len; i++)
				CHECK(dev_step_takes(&step, i) && twin_adjoins(i - 1));
			if (i < plan.n) /* no longer one is possible */
				CHECK(!dev_step_takes(&step, i) || !twin_adjoins(i - 1));
			CHECK_EQ(run.n, run.len * (dev_step_is_layer(&step) ? plan.geom.objects_per_layer : 1));
			n_long += run.len > 8;
		}
		for (; i < plan.n; i++)
			CHECK(!dev_step_takes(&step, i));
	}
	CHECK(n_long > ROUNDS);
}

static void shares_begin_with_sets(void)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t n_blocks = 1 + draw(16), before = 0;

		draw_plan();
		for (uint32_t b = 0; b < n_blocks; b++) {
			uint32_t want = (uint32_t)((uint64_t)plan.n * b / n_blocks), i;

			while (want && want < plan.n && twin_adjoins(want - 1))
				want++;
			i = dev_share(&step, plan.n, b, n_blocks);
			CHECK_EQ(i, want);
			CHECK(i >= before);
			before = i;
		}
	}
}

static void explicit_runs(void)
{
	static struct wire_ioctx c[ENTRIES];
	struct dev_span run;
	uint32_t i = 0;

	iocb.ioctx = (uint64_t)(uintptr_t)c;
	step.kind = WIRE_STEP_EXPLICIT;
	for (uint32_t k = 0; k < ENTRIES; k++)
		c[k] = (struct wire_ioctx){.op = WIRE_READ, .bytes = 4096, .offset_bytes = (k + k / 70) * 4096ull};
	step.next = step.lo = 0;
	step.hi = ENTRIES;
	while (dev_run_next(&step, 0, &run)) {
		uint32_t left = 70 - i % 70;

		left = left < GEOM_SET_SLOTS_MAX ? left : GEOM_SET_SLOTS_MAX;
		CHECK(run.first == i && run.len == (left < ENTRIES - i ? left : ENTRIES - i) && run.n == run.len);
		i += run.len;
	}
	CHECK_EQ(i, ENTRIES);
}

int main(void)
{
	CHECK_RUN(runs_are_a_twins);
	CHECK_RUN(shares_begin_with_sets);
	CHECK_RUN(explicit_runs);
	return check_end();
}
