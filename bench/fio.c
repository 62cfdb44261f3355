/* fio.c - the comparison: fio's own io_uring engine, one job, as deep as a lane is by default. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

#define DEPTH 64 /* the lane's default */

int bench_fio(struct bench_fio *f)
{
	char command[1024];
	json_t *root, *job, *dir;
	double seconds, bytes, share, cpu_s;
	FILE *out;

	snprintf(command, sizeof(command),
	         "exec fio --name=bench --filename='%s' --allow_file_create=0 --ioengine=io_uring --direct=1 --rw=%s "
	         "--bs=%llu "
	         "--iodepth=%d --offset=%llu --size=%llu --io_size=%llu --randrepeat=0 --norandommap --thread "
	         "--output-format=json %s",
	         f->file, f->rw, (unsigned long long)f->block_bytes, DEPTH, (unsigned long long)f->offset,
	         (unsigned long long)f->span_bytes, (unsigned long long)f->io_bytes,
	         strstr(f->rw, "read") ? "--readonly" : "");
	out = popen(command, "r");
	if (!out)
		return -errno;
	root = json_loadf(out, 0, NULL);
	if (pclose(out) || !root)
		return -EIO;
	job = json_array_get(json_object_get(root, "jobs"), 0);
	dir = json_object_get(job, strstr(f->rw, "read") ? "read" : "write");
	seconds = json_number_value(json_object_get(dir, "runtime")) / 1e3;
	bytes = json_number_value(json_object_get(dir, "io_bytes"));
	f->gbps = seconds > 0 ? bytes / seconds / 1e9 : 0;
	share = json_number_value(json_object_get(job, "usr_cpu")) + json_number_value(json_object_get(job, "sys_cpu"));
	cpu_s = share / 100 * json_number_value(json_object_get(job, "job_runtime")) / 1e3; /* not of kernel workers */
	f->cpu_per_gb = bytes > 0 ? cpu_s / (bytes / 1e9) : 0;
	json_decref(root);
	return f->gbps > 0 ? 0 : -EIO;
}

int bench_fio_file(const char *path, uint64_t bytes)
{
	struct bench_fio f = {
	    .file = path, .rw = "write", .block_bytes = 1 << 20, .span_bytes = bytes, .io_bytes = bytes};
	struct stat st;
	int fd, rc;

	if (!stat(path, &st) && S_ISBLK(st.st_mode))
		return bench_fio(&f);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = posix_fallocate(fd, 0, (off_t)bytes);
	close(fd);
	return rc ? -rc : bench_fio(&f);
}
