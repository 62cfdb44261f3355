"""From an engine's KV tensors to the library's description of them: by shape and stride, never by version."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layout import KvLayout


def block_dim(shape: tuple[int, ...], blocks: int, block_tokens: int) -> int:
    """The dimension of a KV tensor that counts blocks, or kernel blocks of which several make a block.

    ValueError: there is none.
    """
    for dim in range(min(2, len(shape))):
        if shape[dim] == blocks:
            return dim
    for dim in range(min(2, len(shape))):
        k, rest = divmod(shape[dim], blocks)
        if not rest and k > 1 and block_tokens % k == 0 and block_tokens // k in shape[dim + 1 :]:
            return dim
    raise ValueError(f"tutti: no dimension of a KV tensor of shape {shape} counts {blocks} blocks")


def layout_of(tensors: Mapping[str, Any], blocks: int, block_tokens: int, page_bytes: int) -> KvLayout:
    """Of KV tensors by layer name, in layer order. blocks: the engine's; page_bytes: of a block in a layer.

    Layers that share their cache are one. ValueError: they can't be described, don't have the engine's page size, or
    are no tensors of attention (a state space model's).
    """
    own: dict[int, tuple[str, Any]] = {}
    for name, t in tensors.items():
        if not hasattr(t, "data_ptr"):
            raise ValueError(f"tutti: layer {name} has {type(t).__name__} for its cache: a state space model's is not "
                             "stored block by block, and not supported")
        own.setdefault(t.data_ptr(), (name, t))
    if not own:
        raise ValueError("tutti: the engine registered no KV cache")
    first = next(iter(own.values()))[1]
    layout = KvLayout.from_tensors(dict(own.values()), block_dim(tuple(first.shape), blocks, block_tokens), blocks)
    if layout.layer_bytes != page_bytes:
        raise ValueError(f"tutti: a block has {layout.layer_bytes} bytes by its strides, {page_bytes} by the engine's word")
    return layout
