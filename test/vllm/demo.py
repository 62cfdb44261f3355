#!/usr/bin/env python3
"""A long document, two questions on it, a restart, and the second question again: a real vLLM on CPU, a small model.

    demo.py VENV

VENV: made by install.sh. Prints the time to the first token without the connector, cold, warm and after a restart, and
whether the answers are the same. (The model is larger than that of the tests, so that there is something to save.)
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from run import Bench

TOKENS = 3900


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti-demo-vllm-"))
    try:
        print(f"making a Llama of 8 layers, and a document of {TOKENS} tokens", flush=True)
        b = Bench(sys.argv[1], folder)
        subprocess.run([b.python, pathlib.Path(__file__).parent / "model.py", folder, "--layers", "8", "--hidden", "768"],
                       env=b.env(), check=True, capture_output=True)
        first, second = ({"seed": 7, "tokens": TOKENS, "tail_seed": i, "max_tokens": 16} for i in (1, 2))
        warmup = {"seed": 8, "tokens": TOKENS, "max_tokens": 16}
        options = {"max_model_len": 4096, "max_num_batched_tokens": 4096}
        extra = {"recompute_break_even": "auto"}
        plain, _ = b.engine([warmup, first, second], options=options)
        cold, log = b.engine([warmup, first, {"sleep_s": 1}, second], "demo", checked=False, options=options, extra=extra)
        print(next(line for line in log.splitlines() if "tutti: pool" in line).split("tutti: ", 1)[1])
        print(next(line for line in log.splitlines() if "moves its blocks" in line).split("tutti: ", 1)[1])
        again, _ = b.engine([{**warmup, "seed": 9}, second], "demo", checked=False, options=options, extra=extra)
        rows = [("without the connector", plain[2]), ("cold: first question", cold[1]), ("warm: second question", cold[2]),
                ("after a restart", again[1])]
        for name, answer in rows:
            print(f"{name:24} {1e3 * answer['ttft_s']:8.0f} ms to the first token, {answer['cached']:5} of {TOKENS} "
                  "tokens not computed")
        wrong = 0
        for name, answer in rows[2:]:
            tokens = answer["tokens"] == plain[2]["tokens"]
            apart = max(abs(v - dict(y).get(k, v)) for x, y in zip(answer["logprobs"], plain[2]["logprobs"]) for k, v in x)
            print(f"{name:24} tokens {'the same' if tokens else 'DIFFER'}, logprobs differ by {apart:.1e} at most from "
                  "those without (rounding: the rest of the prompt is computed alone)")
            wrong += not tokens or apart > 1e-3
        for name, answer in rows[2:]:
            if not answer["cached"]:
                print(f"{name:24} nothing was loaded: {next((x for x in log.splitlines() if 'not loaded' in x), log[-2000:])}")
                wrong += 1
        bits = cold[2]["logprobs"] == again[1]["logprobs"]
        print(f"warm and after a restart: logprobs {'the same to the last bit' if bits else 'DIFFER'}")
        return 1 if wrong or not bits else 0
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
