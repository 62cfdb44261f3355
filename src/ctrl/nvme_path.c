/* nvme_path.c - reads the name of a namespace of a drive. */
#include "ctrl/nvme_ctrl.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define SCHEME "nvme:"

/* "0000:01:00.0": hexadecimal digits where the pattern has an x, else what it has. */
static int is_function(const char *s, size_t n)
{
	static const char pattern[] = "xxxx:xx:xx.x";

	if (n != sizeof(pattern) - 1)
		return 0;
	for (size_t i = 0; i < n; i++)
		if (pattern[i] == 'x' ? !isxdigit((unsigned char)s[i]) : s[i] != pattern[i])
			return 0;
	return 1;
}

int nvme_path(const char *path, char function[NVME_NAME_BYTES], uint32_t *nsid)
{
	const char *name, *slash;
	unsigned long n;
	char *end;

	if (!path || strncmp(path, SCHEME, sizeof(SCHEME) - 1) != 0)
		return -ENOENT;
	name = path + sizeof(SCHEME) - 1;
	slash = strrchr(name, '/');
	if (!slash || !is_function(name, (size_t)(slash - name)) || slash[1] < '1' || slash[1] > '9')
		return err_set(-EINVAL,
		               "%s: a namespace of a drive is written nvme:DDDD:BB:DD.F/NSID, as in "
		               "nvme:0000:01:00.0/1 ('tutti nvme list' shows them)",
		               path);
	n = strtoul(slash + 1, &end, 10);
	if (*end || n > 0xfffffffeul)
		return err_set(-EINVAL, "%s: '%s' is not a namespace number", path, slash + 1);
	memcpy(function, name, (size_t)(slash - name));
	function[slash - name] = 0;
	*nsid = (uint32_t)n;
	return 0;
}
