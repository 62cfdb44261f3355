"""A TuttiConnector that compares: the bytes of every block that it loads with those of the block when it was stored.

For engines of one process (both sides live in it). What was stored is kept in a file, `digests` in
kv_connector_extra_config, so that a later process can compare too.
"""
import hashlib
import json
import os

from tutti.vllm.connector import TuttiConnector

_all = []


def sums():
    """Over the connectors of this process: blocks stored, compared, different, and what the sides counted."""
    total = {"stored": 0, "compared": 0, "different": 0, "counts": {}}
    for c in _all:
        for name in ("stored", "compared", "different"):
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
        self.digests = json.load(open(self.path)) if os.path.exists(self.path) else {}
        self.loading = {}  # plan -> (keys, blocks)
        self.kv = {}
        _all.append(self)

    def register_kv_caches(self, kv_caches):
        self.kv = kv_caches
        super().register_kv_caches(kv_caches)

    def digest(self, block):
        h = hashlib.sha256()
        for t in self.kv.values():
            h.update(t[block].contiguous().numpy().tobytes())
        return h.hexdigest()

    def keys_of(self, plan):
        scheduler = next(c._scheduler for c in _all if c._scheduler is not None)
        flight = scheduler._flights[plan]
        return [flight.track.chain.key(flight.first + i).hex() for i in range(len(flight.blocks))]

    def bind_connector_metadata(self, connector_metadata):
        step = connector_metadata.step
        for load in step.loads:
            self.loading[load.plan] = (self.keys_of(load.plan), load.blocks)
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

    def build_connector_worker_meta(self):
        meta = super().build_connector_worker_meta()
        for done in meta.report.done if meta is not None else ():
            keys, blocks = self.loading.pop(done.plan, ((), ()))
            for i, (key, block) in enumerate(zip(keys, blocks)):
                if i not in done.failed:
                    self.compared += 1
                    self.different += self.digests[key] != self.digest(block)
        return meta
