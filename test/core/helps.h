/* helps.h - an error is the one that is meant, and its message says so in words. */
#ifndef TUTTI_TEST_CORE_HELPS_H
#define TUTTI_TEST_CORE_HELPS_H

#include <stdio.h>
#include <string.h>
#include <tutti/tutti.h>

#include "check.h"

static inline void helps(int rc, int want, const char *word)
{
	CHECK_EQ(rc, want);
	if (!strstr(tutti_error_message(), word))
		printf("# message: %s\n", tutti_error_message());
	CHECK(strstr(tutti_error_message(), word));
}

static inline int format_at(const char *path, uint64_t bytes, int overwrite)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;

	o.paths = &path;
	o.n_paths = 1;
	o.bytes = bytes;
	o.overwrite = overwrite;
	return tutti_format(&o);
}

#endif
