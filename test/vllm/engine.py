#!/usr/bin/env python3
"""One vLLM engine in one process: plays requests from a file and writes down what came out.

    engine.py PLAN.json OUT.json

PLAN: {"model", "options" (of LLM), "connector" (kv_connector_extra_config; none: no connector), "policy", "checked",
"watch" (false: workers are other processes; answers have no kv),
"requests": [one or, as a list, several at once]}. A request: {"seed", "tokens" (length), "tail_seed", "max_tokens",
"salt", "lora", "continues" (index of an answer: its prompt and tokens come first)}, or {"sleep_s"}, or {"forget": [answer,
n]}: vLLM's own prefix cache loses what that answer has from its n-th block on, or {"kill": true}: SIGKILL to itself as soon
as a store is in flight. OUT: a list with one entry a request: tokens, logprobs, kv (a digest of each whole block as the
request left it, all layers), cached (prompt tokens not computed), seconds to the first token and in all, finish, and
with speculative decoding drafts, of all requests so far.
With "checked" every loaded byte is compared with what was stored (see checked.py), and OUT ends with the sums.

    engine.py PLAN.json

PLAN with "answers" (a descriptor) instead of "requests": reads a request a line from stdin ({"reset": 1}: empties vLLM's
own prefix cache; {"settle": 1}: steps while the connector has work of its own, as a server does), and writes an answer a line
to it, the first when it is ready: {"refused": why} if it can't be. Each has calls_s: what the calls of a TimedConnector
have taken so far. See live.py.
"""
import hashlib
import json
import os
import random
import sys
import time

SETTLE_S = 20
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
    if plan.get("transfer"):
        options["kv_transfer_config"] = KVTransferConfig(**plan["transfer"])
    return LLM(model=plan["model"], **options)


def bytes_of(layer, block):
    """A block of a layer's KV tensor: its blocks come first, or, in older versions, keys and values before them."""
    dim = 1 if layer.shape[0] == 2 else 0
    return layer.select(dim, block).contiguous().numpy().tobytes()


class Watch:
    """Keeps what each request leaves in the KV cache. For engines of one process."""

    def __init__(self, llm):
        core = llm.llm_engine.engine_core.engine_core
        self.manager = core.scheduler.kv_cache_manager
        self.kv = core.model_executor.driver_worker.worker.model_runner.kv_caches
        self.block_tokens = core.vllm_config.cache_config.block_size
        self.left = {}  # request -> (its blocks, their digests)
        free = core.scheduler._free_request

        def watched(request, *args, **named):
            whole = min(request.num_computed_tokens, request.num_tokens - 1) // self.block_tokens
            blocks = self.manager.get_block_ids(request.request_id)[0][:whole]
            self.left[request.request_id] = blocks, [self.digest(b) for b in blocks]
            return free(request, *args, **named)

        core.scheduler._free_request = watched

    def digest(self, block):
        h = hashlib.sha256()
        for layer in self.kv:
            h.update(bytes_of(layer, block))
        return h.hexdigest()[:16]

    def of(self, request):
        return next(v for k, v in self.left.items() if k == request or k.startswith(f"{request}-"))

    def forget(self, blocks):
        self.manager.block_pool.evict_blocks(set(blocks))


def drafts_of(llm):
    """[guessed tokens, those of them that were right]."""
    found = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    return [found.get(f"vllm:spec_decode_num_{kind}_tokens", 0) for kind in ("draft", "accepted")]


def play(llm, watch, group, before):
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
        blocks, kv = watch.of(out.request_id) if watch else ([], [])
        answers.append({"tokens": list(c.token_ids), "logprobs": logprobs, "cached": out.num_cached_tokens,
                        "blocks": blocks, "kv": kv,
                        "prompt": list(out.prompt_token_ids), "s": took, "ttft_s": ttft, "finish": c.finish_reason})
    return answers


def settle(llm):
    """Seconds until the connector has no work left; None: it has some after SETTLE_S."""
    connector, began = llm.llm_engine.engine_core.engine_core.scheduler.connector, time.monotonic()
    pending = getattr(connector, "has_pending_push_work", lambda: False)
    while pending():
        if time.monotonic() - began > SETTLE_S:
            return None
        llm.llm_engine.step()
    return time.monotonic() - began


def serve(plan):
    with os.fdopen(plan["answers"], "w", buffering=1) as answers:
        try:
            llm = make_llm(plan)
        except Exception as e:
            answers.write(json.dumps({"refused": f"{type(e).__name__}: {e}".splitlines()[0]}) + "\n")
            raise
        answers.write(json.dumps({}) + "\n")
        for line in sys.stdin:
            request = json.loads(line)
            if "reset" in request:
                said = {"reset": llm.reset_prefix_cache()}
            elif "settle" in request:
                said = {"s": settle(llm)}
            else:
                said = play(llm, None, request, [])[0]
            said["calls_s"] = getattr(sys.modules.get("timed"), "spent_ns", 0) / 1e9
            answers.write(json.dumps(said) + "\n")
        llm.llm_engine.engine_core.shutdown()


def main():
    plan = json.load(open(sys.argv[1]))
    if "answers" in plan:
        return serve(plan)
    llm = make_llm(plan)
    watch = Watch(llm) if plan.get("watch", True) else None
    answers = []
    for group in plan["requests"]:
        if "sleep_s" in group:
            time.sleep(group["sleep_s"])
            settle(llm)  # a server steps by itself while the connector has work
        elif "forget" in group:
            of, first = group["forget"]
            watch.forget(answers[of]["blocks"][first:])
        elif "kill" in group:
            import checked

            checked.kill_with(sys.argv[2], answers)
        else:
            answers += play(llm, watch, group, answers)
            if "speculative_config" in plan.get("options", {}):
                answers[-1]["drafts"] = drafts_of(llm)
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
