#include "bench.h"
void bench_caller(void) {}
