"""put and get of plain values in a pool, in one process: the simplest use, and one to try a machine with."""
from __future__ import annotations

import errno
import hashlib
import threading

from ._call import Buffer, Paths, finish_with, integers_of, whole
from ._native import ffi, lib
from .errors import DeadLaneError, InvalidError, NoSpaceError
from .lane import Lane
from .memory import KvMemory
from .pool import Namespace, Pool, open_or_make
from .spec import NamespaceSpec

_LENGTH_BYTES = 8
_PAGE = 4096
_LEASE_S = 60.0
_VALUE_BYTES_MAX = (1 << 31) - _PAGE
_BLOCK_0 = integers_of([0], "uint64_t", "Q")


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
        self._finalizer = finish_with(self, lane, pool)

    @classmethod
    def open(cls, paths: Paths, value_bytes: int, *, kind: str = "bytes", size: int | str | None = None) -> ByteCache:
        """Opens the pool at `paths`; makes it with `size` where there is none. kind: a name for what the values are;
        another kind or another value_bytes sees other values. Errors: as Pool.format, Pool.open, Lane.open."""
        value_bytes = whole("value_bytes", value_bytes, 1, _VALUE_BYTES_MAX)
        room = -(-(value_bytes + _LENGTH_BYTES) // _PAGE) * _PAGE
        memory = KvMemory(1, 1, room)
        spec = NamespaceSpec(model=f"values: {kind}", weights=hashlib.sha256(kind.encode()).digest(), kv_dtype="bytes",
                             backend="none", block_tokens=1, kv_heads=1, head_size=value_bytes)
        pool, namespace, _ = open_or_make(paths, size, spec.with_layout(memory.layout))
        try:
            lane = Lane.open(paths, namespace.digest)
            try:
                lane.register(memory.layout)
                return cls(pool, namespace, lane, memory, value_bytes)
            except BaseException:
                lane.close()
                raise
        except BaseException:
            pool.close()
            raise

    @staticmethod
    def _key(key: str | bytes) -> bytes:
        return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()

    def put(self, key: str | bytes, value: Buffer) -> bool:
        """Keeps a copy of `value` (bytes, numpy array, any contiguous buffer), unless the key has a value: then that
        one stays and `value` is not looked at further, since what is stored never changes. True: the key has a value
        afterwards. False: no room could be had. InvalidError: too long."""
        raw = memoryview(value).cast("B")
        if len(raw) > self.value_bytes:
            raise InvalidError(errno.EINVAL, f"ByteCache: {len(raw)} bytes, a value has at most {self.value_bytes}")
        lease, ns, bad = ffi.new("struct tutti_lease *"), self.namespace, ffi.new("size_t *")
        with self._lock:
            try:
                first, blocks = ns._reserve(self._key(key), None, _LEASE_S, lease)
                if not blocks:
                    return first == 1
                block = self._memory.block(0, 0)
                block[:_LENGTH_BYTES] = len(raw).to_bytes(_LENGTH_BYTES, "little")
                block[_LENGTH_BYTES:_LENGTH_BYTES + len(raw)] = raw
                return self.lane._move(ns, lease, _BLOCK_0, bad) == 0
            except NoSpaceError:
                return False
            except DeadLaneError:
                raise  # it may still write there: the room comes back when the reservation expires
            except BaseException:
                if lease.id:
                    ns._call(lib.tutti_cancel, lease)
                raise

    def get(self, key: str | bytes) -> bytes | None:
        """The value, or None: never put, evicted, or damaged on the disk (then it is forgotten)."""
        lease, ns, bad = ffi.new("struct tutti_lease *"), self.namespace, ffi.new("size_t *")
        with self._lock:
            try:
                if not ns._lookup(self._key(key), _LEASE_S, lease) or self.lane._move(ns, lease, _BLOCK_0, bad):
                    return None
                block = self._memory.block(0, 0)
                n = int.from_bytes(block[:_LENGTH_BYTES], "little")
                return bytes(block[_LENGTH_BYTES:_LENGTH_BYTES + n]) if n <= self.value_bytes else None
            except BaseException:
                if lease.id:
                    ns._call(lib.tutti_release, lease)
                raise

    def __contains__(self, key: str | bytes) -> bool:
        return self.namespace.lookup(self._key(key)).blocks == 1

    def __len__(self) -> int:
        return self.namespace.info().committed

    def close(self) -> None:
        """Closes lane and pool; a cache that is forgotten does so by itself. Idempotent. BusyError: a thread is
        inside."""
        try:
            self.lane.close()
        finally:
            self.pool.close()

    def __enter__(self) -> ByteCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
