/*
 * beside.c - I/O and compute on one GPU: how late an I/O kernel starts while matrix products fill the SMs, what
 * full-rate I/O costs the products, and eight requests at once.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "bench/gpu/gpu.h"

#define STARTS 15
#define PRODUCTS 60
#define DECODED 800
#define REQUESTS 8u

/* Microseconds from the call to the host's seeing a layer of one block. products: how many are queued on s before. */
static double one_layer_us(struct lab *b, cudaStream_t s, int products)
{
	struct timespec settle = {.tv_nsec = 1500000};
	struct lab_plan p;
	uint64_t t0, t1;

	lab_plan(b, b->r.lane[0], 1, &p);
	for (int i = 0; i < products; i++)
		compute_product(s);
	nanosleep(&settle, NULL); /* the plan has been sent, the products run */
	t0 = now_ns();
	need(tutti_retrieve_layer(p.p, 0), "retrieve");
	need(tutti_wait_layer(p.p, 0, t0 + WAIT_NS), "layer");
	t1 = now_ns();
	need(tutti_plan_finish(p.p, now_ns() + WAIT_NS, NULL, 0, NULL), "finish");
	need(tutti_release(b->r.ns, &p.lease), "release");
	need_cuda(cudaStreamSynchronize(s), "products");
	return (double)(t1 - t0) * 1e-3;
}

static void starts(struct lab *b, cudaStream_t s, const char *where, int judged)
{
	int products = (int)(0.004 / compute_product_s()) + 2;
	struct series idle = {.n = 0};
	struct row busy = {.unit = "us"}, delay = {.unit = "us", .sense = judged ? AT_MOST : NO_TARGET, .target = 25};

	for (int i = -2; i < STARTS; i++) {
		double a = one_layer_us(b, s, 0), c = one_layer_us(b, s, products);

		if (i < 0)
			continue;
		series_add(&idle, a);
		series_add(&busy.values, c);
	}
	for (int i = 0; i < STARTS; i++)
		series_add(&delay.values, busy.values.v[i] - series_median(&idle));
	busy.ceiling = series_median(&idle);
	snprintf(busy.name, sizeof(busy.name), "one block, one layer, call to host's wait over, products on %s", where);
	snprintf(busy.note, sizeof(busy.note), "beside the same on an idle GPU");
	row_put(&busy);
	snprintf(delay.name, sizeof(delay.name), "start of an I/O kernel, later by: products on %s", where);
	row_put(&delay);
}

/* ---- compute beside I/O ---- */

static struct {
	pthread_t thread;
	struct lab *b;
	int store, stop, started;
	double bytes, s;
} mover;

static void move_once(struct lab *b)
{
	struct lab_plan p;
	uint64_t t0;

	if (mover.store)
		lab_plan_store(b, b->r.lane[0], b->n, &p, 0);
	else
		lab_plan(b, b->r.lane[0], b->n, &p);
	t0 = now_ns();
	if (!mover.store)
		need(tutti_retrieve(p.p), "retrieve");
	for (uint32_t l = 0; l < LAYERS && mover.store; l++)
		need(tutti_store_layer(p.p, l), "store");
	__atomic_store_n(&mover.started, 1, __ATOMIC_RELEASE);
	need(tutti_wait_layer(p.p, LAYERS - 1, t0 + WAIT_NS), "layers");
	mover.s += (double)(now_ns() - t0) * 1e-9;
	mover.bytes += (double)lab_bytes(b, b->n);
	lab_plan_end(b, &p);
}

static void *move(void *arg)
{
	(void)arg;
	cudaSetDevice(0);
	while (!__atomic_load_n(&mover.stop, __ATOMIC_RELAXED))
		move_once(mover.b);
	return NULL;
}

static double products_ms(cudaStream_t s) { return compute_products_ms(s, PRODUCTS, NULL, NULL); }
static double decode_ms(cudaStream_t s) { return compute_decode_ms(s, DECODED); }

/* What runs beside I/O. */
struct beside {
	const char *what;
	double (*ms)(cudaStream_t s);
	int store, gentle;
	int turns;     /* a round: products' times spread */
	double target; /* percent; 0: none */
};

static double beside_ms(struct lab *b, cudaStream_t s, const struct beside *x, struct series *gbs)
{
	struct timespec pause = {.tv_nsec = 100000};
	double ms;

	mover.b = b;
	mover.store = x->store;
	mover.stop = mover.started = 0;
	mover.bytes = mover.s = 0;
	need(pthread_create(&mover.thread, NULL, move, NULL), "a thread");
	while (!__atomic_load_n(&mover.started, __ATOMIC_ACQUIRE))
		nanosleep(&pause, NULL); /* until the I/O kernel is on its way */
	ms = x->ms(s);
	__atomic_store_n(&mover.stop, 1, __ATOMIC_RELAXED);
	pthread_join(mover.thread, NULL);
	series_add(gbs, mover.bytes / mover.s * 1e-9);
	return ms;
}

/* Alone it has the whole GPU; beside I/O it runs on s. */
static void slowdown(struct lab *b, cudaStream_t whole, cudaStream_t s, const char *where, const struct beside *x)
{
	struct row slower = {.unit = "%", .sense = x->target > 0 ? AT_MOST : NO_TARGET, .target = x->target};
	struct row gbs = {.unit = "GB/s", .ceiling = x->store ? copy_out_gbs : copy_in_gbs};
	struct series alone = {.n = 0}, beside = {.n = 0};
	char io[40];

	need(tutti_lane_pace(b->r.lane[0], x->store ? TUTTI_STORE : TUTTI_RETRIEVE, x->gentle), "pace");
	for (int i = 0; i < x->turns * opt.rounds && i < SERIES_MAX; i++) {
		series_add(&alone, x->ms(whole));
		series_add(&beside, beside_ms(b, s, x, &gbs.values));
		series_add(&slower.values, 100 * (beside.v[i] / alone.v[i] - 1));
	}
	need(tutti_lane_pace(b->r.lane[0], x->store ? TUTTI_STORE : TUTTI_RETRIEVE, 0), "pace");
	snprintf(io, sizeof(io), "%s %s", x->gentle ? "gentle" : "full-rate", x->store ? "store" : "retrieve");
	snprintf(slower.name, sizeof(slower.name), "%s slower beside a %s, on %s", x->what, io, where);
	snprintf(slower.note, sizeof(slower.note), "%s; %.3f ms alone, %.3f ms beside; I/O on %u SMs", compute_what(),
	         series_median(&alone), series_median(&beside), opt.sms);
	row_put(&slower);
	snprintf(gbs.name, sizeof(gbs.name), "%s beside %s on %s", io, x->what, where);
	row_put(&gbs);
}

/* What the SMs alone cost that I/O keeps. */
static void fewer(cudaStream_t all, cudaStream_t rest, uint32_t sms)
{
	struct row r = {.unit = "%"};

	for (int i = 0; i < opt.rounds; i++) {
		double whole = compute_products_ms(all, PRODUCTS, NULL, NULL);

		series_add(&r.values, 100 * (compute_products_ms(rest, PRODUCTS, NULL, NULL) / whole - 1));
	}
	snprintf(r.name, sizeof(r.name), "matrix products (%s) slower on %u SMs, no I/O", compute_what(), sms);
	row_put(&r);
}

/* ---- eight requests ---- */

static void requests(struct lab *b)
{
	size_t n = b->n / REQUESTS, bytes = tutti_plan_blob_bytes(n), count;
	struct series at[REQUESTS] = {{.n = 0}};

	for (int round = 0; round < opt.rounds; round++) {
		struct tutti_plan *p[REQUESTS];
		struct tutti_lease lease;
		void *blob = malloc(bytes);
		uint64_t t0;

		lab_wipe(b);
		need(tutti_lookup(b->r.ns, b->keys, b->n, LEASE_NS, &count, &lease), "lookup");
		for (uint32_t i = 0; i < REQUESTS; i++) {
			size_t got;

			need(tutti_plan_blob(b->r.ns, &lease, i * n, n, blob, bytes, &got), "plan blob");
			need(tutti_plan_open(b->r.lane[0], blob, got, b->blocks + i * n, n, &p[i]), "plan");
		}
		t0 = now_ns();
		for (uint32_t i = 0; i < REQUESTS; i++)
			need(tutti_retrieve(p[i]), "retrieve");
		for (uint32_t i = 0; i < REQUESTS; i++) {
			need(tutti_wait_layer(p[i], LAYERS - 1, now_ns() + WAIT_NS), "layers");
			series_add(&at[i], (double)(now_ns() - t0) * 1e-6);
		}
		for (uint32_t i = 0; i < REQUESTS; i++)
			need(tutti_plan_finish(p[i], now_ns() + WAIT_NS, NULL, 0, NULL), "finish");
		need(tutti_release(b->r.ns, &lease), "release");
		free(blob);
		need(lab_wrong(b, b->n, b->salt) ? -1 : 0, "bytes differ");
	}
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct row r = {.unit = "ms", .values = at[i], .figure = "8 requests", .system = "Tutti", .x = i + 1};

		r.ceiling = (i + 1) * (double)lab_bytes(b, n) / copy_in_gbs * 1e-6;
		snprintf(r.name, sizeof(r.name), "request %u of 8 at once, %zuK tokens each, loaded after", i + 1,
		         n * TOKENS / 1024);
		snprintf(r.note, sizeof(r.note), "beside the copy engine doing one after the other");
		row_put(&r);
	}
}

static const struct beside wide = {"products of 28672 columns", products_ms, 0, 0, 3, 5};
static const struct beside square = {"products of 8192 columns", products_ms, 0, 0, 3, 0};
static const struct beside others[] = {{"products of 28672 columns", products_ms, 1, 0, 1, 0},
                                       {"products of 28672 columns", products_ms, 1, 1, 1, 0},
                                       {"decoding", decode_ms, 0, 0, 1, 0},
                                       {"decoding", decode_ms, 0, 1, 1, 3},
                                       {"decoding", decode_ms, 1, 0, 1, 0},
                                       {"decoding", decode_ms, 1, 1, 1, 3}};

void figure_beside(void)
{
	struct lab_shape shape = {.dir = opt.memory,
	                          .controller = TUTTI_CTRL_MODEL,
	                          .tokens = TOKENS,
	                          .n = 4096,
	                          .devices = 4,
	                          .sms = opt.sms,
	                          .no_medium = 1};
	cudaStream_t all, rest;
	char where[40];
	struct lab b;
	uint32_t sms;
	int rc;

	need_cuda(cudaStreamCreateWithFlags(&all, cudaStreamNonBlocking), "a stream");
	compute_open(compute_columns[0]);
	lab_open(&b, &shape);
	rc = tutti_compute_stream(opt.sms, 0, (void **)&rest, &sms);
	snprintf(where, sizeof(where), "the other %u SMs", sms);
	requests(&b);
	starts(&b, all, "all SMs", 0);
	slowdown(&b, all, all, "all SMs", &wide);
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		if (others[i].ms != decode_ms || compute_decodes())
			slowdown(&b, all, all, "all SMs", &others[i]);
		else
			row_skip(others[i].what, "no cuBLAS");
	if (rc) {
		row_skip("products on the other SMs", tutti_error_message());
	} else {
		fewer(all, rest, sms);
		starts(&b, rest, where, 1);
		slowdown(&b, all, rest, where, &wide);
		compute_close();
		compute_open(compute_columns[1]);
		fewer(all, rest, sms);
		slowdown(&b, all, rest, where, &square);
		cudaStreamDestroy(rest);
	}
	lab_close(&b);
	shape.small = 1;
	shape.sms = 16;
	lab_open(&b, &shape);
	starts(&b, all, "all SMs, small shape", 1);
	slowdown(&b, all, all, "all SMs, small shape", &square);
	lab_close(&b);
	compute_close();
	cudaStreamDestroy(all);
}
