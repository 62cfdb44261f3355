"""The vLLM connector's two sides without vLLM: random histories of an engine, checked against a model.

Nothing in a history may compute with a wrong byte, report an id twice or unasked, leave a lease behind, or, without
faults, lose a block.
"""
import os
import random

import pytest
from fake_engine import LAYERS, SIZE, TOKEN_BYTES, Engine, Request, Variant, block_bytes
from fake_store import FakeLane, FakeNamespace, split
from tutti.vllm.keys import Chain
from tutti.vllm.options import Options

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
    loads = failures = fences = preempted = 0
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
        preempted += engine.preemptions
    assert min(loads, failures, fences, preempted) > HISTORIES // 30  # the histories are worth something


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
