/* scratch.h - a directory of this test's own, on a real disk if TUTTI_TEST_DIR names one; removed by scratch_end. */
#ifndef TUTTI_TEST_CORE_SCRATCH_H
#define TUTTI_TEST_CORE_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_PATHS 256

static char scratch_dir[256];
static char scratch_paths[SCRATCH_PATHS][320];
static unsigned scratch_n;

static inline const char *scratch_make(const char *base)
{
	if (!base)
		base = getenv("TMPDIR");
	snprintf(scratch_dir, sizeof(scratch_dir), "%s/tutti-test-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(scratch_dir)) {
		perror(scratch_dir);
		exit(1);
	}
	return scratch_dir;
}

/* On the disk that tests are meant for. */
static inline const char *scratch_begin(void) { return scratch_make(getenv("TUTTI_TEST_DIR")); }

/* In memory, where there is such a place: for tests of what happens, not of the disk. */
static inline const char *scratch_begin_in_memory(void)
{
	const char *dir = getenv("TUTTI_TEST_DIR");

	return scratch_make(dir ? dir : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL);
}

/* "DIR/name"; valid for the next SCRATCH_PATHS calls. */
static inline const char *scratch_path(const char *name)
{
	char *p = scratch_paths[scratch_n++ % SCRATCH_PATHS];

	snprintf(p, sizeof(scratch_paths[0]), "%s/%s", scratch_dir, name);
	return p;
}

static inline void scratch_end(void)
{
	char cmd[300];

	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", scratch_dir);
	if (system(cmd))
		perror(cmd);
}

#endif
