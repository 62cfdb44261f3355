"""A TuttiConnector on a GPU that keeps, in GPU memory, a copy of every block it stores, and compares what it loads.

For engines of one process (both sides live in it). `keep` and `compare` switch the two on and off between requests, so
that times are taken without them.
"""
import torch

from tutti.vllm.connector import TuttiConnector

keep = False
compare = False
connectors = []
sums = {"kept": 0, "compared_blocks": 0, "compared_bytes": 0, "different_blocks": 0, "all_zero_blocks": 0,
        "not_kept_blocks": 0}


def scheduler():
    return next(c._scheduler for c in connectors if c._scheduler is not None)


def worker():
    return next(c._worker for c in connectors if c._worker is not None)


class GpuCheckedConnector(TuttiConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.blocks = kv_cache_config.num_blocks
        self.copies, self.where = [], {}  # one a store: a tensor a layer; key -> (store, row)
        self.loading, self.saving = {}, []
        connectors.append(self)

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        self.kv = [t.view(torch.int16) for t in kv_caches.values()]
        self.dim = next(d for d in (0, 1) if self.kv[0].shape[d] == self.blocks)

    def rows(self, layer, blocks):
        """The bytes of some blocks of a layer, a block a row."""
        picked = self.kv[layer].index_select(self.dim, torch.tensor(blocks, device=self.kv[layer].device))
        return picked.movedim(self.dim, 0).flatten(1)

    def keys_of(self, plan):
        flight = scheduler()._flights[plan]
        return [flight.track.chain.key(flight.first + i) for i in range(len(flight.blocks))]

    def bind_connector_metadata(self, connector_metadata):
        step = connector_metadata.step
        if compare:
            for load in step.loads:
                self.loading[load.plan] = (self.keys_of(load.plan), list(load.blocks))
        if keep:
            self.saving += [(self.keys_of(s.plan), list(s.blocks)) for s in step.saves]
        super().bind_connector_metadata(connector_metadata)

    def wait_for_save(self):
        saving, self.saving = self.saving, []
        for keys, blocks in saving:
            for row, key in enumerate(keys):
                self.where[key] = len(self.copies), row
            self.copies.append([self.rows(layer, blocks) for layer in range(len(self.kv))])
            sums["kept"] += len(keys)
        super().wait_for_save()

    def build_connector_worker_meta(self):
        meta = super().build_connector_worker_meta()
        for done in meta.report.done if meta is not None else ():
            keys, blocks = self.loading.pop(done.plan, ((), ()))
            self.look(keys, blocks, set(done.failed) if done.blob is not None else set(range(len(keys))))
        return meta

    def look(self, keys, blocks, failed):
        stores = {}
        for i, key in enumerate(keys):
            if i not in failed and key not in self.where:
                sums["not_kept_blocks"] += 1  # stored while nothing was kept: there is nothing to compare with
            elif i not in failed:
                store, row = self.where[key]
                stores.setdefault(store, ([], []))[0].append(blocks[i])
                stores[store][1].append(row)
        for store, (mine, rows) in stores.items():
            bad = torch.zeros(len(mine), dtype=torch.bool, device=self.kv[0].device)
            some = torch.zeros_like(bad)
            for layer in range(len(self.kv)):
                now = self.rows(layer, mine)
                was = self.copies[store][layer].index_select(0, torch.tensor(rows, device=now.device))
                bad |= (now != was).any(1)
                some |= was.any(1)
                sums["compared_bytes"] += now.numel() * now.element_size()
            sums["compared_blocks"] += len(mine)
            sums["different_blocks"] += int(bad.sum())
            sums["all_zero_blocks"] += len(mine) - int(some.sum())
