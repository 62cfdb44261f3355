#!/usr/bin/env python3
"""One vLLM engine in one process: plays requests from a file and writes down what came out.

    engine.py PLAN.json OUT.json

PLAN: {"model", "options" (of LLM), "connector" (kv_connector_extra_config; none: no connector), "policy", "checked",
"requests": [one or, as a list, several at once]}. A request: {"seed", "tokens" (length), "tail_seed", "max_tokens",
"salt", "lora", "continues" (index of an answer: its prompt and tokens come first)}, or {"sleep_s"}, or {"kill_in_s"}:
SIGKILL to itself that much later. OUT: a list with one entry a
request: tokens, logprobs, cached (prompt tokens not computed), seconds to the first token and in all, finish.
With "checked" every loaded byte is compared with what was stored (see checked.py), and OUT ends with the sums.
"""
import json
import os
import random
import signal
import sys
import threading
import time

TAIL = 8  # tokens of a prompt that come from tail_seed


def prompt_of(request, answers):
    r = random.Random(request["seed"])
    tokens = [r.randrange(3, 1000) for _ in range(request["tokens"])]
    if "continues" in request:
        before = answers[request["continues"]]
        tokens = before["prompt"] + before["tokens"] + tokens
    if "tail_seed" in request:
        r = random.Random(request["tail_seed"])
        tokens[-TAIL:] = [r.randrange(3, 1000) for _ in range(TAIL)]
    prompt = {"prompt_token_ids": tokens}
    if request.get("salt"):
        prompt["cache_salt"] = request["salt"]
    return prompt


def make_llm(plan):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options = dict(skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=8,
                   enable_prefix_caching=False, disable_log_stats=False, distributed_executor_backend="uni")
    options.update(plan.get("options", {}))
    if plan.get("connector") is not None:
        transfer = dict(kv_connector="CheckedConnector" if plan.get("checked") else "TuttiConnector",
                        kv_connector_module_path="checked" if plan.get("checked") else "tutti.vllm", kv_role="kv_both",
                        kv_connector_extra_config=plan["connector"])
        transfer["kv_load_failure_policy"] = plan.get("policy", "recompute")
        options["kv_transfer_config"] = KVTransferConfig(**transfer)
    return LLM(model=plan["model"], **options)


def play(llm, group, before):
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    group = group if isinstance(group, list) else [group]
    params = [SamplingParams(temperature=0, max_tokens=r.get("max_tokens", 24), logprobs=3, detokenize=False,
                             ignore_eos=True) for r in group]
    loras = [LoRARequest(r["lora"]["name"], r["lora"]["id"], r["lora"]["path"]) if r.get("lora") else None for r in group]
    began = time.monotonic()
    outs = llm.generate([prompt_of(r, before) for r in group], params, use_tqdm=False,
                        lora_request=loras if any(loras) else None)
    took = time.monotonic() - began
    answers = []
    for out in outs:
        c = out.outputs[0]
        logprobs = [[[int(k), v.logprob] for k, v in d.items()] for d in c.logprobs or []]
        m = out.metrics
        ttft = getattr(m, "first_token_latency", None) if m is not None else None
        answers.append({"tokens": list(c.token_ids), "logprobs": logprobs, "cached": out.num_cached_tokens,
                        "prompt": list(out.prompt_token_ids), "s": took, "ttft_s": ttft, "finish": c.finish_reason})
    return answers


def main():
    plan = json.load(open(sys.argv[1]))
    llm = make_llm(plan)
    answers = []
    for group in plan["requests"]:
        if "sleep_s" in group:
            time.sleep(group["sleep_s"])
        elif "kill_in_s" in group:
            json.dump(answers, open(sys.argv[2], "w"))
            threading.Timer(group["kill_in_s"], lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        else:
            answers += play(llm, group, answers)
    if plan.get("checked"):
        import checked

        end = time.monotonic() + 60
        while checked.busy() and time.monotonic() < end:
            llm.llm_engine.step()  # as a server does while the connector says that it has work
        answers.append(checked.sums())
    json.dump(answers, open(sys.argv[2], "w"))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
