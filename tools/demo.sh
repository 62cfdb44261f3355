#!/bin/bash
# From a bare machine to the demo: installs what the build needs, builds, runs. Arguments go to `tutti demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/deps-install build
make -j"$(nproc)" --no-print-directory all
exec build/tutti demo "$@"
