"""Identity: what a block's bytes mean (NamespaceSpec), and the keys of blocks."""
from __future__ import annotations

import dataclasses
import errno
import hashlib
from collections.abc import Sequence
from typing import Any

from ._call import KEY_BYTES, Buffer, array_of, check, integers_of, key_of, whole
from ._native import ffi, lib
from .errors import InvalidError
from .layout import KvLayout


@dataclasses.dataclass(frozen=True)
class NamespaceSpec:
    """Everything that changes what a block's bytes mean. Every field must be set: an unknown fact is an error.

    Make one without the last four fields and let with_layout() fill them from the engine's memory.
    """

    model: str  #: "meta-llama/Meta-Llama-3-8B"; at most 255 bytes of UTF-8, as are the other strings
    weights: bytes  #: 32 bytes: a digest of the weights' content, never of names
    kv_dtype: str  #: "bfloat16"
    backend: str  #: attention backend, and ISA where it matters: "flash-attn-3", "cpu-avx512"
    block_tokens: int  #: tokens in a block
    kv_heads: int  #: of the whole model, all ranks together
    head_size: int  #: elements
    tp_size: int = 1  #: tensor-parallel size; must equal the pool's ranks
    layers: int = 0
    objects_per_layer: int = 0  #: of a block, after merging
    object_bytes: int = 0  #: of one rank
    layout: bytes = b""  #: 32 bytes: fingerprint of the order of bytes inside a block

    def with_layout(self, layout: KvLayout) -> NamespaceSpec:
        """A copy with layers, objects and the fingerprint of `layout`. Does not look at the memory.

        InvalidError: zero, overflowing or overlapping strides.
        """
        c, raw = ffi.new("struct tutti_ns_spec *", {"size": ffi.sizeof("struct tutti_ns_spec")}), layout._c()
        check(lib.tutti_kv_layout_objects(raw[0], c))
        # The library sees segments; the order of dimensions inside of them is known here only.
        order = hashlib.sha256(bytes(c.layout) + layout.order.encode()).digest() if layout.order else bytes(c.layout)
        return dataclasses.replace(self, layers=c.layers, objects_per_layer=c.objects_per_layer,
                                   object_bytes=c.object_bytes, layout=order)

    def digest(self) -> bytes:
        """32 bytes that name the namespace; the same in every process. InvalidError names the field that is unset."""
        c, digest = self._c(), ffi.new("struct tutti_key *")
        check(lib.tutti_ns_digest(c[0], digest))
        return bytes(ffi.buffer(digest))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of one rank, all layers."""
        return self.layers * self.objects_per_layer * self.object_bytes

    def _c(self) -> tuple[Any, list[Any]]:
        c = ffi.new("struct tutti_ns_spec *")
        c.size = ffi.sizeof("struct tutti_ns_spec")
        kept = []
        for field in ("model", "kv_dtype", "backend"):
            kept.append(ffi.new("char[]", getattr(self, field).encode()))
            setattr(c, field, kept[-1])
        for field in ("weights", "layout"):
            value = bytes(getattr(self, field))
            if value and len(value) != KEY_BYTES:
                raise InvalidError(errno.EINVAL, f"NamespaceSpec.{field}: {len(value)} bytes instead of {KEY_BYTES}")
            ffi.memmove(getattr(c, field), value, len(value))
        for field in ("block_tokens", "kv_heads", "head_size", "tp_size", "layers", "objects_per_layer",
                      "object_bytes"):
            high = (1 << 64 if field == "object_bytes" else 1 << 32) - 1
            setattr(c, field, whole(f"NamespaceSpec.{field}", getattr(self, field), 0, high))
        return c, kept


def keys(digest: Buffer, tokens: Any, block_tokens: int, parent: Buffer | None = None,
         extra: Sequence[bytes | None] | None = None) -> bytes:
    """Keys of consecutive whole blocks, as n * 32 bytes; a rest of tokens that fills no block is left out.

    digest: of the namespace (NamespaceSpec.digest). tokens: ids as a buffer of 32-bit integers (numpy,
    array.array("I"), bytes: no copy), another integer array or a list (copied; 64-bit arrays are narrowed). parent:
    32-byte key of the block before the first; None at a chain's start. extra: one bytes or None a block: facts beside
    the tokens (LoRA fingerprint, full multimodal digests, tenant salt). Releases the GIL; the same in every process.
    InvalidError: block_tokens 0, tokens that are no integers, fewer extras than blocks.
    """
    block_tokens = whole("keys: block_tokens", block_tokens, 1)
    ids = integers_of(tokens, "uint32_t", "I")
    n = len(ids) // block_tokens
    c_extra, kept = ffi.NULL, []
    if extra is not None and any(extra):
        if len(extra) < n:
            raise InvalidError(errno.EINVAL, f"keys: {len(extra)} extras for {n} blocks")
        c_extra = ffi.new("struct tutti_extra[]", n)
        for i in range(n):
            data = extra[i]
            if data:
                kept.append(array_of("uint8_t", data))
                c_extra[i].bytes, c_extra[i].n_bytes = kept[-1], len(kept[-1])
    out = bytearray(n * KEY_BYTES)
    if n:
        check(lib.tutti_keys(key_of(digest), key_of(parent), ids, block_tokens, c_extra, n,
                             ffi.from_buffer("struct tutti_key[]", out)))
    return bytes(out)


def split_keys(keys: Buffer) -> list[bytes]:
    """n * 32 bytes as n bytes objects: for dicts and sets, not for the fast path."""
    raw = bytes(keys)
    return [raw[i:i + KEY_BYTES] for i in range(0, len(raw), KEY_BYTES)]


def join_keys(keys: Sequence[bytes]) -> bytes:
    """The reverse of split_keys."""
    return b"".join(keys)
