/* no_cuda.c - what a build without CUDA says. `make cuda` builds map/export.c in its place. */
#include "map/map.h"

#include <errno.h>
#include <stdio.h>

#if !defined(TUTTI_CUDA)

int map_export(void *va, uint64_t bytes, int *fd)
{
	(void)va;
	(void)bytes;
	(void)fd;
	return -ENOSYS;
}

int map_export_probe(char *text, uint32_t text_bytes)
{
	snprintf(text, text_bytes, "this build has no CUDA (make cuda builds one)");
	return -ENOSYS;
}

int map_window_probe(char *text, uint32_t text_bytes) { return map_export_probe(text, text_bytes); }

#endif
