"""A TuttiConnector that compares: the bytes of every block that it loads with those of the block when it was stored.

For engines of one process (both sides live in it). What was stored is kept in a file, `digests` in
kv_connector_extra_config, so that a later process can compare too: by key, in the order of storing, a digest of the
block and MARK bytes of its layer MARK_LAYER, by which it is found in the pool's file.
"""
import hashlib
import json
import os
import signal

from engine import bytes_of
from tutti.vllm.connector import TuttiConnector

MARK, MARK_LAYER = 64, 2

_all = []
_kill = None  # (path, answers)


def kill_with(path, answers):
    """From now on: as soon as a store is in flight, answers and how many blocks fly go to path, and the process dies."""
    global _kill
    _kill = path, answers


def sums():
    """Over the connectors of this process: blocks stored, compared, different, and what the sides counted."""
    total = {"stored": 0, "compared": 0, "different": 0, "forgotten": 0, "failed": [], "counts": {}}
    for c in _all:
        for name in ("stored", "compared", "different", "forgotten", "failed"):
            total[name] += getattr(c, name)
        for side in (c._worker, c._scheduler):
            total["counts"].update(side.counts if side is not None else {})
        if c._scheduler is not None:
            total["flights"] = len(c._scheduler._flights)
            info = c._scheduler._ns.info()
            total.update(leased=info.leased, reserved=info.reserved, committed=info.committed)
    return total


def busy():
    return any(c._scheduler is not None and c._scheduler.busy for c in _all)


class CheckedConnector(TuttiConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.path = extra.pop("digests", getattr(CheckedConnector, "kept_path", None))
        CheckedConnector.kept_path = self.path
        super().__init__(vllm_config, role, kv_cache_config)
        self.stored = self.compared = self.different = 0
        self.forgotten = 0  # blocks taken out of the engine's own prefix cache
        self.failed = []  # a list a load that failed: which of its request's blocks
        self.digests = json.load(open(self.path)) if os.path.exists(self.path) else {}
        self.loading = {}  # plan -> (keys, blocks, index of the first)
        self.kv = {}
        _all.append(self)

    def register_kv_caches(self, kv_caches):
        self.kv = kv_caches
        super().register_kv_caches(kv_caches)

    def bind_gpu_block_pool(self, gpu_block_pool):
        super().bind_gpu_block_pool(gpu_block_pool)
        evict = gpu_block_pool.evict_blocks

        def watched(block_ids):
            self.forgotten += sum(gpu_block_pool.blocks[b].block_hash is not None for b in block_ids)
            evict(block_ids)

        gpu_block_pool.evict_blocks = watched

    def digest(self, block):
        h, mark = hashlib.sha256(), b""
        for i, t in enumerate(self.kv.values()):
            raw = bytes_of(t, block)
            h.update(raw)
            if i == MARK_LAYER:
                mark = raw[:MARK]
        return [h.hexdigest(), mark.hex()]

    def flight(self, plan):
        return next(c._scheduler for c in _all if c._scheduler is not None)._flights[plan]

    def keys_of(self, plan):
        flight = self.flight(plan)
        return [flight.track.chain.key(flight.first + i).hex() for i in range(len(flight.blocks))]

    def bind_connector_metadata(self, connector_metadata):
        step = connector_metadata.step
        for load in step.loads:
            self.loading[load.plan] = (self.keys_of(load.plan), load.blocks, self.flight(load.plan).first)
        self.saving = [(self.keys_of(s.plan), s.blocks) for s in step.saves]
        super().bind_connector_metadata(connector_metadata)

    def wait_for_save(self):
        for keys, blocks in self.saving:
            for key, block in zip(keys, blocks):
                self.digests[key] = self.digest(block)
                self.stored += 1
        if self.saving:
            json.dump(self.digests, open(self.path, "w"))
        self.saving = []
        super().wait_for_save()
        if _kill is not None:
            flying = sum(len(g.blocks) for g in self._worker._saves if not g.plan.poll())
            if flying:
                path, answers = _kill
                with open(path, "w") as f:
                    json.dump([*answers, {"flying": flying}], f)
                os.kill(os.getpid(), signal.SIGKILL)

    def build_connector_worker_meta(self):
        meta = super().build_connector_worker_meta()
        for done in meta.report.done if meta is not None else ():
            keys, blocks, first = self.loading.pop(done.plan, ((), (), 0))
            if keys and done.failed:
                self.failed.append([first + i for i in sorted(done.failed)])
            for i, (key, block) in enumerate(zip(keys, blocks)):
                if i not in done.failed:
                    self.compared += 1
                    self.different += self.digests[key] != self.digest(block)
        return meta
