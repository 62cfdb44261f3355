"""put and get of plain values in a pool, in one process: the simplest use, and one to try a machine with."""
from __future__ import annotations

import errno
import hashlib
import os
import threading

from ._call import Buffer, Paths, path_list
from .errors import ExistsError, InvalidError, NoSpaceError
from .lane import Lane
from .memory import KvMemory
from .pool import Namespace, Pool
from .spec import NamespaceSpec

_LENGTH_BYTES = 8
_PAGE = 4096
_LEASE_S = 60.0


class ByteCache:
    """Values of up to `value_bytes` under keys of any bytes or str, kept in a pool across restarts; the least recently
    used ones go when it is full. From any thread, one call at a time.

    with ByteCache.open("/ssd/cache", 1 << 20, size="10G") as cache:
        cache.put("a", b"...")
        cache.get("a")
    """

    def __init__(self, pool: Pool, namespace: Namespace, lane: Lane, memory: KvMemory, value_bytes: int) -> None:
        self.pool, self.namespace, self.lane, self.value_bytes = pool, namespace, lane, value_bytes
        self._memory, self._lock = memory, threading.Lock()

    @classmethod
    def open(cls, paths: Paths, value_bytes: int, *, kind: str = "bytes", size: int | str | None = None) -> ByteCache:
        """Opens the pool at `paths`; makes it with `size` where there is none. kind: a name for what the values are;
        another kind or another value_bytes sees other values. Errors: as Pool.format, Pool.open, Lane.open."""
        if value_bytes <= 0:
            raise InvalidError(errno.EINVAL, "ByteCache: value_bytes must be above 0")
        room = -(-(value_bytes + _LENGTH_BYTES) // _PAGE) * _PAGE
        memory = KvMemory(1, 1, room)
        spec = NamespaceSpec(model=f"values: {kind}", weights=hashlib.sha256(kind.encode()).digest(), kv_dtype="bytes",
                             backend="none", block_tokens=1, kv_heads=1, head_size=value_bytes)
        if size is not None and not os.path.exists(path_list(paths)[0]):
            try:
                Pool.format(paths, size)
            except ExistsError:
                pass  # another process was faster
        pool = Pool.open(paths)
        try:
            namespace = pool.namespace(spec.with_layout(memory.layout))
            lane = Lane.open(paths, namespace.digest)
            lane.register(memory.layout)
        except BaseException:
            pool.close()
            raise
        return cls(pool, namespace, lane, memory, value_bytes)

    @staticmethod
    def _key(key: str | bytes) -> bytes:
        return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()

    def put(self, key: str | bytes, value: Buffer) -> bool:
        """Keeps a copy of `value` (bytes, numpy array, any contiguous buffer). True when it is there afterwards,
        also when the key had a value already (values never change). False: no room could be had. InvalidError: too
        long."""
        raw = memoryview(value).cast("B")
        if len(raw) > self.value_bytes:
            raise InvalidError(errno.EINVAL, f"ByteCache: {len(raw)} bytes, a value has at most {self.value_bytes}")
        with self._lock:
            try:
                first, blocks, lease = self.namespace.reserve(self._key(key), lease_s=_LEASE_S)
            except NoSpaceError:
                return False
            if not blocks:
                return first == 1
            block = self._memory.block(0, 0)
            block[:_LENGTH_BYTES] = len(raw).to_bytes(_LENGTH_BYTES, "little")
            block[_LENGTH_BYTES:_LENGTH_BYTES + len(raw)] = raw
            return self.lane.move(self.namespace, lease, [0]) == 0

    def get(self, key: str | bytes) -> bytes | None:
        """The value, or None: never put, evicted, or damaged on the disk (then it is forgotten)."""
        with self._lock:
            hit = self.namespace.lookup(self._key(key), lease_s=_LEASE_S)
            if not hit.blocks or self.lane.move(self.namespace, hit.lease, [0]):
                return None
            block = self._memory.block(0, 0)
            n = int.from_bytes(block[:_LENGTH_BYTES], "little")
            return bytes(block[_LENGTH_BYTES:_LENGTH_BYTES + n]) if n <= self.value_bytes else None

    def __contains__(self, key: str | bytes) -> bool:
        return self.namespace.lookup(self._key(key)).blocks == 1

    def __len__(self) -> int:
        return self.namespace.info().committed

    def close(self) -> None:
        """Closes lane and pool. Idempotent."""
        self.lane.close()
        self.pool.close()

    def __enter__(self) -> ByteCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
