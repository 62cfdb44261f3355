#!/usr/bin/env python3
"""tools/tidy finds each kind of fault in a small tree that was good before, on the right line, and nothing else."""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GOOD = {
    "Makefile": "ROOMS = base geom\nall:\n\t@true\n",
    "tools/deps.txt": "base:\ngeom: base\nwire:\ncli:\ntest: *\npublic: cli test\n"
                      "lib base: xxhash.h\nprefix base: err\n",
    "include/tutti/tutti.h": "/* The public header. */\n#include <tutti/types.h>\n\nint tutti_version(void);\n",
    "include/tutti/types.h": "/* Plain data. */\n#include <stdint.h>\n\nstruct tutti_key {\n\tuint8_t b[32];\n};\n",
    "src/base/err.h": "/* Errors. */\n#include <tutti/types.h>\n\nint err_set(int result);\n",
    "src/base/err.c": "/* Errors. */\n#include \"base/err.h\"\n#include <xxhash.h>\n\n"
                      "static int helper(int a) { return a; }\n\n"
                      "/* A string that says strcpy(, and a comment that says exit(1). */\n"
                      "const char *err_text(void)\n{\n\treturn \"printf(x) { \\\" }\";\n}\n\n"
                      "int err_set(int result)\n{\n\treturn helper(result);\n}\n",
    "src/geom/addr.h": "/* Addresses. */\nstruct geom {\n\tint a; /* one */\n};\n\n"
                       "static inline int geom_a(const struct geom *g) { return g->a; }\n",
    "src/geom/addr.c": "/* Addresses. */\n#include \"base/err.h\"\n#include \"geom/addr.h\"\n\n"
                       "#define LOCAL static inline\n"
                       "LOCAL int twice(int a) { return 2 * a; }\n\n"
                       "__attribute__((noinline)) int geom_b(int (*fn)(int a), int b)\n{\n"
                       "#if defined(ONE)\n\tif (b) {\n#else\n\tif (!b) {\n#endif\n\t\treturn fn(twice(b));\n\t}\n"
                       "\treturn 0;\n}\n\nint geom_after(int a) { return a; }\n",
    "src/wire/disk.h": "/* Bytes. */\nstruct wire_disk {\n\tint a;\n};\n"
                       "_Static_assert(sizeof(struct wire_disk) == 4, \"\");\n",
    "src/cli/main.c": "/* The command. */\n#include <stdio.h>\n#include <tutti/tutti.h>\n\n"
                      "int main(void)\n{\n\tprintf(\"%d\\n\", tutti_version());\n\treturn 0;\n}\n",
    "test/geom/test_addr.c": "/* Tests addresses. */\n#include \"geom/addr.h\"\n#include \"wire/disk.h\"\n\n"
                             "int main(void)\n{\n\tusleep(1); /* lets the other thread in */\n\treturn 0;\n}\n",
    "README.md": "# A heading\n\nSee [the notes](docs/notes.md#two-words) and [above](#a-heading).\n",
    "docs/notes.md": "# Notes\n\n## Two `words`\n",
    "tools/small.sh": "#!/bin/bash\ntrue\n",
}

# (name, file, text to replace, replacement or None to delete the file, line of the finding, words of it)
long_body = "".join(f"\ta += {i};\n" for i in range(70))
BAD = [
    ("forbidden_edge", "src/base/err.c", "#include <xxhash.h>", '#include "geom/addr.h"', 3,
     "may not include room geom"),
    ("private_sees_public", "src/base/err.c", "#include <xxhash.h>", "#include <tutti/tutti.h>", 3, "must not see it"),
    ("no_such_header", "src/geom/addr.c", '"base/err.h"', '"base/gone.h"', 2, "no such file"),
    ("bare_include", "src/geom/addr.c", '"base/err.h"', '"addr.h"', 2, "no such file"),
    ("foreign_library", "src/geom/addr.c", '#include "base/err.h"', "#include <xxhash.h>", 2,
     "a library that room geom"),
    ("no_prefix", "src/geom/addr.c", "int geom_after(", "int after(", 20, "after is seen outside"),
    ("no_prefix_in_header", "src/geom/addr.h", "int geom_a(", "int a_of(", 6, "a_of is seen outside"),
    ("wrong_prefix", "src/base/err.c", "int err_set(int result)\n{", "int tutti_set(int result)\n{", 13, "tutti_set"),
    ("function_in_wire", "src/wire/disk.h", "_Static", "static inline int wire_f(void) { return 0; }\n_Static", 5,
     "is a function"),
    ("long_function", "src/base/err.c", "\treturn helper(result);", "\tint a = 0;\n" + long_body + "\treturn a;", 13,
     "err_set has 75 lines"),
    ("strcpy", "src/cli/main.c", "printf(", "strcpy(", 7, "calls strcpy"),
    ("printf_in_library", "src/base/err.c", "return helper(result)", "return printf(0)", 15, "calls printf"),
    ("exit_in_library", "src/geom/addr.c", "return fn(", "exit(", 15, "calls exit"),
    ("getenv_in_library", "src/base/err.c", "return helper(result)", "return !getenv(0)", 15, "calls getenv"),
    ("sleep_without_reason", "test/geom/test_addr.c", " /* lets the other thread in */", "", 7, "calls usleep"),
    ("dead_header", "src/base/dead.h", None, "/* Dead. */\n", 1, "nobody includes it"),
    ("dead_source", "src/base/deep/dead.c", None, "/* Dead. */\n", 1, "nobody builds it"),
    ("dead_cuda", "src/geom/dead.cu", None, "/* Dead. */\n", 1, "nobody builds it"),
    ("too_long_file", "src/base/err.c", "int err_set(", "\n" * 1500 + "int err_set(", 1, "lines; a file has 1500"),
    ("trailing_blank", "README.md", "See", "See \nthe", 3, "blanks at the end"),
    ("tab_in_markdown", "docs/notes.md", "# Notes\n", "# Notes\n\n\tcode\n", 3, "a tab"),
    ("tab_inside", "src/geom/addr.h", "int a; /*", "int a;\t/*", 3, "a tab after something else"),
    ("long_line", "tools/small.sh", "true", "true " + "x" * 120, 2, "125 columns"),
    ("no_newline", "tools/small.sh", "true\n", "true", 2, "has no end"),
    ("machine_path", "docs/notes.md", "# Notes\n", "# Notes\n\n/wo" + "rk/shared\n", 3, "speaks of itself alone"),
    ("issue_number", "src/cli/main.c", "The command.", "The command, iss" + "ue #3.", 1, "speaks of itself alone"),
    ("no_opening", "src/cli/main.c", "/* The command. */\n", "", 1, "opens without a comment"),
    ("dead_link", "README.md", "docs/notes.md#two-words", "docs/gone.md", 3, "nothing is there"),
    ("dead_anchor", "README.md", "#two-words", "#three-words", 3, "has no such heading"),
]


def write(root, path, text):
    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    with open(os.path.join(root, path), "w") as f:
        f.write(text)


def tidy(root, *options):
    run = subprocess.run([sys.executable, os.path.join(ROOT, "tools/tidy"), "--root", root, *options],
                         capture_output=True, text=True)
    lines = [line for line in run.stdout.split("\n") if line and not line.startswith("tidy:")]
    return run.returncode, lines, run.stderr


class Count:
    passed = failed = skipped = 0

    def case(self, name, fault):
        print(f"# {fault}\nnot ok {name}" if fault else f"ok {name}")
        self.failed += bool(fault)
        self.passed += not fault


def fault_of(status, lines, errors, path, number, words):
    findings = [line for line in lines if "warning:" not in line]
    if errors or status != 1 or len(findings) != 1:
        return f"exit status {status}, {len(findings)} findings: {findings} {errors}"
    if not findings[0].startswith(f"{path}:{number}: ") or words not in findings[0]:
        return f"wanted {path}:{number} and '{words}', got: {findings[0]}"
    return None


def run_bad(root, count):
    for name, path, old, new, number, words in BAD:
        before = GOOD.get(path)
        assert old is None or old in before, f"{name}: the good tree has no such text"
        write(root, path, new if old is None else before.replace(old, new, 1))
        count.case(name, fault_of(*tidy(root, "--no-format"), path, number, words))
        if before is None:
            os.unlink(os.path.join(root, path))
        else:
            write(root, path, before)


def run_format(root, count):
    shutil.copy(os.path.join(ROOT, ".clang-format"), root)
    status, lines, errors = tidy(root)
    version = subprocess.run("clang-format --version", shell=True, capture_output=True, text=True).stdout
    if "version 14" not in version:
        print("skip format # judged by clang-format 14, which is not here")
        count.skipped += 1
        return
    count.case("good_tree_is_well_formatted", lines or errors or status)
    good = GOOD["src/geom/addr.c"]
    write(root, "src/geom/addr.c", good.replace("if (b) {", "if(b)\n\t{").replace("return 0;", "return   0;"))
    count.case("format_drift_is_found", fault_of(*tidy(root), "src/geom/addr.c", 11, "not as clang-format writes it"))
    tidy(root, "--fix")
    fixed = open(os.path.join(root, "src/geom/addr.c")).read()
    count.case("fix_leaves_alignment_alone", None if fixed == good.replace("return 0;", "return   0;") else fixed)
    long = "/* " + "word " * 30 + "*/"
    write(root, "src/geom/addr.c", good.replace("LOCAL int", long + "\nLOCAL int"))
    tidy(root, "--fix")
    status, lines, errors = tidy(root)
    count.case("fix_wraps_long_comments", lines or errors or status)
    write(root, "src/geom/addr.c", good)


def main():
    count = Count()
    with tempfile.TemporaryDirectory() as root:
        for path, text in GOOD.items():
            write(root, path, text)
        status, lines, errors = tidy(root, "--no-format")
        count.case("good_tree", lines or errors or status)
        run_bad(root, count)
        write(root, "src/base/err.c", GOOD["src/base/err.c"] + "/* more */\n" * 600)
        status, lines, errors = tidy(root, "--no-format")
        count.case("long_file_warns", status or errors or not any("warning: 61" in line for line in lines))
        write(root, "src/base/err.c", GOOD["src/base/err.c"])
        run_format(root, count)
    print(f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
