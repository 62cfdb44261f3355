/*
 * mixed.c - reading and writing, alone and together: the model without limits, the model as drives.csv's drives, the
 * disk. Our policy writes only where nothing is read (sched), so "together" shows what a write costs a read.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"

#define BLOCKS 2048u
#define DISK_BLOCKS 512u

struct rates {
	struct series read, write;
};

/* A plan that stores n fresh blocks from behind the chain's. */
static void plan_store(struct lab *b, size_t n, struct lab_plan *out)
{
	size_t bytes = tutti_plan_blob_bytes(n), first, count;
	struct tutti_key *keys = malloc(n * sizeof(*keys));
	void *blob = malloc(bytes);

	out->n = n;
	rig_keys(&b->r, ++b->seed, n, keys);
	need(tutti_reserve(b->r.ns, NULL, keys, n, LEASE_NS, &first, &count, &out->lease), "reserve");
	need(count == n ? 0 : -1, "the pool has no room for a second chain");
	need(tutti_plan_blob(b->r.ns, &out->lease, 0, n, blob, bytes, &bytes), "plan blob");
	need(tutti_plan_open(b->r.lane[0], blob, bytes, b->blocks + n, n, &out->p), "plan");
	free(keys);
	free(blob);
}

static void once(struct lab *b, size_t n, int reads, int writes, struct rates *out)
{
	double bytes = (double)lab_bytes(b, n);
	struct lab_plan in, from;
	uint64_t t0;

	if (reads)
		lab_plan(b, b->r.lane[0], n, &in);
	if (writes)
		plan_store(b, n, &from);
	t0 = now_ns();
	for (uint32_t l = 0; l < LAYERS && writes; l++)
		need(tutti_store_layer(from.p, l), "store");
	if (reads) {
		need(tutti_retrieve(in.p), "retrieve");
		need(tutti_wait_layer(in.p, LAYERS - 1, now_ns() + WAIT_NS), "layers");
		series_add(&out->read, bytes / (double)(now_ns() - t0));
	}
	if (writes) {
		lab_plan_end(b, &from);
		series_add(&out->write, bytes / (double)(now_ns() - t0));
	}
	if (reads) {
		lab_plan_end(b, &in);
		need(lab_wrong(b, n, b->salt) ? -1 : 0, "bytes differ");
	}
}

static void put(const char *where, const char *what, const struct series *v, double ceiling, double x)
{
	struct row r = {.unit = "GB/s", .values = *v, .ceiling = ceiling, .figure = "6", .system = where, .x = x};

	snprintf(r.name, sizeof(r.name), "%s, %s", what, where);
	row_put(&r);
}

static void both(const char *where, const struct lab_shape *shape, size_t n, double read_gbs, double write_gbs)
{
	struct rates alone = {.read = {.n = 0}}, together = {.read = {.n = 0}}, warm = {.read = {.n = 0}};
	struct tutti_lease kept;
	size_t count;
	struct lab b;

	lab_open(&b, shape);
	lab_store(&b, n); /* a chain of half the room, which the others don't push out */
	need(tutti_lookup(b.r.ns, b.keys, n, LEASE_NS, &count, &kept), "lookup");
	once(&b, n, 1, 1, &warm);
	for (int i = 0; i < opt.rounds; i++) {
		lab_wipe(&b);
		once(&b, n, 1, 0, &alone);
		once(&b, n, 0, 1, &alone);
		lab_wipe(&b);
		once(&b, n, 1, 1, &together);
	}
	need(tutti_release(b.r.ns, &kept), "release");
	lab_close(&b);
	put(where, "read alone", &alone.read, read_gbs, 0);
	put(where, "read beside a store", &together.read, read_gbs, 1);
	put(where, "write alone", &alone.write, write_gbs, 2);
	put(where, "write beside a retrieve", &together.write, write_gbs, 3);
}

static int drive(struct tutti_model_timing *t)
{
	FILE *f = fopen(opt.drives, "re");
	char line[512];
	int found = 0;

	while (f && !found && fgets(line, sizeof(line), f)) {
		unsigned long long v[6];

		if (sscanf(line, "D7-PS1010,%llu,%llu,%llu,%llu,%llu,%llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]) !=
		    6)
			continue;
		*t = (struct tutti_model_timing){.read_bytes_per_s = v[0],
		                                 .write_bytes_per_s = v[1],
		                                 .read_latency_ns = v[2],
		                                 .write_latency_ns = v[3],
		                                 .queue_depth = (uint32_t)v[4],
		                                 .mixed_percent = (uint32_t)v[5]};
		found = 1;
	}
	if (f)
		fclose(f);
	return found;
}

static double less(double a, double b) { return a < b ? a : b; }

void figure_mixed(void)
{
	struct lab_shape shape = {.dir = opt.memory,
	                          .controller = TUTTI_CTRL_MODEL,
	                          .tokens = TOKENS,
	                          .n = 2 * BLOCKS,
	                          .devices = 4,
	                          .sms = opt.sms,
	                          .no_medium = 1};

	both("model in place, no limits", &shape, BLOCKS, copy_in_gbs, copy_out_gbs);
	if (!drive(&shape.timing)) {
		row_skip("model as D7-PS1010 drives", "no drives.csv");
	} else {
		double r = (double)shape.timing.read_bytes_per_s * 1e-9,
		       w = (double)shape.timing.write_bytes_per_s * 1e-9;

		both("model as 4 x D7-PS1010", &shape, BLOCKS, less(4 * r, copy_in_gbs), less(4 * w, copy_out_gbs));
		shape.devices = 1;
		both("model as 1 x D7-PS1010", &shape, BLOCKS, r, w);
	}
	if (opt.disk) {
		struct lab_shape disk = {.dir = opt.disk,
		                         .controller = TUTTI_CTRL_VIRT,
		                         .tokens = TOKENS,
		                         .n = 2 * DISK_BLOCKS,
		                         .devices = 1,
		                         .sms = opt.sms};

		both("virt on the disk", &disk, DISK_BLOCKS, 0, 0);
	}
}
