"""When is loading a prefix faster than computing it? Decided from what was measured, on this machine and model.

Load: bytes by time of each retrieve (and of a probe into scratch memory of the host's, before the first one). Compute:
the time that the device takes for a forward pass with many new tokens; engine steps overlap, so that their distance
tells nothing. The first such pass is left out: it warms up. As long as one of the two is not known, a hit is loaded.
What was measured is kept in a file for the next start. While loading is the slower one nothing is loaded that could
show otherwise: now and then a probe is, or, where there is no scratch memory, a small part of a hit.
"""
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

TOKENS_MIN = 128  # of a step that tells something about prefill
SAVE_EVERY_S = 10.0
PROBE_AGAIN_S = 60.0
TRIAL_BYTES = 256 << 20


def _mean(old: float, new: float) -> float:
    """Follows a faster sample at once (nothing makes work faster than it is), a slower one slowly."""
    return new if not old or new < old else old + (min(new, 2 * old) - old) / 8


class Rates:
    """Times are seconds. block_bytes: of one rank. path: the file; None: nothing is kept."""

    def __init__(self, block_tokens: int, block_bytes: int, auto: bool = True, path: Path | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._block_tokens, self._block_bytes, self._auto = block_tokens, block_bytes, auto
        self._path, self._clock = path, clock
        self.load_s = self.compute_s = 0.0  # a block's; 0: not known
        self._warm, self._kept_at = False, 0.0
        self._loaded_at = float("-inf")
        if path is not None:
            try:
                kept = json.loads(path.read_text())
                self.load_s, self.compute_s = float(kept["load_s"]), float(kept["compute_s"])
            except (OSError, ValueError, KeyError, TypeError):
                pass  # not there, or not ours: measure anew

    def __str__(self) -> str:
        return f"a block loads in {1e3 * self.load_s:.3f} ms and is computed in {1e3 * self.compute_s:.3f} ms"

    @property
    def wants_probe(self) -> bool:
        if not self._auto or self.worth(1) and self.load_s:
            return False
        return not self.load_s or self._clock() - self._loaded_at > PROBE_AGAIN_S

    def worth(self, n_blocks: int) -> bool:
        """Whether n blocks load faster than they compute. Both grow with n, so n does not matter yet."""
        return not (self._auto and n_blocks and self.load_s and self.compute_s) or self.load_s < self.compute_s

    def loaded(self, n_bytes: int, ns: int) -> None:
        """A retrieve of n_bytes took ns."""
        if self._auto and n_bytes > 0 and ns > 0:
            self.load_s = _mean(self.load_s, ns / 1e9 * self._block_bytes / n_bytes)
            self._loaded_at = self._clock()
            self._keep()

    def trial(self, n_blocks: int) -> int:
        """How many of n_blocks to load although that looks slower: 0, or a few if the last look was long ago."""
        return min(n_blocks, max(1, TRIAL_BYTES // self._block_bytes)) if self.wants_probe else 0

    def wants_time(self, n_tokens: int) -> bool:
        """Whether a forward pass with n_tokens is to be timed."""
        return n_tokens >= TOKENS_MIN and self._auto

    def computed(self, n_tokens: int, ns: int) -> None:
        """A forward pass that wants_time() was asked for took ns."""
        if self._warm:
            self.compute_s = _mean(self.compute_s, ns / 1e9 * self._block_tokens / n_tokens)
            self._keep()
        self._warm = True

    def _keep(self) -> None:
        now = self._clock()
        if self._path is None or (self._kept_at and now - self._kept_at < SAVE_EVERY_S):
            return
        self._kept_at = now
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps({"load_s": self.load_s, "compute_s": self.compute_s}))
            temporary.replace(self._path)
        except OSError:
            self._path = None
