"""A signal's handler that raises, at any moment of any call: nothing may stay taken, no byte may be wrong."""
import itertools
import os
import pathlib
import random
import signal
import tempfile
import time

import pytest

import tutti
from conftest import Both, random_memory

HITS, SECONDS = 3000, 4.0  # of each hammer, whichever comes first
LAYERS, BLOCKS, BYTES = 2, 8, 4096


class Alarm(Exception):
    pass


@pytest.fixture
def folder():
    """In memory where that can be had: a call is short then, and more of its moments are hit."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tutti-python-", dir=where) as path:
        yield pathlib.Path(path)


class Alarms:
    """Within it SIGALRM comes once per next(), a random moment later, and raises Alarm."""

    def __init__(self):
        self.random, self.hits = random.Random(1), 0

    def __enter__(self):
        self.old = signal.signal(signal.SIGALRM, self._raise)
        return self

    def _raise(self, *_):
        self.hits += 1
        raise Alarm

    def next(self):
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, self.random.choice((40e-6, 200e-6, 1e-3))))

    def off(self):
        signal.setitimer(signal.ITIMER_REAL, 0)

    def __exit__(self, *_):
        self.off()
        signal.signal(signal.SIGALRM, self.old)


def hammer(calls):
    """Makes the calls in turns, again and again, each interrupted if the alarm comes in time; returns how many were."""
    with Alarms() as alarms:
        until = time.monotonic() + SECONDS
        for call in itertools.cycle(calls):
            if time.monotonic() > until or alarms.hits >= HITS:
                return alarms.hits
            try:
                try:
                    alarms.next()
                    call()
                finally:
                    alarms.off()
            except Alarm:
                pass


def test_values_come_and_go_under_signals(folder):
    r = random.Random(2)
    known = {f"k{i}": r.randbytes(r.randrange(3000)) for i in range(3000)}
    names = list(known)
    with tutti.ByteCache.open(folder / "p", 4000, size="32M") as cache:
        def put():
            name = r.choice(names)
            assert cache.put(name, known[name])

        def get():
            name = r.choice(names)
            value = cache.get(name)
            assert value is None or value == known[name], name

        assert hammer([put, get]) > 200
        info = cache.namespace.info()
        assert (info.leased, info.reserved) == (0, 0) and info.committed > 20
        for name in names:
            assert cache.get(name) in (None, known[name])
        assert cache.namespace.verify()[1] == 0
    with tutti.Pool.open(folder / "p") as pool:
        assert pool.info().clean == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where a forgotten plan is ended
def test_plans_and_reservations_under_signals(path):
    memory = random_memory(LAYERS, BLOCKS, BYTES)
    want = [[bytes(memory.block(layer, b)) for b in range(BLOCKS)] for layer in range(LAYERS)]
    seeds = itertools.count()
    with Both(path, memory.layout) as both:
        ns, lane = both.ns, both.lane
        stored = ns.keys(range(64))
        both.store(stored, [0, 1, 2, 3])

        def guarded(take, end):
            """take() gives what must be ended; whatever happens to it afterwards, end() gets it."""
            got = None
            try:
                got = take()
            finally:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                finally:
                    if got is not None:
                        end(got)

        def reserve():
            keys = ns.keys([next(seeds)] * 32)
            guarded(lambda: ns.reserve(keys, lease_s=600), lambda got: ns.cancel(got.lease))

        def lookup():
            guarded(lambda: ns.lookup(stored, lease_s=600), lambda got: ns.release(got.lease))

        lease = ns.lookup(stored, lease_s=600).lease
        blob = ns.plan_blob(lease, 0, 4)

        def plan():
            lane.plan(blob, [4, 5, 6, 7])  # forgotten

        def retrieve():
            p = lane.plan(blob, [4, 5, 6, 7])
            p.retrieve()
            assert p.wait_layer(LAYERS - 1, 60)
            p.finish(60)

        def questions():
            ns.info(), lane.stats(), lane.info(), both.pool.info(), list(ns.each())

        def scratch_lane():
            with tutti.Lane.open(path, ns.digest) as other:
                other.register(memory.layout)

        assert hammer([reserve, lookup, plan, retrieve, questions, scratch_lane]) > 200
        both.ns.release(lease)
        info = ns.info()
        assert (info.leased, info.reserved) == (0, 0)
        assert both.retrieve(stored, [4, 5, 6, 7]) == (4, {})
        for layer in range(LAYERS):
            assert [bytes(memory.block(layer, b)) for b in range(BLOCKS)] == want[layer][:4] * 2


def test_opening_under_signals(path):
    """A pool that was opened, but never returned, is not left open."""
    def once():
        with tutti.Pool.open(path, lock_wait_s=0.1) as pool:
            pool.info()

    assert hammer([once]) > 20
    once()


def test_what_a_progress_function_raises_comes_out(folder):
    def stop(*_):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        tutti.Pool.format(folder / "p", "32M", prewrite="all", progress=stop)
