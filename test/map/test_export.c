/* test_export.c - a range of GPU memory as a dma-buf, where there is a GPU and a build with CUDA. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "map/map.h"

#if defined(TUTTI_CUDA)
#include <cuda_runtime_api.h>
#endif

#define BYTES (4ull << 20)

static void host_memory(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = -1;

	CHECK(p != MAP_FAILED);
#if defined(TUTTI_CUDA)
	CHECK_EQ(map_export(p, 4096, &fd), -EFAULT);
#else
	CHECK_EQ(map_export(p, 4096, &fd), -ENOSYS);
#endif
	CHECK_EQ(fd, -1);
	munmap(p, 4096);
}

static void gpu_memory(void)
{
	static char text[160];
	int fd = -1, rc = map_export_probe(text, sizeof(text));

	CHECK(text[0]);
	if (rc)
		CHECK_SKIP(text);
#if defined(TUTTI_CUDA)
	void *p;

	CHECK_EQ(cudaMalloc(&p, BYTES), cudaSuccess);
	CHECK_EQ(map_export(p, BYTES, &fd), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_END), BYTES); /* a dma-buf tells its size so */
	CHECK_EQ(close(fd), 0);
	CHECK_EQ(map_export((uint8_t *)p + 65536, 65536, &fd), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 65536);
	CHECK_EQ(close(fd), 0);
	CHECK_EQ(map_export((uint8_t *)p + 1, 4096, &fd), -EOPNOTSUPP);
	CHECK_EQ(cudaFree(p), cudaSuccess);
#endif
	CHECK_EQ(fd < 0, rc != 0);
}

int main(void)
{
	CHECK_RUN(host_memory);
	CHECK_RUN(gpu_memory);
	return check_end();
}
