"""The vLLM connector's two sides without vLLM: random histories of an engine, checked against a model.

Nothing in a history may compute with a wrong byte, report an id twice or unasked, leave a lease behind, or, without
faults, lose a block.
"""
import os
import random
import sys
import types

import numpy as np
import pytest
from conftest import Torch
from fake_engine import LAYERS, SIZE, TOKEN_BYTES, Engine, Request, Variant, block_bytes
from fake_store import FakeLane, FakeNamespace, split
from tutti.vllm.breakeven import Rates
from tutti.vllm.keys import Chain, cacheable
from tutti.vllm.options import Options
from tutti.vllm.scheduler import Scheduler
from tutti.vllm.worker import Worker

HISTORIES = int(os.environ.get("TUTTI_HISTORIES", "25"))


def prompts(r):
    """Prompts that share prefixes."""
    roots = [[r.randrange(50) for _ in range(r.randrange(16, 40))] for _ in range(2)]
    while True:
        root = r.choice(roots)
        end = r.choice([len(root), r.randrange(3, len(root))])
        yield root[:end] + [r.randrange(50) for _ in range(r.randrange(0, 12))]


def make(r, ranks=1, faults=0.0, slots=None, blocks=None, **options):
    ns = FakeNamespace(r, slots or r.randrange(8, 200), ranks, SIZE)
    n = blocks or r.randrange(20, 60)
    memories = [[[bytearray(SIZE * TOKEN_BYTES) for _ in range(n)] for _ in range(LAYERS)] for _ in range(ranks)]
    lanes = [FakeLane(r, memories[rank], rank, faults) for rank in range(ranks)]
    options = Options(pool=("",), recompute_break_even="off", **options)
    return ns, lanes, Engine(r, ns, lanes, memories, options, budget=r.choice([6, 16, 64]))


def play(r, engine, n_requests, abort=0.0):
    source, made = prompts(r), []
    for i in range(n_requests):
        made.append(Request(f"r{i}", next(source), r.randrange(1, 12), salt=r.choice([None, None, None, "a"]),
                            skip=r.random() < 0.05))
        engine.add(made[-1])
        for _ in range(r.randrange(4)):
            engine.step()
            alive = [q for q in list(engine.running) + list(engine.waiting) if not getattr(q, "aborted", False)]
            if alive and r.random() < abort:
                engine.abort(r.choice(alive))
    engine.drain()
    return made


def settled(ns, lanes, engine, made):
    """Nothing is left behind, and the pool's bytes are right."""
    for q in made:
        for i, key in enumerate(chain_of(ns, q)[0]):
            for rank, data in ns.blocks.get(key, (None, {}))[1].items():
                assert data == block_bytes(q, i, rank), f"block {i} of {q.request_id} is wrong in the pool"
    assert not ns.leases and not ns.reservations
    assert not engine.scheduler._flights and not engine.scheduler._tracks and not engine.scheduler._storing
    assert all(w.idle for w in engine.workers) and not any(lane.plans for lane in lanes)
    for worker in engine.workers:
        worker.close()


@pytest.mark.parametrize("mode", ["async", "layerwise"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_histories_with_faults(mode, ranks):
    loads = failures = fences = preempted = rejected = 0
    for seed in range(HISTORIES):
        r = random.Random(f"{seed} {mode} {ranks}")
        ns, lanes, engine = make(r, ranks, r.choice([0.0, 0.03, 0.2]), mode=mode)
        try:
            made = play(r, engine, r.randrange(2, 24), abort=r.choice([0, 0.1]))
            settled(ns, lanes, engine, made)
        except AssertionError as e:
            raise AssertionError(f"history {seed} {mode} {ranks} {vars(engine.variant)}: {e}") from e
        counts = engine.scheduler.counts
        loads, failures, fences = loads + counts["loads"], failures + counts["failed_blocks"], fences + counts["fences"]
        preempted, rejected = preempted + engine.preemptions, rejected + engine.rejected
    assert min(loads, failures, fences, preempted, rejected) > HISTORIES // 30  # the histories are worth something


def chain_of(ns, request):
    whole = request.num_tokens // SIZE
    return split(Chain(request, SIZE, lambda parent, tokens, extra: ns.keys(tokens, parent, extra)).upto(whole)), whole


@pytest.mark.parametrize("store", ["all", "prompts", "none"])
def test_no_block_is_lost(store):
    """With room for everything and no faults, each finished request's blocks are in the pool, and only those: also those
    behind blocks that another request was storing."""
    stored = 0
    for seed in range(HISTORIES):
        r = random.Random(f"{seed} {store}")
        ns, lanes, engine = make(r, 1, 0.0, slots=5000, blocks=2000, store=store)
        made = play(r, engine, 10)
        settled(ns, lanes, engine, made)
        wanted, possible = set(), set()
        for q in made:
            keys, _ = chain_of(ns, q)
            end = q.num_tokens - 1 if store == "all" else min(q.num_prompt_tokens, q.num_tokens)
            wanted |= set(keys[:end // SIZE]) if store != "none" else set()
            # With asynchronous scheduling an answer's last token may have been computed, too.
            possible |= set(keys[:(q.num_tokens if store == "all" else end) // SIZE]) if store != "none" else set()
        assert wanted <= set(ns.blocks) <= possible, f"history {seed}: {len(wanted - set(ns.blocks))} of {len(wanted)}"
        stored += len(wanted)
        told = {(q, first + i) for q, first, n in engine.told for i in range(n)}
        assert len(told) == sum(n for _, _, n in engine.told)  # no block is announced twice for a request
    assert bool(stored) == (store != "none")


def test_a_salt_parts_tenants():
    r = random.Random(1)
    ns, _, engine = make(r, slots=500, blocks=100)
    prompt = [r.randrange(50) for _ in range(33)]
    for salt in (None, "a", "b", "a"):
        engine.add(Request(f"q{salt}{r.random()}", prompt, 2, salt=salt))
        engine.drain()
        engine.cached.clear(), engine.hash_of.clear()
    assert engine.scheduler.counts["hit_blocks"] == 33 // SIZE  # of the last one alone


try:
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
except Exception:  # not here: the same fields
    class MultiModalFeatureSpec(types.SimpleNamespace):
        pass

    class PlaceholderRange(types.SimpleNamespace):
        pass


def image(name, offset, length):
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=PlaceholderRange(
        offset=offset, length=length))


def hits_of(requests):
    """Blocks that each of the requests, one after the other, finds of those before it; all bytes are checked."""
    r, hits = random.Random(5), []
    ns, lanes, engine = make(r, slots=500, blocks=100)
    engine.variant.apc = False
    for q in requests:
        before = engine.scheduler.counts["hit_blocks"]
        engine.add(q)
        engine.drain()
        hits.append(engine.scheduler.counts["hit_blocks"] - before)
    settled(ns, lanes, engine, [q for q in requests if cacheable(q)])
    return hits


def test_images_are_told_apart_by_content_and_place():
    """An image's tokens are all the same placeholder: only the feature says which image, and which part of it."""
    prompt = [7] * 6 + [99] * 10 + [7] * 17  # blocks of 4; the image lies in blocks 1 to 3
    asked = [image("a", 6, 10)], [image("a", 6, 10)], [image("b", 6, 10)], [], [image("a", 7, 9)], [image("b", 6, 10)]
    requests = [Request(f"q{i}", prompt, 2, mm_features=features) for i, features in enumerate(asked)]
    assert hits_of(requests) == [0, 8, 1, 1, 1, 8]
    two = [Request(f"r{i}", prompt, 2, mm_features=[image("a", 6, 4), image(second, 10, 6)]) for i, second in
           enumerate("aab")]
    assert hits_of(two) == [0, 8, 2]
    nameless = [Request(f"s{i}", prompt, 2, mm_features=[image(None, 6, 10)]) for i in range(2)]
    assert hits_of(nameless) == [0, 0]  # it can't be told which image that is: neither stored nor loaded


class Embeds(Torch):
    """What is asked of a prompt's embeddings."""

    def __init__(self, rows):
        super().__init__(np.asarray(rows, np.float32))

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return Embeds(self.array[i])

    def cpu(self):
        return self

    def contiguous(self):
        return Embeds(np.ascontiguousarray(self.array))

    def tolist(self):
        return self.array.tolist()


def tensors():
    kinds = [lambda rows: Embeds(rows)]
    try:
        import torch
    except Exception:
        return kinds
    return kinds + [lambda rows, d=d: torch.tensor(rows, dtype=d) for d in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("tensor", tensors())
def test_prompt_embeddings_are_in_the_key(tensor):
    """Their tokens are all 0: only the embeddings say what the prompt is."""
    def rows(n, change=None):
        return tensor([[float(i), float(i == change)] for i in range(n)])

    def ask(i, embeds, mask=None):
        return Request(f"q{i}", [0] * 21, 2, prompt_embeds=embeds, prompt_is_token_ids=mask)

    wide = tensor([[float(i), float(i == 9), 5.0] for i in range(21)])[:, :2]  # the same bytes, not one after the other
    mask = [i % 3 == 0 for i in range(21)]
    asked = [(rows(21), None), (rows(21), None), (rows(21, 9), None), (wide, None), (rows(20), None), (None, None),
             (rows(21), mask), (rows(21), mask), (rows(21), [False] * 21)]
    assert hits_of([ask(i, *each) for i, each in enumerate(asked)]) == [0, 5, 2, 5, 5, 0, 0, 5, 0]


def test_min_prefix_and_clear():
    r = random.Random(2)
    ns, _, engine = make(r, slots=500, blocks=100, min_prefix_tokens=20)
    engine.variant = Variant(r)
    engine.variant.apc = False
    for n, hits in ((17, 0), (17, 0), (33, 0), (33, 8)):
        before = engine.scheduler.counts["hit_blocks"]
        engine.add(Request(f"q{r.random()}", list(range(n)), 2))
        engine.drain()
        assert engine.scheduler.counts["hit_blocks"] - before == hits
    assert engine.scheduler.clear() and not ns.blocks
    engine.add(Request("last", list(range(33)), 2))
    engine.step()
    assert engine.scheduler.counts["hit_blocks"] == 8
    assert engine.scheduler.clear() is False or not engine.scheduler.busy
    engine.drain()


@pytest.mark.parametrize("mode", ["async", "layerwise"])
@pytest.mark.parametrize("answer", [1, 2, 9])
@pytest.mark.parametrize("budget", [6, 64])
def test_what_was_damaged_is_stored_again(mode, answer, budget):
    """Blocks behind a damaged one leave the pool; computed anew, they come back."""
    for seed in range(HISTORIES):
        r = random.Random(seed)
        ns, lanes, engine = make(r, slots=500, blocks=100, mode=mode)
        engine.budget, engine.variant.apc = budget, seed % 2 == 1
        engine.add(Request("first", list(range(30)), answer))
        engine.drain()
        engine.cached.clear(), engine.hash_of.clear()
        sound, broken = set(ns.blocks), r.randrange(30 // SIZE)
        lanes[0].break_once = broken
        engine.add(Request("again", list(range(30)), answer))
        engine.drain()
        assert engine.recomputed == 1 and engine.scheduler.counts["failed_blocks"] == 1
        assert set(ns.blocks) == sound, f"{len(sound - set(ns.blocks))} of {len(sound)} are lost, {vars(engine.variant)}"


def steps_taken(n):
    """Steps of the interpreter in an engine step in which n requests decode and nothing is due."""
    ns = FakeNamespace(random.Random(1), 100, block_tokens=1000)
    scheduler = Scheduler(ns, Options(pool=("",)), 1, Rates(1000, 1))
    worker = Worker(lambda digest: (FakeLane(None, []), ""), 0, LAYERS, 1)
    requests = [Request(f"q{i}", [1, 2, 3], 30) for i in range(n)]
    ids, count = [q.request_id for q in requests], 0
    for q in requests:
        q.num_computed_tokens = 2
        scheduler.allocated(q, [0], 0)

    def out(new, cached, given):
        return types.SimpleNamespace(
            scheduled_new_reqs=[types.SimpleNamespace(req_id=i, block_ids=([0],), num_computed_tokens=2) for i in new],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=cached, resumed_req_ids=set(), new_block_ids=given,
                                                        num_computed_tokens=[3] * len(cached)),
            num_scheduled_tokens=dict.fromkeys(ids, 1), total_num_scheduled_tokens=n)

    def whole(out):
        step = scheduler.build(out)
        worker.begin(step), worker.start(), worker.end(), worker.poll(), worker.errors()
        return step, worker.report()

    scheduler.update(whole(out(ids, [], []))[1])
    idle = out([], ids, [None] * n)
    for _ in range(3):  # until each request was looked at, and is due no more for a long time
        whole(idle)

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        step, report = whole(idle)
    finally:
        sys.settrace(None)
    assert report is None and not (step.loads or step.saves or step.fences or step.open)
    return count


def test_an_idle_step_costs_the_same_for_any_number_of_requests():
    assert 0 < steps_taken(1) == steps_taken(120)
