#!/usr/bin/env python3
"""What the connector costs in an engine step with nothing to load or store: both sides' calls, for some running requests.

    idle.py [REQUESTS [LAYERS]]

Decoding requests of which none completes a block; the same calls that vLLM makes in such a step. Prints the median and
the 99th percentile, microseconds a step. A figure, not a test.
"""
import statistics
import sys
import time
import types

from tutti.vllm.breakeven import Rates
from tutti.vllm.options import Options
from tutti.vllm.scheduler import Scheduler
from tutti.vllm.worker import Worker

STEPS = 2000


class Namespace:
    block_tokens, digest = 1 << 20, b"d" * 32  # no block is ever full

    def each(self):
        return []


def main():
    n, layers = (int(x) for x in (sys.argv[1:] + ["16", "32"][len(sys.argv) - 1:]))
    scheduler = Scheduler(Namespace(), Options(pool=("",)), 1, Rates(1 << 20, 1))
    scheduler._opened = {0}
    worker = Worker(lambda digest: (None, ""), 0, layers, 1)
    requests = [types.SimpleNamespace(request_id=f"r{i}", all_token_ids=[1] * 100, num_tokens=100, num_prompt_tokens=100,
                                      num_computed_tokens=99, cache_salt=None, mm_features=[], prompt_embeds=None,
                                      lora_request=None) for i in range(n)]
    ids = [r.request_id for r in requests]
    for r in requests:
        scheduler.allocated(r, [0], 0)
    new = [types.SimpleNamespace(req_id=i, block_ids=([0],), num_computed_tokens=99) for i in ids]
    cached = types.SimpleNamespace(req_ids=ids, resumed_req_ids=set(), new_block_ids=[None] * n,
                                   num_computed_tokens=[99] * n)
    none = types.SimpleNamespace(req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[])
    counts = dict.fromkeys(ids, 1)
    took = []
    for step in range(STEPS):
        out = types.SimpleNamespace(scheduled_new_reqs=[] if step else new, num_scheduled_tokens=counts,
                                    scheduled_cached_reqs=cached if step else none, total_num_scheduled_tokens=n)
        began = time.perf_counter_ns()
        meta = scheduler.build(out)
        worker.begin(meta)
        worker.start()
        for _ in range(layers):
            if worker.layered:
                worker.wait_layer(0)
        worker.end()
        worker.poll(), worker.errors(), worker.report()
        took.append(time.perf_counter_ns() - began)
    took = sorted(took[100:])
    print(f"{n} requests, {layers} layers: {statistics.median(took) / 1e3:.1f} us a step, "
          f"99 %: {took[len(took) * 99 // 100] / 1e3:.1f} us")


if __name__ == "__main__":
    main()
