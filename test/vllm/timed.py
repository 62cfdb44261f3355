"""A TuttiConnector that counts the time of its own calls: what the engine's thread spends in them.

For engines of one process: both sides' calls are one sum.
"""
import time

from tutti.vllm.connector import TuttiConnector

CALLS = ("get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "update_connector_output",
         "request_finished", "bind_connector_metadata", "start_load_kv", "wait_for_layer_load", "save_kv_layer",
         "wait_for_save", "get_finished", "get_block_ids_with_load_errors", "build_connector_worker_meta",
         "get_kv_connector_stats", "clear_connector_metadata", "take_events", "has_pending_push_work")
spent_ns = 0


class TimedConnector(TuttiConnector):
    """The same, with a clock."""


def timed(call):
    def with_clock(*args, **named):
        global spent_ns
        began = time.perf_counter_ns()
        try:
            return call(*args, **named)
        finally:
            spent_ns += time.perf_counter_ns() - began

    return with_clock


for name in CALLS:
    setattr(TimedConnector, name, timed(getattr(TuttiConnector, name)))
