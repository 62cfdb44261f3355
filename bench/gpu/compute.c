/*
 * compute.c - a stand-in for the layers of a Llama-3-8B: matrix products that fill the SMs, as many as take the time.
 *
 * How long a prefill takes: a + b of 65,536 new tokens took 3.31 s and of 131,072 11.0 s on an H200 (32 layers,
 * bfloat16, PyTorch's attention), which gives a linear and a quadratic part. What it says of 65,536 tokens with a
 * cached prefix is within 5 % of what vLLM 0.26 (FlashAttention 3) takes there: 2.20 s at a hit ratio of 50 %
 * (2.13), 1.24 at 75 % (1.18), 0.34 at 93.75 % (0.34), 0.085 at 98.4 % (0.10).
 *
 * Products are cuBLAS's where it is installed, found at run time; else a plain kernel on the tensor cores.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "bench/gpu/gpu.h"

#define LINEAR_S 1.709e-5    /* a new token */
#define QUADRATIC_S 1.02e-9  /* a new token and a token before it */
#define ROWS 8192
#define INNER 4096
#define INNER_MAX (16 * INNER)
#define TIMED 20
#define LAYER_PRODUCTS 4 /* as an engine launches few kernels a layer: a stream's queue must not fill */

static struct {
	void *so, *handle;
	int (*stream)(void *handle, cudaStream_t s);
	int (*product)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type,
	               int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
	               int compute_type, int algorithm);
	int (*destroy)(void *handle);
} blas;
static void *a, *b, *c;
static int columns;
static char what[64];
static double product_s;

const int compute_columns[COMPUTE_SHAPES] = {28672, 8192};

double compute_seconds(double fresh, double cached)
{
	return LINEAR_S * fresh + QUADRATIC_S * fresh * (cached + fresh / 2);
}

static void find_blas(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
	int (*create)(void **handle);

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !blas.so; i++)
		blas.so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!blas.so)
		return;
	*(void **)&create = dlsym(blas.so, "cublasCreate_v2");
	*(void **)&blas.stream = dlsym(blas.so, "cublasSetStream_v2");
	*(void **)&blas.product = dlsym(blas.so, "cublasGemmEx");
	*(void **)&blas.destroy = dlsym(blas.so, "cublasDestroy_v2");
	if (!create || !blas.stream || !blas.product || !blas.destroy || create(&blas.handle))
		blas.handle = NULL;
}

const char *compute_what(void) { return what; }

static void product(cudaStream_t s, int inner)
{
	const float one = 1, zero = 0;

	if (!blas.handle) {
		kernel_product(a, b, c, ROWS, columns, inner, s);
		return;
	}
	need(blas.stream(blas.handle, s), "cublasSetStream");
	/* 0: not transposed; 14: CUDA_R_16BF; 68: CUBLAS_COMPUTE_32F; -1: the library's choice */
	need(blas.product(blas.handle, 0, 0, columns, ROWS, inner, &one, b, 14, columns, a, 14, inner, &zero, c, 14,
	                  columns, 68, -1),
	     "cublasGemmEx");
}

void compute_product(cudaStream_t s) { product(s, INNER); }

double compute_product_s(void) { return product_s; }

/* Numbers around 1, as bfloat16: a product of zeros is faster than one of data. */
static void fill(void *at, size_t n)
{
	const size_t part = 1u << 22; /* divides n */
	uint16_t *h = malloc(part * 2);

	for (size_t i = 0; i < part; i++)
		h[i] = (uint16_t)(0x3f00u | ((i * 2654435761u) >> 24 & 0xff));
	for (size_t i = 0; i < n; i += part)
		need_cuda(cudaMemcpy((uint16_t *)at + i, h, part * 2, cudaMemcpyHostToDevice), "matrices");
	free(h);
}

void compute_open(int n)
{
	cudaStream_t s;
	uint64_t t0;

	columns = n;
	find_blas();
	snprintf(what, sizeof(what), "%s, %d x %d x %d", blas.handle ? "cuBLAS" : "own kernel", ROWS, columns, INNER);
	need_cuda(cudaMalloc(&a, (size_t)ROWS * INNER_MAX * 2), "matrices");
	need_cuda(cudaMalloc(&b, (size_t)columns * INNER_MAX * 2), "matrices");
	need_cuda(cudaMalloc(&c, (size_t)ROWS * (size_t)columns * 4), "matrices");
	fill(a, (size_t)ROWS * INNER_MAX);
	fill(b, (size_t)columns * INNER_MAX);
	need_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	for (int i = 0; i < 2 * TIMED; i++)
		compute_product(s);
	need_cuda(cudaStreamSynchronize(s), "matrix products");
	t0 = now_ns();
	for (int i = 0; i < TIMED; i++)
		compute_product(s);
	need_cuda(cudaStreamSynchronize(s), "matrix products");
	product_s = (double)(now_ns() - t0) * 1e-9 / TIMED;
	cudaStreamDestroy(s);
	printf("# stand-in compute: %s in %.3f ms (%.0f TFLOP/s)\n", what, product_s * 1e3,
	       2.0 * ROWS * columns * INNER / product_s * 1e-12);
}

void compute_close(void)
{
	if (blas.handle)
		blas.destroy(blas.handle);
	cudaFree(a);
	cudaFree(b);
	cudaFree(c);
}

double compute_products_ms(cudaStream_t s, int n, void (*under_way)(void *arg), void *arg)
{
	cudaEvent_t from, to;
	float ms;

	need_cuda(cudaEventCreate(&from), "an event");
	need_cuda(cudaEventCreate(&to), "an event");
	for (int i = 0; i < n / 10; i++)
		compute_product(s);
	need_cuda(cudaEventRecord(from, s), "an event");
	for (int i = 0; i < n; i++)
		compute_product(s);
	need_cuda(cudaEventRecord(to, s), "an event");
	if (under_way)
		under_way(arg);
	need_cuda(cudaEventSynchronize(to), "products");
	need_cuda(cudaEventElapsedTime(&ms, from, to), "products");
	cudaEventDestroy(from);
	cudaEventDestroy(to);
	return (double)ms / n;
}

/* A step's products of a Llama-3-8B's layer for 8 requests: output columns, inner. */
static const int decode[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
#define DECODING 8

int compute_decodes(void) { return blas.handle != NULL; }

double compute_decode_ms(cudaStream_t s, int n)
{
	const float one = 1, zero = 0;
	cudaEvent_t from, to;
	float ms;

	need_cuda(cudaEventCreate(&from), "an event");
	need_cuda(cudaEventCreate(&to), "an event");
	for (int i = -n / 10; i < n; i++) {
		if (!i)
			need_cuda(cudaEventRecord(from, s), "an event");
		for (size_t k = 0; k < sizeof(decode) / sizeof(*decode); k++) {
			int out = decode[k][0], inner = decode[k][1];

			need(blas.stream(blas.handle, s), "cublasSetStream");
			need(blas.product(blas.handle, 1, 0, out, DECODING, inner, &one, b, 14, inner, a, 14, inner,
			                  &zero, c, 14, out, 68, -1),
			     "cublasGemmEx");
		}
	}
	need_cuda(cudaEventRecord(to, s), "an event");
	need_cuda(cudaEventSynchronize(to), "decoding");
	need_cuda(cudaEventElapsedTime(&ms, from, to), "decoding");
	cudaEventDestroy(from);
	cudaEventDestroy(to);
	return (double)ms / n;
}

void compute_layer(cudaStream_t s, double seconds)
{
	double inner = seconds / LAYER_PRODUCTS / product_s * INNER;
	int rounded = (int)(inner / 128 + 0.5) * 128;

	for (int i = 0; i < LAYER_PRODUCTS; i++)
		product(s, rounded < 128 ? 128 : rounded > INNER_MAX ? INNER_MAX : rounded);
}
