"""Order, and time, between vLLM's compute stream and the lane, on a GPU."""
from __future__ import annotations

from collections.abc import Callable

import torch


def mark() -> Callable[[], bool]:
    """A question whether everything that the compute stream was given so far is done."""
    event = torch.cuda.Event()
    event.record()
    return event.query  # type: ignore[no-any-return]


def timer() -> Callable[[], Callable[[], int]]:
    """Times what the compute stream is given until the result is called. That one's result: ns, 0 until it is done."""
    began = torch.cuda.Event(enable_timing=True)
    began.record()

    def end() -> Callable[[], int]:
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        return lambda: int(began.elapsed_time(ended) * 1e6) if ended.query() else 0

    return end


def stream() -> int:
    """The compute stream, a cudaStream_t."""
    return int(torch.cuda.current_stream().cuda_stream)
