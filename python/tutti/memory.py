"""KV memory that the package allocates itself: for tools, tests and simple values; engines bring their own."""
from __future__ import annotations

import errno
import mmap

from ._call import whole
from ._native import ffi
from .errors import NoMemoryError
from .layout import KvLayout


class KvMemory:
    """`layers` x `blocks` pieces of `block_bytes`, zeroed, page-aligned: one segment per (layer, block)."""

    def __init__(self, layers: int, blocks: int, block_bytes: int) -> None:
        layers, blocks = whole("layers", layers, 1), whole("blocks", blocks, 1)
        self.layers, self.blocks, self.block_bytes = layers, blocks, whole("block_bytes", block_bytes, 1)
        try:
            self._map = mmap.mmap(-1, layers * blocks * block_bytes)
        except (OSError, OverflowError) as e:
            raise NoMemoryError(errno.ENOMEM, f"no memory for {layers} layers of {blocks} blocks of {block_bytes} "
                                              f"bytes: {e}") from None
        self._view = memoryview(self._map)
        base = int(ffi.cast("uintptr_t", ffi.from_buffer(self._map)))
        step = blocks * block_bytes
        #: For Lane.register and NamespaceSpec.with_layout.
        self.layout = KvLayout(tuple(base + i * step for i in range(layers)), blocks, block_bytes, block_bytes,
                               keep=self._map)

    def block(self, layer: int, block: int) -> memoryview:
        """The bytes of a block in a layer, to read and write: a view, shape (block_bytes,)."""
        if not (0 <= layer < self.layers and 0 <= block < self.blocks):
            raise IndexError(f"layer {layer}, block {block} of {self.layers} x {self.blocks}")
        at = (layer * self.blocks + block) * self.block_bytes
        return self._view[at:at + self.block_bytes]
