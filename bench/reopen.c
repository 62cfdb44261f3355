#include "bench.h"
void bench_reopen(void) {}
