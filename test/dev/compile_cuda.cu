/*
 * compile_cuda.cu - the headers of port, wire, geom and dev are CUDA too: every inline function is used once in a
 * kernel and once in host code. Compiled only (nvcc -arch=sm_90 -c), where nvcc is.
 */
#include "test/dev/use_all.h"

__global__ void compile_cuda_kernel(struct use_all *u, uint64_t *out) { *out = use_all(u); }

uint64_t compile_cuda_host(struct use_all *u)
{
	compile_cuda_kernel<<<1, 1>>>(u, nullptr);
	return use_all(u) + use_all_host(u);
}
