"""The worker side: a lane (the data path of one rank) and its plans. Here the bytes move.

A lane's calls, and those of its plans, are for one thread at a time; a lock of the lane's sees to it. wait_layer,
wait_layer_stream, poll, failed and stats may come from any thread beside. All release the GIL.
"""
from __future__ import annotations

import dataclasses
import errno
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ._call import (Buffer, Handle, Paths, array_of, check, deadline_ns, duration_ns, finish_with, integers_of, key_of,
                    paths_of, wait_slices, whole)
from ._native import ffi, lib
from .errors import InvalidError
from .layout import KvLayout
from .pool import _CONTROLLERS, Lease, ModelTiming, Namespace, choice, fill_timing, parse_bytes, plain

_EXECUTORS = {"auto": 0, "host": 1, "cuda": 2}
_OPERATIONS = {"retrieve": lib.TUTTI_RETRIEVE, "store": lib.TUTTI_STORE}


@dataclasses.dataclass(frozen=True)
class LaneInfo:
    """The path that a lane's bytes take."""

    controller: str
    executor: str
    sms: int
    queue_depth: int
    mdts_bytes: int
    lba_bytes: int
    mem_align_bytes: int
    direct_io: int  #: O_DIRECT
    zero_copy: int  #: of the registered KV memory
    registered: int  #: KV memory is registered with the kernel
    sgl: int
    accel_bytes: int  #: of GPU memory that the lane holds, beyond the registered KV memory
    why: str  #: what makes it slower than it could be; "": nothing


@dataclasses.dataclass(frozen=True)
class LaneStats:
    """Counters since the lane was opened."""

    commands: int
    objects: int
    bytes_read: int
    bytes_written: int
    direct_bytes: int  #: moved without a copy of ours
    bounced_bytes: int  #: with one
    checksum_bytes: int
    checksum_ns: int
    failed_objects: int
    failed_blocks: int
    retries: int
    layers_retrieved: int
    layers_stored: int
    stores_dropped: int
    ctrl_syscalls: int
    ctrl_parks: int
    ctrl_fixed_ios: int


class Lane:
    """The data path of one rank. Lane.open(), register(), then plan() for each blob. Closes itself at exit."""

    def __init__(self, handle: Handle, digest: bytes) -> None:
        self._handle, self.digest = handle, digest
        self._finalizer = finish_with(self, handle)
        self._serial = threading.RLock()
        #: The registered memory; None before register().
        self.layout: KvLayout | None = None

    @classmethod
    def open(cls, paths: Paths, digest: Buffer, *, rank: int = 0, controller: str = "auto", executor: str = "auto",
             timing: ModelTiming | None = None, sms: int = 0, queue_depth: int = 0, bounce_bytes: int | str = 0,
             deadline_s: float = 30.0, store_queue_layers: int = 0, verify: bool = True, sgl: bool = True) -> Lane:
        """Opens a lane beside a pool that some process has open. digest: of its namespace (Namespace.digest).

        executor: who runs the I/O kernels: "host" (threads), "cuda", "auto" (the GPU when the registered memory is
        the GPU's). sms: thread blocks that serve reads, and as many for writes; queue_depth: commands in flight a
        block; bounce_bytes: bound of bounce buffers; 0 is the library's default in each. deadline_s: of one kernel's
        I/O. store_queue_layers: bound of queued layer stores. verify: compare checksums on retrieve; False is refused
        for what was not synced. NotFoundError: the pool has no such namespace. BusyError, CorruptError, NoDeviceError
        as Pool.open. NotSupportedError: executor "cuda" in a build without it; NoDeviceError: without a GPU.
        """
        o = ffi.new("struct tutti_lane_opts *")
        o.size = ffi.sizeof("struct tutti_lane_opts")
        o.paths, o.n_paths, kept = paths_of(paths)
        o.rank, o.sms, o.queue_depth = whole("rank", rank), whole("sms", sms), whole("queue_depth", queue_depth)
        o.store_queue_layers = whole("store_queue_layers", store_queue_layers)
        o.controller = choice(_CONTROLLERS, "controller", controller)
        o.executor = choice(_EXECUTORS, "executor", executor)
        fill_timing(o.timing, timing)
        o.bounce_bytes, o.deadline_ns = parse_bytes(bounce_bytes), duration_ns("deadline_s", deadline_s)
        o.no_verify, o.no_sgl = int(not verify), int(not sgl)
        lane = cls(Handle("struct tutti_lane *", "lane", lib.py_lane_close), bytes(digest))
        try:
            check(lib.tutti_lane_open(o, key_of(digest), lane._handle.cell))
        except BaseException:
            lane.close()
            raise
        del kept
        return lane

    def register(self, layout: KvLayout) -> None:
        """Registers the engine's KV memory, once; it is kept alive until close(). LaneInfo says which path it takes.

        InvalidError: the layout does not give the namespace's objects. ExistsError: registered already.
        """
        c, kept = layout._c()
        with self._serial:
            self._handle.call(lib.tutti_lane_register, c)
            self.layout = layout
        del kept

    def pace(self, operation: str, *, gentle: bool) -> None:
        """What "retrieve"s (or "store"s) that begin from now on leave to compute on the same GPU: gentle ones take longer,
        and decoding beside them loses far less. A lane begins with neither gentle. Nothing to executors on the host."""
        if not isinstance(gentle, bool) or not isinstance(operation, str):
            raise InvalidError(errno.EINVAL, f"pace: {operation!r} is no operation's name, or {gentle!r} no bool")
        self._handle.call(lib.tutti_lane_pace, choice(_OPERATIONS, "operation", operation), int(gentle))

    def plan(self, blob: Buffer, blocks: Any) -> Plan:
        """A plan from Namespace.plan_blob and the engine's block number of each of its blocks (integers: a list, an
        array or a CPU tensor; 64-bit ones without a copy). Nothing is read or written yet.

        CorruptError: blob damaged. StaleError: other epoch, or expired. InvalidError: a block number out of range, or
        not one a block. AgainError: too many plans. DeniedError: verify is off and blocks were not synced.
        """
        numbers, raw = integers_of(blocks, "uint64_t", "Q"), array_of("uint8_t", blob)
        plan = Plan(self, len(numbers))
        try:
            with self._serial:
                self._handle.call(lib.tutti_plan_open, raw, len(raw), numbers, len(numbers), plan._handle.cell)
        except BaseException:
            plan._handle.close()
            raise
        return plan

    def move(self, namespace: Namespace, lease: Lease, blocks: Any) -> int:
        """The whole of it in one call, for a process that holds both sides: moves the blocks of a lease into the
        engine's blocks, or of a reservation out of them, waits, completes, releases. Returns how many blocks failed.

        blocks: a number for each block of the lease, as for plan(). Errors as of plan_blob, plan, retrieve,
        store_layer and finish; after one of the first two the lease is still there. InvalidError, and likewise: fewer
        numbers than a reservation has blocks.
        """
        numbers, bad = integers_of(blocks, "uint64_t", "Q"), ffi.new("size_t *")
        return self._move(namespace, ffi.new("struct tutti_lease *", tuple(lease)), numbers, bad)

    def _move(self, namespace: Namespace, lease: Any, numbers: Any, bad: Any) -> int:
        mark = object()
        with self._serial:
            try:
                lane = self._handle.enter(mark)
                namespace._call(lib.tutti_move, lane, lease, numbers, len(numbers), bad)
            finally:
                self._handle.inside.discard(mark)
        return int(bad[0])

    def info(self) -> LaneInfo:
        c = ffi.new("struct tutti_lane_info *")
        with self._serial:
            self._handle.call(lib.tutti_lane_get_info, c)
        return plain(LaneInfo, c)  # type: ignore[no-any-return]

    def stats(self) -> LaneStats:
        c = ffi.new("struct tutti_lane_stats *")
        self._handle.call(lib.tutti_lane_stats, c)
        return plain(LaneStats, c)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Waits for I/O in flight to its deadline. Idempotent. BusyError: plans are unfinished, or a thread is inside.

        DeadLaneError: something may still write; the memory stays registered, so keep it.
        """
        with self._serial:
            for plan in [mark for mark in self._handle.inside if isinstance(mark, _PlanHandle) and not mark.owner()]:
                plan.close()  # forgotten, and what should have ended it was interrupted
            self._handle.close()

    @property
    def is_open(self) -> bool:
        return bool(self._handle.open)

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def completion_result(blob: Buffer) -> int:
    """Why the first block that failed did, of the bytes that Plan.finish() gave: a negative errno or an NVMe status; 0:
    none failed. -EBADMSG (a damaged block) also for what are no such bytes."""
    raw = array_of("uint8_t", blob)
    return int(lib.tutti_completion_result(raw, len(raw)))


class Plan:
    """One retrieve or store on its way. End it with finish(); one that is forgotten is finished when it is
    collected."""

    def __init__(self, lane: Lane, blocks: int) -> None:
        self.lane, self.blocks = lane, blocks
        serial = lane._serial

        def finish_quietly(cell: Any) -> int:
            with serial:
                return int(lib.py_plan_finish(cell, deadline_ns(60), ffi.NULL, 0, ffi.NULL))

        self._handle = _PlanHandle(self, lane._handle, finish_quietly)
        self._finalizer = finish_with(self, self._handle)
        lane._handle.inside.add(self._handle)  # a lane with plans can't be closed

    def _serial(self, function: Any, *args: Any) -> None:
        with self.lane._serial:
            self._handle.call(function, *args)

    def retrieve(self) -> None:
        """Issues all layers in one go: one kernel, layer after layer. Does not wait. StaleError: the lease ends
        soon."""
        self._serial(lib.tutti_retrieve)

    def retrieve_layer(self, layer: int) -> None:
        """Issues one layer, after all before it; the cost does not depend on the number of blocks. AgainError: the
        queue is full."""
        self._serial(lib.tutti_retrieve_layer, whole("layer", layer))

    def store_layer(self, layer: int) -> None:
        """Queues one layer's store; each layer once, in any order. The blocks must not change until finish()
        returned.

        AgainError: the bounded queue is full; the whole plan is dropped (nothing of it will be published), and later
        calls raise CanceledError.
        """
        self._serial(lib.tutti_store_layer, whole("layer", layer))

    def store_layer_stream(self, layer: int, stream: int) -> None:
        """The same on the GPU, called before the layer is computed to its end: the store begins when `stream` (a
        cudaStream_t as an integer) has done all that it holds now. Nobody waits. Not while a graph is captured.

        NotSupportedError (nothing is dropped): the executor is not the GPU.
        """
        self._serial(lib.tutti_store_layer_stream, whole("layer", layer), _stream(stream))

    def wait_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """Waits until a layer's bytes are in the engine's memory and checked. True: all blocks are good; False: at
        least one failed, in this layer or before (failed() says which), the others are good.

        DeadlineError: timeout_s is over; it goes on. InvalidError: not issued. DeadLaneError. Any thread.
        """
        layer, deadline, mark = whole("layer", layer), deadline_ns(timeout_s), object()
        try:
            plan = self._handle.enter(mark)
            result = wait_slices(deadline, lambda until: int(lib.tutti_wait_layer(plan, layer, until)))
            if result in (-errno.EINVAL, -errno.ENOTRECOVERABLE):
                check(result)
            elif result == -errno.ETIMEDOUT and not self._failures(plan):
                check(result)
            return result == 0
        finally:
            self._handle.inside.discard(mark)

    def wait_layer_stream(self, layer: int, stream: int) -> None:
        """The same on the GPU: `stream` (a cudaStream_t as an integer: torch's stream.cuda_stream) goes on when the
        layer is done, in every outcome; ask wait_layer or failed before the result is used. Not while a graph is
        captured.

        NotSupportedError: the executor is not the GPU, or its driver has no stream memory operations. Any thread.
        """
        self._handle.call(lib.tutti_wait_layer_stream, whole("layer", layer), _stream(stream))

    def poll(self) -> bool:
        """True if everything issued so far is done: finish() would not wait long. Does not wait."""
        mark = object()
        try:
            return bool(lib.tutti_plan_poll(self._handle.enter(mark)))
        finally:
            self._handle.inside.discard(mark)

    def failed(self) -> dict[int, int]:
        """Blocks that failed so far: index in the plan -> result (negative errno, or NVMe status)."""
        mark = object()
        try:
            return self._failures(self._handle.enter(mark))
        finally:
            self._handle.inside.discard(mark)

    def _failures(self, plan: Any) -> dict[int, int]:
        results = ffi.new("int32_t[]", self.blocks)
        if not lib.py_failed(plan, results, self.blocks):
            return {}
        return {i: r for i, r in enumerate(ffi.unpack(results, self.blocks)) if r}

    def finish(self, timeout_s: float | None = None) -> bytes:
        """Waits for everything issued, writes the headers of a store whose layers are all there, and gives the
        completion blob for Namespace.complete (also where blocks failed). Ends the plan.

        A store with a layer missing completes as dropped. DeadlineError: timeout_s is over, the plan lives on, call
        again. DeadLaneError: the plan lives on; keep its blocks and stop. BusyError: another thread waits in this
        plan.
        """
        size = lib.tutti_completion_blob_bytes(self.blocks)
        out, n, deadline = bytearray(size), ffi.new("size_t *"), deadline_ns(timeout_s)
        raw = ffi.from_buffer(out)

        def end(cell: Any) -> int:
            if not cell[0]:
                raise InvalidError(errno.EINVAL, "plan is finished already")
            return wait_slices(deadline, lambda until: int(lib.py_plan_finish(cell, until, raw, size, n)))

        handle, lane = self._handle, self.lane._handle
        with self.lane._serial:
            try:
                check(handle.alone(end))
            finally:
                if not handle.cell[0]:
                    lane.inside.discard(handle)
        return bytes(memoryview(out)[:n[0]])

    @property
    def is_open(self) -> bool:
        return bool(self._handle.open)


class _PlanHandle(Handle):
    """A plan's. It is a mark of its lane's, too."""

    def __init__(self, owner: Plan, lane: Handle, free: Callable[[Any], int]) -> None:
        super().__init__("struct tutti_plan *", "plan", free)
        self.owner, self._lane = weakref.ref(owner), lane

    def close(self) -> None:
        try:
            super().close()
        finally:
            if not self.cell[0]:
                self._lane.inside.discard(self)


def _stream(stream: Any) -> Any:
    return ffi.cast("void *", whole("stream (a cudaStream_t)", stream, 0, (1 << 64) - 1))
