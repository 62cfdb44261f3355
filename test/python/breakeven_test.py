"""The break-even: what one wrong measurement does."""
from tutti.vllm.breakeven import PROBE_AGAIN_S, Rates


def test_a_slow_measurement_is_made_again():
    """A probe that was slow by chance must not keep everything from being loaded for ever."""
    now = [1000.0]
    rates = Rates(16, 1 << 20, clock=lambda: now[0])
    assert rates.wants_probe and rates.worth(1)
    rates.loaded(4 << 20, 4_000_000_000)  # 1 s a block
    for _ in range(3):
        rates.step(1600)
        now[0] += 1.0  # 10 ms a block
    assert not rates.worth(100) and not rates.wants_probe
    now[0] += PROBE_AGAIN_S
    assert rates.wants_probe
    rates.loaded(4 << 20, 4_000_000)  # 1 ms a block
    assert rates.worth(100) and not rates.wants_probe
    now[0] += 10 * PROBE_AGAIN_S
    assert not rates.wants_probe
