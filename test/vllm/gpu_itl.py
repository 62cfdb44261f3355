#!/usr/bin/env python3
"""Inter-token latency of running requests while blocks of other requests are loaded and stored, in a real vLLM on a GPU.

    gpu_itl.py WHAT OUT.json --folder FOLDER [options of gpu_ttft.py]

Eight requests decode. After a while a question on a stored document comes (its prefix is loaded between steps), then a
new document (its blocks are stored while decoding goes on), again and again. A step is "alone", "load" or "store" by
what was in flight when it began or ended; steps that compute another's prompt are left out. WHAT plain: an engine
without a connector, for the same steps alone.
"""
import statistics
import sys
import time

import gpu_ttft

RUNNING, DECODED, GAP, ROUNDS, NEW_TOKENS = 8, 1500, 40, 8, 12288


class Decode(gpu_ttft.Run):
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
        """Milliseconds a step, by what was in flight."""
        steps = {"alone": [], "load": [], "store": []}
        self.tokens, self.others = {}, set()
        for i in range(RUNNING):
            self.add(f"run {i}", gpu_ttft.text(f"run {i}", 1024), DECODED)
        while self.others:
            self.step()
        for turn in range(2 * ROUNDS):
            for _ in range(GAP):
                kind, ms = self.step()
                steps[kind].append(ms)
            name = f"other {turn}"
            prompt = self.question(0.984, 100 + turn)[0] if turn % 2 == 0 and self.checked else \
                gpu_ttft.text(name, NEW_TOKENS)
            self.add(name, prompt, 1)
            while name in self.others:
                self.prefilled = False
                kind, ms = self.step()
                if kind == "load" and not self.prefilled:
                    steps[kind].append(ms)
            for _ in range(2):  # what belongs to the prompt's step may end in the next ones
                self.step()
        while self.llm.llm_engine.has_unfinished_requests():
            self.step()
        return steps

    def play(self):
        self.doc = gpu_ttft.text("document", self.args.tokens)
        self.ask(gpu_ttft.text("warm", self.args.tokens), "warm-up")
        self.settle()
        if self.checked:
            self.ask(self.doc + gpu_ttft.text("end", 1), "document")
            self.settle()
            self.checked.scheduler()._rates._auto = False
        for kind, ms in self.measure().items():
            if len(ms) < 2:
                continue
            cut = statistics.quantiles(ms, n=20)
            self.rows.append({"name": self.name, "kind": kind, "steps": len(ms), "median_ms": statistics.median(ms),
                              "p5_ms": cut[0], "p95_ms": cut[-1]})
            print("%-10s %-6s %5d steps, median %.2f ms, 5 %% %.2f, 95 %% %.2f" % (
                self.name, kind, len(ms), statistics.median(ms), cut[0], cut[-1]), flush=True)
        if self.checked and not {"load", "store"} <= {r.get("kind") for r in self.rows}:
            self.faults.append("nothing was loaded or stored beside the decoding")


if __name__ == "__main__":
    sys.exit(gpu_ttft.main(Decode))
