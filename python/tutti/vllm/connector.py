"""vLLM's interface, and nothing else: each method hands over to the scheduler's or the worker's side.

vLLM builds this class once in each worker and once in the scheduler. The workers know the KV memory, the scheduler
opens the pool: the workers' handshake metadata tells it the layout, and so the namespace. A lane can only be opened
after that, so a worker opens it in its first step.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.logger import init_logger
from vllm.v1.core.block_pool import BlockPool

from .events import Events
from .metrics import Deltas, TuttiPromMetrics, TuttiStats
from .messages import Facts, Report, Step
from .options import options_of
from .setup import check_supported, facts_of, kv_group, open_lane, open_probe, open_store, tp_rank, why_async
from .worker import Worker, wall_timer

if TYPE_CHECKING:
    from .scheduler import Scheduler

logger = init_logger(f"vllm.{__name__}")


@dataclass
class StepMetadata(base.KVConnectorMetadata):
    """Scheduler to worker."""

    step: Step


@dataclass
class FactsMetadata(base.KVConnectorHandshakeMetadata):
    """Worker to scheduler, at start."""

    facts: Facts


@dataclass
class ReportMetadata(base.KVConnectorWorkerMetadata):
    """Worker to scheduler."""

    report: Report

    def aggregate(self, other: base.KVConnectorWorkerMetadata) -> ReportMetadata:
        assert isinstance(other, ReportMetadata)
        return ReportMetadata(self.report.add(other.report))


class TuttiConnector(base.KVConnectorBase_V1):
    """KV cache on SSD. Options: tutti.vllm.options.Options."""

    def __init__(self, vllm_config: Any, role: base.KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._options = options_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
        check_supported(vllm_config, kv_cache_config, base)
        # Where the engine's own prefix cache can't be told of damaged blocks, they must not get there.
        tells = hasattr(BlockPool, "evict_blocks") and hasattr(base.KVConnectorBase_V1, "bind_gpu_block_pool")
        self._layerwise = self._options.layerwise and tells and not why_async(vllm_config)
        self._block_pool: Any = None
        self._group = kv_group(kv_cache_config)
        self._scheduler: Scheduler | None = None
        self._pool: Any = None
        self._worker: Worker | None = None
        self._layers: dict[str, int] = {}
        self._facts: Facts | None = None
        self._deltas: Deltas | None = None
        self._events: Events | None = None

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        facts, layout = facts_of(self._config, kv_caches, self._kv_cache_config)
        bases = {base: i for i, base in enumerate(layout.layer_base)}
        self._layers = {name: bases[t.data_ptr()] for name, t in kv_caches.items()}
        self._facts = facts
        rank = tp_rank()
        block_bytes = facts.layers * facts.objects_per_layer * facts.object_bytes
        mark: Callable[[], Callable[[], bool]] | None = None
        stream: Callable[[], int] | None = None
        timer = wall_timer
        if layout.cuda:
            from .cuda import mark, stream, timer

        def lane(digest: bytes) -> Any:
            return open_lane(self._config, self._options, digest, layout, rank)

        def scratch(digest: bytes, blob: bytes, n: int) -> Any:
            return open_probe(self._config, self._options, digest, facts, rank, blob, n)

        self._worker = Worker(lane, rank, facts.layers, block_bytes, 3 * self._options.deadline_s, mark,
                              None if layout.cuda else scratch, stream, timer)
        self._deltas = Deltas(self._worker.counts)

    def get_handshake_metadata(self) -> FactsMetadata | None:
        return FactsMetadata(self._facts) if self._facts is not None else None

    def bind_connector_metadata(self, connector_metadata: base.KVConnectorMetadata) -> None:
        self._connector_metadata = connector_metadata
        assert isinstance(connector_metadata, StepMetadata) and self._worker is not None
        self._worker.begin(connector_metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        mode = getattr(forward_context, "cudagraph_runtime_mode", None)
        self._worker.start(whole=mode is not None and mode.name == "FULL")

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None and self._worker.layered:
            self._worker.wait_layer(self._layers[layer_name])

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """A step's stores begin in wait_for_save: blocks that are half computed can't be told from whole ones here."""

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._worker is not None
        return None, self._worker.poll() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.errors()

    def build_connector_worker_meta(self) -> ReportMetadata | None:
        assert self._worker is not None
        report = self._worker.report()
        return ReportMetadata(report) if report is not None else None

    def get_kv_connector_stats(self) -> TuttiStats | None:
        return self._deltas.take() if self._deltas is not None else None

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._pool is not None:
            self._pool.close()
            self._pool = self._scheduler = None

    # ---- scheduler ----

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not stored is computed again

    def set_xfer_handshake_metadata(self, metadata: dict[int, base.KVConnectorHandshakeMetadata]) -> None:
        facts = [m.facts for _, m in sorted(metadata.items()) if isinstance(m, FactsMetadata)]
        blocks = self._kv_cache_config.num_blocks
        opened = open_store(self._config, self._options, facts, self._layerwise, blocks, logger)
        self._pool, self._scheduler, self._events = opened
        self._deltas = Deltas(self._scheduler.counts)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._block_pool = gpu_block_pool

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        assert self._scheduler is not None
        return StepMetadata(self._scheduler.build(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        if meta is not None:
            assert self._scheduler is not None
            new = meta.report.opened
            self._scheduler.update(meta.report)
            for rank, path in new.items():
                logger.info("tutti: rank %d moves its blocks by %s", rank, path)
            bad = self._scheduler.take_bad_blocks()
            if bad:
                self._block_pool.evict_blocks(set(bad))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request, block_ids, request.status.name)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Stores in flight: the engine keeps stepping until they are published."""
        return self._scheduler is not None and self._scheduler.busy

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    def reset_cache(self) -> bool | None:
        assert self._scheduler is not None
        if not self._scheduler.clear():
            return False
        if self._events is not None:
            self._events.cleared()
        return True

    # ---- what vLLM asks the class ----

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return False  # layers are waited for between pieces; before a graph that is the whole pass, all at once

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TuttiStats:
        return TuttiStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> TuttiPromMetrics:
        return TuttiPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
