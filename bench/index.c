#include "bench.h"
void bench_index(void) {}
