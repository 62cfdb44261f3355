#!/usr/bin/env python3
"""The connector in a real vLLM on CPU: what it answers, and what it does when something goes wrong.

    run.py VENV [CASE...]

VENV: made by install.sh. Each case starts an engine or two; ten starts in all. Last line: N passed, N failed, N
skipped.
"""
import concurrent.futures
import http.client
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_S = 420  # of one engine, on a busy machine
BLOCK = 128  # tokens; vLLM's on CPU
A = {"seed": 1, "tokens": 1000}  # seven whole blocks
B = {"seed": 2, "tokens": 700, "max_tokens": 140}
WAIT = {"sleep_s": 0.3}


class Bench:
    """A folder with a model, and engines in it."""

    def __init__(self, venv, folder):
        self.venv, self.folder = pathlib.Path(venv), pathlib.Path(folder)
        self.python = str(self.venv / "bin/python")
        self.starts = 0
        subprocess.run([self.python, HERE / "model.py", self.folder], env=self.env(), check=True, capture_output=True)

    def env(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON"))}
        env.update(LD_LIBRARY_PATH=str(self.venv / "stubs"), PYTHONPATH=str(HERE), VLLM_CPU_KVCACHE_SPACE="1",
                   HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                   HOME=str(self.folder / "home"), PATH=f"{self.venv / 'bin'}:{env['PATH']}", **more)
        return env

    def engine(self, requests, pool=None, ok=True, seed="0", checked=True, extra=None, **plan):
        """Runs engine.py; returns (answers, log). pool None: no connector."""
        self.starts += 1
        plan.update(model=str(self.folder / "model"), requests=requests)
        if pool is not None:
            plan["connector"] = {"pool": str(self.folder / pool), "size": "128M", "recompute_break_even": "off"}
            plan["connector"].update(extra or {})
            if checked:
                plan["checked"] = True
                plan["connector"]["digests"] = str(self.folder / f"{pool}.digests")
        at, out = self.folder / "plan.json", self.folder / "out.json"
        at.write_text(json.dumps(plan))
        out.unlink(missing_ok=True)
        done = subprocess.run([self.python, HERE / "engine.py", at, out], env=self.env(PYTHONHASHSEED=seed),
                              capture_output=True, text=True, timeout=TIMEOUT_S)
        log = done.stdout + done.stderr
        if ok and done.returncode:
            raise AssertionError(f"engine ended with {done.returncode}: {log[-3000:]}")
        return json.loads(out.read_text()) if out.exists() else [], log


def same(a, b):
    """Tokens and logprobs, to the last bit."""
    assert a["tokens"] == b["tokens"], (a["tokens"], b["tokens"])
    assert a["logprobs"] == b["logprobs"], "logprobs differ"
    assert a["finish"] == b["finish"] == "length"


def sound(sums):
    """Every loaded byte was right, and nothing is left behind."""
    assert sums["different"] == 0, sums
    assert sums["flights"] == sums["leased"] == sums["reserved"] == 0, sums
    return sums


def answers(b):
    """Without a connector: computed whole, and with vLLM's own prefix cache. Every other case is compared with these."""
    if not hasattr(b, "plain"):
        plain, _ = b.engine([A, A, B, {"seed": 9, "tokens": 100, "continues": 2}],
                            options={"enable_prefix_caching": True})
        assert [p["cached"] for p in plain] == [0, 896, 0, 768]
        b.plain = {"miss": plain[0], "hit": plain[1], "B": plain[2], "continued": plain[3]}
    return b.plain


def warm(b):
    """The pool as the first case leaves it; for cases that are run alone."""
    if not (b.folder / "pool").exists():
        b.engine([A, WAIT, A], "pool")


def case_store_and_load(b):
    """A miss, a hit, tenants apart, and an answer's blocks come back; no prefix cache of vLLM's own."""
    want = answers(b)
    salted = {**A, "salt": "x"}
    got, _ = b.engine([A, WAIT, A, salted, WAIT, salted, {**A, "salt": "y"}, B, WAIT,
                       {"seed": 9, "tokens": 100, "continues": 5}], "pool", seed="1")
    assert [g["cached"] for g in got[:-1]] == [0, 896, 0, 896, 0, 0, 768]
    for g, w in zip(got, ("miss", "hit", "miss", "hit", "miss", "B", "continued")):
        same(g, want[w])
    sums = sound(got[-1])
    assert sums["compared"] == 7 + 7 + 6 and sums["stored"] >= 3 * 7 + 6


def case_restart(b):
    """Another process, another PYTHONHASHSEED, prefix caching on: warm. Then SIGKILL while it stores."""
    warm(b)
    want = answers(b)
    got, _ = b.engine([A, A, {"kill_in_s": 2}] + [[{"seed": 50 + i, "tokens": 1500} for i in range(8)]] * 2, "pool",
                      ok=False, seed="2", options={"enable_prefix_caching": True})
    assert [g["cached"] for g in got] == [896, 896]
    same(got[0], want["hit"])
    same(got[1], want["hit"])


def case_after_kill(b):
    """The pool outlived it: hits for what was committed, and no wrong byte in what was in flight."""
    warm(b)
    want = answers(b)
    got, log = b.engine([A] + [{"seed": 50 + i, "tokens": 1500, "max_tokens": 1} for i in range(3)], "pool", seed="3")
    assert got[0]["cached"] == 896
    same(got[0], want["hit"])
    sound(got[-1])
    assert re.search(r"warm: [1-9]\d* blocks", log)


def corrupt(path, part):
    """Flips a byte in a part of the 64 KiB pieces that hold KV (few of their bytes are zero)."""
    r = random.Random(5)
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        pieces = sorted({at >> 16 for at in range(1 << 20, len(m), 4096) if m[at:at + 4096].count(0) < 64})
        assert len(pieces) > 20
        for piece in r.sample(pieces, int(part * len(pieces))):
            at = next(a for a in range(piece << 16, (piece + 1) << 16, 4096) if m[a:a + 4096].count(0) < 64)
            m[at + 100] ^= 0x55
        m.flush()


def damaged(b, mode):
    warm(b)
    want = answers(b)
    shutil.copy(b.folder / "pool", b.folder / "damaged")
    shutil.copy(b.folder / "pool.digests", b.folder / "damaged.digests")
    corrupt(b.folder / "damaged", 0.1)
    got, _ = b.engine([[A, A], WAIT, A, WAIT, A], "damaged", extra={"mode": mode})
    sums = sound(got[-1])
    assert sums["counts"]["failed_blocks"] > 0 and sums["compared"] > 0
    for g in got[:-1]:
        assert g["tokens"] == want["miss"]["tokens"] and g["finish"] == "length"
        close(g, want["miss"])
    assert got[-2]["cached"] == 896  # all damage of this prefix is mended by now


def close(a, b):
    """The same but for rounding: a part of the prompt is computed alone, in matrices of another size."""
    for x, y in zip(a["logprobs"], b["logprobs"]):
        have = dict(y)
        assert all(abs(v - have[k]) < 1e-3 for k, v in x if k in have)


def case_damaged_async(b):
    """Damaged blocks are found before they are computed with, and computed again."""
    damaged(b, "async")


def case_damaged_layerwise(b):
    """Damaged blocks are found while they are computed with; that step's results are thrown away."""
    damaged(b, "layerwise")


def case_second_engine(b):
    """A pool that another process has open is refused, with that process' name."""
    warm(b)
    hold = ("import sys, tutti; p = tutti.Pool.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()")
    holder = subprocess.Popen([b.python, "-c", hold, b.folder / "pool"], env=b.env(), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "open\n"
        got, log = b.engine([A], "pool", ok=False)
        assert not got and f"process {holder.pid} " in log, log[-2000:]
    finally:
        holder.stdin.close()
        holder.wait(60)


def case_lora(b):
    """Adapters are told apart by content: two do not share blocks, the same one under another name does."""
    def lora(i, name, folder):
        return {"lora": {"id": i, "name": name, "path": str(b.folder / folder)}}

    one, two, again = lora(1, "one", "lora1"), lora(2, "two", "lora2"), lora(3, "other-name", "lora1")
    got, _ = b.engine([A, {**A, **one}, {**A, **two}, WAIT, {**A, **one}, {**A, **two}, {**A, **again}], "lorapool",
                      options={"enable_lora": True, "max_loras": 1, "max_lora_rank": 8})
    assert [g["cached"] for g in got[:-1]] == [0, 0, 0, 896, 896, 896]
    assert got[1]["tokens"] != got[2]["tokens"] != got[0]["tokens"]
    assert got[3]["tokens"] == got[1]["tokens"] == got[5]["tokens"] and got[4]["tokens"] == got[2]["tokens"]
    sound(got[-1])


def case_break_even(b):
    """A tiny model on a slow disk does not load at all."""
    got, log = b.engine([A, {"seed": 3, "tokens": 1000}, {"seed": 4, "tokens": 1000}, WAIT, A, A], "slow",
                        extra={"recompute_break_even": "auto", "controller": "model", "read_bytes_per_s": "1M"})
    counts = sound(got[-1])["counts"]
    assert counts["loads"] == 0 and counts["break_even"] == 2 and not counts["loaded_bytes"], counts
    assert [g["cached"] for g in got[:-1]] == [0] * 5
    assert "recomputing is faster" in log


def request_of(port, tokens, n):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    body = {"model": "m", "prompt": tokens, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
            "return_token_ids": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    ids = []
    for line in answer.read().decode().splitlines():
        if line.startswith("data: {"):
            said = json.loads(line[6:])
            assert "choices" in said, said
            ids += said["choices"][0].get("token_ids") or []
    return ids


def case_server(b):
    """20 streams at once through the OpenAI server, three processes, a pool smaller than what they need."""
    b.starts += 1
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    transfer = {"kv_connector": "TuttiConnector", "kv_connector_module_path": "tutti.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
                    "pool": str(b.folder / "small"), "size": "48M", "recompute_break_even": "off"}}
    env = b.env()
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    log = open(b.folder / "server.log", "w+")
    server = subprocess.Popen(
        [b.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(b.folder / "model"), "--served-model-name",
         "m", "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
         "--max-num-seqs", "8", "--no-enable-prefix-caching", "--port", str(port), "--kv-transfer-config",
         json.dumps(transfer)], env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + TIMEOUT_S
        while True:
            assert server.poll() is None and time.monotonic() < end, pathlib.Path(log.name).read_text()[-3000:]
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.5)
        prompts = []
        for i in range(20):
            r = random.Random(100 + i)
            prompts.append([r.randrange(3, 1000) for _ in range(1500)])
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            rounds = [list(pool.map(lambda p: request_of(port, p, 12), prompts)) for _ in range(3)]
        assert all(len(ids) == 12 for ids in rounds[0])
        assert rounds[0] == rounds[1] == rounds[2]
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("GET", "/metrics")
        metrics = dict(re.findall(r"^(vllm:tutti_\w+)\{[^}]*\} ([\d.e+]+)$", c.getresponse().read().decode(), re.M))
        stored, loaded = (float(metrics[f"vllm:tutti_{k}_blocks_total"]) for k in ("stored", "loaded"))
        assert stored > 20 * 11 and loaded > 0, metrics  # more than 20 prompts' blocks: some were evicted between
        assert float(metrics["vllm:tutti_failed_blocks_total"]) == 0
    except Exception:
        print(pathlib.Path(log.name).read_text()[-4000:])
        raise
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def main():
    cases = [(n[5:], f) for n, f in globals().items() if n.startswith("case_")]
    chosen = sys.argv[2:] or [n for n, _ in cases]
    folder, failed = tempfile.mkdtemp(prefix="tutti-vllm-"), 0
    try:
        bench = Bench(sys.argv[1], folder)
        for name, case in cases:
            if name not in chosen:
                continue
            began = time.monotonic()
            try:
                case(bench)
                print(f"ok {name} ({time.monotonic() - began:.0f} s)", flush=True)
            except Exception as e:  # the next case may tell more
                failed += 1
                print(f"not ok {name}: {type(e).__name__}: {e}", flush=True)
        print(f"{bench.starts} engines started")
    finally:
        shutil.rmtree(folder)
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
