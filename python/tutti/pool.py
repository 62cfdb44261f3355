"""The scheduler side: the pool and its namespaces. No data passes here.

All calls release the GIL and may come from any thread; the library serialises them. What a lease or a reservation
covers travels to a lane as a plan blob, what the lane did comes back as a completion blob: plain bytes.
"""
from __future__ import annotations

import dataclasses
import errno
import os
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._call import (Buffer, Handle, Paths, Progress, Told, check, duration_ns, finish_with, key_of, keys_of, path_list,
                    paths_of, whole)
from ._native import ffi, lib
from .errors import ExistsError, InvalidError, NotFoundError
from .spec import NamespaceSpec, keys

_CONTROLLERS = {"auto": 0, "virt": 1, "model": 2, "null": 3}
_PREWRITE = {"segment": 0, "all": 1, "none": 2}
PLAN_BLOCKS_MAX = 1 << 24
_NAMESPACES_MAX = 64  # of a pool's table


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
    """Answer of a reservation: slots for keys[first:first + blocks]. (`blocks` is what C calls count; `count` and
    `index` are the methods of every tuple.)"""

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
    failed_syncs: int  #: since it was opened; what they covered counts as unsynced until verified
    sync_failing: int  #: 1: the last one failed; it is tried again, at growing intervals
    healed_copies: int  #: at the last open: damaged ones of superblocks and records, written again from the other copy
    deallocated_segments: int  #: since it was opened: left by a clear, and the drive was told
    failed_deallocations: int


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


@dataclasses.dataclass(frozen=True)
class PoolLook:
    """What Pool.look() saw. What a pool's store alone knows is -1."""

    pool: PoolInfo
    namespaces: tuple[NamespaceInfo, ...]
    held: bool  #: a store has it open, or a format is at work
    pid: int | None  #: which process opened it; None: nobody has it, or it is just being opened
    host: str | None  #: where that runs; None: not known
    lane_pid: int | None  #: a process with a lane on it


def plain(cls: type[Any], c: Any) -> Any:
    """A dataclass from a C struct of the same field names."""
    return cls(**{f.name: _value(getattr(c, f.name)) for f in dataclasses.fields(cls)})


def _seen(cls: type[Any], c: Any) -> Any:
    """plain(), of a look from outside: what is not known is -1."""
    info = plain(cls, c)
    unknown = {"healed_copies": (1 << 32) - 1}
    return dataclasses.replace(info, **{f.name: -1 for f in dataclasses.fields(cls)
                                        if getattr(info, f.name) == unknown.get(f.name, (1 << 64) - 1)})


def _value(v: Any) -> Any:
    if isinstance(v, int):
        return v
    return ffi.string(v).decode(errors="replace") if ffi.typeof(v).item is ffi.typeof("char") else bytes(ffi.buffer(v))


def fill_timing(c: Any, timing: ModelTiming | None) -> None:
    for name, value in dataclasses.asdict(timing or ModelTiming()).items():
        high = (1 << 32 if name in ("queue_depth", "mixed_percent") else 1 << 64) - 1
        setattr(c, name, whole(f"timing: {name}", value, 0, high))


def choice(table: dict[str, int], what: str, name: str) -> int:
    if name not in table:
        raise InvalidError(errno.EINVAL, f"{what} {name!r}: must be one of {', '.join(table)}")
    return table[name]


def parse_bytes(size: int | str) -> int:
    """Bytes of "4G", "512MiB", "64k" (powers of 1024); an int stays what it is. InvalidError: neither, or negative."""
    if not isinstance(size, str):
        return whole("a size in bytes", size, 0, (1 << 63) - 1)
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
        # Weak, as a namespace holds its pool: a pool that is forgotten is closed at once.
        self._namespaces: weakref.WeakValueDictionary[bytes, Namespace] = weakref.WeakValueDictionary()

    @staticmethod
    def format(paths: Paths, size: int | str, *, ranks: int = 1, segment_bytes: int | str = 0, prewrite: str = "segment",
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
        o.ranks, o.bytes, o.overwrite = whole("ranks", ranks), parse_bytes(size), int(overwrite)
        o.segment_bytes = parse_bytes(segment_bytes)
        o.prewrite, o.erase_serial = choice(_PREWRITE, "prewrite", prewrite), serial
        told = Told(progress)
        o.progress, o.progress_arg = told.c, told.arg
        told.check(lib.tutti_format(o))
        del kept

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
        o.sync_interval_ns = duration_ns("sync_interval_s", sync_interval_s)
        o.lock_wait_ns = max(1, duration_ns("lock_wait_s", lock_wait_s))
        o.prewrite_ahead = whole("prewrite_ahead", prewrite_ahead, 0, (1 << 31) - 1) or -1
        told = Told(progress)
        o.progress, o.progress_arg = told.c, told.arg
        pool = cls(Handle("struct tutti_store *", f"pool {names[0]}", lib.py_store_close), names)
        try:
            told.check(lib.tutti_store_open(o, pool._handle.cell))
        except BaseException:
            pool.close()
            raise
        del kept
        return pool

    @staticmethod
    def look(paths: Paths) -> PoolLook:
        """Looks at a pool from outside, also while a process has it open: what its superblock and records say now, and
        who has it. Takes no lock, writes no byte, holds up nobody.

        Errors as of open(), but that a store or lanes at work are none. BusyError: a drive, which one process alone can
        reach.
        """
        o, out = ffi.new("struct tutti_store_opts *"), ffi.new("struct py_look *")
        o.size = ffi.sizeof("struct tutti_store_opts")
        o.paths, o.n_paths, kept = paths_of(paths)
        room = _NAMESPACES_MAX
        while True:
            ns = ffi.new("struct tutti_ns_info[]", room)
            check(lib.py_look(o, out, ns, room))
            if out.n <= room:
                break
            room = out.n
        del kept
        host = ffi.string(out.host).decode(errors="replace")
        return PoolLook(_seen(PoolInfo, out.pool), tuple(_seen(NamespaceInfo, ns[i]) for i in range(out.n)),
                        bool(out.held), out.pid or None, host or None, out.lane_pid or None)

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
        here = self._namespaces.get(ns.digest)
        if here is not None and here.is_open:
            return here
        self._namespaces[ns.digest] = ns
        return ns

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

    def repair(self) -> int:
        """Wipes lost records and headers that belong to no block, so that no later open tells of them again; returns how
        many. Nothing that can be read is touched."""
        wiped = ffi.new("uint64_t *")
        self._handle.call(lib.tutti_store_repair, wiped)
        return int(wiped[0])

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


def open_or_make(paths: Paths, size: int | str | None, spec: NamespaceSpec, *, ranks: int = 1,
                 **how: Any) -> tuple[Pool, Namespace, bool]:
    """The pool at `paths`, and the namespace in it; True: there was none, and it was made with `size`.

    One that was made here and has no room for a block of `spec` is removed again, so that a larger size makes another.
    how: as of Pool.open. Errors: as Pool.format, Pool.open, Pool.namespace.
    """
    names, made = path_list(paths), False
    if size is not None and not any(os.path.exists(name) for name in names):
        try:
            Pool.format(names, size, ranks=ranks)
            made = True
        except ExistsError:
            pass  # another process was faster
        except InvalidError as e:
            raise InvalidError(errno.EINVAL, f"a pool of size {size!r} at {names[0]}: {e.strerror}") from None
    pool = Pool.open(names, **how)
    try:
        return pool, pool.namespace(spec), made
    except InvalidError as e:
        for name in filter(os.path.isfile, names if made else ()):
            os.unlink(name)  # while it is ours: nobody else can have opened it
        pool.close()
        if not made:
            raise
        raise InvalidError(errno.EINVAL, f"{e.strerror}. The pool of size {size!r} that was just made at {names[0]} is "
                                         "removed again; give a larger size") from None
    except BaseException:
        pool.close()
        raise


class Namespace:
    """The blocks of one model and layout in a pool. From Pool.namespace(); lives as long as the pool.

    Keys go in and out in bulk: n * 32 bytes in any buffer (bytes, bytearray, numpy), never a list of objects.
    """

    def __init__(self, pool: Pool, pointer: Any) -> None:
        self.pool, self._handle = pool, pool._handle
        self._cell = ffi.new("struct tutti_ns **", pointer)
        info = self.info()
        #: 32 bytes that name it; what a Lane is opened with.
        self.digest: bytes = info.digest
        self.block_tokens: int = info.block_tokens

    def _call(self, function: Any, *args: Any) -> None:
        mark = object()
        try:
            self._handle.enter(mark)
            pointer = self._cell[0]
            if not pointer:
                raise InvalidError(errno.EINVAL, f"namespace {self.digest.hex()[:16]} was removed from its pool")
            check(function(pointer, *args))
        finally:
            self._handle.inside.discard(mark)

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
        lease = ffi.new("struct tutti_lease *")
        try:
            return Match(self._lookup(keys, lease_s, lease), lease_of(lease))
        except BaseException:
            if lease.id:
                self._call(lib.tutti_release, lease)
            raise

    def _lookup(self, keys: Buffer, lease_s: float | None, lease: Any) -> int:
        """lookup() into a C lease that its owner has already."""
        array, matched = keys_of(keys), ffi.new("size_t *")
        if lease_s is None:
            self._call(lib.tutti_lookup, array, len(array), 0, matched, ffi.NULL)
        else:
            self._call(lib.tutti_lookup, array, len(array), duration_ns("lease_s", lease_s), matched, lease)
        return int(matched[0])

    def reserve(self, keys: Buffer, parent: Buffer | None = None, lease_s: float = 30.0) -> Reservation:
        """Takes slots for those of `keys` that are not there; evicts least recently used blocks where none is free.

        parent: key before keys[0]; None at a chain's start; it must be committed or reserved. The blocks stay invisible
        until complete(). A reservation ends early before a key that someone else is writing (store what comes behind it
        with that key as the parent), before one that comes a second time, and where nothing can be evicted.
        NotFoundError: parent unknown. NoSpaceError: not one slot can be had. AgainError: too many reservations.
        InvalidError: not a chain (a committed key below another parent, or twice).
        """
        lease = ffi.new("struct tutti_lease *")
        try:
            return Reservation(*self._reserve(keys, parent, lease_s, lease), lease_of(lease))
        except BaseException:
            if lease.id:
                self._call(lib.tutti_cancel, lease)
            raise

    def _reserve(self, keys: Buffer, parent: Buffer | None, lease_s: float, lease: Any) -> tuple[int, int]:
        """reserve() into a C lease that its owner has already: (first, blocks)."""
        array, first, count = keys_of(keys), ffi.new("size_t *"), ffi.new("size_t *")
        self._call(lib.tutti_reserve, key_of(parent), array, len(array), duration_ns("lease_s", lease_s), first, count,
                   lease)
        return int(first[0]), int(count[0])

    def plan_blob(self, lease: Lease, first: int, count: int) -> bytes:
        """The plan of blocks [first, first + count) of a lease (to retrieve) or reservation (to store; first counts
        from the reservation's own first block), for Lane.plan. StaleError: the lease is gone."""
        first, count = whole("first", first), whole("count", count, 1, PLAN_BLOCKS_MAX)
        size = lib.tutti_plan_blob_bytes(count)
        out, n = bytearray(size), ffi.new("size_t *")
        self._call(lib.tutti_plan_blob, _c_lease(lease), first, count, ffi.from_buffer(out), size, n)
        return bytes(memoryview(out)[:n[0]])

    def complete(self, blob: Buffer) -> int:
        """Takes a lane's completion blob; returns how many blocks failed, for whatever reason: memory of those is wrong. Those of
        a retrieve that are damaged left the index.

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

    def remove(self) -> None:
        """Empties it and takes it out of the pool's table (which has room for 64), durably. Later calls raise
        InvalidError; lanes that have it open find nothing more in it. BusyError: leases or reservations are out, or a
        thread is inside the pool."""
        cell = self._cell
        check(self._handle.alone(lambda pool: lib.py_ns_remove(cell) if pool[0] and cell[0] else 0))

    @property
    def is_open(self) -> bool:
        return bool(self._cell[0]) and bool(self._handle.open)

    def verify(self, repair: bool = False, progress: Progress | None = None) -> tuple[int, int]:
        """Reads and checks every committed block: (checked, damaged). repair: damaged ones leave index and disk."""
        told, checked, bad = Told(progress), ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self._call(lib.tutti_verify, int(repair), told.c, told.arg, checked, bad)
        told.check(0)
        return checked[0], bad[0]


def lease_of(c: Any) -> Lease:
    """A C lease as a tuple."""
    return Lease(c.epoch, c.id, c.expiry_ns)


def _c_lease(lease: Lease) -> Any:
    return ffi.new("struct tutti_lease *", tuple(lease))
