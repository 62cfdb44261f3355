"""Where an engine's KV memory lies: from tensors (torch, numpy, DLPack) to the segments that the library moves.

Only addresses and strides are used: never a shape convention of some engine or version. A tensor's dimensions other
than the block's are sorted by stride; those that lie together become one segment, what is left must be at most two
nested (count, stride) pairs. The order of dimensions goes into the namespace's fingerprint, so that memory laid out
otherwise never meets these bytes.
"""
from __future__ import annotations

import ctypes
import dataclasses
import errno
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from ._native import ffi
from .errors import InvalidError


class Strided(NamedTuple):
    """An array by address: shape in elements, strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    cuda: bool


def strided(tensor: Any) -> Strided:
    """Address, shape and byte strides of a torch tensor, an array with __cuda_array_interface__ or
    __array_interface__, a DLPack object, or a buffer. No copy, nothing is touched. InvalidError: none of these."""
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
        size = int(tensor.element_size())
        return Strided(int(tensor.data_ptr()), tuple(int(n) for n in tensor.shape),
                       tuple(int(s) * size for s in tensor.stride()), size, str(tensor.dtype).split(".")[-1],
                       bool(getattr(tensor, "is_cuda", False)))
    for name in ("__cuda_array_interface__", "__array_interface__"):
        facts = getattr(tensor, name, None)
        if facts is not None:
            size, shape = int(facts["typestr"][2:]), tuple(facts["shape"])
            return Strided(int(facts["data"][0]), shape, tuple(facts.get("strides") or _dense(shape, size)), size,
                           str(getattr(tensor, "dtype", facts["typestr"])), name.startswith("__cuda"))
    if hasattr(tensor, "__dlpack__"):
        return _dlpack(tensor)
    try:
        view = memoryview(tensor)
    except TypeError:
        raise InvalidError(errno.EINVAL, f"{type(tensor).__name__} is no tensor: it has neither data_ptr, an array "
                                         "interface, __dlpack__ nor a buffer") from None
    return Strided(int(ffi.cast("uintptr_t", ffi.from_buffer(tensor))), view.shape or (1,), view.strides or (1,),
                   view.itemsize, view.format, False)


def _dense(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class _DlTensor(ctypes.Structure):  # dlpack.h: DLTensor, the first member of DLManagedTensor
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _dlpack(tensor: Any) -> Strided:
    capsule = tensor.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = _DlTensor.from_address(get(capsule, b"dltensor"))
    size = t.bits * t.lanes // 8
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] * size for i in range(t.ndim)) if t.strides else _dense(shape, size)
    return Strided((t.data or 0) + t.byte_offset, shape, strides, size, f"dl{t.code}.{t.bits}x{t.lanes}",
                   t.device_type in (2, 13))  # kDLCUDA, kDLCUDAManaged


@dataclasses.dataclass(frozen=True)
class KvLayout:
    """Addresses of KV memory of one rank. Segment (o, i) of block b in layer l begins at
    ``layer_base[l] + b * block_stride + o * outer_stride + i * inner_stride``. All sizes are bytes.

    Keeps the tensors that it was made from, so their memory stays as long as a lane has it registered.
    """

    layer_base: tuple[int, ...]
    blocks: int  #: block numbers are below this
    block_stride: int
    segment_bytes: int
    outer_count: int = 1
    outer_stride: int = 0
    inner_count: int = 1
    inner_stride: int = 0
    order: str = ""  #: dimensions as they lie in memory; part of the fingerprint. "": nothing to tell
    names: tuple[str, ...] = ()  #: layer names, in the order of layer_base
    cuda: bool = False  #: memory of a GPU
    keep: Any = dataclasses.field(default=None, repr=False, compare=False)

    @staticmethod
    def from_tensors(tensors: Mapping[str, Any] | Sequence[Any], block_dim: int,
                     blocks: int | None = None) -> KvLayout:
        """From one tensor a layer, in layer order; all of one shape, dtype and strides.

        block_dim: the dimension that counts blocks. blocks: how many there are; where the tensor has k times as many
        (kernel blocks), k neighbours make one block. Example: K and V split, (2, blocks, tokens, heads, head):
        block_dim 1. InvalidError: not alike, negative strides, more than two pairs of segments, blocks that don't
        divide.
        """
        names = tuple(tensors) if isinstance(tensors, Mapping) else ()
        items = list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)
        if not items:
            raise InvalidError(errno.EINVAL, "KV layout: no tensors")
        views = [strided(t) for t in items]
        first = views[0]
        for i, v in enumerate(views):
            if (v.shape, v.strides, v.dtype, v.cuda) != (first.shape, first.strides, first.dtype, first.cuda):
                raise InvalidError(errno.EINVAL, f"KV layout: layer {names[i] if names else i} is {v[1:]}, "
                                                 f"the first one {first[1:]}; all must be alike")
        dims = _dims(first, block_dim, blocks)
        segment, pairs = _segments(first.itemsize, dims[1:])
        (outer, outer_stride), (inner, inner_stride) = ([(1, 0), (1, 0)] + pairs)[-2:]
        if len(pairs) == 1:
            (outer, outer_stride), (inner, inner_stride) = pairs[0], (1, 0)
        return KvLayout(tuple(v.address for v in views), dims[0][0], dims[0][1], segment, outer, outer_stride, inner,
                        inner_stride, order=_order(first, dims[1:]), names=names, cuda=first.cuda, keep=items)

    @property
    def layers(self) -> int:
        return len(self.layer_base)

    @property
    def layer_bytes(self) -> int:
        """Bytes of a block in a layer: what an engine calls its page size."""
        return self.outer_count * self.inner_count * self.segment_bytes

    def _c(self) -> tuple[Any, Any]:
        bases = ffi.new("void *[]", [ffi.cast("void *", b) for b in self.layer_base])
        try:
            c = ffi.new("struct tutti_kv_layout *", {
                "size": ffi.sizeof("struct tutti_kv_layout"), "layers": len(self.layer_base), "blocks": self.blocks,
                "layer_base": bases, "block_stride": self.block_stride, "outer_count": self.outer_count,
                "inner_count": self.inner_count, "outer_stride": self.outer_stride, "inner_stride": self.inner_stride,
                "segment_bytes": self.segment_bytes})
        except (OverflowError, TypeError) as e:
            raise InvalidError(errno.EINVAL, f"KV layout: {e}") from None
        return c, bases


_Dim = tuple[int, int, int]  # count, stride in bytes, which dimension of the tensor (-1: kernel blocks in a block)


def _dims(t: Strided, block_dim: int, blocks: Union[int, None]) -> list[_Dim]:
    """The block's dimension, then the others."""
    if not -len(t.shape) <= block_dim < len(t.shape):
        raise InvalidError(errno.EINVAL, f"KV layout: no dimension {block_dim} in shape {t.shape}")
    block_dim %= len(t.shape)
    count, stride = t.shape[block_dim], t.strides[block_dim]
    blocks = count if blocks is None else blocks
    if blocks <= 0 or count % blocks or any(s < 0 for s in t.strides) or 0 in t.shape:
        raise InvalidError(errno.EINVAL, f"KV layout: shape {t.shape}, strides {t.strides} bytes, {blocks} blocks in "
                                         f"dimension {block_dim}: blocks must divide it, nothing negative or empty")
    k = count // blocks
    rest: list[_Dim] = [(k, stride, -1)] if k > 1 else []
    rest += [(n, s, i) for i, (n, s) in enumerate(zip(t.shape, t.strides)) if i != block_dim and n > 1]
    return [(blocks, stride * k, block_dim), *sorted(rest, key=lambda d: (-d[1], d[2]))]


def _segments(itemsize: int, dims: Sequence[_Dim]) -> tuple[int, list[tuple[int, int]]]:
    """Segment bytes, and the (count, stride) pairs that are left, largest stride first."""
    pairs: list[tuple[int, int]] = []
    segment = itemsize
    for count, stride, _ in reversed(dims):
        if not pairs and stride == segment:
            segment *= count
        elif pairs and stride == pairs[0][0] * pairs[0][1]:
            pairs[0] = (pairs[0][0] * count, pairs[0][1])
        else:
            pairs.insert(0, (count, stride))
    if len(pairs) > 2:
        raise InvalidError(errno.EINVAL, f"KV layout: a block of a layer lies in {pairs} (count, stride in bytes) "
                                         f"pieces of {segment} bytes; at most two such pairs can be described")
    return segment, pairs


def _order(t: Strided, dims: Sequence[_Dim]) -> str:
    """What the bytes mean one after the other, whatever the strides between them."""
    return f"{t.dtype}:" + ",".join(f"{'k' if i < 0 else i}x{n}" for n, _, i in dims)
