/*
 * pool.h - what several verbs do with pools: opening one named by the user, making a temporary one, finding a namespace
 * and a trace.
 */
#ifndef TUTTI_CLI_POOL_H
#define TUTTI_CLI_POOL_H

#include "cli/cli.h"

/* Opens the pool of the operands. On failure says so; *status is then the exit status. */
struct tutti_store *cli_pool_open(const struct cli_call *call, const char *const *paths, unsigned n, int *status);
/* Says why a pool could not be opened; the exit status. */
int cli_pool_refused(const struct cli_call *call, const char *const *paths, int result);
/* 1: its open found something of the pool's own damaged, mended or not. */
int cli_pool_damage(const struct tutti_pool_info *info);
/* Closes it; a failure is said, and makes the status worse. */
int cli_pool_close(const struct cli_call *call, struct tutti_store *s, int status);
/* Why a pool can't be opened, in terms of this command; "": nothing to add. */
const char *cli_pool_hint(const char *path, int result);
/*
 * Namespace number `number`. Says so when there is none. CLI_NS_DEFAULT is the first one, and NULL with *status left
 * alone in a pool that has none yet: an empty answer, not a fault.
 */
#define CLI_NS_DEFAULT UINT64_MAX
struct tutti_ns *cli_pool_ns(const struct cli_call *call, struct tutti_store *s, uint64_t number, int *status);

/* 0, or -EINVAL and why: the stand-ins for an engine are one rank, and can't fill the shares of others. */
int cli_pool_one_rank(struct tutti_store *s, char *why, size_t why_bytes);

/* A pool in a new file in folder (NULL: $TMPDIR or /tmp), removed at exit unless keep. path receives its name. */
int cli_pool_make(const struct cli_call *call, const char *folder, uint64_t bytes, enum tutti_prewrite prewrite,
                  int keep, char *path, size_t path_bytes);
/* Bytes that a new file may take in a folder; 0 and errno if it is none. */
uint64_t cli_pool_room(const char *folder);
/* Complains, and gives the exit status, unless it is a folder that can be written in. */
int cli_pool_folder_check(const struct cli_call *call, const char *folder);
/* $TMPDIR, /tmp. */
const char *cli_pool_folder(void);

/* The i-th name of a trace that comes with the program; NULL behind the last. */
const char *cli_pool_trace_name_at(size_t i);
/* leval, loogle, mooncake or a file's own name: where it is, and the set to take of it (NULL: all). 0 or -ENOENT. */
int cli_pool_trace_path(const char *name, char *path, size_t path_bytes, const char **set);

#endif
