#!/bin/bash
# The tree itself keeps the house rules.
cd "$(dirname "$0")/../.." || exit
if tools/tidy; then
	echo "ok tidy"
	echo "1 passed, 0 failed, 0 skipped"
else
	echo "not ok tidy"
	echo "0 passed, 1 failed, 0 skipped"
	exit 1
fi
