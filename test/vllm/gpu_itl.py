#!/usr/bin/env python3
"""Inter-token latency of running requests while blocks of other requests are loaded and stored, in a real vLLM on a GPU.

    gpu_itl.py WHAT OUT.json --folder FOLDER [options of gpu_ttft.py]

Eight requests decode. After a while a question on a stored document comes (its prefix is loaded between steps; each
document is asked about once, because from then on it is in HBM), then a new document (its blocks are stored while
decoding goes on), again and again. A step is "alone", "load" or "store" by what was in flight when it began or ended;
steps that compute another's prompt are left out. A load's and a store's median are also held against that of the steps
alone right before (the row's "against"): the machine's pace drifts. WHAT plain: an engine without a connector, for the
same steps alone.
"""
import statistics
import sys
import time

import gpu_ttft

RUNNING, DECODED, GAP, ROUNDS, STORED_TOKENS, NEW_TOKENS = 8, 2000, 40, 10, 32768, 12288


class Decode(gpu_ttft.Run):
    def stored(self, i):
        return gpu_ttft.text(f"stored document {i}", STORED_TOKENS)

    def add(self, name, prompt, n_tokens):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=n_tokens, detokenize=False, ignore_eos=True)
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self.others.add(name)

    def step(self):
        """One step of the engine; returns what was in flight when it began or ended, and how long it took."""
        flights = self.checked.scheduler()._flights if self.checked else {}
        kinds = {f.load for f in flights.values()}
        began = time.monotonic()
        got = self.llm.llm_engine.step()
        ms = 1e3 * (time.monotonic() - began)
        kinds |= {f.load for f in flights.values()}
        for out in got:
            if out.request_id in self.others:
                self.others.discard(out.request_id)
                self.tokens[out.request_id] = out.outputs[0].token_ids[0]
                self.prefilled = True
        return "load" if True in kinds else "store" if False in kinds else "alone", ms

    def measure(self):
        """Milliseconds a step, by what was in flight; and the median of each turn's beside that of the steps before."""
        steps, against = {"alone": [], "load": [], "store": []}, {"load": [], "store": []}
        self.tokens, self.others = {}, set()
        for i in range(RUNNING):
            self.add(f"run {i}", gpu_ttft.text(f"run {i}", 1024), DECODED)
        while self.others:
            self.step()
        for turn in range(2 * ROUNDS):
            before = {"alone": [], "load": [], "store": []}
            for _ in range(GAP):
                kind, ms = self.step()
                before[kind].append(ms)
            against["store"].append((before["store"], before["alone"]))  # of what the turn before computed
            for kind in steps:
                steps[kind] += before[kind]
            name, loads = f"other {turn}", turn % 2 == 0 and self.checked
            prompt = self.stored(turn // 2) + gpu_ttft.text(name, 64) if loads else gpu_ttft.text(name, NEW_TOKENS)
            self.add(name, prompt, 1)
            loading = []
            while name in self.others:
                self.prefilled = False
                kind, ms = self.step()
                if kind == "load" and not self.prefilled:
                    loading.append(ms)
            steps["load"] += loading
            against["load"].append((loading, before["alone"]))
            for _ in range(2):  # what belongs to the prompt's step may end in the next ones
                self.step()
        while self.llm.llm_engine.has_unfinished_requests():
            self.step()
        return steps, against

    def play(self):
        self.ask(gpu_ttft.text("warm", NEW_TOKENS), "warm-up")
        for i in range(ROUNDS if self.checked else 0):
            self.ask(self.stored(i) + gpu_ttft.text("end", 1), f"document {i}")
        self.settle()
        if self.checked:
            self.checked.scheduler()._rates._auto = False
        steps, against = self.measure()
        for kind, ms in steps.items():
            if len(ms) < 2:
                continue
            cut = statistics.quantiles(ms, n=20)
            row = {"name": self.name, "kind": kind, "steps": len(ms), "median_ms": statistics.median(ms),
                   "p5_ms": cut[0], "p95_ms": cut[-1]}
            ratios = [statistics.median(a) / statistics.median(b) for a, b in against.get(kind, ()) if a and len(b) > 4]
            if ratios:
                row |= {"against": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
            self.rows.append(row)
            print(self.name, {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        if self.checked and not {"load", "store"} <= {r.get("kind") for r in self.rows}:
            self.faults.append("nothing was loaded or stored beside the decoding")


if __name__ == "__main__":
    sys.exit(gpu_ttft.main(Decode))
