/*
 * out.c - what the user sees: errors with their remedy, JSON, progress; and files that must not stay behind.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

#define PROGRESS_AFTER_NS 2000000000ull
#define PROGRESS_EVERY_NS 200000000ull
#define REMOVE_MAX 16

/* NVMe statuses (SCT << 8 | SC) that say that space or permission lacks, not that something is broken. */
#define NVME_CAPACITY_EXCEEDED 0x081
#define NVME_READ_ONLY 0x182

/* ---- errors ---- */

enum cli_exit cli_exit_of(int result)
{
	if (result == NVME_CAPACITY_EXCEEDED || result == NVME_READ_ONLY)
		return CLI_RESOURCE;
	if (result > 0)
		return CLI_FINDING; /* the device failed */
	switch (-result) {
	case 0:
		return CLI_DONE;
	case EBADMSG:
	case EUCLEAN:
	case EIO:
		return CLI_FINDING;
	case EINVAL:
	case ERANGE:
	case EOVERFLOW:
	case EEXIST:
	case EISDIR:
	case ENOTBLK:
	case ETXTBSY:
	case ENAMETOOLONG:
		return CLI_USAGE;
	default: /* not there, no space, no permission, in use, of another version */
		return CLI_RESOURCE;
	}
}

static void print_error(const struct cli_call *call, enum cli_exit status, int result, const char *message)
{
	cli_progress_end();
	fprintf(stderr, "tutti%s%s: %s\n", call->verb ? " " : "", call->verb ? call->verb->name : "", message);
	if (call->json && result)
		cli_print_json(json_pack("{s:{s:s, s:i, s:s}, s:i}", "error", "message", message, "result", result,
		                         "name", tutti_strerror(result), "exit_status", (int)status));
	else if (call->json)
		cli_print_json(json_pack("{s:{s:s}, s:i}", "error", "message", message, "exit_status", (int)status));
}

int cli_fail_hint(const struct cli_call *call, int result, const char *doing, const char *hint)
{
	const char *message = tutti_error_message();
	char text[1200];

	if (!message || !*message)
		message = tutti_strerror(result);
	snprintf(text, sizeof(text), "%s: %s%s%s", doing, message, *hint ? "; " : "", hint);
	print_error(call, cli_exit_of(result), result, text);
	return (int)cli_exit_of(result);
}

int cli_fail(const struct cli_call *call, int result, const char *doing)
{
	return cli_fail_hint(call, result, doing, "");
}

int cli_complain(const struct cli_call *call, enum cli_exit status, const char *format, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	print_error(call, status, 0, text);
	return (int)status;
}

void cli_warn(const char *format, ...)
{
	va_list ap;

	cli_progress_end();
	fputs("tutti: ", stderr);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---- values ---- */

void cli_print_json(json_t *json)
{
	if (!json) {
		fprintf(stderr, "tutti: no memory for the JSON result\n");
		exit(CLI_RESOURCE);
	}
	json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	fputc('\n', stdout);
	json_decref(json);
}

json_t *cli_json_u64(uint64_t n) { return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n); }

const char *cli_size(uint64_t bytes)
{
	static char texts[8][24];
	static unsigned next;

	return tutti_format_bytes(bytes, texts[next++ % 8]);
}

const char *cli_hex(const uint8_t *bytes, size_t n)
{
	static char texts[4][65];
	static unsigned next;
	char *text = texts[next++ % 4];

	for (size_t i = 0; i < n && i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return text;
}

/* ---- progress ---- */

static uint64_t progress_start_ns, progress_last_ns;
static int progress_shown;

void cli_progress(void *arg, const char *what, uint64_t done, uint64_t total)
{
	uint64_t now = cli_now_ns();

	(void)arg;
	if (!progress_start_ns)
		progress_start_ns = now;
	if (now - progress_start_ns < PROGRESS_AFTER_NS || now - progress_last_ns < PROGRESS_EVERY_NS || !isatty(2))
		return;
	progress_last_ns = now;
	progress_shown = 1;
	fprintf(stderr, "\r\033[K%s: %llu of %llu (%u %%)", what, (unsigned long long)done, (unsigned long long)total,
	        total ? (unsigned)((double)done * 100 / (double)total) : 0u);
	fflush(stderr);
}

void cli_progress_end(void)
{
	if (progress_shown)
		fputs("\r\033[K", stderr);
	progress_shown = 0;
	progress_start_ns = 0;
}

/* ---- files that go with the program ---- */

static char remove_paths[REMOVE_MAX][4096];
static volatile sig_atomic_t remove_n;
static pid_t remove_pid;

void cli_remove_now(void)
{
	if (getpid() != remove_pid)
		return; /* a child's end removes nothing */
	while (remove_n > 0) {
		remove_n = remove_n - 1;
		if (unlink(remove_paths[remove_n]) && errno == EISDIR)
			rmdir(remove_paths[remove_n]);
	}
}

void cli_remove_never(void) { remove_n = 0; }

static void on_signal(int number)
{
	cli_remove_now();
	_exit(128 + number);
}

/* What ends a program by default; what was ignored when it began (nohup) stays so. */
static void catch_signals(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2};
	struct sigaction sa = {.sa_handler = on_signal}, old;

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
		if (!sigaction(ends[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(ends[i], &sa, NULL);
}

int cli_remove_at_exit(const char *path)
{
	if (remove_n >= REMOVE_MAX || strlen(path) >= sizeof(remove_paths[0]))
		return -ENAMETOOLONG;
	if (!remove_pid) {
		remove_pid = getpid();
		atexit(cli_remove_now);
		catch_signals();
	}
	memcpy(remove_paths[remove_n], path, strlen(path) + 1);
	remove_n = remove_n + 1;
	return 0;
}

/* ---- clocks ---- */

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t cli_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t cli_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
uint64_t cli_thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
