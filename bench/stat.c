/* stat.c - clocks, medians and their intervals. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"

#define NARROW 0.1
#define CONFIDENCE 0.9

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t bench_thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
uint64_t bench_process_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

uint64_t bench_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct bench_series sorted(const struct bench_series *s)
{
	struct bench_series t = *s;

	qsort(t.v, (size_t)t.n, sizeof(*t.v), less);
	return t;
}

void bench_add(struct bench_series *s, double v)
{
	if (s->n < BENCH_PAIRS_MAX)
		s->v[s->n++] = v;
}

double bench_median(const struct bench_series *s)
{
	struct bench_series t = sorted(s);

	return t.n ? (t.v[(t.n - 1) / 2] + t.v[t.n / 2]) / 2 : 0;
}

/* P(the k smallest of n values lie below the median) = sum of C(n, i) / 2^n for i < k. */
void bench_interval(const struct bench_series *s, double *low, double *high)
{
	struct bench_series t = sorted(s);
	double term = 1, below = 0;
	int k = 0; /* values given up at either end */

	for (int i = 0; i < t.n; i++)
		term /= 2;
	for (int i = 0; i < t.n / 2; i++) {
		below += term;
		if (1 - 2 * below < CONFIDENCE)
			break;
		k = i;
		term *= (double)(t.n - i) / (i + 1);
	}
	*low = t.n ? t.v[k] : 0;
	*high = t.n ? t.v[t.n - 1 - k] : 0;
}

void bench_pair(struct bench_pairs *p, double ours, double theirs)
{
	bench_add(&p->ours, ours);
	bench_add(&p->theirs, theirs);
	bench_add(&p->ratio, theirs > 0 ? ours / theirs : 0);
}

int bench_more(struct bench_pairs *p)
{
	double low, high;

	if (!p->start_ns)
		p->start_ns = bench_now_ns();
	if (p->ratio.n < 5) /* fewer don't make an interval */
		return 1;
	bench_interval(&p->ratio, &low, &high);
	return p->ratio.n < BENCH_PAIRS_MAX && high - low >= NARROW &&
	       (double)(bench_now_ns() - p->start_ns) < bench_opts.seconds * 1e9;
}

void bench_row_of_pairs(struct bench_row *r, const struct bench_pairs *p)
{
	r->value = bench_median(&p->ours);
	r->ceiling = bench_median(&p->theirs);
	r->ratio = bench_median(&p->ratio);
	bench_interval(&p->ratio, &r->low, &r->high);
	r->pairs = p->ratio.n;
	r->of_ratio = 1;
	bench_row_add(r);
}

void bench_row_of_series(struct bench_row *r, const struct bench_series *s)
{
	r->value = bench_median(s);
	bench_interval(s, &r->low, &r->high);
	r->pairs = s->n;
	bench_row_add(r);
}
