#!/usr/bin/env python3
"""Writes the C source of the extension module tutti._native.

    glue.py INCLUDE_FOLDER OUT.c

The declarations are the public headers themselves, less what only a preprocessor understands: the package can't fall
behind the library. cffi's code releases the GIL around every call and compiles against the stable ABI. The few
functions below loop in C over what would be one call a block in Python.
"""
import pathlib
import re
import sys

import cffi

HELPERS = """
struct py_block {
    struct tutti_key key, parent;
    uint32_t depth, slot;
};
/* Copies at most max committed blocks to out; counts them all in *n. */
int py_blocks(struct tutti_ns *ns, struct py_block *out, size_t max, size_t *n);
/* What tutti_pool_look told. */
struct py_look {
    struct tutti_pool_info pool;
    int held;
    int32_t pid, lane_pid;
    char host[256];
    size_t n; /* namespaces; of them, at most max were copied to ns */
};
int py_look(const struct tutti_store_opts *opts, struct py_look *out, struct tutti_ns_info *ns, size_t max);
/* Results of n blocks of a plan; returns how many are not 0. */
size_t py_failed(struct tutti_plan *p, int32_t *results, size_t n);
/*
 * What ends an object empties the cell that its pointer is in, unless it lives on: no signal's handler can come between
 * the two.
 */
int py_store_close(struct tutti_store **cell);
int py_lane_close(struct tutti_lane **cell);
int py_ns_remove(struct tutti_ns **cell);
int py_plan_finish(struct tutti_plan **cell, uint64_t deadline_ns, void *blob, size_t bytes_max, size_t *bytes);
"""
CALLBACKS = """
extern "Python" void py_progress(void *arg, const char *what, uint64_t done, uint64_t total);
extern "Python" void py_log(void *arg, int level, const char *message);
"""
CODE = """
#include <string.h>

#include <tutti/tutti.h>
""" + HELPERS + """
struct py_fill {
    struct py_block *out;
    size_t max, n;
};

static int py_fill(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                   uint32_t slot)
{
    struct py_fill *f = arg;

    if (f->n < f->max)
        f->out[f->n] = (struct py_block){*key, *parent, depth, slot};
    f->n++;
    return 0;
}

int py_blocks(struct tutti_ns *ns, struct py_block *out, size_t max, size_t *n)
{
    struct py_fill f = {out, max, 0};
    int rc = tutti_ns_each(ns, py_fill, &f);

    *n = f.n;
    return rc;
}

struct py_look_to {
    struct py_look *out;
    struct tutti_ns_info *ns;
    size_t max;
};

static int py_look_at(void *arg, const struct tutti_pool_look *look)
{
    struct py_look_to *to = arg;
    struct py_look *l = to->out;

    l->pool = *look->pool;
    l->held = look->held;
    l->pid = look->pid;
    l->lane_pid = look->lane_pid;
    strncpy(l->host, look->host, sizeof(l->host) - 1);
    l->n = look->pool->n_namespaces;
    memcpy(to->ns, look->ns, (l->n < to->max ? l->n : to->max) * sizeof(*to->ns));
    return 0;
}

int py_look(const struct tutti_store_opts *opts, struct py_look *out, struct tutti_ns_info *ns, size_t max)
{
    struct py_look_to to = {out, ns, max};

    return tutti_pool_look(opts, py_look_at, &to);
}

size_t py_failed(struct tutti_plan *p, int32_t *results, size_t n)
{
    size_t failed = 0;

    for (size_t i = 0; i < n; i++) {
        results[i] = tutti_plan_failed(p, i);
        failed += results[i] != 0;
    }
    return failed;
}

int py_store_close(struct tutti_store **cell)
{
    struct tutti_store *s = *cell;

    *cell = NULL; /* freed in every outcome */
    return tutti_store_close(s);
}

int py_lane_close(struct tutti_lane **cell)
{
    int rc = tutti_lane_close(*cell);

    if (!rc)
        *cell = NULL;
    return rc;
}

int py_ns_remove(struct tutti_ns **cell)
{
    int rc = tutti_ns_remove(*cell);

    if (!rc)
        *cell = NULL;
    return rc;
}

int py_plan_finish(struct tutti_plan **cell, uint64_t deadline_ns, void *blob, size_t bytes_max, size_t *bytes)
{
    int rc = tutti_plan_finish(*cell, deadline_ns, blob, bytes_max, bytes);

    if (!rc)
        *cell = NULL;
    return rc;
}
"""


def declarations(header):
    """The header less comments, bodies, directives (but plain constants) and extern "C"."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.S).replace("\\\n", " ")
    text = re.sub(r"static inline (int \w+\([^)]*\))\s*\{[^}]*\}", r"\1;", text)
    text = re.sub(r'extern "C" \{|^\}$', "", text, flags=re.M)
    lines = [x for x in text.split("\n") if not x.startswith("#") or re.match(r"#define \w+ \d+$", x)]
    return "\n".join(lines)


def main():
    include, out = pathlib.Path(sys.argv[1]), sys.argv[2]
    builder = cffi.FFI()
    for name in ("types.h", "tutti.h"):
        builder.cdef(declarations((include / "tutti" / name).read_text()))
    builder.cdef(HELPERS)
    builder.cdef(CALLBACKS)
    builder.set_source("tutti._native", CODE)
    builder.emit_c_code(out)


if __name__ == "__main__":
    main()
