"""Order between vLLM's compute stream and the lane, on a GPU."""
from __future__ import annotations

from collections.abc import Callable

import torch


def mark() -> Callable[[], bool]:
    """A question whether everything that the compute stream was given so far is done."""
    event = torch.cuda.Event()
    event.record()
    return event.query  # type: ignore[no-any-return]


def stream() -> int:
    """The compute stream, a cudaStream_t."""
    return int(torch.cuda.current_stream().cuda_stream)
