/*
 * gio_copy.c - gio_uring without the rest: write a file in one batch of scattered transfers, read it back in another,
 * compare.
 *
 *     cc gio_copy.c $(pkg-config --cflags --libs tutti) && ./a.out FILE
 *
 * The CPU fills two IOCBs and cues two kernels. The kernels build the NVMe commands, merge what is contiguous, submit
 * them on their own queue pairs and complete the IOCBs. In a build with CUDA the kernels are the GPU's, if there is
 * one, and so is the memory that is compared.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/gio_uring.h>
#include <tutti/tutti.h>
#if defined(TUTTI_CUDA)
#include <cuda_runtime_api.h>
#endif

#define PIECES 256u
#define PIECE_BYTES 16384u

static void need(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: %s (%s)\n", what, tutti_error_message(), tutti_strerror(result));
		exit(1);
	}
}

/* Memory of whoever runs the kernels. gpu 1: the GPU's. */
static void *memory(int gpu, size_t bytes)
{
	void *p = NULL;

#if defined(TUTTI_CUDA)
	if (gpu && cudaMalloc(&p, bytes) == cudaSuccess)
		return p;
#endif
	if (!gpu)
		p = aligned_alloc(4096, bytes);
	if (!p)
		exit(1);
	return p;
}

static void copy(void *to, const void *from, size_t bytes)
{
#if defined(TUTTI_CUDA)
	cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
#else
	memcpy(to, from, bytes);
#endif
}

static int gpu_there(void)
{
	int n = 0;

#if defined(TUTTI_CUDA)
	if (cudaGetDeviceCount(&n) != cudaSuccess)
		n = 0;
#endif
	return n > 0;
}

static uint64_t in_ten_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)(t.tv_sec + 10) * 1000000000u;
}

/* One batch: piece i of the file to or from place `order(i)` of the memory. */
static void transfer(struct gio *g, enum gio_op op, unsigned char *memory, unsigned step)
{
	struct gio_ioctx *c;
	struct gio_result r;
	uint32_t id;

	need(gio_get_iocb(g, PIECES, NULL, &id, &c), "gio_get_iocb");
	for (uint32_t i = 0; i < PIECES; i++) {
		c[i].mem = (uint64_t)(uintptr_t)(memory + (size_t)(i * step % PIECES) * PIECE_BYTES);
		c[i].offset_bytes = (uint64_t)i * PIECE_BYTES;
		c[i].bytes = PIECE_BYTES;
		c[i].dev = 0;
		c[i].op = (uint16_t)op;
	}
	need(gio_issue_io(g, &id, 1, 0), "gio_issue_io");
	need(gio_wait_cqe(g, id, in_ten_seconds(), &r), "gio_wait_cqe");
	need(r.status, "a transfer");
	gio_put_iocb(g, id);
}

static void make_file(const char *path)
{
	FILE *f = fopen(path, "wb");

	if (!f || fseek(f, (long)PIECES * PIECE_BYTES - 1, SEEK_SET) || fputc(0, f) == EOF || fclose(f)) {
		perror(path);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct gio_opts opts = GIO_OPTS_INIT;
	const size_t bytes = (size_t)PIECES * PIECE_BYTES;
	const char *path = argc > 1 ? argv[1] : "gio.dat";
	const int gpu = gpu_there();
	unsigned char *out = malloc(bytes), *in = malloc(bytes);
	unsigned char *from = memory(gpu, bytes), *to = memory(gpu, bytes);
	struct gio_info info;
	struct gio *g;
	int wrong = 0;

	if (!out || !in)
		return 1;
	make_file(path);
	for (size_t i = 0; i < bytes; i++)
		out[i] = (unsigned char)((i * 2654435761u) >> 24);
	memset(in, 0, bytes);
	copy(from, out, bytes);
	copy(to, in, bytes);
	opts.executor = gpu ? TUTTI_EXEC_CUDA : TUTTI_EXEC_HOST;
	opts.paths = &path;
	opts.n_paths = 1;
	need(gio_init_queue(&opts, &g), "gio_init_queue");
	need(gio_get_info(g, &info), "gio_get_info");
	need(gio_register(g, from, bytes), "gio_register");
	need(gio_register(g, to, bytes), "gio_register");
	transfer(g, GIO_WRITE, from, 1);
	transfer(g, GIO_READ, to, 7); /* 7 and PIECES have no common factor: every piece lands elsewhere */
	copy(in, to, bytes);
	for (uint32_t i = 0; i < PIECES; i++)
		wrong += memcmp(out + (size_t)i * PIECE_BYTES, in + (size_t)(i * 7 % PIECES) * PIECE_BYTES,
		                PIECE_BYTES) != 0;
	need(gio_close(g), "gio_close");
	printf("%u pieces of %u bytes written and read through %s on %s: %d wrong\n", PIECES, PIECE_BYTES,
	       info.controller, info.executor, wrong);
	return wrong != 0;
}
