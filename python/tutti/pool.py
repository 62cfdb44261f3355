"""The scheduler side: the pool and its namespaces. No data passes here.

All calls release the GIL and may come from any thread; the library serialises them. What a lease or a reservation
covers travels to a lane as a plan blob, what the lane did comes back as a completion blob: plain bytes.
"""
from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._call import (Buffer, Handle, Paths, Progress, check, duration_ns, finish_with, key_of, keys_of,
                    path_list, paths_of, progress_of)
from ._native import ffi, lib
from .errors import InvalidError, NotFoundError
from .spec import NamespaceSpec, keys

_CONTROLLERS = {"auto": 0, "virt": 1, "model": 2, "null": 3}
_PREWRITE = {"segment": 0, "all": 1, "none": 2}


class Lease(NamedTuple):
    """What a lookup or reservation holds. A plain tuple: pickle it, send it. False if it holds nothing."""

    epoch: int
    id: int
    expiry_ns: int  #: CLOCK_MONOTONIC

    def __bool__(self) -> bool:
        return self.id != 0


class Match(NamedTuple):
    """Answer of a lookup."""

    blocks: int  #: length of the longest committed prefix
    lease: Lease  #: holds that prefix; false if none was asked for, or nothing matched


class Reservation(NamedTuple):
    """Answer of a reservation: slots for keys[first:first + blocks]."""

    first: int  #: leading keys that are there already
    blocks: int  #: to store; may be fewer than asked
    lease: Lease


class Block(NamedTuple):
    """A committed block."""

    key: bytes
    parent: bytes  #: 32 zeros at a chain's start
    depth: int
    slot: int


@dataclasses.dataclass(frozen=True)
class ModelTiming:
    """Timing of the model controller; 0 is unlimited."""

    read_bytes_per_s: int = 0
    write_bytes_per_s: int = 0
    read_latency_ns: int = 0
    write_latency_ns: int = 0
    queue_depth: int = 0
    mixed_percent: int = 0  #: of each bandwidth that is left while reads and writes overlap; 0: 100


_Bytes = bytes  # PoolInfo has a field of that name


@dataclasses.dataclass(frozen=True)
class PoolInfo:
    uuid: _Bytes  #: 16 bytes
    version: int
    ranks: int
    n_devices: int
    bytes: int  #: the cap
    segment_bytes: int  #: all ranks and devices together
    segments: int
    segments_free: int
    segments_prewritten: int
    epoch: int
    clean: int  #: closed cleanly the last time
    n_namespaces: int
    index_bytes: int  #: RAM held by the index
    recovered_slots: int  #: of the last open, as are the next three
    recovered_orphans: int
    recovered_bad: int
    damaged_records: int


@dataclasses.dataclass(frozen=True)
class NamespaceInfo:
    model: str
    digest: bytes
    generation: int
    layers: int
    objects_per_layer: int
    block_tokens: int
    kv_heads: int
    head_size: int
    tp_size: int
    object_bytes: int
    set_slots: int  #: neighbouring slots of one device
    slot_bytes: int  #: of one rank's share, header included
    segments: int
    slots: int
    committed: int
    reserved: int
    leased: int
    evicted: int  #: since open


def plain(cls: type[Any], c: Any) -> Any:
    """A dataclass from a C struct of the same field names."""
    return cls(**{f.name: _value(getattr(c, f.name)) for f in dataclasses.fields(cls)})


def _value(v: Any) -> Any:
    if isinstance(v, int):
        return v
    return ffi.string(v).decode(errors="replace") if ffi.typeof(v).item is ffi.typeof("char") else bytes(ffi.buffer(v))


def fill_timing(c: Any, timing: ModelTiming | None) -> None:
    for name, value in dataclasses.asdict(timing or ModelTiming()).items():
        setattr(c, name, value)


def choice(table: dict[str, int], what: str, name: str) -> int:
    if name not in table:
        raise InvalidError(errno.EINVAL, f"{what} {name!r}: must be one of {', '.join(table)}")
    return table[name]


def parse_bytes(size: int | str) -> int:
    """Bytes of "4G", "512MiB", "64k" (powers of 1024); an int stays what it is."""
    if isinstance(size, int):
        return size
    out = ffi.new("uint64_t *")
    check(lib.tutti_parse_bytes(size.encode(), out))
    return int(out[0])


class Pool:
    """A pool, opened for its one store: index, allocation, eviction, recovery. Use Pool.open(); closes itself at exit.

    Also a context manager. Namespaces that it gave out end with it.
    """

    def __init__(self, handle: Handle, paths: list[str]) -> None:
        self._handle, self.paths = handle, paths
        self._finalizer = finish_with(self, handle)
        self._namespaces: dict[bytes, Namespace] = {}

    @staticmethod
    def format(paths: Paths, size: int | str, *, ranks: int = 1, segment_bytes: int = 0, prewrite: str = "segment",
               overwrite: bool = False, erase_serial: str | None = None, progress: Progress | None = None) -> None:
        """Creates a pool and reserves its space in full; it never grows past `size`.

        paths: one or more files (created, mode 0600), block devices, or namespaces of NVMe drives. size: bytes or
        "100G", total over all paths; block devices: 0 takes all. ranks: tensor-parallel size. prewrite: "segment" (in
        the background, ahead of use), "all" (now), "none" (sparse, for tests of metadata; space is then not
        reserved). erase_serial: serials of NVMe drives that may be erased, parted by commas. progress(what, done,
        total). ExistsError: content is there and overwrite is False (nothing was touched). NoSpaceError. BusyError: a
        store or lane has it open. InvalidError: too small, bad ranks.
        """
        o = ffi.new("struct tutti_format_opts *")
        o.size = ffi.sizeof("struct tutti_format_opts")
        o.paths, o.n_paths, kept = paths_of(paths)
        serial = ffi.new("char[]", erase_serial.encode()) if erase_serial else ffi.NULL
        o.ranks, o.bytes, o.segment_bytes, o.overwrite = ranks, parse_bytes(size), segment_bytes, int(overwrite)
        o.prewrite, o.erase_serial = choice(_PREWRITE, "prewrite", prewrite), serial
        o.progress, arg = progress_of(progress)
        o.progress_arg = arg
        keep = (kept, arg)
        check(lib.tutti_format(o))
        del keep

    @classmethod
    def open(cls, paths: Paths, *, controller: str = "auto", timing: ModelTiming | None = None,
             sync_interval_s: float = 1.0, lock_wait_s: float = 5.0, prewrite_ahead: int = 1,
             progress: Progress | None = None) -> Pool:
        """Opens a pool; recovers (reads all headers, with progress) if it was not closed cleanly.

        paths: any one is enough if all names still hold, else all in order. controller: "auto", "virt", "model",
        "null". sync_interval_s: background sync after a commit; math.inf: never. lock_wait_s: how long to wait for
        lanes of an older opener. prewrite_ahead: segments to prewrite ahead of use; 0: none. BusyError: another store
        has it (named by pid and host), or lanes of an earlier one are at work. NoPoolError. CorruptError: no sound
        superblock. VersionError. NoDeviceError: a device is missing or truncated. NotFoundError, DeniedError: path.
        """
        names = path_list(paths)
        o = ffi.new("struct tutti_store_opts *")
        o.size = ffi.sizeof("struct tutti_store_opts")
        o.paths, o.n_paths, kept = paths_of(paths)
        o.controller = choice(_CONTROLLERS, "controller", controller)
        fill_timing(o.timing, timing)
        o.sync_interval_ns = duration_ns(None if sync_interval_s == float("inf") else sync_interval_s)
        o.lock_wait_ns = max(1, duration_ns(lock_wait_s))
        o.prewrite_ahead = prewrite_ahead or -1
        o.progress, arg = progress_of(progress)
        o.progress_arg = arg
        out = ffi.new("struct tutti_store **")
        keep = (kept, arg)
        check(lib.tutti_store_open(o, out))
        del keep
        return cls(Handle(out[0], f"pool {names[0]}", lib.tutti_store_close), names)

    def namespace(self, spec: NamespaceSpec) -> Namespace:
        """The namespace of `spec`, made on first use.

        InvalidError: spec (the message names the field), tp_size differs from the pool's ranks, or a block does not
        fit a segment. NoSpaceError: table full. CorruptError: the record on disk is not the one of this digest.
        """
        c, kept = spec._c()
        out = ffi.new("struct tutti_ns **")
        self._handle.call(lib.tutti_ns_open, c, out)
        del kept
        return self._namespace(out[0])

    def namespaces(self) -> list[Namespace]:
        """All of the pool's namespaces."""
        out, found = ffi.new("struct tutti_ns **"), []
        for i in range(self.info().n_namespaces):
            try:
                self._handle.call(lib.tutti_ns_at, i, out)
            except NotFoundError:
                break
            found.append(self._namespace(out[0]))
        return found

    def _namespace(self, pointer: Any) -> Namespace:
        ns = Namespace(self, pointer)
        return self._namespaces.setdefault(ns.digest, ns)

    def info(self) -> PoolInfo:
        c = ffi.new("struct tutti_pool_info *")
        self._handle.call(lib.tutti_store_info, c)
        return plain(PoolInfo, c)  # type: ignore[no-any-return]

    def sync(self) -> None:
        """Makes everything committed so far survive a power loss. Others go on meanwhile."""
        self._handle.call(lib.tutti_store_sync)

    def verify(self, repair: bool = False, progress: Progress | None = None) -> tuple[int, int]:
        """Namespace.verify over all namespaces: (blocks checked, damaged)."""
        each = [ns.verify(repair, progress) for ns in self.namespaces()]
        return sum(c for c, _ in each), sum(b for _, b in each)

    def close(self) -> None:
        """Writes the index checkpoint and closes; leases and reservations end. Idempotent. BusyError: a thread is
        inside."""
        self._handle.close()

    @property
    def is_open(self) -> bool:
        return bool(self._handle.open)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Namespace:
    """The blocks of one model and layout in a pool. From Pool.namespace(); lives as long as the pool.

    Keys go in and out in bulk: n * 32 bytes in any buffer (bytes, bytearray, numpy), never a list of objects.
    """

    def __init__(self, pool: Pool, pointer: Any) -> None:
        self.pool, self._pointer, self._handle = pool, pointer, pool._handle
        info = self.info()
        #: 32 bytes that name it; what a Lane is opened with.
        self.digest: bytes = info.digest
        self.block_tokens: int = info.block_tokens

    def _call(self, function: Any, *args: Any) -> None:
        self._handle.enter()
        try:
            check(function(self._pointer, *args))
        finally:
            self._handle.leave()

    def info(self) -> NamespaceInfo:
        c = ffi.new("struct tutti_ns_info *")
        self._call(lib.tutti_ns_get_info, c)
        return plain(NamespaceInfo, c)  # type: ignore[no-any-return]

    def keys(self, tokens: Any, parent: Buffer | None = None, extra: Any = None) -> bytes:
        """tutti.keys() with this namespace's digest and block size."""
        return keys(self.digest, tokens, self.block_tokens, parent, extra)

    def lookup(self, keys: Buffer, lease_s: float | None = None) -> Match:
        """The longest prefix of `keys` (n * 32 bytes, a chain) that is committed; does not touch the disk.

        lease_s: hold it against eviction for that long, or until released. None: no lease. AgainError: too many leases.
        """
        array = keys_of(keys)
        matched = ffi.new("size_t *")
        if lease_s is None:
            self._call(lib.tutti_lookup, array, len(array), 0, matched, ffi.NULL)
            return Match(matched[0], _NO_LEASE)
        lease = ffi.new("struct tutti_lease *")
        self._call(lib.tutti_lookup, array, len(array), duration_ns(lease_s), matched, lease)
        return Match(matched[0], _lease(lease))

    def reserve(self, keys: Buffer, parent: Buffer | None = None, lease_s: float = 30.0) -> Reservation:
        """Takes slots for those of `keys` that are not there; evicts least recently used blocks where none is free.

        parent: key before keys[0]; None at a chain's start; it must be committed or reserved. The blocks stay invisible
        until complete(). NotFoundError: parent unknown. NoSpaceError: not one slot can be had. AgainError: too many
        reservations. InvalidError: not a chain.
        """
        array = keys_of(keys)
        first, count, lease = ffi.new("size_t *"), ffi.new("size_t *"), ffi.new("struct tutti_lease *")
        self._call(lib.tutti_reserve, key_of(parent), array, len(array), duration_ns(lease_s), first, count, lease)
        return Reservation(first[0], count[0], _lease(lease))

    def plan_blob(self, lease: Lease, first: int, count: int) -> bytes:
        """The plan of blocks [first, first + count) of a lease (to retrieve) or reservation (to store; first counts
        from the reservation's own first block), for Lane.plan. StaleError: the lease is gone."""
        size = lib.tutti_plan_blob_bytes(count)
        out, n = bytearray(size), ffi.new("size_t *")
        self._call(lib.tutti_plan_blob, _c_lease(lease), first, count, ffi.from_buffer(out), size, n)
        return bytes(memoryview(out)[:n[0]])

    def complete(self, blob: Buffer) -> int:
        """Takes a lane's completion blob; returns how many blocks failed. Those of a retrieve left the index.

        Of a store: publishes its keys once all ranks' blobs are in and their parents are published; what failed is
        released with its descendants. CorruptError: not a completion blob. StaleError: older epoch, or the lease is
        gone.
        """
        bad = ffi.new("size_t *")
        raw = ffi.from_buffer(blob)
        self._call(lib.tutti_complete, raw, len(raw), bad)
        return int(bad[0])

    def release(self, lease: Lease) -> None:
        """Ends a lease or reservation; idempotent. Slots that a lane may still write come back after the expiry."""
        if lease:
            self._call(lib.tutti_release, _c_lease(lease))

    def cancel(self, reservation: Lease) -> None:
        """Ends a reservation whose plan never reached a lane: its slots are free at once."""
        if reservation:
            self._call(lib.tutti_cancel, _c_lease(reservation))

    def each(self) -> Iterator[Block]:
        """Every committed block, in no order: a snapshot, taken at once in C."""
        n, room = ffi.new("size_t *"), self.info().committed + 64
        while True:
            blocks = ffi.new("struct py_block[]", room)
            self._call(lib.py_blocks, blocks, room, n)
            if n[0] <= room:
                break
            room = n[0] + n[0] // 8
        for i in range(n[0]):
            b = blocks[i]
            yield Block(bytes(ffi.buffer(b.key.b)), bytes(ffi.buffer(b.parent.b)), b.depth, b.slot)

    def clear(self) -> None:
        """Empties it at once, durably; space comes back as it is needed. BusyError: leases or reservations are out."""
        self._call(lib.tutti_ns_clear)

    def verify(self, repair: bool = False, progress: Progress | None = None) -> tuple[int, int]:
        """Reads and checks every committed block: (checked, damaged). repair: damaged ones leave index and disk."""
        fn, arg = progress_of(progress)
        checked, bad = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self._call(lib.tutti_verify, int(repair), fn, arg, checked, bad)
        return checked[0], bad[0]


_NO_LEASE = Lease(0, 0, 0)


def _lease(c: Any) -> Lease:
    return Lease(c.epoch, c.id, c.expiry_ns)


def _c_lease(lease: Lease) -> Any:
    return ffi.new("struct tutti_lease *", tuple(lease))
