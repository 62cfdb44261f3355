#!/usr/bin/env python3
"""tools/run-tests counts right, and takes no crash, hang or lie for a pass."""
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# name: (script, passed, failed, skipped, words in the output)
SCRIPTS = {
    "good": ("echo ok a; echo 'skip b # no such device'; echo '1 passed, 0 failed, 1 skipped'", 1, 0, 1,
             "b # no such device"),
    "bad": ("echo not ok broken; echo '2 passed, 1 failed, 0 skipped'; exit 1", 2, 1, 0, "broken"),
    "crash": ("kill -SEGV $$", 0, 1, 0, "SIGSEGV"),
    "late_crash": ("echo '3 passed, 0 failed, 0 skipped'; kill -ABRT $$", 3, 1, 0, "SIGABRT"),
    "interrupted": ("kill -INT $$; sleep 1; echo '1 passed, 0 failed, 0 skipped'", 0, 1, 0, "SIGINT"),
    "hang": ("sleep 60", 0, 1, 0, "ran over its 2 s"),
    "silent": ("true", 0, 1, 0, "no closing line"),
    "more_after_the_end": ("echo '1 passed, 0 failed, 0 skipped'; echo more", 0, 1, 0, "no closing line"),
    "liar": ("echo '1 passed, 1 failed, 0 skipped'", 1, 2, 0, "but exits with 0"),
    "other_liar": ("echo '1 passed, 0 failed, 0 skipped'; exit 7", 1, 1, 0, "exits with 7"),
    "empty": ("echo '0 passed, 0 failed, 0 skipped'", 0, 1, 0, "ran no case"),
}


def run(*args):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/run-tests"), "--timeout", "2", *args],
                       capture_output=True, text=True)
    return r.returncode, r.stdout


def check(name, good, output, counts):
    print(f"ok {name}" if good else "# " + output.replace("\n", "\n# ") + f"\nnot ok {name}")
    counts[0 if good else 1] += 1


def main():
    counts = [0, 0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background; tests have it all the same
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, (script, *_) in SCRIPTS.items():
            paths[name] = os.path.join(folder, f"test_{name}.sh")
            with open(paths[name], "w") as f:
                f.write(script + "\n")
        for name, (_, passed, failed, skipped, words) in SCRIPTS.items():
            status, out = run(paths[name])
            last = out.rstrip("\n").split("\n")[-1]
            check(name, last == f"{passed} passed, {failed} failed, {skipped} skipped" and words in out and
                  status == (1 if failed else 0), out, counts)
        status, out = run(*paths.values())
        total = [sum(s[i] for s in SCRIPTS.values()) for i in (1, 2, 3)]
        check("sum", out.endswith(f"\n{total[0]} passed, {total[1]} failed, {total[2]} skipped\n") and status == 1,
              out, counts)
        status, out = run(paths["good"], os.path.join(folder, "gone"))
        check("not_built", out.endswith("\n1 passed, 1 failed, 1 skipped\n") and "was not built" in out, out, counts)
        status, out = run("--build-failed", paths["good"])
        check("build_failed", out.endswith("\n1 passed, 1 failed, 1 skipped\n") and status == 1, out, counts)
        status, out = run()
        check("nothing_to_run", out.endswith("0 passed, 0 failed, 0 skipped\n") and status == 1, out, counts)
        program = os.path.join(folder, "test_child")
        with open(program, "w") as f:
            f.write("#!/bin/bash\nsleep 61.25 &\necho ok a\necho '1 passed, 0 failed, 0 skipped'\n")
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        began = time.monotonic()
        status, out = run(program)
        left = subprocess.run(["pgrep", "-f", "sleep 61.2[5]"], capture_output=True, text=True).stdout
        check("children_end_with_it", status == 0 and not left and time.monotonic() - began < 10, out + left, counts)
    print(f"{counts[0]} passed, {counts[1]} failed, 0 skipped")
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
