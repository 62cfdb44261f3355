"""Counters of the connector, for vLLM's log line and for Prometheus (names begin with vllm:tutti_)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: name -> what it counts. Worker counters are sums over ranks.
COUNTERS = {
    "lookups": "Requests looked up in the pool",
    "hit_blocks": "Blocks found in the pool and asked for",
    "loads": "Requests loaded from the pool",
    "loaded_blocks": "Blocks loaded and found sound",
    "failed_blocks": "Blocks that could not be loaded and are recomputed",
    "saves": "Stores begun",
    "stored_blocks": "Blocks stored",
    "dropped_blocks": "Blocks that could not be stored",
    "break_even": "Hits not loaded because recomputing is faster",
    "fences": "Stores that a step had to wait for",
    "loaded_bytes": "Bytes loaded",
    "load_ns": "Nanoseconds of loads, from issue to the last byte checked",
    "stored_bytes": "Bytes stored",
    "store_ns": "Nanoseconds of stores, from issue to commit",
    "layer_wait_ns": "Nanoseconds that layers waited for their load",
    "fence_ns": "Nanoseconds that steps waited for stores",
}


@dataclass
class TuttiStats(KVConnectorStats):
    """Counts since the last step that had any."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> TuttiStats:
        for name, n in other.data.items():
            self.data[name] = self.data.get(name, 0) + n
        return self

    def reduce(self) -> dict[str, int | float]:
        d = self.data
        out: dict[str, int | float] = {k: d[k] for k in ("lookups", "loaded_blocks", "failed_blocks", "stored_blocks",
                                                              "break_even")
                                       if d.get(k)}
        for what in ("load", "store"):
            if d.get(f"{what}_ns"):
                name = "loaded_bytes" if what == "load" else "stored_bytes"
                out[f"{what}_GB_per_s"] = round(d.get(name, 0) / d[f"{what}_ns"], 3)
        return out

    def is_empty(self) -> bool:
        return not self.data


class Deltas:
    """Turns ever-growing counts into what is new since the last look."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts, self._seen = counts, dict(counts)

    def take(self) -> TuttiStats | None:
        """None: nothing is new."""
        if self._counts == self._seen:
            return None
        new = {k: v - self._seen[k] for k, v in self._counts.items() if v != self._seen[k] and k in COUNTERS}
        self._seen = dict(self._counts)
        return TuttiStats(data=new) if new else None


class TuttiPromMetrics(KVConnectorPromMetrics):
    """One Prometheus counter for each of COUNTERS."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._by_engine: dict[int, dict[str, Any]] = {engine: {} for engine in per_engine_labelvalues}
        for name, documentation in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:tutti_{name}", documentation=documentation, labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self._by_engine[engine][name] = counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, n in transfer_stats_data.items():
            self._by_engine[engine_idx][name].inc(n)
