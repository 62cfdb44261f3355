/*
 * main.c - tutti-gpu: the GPU path and what it is compared to, as a table, gpu.json and gpu.csv.
 *
 *     tutti-gpu [--out FOLDER] [--memory FOLDER] [--disk FOLDER] [--drives FILE] [--rounds N] [--sms N]
 *               [--tokens N] [FIGURE...]
 *
 * Figures, all by default: ceiling tables price calls bandwidth disk ttft mixed beside. --memory: a tmpfs (the medium
 * of the model controller; /dev/shm). --disk: a folder on the machine's disk; without it that part is left out.
 * --tokens: the longest context. The exit status is 1 when bytes differed, never because a number is low.
 */
#include <cuda.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/gpu/gpu.h"

struct options opt = {
	.memory = "/dev/shm", .drives = "bench/gpu/drives.csv", .rounds = 5, .sms = 4, .tokens = 131072};

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
double cpu_thread_s(void) { return (double)clock_ns(CLOCK_THREAD_CPUTIME_ID) * 1e-9; }
double cpu_process_s(void) { return (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) * 1e-9; }

void need(int rc, const char *what)
{
	if (!rc)
		return;
	printf("FAILED %s: %s (%s)\n", what, tutti_error_message(), tutti_strerror(rc));
	exit(1);
}

void need_cuda(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	printf("FAILED %s: CUDA: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

void *driver_fn(const char *name)
{
	enum cudaDriverEntryPointQueryResult found;
	void *fn = NULL;

	if (cudaGetDriverEntryPointByVersion(name, &fn, CUDA_VERSION, cudaEnableDefault, &found) != cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		cudaGetLastError();
		return NULL;
	}
	return fn;
}

typedef CUresult (*value_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

void stream_wait(cudaStream_t s, uint32_t *flag, uint32_t value)
{
	static value_fn fn;

	if (!fn)
		*(void **)&fn = driver_fn("cuStreamWaitValue32");
	need(!fn || fn(s, (CUdeviceptr)(uintptr_t)flag, value, CU_STREAM_WAIT_VALUE_GEQ) ? -ENOTSUP : 0, "stream wait");
}

void stream_write(cudaStream_t s, uint32_t *flag, uint32_t value)
{
	static value_fn fn;

	if (!fn)
		*(void **)&fn = driver_fn("cuStreamWriteValue32");
	need(!fn || fn(s, (CUdeviceptr)(uintptr_t)flag, value, 0) ? -ENOTSUP : 0, "stream write");
}

/* ---- the figures ---- */

static const struct {
	const char *name;
	void (*run)(void);
} figures[] = {{"ceiling", figure_ceiling}, {"tables", figure_tables},       {"price", figure_price},
               {"calls", figure_calls},     {"bandwidth", figure_bandwidth}, {"disk", figure_disk},
               {"ttft", figure_ttft},       {"mixed", figure_mixed},         {"beside", figure_beside}};
#define N_FIGURES (sizeof(figures) / sizeof(*figures))

static const struct {
	const char *name;
	const char **text;
	int *number;
} flags[] = {{"--memory", &opt.memory, NULL},
             {"--disk", &opt.disk, NULL},
             {"--drives", &opt.drives, NULL},
             {"--rounds", NULL, &opt.rounds}};

static int usage(void)
{
	fprintf(stderr,
	        "usage: tutti-gpu [--out FOLDER] [--memory FOLDER] [--disk FOLDER] [--drives FILE] [--rounds N]\n"
	                "                 [--sms N] [--tokens N] [FIGURE...]\nfigures:");
	for (size_t i = 0; i < N_FIGURES; i++)
		fprintf(stderr, " %s", figures[i].name);
	fprintf(stderr, "\n");
	return 2;
}

static int option(const char *name, const char *value, const char **out)
{
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		if (strcmp(flags[i].name, name))
			continue;
		if (flags[i].text)
			*flags[i].text = value;
		else
			*flags[i].number = atoi(value);
		return 0;
	}
	if (!strcmp(name, "--out"))
		*out = value;
	else if (!strcmp(name, "--sms"))
		opt.sms = (uint32_t)atoi(value);
	else if (!strcmp(name, "--tokens"))
		opt.tokens = strtoull(value, NULL, 10);
	else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	const char *out = ".";
	int asked = 0, i = 1;

	for (; i + 1 < argc && argv[i][0] == '-'; i += 2)
		if (option(argv[i], argv[i + 1], &out))
			return usage();
	if (opt.rounds < 1 || opt.rounds > SERIES_MAX || opt.tokens < 8192 || !opt.sms)
		return usage();
	/* What is loaded late waits for the GPU to be idle, which a stream that waits for a layer never is. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	if (!rig_gpu()) {
		fprintf(stderr, "skipped: no GPU\n");
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rows_open(out);
	figure_ceiling(); /* others are held against it */
	for (; i < argc; i++) {
		size_t k = 0;

		while (k < N_FIGURES && strcmp(figures[k].name, argv[i]))
			k++;
		if (k == N_FIGURES)
			return usage();
		asked = 1;
		if (k)
			figures[k].run();
	}
	for (size_t k = 1; k < N_FIGURES && !asked; k++)
		figures[k].run();
	printf("# %d rows miss their target\n", rows_missed());
	return 0;
}
