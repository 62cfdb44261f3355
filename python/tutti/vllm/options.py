"""What a user may write into `kv_connector_extra_config`, checked at start: an unknown or wrong option is refused."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import TuttiError
from ..pool import parse_bytes

MODES = ("async", "layerwise")
STORES = ("all", "prompts", "none")


@dataclass(frozen=True)
class Options:
    """The connector's options; sizes in bytes, times in seconds."""

    pool: tuple[str, ...]  # paths of the pool's devices
    size: int | None = None  # of a pool that is not there yet; None: it must be there
    mode: str = "async"  # async: whole requests, checked before they compute; layerwise: layer by layer, during compute
    min_prefix_tokens: int = 0  # a shorter hit is recomputed
    store: str = "all"  # all: prompts and answers; prompts; none: the pool is only read
    recompute_break_even: str = "auto"  # auto: load only what loads faster than it computes; off: load every hit
    weights: str | None = None  # digest of the weights, where the files can't tell: 64 hex digits
    deadline_s: float = 30.0  # of one plan's I/O
    sms: int = 0  # of the GPU, that serve loads, and as many for stores; 0: chosen
    controller: str = "auto"  # auto, virt, or model (for experiments)
    read_bytes_per_s: int = 0  # of the model controller
    model_timing: Mapping[str, int] = field(default_factory=dict)  # the rest of it, as tutti.ModelTiming

    @property
    def layerwise(self) -> bool:
        return self.mode == "layerwise"


def _bytes(name: str, value: Any) -> int:
    try:
        return parse_bytes(value)
    except TuttiError as e:
        raise ValueError(f'tutti: "{name}": {e.strerror}') from None


def options_of(extra: Mapping[str, Any]) -> Options:
    """ValueError: an option is missing, unknown or out of range; the message names it and says what is possible."""
    known = set(Options.__dataclass_fields__)
    unknown = sorted(set(extra) - known)
    if unknown:
        raise ValueError(f"tutti: unknown option {unknown[0]!r} in kv_connector_extra_config; known: {sorted(known)}")
    values = dict(extra)
    pool = values.get("pool")
    if not pool:
        raise ValueError('tutti: kv_connector_extra_config needs "pool": a path (and "size", to make it on first use)')
    values["pool"] = (pool,) if isinstance(pool, str) else tuple(pool)
    if values.get("size") is not None:
        values["size"] = _bytes("size", values["size"])
    values["read_bytes_per_s"] = _bytes("read_bytes_per_s", values.get("read_bytes_per_s", 0))
    if isinstance(values.get("recompute_break_even"), bool):
        values["recompute_break_even"] = "auto" if values["recompute_break_even"] else "off"
    options = Options(**values)
    if options.store == "on-eviction":
        raise ValueError('tutti: store "on-eviction" needs an engine that holds blocks it wants to evict; vLLM does not. '
                         f"Use one of {STORES}")
    for name, possible in (("mode", MODES), ("store", STORES), ("recompute_break_even", ("auto", "off")),
                           ("controller", ("auto", "virt", "model"))):
        if getattr(options, name) not in possible:
            raise ValueError(f"tutti: {name} {getattr(options, name)!r} is none of {possible}")
    if options.min_prefix_tokens < 0 or options.deadline_s <= 0 or options.sms < 0:
        raise ValueError("tutti: min_prefix_tokens and sms can't be negative, deadline_s must be above 0")
    return options
