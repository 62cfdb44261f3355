/*
 * objsum_x86.c - the object checksum at memory speed, on the host.
 *
 * One loop body, written for three widths of register: a lane of 64 bits, two (SSE2), four (AVX2). Each register
 * of lanes has its register of keys, which moves on by a constant, so the loop is load, xor, shift, multiply and
 * three adds. The two halves of a term (x, and low x high) are summed apart and joined at the end. What is left of
 * a register's width goes lane by lane; nothing is read outside the object. `copy` is a constant where
 * it is used, so that each body compiles to a loop that copies and one that does not.
 *
 * On another architecture than x86-64 the lane-wise one is the only one.
 */
#include "geom/objsum.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* What a pass does beside summing. */
enum { SUM, COPY, STREAM };

typedef uint64_t (*part_fn)(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index);

static inline uint64_t lane_in_order(uint64_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	return __builtin_bswap64(v);
#else
	return v;
#endif
}

static inline __attribute__((always_inline)) uint64_t part_lanes(int copy, unsigned char *dst, const unsigned char *src,
                                                                 uint64_t bytes, uint64_t index)
{
	uint64_t sum = 0, lane, at = 0;

	for (; bytes - at >= 8; at += 8) {
		memcpy(&lane, src + at, 8);
		if (copy)
			memcpy(dst + at, &lane, 8);
		sum += objsum_term(lane_in_order(lane), index++);
	}
	if (at < bytes) {
		lane = 0;
		memcpy(&lane, src + at, bytes - at);
		if (copy)
			memcpy(dst + at, &lane, bytes - at);
		sum += objsum_term(lane_in_order(lane), index);
	}
	return sum;
}

static uint64_t sum_scalar(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index)
{
	(void)dst;
	return part_lanes(SUM, NULL, src, bytes, index);
}

static uint64_t copy_scalar(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index)
{
	return part_lanes(COPY, dst, src, bytes, index);
}

#if defined(__x86_64__)

#define KEY(lanes) ((long long)((uint64_t)(lanes)*OBJSUM_LANE_KEY))

/* One register's keys and sums. Four of them run side by side, to keep the multipliers busy. */
struct sums128 {
	__m128i key, low, product;
};

static inline __attribute__((always_inline)) struct sums128 begin_sse2(uint64_t index)
{
	const __m128i zero = _mm_setzero_si128();

	return (struct sums128){_mm_set_epi64x(KEY(index + 2), KEY(index + 1)), zero, zero};
}

static inline __attribute__((always_inline)) void step_sse2(struct sums128 *s, __m128i key_step, int copy,
                                                            unsigned char *dst, const unsigned char *src)
{
	__m128i x = _mm_loadu_si128((const __m128i *)(const void *)src);

	if (copy)
		_mm_storeu_si128((__m128i *)(void *)dst, x);
	x = _mm_xor_si128(x, s->key);
	s->key = _mm_add_epi64(s->key, key_step);
	s->low = _mm_add_epi64(s->low, x);
	s->product = _mm_add_epi64(s->product, _mm_mul_epu32(x, _mm_srli_epi64(x, 32)));
}

/* 64 bytes a turn. */
static inline __attribute__((always_inline)) uint64_t part_sse2(int copy, unsigned char *dst, const unsigned char *src,
                                                                uint64_t bytes, uint64_t index)
{
	const __m128i step = _mm_set1_epi64x(KEY(8));
	struct sums128 a = begin_sse2(index), b = begin_sse2(index + 2), c = begin_sse2(index + 4),
	               d = begin_sse2(index + 6);
	uint64_t at = 0, out[2];

	for (; bytes - at >= 64; at += 64) {
		step_sse2(&a, step, copy, copy ? dst + at : NULL, src + at);
		step_sse2(&b, step, copy, copy ? dst + at + 16 : NULL, src + at + 16);
		step_sse2(&c, step, copy, copy ? dst + at + 32 : NULL, src + at + 32);
		step_sse2(&d, step, copy, copy ? dst + at + 48 : NULL, src + at + 48);
	}
	a.low = _mm_add_epi64(_mm_add_epi64(a.low, b.low), _mm_add_epi64(c.low, d.low));
	a.product = _mm_add_epi64(_mm_add_epi64(a.product, b.product), _mm_add_epi64(c.product, d.product));
	_mm_storeu_si128((__m128i *)(void *)out, _mm_add_epi64(a.low, a.product));
	return out[0] + out[1] + part_lanes(copy, copy ? dst + at : NULL, src + at, bytes - at, index + at / 8);
}

static uint64_t sum_sse2(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index)
{
	(void)dst;
	return part_sse2(SUM, NULL, src, bytes, index);
}

static uint64_t copy_sse2(unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index)
{
	return part_sse2(COPY, dst, src, bytes, index);
}

/*
 * From here on a copy writes past the caches: what it fills is engine memory or a buffer of the disk, both far larger
 * than a cache, and a store that does not first read the old line saves a third of the memory's bandwidth.
 */
#define STREAM_BYTES_MIN 32768u

#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2")))

struct sums256 {
	__m256i key, low, product;
};

AVX2_INLINE struct sums256 begin_avx2(uint64_t index)
{
	return (struct sums256){_mm256_set_epi64x(KEY(index + 4), KEY(index + 3), KEY(index + 2), KEY(index + 1)),
	                        _mm256_setzero_si256(), _mm256_setzero_si256()};
}

AVX2_INLINE void step_avx2(struct sums256 *s, __m256i key_step, int copy, unsigned char *dst, const unsigned char *src)
{
	__m256i x = _mm256_loadu_si256((const __m256i *)(const void *)src);

	if (copy == COPY)
		_mm256_storeu_si256((__m256i *)(void *)dst, x);
	if (copy == STREAM)
		_mm256_stream_si256((__m256i *)(void *)dst, x);
	x = _mm256_xor_si256(x, s->key);
	s->key = _mm256_add_epi64(s->key, key_step);
	s->low = _mm256_add_epi64(s->low, x);
	s->product = _mm256_add_epi64(s->product, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
}

/* 128 bytes a turn. */
AVX2_INLINE uint64_t part_avx2(int copy, unsigned char *dst, const unsigned char *src, uint64_t bytes, uint64_t index)
{
	const __m256i step = _mm256_set1_epi64x(KEY(16));
	struct sums256 a = begin_avx2(index), b = begin_avx2(index + 4), c = begin_avx2(index + 8),
	               d = begin_avx2(index + 12);
	uint64_t at = 0, out[4];

	for (; bytes - at >= 128; at += 128) {
		step_avx2(&a, step, copy, copy ? dst + at : NULL, src + at);
		step_avx2(&b, step, copy, copy ? dst + at + 32 : NULL, src + at + 32);
		step_avx2(&c, step, copy, copy ? dst + at + 64 : NULL, src + at + 64);
		step_avx2(&d, step, copy, copy ? dst + at + 96 : NULL, src + at + 96);
	}
	a.low = _mm256_add_epi64(_mm256_add_epi64(a.low, b.low), _mm256_add_epi64(c.low, d.low));
	a.product = _mm256_add_epi64(_mm256_add_epi64(a.product, b.product), _mm256_add_epi64(c.product, d.product));
	_mm256_storeu_si256((__m256i *)(void *)out, _mm256_add_epi64(a.low, a.product));
	return out[0] + out[1] + out[2] + out[3] +
	       part_lanes(copy, copy ? dst + at : NULL, src + at, bytes - at, index + at / 8);
}

static __attribute__((target("avx2"))) uint64_t sum_avx2(unsigned char *dst, const unsigned char *src, uint64_t bytes,
                                                         uint64_t index)
{
	(void)dst;
	return part_avx2(SUM, NULL, src, bytes, index);
}

static __attribute__((target("avx2"))) uint64_t copy_avx2(unsigned char *dst, const unsigned char *src, uint64_t bytes,
                                                          uint64_t index)
{
	uint64_t sum;

	if (bytes < STREAM_BYTES_MIN || (uintptr_t)dst % sizeof(__m256i))
		return part_avx2(COPY, dst, src, bytes, index);
	sum = part_avx2(STREAM, dst, src, bytes, index);
	_mm_sfence(); /* orders streamed stores before any release that announces the copy; plain stores need none */
	return sum;
}

static const part_fn parts[OBJSUM_ISAS][2] = {
    {sum_scalar, copy_scalar},
    {sum_sse2, copy_sse2},
    {sum_avx2, copy_avx2},
};

static enum objsum_isa detect(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2") ? OBJSUM_AVX2 : OBJSUM_SSE2;
}

#else

static const part_fn parts[OBJSUM_ISAS][2] = {{sum_scalar, copy_scalar}};

static enum objsum_isa detect(void) { return OBJSUM_SCALAR; }

#endif

/* Both racers of a first call find the same answer; relaxed, since the word stands for nothing but itself. */
static int best = -1;

enum objsum_isa objsum_isa_best(void)
{
	int isa = __atomic_load_n(&best, __ATOMIC_RELAXED);

	if (isa < 0) {
		isa = (int)detect();
		__atomic_store_n(&best, isa, __ATOMIC_RELAXED);
	}
	return (enum objsum_isa)isa;
}

const char *objsum_isa_name(enum objsum_isa isa)
{
	static const char *const names[OBJSUM_ISAS] = {"scalar", "sse2", "avx2"};

	return (unsigned)isa < OBJSUM_ISAS ? names[isa] : "?";
}

uint64_t objsum_isa_part(enum objsum_isa isa, void *dst, const void *src, uint64_t bytes, uint64_t offset_bytes)
{
	return parts[isa][dst != NULL](dst, src, bytes, offset_bytes / 8);
}

uint64_t objsum_part(const void *data, uint64_t bytes, uint64_t offset_bytes)
{
	return parts[objsum_isa_best()][0](NULL, data, bytes, offset_bytes / 8);
}

uint64_t objsum_copy_part(void *dst, const void *src, uint64_t bytes, uint64_t offset_bytes)
{
	return parts[objsum_isa_best()][1](dst, src, bytes, offset_bytes / 8);
}
