/*
 * cufile.c - NVIDIA's cuFile, where it is installed: found at run time, so that the benchmark builds without it. The
 * few declarations that are needed follow its documentation (cuFile API reference, version 1).
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "bench/gpu/gpu.h"

struct cufile_error {
	int op;
	CUresult cuda;
};

struct cufile_descriptor {
	int type; /* 1: a file descriptor */
	union {
		int fd;
		void *handle;
	} handle;
	const void *fs_ops;
};

static struct {
	void *so;
	struct cufile_error (*driver_open)(void), (*driver_close)(void);
	struct cufile_error (*handle_register)(void **handle, struct cufile_descriptor *d);
	void (*handle_deregister)(void *handle);
	struct cufile_error (*buffer_register)(const void *gpu, size_t bytes, int flags);
	struct cufile_error (*buffer_deregister)(const void *gpu);
	ssize_t (*read)(void *handle, void *gpu, size_t bytes, off_t at, off_t gpu_at);
	void *handle[4];
	uint32_t n;
	int fd[4];
	void *buffer;
} cufile;

static int find(char *why, size_t why_bytes)
{
	static const char *const names[] = {"libcufile.so.0", "libcufile.so",
	                                    "/usr/local/cuda/lib64/libcufile.so.0"};
	static const struct {
		const char *name;
		void **fn;
	} fns[] = {{"cuFileDriverOpen", (void **)&cufile.driver_open},
	           {"cuFileDriverClose", (void **)&cufile.driver_close},
	           {"cuFileHandleRegister", (void **)&cufile.handle_register},
	           {"cuFileHandleDeregister", (void **)&cufile.handle_deregister},
	           {"cuFileBufRegister", (void **)&cufile.buffer_register},
	           {"cuFileBufDeregister", (void **)&cufile.buffer_deregister},
	           {"cuFileRead", (void **)&cufile.read}};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !cufile.so; i++)
		cufile.so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!cufile.so) {
		snprintf(why, why_bytes, "no libcufile: %s", dlerror());
		return -ENOENT;
	}
	for (size_t i = 0; i < sizeof(fns) / sizeof(*fns); i++) {
		*fns[i].fn = dlsym(cufile.so, fns[i].name);
		if (!*fns[i].fn) {
			snprintf(why, why_bytes, "libcufile has no %s", fns[i].name);
			return -ENOENT;
		}
	}
	return 0;
}

int cufile_open(const struct lab *b, char *why, size_t why_bytes)
{
	struct cufile_error e;
	int rc = find(why, why_bytes);

	if (rc)
		return rc;
	e = cufile.driver_open();
	if (e.op) {
		snprintf(why, why_bytes, "cuFileDriverOpen: error %d", e.op);
		return -EIO;
	}
	for (cufile.n = 0; cufile.n < b->r.shape.devices; cufile.n++) {
		uint32_t i = cufile.n;
		struct cufile_descriptor d = {.type = 1};

		cufile.fd[i] = open(b->r.paths[i], O_RDONLY | O_CLOEXEC | O_DIRECT);
		if (cufile.fd[i] < 0)
			cufile.fd[i] = open(b->r.paths[i], O_RDONLY | O_CLOEXEC);
		d.handle.fd = cufile.fd[i];
		e = cufile.handle_register(&cufile.handle[i], &d);
		if (e.op) {
			snprintf(why, why_bytes,
			         "cuFileHandleRegister: error %d (no nvidia-fs, no compatibility mode here)", e.op);
			close(cufile.fd[i]);
			cufile_close();
			return -EIO;
		}
	}
	/* Reads work without it, through buffers of the library's own. */
	cufile.buffer = b->r.accel[0];
	if (cufile.buffer_register(cufile.buffer, b->r.memory_bytes, 0).op)
		cufile.buffer = NULL;
	return 0;
}

void cufile_close(void)
{
	if (cufile.buffer)
		cufile.buffer_deregister(cufile.buffer);
	cufile.buffer = NULL;
	for (; cufile.n; cufile.n--) {
		cufile.handle_deregister(cufile.handle[cufile.n - 1]);
		close(cufile.fd[cufile.n - 1]);
	}
	cufile.driver_close();
}

int64_t cufile_read(uint32_t file, void *gpu, uint64_t bytes, uint64_t at)
{
	void *base = cufile.buffer ? cufile.buffer : gpu;

	return cufile.read(cufile.handle[file], base, bytes, (off_t)at, (off_t)((uint8_t *)gpu - (uint8_t *)base));
}
