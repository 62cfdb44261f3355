/*
 * check.h - what a test program needs: CHECK, named cases, a closing count. A test is a program.
 *
 *     int main(void) { CHECK_RUN(a_case); CHECK_RUN(another); return check_end(); }
 *
 * A main that sets check_only runs one case by its name.
 *
 * Prints "ok NAME" or "not ok NAME" per case, then "N passed, N failed, N skipped"; exits 1 if one failed.
 */
#ifndef TUTTI_TEST_CHECK_H
#define TUTTI_TEST_CHECK_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	unsigned passed, failed, skipped, checks;
	jmp_buf leave;
	const char *skip_reason;
} check_state;

static const char *check_only;

/* Ends the case when the condition does not hold. Only in the thread that runs the case. */
#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		check_state.checks++;                                                                                  \
		if (!(cond)) {                                                                                         \
			printf("# %s:%d: CHECK(%s)\n", __FILE__, __LINE__, #cond);                                     \
			longjmp(check_state.leave, 1);                                                                 \
		}                                                                                                      \
	} while (0)

/* Two integers are equal; prints both when they are not. */
#define CHECK_EQ(a, b)                                                                                                 \
	do {                                                                                                           \
		long long check_a = (long long)(a), check_b = (long long)(b);                                          \
		check_state.checks++;                                                                                  \
		if (check_a != check_b) {                                                                              \
			printf("# %s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, check_a, #b, check_b);      \
			longjmp(check_state.leave, 1);                                                                 \
		}                                                                                                      \
	} while (0)

/* Ends the case as skipped; the reason is printed. */
#define CHECK_SKIP(reason)                                                                                             \
	do {                                                                                                           \
		check_state.skip_reason = (reason);                                                                    \
		longjmp(check_state.leave, 2);                                                                         \
	} while (0)

static inline void check_run(const char *name, void (*fn)(void))
{
	unsigned before = check_state.checks;
	int left;

	if (check_only && strcmp(check_only, name))
		return;
	left = setjmp(check_state.leave);

	if (left == 0)
		fn();
	if (left == 2) {
		printf("skip %s # %s\n", name, check_state.skip_reason);
		check_state.skipped++;
	} else if (left == 1 || check_state.checks == before) {
		printf("not ok %s%s\n", name, left ? "" : " # it checked nothing");
		check_state.failed++;
	} else {
		printf("ok %s\n", name);
		check_state.passed++;
	}
	fflush(stdout);
}
#define CHECK_RUN(fn) check_run(#fn, fn)

static inline int check_end(void)
{
	printf("%u passed, %u failed, %u skipped\n", check_state.passed, check_state.failed, check_state.skipped);
	return check_state.failed != 0;
}

/* A small fixed random generator (splitmix64), so that a failing run can be repeated from its seed. */
static inline uint64_t check_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15ull);

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

#endif
