#!/usr/bin/env python3
"""The connector in a real vLLM on CPU: what it answers, and what it does when something goes wrong.

    run.py VENV [CASE...]

VENV: made by install.sh. Ten engines are started in all. CASE: all but the LONG ones, if none is named. Last line:
N passed, N failed, N skipped.
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
import traceback

import msgspec  # vLLM brings both
import zmq

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_S = 900  # of one engine, on a busy machine
BLOCK = 128  # tokens; vLLM's on CPU
A = {"seed": 1, "tokens": 1000}  # seven whole blocks
B = {"seed": 2, "tokens": 700, "max_tokens": 140}
CONTINUED = {"seed": 9, "tokens": 100}
KILLED = [{"seed": 50 + i, "tokens": 1500, "max_tokens": 4} for i in range(8)]
WAIT = {"sleep_s": 0.3}
LONG = ("two_ranks", "drafts", "draft_model", "eagle")  # cases that full.py asks for


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
        env["VLLM_CACHE_ROOT"] = str(self.venv / "cache")  # what vLLM finds out about its models' classes, by importing them
        preload = self.venv / "stubs" / "no-libtcmalloc-no-libiomp.so"
        if preload.exists():
            env["LD_PRELOAD"] = str(preload)
        return env

    def engine(self, requests, pool=None, ok=True, seed="0", checked=True, extra=None, env=None, **plan):
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
        done = subprocess.run([self.python, HERE / "engine.py", at, out], env=self.env(PYTHONHASHSEED=seed, **(env or {})),
                              capture_output=True, text=True, timeout=TIMEOUT_S)
        log = done.stdout + done.stderr
        if ok and done.returncode:
            raise AssertionError(f"engine ended with {done.returncode}: {log[-3000:]}")
        return json.loads(out.read_text()) if out.exists() else [], log


def same(a, b):
    """Tokens, logprobs and the bytes of every whole block in the KV cache, to the last bit."""
    assert a["tokens"] == b["tokens"], (a["tokens"], b["tokens"])
    assert a["logprobs"] == b["logprobs"], "logprobs differ"
    assert a["finish"] == b["finish"] == "length"
    assert len(a["kv"]) >= 6 and a["kv"] == b["kv"], f"KV bytes differ: {a['kv']} {b['kv']}"


def sound(sums):
    """Every loaded byte was right, and nothing is left behind."""
    assert sums["different"] == 0, sums
    assert sums["flights"] == sums["leased"] == sums["reserved"] == 0, sums
    return sums


def answers(b):
    """Without a connector. "mended": vLLM's own prefix cache held blocks 0 to 2 and the rest was computed in one piece,
    which is what a load does that finds block 3 damaged. Every other case is compared with these, to the last bit."""
    if not hasattr(b, "plain"):
        plain, _ = b.engine([A, A, {"forget": [0, 3]}, A, A, B, {**CONTINUED, "continues": 4}, KILLED],
                            options={"enable_prefix_caching": True})
        assert [p["cached"] for p in plain] == [0, 896, 384, 896, 0, 768] + [0] * len(KILLED)
        assert plain[0]["kv"][:3] == plain[2]["kv"][:3]  # behind them the bytes differ in some versions
        names = ("miss", "hit", "mended", "mended hit", "B", "continued")
        b.plain = {**dict(zip(names, plain)), "killed": plain[len(names):]}
    return b.plain


def warm(b):
    """The pool as the first case leaves it; for cases that are run alone."""
    if not (b.folder / "pool").exists():
        case_store_and_load(b)


def case_store_and_load(b):
    """A miss, a hit, tenants apart, and an answer's blocks come back; no prefix cache of vLLM's own."""
    want = answers(b)
    salted = {**A, "salt": "x"}
    got, _ = b.engine([A, WAIT, A, salted, WAIT, salted, {**A, "salt": "y"}, B, WAIT, {**CONTINUED, "continues": 5}],
                      "pool", seed="1")
    assert [g["cached"] for g in got[:-1]] == [0, 896, 0, 896, 0, 0, 768]
    for g, w in zip(got, ("miss", "hit", "miss", "hit", "miss", "B", "continued")):
        same(g, want[w])
    sums = sound(got[-1])
    assert sums["compared"] == 7 + 7 + 6 and sums["stored"] >= 3 * 7 + 6


def case_restart(b):
    """Another process, another PYTHONHASHSEED, prefix caching on: warm. Then SIGKILL while stores are in flight."""
    warm(b)
    want = answers(b)
    got, _ = b.engine([A, A, {"kill": True}, KILLED], "pool", ok=False, seed="2",
                      options={"enable_prefix_caching": True})
    assert [g["cached"] for g in got[:-1]] == [896, 896]
    same(got[0], want["hit"])
    same(got[1], want["hit"])
    assert got[-1]["flying"] > 0
    print(f"# killed with {got[-1]['flying']} blocks in flight")


def case_after_kill(b):
    """The pool outlived it: hits for what was committed, and no wrong byte in what was in flight."""
    warm(b)
    want = answers(b)
    got, log = b.engine([A, KILLED], "pool", seed="3")
    assert got[0]["cached"] == 896
    same(got[0], want["hit"])
    for g, w in zip(got[1:-1], want["killed"]):
        assert g["tokens"] == w["tokens"]
    sound(got[-1])
    assert re.search(r"warm: [1-9]\d* blocks", log)


def damaged(b, mode, blocks, requests, **options):
    """Answers of requests that begin with A, after one byte of each of these blocks was changed in the pool. Its salted
    twin, which has blocks of its own with the same bytes, is damaged like it, and asked twice at once in the end."""
    warm(b)
    want = answers(b)
    shutil.copy(b.folder / "pool", b.folder / "damaged")
    shutil.copy(b.folder / "pool.digests", b.folder / "damaged.digests")
    stored = list(json.loads((b.folder / "damaged.digests").read_text()).values())  # A's were the first
    with open(b.folder / "damaged", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        for block in blocks:
            mark = bytes.fromhex(stored[block][1])
            found = [at.start() for at in re.finditer(re.escape(mark), m)]
            assert len(found) == 3, found  # two salts, and none
            for at in found:
                m[at + 4321] ^= 0x55
        m.flush()
    twin = {**A, "salt": "x"}
    got, log = b.engine([*requests, [twin, twin]], "damaged", extra={"mode": mode}, options=options)
    sums = sound(got.pop())
    if "mode layerwise was asked for, but async is used" in log:  # an older vLLM
        mode = "async"
    assert f"mode {mode}, " in log
    assert (sums["counts"]["layer_wait_ns"] > 0) == (mode == "layerwise"), sums  # only where a pass waits for layers
    assert sums["failed"][0] == blocks and blocks in sums["failed"][1:], sums
    same(got[0], want["mended"])
    for g in got[-2:]:
        assert g["tokens"] == want["miss"]["tokens"] and g["finish"] == "length"
    if mode == "layerwise":
        assert sums["forgotten"] >= 4  # blocks that vLLM's own prefix cache had
    return got


def case_damaged_async(b):
    """Damaged blocks are found before they are computed with, computed again, and stored again."""
    got = damaged(b, "async", [3, 4, 5, 6], [A, WAIT, A])
    assert got[1]["cached"] == 896
    same(got[1], answers(b)["mended hit"])


def case_damaged_layerwise(b):
    """A damaged block is found while it is computed with: that step's results are thrown away, and it leaves vLLM's own
    prefix cache with all behind it."""
    got = damaged(b, "layerwise", [3], [A, A, WAIT, A], enable_prefix_caching=True)
    miss, mended = (answers(b)[k] for k in ("miss", "mended"))
    for g in got[1:3]:  # blocks 4 to 6 are in the pool as the first pass computed them, and here as the mending one did
        assert g["tokens"] == miss["tokens"] and g["cached"] >= 384
        assert g["kv"][:4] == mended["kv"][:4]
        assert all(k in pair for k, pair in zip(g["kv"][4:], zip(miss["kv"][4:], mended["kv"][4:])))
    assert got[2]["cached"] == 896


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
    # A block loads in two seconds, 1000 tokens in 14. The probe reads four blocks meanwhile; a few steps tell of them.
    got, log = b.engine([A, {"seed": 3, "tokens": 1000}, {"seed": 4, "tokens": 1000}, {"sleep_s": 9},
                         {"seed": 5, "tokens": 40}, A, A], "slow",
                        extra={"recompute_break_even": "auto", "controller": "model", "read_bytes_per_s": "128K"})
    counts = sound(got[-1])["counts"]
    assert counts["stored_blocks"] >= 21 and counts["break_even"] == 2, counts
    assert counts["loads"] == 0 and not counts["loaded_bytes"], counts
    assert [g["cached"] for g in got[:-1]] == [0] * 6
    said = re.search(r"recomputing is faster here: a block loads in [\d.]+ ms and is computed in ([\d.]+) ms", log)
    assert said and float(said[1]) > 0.1, said  # of passes, not of nothing


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


def case_two_ranks(b):
    """Tensor parallelism: each rank stores and loads its own heads, and a hit is one for both. Bytes are not looked at
    here, because the workers are processes; logprobs are, to the last bit, also after a restart."""
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "enable_prefix_caching": True}
    plan = {"options": options, "watch": False, "checked": False, "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}}
    plain, _ = b.engine([A, A], **plan)
    got, log = b.engine([A, WAIT, {**A, "salt": "x"}], "two", **plan)
    again, log2 = b.engine([A, A], "two", seed="7", **plan)
    assert [a["cached"] for a in plain + got + again] == [0, 896, 0, 0, 896, 896]
    for a, w in zip(got + again, [plain[0], plain[0], plain[1], plain[1]]):
        assert a["tokens"] == w["tokens"] and a["logprobs"] == w["logprobs"]
    assert "rank 1 moves its blocks by" in log2 and "warm: 14 blocks" in log2


def speculates(b, pool, config):
    """A long answer, and a hit on what it left, equal to the last bit those of the same engine without a connector: tokens,
    logprobs, and KV of every layer. Returns [guessed tokens, those that were right]."""
    asked = [{**B, "max_tokens": 330}, WAIT, {**CONTINUED, "continues": 0}]
    plain, _ = b.engine(asked, options={"speculative_config": config, "enable_prefix_caching": True})
    got, _ = b.engine(asked, pool, options={"speculative_config": config})
    assert [g["cached"] for g in plain] == [g["cached"] for g in got[:-1]] == [0, 1024]
    for g, w in zip(got, plain):
        same(g, w)
        assert g["drafts"] == w["drafts"], (g["drafts"], w["drafts"])
    assert sound(got[-1])["compared"] == 8
    guessed, right = got[-2]["drafts"]
    print(f"# {right} of {guessed} guessed tokens were right")
    return guessed, right


def case_drafts(b):
    """Speculative decoding: guesses that the model rejects leave no trace in what is stored of an answer."""
    guessed, right = speculates(b, "drafts", {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2,
                                              "prompt_lookup_min": 1})
    assert guessed - right > 50


def case_draft_model(b):
    """A draft model's layers are stored and loaded like the model's: after a hit it guesses as it would have without. One
    whose KV has another shape is refused."""
    made = [b.python, HERE / "model.py"]
    subprocess.run([*made, b.folder / "draft", "--noise", "0.03"], env=b.env(), check=True, capture_output=True)
    subprocess.run([*made, b.folder / "wide", "--layers", "1", "--kv-heads", "4"], env=b.env(), check=True,
                   capture_output=True)
    config = {"method": "draft_model", "model": str(b.folder / "draft/model"), "num_speculative_tokens": 3}
    guessed, right = speculates(b, "draftmodel", config)
    assert right > 50 and guessed - right > 50
    got, log = b.engine([A], "wide.pool", ok=False,
                        options={"speculative_config": {**config, "model": str(b.folder / "wide/model")}})
    assert not got and "tutti: not supported: the model has" in log, log[-3000:]


def case_eagle(b):
    """EAGLE's head reads the model's hidden states, and its layer's KV lies in the same blocks."""
    subprocess.run([b.python, HERE / "model.py", b.folder / "withhead", "--eagle"], env=b.env(), check=True,
                   capture_output=True)
    # A block's last place holds what the head made of the next block's first token. vLLM's own prefix cache therefore
    # leaves out the last block of a hit, for better guesses; here it has to take what the connector does.
    config = {"method": "eagle", "model": str(b.folder / "withhead/eagle"), "num_speculative_tokens": 3,
              "disable_eagle_block_drop": True}
    guessed, right = speculates(b, "eagle", config)
    assert guessed - right > 50


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


FIELDS = {"BlockStored": ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
          "BlockRemoved": ("type", "block_hashes", "medium")}


def events_of(subscriber):
    """All KV events that have come, as dicts; older versions send lists."""
    events = []
    while subscriber.poll(0):
        _, _, payload = subscriber.recv_multipart()
        for e in msgspec.msgpack.decode(payload)[1]:
            events.append(e if isinstance(e, dict) else dict(zip(FIELDS.get(e[0], ("type",)), e)))
    return events


def check_events(events, prompts):
    """What the pool announced: whole blocks of these prompts, chained; and removed is only what was stored before."""
    ours = [e for e in events if e.get("medium") == "STORAGE"]
    blocks = {tuple(p[i:i + BLOCK]) for p in prompts for i in range(0, len(p) - BLOCK + 1, BLOCK)}
    stored, removed = {}, 0
    for e in ours:
        name, hashes = e["type"], e["block_hashes"]
        if name == "BlockStored":
            parent, tokens = e["parent_block_hash"], e["token_ids"]
            assert e["block_size"] == BLOCK and len(tokens) == BLOCK * len(hashes) and (parent is None or parent in stored)
            assert all(tuple(tokens[i:i + BLOCK]) in blocks for i in range(0, len(tokens), BLOCK))
            stored.update(dict.fromkeys(hashes, True))
        else:
            assert name == "BlockRemoved" and all(stored.get(h) for h in hashes)
            stored.update(dict.fromkeys(hashes, False))
            removed += len(hashes)
    assert len(stored) == 20 * 11 and removed > 0, (len(stored), removed)
    return sum(stored.values())


def case_server(b):
    """20 streams at once through the OpenAI server, three processes, a pool smaller than what they need: the same answers
    in each round, counters in /metrics and in the log, and KV events that say what the pool has."""
    b.starts += 1
    port, events_port = free_ports(2)
    transfer = {"kv_connector": "TuttiConnector", "kv_connector_module_path": "tutti.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
                    "pool": str(b.folder / "small"), "size": "48M", "recompute_break_even": "off",
                    "store": "prompts"}}
    publish = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{events_port}"}
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.set_hwm(0)
    subscriber.subscribe(b"")
    subscriber.connect(f"tcp://127.0.0.1:{events_port}")
    env = b.env()
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    log = open(b.folder / "server.log", "w+")
    server = subprocess.Popen(
        [b.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(b.folder / "model"), "--served-model-name",
         "m", "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
         "--max-num-seqs", "8", "--no-enable-prefix-caching", "--port", str(port), "--kv-transfer-config",
         json.dumps(transfer), "--kv-events-config", json.dumps(publish)], env=env, stdout=log, stderr=subprocess.STDOUT)
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
        time.sleep(6)  # evictions are looked for every five seconds
        assert request_of(port, prompts[0], 12) == rounds[0][0]
        time.sleep(0.5)
        there = check_events(events_of(subscriber), prompts)
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("GET", "/metrics")
        metrics = dict(re.findall(r"^(vllm:tutti_\w+)\{[^}]*\} ([\d.e+]+)$", c.getresponse().read().decode(), re.M))
        stored, loaded = (float(metrics[f"vllm:tutti_{k}_blocks_total"]) for k in ("stored", "loaded"))
        assert stored > 20 * 11 and loaded > 0, metrics  # more than 20 prompts' blocks: some were evicted between
        assert float(metrics["vllm:tutti_failed_blocks_total"]) == 0
        assert 0 < there < 20 * 11
        said = pathlib.Path(log.name).read_text()
        assert re.search(r"KV Transfer metrics: .*stored_blocks=\d", said), said[-2000:]
    except Exception:
        print(pathlib.Path(log.name).read_text()[-4000:])
        raise
    finally:
        subscriber.close(0)
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def main():
    cases = [(n[5:], f) for n, f in globals().items() if n.startswith("case_")]
    chosen = sys.argv[2:] or [n for n, _ in cases if n not in LONG]
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
                at = traceback.extract_tb(e.__traceback__)[-1]
                print(f"not ok {name}: line {at.lineno}, {at.line}: {type(e).__name__}: {e}", flush=True)
        print(f"{bench.starts} engines started")
    finally:
        shutil.rmtree(folder)
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
