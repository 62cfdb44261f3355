/*
 * beside.c - I/O and compute on one GPU: how late an I/O kernel starts while matrix products fill the SMs, what
 * full-rate I/O costs the products, and eight requests at once.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "bench/gpu/gpu.h"

#define STARTS 15
#define PRODUCTS 200
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

/* ---- products beside I/O ---- */

static struct {
	pthread_t thread;
	struct lab *b;
	int stop, started;
	double bytes, s;
} loader;

static void *load(void *arg)
{
	struct lab *b = loader.b;

	(void)arg;
	cudaSetDevice(0);
	while (!__atomic_load_n(&loader.stop, __ATOMIC_RELAXED)) {
		struct lab_plan p;
		uint64_t t0;

		lab_plan(b, b->r.lane[0], b->n, &p);
		t0 = now_ns();
		need(tutti_retrieve(p.p), "retrieve");
		__atomic_store_n(&loader.started, 1, __ATOMIC_RELEASE);
		need(tutti_wait_layer(p.p, LAYERS - 1, t0 + WAIT_NS), "layers");
		loader.s += (double)(now_ns() - t0) * 1e-9;
		loader.bytes += (double)lab_bytes(b, b->n);
		lab_plan_end(b, &p);
	}
	return NULL;
}

static double products_beside_ms(struct lab *b, cudaStream_t s, struct series *gbs)
{
	struct timespec pause = {.tv_nsec = 100000};
	double ms;

	loader.b = b;
	loader.stop = loader.started = 0;
	loader.bytes = loader.s = 0;
	need(pthread_create(&loader.thread, NULL, load, NULL), "a thread");
	while (!__atomic_load_n(&loader.started, __ATOMIC_ACQUIRE))
		nanosleep(&pause, NULL); /* until the I/O kernel is on its way */
	ms = compute_products_ms(s, PRODUCTS, NULL, NULL);
	__atomic_store_n(&loader.stop, 1, __ATOMIC_RELAXED);
	pthread_join(loader.thread, NULL);
	series_add(gbs, loader.bytes / loader.s * 1e-9);
	return ms;
}

/* Alone they have the whole GPU; beside I/O they run on s. */
static void slowdown(struct lab *b, cudaStream_t whole, cudaStream_t s, const char *where, int judged)
{
	struct row slower = {.unit = "%", .sense = judged ? AT_MOST : NO_TARGET, .target = 5};
	struct row gbs = {.unit = "GB/s", .ceiling = copy_in_gbs};
	struct series alone = {.n = 0}, beside = {.n = 0};

	for (int i = 0; i < opt.rounds; i++) {
		series_add(&alone, compute_products_ms(whole, PRODUCTS, NULL, NULL));
		series_add(&beside, products_beside_ms(b, s, &gbs.values));
	}
	for (int i = 0; i < opt.rounds; i++)
		series_add(&slower.values, 100 * (beside.v[i] / series_median(&alone) - 1));
	snprintf(slower.name, sizeof(slower.name), "matrix products (%s) slower beside full-rate I/O, on %s",
	         compute_what(), where);
	snprintf(slower.note, sizeof(slower.note), "%.3f ms alone, %.3f ms beside; I/O on %u SMs",
	         series_median(&alone), series_median(&beside), opt.sms);
	row_put(&slower);
	snprintf(gbs.name, sizeof(gbs.name), "retrieve beside matrix products on %s", where);
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
	compute_open();
	lab_open(&b, &shape);
	rc = tutti_compute_stream(opt.sms, 0, (void **)&rest, &sms);
	snprintf(where, sizeof(where), "the other %u SMs", sms);
	requests(&b);
	starts(&b, all, "all SMs", 0);
	slowdown(&b, all, all, "all SMs", 0);
	if (rc) {
		row_skip("products on the other SMs", tutti_error_message());
	} else {
		fewer(all, rest, sms);
		starts(&b, rest, where, 1);
		slowdown(&b, all, rest, where, 1);
		cudaStreamDestroy(rest);
	}
	lab_close(&b);
	shape.small = 1;
	shape.sms = 16;
	lab_open(&b, &shape);
	starts(&b, all, "all SMs, small shape", 1);
	slowdown(&b, all, all, "all SMs, small shape", 0);
	lab_close(&b);
	compute_close();
	cudaStreamDestroy(all);
}
