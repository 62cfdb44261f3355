"""Keys of a request's blocks: the library's chained digest over token ids and everything else that changes KV.

They are the same in every process, whatever PYTHONHASHSEED and the engine's own hash are. Facts that are not tokens go
into the extra bytes of the block where they begin; because keys are chained, whatever follows is told apart by them.
"""
from __future__ import annotations

import array
import hashlib
import math
import struct
from collections.abc import Callable
from typing import Any

from .._native import ffi
from ..layout import strided

KEY_BYTES = 32


def packed(*fields: tuple[bytes, bytes]) -> bytes:
    """Canonical bytes of (tag, value) pairs: each with its length, so that no two lists give the same bytes."""
    return b"".join(struct.pack("<II", len(tag), len(value)) + tag + value for tag, value in fields)


def lora_digest_of(lora: Any, files_digest: Callable[[str], bytes]) -> bytes | None:
    """Digest of an adapter's content, never of its name (a name may come back with other weights)."""
    return files_digest(lora.lora_path) if lora is not None else None


def facts_at(request: Any, start: int, end: int, lora: bytes | None) -> bytes:
    """Extra bytes of the block of tokens [start, end) of an engine's request. Empty for most."""
    fields = []
    if start == 0 and lora is not None:
        fields.append((b"lora", lora))
    if start == 0 and getattr(request, "cache_salt", None):
        fields.append((b"salt", request.cache_salt.encode()))
    for feature in getattr(request, "mm_features", None) or ():
        at = feature.mm_position
        if at.offset < end and at.offset + at.length > start:
            where = struct.pack("<qq", at.offset - start, at.length)
            fields.append((b"mm", feature.modality.encode() + b"\0" + feature.identifier.encode() + b"\0" + where))
    embeds = getattr(request, "prompt_embeds", None)
    if embeds is not None and start < len(embeds):
        fields.append((b"embeds", str(embeds.dtype).encode() + hashlib.sha256(_bytes_of(embeds[start:end])).digest()))
        mixed = getattr(request, "prompt_is_token_ids", None)  # a token's row is ignored, an embedding's id is 0
        if mixed is not None:
            fields.append((b"tokens", bytes(mixed[start:end])))
    return packed(*fields) if fields else b""


def _bytes_of(tensor: Any) -> Any:
    """The bytes of a torch tensor in the order of its elements, whatever its dtype."""
    dense = tensor.cpu().contiguous()
    where = strided(dense)
    return ffi.buffer(ffi.cast("char *", where.address), where.itemsize * math.prod(where.shape))[:]


def cacheable(request: Any) -> bool:
    """Whether a request's blocks have an identity that can be told: no streaming input, no nameless media."""
    if getattr(request, "resumable", False):
        return False
    return all(getattr(f, "identifier", None) for f in getattr(request, "mm_features", None) or ())


class Chain:
    """The keys of one request's whole blocks, made once and extended as tokens arrive.

    make_keys(parent, tokens, extras) -> bytes of the keys, one every 32 bytes.
    """

    def __init__(self, request: Any, block_tokens: int, make_keys: Callable[[Any, Any, Any], bytes],
                 lora: bytes | None = None) -> None:
        self._request, self._block_tokens, self._make_keys, self._lora = request, block_tokens, make_keys, lora
        self._raw = bytearray()
        self._plain = not (lora or getattr(request, "cache_salt", None) or getattr(request, "mm_features", None)
                           or getattr(request, "prompt_embeds", None) is not None)

    def upto(self, n_blocks: int) -> memoryview:
        """Keys of the first n_blocks blocks; their tokens must be known."""
        have, size = len(self._raw) // KEY_BYTES, self._block_tokens
        if n_blocks > have:
            tokens = array.array("I", self._request.all_token_ids[have * size : n_blocks * size])
            extras = None
            if not self._plain:
                extras = [facts_at(self._request, i * size, (i + 1) * size, self._lora) for i in range(have, n_blocks)]
            parent = bytes(self._raw[-KEY_BYTES:]) if have else None
            self._raw = self._raw + self._make_keys(parent, tokens, extras)
        return memoryview(self._raw)[: n_blocks * KEY_BYTES]

    def key(self, i: int) -> bytes:
        """Key of block i, which upto() was asked for before."""
        return bytes(self._raw[i * KEY_BYTES : (i + 1) * KEY_BYTES])
