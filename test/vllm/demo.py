#!/usr/bin/env python3
"""Long documents, two questions on each, a restart, and the second questions again: a real vLLM on CPU, a small model.

    demo.py VENV [--tokens N] [--documents N]

VENV: made by install.sh. Prints the time to the first token without the connector, cold, warm and after a restart, and
whether the answers are the same. Two engines, one with the connector and one without, answer in turns, after a warm-up.
(The model is larger than that of the tests, so that there is something to save.)
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from live import Live
from run import Bench

HERE = pathlib.Path(__file__).resolve().parent


def engine(b, name, tokens, connector):
    options = {"max_model_len": tokens + 196, "max_num_batched_tokens": 4096}
    plan = {"options": options}
    if connector:
        plan["connector"] = {"pool": str(b.folder / "pool"), "size": "512M"}
    live = Live(name, b, plan)
    if live.refused:
        raise SystemExit(f"{live.refused}\n{live.log()[-3000:]}")
    live.ask(seed=8 if name == "again" else 7, tokens=tokens, max_tokens=16)  # warm-up
    return live


def said(live, what):
    return next(line for line in live.log().splitlines() if what in line).split("tutti: ", 1)[1]


def ask(b, tokens, documents):
    """Rows of answers: without, cold, warm, after a restart."""
    first = [{"seed": 100 + i, "tokens": tokens, "tail_seed": 1, "max_tokens": 16} for i in range(documents)]
    second = [{**q, "tail_seed": 2} for q in first]
    plain, live = engine(b, "plain", tokens, False), engine(b, "tutti", tokens, True)
    try:
        print(said(live, "tutti: pool"))
        print(said(live, "moves its blocks"), flush=True)
        without, cold, warm = [], [], []
        for i in range(documents):
            turn = [lambda: without.append(plain.ask(**first[i])), lambda: cold.append(live.ask(**first[i]))]
            for asked in turn if i % 2 else turn[::-1]:
                asked()
        time.sleep(1)
        wanted = [plain.ask(**q) for q in second]
        warm = [live.ask(**q) for q in second]
    finally:
        plain.close()
        live.close()
    live = engine(b, "again", tokens, True)
    try:
        print("after a restart:", said(live, "tutti: pool"), flush=True)
        again = [live.ask(**q) for q in second]
    finally:
        live.close()
    return without, wanted, cold, warm, again


def apart(a, b):
    return max(abs(v - dict(y).get(k, v)) for x, y in zip(a["logprobs"], b["logprobs"]) for k, v in x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv")
    parser.add_argument("--tokens", type=int, default=3900)
    parser.add_argument("--documents", type=int, default=3)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti-demo-vllm-"))
    try:
        print(f"making a Llama of 8 layers, and {args.documents} documents of {args.tokens} tokens", flush=True)
        b = Bench(args.venv, folder)
        subprocess.run([b.python, HERE / "model.py", folder, "--layers", "8", "--hidden", "768", "--positions",
                        str(args.tokens + 256)], env=b.env(), check=True, capture_output=True)
        without, wanted, cold, warm, again = ask(b, args.tokens, args.documents)
        print("time to the first token in ms: median (least to most)")
        for name, row in (("without the connector", without + wanted), ("cold: first question", cold),
                          ("warm: second question", warm), ("after a restart", again)):
            ms = [1e3 * a["ttft_s"] for a in row]
            print(f"{name:24} {statistics.median(ms):8.0f} ({min(ms):.0f} to {max(ms):.0f}), {row[0]['cached']:5} of "
                  f"{args.tokens} tokens not computed")
        wrong = any(a["logprobs"] != w["logprobs"] for a, w in zip(cold, without))
        print(f"cold and without: logprobs {'DIFFER' if wrong else 'the same to the last bit'}")
        for name, row in (("warm", warm), ("after a restart", again)):
            tokens = all(a["tokens"] == w["tokens"] for a, w in zip(row, wanted))
            most = max(apart(a, w) for a, w in zip(row, wanted))
            print(f"{name}: tokens {'the same' if tokens else 'DIFFER'} as without, logprobs within {most:.1e} (rounding: the "
                  "rest of the prompt is computed alone)")
            wrong |= not tokens or most > 1e-3
        bits = all(a["logprobs"] == w["logprobs"] for a, w in zip(warm, again))
        print(f"warm and after a restart: logprobs {'the same to the last bit' if bits else 'DIFFER'}")
        return 1 if wrong or not bits else 0
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
