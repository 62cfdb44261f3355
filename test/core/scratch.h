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

static inline const char *scratch_begin(void)
{
	const char *base = getenv("TUTTI_TEST_DIR");

	if (!base)
		base = getenv("TMPDIR");
	snprintf(scratch_dir, sizeof(scratch_dir), "%s/tutti-test-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(scratch_dir)) {
		perror(scratch_dir);
		exit(1);
	}
	return scratch_dir;
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
