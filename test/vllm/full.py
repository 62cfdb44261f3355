#!/usr/bin/env python3
"""What the connector's short tests have no time for: two ranks, speculative decoding, other versions of vLLM, other caches
on the same requests.

    full.py VENV [PART...]

PART: ranks, drafts, a version of vLLM, or peers; all by default, with VERSIONS. Versions are installed beside VENV
(3 GB each, kept). LMCache takes part where VENV-lmcache is: a folder made by

    VENV/bin/pip install --no-deps --target VENV-lmcache lmcache==0.5.6 sortedcontainers aiofile aiofiles caio \\
        cufile-python py-cpuinfo nvtx redis

Last line: N passed, N failed, N skipped.
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = ("0.18.0", "0.26.0")  # the oldest that the connector supports; the one that was run on a GPU
SUM = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


def run(*command):
    """Shows what a command says; returns its status and last line."""
    last = ""
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        for line in p.stdout:
            print(line, end="", flush=True)
            last = line.strip()
    return p.returncode, last


def cases(venv, *names):
    _, last = run(venv / "bin/python", HERE / "run.py", venv, *names)
    said = SUM.match(last)
    return tuple(map(int, said.groups())) if said else (0, 1, 0)


def version(venv, name):
    print(f"== vLLM {name}", flush=True)
    mine = venv.parent / f"{venv.name}-{name}"
    status, last = run(HERE / "install.sh", mine, name)
    if status == 77:
        return 0, 0, 1
    if status:
        return 0, 1, 0
    return cases(mine)


def peers(venv):
    print("== other caches", flush=True)
    lmcache = venv.parent / f"{venv.name}-lmcache"
    more = ["--lmcache", lmcache] if lmcache.is_dir() else []
    status, _ = run(venv / "bin/python", HERE / "peers.py", venv, *more)
    return (0, 1, 0) if status else (1, 0, 0)


def main():
    venv = pathlib.Path(sys.argv[1])
    known = {"ranks": lambda: cases(venv, "two_ranks"), "drafts": lambda: cases(venv, "drafts", "draft_model", "eagle"),
             "peers": lambda: peers(venv)}
    parts = sys.argv[2:] or ["ranks", "drafts", *VERSIONS, "peers"]
    sums = [known[part]() if part in known else version(venv, part) for part in parts]
    passed, failed, skipped = map(sum, zip(*sums))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
