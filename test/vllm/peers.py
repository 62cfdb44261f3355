#!/usr/bin/env python3
"""Tutti beside other caches in the same vLLM on CPU: the same requests, one system after the other, round by round.

    peers.py VENV [--lmcache FOLDER] [--tokens N,N] [--rounds N] [--out FILE.json]

All engines live at once, one process each, and only one of them has work. A round, for each length and system: a new
document is asked (cold: it is computed, and stored), vLLM's own prefix cache is emptied, and the document is asked with
another last line (hit). "none" computes that, too; "memory" keeps vLLM's own prefix cache, as the bound. Load GB/s are
KV bytes by the time that a hit takes longer than "memory", for all systems alike.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from live import Live
from run import BLOCK, Bench

HERE = pathlib.Path(__file__).resolve().parent


def systems(bench, lmcache):
    """name -> (kv_transfer_config or None, more environment)."""
    def ours(name, **extra):
        return dict(kv_connector="TuttiConnector", kv_connector_module_path="tutti.vllm", kv_role="kv_both",
                    kv_load_failure_policy="recompute", kv_connector_extra_config={
                        "pool": str(bench / name), "size": "4G", "recompute_break_even": "off", **extra})

    def theirs(connector, **extra):
        return dict(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra)

    found = {
        "none": (None, {}),
        "memory": (None, {}),
        "tutti": (ours("tutti"), {}),
        "tutti-layerwise": (ours("layerwise", mode="layerwise"), {}),
        "vllm-files": (theirs("ExampleConnector", shared_storage_path=str(bench / "example")), {}),
        "vllm-dram": (theirs("OffloadingConnector", cpu_bytes_to_use=4 << 30), {}),
        "vllm-fs": (theirs("OffloadingConnector", cpu_bytes_to_use=1 << 30, spec_name="TieringOffloadingSpec",
                           secondary_tiers=[{"type": "fs", "root_dir": str(bench / "fs")}]), {}),
    }
    if lmcache:
        settings = {"LMCACHE_CHUNK_SIZE": "128", "LMCACHE_LOCAL_CPU": "False", "LMCACHE_MAX_LOCAL_CPU_SIZE": "1",
                    "LMCACHE_LOCAL_DISK": f"file://{bench}/lmcache", "LMCACHE_MAX_LOCAL_DISK_SIZE": "4"}
        path = os.pathsep.join([str(HERE), lmcache])
        found["lmcache-disk"] = theirs("LMCacheConnectorV1"), {**settings, "PYTHONPATH": path}
    return found


def one_round(running, n, seed):
    """Each system gets the same two requests; who begins changes from round to round."""
    k = seed % len(running)
    for s in running[k:] + running[:k]:
        s.ask(reset=1)
        rows = s.rows.setdefault(n, {"cold": [], "hit": [], "cached": []})
        rows["cold"].append(s.ask(seed=seed, tokens=n, max_tokens=1)["s"])
        time.sleep(2)
        s.ask(seed=3, tokens=40, max_tokens=1)  # an engine step, in which what was stored is found to be
        if s.name != "memory":
            s.ask(reset=1)
        hit = s.ask(seed=seed, tokens=n, tail_seed=seed, max_tokens=1)
        rows["hit"].append(hit["s"])
        rows["cached"].append(hit["cached"])
        rows.setdefault("tokens", []).append(hit["tokens"])


def report(running, lengths, block_bytes):
    print(f"{'':16} {'tokens':>7} {'cold s':>21} {'hit s':>21} {'cached':>7} {'load GB/s':>9}")
    spread = lambda v: f"{statistics.median(v):.3f} ({min(v):.3f}-{max(v):.3f})"  # noqa: E731
    for n in lengths:
        base = next(statistics.median(s.rows[n]["hit"]) for s in running if s.name == "memory")
        for s in running:
            r = s.rows[n]
            more = statistics.median(r["hit"]) - base
            rate = r["cached"][-1] // BLOCK * block_bytes / more / 1e9 if s.name not in ("none", "memory") and more > 0 else 0
            print(f"{s.name:16} {n:7} {spread(r['cold']):>21} {spread(r['hit']):>21} {r['cached'][-1]:7} "
                  f"{f'{rate:.2f}' if rate else '':>9}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--lmcache")
    parser.add_argument("--tokens", default="4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", default="")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()

    lengths = [int(n) for n in args.tokens.split(",")]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti-peers-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    running, failed = [], 0
    try:
        bench = Bench(args.venv, folder)
        subprocess.run([bench.python, HERE / "model.py", folder, "--layers", "4", "--hidden", "512", "--kv-heads", "8",
                        "--positions", str(max(lengths) + 512)], env=bench.env(), check=True, capture_output=True)
        options = {"max_model_len": max(lengths) + 256, "max_num_batched_tokens": 4096, "enable_prefix_caching": True}
        for name, (transfer, env) in systems(folder, args.lmcache).items():
            if args.systems and name not in args.systems.split(","):
                continue
            s = Live(name, bench, {"options": options, "transfer": transfer}, env)
            if s.refused:
                print(f"# {name} does not run here: {s.refused}")
                print("".join(f"#   {line}\n" for line in s.log().splitlines() if "Error" in line or "Exception" in line))
                s.close()
                continue
            s.rows = {}
            running.append(s)
        for n in lengths:
            one_round(running, n, 1000 + n)  # warm-up
        for s in running:
            s.rows.clear()
        for i in range(args.rounds):
            for n in lengths:
                one_round(running, n, 2000 + 100 * i + n)
        report(running, lengths, 4 * 8 * 2 * 32 * 4 * BLOCK)
        for n in lengths:  # whoever answers otherwise than the engine alone has loaded something wrong
            want = next(s.rows[n]["tokens"] for s in running if s.name == "memory")
            for s in running:
                if s.rows[n]["tokens"] != want:
                    print(f"# {s.name}, {n} tokens: other tokens than those of vLLM's own prefix cache")
                    failed += s.name.startswith("tutti")
        if args.out:
            args.out.write_text(json.dumps({s.name: s.rows for s in running}, indent=1))
    finally:
        for s in running:
            s.close()
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
