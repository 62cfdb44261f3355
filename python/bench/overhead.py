#!/usr/bin/env python3
"""What the Python layer costs: retrieve against the same in C, lookup, hashing, conversion of lists.

    overhead.py [--dir DIR] [--rounds N] [--json FILE]

Versions that are compared take turns in one process, in an order that changes from round to round. "C" is tutti_move,
one call for a whole plan; "Python" makes the calls that it is made of one by one; "by layer" waits for each layer
besides. What Python adds is told as the median of the rounds' own differences (a round's versions see the same
machine), in percent of C's median, with the interval that holds that median with 95 % certainty; "aim" says whether
all of it lies within 3 %, beyond, or both: then the machine was too loud to tell, or more rounds are needed.
"""
import argparse
import array
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time

import numpy as np

import tutti

AIM_PERCENT = 3
LAYERS, PAGE_BYTES, TOKENS = 32, 64 << 10, 16  # Llama-3-8B, 16 tokens a block, bfloat16


def timed(fn, rounds):
    """Seconds of each of `rounds` calls, the first not counted."""
    fn()
    out = []
    for _ in range(rounds):
        began = time.perf_counter()
        fn()
        out.append(time.perf_counter() - began)
    return out


def spec_of(layout, tokens):
    return tutti.NamespaceSpec("a/model", b"w" * 32, "bfloat16", "bench", tokens, 8, 128).with_layout(layout)


def open_all(path, memory, tokens=TOKENS, **lane):
    pool = tutti.Pool.open(path)
    ns = pool.namespace(spec_of(memory.layout, tokens))
    lane = tutti.Lane.open(path, ns.digest, **lane)
    lane.register(memory.layout)
    return pool, ns, lane


def fill(ns, lane, keys, blocks):
    for at in range(0, len(blocks), 256):
        parent = keys[(at - 1) * 32:at * 32] if at else None
        part = ns.reserve(keys[at * 32:(at + 256) * 32], parent, lease_s=600)
        if part.blocks and lane.move(ns, part.lease, blocks[at + part.first:at + part.first + part.blocks]):
            sys.exit("the pool could not be filled")


def by_c(ns, lane, lease, blocks, n):
    if lane.move(ns, lease, blocks):
        sys.exit("a block failed")


def by_python(ns, lane, lease, blocks, n, layers=0):
    plan = lane.plan(ns.plan_blob(lease, 0, n), blocks)
    plan.retrieve()
    for layer in range(layers):
        if not plan.wait_layer(layer, 60):
            sys.exit("a block failed")
    if ns.complete(plan.finish(60)):
        sys.exit("a block failed")
    ns.release(lease)


def retrieve(folder, rounds, n, **lane):
    """Seconds of a retrieve of n blocks, by name of the way."""
    path = os.path.join(folder, "retrieve")
    memory = tutti.KvMemory(LAYERS, 2 * n, PAGE_BYTES)
    rng = np.random.default_rng(1)
    for layer in range(LAYERS):
        for block in range(n):
            np.frombuffer(memory.block(layer, block), np.uint64)[:] = rng.integers(0, 1 << 63, PAGE_BYTES // 8)
    tutti.Pool.format(path, n * (LAYERS * PAGE_BYTES + (64 << 10)) * 3 // 2 + (64 << 20), overwrite=True)
    pool, ns, filler = open_all(path, memory)
    keys = ns.keys(range(n * TOKENS))
    fill(ns, filler, keys, list(range(n)))
    pool.sync()
    filler.close()
    reader = tutti.Lane.open(path, ns.digest, **lane)
    reader.register(memory.layout)
    to = np.arange(n, 2 * n, dtype=np.uint64)
    ways = {"C": by_c, "Python": by_python, "by layer": lambda *a: by_python(*a, layers=LAYERS)}
    seconds, orders = {name: [] for name in ways}, list(itertools.permutations(ways))
    for i in range(rounds + 1):
        for name in orders[i % len(orders)]:
            lease = ns.lookup(keys, lease_s=600).lease
            began = time.perf_counter()
            ways[name](ns, reader, lease, to, n)
            if i:
                seconds[name].append(time.perf_counter() - began)
    if lane.get("controller") != "null":
        for layer in range(LAYERS):
            for block in range(n):
                if memory.block(layer, block) != memory.block(layer, n + block):
                    sys.exit(f"layer {layer}, block {block}: wrong bytes")
    reader.close()
    pool.close()
    return seconds


def median_within(values):
    """(median, lowest, highest): the interval of the median of what the values are drawn from, 95 % certain. From ranks
    alone (a binomial count of values below it), so that no shape is presumed."""
    v, n = sorted(values), len(values)
    below = 0
    while below + 1 < n // 2 and sum(math.comb(n, i) for i in range(below + 2)) / 2 ** n <= 0.025:
        below += 1
    return statistics.median(v), v[below], v[n - 1 - below]


def compared(seconds):
    """What each way adds to C's time, in percent: (median, lowest, highest)."""
    base = statistics.median(seconds["C"])
    return {way: [100 * x for x in median_within([(a - b) / base for a, b in zip(s, seconds["C"])])]
            for way, s in seconds.items() if way != "C"}


def verdict(low, high):
    return "met" if high <= AIM_PERCENT else "missed" if low > AIM_PERCENT else "not told apart"


def index(folder, rounds, tokens, n):
    """Lookup and hashing of n blocks of this many tokens."""
    path = os.path.join(folder, f"index{tokens}")
    memory = tutti.KvMemory(1, 1, 4096)
    tutti.Pool.format(path, n * 12288 + (64 << 20), prewrite="none", overwrite=True)
    pool, ns, lane = open_all(path, memory, tokens)
    ids = np.random.default_rng(2).integers(0, 128256, n * tokens, dtype=np.uint32)
    keys = ns.keys(ids)
    fill(ns, lane, keys, [0] * n)
    if ns.lookup(keys).blocks != n:
        sys.exit("lookup: not all there")
    listed = ids.tolist()
    part, parent = ids[-tokens:], keys[-64:-32]

    def leased():
        ns.release(ns.lookup(keys, lease_s=60).lease)

    times = {
        "lookup": timed(lambda: ns.lookup(keys), rounds), "lookup with lease and release": timed(leased, rounds),
        "hashing, array": timed(lambda: ns.keys(ids), rounds),
        "hashing one more block": timed(lambda: ns.keys(part, parent), rounds),
        "list of ids to array": timed(lambda: array.array("I", listed), rounds),
        "hashing, list": timed(lambda: ns.keys(listed), rounds),
        "keys to list of bytes": timed(lambda: tutti.split_keys(keys), rounds),
        "list of bytes to keys": timed(lambda l=tutti.split_keys(keys): tutti.join_keys(l), rounds),
    }
    lane.close()
    pool.close()
    return {name: statistics.median(t) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", help="folder for pools (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=36, help="default: 36")
    parser.add_argument("--json", help="writes all figures there too")
    o = parser.parse_args()
    result = {"retrieve": {}, "index": {}}
    with tempfile.TemporaryDirectory(dir=o.dir) as folder:
        for name, n, lane in (("file", 256, {}), ("model in RAM", 256, {"controller": "model"}),
                              ("nothing moves (null)", 256, {"controller": "null"})):
            rounds = o.rounds * (10 if "null" in name else 1)
            s = retrieve(folder, rounds, n, **lane)
            size, added = n * LAYERS * PAGE_BYTES, compared(s)
            result["retrieve"][name] = {"blocks": n, "bytes": size, "rounds": rounds, "added_percent": added,
                                        "seconds": {way: statistics.median(t) for way, t in s.items()}}
            print(f"retrieve {size >> 20} MiB, {name}, {rounds} rounds: C {statistics.median(s['C']) * 1e3:.3f} ms")
            for way, (median, low, high) in added.items():
                told = "" if "null" in name else f"; aim of {AIM_PERCENT} %: {verdict(low, high)}"
                print(f"  {way}: {median:+.2f} % ({low:+.2f} to {high:+.2f}){told}", flush=True)
        for tokens, n in ((64, 2048), (16, 8192)):
            figures = index(folder, 10 * o.rounds, tokens, n)
            result["index"][f"{n} blocks of {tokens}"] = figures
            print(f"{n} blocks of {tokens} tokens: " + ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in figures.items()))
    if o.json:
        with open(o.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
