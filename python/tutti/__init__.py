"""tutti: KV cache of LLM serving on SSDs.

A pool keeps the KV cache of long prefixes and gives it back faster than recomputing it. An engine's scheduler process
opens the Pool (what is there, where to put it); each of its worker processes opens a Lane (moves the bytes). What
passes between them is plain bytes::

    ns = pool.namespace(spec)                        lane = Lane.open(path, ns.digest); lane.register(layout)
    keys = ns.keys(tokens)
    hit = ns.lookup(keys, lease_s=30)
    blob = ns.plan_blob(hit.lease, 0, hit.blocks) -> plan = lane.plan(blob, block_numbers); plan.retrieve()
                                                     plan.wait_layer(i) before each layer's compute
    ns.complete(done); ns.release(hit.lease) <------ done = plan.finish()

Importing it starts no thread, touches no device and loads neither CUDA nor torch. Failures raise TuttiError, an
OSError with a subclass for each errno, and the library's message.
"""
from __future__ import annotations

from ._call import KEY_BYTES
from ._log import log_to
from ._native import ffi as _ffi
from ._native import lib as _lib
from .bytecache import ByteCache
from .errors import (AgainError, BusyError, CanceledError, CorruptError, DeadLaneError, DeadlineError, DeniedError,
                     ExistsError, ForkedError, InvalidError, NoDeviceError, NoMemoryError, NoPoolError, NoSpaceError,
                     NotFoundError, NotSupportedError, NvmeError, StaleError, TuttiError, VersionError)
from .lane import Lane, LaneInfo, LaneStats, Plan, completion_result
from .layout import KvLayout, Strided, strided
from .memory import KvMemory
from .pool import (Block, Lease, Match, ModelTiming, Namespace, NamespaceInfo, Pool, PoolInfo, PoolLook,
                   Reservation, parse_bytes)
from .spec import NamespaceSpec, join_keys, keys, split_keys

#: Of the C library inside.
__version__: str = _ffi.string(_lib.tutti_version()).decode()

__all__ = [
    "KEY_BYTES", "AgainError", "Block", "BusyError", "ByteCache", "CanceledError", "CorruptError", "DeadLaneError",
    "DeadlineError", "DeniedError", "ExistsError", "ForkedError", "InvalidError", "KvLayout", "KvMemory", "Lane",
    "LaneInfo", "LaneStats", "Lease", "Match", "ModelTiming", "Namespace", "NamespaceInfo", "NamespaceSpec",
    "NoDeviceError", "NoMemoryError", "NoPoolError", "NoSpaceError", "NotFoundError", "NotSupportedError", "NvmeError",
    "Plan", "Pool", "PoolInfo", "PoolLook", "Reservation", "StaleError", "Strided", "TuttiError", "VersionError",
    "completion_result", "join_keys", "keys", "log_to", "parse_bytes", "split_keys", "strided",
]
