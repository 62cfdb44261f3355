"""What happens once, at start: what is supported, the namespace's identity, pool and lane, and a line in the log."""
from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from typing import Any

from .. import KvLayout, KvMemory, Lane, ModelTiming, NamespaceSpec, Pool
from ..pool import open_or_make
from .breakeven import Rates
from .events import Events
from .identity import CACHE, files_digest, weights_digest
from .keys import lora_digest_of
from .layout import layout_of
from .messages import Facts
from .options import Options
from .scheduler import Scheduler

SMS = 4  # of a GPU: 50 GB/s with every byte's checksum, on an H200


def why_async(config: Any) -> str:
    """Why a load that fails during compute would not be made good here; "": it is."""
    if getattr(config, "use_v2_model_runner", False):
        return "model runner V2 keeps its own count of computed tokens, and would go on behind the damage"
    if getattr(config.scheduler_config, "async_scheduling", False):
        return ("with asynchronous scheduling the next step computes on damage before it is known, and its token is "
                "taken: start with --no-async-scheduling for layerwise")
    return ""


def tp_rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def kv_group(kv_cache_config: Any) -> Any:
    return kv_cache_config.kv_cache_groups[0]


def check_supported(config: Any, kv_cache_config: Any, base: Any) -> None:
    """ValueError: a combination that would not be right; the message says which, and why."""
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    groups = kv_cache_config.kv_cache_groups
    kinds = sorted({type(g.kv_cache_spec).__name__ for g in groups})
    why = None
    if not hasattr(base.KVConnectorBase_V1, "build_connector_worker_meta"):
        why = "this vLLM has no way for workers to tell the scheduler what became of a store; 0.18 or newer is needed"
    elif transfer.kv_role != "kv_both":
        why = f"kv_role is {transfer.kv_role!r}; this cache is written and read by the same engine: use kv_both"
    elif len(groups) != 1 or kinds != ["FullAttentionSpec"]:
        why = (f"the model has {len(groups)} groups of KV cache ({', '.join(kinds)}); supported is one group of full "
               "attention. Sliding windows beside full attention become one group with "
               "--disable-hybrid-kv-cache-manager; state space, MLA and encoder layers are not supported")
    elif parallel.pipeline_parallel_size > 1:
        why = "pipeline parallelism: each rank would hold other layers of a block"
    elif max(getattr(parallel, name, 1) for name in ("decode_context_parallel_size", "prefill_context_parallel_size")) > 1:
        why = "context parallelism: each rank would hold other tokens of a block"
    elif getattr(config.cache_config, "calculate_kv_scales", False):
        why = "calculate_kv_scales: what the stored bytes mean would change from start to start"
    if why:
        raise ValueError(f"tutti: not supported: {why}")


def _backend(config: Any, names: list[str]) -> str:
    """Attention backend and, on a CPU (whose kernels pack keys for their instruction set), what it computes with."""
    import torch
    import vllm

    layers = getattr(config.compilation_config, "static_forward_context", {})
    found = set()
    for name in names:
        backend = getattr(layers.get(name), "attn_backend", None)
        found.add(backend.get_name() if backend is not None else "unknown")
    text = "+".join(sorted(found))
    if config.device_config.device_type == "cpu":
        amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
        text += f" {torch.backends.cpu.get_cpu_capability()}{' amx' if amx else ''} vllm {vllm.__version__}"
    return text


def facts_of(config: Any, kv_caches: dict[str, Any], kv_cache_config: Any) -> tuple[Facts, KvLayout]:
    """A worker's part of the identity, from its tensors."""
    kv = kv_group(kv_cache_config).kv_cache_spec
    layout = layout_of(kv_caches, kv_cache_config.num_blocks, kv.block_size, kv.page_size_bytes)
    spec = NamespaceSpec("", bytes(32), "", "", kv.block_size, 1, 1).with_layout(layout)
    dtype = str(next(iter(kv_caches.values())).dtype).removeprefix("torch.")
    cache_dtype = config.cache_config.cache_dtype
    return Facts(spec.layers, spec.objects_per_layer, spec.object_bytes, spec.layout,
                 dtype if cache_dtype == "auto" else f"{dtype} as {cache_dtype}", _backend(config, list(kv_caches))), layout


def _weights(config: Any, options: Options) -> bytes:
    """Of the model and, where one guesses ahead for it, of the draft model: its KV lies in the same blocks."""
    model = config.model_config
    models = [model]
    draft = getattr(config.speculative_config, "draft_model_config", None)
    if draft is not None and draft.model != model.model:
        models.append(draft)
    digests = [weights_digest(m.model, m.revision, m.hf_config.to_dict(), str(m.dtype),
                              str(config.load_config.load_format), options.weights) for m in models]
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def spec_of(config: Any, options: Options, facts: Facts, block_tokens: int) -> NamespaceSpec:
    model, weights = config.model_config, _weights(config, options)
    name = os.path.basename(model.model.rstrip("/")) if os.path.isdir(model.model) else model.model
    return NamespaceSpec(name[-255:], weights, facts.kv_dtype, facts.backend[:255], block_tokens,
                         model.get_total_num_kv_heads(), model.get_head_size(),
                         config.parallel_config.tensor_parallel_size, facts.layers, facts.objects_per_layer,
                         facts.object_bytes, facts.layout)


def paths_of(config: Any, options: Options) -> list[str]:
    """The pool's paths; {dp_rank} in them is the data-parallel rank, because each engine needs a pool of its own."""
    return [p.replace("{dp_rank}", str(config.parallel_config.data_parallel_rank)) for p in options.pool]


def _timing(options: Options) -> dict[str, Any]:
    timing = None
    if options.controller == "model":
        timing = ModelTiming(**{"read_bytes_per_s": options.read_bytes_per_s, **options.model_timing})
    return {"controller": options.controller, "timing": timing}


def open_store(config: Any, options: Options, facts: list[Facts], layerwise: bool,
               engine_blocks: int, logger: logging.Logger) -> tuple[Pool, Scheduler, Events | None]:
    """The scheduler's side: the pool (made on first use) and the model's namespace in it.

    TuttiError: the pool can't be opened (a second engine is refused here, by pid). ValueError: ranks differ.
    """
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    ranks = config.parallel_config.tensor_parallel_size
    if len(facts) != ranks or any(f != facts[0] for f in facts):
        raise ValueError(f"tutti: {ranks} ranks are needed, all with the same KV layout; {len(facts)} told theirs: {facts}")
    block_tokens = config.cache_config.block_size
    spec = spec_of(config, options, facts[0], block_tokens)
    pool, ns, made = open_or_make(paths_of(config, options), options.size, spec, ranks=ranks, **_timing(options))
    try:
        block_bytes = facts[0].layers * facts[0].objects_per_layer * facts[0].object_bytes
        rates = Rates(block_tokens, block_bytes, options.recompute_break_even == "auto",
                      CACHE / f"rates-{pool.info().uuid.hex()[:16]}-{ns.digest.hex()[:16]}.json")
        events = None
        if config.kv_events_config is not None and config.kv_events_config.enable_kv_cache_events:
            events = Events(ns, block_tokens, maybe_convert_block_hash)
        speculative = getattr(config.speculative_config, "num_speculative_tokens", 0) or 0
        scheduler = Scheduler(ns, options, ranks, rates, lambda lora: lora_digest_of(lora, files_digest),
                              1 + speculative, events.published if events else None, layerwise,
                              max(0, engine_blocks - -(-config.model_config.max_model_len // block_tokens)),
                              logger.info)
    except BaseException:
        pool.close()
        raise
    _say(logger, config, options, pool, ns, block_tokens, made, layerwise)
    return pool, scheduler, events


def _say(logger: logging.Logger, config: Any, options: Options, pool: Pool, ns: Any, block_tokens: int, made: bool,
         layerwise: bool) -> None:
    info, here = pool.info(), ns.info()
    logger.info("tutti: pool %s, %.1f GiB%s; warm: %d blocks of %d tokens of this model (room for all models together: "
                "%d segments, %d free); mode %s, store %s, break-even %s",
                ", ".join(pool.paths), info.bytes / 2**30, ", made now" if made else "", here.committed, block_tokens,
                info.segments, info.segments_free, "layerwise" if layerwise else "async", options.store,
                options.recompute_break_even)
    if options.layerwise and not layerwise:
        logger.warning("tutti: mode layerwise was asked for, but async is used, which checks every block before it is "
                       "computed with: %s", why_async(config) or "this vLLM's prefix cache can't be told of damaged blocks")
    if getattr(config.kv_transfer_config, "kv_load_failure_policy", "") == "fail":
        logger.warning('tutti: kv_load_failure_policy is "fail": a request whose blocks turn out to be damaged ends with an '
                       'error. "recompute" computes them again instead')


def open_lane(config: Any, options: Options, digest: bytes, layout: KvLayout, rank: int) -> tuple[Lane, str]:
    """A worker's lane with the engine's memory registered, and a word about its path."""
    sms = options.sms or (SMS if layout.cuda else 0)
    lane = Lane.open(paths_of(config, options), digest, rank=rank, deadline_s=options.deadline_s, sms=sms,
                     **_timing(options))
    try:
        lane.register(layout)
    except BaseException:
        lane.close()
        raise
    i = lane.info()
    why = f"; slower than it could be: {i.why}" if i.why else ""
    return lane, (f"{i.controller}, {i.executor}, {'direct' if i.direct_io else 'buffered'} I/O, "
                  f"{'zero copy' if i.zero_copy else 'bounce buffers'}{why}")


def open_probe(config: Any, options: Options, digest: bytes, facts: Facts, rank: int, blob: bytes,
               n_blocks: int) -> tuple[Lane, Any]:
    """A second lane, into scratch memory for the same objects, and a plan of n_blocks on it. Its first layer was
    retrieved, so that its threads have woken once."""
    room = max(2, n_blocks)  # one block alone would leave no gap between its objects, and they would be one
    size, count = facts.object_bytes, facts.objects_per_layer
    memory = KvMemory(facts.layers, room, size * count).layout
    layout = dataclasses.replace(memory, block_stride=size, segment_bytes=size, outer_count=count,
                                 outer_stride=room * size)
    lane = Lane.open(paths_of(config, options), digest, rank=rank, deadline_s=options.deadline_s, **_timing(options))
    try:
        lane.register(layout)
        first = lane.plan(blob, list(range(n_blocks)))
        first.retrieve_layer(0)
        first.finish(options.deadline_s)
        return lane, lane.plan(blob, list(range(n_blocks)))
    except BaseException:
        lane.close()
        raise
