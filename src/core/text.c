/* text.c - version, names of results, sizes in words. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tutti/tutti.h"

#define STR(x) #x
#define XSTR(x) STR(x)

const char *tutti_version(void)
{
	return XSTR(TUTTI_VERSION_MAJOR) "." XSTR(TUTTI_VERSION_MINOR) "." XSTR(TUTTI_VERSION_PATCH);
}

const char *tutti_strerror(int result) { return err_name(result); }

const char *tutti_error_message(void) { return err_text(); }

void tutti_set_log(void (*fn)(void *arg, int level, const char *message), void *arg) { log_set(fn, arg); }

/* ".5" -> 500; *at goes behind it. */
static int parse_thousandths(char **at, unsigned *out)
{
	unsigned digits = 0;

	for (++*at, *out = 0; **at >= '0' && **at <= '9'; ++*at, digits++)
		*out = *out * 10 + (unsigned)(**at - '0');
	if (!digits || digits > 3)
		return -EINVAL;
	for (; digits < 3; digits++)
		*out *= 10;
	return 0;
}

int tutti_parse_bytes(const char *text, uint64_t *bytes)
{
	static const char units[] = "kMGTPE";
	unsigned long long n, one;
	unsigned shift = 0, thousandths = 0;
	const char *unit;
	char *end;

	if (!bytes)
		return err_set(-EINVAL, "tutti_parse_bytes: NULL");
	if (!text || *text < '0' || *text > '9') /* strtoull would take a sign and blanks */
		return err_set(-EINVAL, "'%s' is not a size; write 4G, 512MiB, 65536", text ? text : "");
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno)
		return err_set(-ERANGE, "'%s' is too large a size", text);
	if (*end == '.' && parse_thousandths(&end, &thousandths))
		return err_set(-EINVAL, "'%s': write one to three digits behind the point of a size", text);
	if (*end && *end != 'B') {
		unit = strchr(units, *end == 'K'   ? 'k'
		                     : *end == 'm' ? 'M'
		                     : *end == 'g' ? 'G'
		                     : *end == 't' ? 'T'
		                                   : *end);
		if (!unit || !*unit)
			return err_set(-EINVAL, "'%s': unknown unit '%s'; units are k, M, G, T (powers of 1024)", text,
			               end);
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
		if (end[0] == 'i' && end[1] == 'B')
			end += 2;
		else if (*end == 'B')
			end++;
	} else if (*end == 'B') {
		end++;
	}
	if (*end)
		return err_set(-EINVAL, "'%s': '%s' is left over behind the size", text, end);
	if (thousandths && !shift)
		return err_set(-EINVAL, "'%s': there is no part of a byte", text);
	if (n > UINT64_MAX >> shift)
		return err_set(-ERANGE, "'%s' is too large a size", text);
	one = 1ull << shift;
	*bytes = n * one + one / 1000 * thousandths + one % 1000 * thousandths / 1000;
	return 0;
}

char *tutti_format_bytes(uint64_t bytes, char *buf)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	uint64_t unit = 1;
	int i = 0;

	while (i < 6 && bytes / unit >= 1024) {
		unit *= 1024;
		i++;
	}
	if (bytes % unit == 0)
		snprintf(buf, 16, "%u%s", (unsigned)(bytes / unit), units[i]); /* below 1024 */
	else
		snprintf(buf, 16, "%.2f%s", (double)bytes / (double)unit, units[i]);
	return buf;
}
