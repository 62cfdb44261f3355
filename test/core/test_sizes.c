/*
 * test_sizes.c - programs compiled with an older or a newer header: every struct that states its size, cut at
 * fields' starts and made longer, and every struct that the library fills, cut at every byte.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "core/opts.h"
#include "core/rig.h"
#include "core/scratch.h"
#include <tutti/gio_uring.h>

#define PAGE 4096u

static const struct rig_shape shape = {
    .layers = 2, .blocks = 8, .outer_count = 2, .segment_bytes = 8192, .order = "LoB", .pool_bytes = 16u << 20};
static struct rig r;

/* `bytes` in front of memory that can't be touched: whoever reads or writes beyond them dies. */
static uint8_t *fenced(size_t bytes)
{
	uint8_t *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	CHECK_EQ(mprotect(p + PAGE, PAGE, PROT_NONE), 0);
	return p + PAGE - bytes;
}

static void unfence(uint8_t *p, size_t bytes) { CHECK_EQ(munmap(p + bytes - PAGE, 2 * PAGE), 0); }

/* A struct of another version: the first `bytes` of ours, or ours and a tail whose last byte is `last`. */
static uint8_t *of_size(const void *ours, uint32_t our_bytes, uint32_t bytes, uint8_t last)
{
	uint8_t *p = fenced(bytes);

	memcpy(p, ours, bytes < our_bytes ? bytes : our_bytes);
	memcpy(p, &bytes, sizeof(bytes));
	if (bytes > our_bytes)
		p[bytes - 1] = last;
	return p;
}

/* Calls with sizes that say nothing, with a longer struct and with one that sets what nobody knows. */
static void longer(int (*call)(const void *opts), const void *ours, uint32_t bytes, const char *init)
{
	static const uint32_t no_sizes[] = {0, 1, 4, 9, 4097, UINT32_MAX};
	uint8_t *p;

	CHECK_EQ(call(NULL), -EINVAL);
	CHECK(strstr(tutti_error_message(), init));
	for (size_t i = 0; i < sizeof(no_sizes) / sizeof(*no_sizes); i++) {
		p = of_size(ours, bytes, bytes, 0);
		memcpy(p, &no_sizes[i], sizeof(no_sizes[i]));
		CHECK_EQ(call(p), -EINVAL);
		CHECK(strstr(tutti_error_message(), init));
		unfence(p, bytes);
	}
	for (uint32_t more = 8; more <= 64; more += 24) {
		p = of_size(ours, bytes, bytes + more, 0);
		CHECK_EQ(call(p), 0);
		unfence(p, bytes + more);
		p = of_size(ours, bytes, bytes + more, 1);
		CHECK_EQ(call(p), -E2BIG);
		CHECK(strstr(tutti_error_message(), "newer header"));
		unfence(p, bytes + more);
	}
}

static int cut(int (*call)(const void *opts), const void *ours, uint32_t our_bytes, size_t bytes)
{
	uint8_t *p = of_size(ours, our_bytes, (uint32_t)bytes, 0);
	int rc = call(p);

	unfence(p, bytes);
	return rc;
}

/* A size is a multiple of 8: the field before goes too, where it shares its 8 bytes. */
#define CUT(call, opts, field)                                                                                         \
	cut(call, opts, sizeof(*(opts)), (size_t)((uint8_t *)&(opts)->field - (uint8_t *)(opts)) / 8 * 8)

/* ---- each struct ---- */

static int format(const void *opts)
{
	unlink(r.paths[0]);
	return tutti_format(opts);
}

static void format_opts(void)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	o.paths = r.paths;
	o.n_paths = 1;
	o.bytes = shape.pool_bytes;
	longer(format, &o, sizeof(o), "TUTTI_FORMAT_OPTS_INIT");
	CHECK_EQ(CUT(format, &o, n_paths), -EINVAL);
	CHECK_EQ(CUT(format, &o, bytes), -EINVAL); /* no size */
	CHECK_EQ(CUT(format, &o, segment_bytes), 0);
	CHECK_EQ(CUT(format, &o, prewrite), 0);
	CHECK_EQ(CUT(format, &o, overwrite), 0);
	CHECK_EQ(CUT(format, &o, progress), 0);
	CHECK_EQ(CUT(format, &o, erase_serial), 0);
}

static int open_store(const void *opts)
{
	struct tutti_store *s;
	int rc = tutti_store_open(opts, &s);

	return rc ? rc : tutti_store_close(s);
}

static void store_opts(void)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;

	o.paths = r.paths;
	o.n_paths = 1;
	longer(open_store, &o, sizeof(o), "TUTTI_STORE_OPTS_INIT");
	CHECK_EQ(CUT(open_store, &o, n_paths), -EINVAL);
	CHECK_EQ(CUT(open_store, &o, timing), 0);
	CHECK_EQ(CUT(open_store, &o, lock_wait_ns), 0);
	CHECK_EQ(CUT(open_store, &o, prewrite_ahead), 0);
	CHECK_EQ(CUT(open_store, &o, progress), 0);
	o.controller = TUTTI_CTRL_NULL; /* refused */
	CHECK_EQ(CUT(open_store, &o, timing), -EINVAL);
}

static int open_lane(const void *opts)
{
	struct tutti_lane *l;
	int rc = tutti_lane_open(opts, &r.digest, &l);

	return rc ? rc : tutti_lane_close(l);
}

static void lane_opts(void)
{
	struct tutti_lane_opts o = TUTTI_LANE_OPTS_INIT;

	o.paths = r.paths;
	o.n_paths = 1;
	longer(open_lane, &o, sizeof(o), "TUTTI_LANE_OPTS_INIT");
	CHECK_EQ(CUT(open_lane, &o, controller), 0);
	CHECK_EQ(CUT(open_lane, &o, queue_depth), 0);
	CHECK_EQ(CUT(open_lane, &o, no_verify), 0);
	CHECK_EQ(CUT(open_lane, &o, executor), 0);
	CHECK_EQ(CUT(open_lane, &o, small_kernels), 0);
	CHECK_EQ(CUT(open_lane, &o, rsvd), 0);
}

static int digest(const void *opts)
{
	struct tutti_key key;
	struct tutti_ns *ns;
	int rc = tutti_ns_open(r.store, opts, &ns);

	CHECK_EQ(tutti_ns_digest(opts, &key), rc);
	if (!rc)
		CHECK(!memcmp(&key, &r.digest, sizeof(key)));
	return rc;
}

static int lay_out(const void *layout)
{
	struct tutti_ns_spec spec = TUTTI_NS_SPEC_INIT;
	struct tutti_lane_opts o = TUTTI_LANE_OPTS_INIT;
	struct tutti_lane *l;
	int rc = tutti_kv_layout_objects(layout, &spec);

	o.paths = r.paths;
	o.n_paths = 1;
	CHECK_EQ(tutti_lane_open(&o, &r.digest, &l), 0);
	CHECK_EQ(tutti_lane_register(l, layout), rc);
	CHECK_EQ(tutti_lane_close(l), 0);
	return rc;
}

static void descriptions(void)
{
	struct tutti_ns_spec out = TUTTI_NS_SPEC_INIT;

	longer(digest, &r.spec, sizeof(r.spec), "TUTTI_NS_SPEC_INIT");
	CHECK_EQ(CUT(digest, &r.spec, layout), -EINVAL); /* a fact that is missing is never a default */
	CHECK_EQ(CUT(digest, &r.spec, tp_size), -EINVAL);
	longer(lay_out, &r.kv[0], sizeof(r.kv[0]), "TUTTI_KV_LAYOUT_INIT");
	CHECK_EQ(CUT(lay_out, &r.kv[0], segment_bytes), -EINVAL);
	out.size = offsetof(struct tutti_ns_spec, layout); /* filled by the library: no room for it */
	CHECK_EQ(tutti_kv_layout_objects(&r.kv[0], &out), -EINVAL);
	CHECK_EQ(out.object_bytes, 0);
}

static int init_queue(const void *opts)
{
	struct gio *g;
	int rc = gio_init_queue(opts, &g);

	return rc ? rc : gio_close(g);
}

static void queue_opts(void)
{
	struct gio_opts o = GIO_OPTS_INIT;

	o.paths = r.paths;
	o.n_paths = 1;
	o.read_only = 1;
	longer(init_queue, &o, sizeof(o), "GIO_OPTS_INIT");
	CHECK_EQ(CUT(init_queue, &o, n_paths), -EINVAL);
	CHECK_EQ(CUT(init_queue, &o, timing), 0);
	CHECK_EQ(CUT(init_queue, &o, sms), 0);
	CHECK_EQ(CUT(init_queue, &o, no_sgl), 0);
	CHECK_EQ(CUT(init_queue, &o, executor), 0);
	CHECK_EQ(CUT(init_queue, &o, bounce_bytes), 0);
}

/* ---- what the library fills ---- */

static struct gio *g;

static int pool_info(void *out, size_t bytes) { return tutti_store_info_sized(r.store, out, bytes); }
static int ns_info(void *out, size_t bytes) { return tutti_ns_get_info_sized(r.ns, out, bytes); }
static int lane_info(void *out, size_t bytes) { return tutti_lane_get_info_sized(r.lane[0], out, bytes); }
static int lane_stats(void *out, size_t bytes) { return tutti_lane_stats_sized(r.lane[0], out, bytes); }
static int gio_info(void *out, size_t bytes) { return gio_get_info_sized(g, out, bytes); }

static void filled(int (*call)(void *out, size_t bytes), size_t ours)
{
	uint8_t whole[1024];

	CHECK(ours < sizeof(whole));
	memset(whole, 0xaa, sizeof(whole));
	CHECK_EQ(call(whole, sizeof(whole)), 0);
	for (size_t i = ours; i < sizeof(whole); i++)
		CHECK_EQ(whole[i], 0);
	for (size_t bytes = 0; bytes <= ours; bytes++) {
		uint8_t *p = fenced(bytes);

		CHECK_EQ(call(p, bytes), 0);
		CHECK(!memcmp(p, whole, bytes));
		unfence(p, bytes);
	}
	CHECK_EQ(call(NULL, ours), -EINVAL);
}

static void filled_structs(void)
{
	struct gio_opts o = GIO_OPTS_INIT;

	o.paths = r.paths;
	o.n_paths = 1;
	o.read_only = 1;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	filled(pool_info, sizeof(struct tutti_pool_info));
	filled(ns_info, sizeof(struct tutti_ns_info));
	filled(lane_info, sizeof(struct tutti_lane_info));
	filled(lane_stats, sizeof(struct tutti_lane_stats));
	filled(gio_info, sizeof(struct gio_info));
	CHECK_EQ(gio_close(g), 0);
}

/* A field that is added later must not land in what an older program never wrote. */
#define NO_TAIL(type, last)                                                                                            \
	_Static_assert(offsetof(struct type, last) + sizeof(((struct type *)0)->last) == sizeof(struct type),          \
	               #type " ends with padding: name it")
NO_TAIL(tutti_kv_layout, segment_bytes);
NO_TAIL(tutti_ns_spec, layout);
NO_TAIL(tutti_format_opts, erase_serial);
NO_TAIL(tutti_store_opts, progress_arg);
NO_TAIL(tutti_lane_opts, rsvd);
NO_TAIL(gio_opts, bounce_bytes);

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	rig_up(&r, &shape);
	CHECK_RUN(lane_opts);
	CHECK_RUN(descriptions);
	CHECK_RUN(queue_opts);
	CHECK_RUN(filled_structs);
	rig_down(&r);
	rig_shape_memory(&r, &shape);
	rig_format(&r);
	CHECK_RUN(store_opts);
	CHECK_RUN(format_opts);
	if (!rig_open_store(&r))
		rig_down(&r);
	scratch_end();
	return check_end();
}
