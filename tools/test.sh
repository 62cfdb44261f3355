#!/bin/bash
# From a bare machine to all tests: installs what they need, builds (plain, ASan and UBSan, TSan, fuzzers), runs them
# all, then QEMU's NVMe drives in a guest, then the connector in a real vLLM (installed in a folder of its own). The
# last line is the sum: N passed, N failed, N skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
tools/deps-install test || exit
mkdir -p build
make -j"$(nproc)" --no-print-directory check FUZZ_SECONDS="${FUZZ_SECONDS:-5}" 2>&1 | tee build/test.log
status=${PIPESTATUS[0]}
if why=$(tools/deps-install nvme 2>&1); then
	make -j"$(nproc)" --no-print-directory test-nvme 2>&1 | tee build/test-nvme.log
	[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
else
	printf 'skip nvme-guest # QEMU can'"'"'t be installed: %s\n0 passed, 0 failed, 1 skipped\n' "${why##*$'\n'}" |
		tee build/test-nvme.log
fi
make --no-print-directory test-vllm 2>&1 | tee build/test-vllm.log
[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
logs=(build/test.log build/test-nvme.log build/test-vllm.log)
if [ "$status" -ne 0 ]; then
	echo "What failed, once more:"
	grep -E -B8 '(^|\| )not ok |^FAILED ' "${logs[@]}"
fi
sum='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'
for log in "${logs[@]}"; do
	grep -E "$sum" "$log" | tail -1 | grep . || echo "0 passed, 1 failed, 0 skipped"
done | awk '{ p += $1; f += $3; s += $5 } END { print p " passed, " f " failed, " s " skipped" }'
exit "$status"
