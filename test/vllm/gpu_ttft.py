#!/usr/bin/env python3
"""Time to first token of a Llama-3-8B shape (dummy weights) in a real vLLM on one GPU, by where a prefix comes from.

    gpu_ttft.py WHAT OUT.json [options]

WHAT: plain (recomputed, or the prefix in HBM), dram (vLLM's OffloadingConnector, pinned memory), lmcache-dram,
lmcache-layerwise, lmcache-disk (LMCache 0.5.3), tutti. One engine, one request at a time: a document is asked about
once, then questions that share a part of it with new text behind; a document for each length. With tutti, every loaded
byte is compared in a question of its own at each hit ratio; then hits are loaded whatever the break-even says
("timed"), then as it says ("auto"). --damage flips bytes in the pool between the two. OUT: facts, and a row a question.
Ends with status 1 where a byte, or a token, was wrong.
"""
import argparse
import fcntl
import json
import mmap
import os
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096, intermediate_size=14336,
              num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256,
              max_position_embeddings=262144, rms_norm_eps=1e-5, rope_theta=500000.0, torch_dtype="bfloat16",
              tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, hidden_act="silu")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("plain", "dram", "lmcache-dram", "lmcache-layerwise", "lmcache-disk", "tutti"))
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--folder", type=pathlib.Path, required=True, help="for the model's configuration")
    p.add_argument("--name", help="of the rows; WHAT if not given")
    p.add_argument("--connector", default="{}", help="kv_connector_extra_config, JSON")
    p.add_argument("--lengths", default="65536", help="tokens of a question, some")
    p.add_argument("--hits", default="0.984,0.9375,0.75,0")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--batched", type=int, default=16384, help="tokens of an engine step")
    p.add_argument("--memory", type=float, default=0.5, help="share of the GPU's memory for the engine")
    p.add_argument("--dram", type=int, default=24, help="GiB of a peer's DRAM tier")
    p.add_argument("--graphs", action="store_true", help="CUDA graphs for steps that only decode, else none")
    p.add_argument("--no-async-scheduling", action="store_true", help="as layerwise needs, with VLLM_USE_V2_MODEL_RUNNER=0")
    p.add_argument("--damage", type=int, default=0, help="pages to damage")
    p.add_argument("--turn", type=pathlib.Path, help="a file: engines with the same one go one after the other")
    args = p.parse_args()
    args.tokens = [int(n) for n in args.lengths.split(",")]
    return args


def text(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 128000) for _ in range(n)]


class Run:
    def __init__(self, args):
        self.args, self.rows, self.faults = args, [], []
        self.name = args.name or args.what
        self.checked = None
        self.llm = self.start()

    def start(self):
        a = self.args
        a.folder.mkdir(parents=True, exist_ok=True)
        (a.folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": a.layers}))
        from vllm import LLM
        from vllm.config import KVTransferConfig

        if a.turn:
            self.lock = a.turn.open("w")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        began, more = time.monotonic(), {"async_scheduling": False} if a.no_async_scheduling else {}
        if a.what == "dram":
            more["kv_transfer_config"] = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both",
                                                          kv_connector_extra_config={"cpu_bytes_to_use": a.dram << 30})
        if a.what == "tutti":
            sys.path.insert(0, str(HERE))
            more["kv_transfer_config"] = KVTransferConfig(
                kv_connector="GpuCheckedConnector", kv_connector_module_path="gpu_checked", kv_role="kv_both",
                kv_load_failure_policy="recompute", kv_connector_extra_config=json.loads(a.connector))
        if a.what.startswith("lmcache"):
            more["kv_transfer_config"] = KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
        if a.graphs:
            more["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [8]}
        llm = LLM(model=str(a.folder), load_format="dummy", skip_tokenizer_init=True, max_num_seqs=16,
                  max_model_len=max(a.tokens) + 4096, gpu_memory_utilization=a.memory, enable_prefix_caching=True,
                  disable_log_stats=False, enforce_eager=not a.graphs, max_num_batched_tokens=a.batched, **more)
        if a.what == "tutti":
            import gpu_checked

            self.checked = gpu_checked
        print(f"{self.name}: engine in {time.monotonic() - began:.1f} s", flush=True)
        return llm

    def ask(self, prompt, label, hit=None, kind=""):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True, logprobs=1)
        began = time.monotonic()
        out = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        wall = time.monotonic() - began
        first = out.outputs[0]
        row = {"name": self.name, "label": label, "hit": hit, "kind": kind, "tokens": len(prompt),
               "cached": out.num_cached_tokens, "wall_s": round(wall, 4), "token": first.token_ids[0],
               "ttft_s": round(getattr(out.metrics, "first_token_latency", 0) or 0, 4), "finish": first.finish_reason,
               "logprob": next(iter(first.logprobs[0].values())).logprob}
        if self.checked:
            w, s = self.checked.worker(), self.checked.scheduler()
            row["counts"] = {**w.counts, **s.counts}
        self.rows.append(row)
        print("%-10s %-22s n %d cached %s ttft %.3f wall %.3f token %d logprob %.5f %s" % (
            self.name, label, len(prompt), row["cached"], row["ttft_s"], wall, row["token"], row["logprob"],
            first.finish_reason), flush=True)
        return row

    def settle(self):
        """Until stores have ended; then the engine's own prefix cache is emptied, but for HBM hits."""
        from vllm import SamplingParams

        few = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)
        until = time.monotonic() + 30
        for i in range(3000):
            self.llm.generate([{"prompt_token_ids": text(f"tick {len(self.rows)} {i}", 8)}], few, use_tqdm=False)
            if self.settled(i):
                break
            if time.monotonic() > until:
                self.faults.append("stores do not end")
                break
            time.sleep(0.5 if self.args.what == "dram" else 0.02)
        if self.args.what != "plain" and not self.llm.reset_prefix_cache():
            self.faults.append("the prefix cache could not be emptied")

    def settled(self, looks):
        if self.checked:
            return not self.checked.scheduler().busy
        if self.args.what.startswith("lmcache"):
            import gpu_lmcache

            return looks >= 2 and gpu_lmcache.pending() == 0
        return looks >= 2

    def question(self, hit, rep):
        n = int(len(self.doc) * hit) // 16 * 16
        return self.doc[:n] + text(f"{len(self.doc)} {hit} {rep}", len(self.doc) - n), n

    def hits(self, hits, reps, kind):
        for hit in hits:
            for rep in range(reps):
                prompt, n = self.question(hit, rep)
                if self.checked and kind == "checked":
                    self.checked.compare = True
                row = self.ask(prompt, f"{kind} {hit} rep {rep}", hit, kind)
                if self.checked:
                    self.checked.compare = False
                if self.checked and kind == "checked" and n and row["cached"] < n:
                    self.faults.append(f"{row['label']}: {row['cached']} of {n} tokens were loaded")
                self.settle()

    def play(self):
        hits = [float(h) for h in self.args.hits.split(",")]
        self.ask(text("warm 1", 2048), "warm-up")
        self.ask(text("warm 2", max(self.args.tokens)), "warm-up")
        self.settle()
        for n in self.args.tokens:
            self.length(n, hits)

    def length(self, tokens, hits):
        a = self.args
        self.doc = text(f"document of {tokens}", tokens)
        if self.checked:
            self.checked.keep = True
        self.ask(self.doc + text("end", 1), "document")
        self.settle()
        if self.checked:
            self.checked.keep = False
            rates = self.checked.scheduler()._rates
            auto, rates._auto = rates._auto, False
            self.hits([h for h in hits if h], 1, "checked")
            if a.graphs:
                self.one_token_left()
        self.hits([h for h in hits if h], a.reps, "timed")
        if a.damage:
            self.damaged(hits)
        if self.checked:
            rates._auto = auto
            self.hits([h for h in hits if h], 1, "auto")
        if 0 in hits:
            self.hits([0.0], a.reps, "timed")

    def one_token_left(self):
        """A step that only decodes, one graph as a whole, with a load that it computes with."""
        self.checked.compare = True
        row = self.ask(self.doc + text("last", 1), "checked, one token left", kind="checked")
        self.settle()
        self.checked.compare = False
        if row["cached"] != len(self.doc) // 16 * 16:
            self.faults.append(f"{row['label']}: {row['cached']} of {len(self.doc)} tokens were loaded")

    def damaged(self, hits):
        """Bytes flip under the engine's feet: what it answers must not change."""
        hit = max(hits)
        prompt, _ = self.question(hit, 0)
        for path in json.loads(self.args.connector)["pool"]:
            r = random.Random(5)
            with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
                for _ in range(self.args.damage):
                    at = r.randrange(256, len(m) // 4096) * 4096
                    if m[at:at + 4096].count(0) < 256:  # of a block, not of a header
                        m[at + 100] ^= 0x55
                m.flush()
        self.checked.compare = True
        row = self.ask(prompt, f"damaged {hit}", hit, "damaged")
        self.settle()
        self.checked.compare = False
        again = self.ask(prompt, f"mended {hit}", hit, "mended")
        self.settle()
        want = next(r for r in self.rows if r["label"] == f"checked {hit} rep 0")
        if row["token"] != want["token"] or again["token"] != want["token"]:
            self.faults.append(f"damage changed the answer: {want['token']}, {row['token']}, then {again['token']}")
        if row["counts"]["failed_blocks"] == 0:
            self.faults.append("no damage was met")

    def end(self):
        out = {"name": self.name, "what": self.args.what, "rows": self.rows, "faults": self.faults,
               "tokens": self.args.tokens}
        if self.checked:
            out["sums"], s = dict(self.checked.sums), self.checked.scheduler()
            out["paths"] = s.paths
            stats = self.checked.worker()._lane.stats()
            out["lane"] = {f: getattr(stats, f) for f in stats.__dataclass_fields__}
            if out["sums"]["different_blocks"] or out["sums"]["kept"] and not out["sums"]["compared_blocks"]:
                self.faults.append(f"bytes: {out['sums']}")
            print(out["sums"], out["paths"], flush=True)
        self.args.out.write_text(json.dumps(out, indent=1))
        for fault in self.faults:
            print("FAULT", self.name, fault, flush=True)
        return 1 if self.faults else 0


def main(play=Run):
    args = arguments()
    if args.what.startswith("lmcache"):
        sys.path.insert(0, str(HERE))
        import gpu_lmcache

        gpu_lmcache.prepare(args.what.removeprefix("lmcache-"), args.folder, args.dram)
    for name, value in (("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1"), ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
                        ("VLLM_USE_FLASHINFER_SAMPLER", "0")):
        os.environ.setdefault(name, value)
    run = play(args)
    try:
        run.play()
    finally:
        status = run.end()
    sys.stdout.flush()
    if args.what.startswith("lmcache"):
        os._exit(status)  # its threads don't end: shutdown hung in LMCache 0.5.3
    run.llm.llm_engine.engine_core.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
