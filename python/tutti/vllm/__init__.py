"""Tutti for vLLM: KV cache on SSD, behind vLLM's connector interface.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TuttiConnector",
        "kv_connector_module_path": "tutti.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": "/ssd/kv.tutti", "size": "100G"}}'

connector.py is the only file that knows vLLM's classes; scheduler.py and worker.py are the two sides of it, and run
without an engine.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import TuttiConnector

__all__ = ["TuttiConnector"]


def __getattr__(name: str) -> Any:
    if name == "TuttiConnector":
        from .connector import TuttiConnector

        return TuttiConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
