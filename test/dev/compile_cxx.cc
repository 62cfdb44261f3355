/*
 * compile_cxx.cc - the headers of port, wire, geom and dev are C++ too: every inline function is used once here.
 * Compiled only (g++ -std=c++17 -Wall -Wextra -c).
 */
#include "test/dev/use_all.h"

extern "C" uint64_t compile_cxx_use(struct use_all *u) { return use_all(u) + use_all_host(u); }
