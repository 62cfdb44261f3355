/*
 * test_arguments.c - every public call with every argument that it can't use: an error, a message that names the
 * matter, no crash, nothing changed. And numbers of IOCBs that a caller makes up.
 */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "core/rig.h"
#include "core/scratch.h"
#include "core/store.h"
#include <tutti/gio_uring.h>

#define N 4
#define SECOND 1000000000ull
#define LONG (60 * SECOND)

static const struct rig_shape shape = {
    .layers = 2, .blocks = 8, .outer_count = 2, .segment_bytes = 8192, .order = "LoB", .pool_bytes = 16u << 20};
static struct rig r;
static struct tutti_key keys[N];
static const uint64_t blocks[N] = {1, 5, 0, 3}, twice[N] = {1, 5, 0, 5};

static void begin(void)
{
	size_t n;

	rig_up(&r, &shape);
	rig_keys(&r, 1, N, keys);
	CHECK_EQ(rig_store(&r, keys, N, blocks, &n), 0);
}

/* The message is of this call: it holds the word. */
static void refused(int rc, int want, const char *word, int line)
{
	if (rc != want || !strstr(tutti_error_message(), word))
		printf("# line %d: %d (%s), wanted %d and '%s'\n", line, rc, tutti_error_message(), want, word);
	CHECK_EQ(rc, want);
	CHECK(strstr(tutti_error_message(), word));
}
#define REFUSED(call, want, word) refused(call, want, word, __LINE__)

static int each(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth, uint32_t slot)
{
	(void)key;
	(void)parent;
	(void)depth;
	(void)slot;
	return *(int *)arg;
}

static void null_store_calls(void)
{
	struct tutti_store_opts so = TUTTI_STORE_OPTS_INIT;
	struct tutti_pool_info pool;
	struct tutti_ns_info info;
	struct tutti_store *s;
	struct tutti_ns *ns;
	const char *none = NULL;
	int seven = 7;

	begin();
	REFUSED(tutti_store_open(NULL, &s), -EINVAL, "TUTTI_STORE_OPTS_INIT");
	so.paths = r.paths;
	so.n_paths = 1;
	REFUSED(tutti_store_open(&so, NULL), -EINVAL, "NULL");
	so.paths = &none;
	REFUSED(tutti_store_open(&so, &s), -EINVAL, "path 0 is NULL");
	so.paths = r.paths;
	so.n_paths = TUTTI_DEVICES_MAX + 1;
	REFUSED(tutti_store_open(&so, &s), -EINVAL, "paths");
	so.n_paths = 1;
	so.controller = TUTTI_CTRL_NULL;
	REFUSED(tutti_store_open(&so, &s), -EINVAL, "null controller");
	so.controller = (enum tutti_controller)77;
	REFUSED(tutti_store_open(&so, &s), -EINVAL, "controller");
	CHECK_EQ(tutti_store_close(NULL), 0);
	REFUSED(tutti_store_sync(NULL), -EINVAL, "NULL");
	REFUSED(tutti_store_info(NULL, &pool), -EINVAL, "NULL");
	REFUSED(tutti_store_info(r.store, NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_open(NULL, &r.spec, &ns), -EINVAL, "NULL");
	REFUSED(tutti_ns_open(r.store, NULL, &ns), -EINVAL, "NULL");
	REFUSED(tutti_ns_open(r.store, &r.spec, NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_at(NULL, 0, &ns), -EINVAL, "NULL");
	REFUSED(tutti_ns_at(r.store, 0, NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_at(r.store, UINT32_MAX, &ns), -ENOENT, "namespace");
	REFUSED(tutti_ns_get_info(NULL, &info), -EINVAL, "NULL");
	REFUSED(tutti_ns_get_info(r.ns, NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_clear(NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_each(NULL, each, &seven), -EINVAL, "NULL");
	REFUSED(tutti_ns_each(r.ns, NULL, NULL), -EINVAL, "NULL");
	CHECK_EQ(tutti_ns_each(r.ns, each, &seven), 7);
	rig_down(&r);
}

static void null_block_calls(void)
{
	struct tutti_lease lease = {0};
	size_t n, first, bytes;
	uint8_t blob[1024];
	uint64_t a, b;

	begin();
	REFUSED(tutti_lookup(r.ns, NULL, 1, 0, &n, NULL), -EINVAL, "NULL");
	REFUSED(tutti_lookup(r.ns, keys, 1, 0, NULL, NULL), -EINVAL, "NULL");
	CHECK_EQ(tutti_lookup(r.ns, NULL, 0, LONG, &n, &lease), 0); /* nothing is there of nothing */
	CHECK_EQ(n, 0);
	REFUSED(tutti_reserve(NULL, NULL, keys, 1, LONG, &first, &n, &lease), -EINVAL, "NULL");
	REFUSED(tutti_reserve(r.ns, NULL, NULL, 1, LONG, &first, &n, &lease), -EINVAL, "NULL");
	REFUSED(tutti_reserve(r.ns, NULL, keys, 1, LONG, NULL, &n, &lease), -EINVAL, "NULL");
	REFUSED(tutti_reserve(r.ns, NULL, keys, 1, LONG, &first, NULL, &lease), -EINVAL, "NULL");
	REFUSED(tutti_reserve(r.ns, NULL, keys, 1, LONG, &first, &n, NULL), -EINVAL, "NULL");
	CHECK_EQ(tutti_lookup(r.ns, keys, N, LONG, &n, &lease), 0);
	CHECK_EQ(n, N);
	REFUSED(tutti_plan_blob(NULL, &lease, 0, 1, blob, sizeof(blob), &bytes), -EINVAL, "NULL");
	REFUSED(tutti_plan_blob(r.ns, NULL, 0, 1, blob, sizeof(blob), &bytes), -EINVAL, "NULL");
	REFUSED(tutti_plan_blob(r.ns, &lease, 0, 0, blob, sizeof(blob), &bytes), -EINVAL, "no blocks");
	REFUSED(tutti_plan_blob(r.ns, &lease, 0, 1, NULL, sizeof(blob), &bytes), -EINVAL, "NULL");
	REFUSED(tutti_plan_blob(r.ns, &lease, 0, 1, blob, sizeof(blob), NULL), -EINVAL, "NULL");
	REFUSED(tutti_plan_blob(r.ns, &lease, SIZE_MAX, 1, blob, sizeof(blob), &bytes), -EINVAL, "lease");
	REFUSED(tutti_plan_blob(r.ns, &lease, N, 1, blob, sizeof(blob), &bytes), -EINVAL, "lease");
	REFUSED(tutti_plan_blob(r.ns, &lease, 0, SIZE_MAX, blob, sizeof(blob), &bytes), -EINVAL, "");
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &bytes), 0);
	REFUSED(tutti_complete(NULL, blob, bytes, &n), -EINVAL, "NULL");
	REFUSED(tutti_complete(r.ns, NULL, 0, &n), -EBADMSG, "blob");
	REFUSED(tutti_complete(r.ns, blob, bytes, &n), -EBADMSG, "completion"); /* it is a plan */
	REFUSED(tutti_completion_result(NULL, 0), -EBADMSG, "blob");
	REFUSED(tutti_completion_result(blob, bytes), -EBADMSG, "completion");
	REFUSED(tutti_ns_clear(r.ns), -EBUSY, "");
	REFUSED(tutti_release(NULL, &lease), -EINVAL, "NULL");
	REFUSED(tutti_release(r.ns, NULL), -EINVAL, "NULL");
	REFUSED(tutti_cancel(NULL, &lease), -EINVAL, "NULL");
	REFUSED(tutti_cancel(r.ns, NULL), -EINVAL, "NULL");
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	REFUSED(tutti_plan_blob(r.ns, &lease, 0, 1, blob, sizeof(blob), &bytes), -ESTALE, "lease");
	REFUSED(tutti_verify(NULL, 0, NULL, NULL, &a, &b), -EINVAL, "NULL");
	REFUSED(tutti_verify(r.ns, 0, NULL, NULL, NULL, &b), -EINVAL, "NULL");
	REFUSED(tutti_verify(r.ns, 0, NULL, NULL, &a, NULL), -EINVAL, "NULL");
	CHECK_EQ(store_check(r.store->st), 0);
	rig_down(&r);
}

static void null_lane_calls(void)
{
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	struct tutti_kv_layout kv;
	struct tutti_lane_info info;
	struct tutti_lane_stats st;
	struct tutti_lane *l;

	begin();
	lo.paths = r.paths;
	lo.n_paths = 1;
	REFUSED(tutti_lane_open(NULL, &r.digest, &l), -EINVAL, "NULL");
	REFUSED(tutti_lane_open(&lo, NULL, &l), -EINVAL, "NULL");
	REFUSED(tutti_lane_open(&lo, &r.digest, NULL), -EINVAL, "NULL");
	lo.rank = 5;
	REFUSED(tutti_lane_open(&lo, &r.digest, &l), -EINVAL, "rank");
	lo.rank = 0;
	lo.sms = 17;
	REFUSED(tutti_lane_open(&lo, &r.digest, &l), -EINVAL, "executor blocks");
	lo.sms = 0;
	lo.queue_depth = 1u << 20;
	REFUSED(tutti_lane_open(&lo, &r.digest, &l), -EINVAL, "depth");
	lo.queue_depth = 0;
	lo.store_queue_layers = UINT32_MAX; /* no wait without end for a ring that large */
	REFUSED(tutti_lane_open(&lo, &r.digest, &l), -EINVAL, "layers");
	lo.store_queue_layers = 0;
	lo.deadline_ns = UINT64_MAX;
	lo.bounce_bytes = UINT64_MAX;
	CHECK_EQ(tutti_lane_open(&lo, &r.digest, &l), 0);
	REFUSED(tutti_lane_register(NULL, &r.kv[0]), -EINVAL, "NULL");
	REFUSED(tutti_lane_register(l, NULL), -EINVAL, "NULL");
	kv = r.kv[0];
	kv.layer_base = NULL;
	REFUSED(tutti_lane_register(l, &kv), -EINVAL, "NULL");
	kv = r.kv[0];
	kv.layers = 1;
	REFUSED(tutti_lane_register(l, &kv), -EINVAL, "layers");
	kv = r.kv[0];
	kv.segment_bytes /= 2;
	REFUSED(tutti_lane_register(l, &kv), -EINVAL, "objects");
	kv = r.kv[0];
	kv.blocks = 1ull << 33;
	REFUSED(tutti_lane_register(l, &kv), -EINVAL, "blocks");
	CHECK_EQ(tutti_lane_register(l, &r.kv[0]), 0);
	REFUSED(tutti_lane_get_info(NULL, &info), -EINVAL, "NULL");
	REFUSED(tutti_lane_get_info(l, NULL), -EINVAL, "NULL");
	REFUSED(tutti_lane_stats(NULL, &st), -EINVAL, "NULL");
	REFUSED(tutti_lane_stats(l, NULL), -EINVAL, "NULL");
	REFUSED(tutti_lane_pace(NULL, TUTTI_STORE, 1), -EINVAL, "no lane");
	REFUSED(tutti_lane_pace(l, (enum tutti_op)3, 1), -EINVAL, "operation 3");
	CHECK_EQ(tutti_lane_pace(l, TUTTI_STORE, 1), 0);
	CHECK_EQ(tutti_lane_pace(l, TUTTI_RETRIEVE, 0), 0);
	CHECK_EQ(tutti_lane_close(l), 0);
	CHECK_EQ(tutti_lane_close(NULL), 0);
	rig_down(&r);
}

static void null_plan_calls(void)
{
	struct tutti_lane_opts lo = TUTTI_LANE_OPTS_INIT;
	struct tutti_lease lease;
	struct tutti_plan *p;
	struct tutti_lane *l;
	struct tutti_key other[N];
	struct tutti_lease resv;
	uint8_t blob[1024];
	size_t n, bytes, first;

	begin();
	lo.paths = r.paths;
	lo.n_paths = 1;
	lo.deadline_ns = UINT64_MAX;
	CHECK_EQ(tutti_lane_open(&lo, &r.digest, &l), 0);
	CHECK_EQ(tutti_lookup(r.ns, keys, N, UINT64_MAX, &n, &lease), 0);
	CHECK_EQ(tutti_plan_blob(r.ns, &lease, 0, N, blob, sizeof(blob), &bytes), 0);
	REFUSED(tutti_plan_open(l, blob, bytes, blocks, N, &p), -EINVAL, "register");
	CHECK_EQ(tutti_lane_register(l, &r.kv[0]), 0);
	REFUSED(tutti_plan_open(NULL, blob, bytes, blocks, N, &p), -EINVAL, "NULL");
	REFUSED(tutti_plan_open(l, NULL, bytes, blocks, N, &p), -EBADMSG, "blob");
	REFUSED(tutti_plan_open(l, blob, bytes, NULL, N, &p), -EINVAL, "NULL");
	REFUSED(tutti_plan_open(l, blob, bytes, blocks, N, NULL), -EINVAL, "NULL");
	REFUSED(tutti_plan_open(l, blob, bytes, blocks, 0, &p), -EINVAL, "block numbers");
	REFUSED(tutti_plan_open(l, blob, bytes, twice, N, &p), -EINVAL, "twice");
	REFUSED(tutti_move(NULL, l, &lease, blocks, N, &n), -EINVAL, "NULL");
	REFUSED(tutti_move(r.ns, NULL, &lease, blocks, N, &n), -EINVAL, "NULL");
	REFUSED(tutti_move(r.ns, l, NULL, blocks, N, &n), -EINVAL, "NULL");
	REFUSED(tutti_move(r.ns, l, &lease, NULL, N, &n), -EINVAL, "NULL");
	REFUSED(tutti_move(r.ns, l, &lease, blocks, 0, &n), -EINVAL, "blocks");
	REFUSED(tutti_move(r.ns, l, &lease, blocks, SIZE_MAX, &n), -EINVAL, "blocks");
	REFUSED(tutti_move(r.ns, l, &lease, blocks, N + 1, &n), -EINVAL, "lease of");
	rig_keys(&r, 99, N, other);
	CHECK_EQ(tutti_reserve(r.ns, NULL, other, N, UINT64_MAX, &first, &n, &resv), 0);
	REFUSED(tutti_move(r.ns, l, &resv, blocks, N - 1, &n), -EINVAL, "more than");
	CHECK_EQ(tutti_move(r.ns, l, &resv, blocks, N, &n), 0); /* it was still there, whole */
	CHECK_EQ(n, 0);
	CHECK_EQ(tutti_plan_open(l, blob, bytes, blocks, N, &p), 0);
	REFUSED(tutti_retrieve(NULL), -EINVAL, "retrieve");
	REFUSED(tutti_retrieve_layer(NULL, 0), -EINVAL, "retrieve");
	REFUSED(tutti_retrieve_layer(p, shape.layers), -EINVAL, "layer");
	REFUSED(tutti_store_layer(NULL, 0), -EINVAL, "store");
	REFUSED(tutti_store_layer(p, 0), -EINVAL, "store");
	REFUSED(tutti_wait_layer(NULL, 0, 0), -EINVAL, "issued");
	REFUSED(tutti_wait_layer(p, UINT32_MAX, 0), -EINVAL, "issued");
	CHECK_EQ(tutti_plan_failed(NULL, 0), -EINVAL);
	CHECK_EQ(tutti_plan_failed(p, N), -EINVAL);
	CHECK_EQ(tutti_plan_poll(NULL), 1);
	REFUSED(tutti_plan_finish(NULL, 0, NULL, 0, NULL), -EINVAL, "NULL");
	/* The largest times there are: nothing wraps around. */
	CHECK_EQ(tutti_retrieve(p), 0);
	REFUSED(tutti_retrieve(p), -EINVAL, "fresh");
	REFUSED(tutti_retrieve_layer(p, 0), -EINVAL, "issued already");
	CHECK_EQ(tutti_wait_layer(p, shape.layers - 1, UINT64_MAX), 0);
	CHECK_EQ(tutti_plan_finish(p, UINT64_MAX, NULL, 0, NULL), 0);
	for (uint32_t i = 0; i < N; i++)
		CHECK_EQ(rig_wrong(&r, 0, blocks[i], &keys[i]), 0);
	CHECK_EQ(tutti_release(r.ns, &lease), 0);
	CHECK_EQ(tutti_lane_close(l), 0);
	rig_down(&r);
}

static void null_words(void)
{
	struct tutti_format_opts fo = TUTTI_FORMAT_OPTS_INIT;
	struct tutti_ns_spec spec = TUTTI_NS_SPEC_INIT;
	struct tutti_key digest = {{1}}, key;
	const char *none = NULL;
	uint32_t tokens[16] = {0};
	uint64_t bytes;

	CHECK(tutti_version()[0] && tutti_strerror(0)[0] && tutti_strerror(INT32_MIN)[0] &&
	      tutti_strerror(INT32_MAX)[0]);
	REFUSED(tutti_kv_layout_objects(NULL, &spec), -EINVAL, "NULL");
	REFUSED(tutti_ns_digest(NULL, &digest), -EINVAL, "TUTTI_NS_SPEC_INIT");
	REFUSED(tutti_ns_digest(&spec, NULL), -EINVAL, "NULL");
	REFUSED(tutti_ns_digest(&spec, &digest), -EINVAL, "model");
	REFUSED(tutti_keys(NULL, NULL, tokens, 16, NULL, 1, &key), -EINVAL, "NULL");
	REFUSED(tutti_keys(&digest, NULL, NULL, 16, NULL, 1, &key), -EINVAL, "NULL");
	REFUSED(tutti_keys(&digest, NULL, tokens, 0, NULL, 1, &key), -EINVAL, "block_tokens");
	REFUSED(tutti_keys(&digest, NULL, tokens, 16, NULL, 1, NULL), -EINVAL, "NULL");
	CHECK_EQ(tutti_keys(&digest, NULL, tokens, 16, NULL, 0, &key), 0);
	REFUSED(tutti_format(NULL), -EINVAL, "TUTTI_FORMAT_OPTS_INIT");
	REFUSED(tutti_format(&fo), -EINVAL, "paths");
	fo.paths = &none;
	fo.n_paths = 1;
	REFUSED(tutti_format(&fo), -EINVAL, "path");
	none = "x";
	fo.ranks = 0;
	REFUSED(tutti_format(&fo), -EINVAL, "ranks");
	fo.ranks = TUTTI_RANKS_MAX + 1;
	REFUSED(tutti_format(&fo), -EINVAL, "ranks");
	REFUSED(tutti_parse_bytes(NULL, &bytes), -EINVAL, "size");
	REFUSED(tutti_parse_bytes("4G", NULL), -EINVAL, "NULL");
	REFUSED(tutti_doctor(NULL, NULL, NULL), -EINVAL, "path");
	fo.ranks = 1;
	fo.bytes = 16u << 20;
	none = "";
	REFUSED(tutti_format(&fo), -ENOENT, "");
}

/* ---- gio_uring ---- */

static void null_gio_calls(void)
{
	const char *path = scratch_path("raw");
	struct gio_opts o = GIO_OPTS_INIT;
	struct gio_event no_word = {0};
	struct gio_ioctx *c;
	struct gio_info info;
	struct gio_result res;
	struct gio *g;
	uint32_t id = 0;
	FILE *f = fopen(path, "w");

	CHECK(f && fclose(f) == 0 && truncate(path, 1 << 20) == 0);
	REFUSED(gio_init_queue(NULL, &g), -EINVAL, "GIO_OPTS_INIT");
	REFUSED(gio_init_queue(&o, &g), -EINVAL, "paths");
	o.paths = &path;
	o.n_paths = 1;
	REFUSED(gio_init_queue(&o, NULL), -EINVAL, "NULL");
	o.depth = 3;
	REFUSED(gio_init_queue(&o, &g), -EINVAL, "power of two");
	o.depth = 1u << 31;
	REFUSED(gio_init_queue(&o, &g), -EINVAL, "65536");
	o.depth = 4;
	o.sms = 1000;
	REFUSED(gio_init_queue(&o, &g), -EINVAL, "executor blocks");
	o.sms = 0;
	o.deadline_ns = UINT64_MAX;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	REFUSED(gio_get_info(NULL, &info), -EINVAL, "NULL");
	REFUSED(gio_get_info(g, NULL), -EINVAL, "NULL");
	REFUSED(gio_register(NULL, &info, 1), -EINVAL, "NULL");
	REFUSED(gio_register(g, NULL, 1), -EINVAL, "NULL");
	REFUSED(gio_register(g, &info, 0), -EINVAL, "bytes");
	REFUSED(gio_get_iocb(NULL, 1, NULL, &id, &c), -EINVAL, "NULL");
	REFUSED(gio_get_iocb(g, 0, NULL, &id, &c), -EINVAL, "IOCTX");
	REFUSED(gio_get_iocb(g, GIO_IOCTX_MAX + 1, NULL, &id, &c), -EINVAL, "IOCTX");
	REFUSED(gio_get_iocb(g, 1, &no_word, &id, &c), -EINVAL, "NULL");
	REFUSED(gio_issue_io(NULL, &id, 1, 0), -EINVAL, "NULL");
	REFUSED(gio_issue_io(g, NULL, 1, 0), -EINVAL, "NULL");
	REFUSED(gio_issue_io(g, &id, 0, 0), -EINVAL, "IOCBs");
	REFUSED(gio_issue_io(g, &id, 1025, 0), -EINVAL, "IOCBs");
	REFUSED(gio_wait_cqe(NULL, 0, 0, &res), -EINVAL, "NULL");
	REFUSED(gio_wait_cqe(g, 0, 0, NULL), -EINVAL, "NULL");
	gio_put_iocb(NULL, 0);
	CHECK_EQ(gio_close(g), 0);
	CHECK_EQ(gio_close(NULL), 0);
}

/* Numbers that were never given out, given back twice, issued twice, named twice: refused, and the ring stays whole. */
static void made_up_numbers(void)
{
	static uint8_t mem[8192] __attribute__((aligned(4096)));
	const char *path = scratch_path("raw");
	struct gio_opts o = GIO_OPTS_INIT;
	struct gio_ioctx *c;
	struct gio_result res;
	struct gio_event event = {.word = &(uint32_t){1}, .value = 1};
	uint32_t id, ids[5], seen = 0;
	struct gio *g;

	o.paths = &path;
	o.n_paths = 1;
	o.depth = 4;
	CHECK_EQ(gio_init_queue(&o, &g), 0);
	CHECK_EQ(gio_register(g, mem, sizeof(mem)), 0);
	for (uint32_t k = 0; k < 6; k++) {
		id = k < 4 ? k : UINT32_MAX - k;
		REFUSED(gio_issue_io(g, &id, 1, 0), -EINVAL, "not taken");
		REFUSED(gio_wait_cqe(g, id, 0, &res), -EINVAL, "not issued");
		gio_put_iocb(g, id);
	}
	CHECK_EQ(gio_get_iocb(g, 1, NULL, &id, &c), 0);
	*c = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)mem, .bytes = 4096, .op = GIO_READ};
	ids[0] = ids[1] = id;
	REFUSED(gio_issue_io(g, ids, 2, 0), -EINVAL, "already");
	REFUSED(gio_wait_cqe(g, id, 0, &res), -EINVAL, "not issued"); /* nothing was issued */
	c->op = 7;
	REFUSED(gio_issue_io(g, &id, 1, 0), -EINVAL, "operation");
	c->op = GIO_READ;
	CHECK_EQ(gio_issue_io(g, &id, 1, 0), 0);
	REFUSED(gio_issue_io(g, &id, 1, 0), -EINVAL, "already");
	CHECK_EQ(gio_wait_cqe(g, id, UINT64_MAX, &res), 0);
	CHECK_EQ(res.status, 0);
	gio_put_iocb(g, id);
	gio_put_iocb(g, id);
	/* Two events in one call. */
	CHECK_EQ(gio_get_iocb(g, 1, NULL, &ids[0], &c), 0);
	*c = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)mem, .bytes = 4096, .op = GIO_READ};
	CHECK_EQ(gio_get_iocb(g, 1, &event, &ids[1], &c), 0);
	*c = (struct gio_ioctx){.mem = (uint64_t)(uintptr_t)mem + 4096, .bytes = 4096, .op = GIO_READ};
	REFUSED(gio_issue_io(g, ids, 2, 0), -EINVAL, "event");
	gio_put_iocb(g, ids[0]);
	gio_put_iocb(g, ids[1]);
	for (uint32_t k = 0; k < 4; k++) { /* each of the four exactly once */
		CHECK_EQ(gio_get_iocb(g, 1, NULL, &ids[k], &c), 0);
		CHECK(ids[k] < 4 && !(seen & 1u << ids[k]));
		seen |= 1u << ids[k];
	}
	REFUSED(gio_get_iocb(g, 1, NULL, &ids[4], &c), -EAGAIN, "IOCBs are out");
	CHECK_EQ(gio_close(g), 0);
}

int main(void)
{
	rig_dir(scratch_begin_in_memory());
	CHECK_RUN(null_words);
	CHECK_RUN(null_store_calls);
	CHECK_RUN(null_block_calls);
	CHECK_RUN(null_lane_calls);
	CHECK_RUN(null_plan_calls);
	CHECK_RUN(null_gio_calls);
	CHECK_RUN(made_up_numbers);
	scratch_end();
	return check_end();
}
