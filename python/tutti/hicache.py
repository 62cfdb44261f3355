"""SGLang's HiCache over a pool: `--hicache-storage-backend dynamic` with class tutti.hicache.TuttiStorage.

HiCache keeps pages (page_size tokens, all layers) in a host pool and asks a storage backend for batches of them, by
hash. A page is a block here; where its bytes lie is asked of the host pool (get_page_buffer_meta of three pages), so
every layout of it is moved in place, without a copy of ours where addresses are aligned.

HiCache's hashes are chained, but a batch doesn't say what hangs below what: a radix node is stored alone, and nodes are
split later. So a batch is taken as runs. A run of present keys is one lookup; a run of missing ones is stored below the
key before it, or as a chain's start.

Three threads of HiCache come in (query, read, write): reads and writes have a lane each, so neither waits for the
other. None of these threads may see an exception: HiCache never starts it again. A failure is a miss, and is logged.
"""
from __future__ import annotations

import array
import contextlib
import errno
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._call import KEY_BYTES
from ._native import ffi, lib
from .errors import DeadLaneError, DeadlineError, InvalidError, NoSpaceError, TuttiError
from .lane import Lane, Plan
from .layout import KvLayout
from .pool import Namespace, lease_of, open_or_make
from .spec import NamespaceSpec

if TYPE_CHECKING:
    class HiCacheStorage:
        mem_pool_host: Any
else:
    try:
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    except ImportError:
        HiCacheStorage = object

logger = logging.getLogger(__name__)

_LEASE_S = 120.0
_WAIT_S = 60.0
_LOG_EVERY_S = 10.0


def _refuse(why: str) -> ValueError:
    return ValueError(f"tutti.hicache: {why}")


def page_layout(pool: Any, mla: bool) -> KvLayout:
    """Where the pages of a HiCache host pool lie. ValueError: not as K and V of the layers, one after the other."""
    page, pages = int(pool.page_size), int(pool.size) // int(pool.page_size)
    if pages < 1:
        raise _refuse("the host pool has no page")
    starts = sorted({0, min(1, pages - 1), pages - 1})
    runs = [_runs(pool, at * page, page) for at in starts]
    addresses, sizes = runs[0]
    step = runs[1][0][0] - addresses[0] if pages > 1 else sum(sizes)
    parts = 1 if mla else 2
    bases = addresses[::parts]
    apart = addresses[1] - addresses[0] if parts == 2 else 0
    ok = len(set(sizes)) == 1 and len(addresses) == len(bases) * parts and step > 0 and apart >= 0
    for start, (there, _) in zip(starts, runs):
        ok = ok and there == [a + start * step for a in addresses]
    if parts == 2:
        ok = ok and addresses[1::2] == [b + apart for b in bases]
    if not ok:
        raise _refuse(f"the pages of a host pool with layout {pool.layout!r} are not evenly spaced runs of K and V")
    facts = (getattr(pool, name, "") for name in ("layout", "dtype", "page_size", "layer_num", "head_num", "head_dim",
                                                  "kv_cache_dim"))
    return KvLayout(tuple(bases), pages, step, sizes[0], outer_count=parts, outer_stride=apart,
                    order="hicache:" + ":".join(map(str, facts)), keep=getattr(pool, "kv_buffer", pool))


def _runs(pool: Any, first: int, tokens: int) -> tuple[list[int], list[int]]:
    torch = sys.modules.get("torch")
    indices = torch.arange(first, first + tokens) if torch else array.array("q", range(first, first + tokens))
    addresses, sizes = pool.get_page_buffer_meta(indices)
    return [int(a) for a in addresses], [int(s) for s in sizes]


def key_of(key: str) -> bytes:
    """32 bytes of HiCache's key: what its SHA-256 hex digits say, or a digest of any other text."""
    if len(key) == 2 * KEY_BYTES:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return hashlib.sha256(key.encode()).digest()


def _weights(config: Any, extra: dict[str, Any]) -> bytes:
    given = extra.get("weights")
    if given is not None:
        raw = bytes.fromhex(given) if len(given) == 2 * KEY_BYTES else b""
        if len(raw) != KEY_BYTES:
            raise _refuse('"weights" must be 64 hex digits: a digest of the weights\' content')
        return raw
    from .vllm.identity import files_digest
    if not config.model_name or not os.path.isdir(config.model_name):
        raise _refuse('set "weights" in the extra config (64 hex digits, a digest of the weights\' content): '
                      f"{config.model_name!r} is no folder that could be read for it")
    return files_digest(config.model_name)


class TuttiStorage(HiCacheStorage):
    """HiCache's storage backend: batch_exists, batch_get_v1, batch_set_v1.

    sglang --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "tutti", "module_path": "tutti.hicache", "class_name": "TuttiStorage", "interface_v1": 1,
      "pool": "/ssd/pool", "size": "100G"}'

    pool: a path; each rank has a pool of its own there (a name with the rank is appended where there are several).
    size: of a rank's pool, made with it where there is none. weights: 64 hex digits, a digest of the weights' content;
    left out, the model's folder is read for it. backend: name of the attention backend, where it changes bytes.
    ValueError at start, with the reason, for what is not supported: hybrid models, MLA over several ranks.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        self.config = storage_config
        if not extra.get("pool"):
            raise _refuse('"pool" is missing in the extra config: the path of the pool')
        if not extra.get("interface_v1"):
            raise _refuse('"interface_v1": 1 is missing in the extra config: pages move without a copy or not at all')
        ranks = [(name, getattr(storage_config, f"{short}_rank", 0), getattr(storage_config, f"{short}_size", 1))
                 for name, short in (("tp", "tp"), ("pp", "pp"), ("cp", "attn_cp"), ("dp", "dp"))]
        if storage_config.is_mla_model and storage_config.tp_size > 1:
            raise _refuse("MLA with tensor parallelism is not supported: one rank writes what all read, "
                          "and a pool has one opener")
        self.rank = "-".join(f"{name}{rank}of{size}" for name, rank, size in ranks if size > 1)
        self.path = f"{extra['pool']}-{self.rank}" if self.rank else str(extra["pool"])
        self._extra = extra
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        self._said: dict[str, float] = {}
        #: What happened: keys asked, present; pages read, failed, stored, not stored for want of space.
        self.counts = {name: 0 for name in ("asked", "present", "read", "failed", "stored", "full")}

    # ---- HiCache's calls ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Opens the pool and a lane each for reads and writes over the host pool's memory."""
        self.mem_pool_host = mem_pool_host
        self.page_size = int(mem_pool_host.page_size)
        self.layout = page_layout(mem_pool_host, self.config.is_mla_model)
        spec = NamespaceSpec(
            model=self.config.model_name or "unnamed", weights=_weights(self.config, self._extra),
            kv_dtype=str(mem_pool_host.dtype).split(".")[-1],
            backend=f"sglang:{self._extra.get('backend', 'any')}:{self.rank or 'alone'}", block_tokens=self.page_size,
            kv_heads=max(1, int(getattr(mem_pool_host, "head_num", 1))),
            head_size=max(1, int(getattr(mem_pool_host, "head_dim", 0) or getattr(mem_pool_host, "kv_cache_dim", 1))))
        size = self._extra.get("size") or None
        if size is None and not os.path.exists(self.path):
            raise _refuse(f'there is no pool at {self.path}; give "size" to have one made')
        self.namespace: Namespace
        self.pool, self.namespace, made = open_or_make(self.path, size, spec.with_layout(self.layout))
        try:
            self._reader, self._writer = self._lane(), self._lane()
        except BaseException:
            self.pool.close()
            raise
        info, path = self.namespace.info(), self._reader.info()
        logger.info("tutti: pool %s%s, %d of %d pages warm; %s, %s%s", self.path, " (made)" if made else "",
                    info.committed, info.slots, path.controller, "in place" if path.zero_copy else "through a copy",
                    f" ({path.why})" if path.why else "")

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if str(getattr(host_pool_name, "value", host_pool_name)) != "kv":
            raise _refuse(f"models with a second cache ({host_pool_name}) are not supported")

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many of keys, from the first on, are there. Does not touch the disk."""
        try:
            wanted, n = [key_of(k) for k in keys], 0
            while n < len(wanted):
                here = self.namespace.lookup(b"".join(wanted[n:])).blocks
                if not here:
                    break
                n += here
            self.counts["asked"] += len(wanted)
            self.counts["present"] += n
            return n
        except TuttiError as e:
            self._say("query", e)
            return 0

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Reads pages into the host pool; host_indices: page_size token indices a key. What follows the first page
        that is not there is False: HiCache uses a prefix."""
        good: list[bool] = []
        try:
            wanted, pages = [key_of(k) for k in keys], self._pages(keys, host_indices)
            with self._read_lock:
                while len(good) < len(wanted):
                    at = len(good)
                    run = self._read_run(wanted[at:], pages[at:])
                    good += run
                    if not run or not all(run):
                        break
        except DeadLaneError as e:
            self._stop_engine(e)
        except TuttiError as e:
            self._say("read", e)
        self.counts["read"] += sum(good)
        self.counts["failed"] += len(good) - sum(good)
        return good + [False] * (len(keys) - len(good))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool; True for those that are there afterwards. Returns when they are committed."""
        prefix = getattr(extra_info, "prefix_keys", None) or [None]
        before = key_of(prefix[-1]) if isinstance(prefix[-1], str) else None
        good: list[bool] = []
        try:
            wanted, pages = [key_of(k) for k in keys], self._pages(keys, host_indices)
            with self._write_lock:
                if before is not None and not self.namespace.lookup(before).blocks:
                    before = None
                while len(good) < len(wanted):
                    at = len(good)
                    run = self._set_run(wanted[at:], pages[at:], wanted[at - 1] if at else before)
                    good += run
                    if not all(run):
                        break  # what follows would hang below nothing
        except NoSpaceError:
            self.counts["full"] += len(keys) - len(good)
        except DeadLaneError as e:
            self._stop_engine(e)
        except TuttiError as e:
            self._say("write", e)
        return good + [False] * (len(keys) - len(good))

    # The interface before v1, which copies a page at a time: not served (interface_v1 is required at start).

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return None

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: Sequence[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return False

    def clear(self) -> None:
        """Forgets all pages of this model and rank."""
        try:
            with self._read_lock, self._write_lock:
                self.namespace.clear()
        except TuttiError as e:
            self._say("clear", e)

    def close(self) -> None:
        """Closes lanes and pool; also done at exit."""
        with contextlib.ExitStack() as stack:  # all of them, whatever the others say
            for name in ("pool", "_writer", "_reader"):
                if hasattr(self, name):
                    stack.callback(getattr(self, name).close)

    # ---- how ----

    def _lane(self) -> Lane:
        lane = Lane.open(self.path, self.namespace.digest)
        lane.register(self.layout)
        return lane

    def _pages(self, keys: Sequence[str], host_indices: Any) -> list[int]:
        first = host_indices[::self.page_size].tolist()
        if len(first) != len(keys) or any(i % self.page_size for i in first):
            raise InvalidError(errno.EINVAL, f"{len(keys)} keys, but {len(host_indices)} token indices of pages of "
                                             f"{self.page_size}, or some that don't begin a page")
        return [i // self.page_size for i in first]

    def _read_run(self, keys: Sequence[bytes], pages: Sequence[int]) -> list[bool]:
        """Reads the longest run of keys that is there; [] if not even the first is."""
        ns, lease = self.namespace, ffi.new("struct tutti_lease *")
        try:
            n = ns._lookup(b"".join(keys), _LEASE_S, lease)
            if not n:
                return []
            plan = self._reader.plan(ns.plan_blob(lease_of(lease), 0, n), pages[:n])
            try:
                plan.retrieve()
                for layer in range(self.layout.layers):
                    plan.wait_layer(layer, _WAIT_S)
                failed = plan.failed()
            finally:
                done = self._finish_read(plan)
            ns.complete(done)
        finally:
            if lease.id:
                ns._call(lib.tutti_release, lease)
        return [i not in failed for i in range(n)]

    @staticmethod
    def _finish_read(plan: Plan) -> bytes:
        try:
            return plan.finish(_WAIT_S)
        except DeadlineError as e:  # long after the lane's own deadline: something is out of order, and may still write
            raise DeadLaneError(errno.ENOTRECOVERABLE, str(e)) from None

    def _set_run(self, keys: Sequence[bytes], pages: Sequence[int], parent: bytes | None) -> list[bool]:
        """Passes over the run of keys that are there, or stores the run that is not. Always at least one answer."""
        here = self.namespace.lookup(b"".join(keys)).blocks
        if here:
            return [True] * here
        missing = 1
        while missing < len(keys) and not self.namespace.lookup(keys[missing]).blocks:
            missing += 1
        run = b"".join(keys[:missing])
        ns, lease = self.namespace, ffi.new("struct tutti_lease *")
        try:
            first, blocks = ns._reserve(run, parent, _LEASE_S, lease)
            if blocks:
                plan = self._writer.plan(ns.plan_blob(lease_of(lease), 0, blocks), pages[first:first + blocks])
                try:
                    for layer in range(self.layout.layers):
                        plan.store_layer(layer)
                finally:
                    done = plan.finish(_WAIT_S)
                ns.complete(done)
        finally:
            if lease.id:
                ns._call(lib.tutti_release, lease)
        there = ns.lookup(run).blocks
        self.counts["stored"] += max(0, there - first)
        self.counts["full"] += missing - there
        return [i < there for i in range(missing)]

    def _say(self, what: str, e: Exception) -> None:
        """Logs a failure, the same kind at most once in a while."""
        now = time.monotonic()
        if now - self._said.get(what, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._said[what] = now
            logger.warning("tutti: %s failed, taken as a miss: %s", what, e)

    def _stop_engine(self, e: Exception) -> None:
        """The lane may still write to pages that HiCache will give to others: no answer is right but to stop."""
        logger.critical("tutti: stopping this process, or wrong bytes could reach the model: %s", e)
        os.abort()
