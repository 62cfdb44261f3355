#!/usr/bin/env python3
"""Tutti beside other caches in the same vLLM on CPU: the same requests, one system after the other, round by round.

    peers.py VENV [--lmcache FOLDER] [--tokens N,N] [--rounds N] [--systems NAME,NAME] [--piece N] [--cold]
             [--out FILE.json]

All engines live at once, a process each, started in the order of --systems, only one of them has work. A round, for
each length and system: a new document is asked (cold: it is computed, and stored), vLLM's own prefix cache is emptied,
and the document is asked with another last line (hit). The files of "vllm-files" lie in the page cache then, those of
"vllm-files-cold" on the disk. "none" computes that, too; "memory" keeps vLLM's own prefix cache, as the bound. Times are
vLLM's own count to the first token. Load GB/s are KV bytes by the time that a hit takes longer than "memory", for all
systems alike. Store GB/s are KV bytes by the time from a cold answer until the process gave so many bytes to the disk
(or to the page cache, if it writes there); "in the time" means that this had happened when the answer came, so that it
is in the cold time.

CPU s: of a process, from a cold question until what it stored is published. "cold beside memory": the median of the
rounds' own differences in the time of a cold answer, in percent, and the interval that holds it with 95 % certainty (of
fewer than six rounds: least and most); that of "none", which stores nothing either, tells what such a difference is worth
on this machine. What Tutti takes of it is told, too: in the connector's calls on the engine's thread until the answer,
and CPU of the library's threads until it is published. --cold: no second questions. --piece: tokens that a step
computes at most; without it the document is computed in one piece, and stored behind that; with it pieces are stored
while the next ones are computed.
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
sys.path.insert(0, str(HERE.parents[1] / "python/bench"))
from overhead import median_within  # noqa: E402

LAYERS, KV_HEADS, HEAD = 4, 8, 32
BLOCK_BYTES = LAYERS * KV_HEADS * 2 * HEAD * 4 * BLOCK
WRITE_S = 20  # longest wait until a document is written


def systems(bench, lmcache):
    """name -> (kv_transfer_config or None, more environment)."""
    def ours(name, **extra):
        return dict(kv_connector="TimedConnector", kv_connector_module_path="timed", kv_role="kv_both",
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
        "vllm-files-cold": (theirs("ExampleConnector", shared_storage_path=str(bench / "cold")), {}),
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


def gave_up(s):
    """LMCache goes on, and stores nothing, where it finds that it can't work."""
    lines = s.log().splitlines()
    at = next((i for i, line in enumerate(lines) if "will operate in degraded mode" in line), 0)
    return lines[at - 1] if at else None


def written(s):
    """Bytes that a system's process has written to files so far."""
    with open(f"/proc/{s.process.pid}/io") as io:
        return next(int(line.split()[1]) for line in io if line.startswith("write_bytes"))


def cpu_seconds(s):
    """Of a system's process so far, in user and system mode, all threads."""
    fields = pathlib.Path(f"/proc/{s.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_seconds(s):
    """CPU of the library's threads so far."""
    threads = [t for t in pathlib.Path(f"/proc/{s.process.pid}/task").iterdir()
               if (t / "comm").read_text().startswith("tutti")]
    return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9


def to_disk(folder):
    """Files leave the page cache."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file():
            with open(path, "rb") as f:
                os.fsync(f)
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_to_write(s, goal):
    began = time.monotonic()
    while written(s) < goal:
        if time.monotonic() - began > WRITE_S:
            return None
        time.sleep(0.002)
    return time.monotonic() - began


def one_round(running, n, seed, k=0, cold=False):
    """Each system gets the same two requests (cold: the first of them), the k-th system begins, which changes from round
    to round."""
    k %= len(running)
    for s in running[k:] + running[:k]:
        calls, threads = s.ask(reset=1)["calls_s"], thread_seconds(s)
        rows = s.rows.setdefault(n, {"cold": [], "store": [], "cpu": [], "hit": [], "cached": []})
        began = cpu_seconds(s)
        goal = written(s) + (n - 1) // BLOCK * BLOCK_BYTES
        cold_answer = s.ask(seed=seed, tokens=n, max_tokens=1)
        rows["cold"].append(cold_answer["ttft_s"])
        if s.stores:
            rows["store"].append(seconds_to_write(s, goal))
        s.ask(settle=1)
        rows["cpu"].append(cpu_seconds(s) - began)
        rows.setdefault("own", []).append([cold_answer["calls_s"] - calls, thread_seconds(s) - threads])
        if cold:
            continue
        if s.name != "memory":
            s.ask(reset=1)
        if s.name == "vllm-files-cold":
            to_disk(s.folder / "cold")
        hit = s.ask(seed=seed, tokens=n, tail_seed=seed, max_tokens=1)
        rows["hit"].append(hit["ttft_s"])
        rows["cached"].append(hit["cached"])
        rows.setdefault("tokens", []).append(hit["tokens"])


def spread(seconds):
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})"


def beside(row, memory):
    if not memory:
        return ""
    middle = statistics.median(memory["cold"])
    each = [100 * (a - b) / middle for a, b in zip(row["cold"], memory["cold"])]
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*median_within(each))


def store_rate(row, n_bytes):
    times = [t for t in row["store"] if t is not None]
    if len(times) < len(row["store"]) or not times:
        return "not seen" if row["store"] else ""
    median = statistics.median(times)
    return f"{n_bytes / median / 1e9:.2f}" if median > 0.005 else "in the time"


def report(running, lengths):
    print(f"{'':16} {'tokens':>7} {'cold s':>21} {'hit s':>21} {'cached':>7} {'load GB/s':>9} {'store GB/s':>11} {'CPU s':>6} "
          "cold beside memory, %")
    for n in lengths:
        memory = next((s.rows[n] for s in running if s.name == "memory"), None)
        base = statistics.median(memory["hit"]) if memory and memory["hit"] else None
        for s in running:
            r = s.rows[n]
            if not r["hit"]:
                r = {**r, "hit": [0], "cached": [0]}
            more = statistics.median(r["hit"]) - base if base is not None and s.stores else 0
            rate = r["cached"][-1] // BLOCK * BLOCK_BYTES / more / 1e9 if more > 0 else 0
            print(f"{s.name:16} {n:7} {spread(r['cold']):>21} {spread(r['hit']):>21} {r['cached'][-1]:7} "
                  f"{f'{rate:.2f}' if rate else '':>9} {store_rate(r, (n - 1) // BLOCK * BLOCK_BYTES):>11} "
                  f"{statistics.median(r['cpu']):6.2f} {beside(r, memory) if s.name != 'memory' else ''}", flush=True)


def report_own(running, lengths):
    for s in running:
        for n in lengths if s.name.startswith("tutti") else ():
            calls, threads = (1e3 * statistics.median(each) for each in zip(*s.rows[n]["own"]))
            cold, cpu = statistics.median(s.rows[n]["cold"]), statistics.median(s.rows[n]["cpu"])
            print(f"{s.name}, {n} tokens, cold: {calls:.1f} ms in the connector's calls ({calls / 10 / cold:.2f} % of the time), "
                  f"{threads:.1f} ms of CPU in the library's threads ({threads / 10 / cpu:.2f} % of CPU)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--lmcache")
    parser.add_argument("--tokens", default="4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", default="")
    parser.add_argument("--piece", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()

    lengths = [int(n) for n in args.tokens.split(",")]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti-peers-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    running, failed = [], 0
    try:
        bench = Bench(args.venv, folder)
        subprocess.run([bench.python, HERE / "model.py", folder, "--layers", str(LAYERS), "--hidden", "256",
                        "--kv-heads", str(KV_HEADS), "--positions", str(max(lengths) + 512)], env=bench.env(),
                       check=True, capture_output=True)
        # In one piece: vLLM's example stores what a request's first step computes, and no more.
        room = max(lengths) + 256
        options = {"max_model_len": room, "max_num_batched_tokens": args.piece or room, "enable_prefix_caching": True}
        known = systems(folder, args.lmcache)
        for name in args.systems.split(",") if args.systems else known:
            transfer, env = known[name]
            s = Live(name, bench, {"options": options, "transfer": transfer}, env)
            why = s.refused or gave_up(s)
            if why:
                print(f"# {name} does not run here: {why}")
                print("".join(f"#   {line}\n" for line in s.log().splitlines() if "Error" in line or "Exception" in line))
                s.close()
                continue
            s.rows, s.stores = {}, transfer is not None
            running.append(s)
        one_round(running, min(lengths), 1000)  # warm-up
        for s in running:
            s.rows.clear()
        for i in range(args.rounds):
            for n in lengths:
                one_round(running, n, 2000 + 100 * i + n, i, args.cold)
            report(running, lengths)
            report_own(running, lengths)
        # Whoever answers otherwise than the engine alone has loaded something wrong.
        for n in () if args.cold else lengths:
            want = next(s.rows[n]["tokens"] for s in running if s.name in ("memory", "none"))
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
