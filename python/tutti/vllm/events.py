"""KV events: which blocks this pool has, for routers that send a request where its prefix is (medium STORAGE).

Block hashes are the engine's own, so that its events and these can be joined. Evictions have no hook in the library:
when its counter has moved, what was announced is looked up again, at most every few seconds.
"""
from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any

SWEEP_S = 5.0
KNOWN_MAX = 1 << 20  # blocks that are remembered; older ones get no BlockRemoved


def _made(cls: Any, **facts: Any) -> Any:
    """An event with those of `facts` that this version of vLLM has a field for."""
    known = inspect.signature(cls).parameters
    return cls(**{k: v for k, v in facts.items() if k in known})


class Events:
    """Collected by the scheduler side, taken by the engine. external: the engine's hash -> what its events carry."""

    def __init__(self, namespace: Any, block_tokens: int, external: Callable[[bytes], Any]) -> None:
        from vllm.distributed import kv_events

        self._classes, self._external = kv_events, external
        self._ns, self._block_tokens = namespace, block_tokens
        self._new: list[Any] = []
        self._known: dict[bytes, Any] = {}  # our key -> the engine's hash
        self._evicted, self._swept_s = namespace.info().evicted, time.monotonic()

    def published(self, track: Any, first: int, n: int) -> None:
        """Blocks [first, first + n) of a request are in the pool."""
        request, size = track.request, self._block_tokens
        hashes = [self._external(h) for h in request.block_hashes[first : first + n]]
        if len(hashes) < n:
            return  # the engine has not hashed them (prefix caching with another block size)
        lora = getattr(request, "lora_request", None)
        self._new.append(_made(
            self._classes.BlockStored, block_hashes=hashes,
            parent_block_hash=self._external(request.block_hashes[first - 1]) if first else None,
            token_ids=list(request.all_token_ids[first * size : (first + n) * size]), block_size=size,
            lora_id=lora.lora_int_id if lora else None, lora_name=lora.lora_name if lora else None,
            medium="STORAGE"))
        for i, h in enumerate(hashes):
            self._known[track.chain.key(first + i)] = h
        while len(self._known) > KNOWN_MAX:
            self._known.pop(next(iter(self._known)))

    def cleared(self) -> None:
        """The namespace is empty now."""
        self._remove(list(self._known))

    def take(self) -> Iterable[Any]:
        """What is new since the last call."""
        if time.monotonic() - self._swept_s > SWEEP_S:
            self._sweep()
        if not self._new:
            return ()
        new, self._new = self._new, []
        return new

    def _sweep(self) -> None:
        self._swept_s = time.monotonic()
        evicted = self._ns.info().evicted
        if evicted == self._evicted:
            return
        self._evicted = evicted
        there = {block.key for block in self._ns.each()}
        self._remove([key for key in self._known if key not in there])

    def _remove(self, keys: list[bytes]) -> None:
        if keys:
            hashes = [self._known.pop(key) for key in keys]
            self._new.append(_made(self._classes.BlockRemoved, block_hashes=hashes, medium="STORAGE"))
