#!/bin/bash
# The Python package: builds the wheel, installs it with pytest into a virtual environment under the build folder, runs
# *_test.py of this folder there; with further interpreters, that the one wheel imports in each. Skipped, with the
# reason, where there is no Python with venv, or no package index.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
python=${PYTHON:-python3}
venv=$build/python/venv

skip()
{
    echo "skip python: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

fail()
{
    echo "not ok $*"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

# Runs pip; without an index this is no failure of ours.
pip()
{
    log=$build/python/pip.log
    timeout 240 "$venv/bin/python" -m pip "$@" > "$log" 2>&1 && return
    if grep -qE 'No matching distribution|ConnectionError|NewConnection|NameResolution|timed out' "$log"; then
        skip "no package index: $(grep -m1 -E 'ERROR|WARNING' "$log")"
    fi
    tail -30 "$log"
    fail "pip $1"
}

"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2> /dev/null ||
    skip "no Python of 3.9 or newer with venv (python3-venv)"
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ] ||
    skip "no Python.h (python3-dev)"
mkdir -p "$build/python"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "venv"
if [ ! -e "$venv/ready" ]; then
    pip install -q 'cffi>=1.16' 'scikit-build-core>=0.10' 'cmake>=3.26' ninja pytest numpy mypy
    touch "$venv/ready"
fi
PATH=$PWD/$venv/bin:$PATH pip wheel -q --no-build-isolation --no-deps -w "$build/python/dist" ./python
pip install -q --force-reinstall --no-deps "$build"/python/dist/tutti-*-abi3-*.whl

# The oldest and the newest of the other CPythons here: the same wheel must serve them.
pyenv=${PYENV_ROOT:-$HOME/.pyenv}
others=$(for p in /usr/bin/python3.{9,1?} /usr/local/bin/python3.{9,1?} "$pyenv"/versions/*/bin/python3; do
    [ -x "$p" ] && "$p" -c 'import sys, ensurepip
v = sys.version_info
sys.exit(v < (3, 9) or sys.implementation.name != "cpython")
' 2> /dev/null && "$p" -c 'import sys; print("%d.%02d" % sys.version_info[:2], sys.executable)'
done | grep -v "^$("$python" -c 'import sys; print("%d.%02d" % sys.version_info[:2])')" | sort -u -k 1,1)
other_passed=0
for p in $(echo "$others" | sed -n '1p;$p' | sort -u | cut -d ' ' -f 2); do
    other=$build/python/venv-$(basename "$(dirname "$(dirname "$p")")")
    [ -x "$other/bin/python" ] || "$p" -m venv "$other" || fail "venv of $p"
    main=$venv
    venv=$other
    pip install -q --force-reinstall --no-deps "$build"/python/dist/tutti-*-abi3-*.whl
    pip install -q 'cffi>=1.16'
    venv=$main
    "$other/bin/python" - <<- 'END' || fail "the wheel in $p"
import sys, tempfile, tutti
with tempfile.TemporaryDirectory() as d, tutti.ByteCache.open(d + "/pool", 1000, size="32M") as cache:
    assert cache.put("a", b"bytes") and cache.get("a") == b"bytes"
print("ok the wheel in Python", sys.version.split()[0])
END
    other_passed=$((other_passed + 1))
done

"$venv/bin/mypy" --config-file python/pyproject.toml --cache-dir "$build/python/mypy" python/tutti || fail "mypy --strict"

status=0
log=$build/python/pytest.log
timeout 240 "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider test/python > "$log" 2>&1 || status=1
cat "$log"
count() { tail -1 "$log" | grep -oE "[0-9]+ $1" | grep -oE '[0-9]+' || echo 0; }
passed=$(($(count passed) + other_passed + 1)) failed=$(($(count failed) + $(count error))) skipped=$(count skipped)
[ $status -eq 0 ] || [ "$failed" -gt 0 ] || failed=1

sed -n 's/^SKIPPED \[[0-9]*\] /skip /p' "$log"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
