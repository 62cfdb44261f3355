#!/bin/bash
# From a bare machine to all tests: installs what they need, builds (plain, ASan and UBSan, TSan, fuzzers), runs them
# all. The last line is the sum: N passed, N failed, N skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
tools/deps-install test || exit
mkdir -p build
make -j"$(nproc)" --no-print-directory check FUZZ_SECONDS="${FUZZ_SECONDS:-5}" 2>&1 | tee build/test.log
status=${PIPESTATUS[0]}
# make has its own last word when something failed; the sum comes after it.
[ "$status" -eq 0 ] || grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' build/test.log | tail -1
exit "$status"
