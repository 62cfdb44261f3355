/* opts.c - copies between this library's structs and those of another version; see opts.h. */
#include "core/opts.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"

/* No struct of ours comes near: a larger size is not one. */
#define BYTES_MAX 4096u

int opts_take(void *known, uint32_t known_bytes, const void *given, const char *call, const char *init)
{
	const uint8_t *bytes = given;
	uint32_t size = 0;

	if (given)
		memcpy(&size, given, sizeof(size));
	/* All of our structs are aligned to 8 bytes, and so are their sizes in any version. */
	if (size <= sizeof(size) || size > BYTES_MAX || size % 8)
		return err_set(-EINVAL, "%s: NULL, or not initialised with %s", call, init);
	for (uint32_t i = known_bytes; i < size; i++)
		if (bytes[i])
			return err_set(
			    -E2BIG,
			               "%s: the program was compiled with a newer header and sets what this library does "
			               "not know (at byte %u of %u); install the libtutti of that header",
			    call, i, known_bytes);
	memset(known, 0, known_bytes);
	memcpy(known, given, size < known_bytes ? size : known_bytes);
	memcpy(known, &known_bytes, sizeof(known_bytes));
	return 0;
}

void opts_give(const void *known, size_t known_bytes, void *out, size_t bytes)
{
	size_t both = bytes < known_bytes ? bytes : known_bytes;

	memcpy(out, known, both);
	memset((uint8_t *)out + both, 0, bytes - both);
}
