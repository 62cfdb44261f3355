#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/pool.h"

/* Not a program that runs, for one: access() does not tell. */
static int writable(const char *path)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

const char *cli_pool_hint(const char *path, int result)
{
	struct stat st;

	if (result == -ENOMEDIUM && !stat(path, &st) && S_ISREG(st.st_mode) && writable(path))
		return "'tutti format --overwrite' makes one of it (also of one whose format was cut short); what it "
		       "holds is lost then";
	if (result == -EBUSY)
		return "'tutti info' looks at it all the same";
	return "";
}

int cli_pool_refused(const struct cli_call *call, const char *const *paths, int result)
{
	char doing[300];

	snprintf(doing, sizeof(doing), "opening %s", paths[0]);
	return cli_fail_hint(call, result, doing, cli_pool_hint(paths[0], result));
}

struct tutti_store *cli_pool_open(const struct cli_call *call, const char *const *paths, unsigned n, int *status)
{
	struct tutti_store_opts o = TUTTI_STORE_OPTS_INIT;
	struct tutti_store *s = NULL;
	int result;

	o.paths = paths;
	o.n_paths = n;
	o.progress = cli_progress;
	result = tutti_store_open(&o, &s);
	cli_progress_end();
	if (!result)
		return s;
	*status = cli_pool_refused(call, paths, result);
	return NULL;
}

int cli_pool_damage(const struct tutti_pool_info *info)
{
	return info->damaged_records || info->recovered_bad || info->healed_copies;
}

int cli_pool_close(const struct cli_call *call, struct tutti_store *s, int status)
{
	int result = tutti_store_close(s);

	if (!result)
		return status;
	result = cli_fail(call, result, "closing the pool");
	return status ? status : result;
}

struct tutti_ns *cli_pool_ns(const struct cli_call *call, struct tutti_store *s, uint64_t number, int *status)
{
	uint64_t wanted = number == CLI_NS_DEFAULT ? 0 : number;
	struct tutti_pool_info info;
	struct tutti_ns *ns = NULL;

	if (wanted <= UINT32_MAX && tutti_ns_at(s, (uint32_t)wanted, &ns) == 0)
		return ns;
	if (tutti_store_info(s, &info))
		info.n_namespaces = 0;
	if (number == CLI_NS_DEFAULT && !info.n_namespaces)
		return NULL;
	if (info.n_namespaces)
		*status = cli_complain(call, CLI_USAGE,
		                       "there is no namespace %llu; the pool has 0 to %u ('tutti info' lists them)",
		                       (unsigned long long)wanted, info.n_namespaces - 1);
	else
		*status = cli_complain(call, CLI_USAGE,
		                       "there is no namespace %llu; the pool has none yet, the first store makes one",
		                       (unsigned long long)wanted);
	return NULL;
}

int cli_pool_one_rank(struct tutti_store *s, char *why, size_t why_bytes)
{
	struct tutti_pool_info info;
	int result = tutti_store_info(s, &info);

	if (result || info.ranks == 1)
		return result;
	snprintf(
	    why, why_bytes,
	         "the pool was formatted for %u ranks; this verb stands in for an engine of one rank. Use another pool, or "
	         "none: a temporary one is made then. (info, ls, lookup, verify and clear work on any pool.)",
	    info.ranks);
	return -EINVAL;
}

/* ---- temporary pools ---- */

const char *cli_pool_folder(void)
{
	const char *folder = getenv("TMPDIR");

	return folder && *folder ? folder : "/tmp";
}

int cli_pool_folder_check(const struct cli_call *call, const char *folder)
{
	struct stat st;
	int error = stat(folder, &st)                      ? errno
	            : !S_ISDIR(st.st_mode)                 ? ENOTDIR
	            : access(folder, W_OK | X_OK) ? errno
	                                          : 0;

	return error ? cli_complain(call, cli_exit_of(-error), "%s: %s; name a folder to write in with --dir or TMPDIR",
	                            folder, strerror(error))
	             : CLI_DONE;
}

uint64_t cli_pool_room(const char *folder)
{
	struct statvfs v;

	return statvfs(folder, &v) ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}

int cli_pool_make(const struct cli_call *call, const char *folder, uint64_t bytes, enum tutti_prewrite prewrite,
                  int keep, char *path, size_t path_bytes)
{
	struct tutti_format_opts o = TUTTI_FORMAT_OPTS_INIT;
	const char *paths[1] = {path};
	char doing[300];
	int result;

	if (!folder)
		folder = cli_pool_folder();
	result = cli_pool_folder_check(call, folder);
	if (result)
		return result;
	if ((size_t)snprintf(path, path_bytes, "%s/tutti-%d.pool", folder, (int)getpid()) >= path_bytes)
		return cli_complain(call, CLI_USAGE, "%s: the name is too long", folder);
	if (!keep && cli_remove_at_exit(path))
		return cli_complain(call, CLI_USAGE, "%s: the name is too long", folder);
	o.paths = paths;
	o.n_paths = 1;
	o.bytes = bytes;
	o.prewrite = prewrite;
	o.progress = cli_progress;
	result = tutti_format(&o);
	cli_progress_end();
	if (!result)
		return CLI_DONE;
	snprintf(doing, sizeof(doing), "making a pool of %s in %s", cli_size(bytes), folder);
	return cli_fail(call, result, doing);
}

/* ---- traces ---- */

static const struct {
	const char *name, *file, *set;
} traces[] = {
    {"leval", "longdocs.jsonl", "leval"},
    {"loogle", "longdocs.jsonl", "loogle"},
    {"longdocs", "longdocs.jsonl", NULL},
    {"mooncake", "mooncake_conversation.jsonl.xz", NULL},
};

const char *cli_pool_trace_name_at(size_t i)
{
	return i < sizeof(traces) / sizeof(traces[0]) ? traces[i].name : NULL;
}

/* Beside the program: of a build folder, of an installation. */
static int find_beside(const char *file, char *path, size_t path_bytes)
{
	static const char *const places[] = {"../traces", "../../traces", "../share/tutti/traces"};
	const char *given = getenv("TUTTI_TRACES");
	char self[3000];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (given && *given) {
		snprintf(path, path_bytes, "%s/%s", given, file);
		return access(path, R_OK) ? -ENOENT : 0;
	}
	if (n <= 0)
		return -ENOENT;
	self[n] = 0;
	dirname(self);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, path_bytes, "%s/%s/%s", self, places[i], file);
		if (access(path, R_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

int cli_pool_trace_path(const char *name, char *path, size_t path_bytes, const char **set)
{
	*set = NULL;
	for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++)
		if (strcmp(traces[i].name, name) == 0) {
			*set = traces[i].set;
			return find_beside(traces[i].file, path, path_bytes);
		}
	snprintf(path, path_bytes, "%s", name);
	return access(path, F_OK) ? -ENOENT : 0;
}
