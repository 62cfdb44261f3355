"""The break-even: what is measured, and what one wrong measurement does."""
import pytest

from tutti.vllm.breakeven import PROBE_AGAIN_S, TOKENS_MIN, TRIAL_BYTES, Rates
from tutti.vllm.messages import Load, Probe, Report, Step
from tutti.vllm.worker import Worker


def test_a_slow_measurement_is_made_again():
    """A probe that was slow by chance must not keep everything from being loaded for ever."""
    now = [1000.0]
    rates = Rates(16, 1 << 20, clock=lambda: now[0])
    assert rates.wants_probe and rates.worth(1)
    rates.loaded(4 << 20, 4_000_000_000)  # 1 s a block
    for _ in range(3):
        rates.computed(1600, 1_000_000_000)  # 10 ms a block
    assert not rates.worth(100) and not rates.wants_probe
    now[0] += PROBE_AGAIN_S + 1
    assert rates.wants_probe
    rates.loaded(4 << 20, 4_000_000)  # 1 ms a block
    assert rates.worth(100) and not rates.wants_probe
    now[0] += 10 * PROBE_AGAIN_S
    assert not rates.wants_probe


def test_without_scratch_memory_a_part_of_a_hit_is_the_probe():
    now = [1000.0]
    rates = Rates(16, 1 << 20, clock=lambda: now[0])
    rates.loaded(4 << 20, 4_000_000_000)
    for _ in range(2):
        rates.computed(1600, 1_000_000_000)
    assert not rates.worth(5000) and rates.trial(5000) == 0
    now[0] += PROBE_AGAIN_S + 1
    assert rates.trial(5000) == TRIAL_BYTES >> 20 and rates.trial(7) == 7
    rates.loaded(7 << 20, 7_000_000)
    assert rates.worth(5000) and rates.trial(5000) == 0


def test_passes_are_timed_where_that_decides_something():
    assert Rates(16, 1).wants_time(TOKENS_MIN) and not Rates(16, 1).wants_time(TOKENS_MIN - 1)
    assert not Rates(16, 1, auto=False).wants_time(1 << 20)


def test_a_pass_is_timed_by_the_device():
    """The time comes some steps later, for the tokens of its own step, whatever the steps' distance is."""
    done = [0]
    begun = []

    def timer():
        begun.append(worker._step.tokens)
        return lambda: lambda: done[0]

    worker = Worker(lambda digest: (None, ""), 0, 1, 1, timer=timer)

    def step(tokens):
        worker.begin(Step(tokens=tokens)), worker.start(), worker.end(), worker.poll()
        return worker.report()

    assert step(500) is None and step(0) is None and begun == [500]
    done[0] = 1234
    assert step(0) == Report(tokens=500, ns=1234)
    assert step(0) is None
    assert Report(tokens=500, ns=1234).add(Report(tokens=500, ns=2000)) == Report(tokens=500, ns=2000)


@pytest.mark.parametrize("start_first", [True, False])
def test_a_pass_is_timed_whether_loads_are_issued_before_or_behind_it(start_first):
    """vLLM 0.32 calls start_load_kv behind a pass that waits for no load; older ones before it."""
    now = [0]

    def timer():
        began = now[0]
        return lambda: lambda took=now[0] - began: took

    worker = Worker(lambda digest: (None, ""), 0, 1, 1, timer=timer)
    worker.begin(Step(tokens=500))
    if start_first:
        worker.start()
    now[0] += 1234  # the pass
    if not start_first:
        worker.start()
    worker.end(), worker.poll()
    assert worker.report() == Report(tokens=500, ns=1234)


class Slow:
    """A lane, and its plans, whose retrieves never end."""

    def __init__(self):
        self.gentle, self.issued = {}, []

    def pace(self, operation, *, gentle):
        self.gentle[operation] = gentle

    def plan(self, blob, blocks):
        return self

    def retrieve(self):
        self.issued.append(self.gentle["retrieve"])

    def poll(self):
        return False

    def wait_layer(self, layer, timeout_s):
        return True


def test_a_pass_that_failed_is_not_timed_by_the_next():
    worker = Worker(lambda digest: (None, ""), 0, 1, 1, timer=lambda: lambda: lambda: 99)
    worker.begin(Step(tokens=500))  # and no end
    worker.begin(Step()), worker.start(), worker.end(), worker.poll()
    assert worker.report() is None


def test_passes_that_wait_for_something_are_not_timed():
    begun = []
    worker = Worker(lambda digest: (Slow(), ""), 0, 1, 1, timer=lambda: begun.append(1))
    worker.begin(Step(tokens=500, open=b"", loads=[Load(1, "r", b"", [0], sync=True)]))
    worker.begin(Step(tokens=500, probe=Probe(2, b"", 1)))
    assert not begun


def test_loads_are_gentle_where_others_compute():
    lane = Slow()
    worker = Worker(lambda digest: (lane, ""), 0, 1, 1, mark=lambda: lambda: True)

    def step(**what):
        worker.begin(Step(**what)), worker.start()
        if not lane.issued:
            worker.poll()
        return lane.issued.pop()

    load = {"blob": b"", "blocks": [0]}
    assert step(open=b"", loads=[Load(1, "a", **load)]) is True
    assert lane.gentle["store"] is True
    assert step(idle=True, loads=[Load(2, "b", **load)]) is False
    assert step(loads=[Load(3, "c", sync=True, **load)]) is False
