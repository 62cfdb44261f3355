/* err.c - the calling thread's message, names of results, the log callback. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char text[ERR_TEXT_BYTES];

int err_set(int result, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	return result;
}

int err_prefix(int result, const char *format, ...)
{
	char old[ERR_TEXT_BYTES];
	va_list ap;
	int n;

	memcpy(old, text, sizeof(old));
	va_start(ap, format);
	n = vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (n >= 0 && old[0]) { /* both together may not fit: the end of the old text goes */
		strncat(text, ": ", sizeof(text) - 1 - strlen(text));
		strncat(text, old, sizeof(text) - 1 - strlen(text));
	}
	return result;
}

const char *err_text(void) { return text; }

void err_clear(void) { text[0] = 0; }

/* NVMe statuses that the project's controllers give (base 2.0, figures 96 to 104). */
static const struct {
	int status;
	const char *name;
} nvme_names[] = {
    {0x001, "NVMe: invalid command opcode"},
    {0x002, "NVMe: invalid field in command"},
    {0x004, "NVMe: data transfer error"},
    {0x006, "NVMe: internal error"},
    {0x008, "NVMe: command aborted, submission queue deleted"},
    {0x00b, "NVMe: invalid namespace or format"},
    {0x00d, "NVMe: invalid SGL segment descriptor"},
    {0x00e, "NVMe: invalid number of SGL descriptors"},
    {0x00f, "NVMe: data SGL length invalid"},
    {0x011, "NVMe: SGL descriptor type invalid"},
    {0x013, "NVMe: PRP offset invalid"},
    {0x080, "NVMe: LBA out of range"},
    {0x081, "no space left below it (NVMe: capacity exceeded)"}, /* what the virtual controller says of ENOSPC */
    {0x182, "not writable (NVMe: attempted write to read-only range)"},
    {0x280, "NVMe: write fault"},
    {0x281, "NVMe: unrecovered read error"},
};

const char *err_name(int result)
{
	static _Thread_local char unknown[40];
	const char *name;

	if (result == 0)
		return "success";
	if (result < 0) {
		name = result > -4096 ? strerrordesc_np(-result) : NULL; /* errno is small; INT_MIN has no negative */
		if (name)
			return name;
		snprintf(unknown, sizeof(unknown), "error %d", result);
		return unknown;
	}
	for (size_t i = 0; i < sizeof(nvme_names) / sizeof(nvme_names[0]); i++)
		if (nvme_names[i].status == result)
			return nvme_names[i].name;
	snprintf(unknown, sizeof(unknown), "NVMe: status type %d code 0x%02x", result >> 8 & 7, result & 0xff);
	return unknown;
}

static log_fn log_callback;
static void *log_arg;

void log_set(log_fn fn, void *arg)
{
	log_arg = arg;
	log_callback = fn;
}

static void log_send(int level, const char *format, va_list ap)
{
	char line[ERR_TEXT_BYTES];

	if (!log_callback)
		return;
	vsnprintf(line, sizeof(line), format, ap);
	log_callback(log_arg, level, line);
}

void log_warn(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	log_send(LOG_WARN, format, ap);
	va_end(ap);
}

void log_note(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	log_send(LOG_NOTE, format, ap);
	va_end(ap);
}
