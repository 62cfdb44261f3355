/* note.c - see note.h. A file of six lines, put in place by rename. */
#include "core/note.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"

#define FOLDER "/run/tutti"
#define FIRST_LINE "tutti claim 1"

void (*core_before_step)(void);

static void path_of(const char *function, const char *tail, char *out, size_t bytes)
{
	snprintf(out, bytes, FOLDER "/claim-%.31s%s", function, tail);
}

int core_note_write(const struct tutti_nvme *n)
{
	char path[96], temporary[96], text[256];
	int fd, rc = 0;
	size_t length;

	path_of(n->function, "", path, sizeof(path));
	path_of(n->function, ".new", temporary, sizeof(temporary));
	snprintf(text, sizeof(text), FIRST_LINE "\n%s\n%s\n%s\n%u\n%llu\n", n->driver, n->model, n->serial,
	         n->namespaces, (unsigned long long)n->bytes);
	length = strlen(text);
	if (mkdir(FOLDER, 0755) && errno != EEXIST)
		return err_set(-errno, "cannot make %s: %s; this needs root", FOLDER, err_name(-errno));
	fd = fork_open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_set(-errno, "cannot write %s: %s; this needs root", temporary, err_name(-errno));
	if (write(fd, text, length) != (ssize_t)length)
		rc = errno ? -errno : -EIO;
	fork_close(fd);
	if (!rc && rename(temporary, path))
		rc = -errno;
	if (rc)
		unlink(temporary);
	return rc ? err_set(rc, "cannot write %s: %s", path, err_name(rc)) : 0;
}

static int line_of(FILE *f, char *out, size_t bytes)
{
	char line[128];

	if (!fgets(line, sizeof(line), f))
		return 0;
	line[strcspn(line, "\n")] = 0;
	snprintf(out, bytes, "%.*s", (int)bytes - 1, line);
	return 1;
}

int core_note_read(const char *function, struct tutti_nvme *n, char former[32])
{
	char path[96], first[32], count[32], bytes[32];
	FILE *f;
	int whole;

	path_of(function, "", path, sizeof(path));
	f = fopen(path, "re");
	if (!f)
		return -ENOENT;
	whole = line_of(f, first, sizeof(first)) && line_of(f, former, 32) && line_of(f, n->model, sizeof(n->model)) &&
	        line_of(f, n->serial, sizeof(n->serial)) && line_of(f, count, sizeof(count)) &&
	        line_of(f, bytes, sizeof(bytes));
	fclose(f);
	if (!whole || strcmp(first, FIRST_LINE)) {
		n->model[0] = n->serial[0] = former[0] = 0;
		return -ENOENT;
	}
	n->namespaces = (uint32_t)strtoul(count, NULL, 10);
	n->bytes = strtoull(bytes, NULL, 10);
	return 0;
}

void core_note_remove(const char *function)
{
	char path[96];

	path_of(function, "", path, sizeof(path));
	unlink(path);
}
