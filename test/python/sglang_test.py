"""tutti.hicache under SGLang itself: its abstract class, its host pools, and its HiCache controller with all of its
threads, on the CPU. Skipped where SGLang (tried: 0.5.23) can't be imported."""
import inspect
import queue
import time

import pytest

from tutti.hicache import TuttiStorage

try:
    import torch
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
except Exception as e:
    pytest.skip(f"no SGLang here: {type(e).__name__}: {e}", allow_module_level=True)

PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 3, 2, 32, 4096
WAIT_S = 30


def test_every_call_of_the_interface_is_there():
    assert issubclass(TuttiStorage, HiCacheStorage) and not TuttiStorage.__abstractmethods__
    for name in ("get", "batch_get", "set", "batch_set", "exists", "batch_exists", "batch_get_v1", "batch_set_v1",
                 "clear", "register_mem_pool_host", "register_mem_host_pool_v2"):
        theirs = list(inspect.signature(getattr(HiCacheStorage, name)).parameters)
        assert list(inspect.signature(getattr(TuttiStorage, name)).parameters) == theirs, name


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """SGLang's parallel state of one rank, as far as the controller asks."""
    where = tmp_path_factory.mktemp("group") / "rendezvous"
    torch.distributed.init_process_group("gloo", init_method=f"file://{where}", rank=0, world_size=1)
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    from sglang.srt.runtime_context import get_parallel
    get_storage_hash_str([1] * PAGE, None, page_size=PAGE)  # compiles it, the first time for a minute
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0, attn_dcp_size=1):
        yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


class Allocator:
    """What the controller asks of SGLang's allocator of tokens on the device."""

    def __init__(self, pool):
        self.pool = pool

    def get_kvcache(self):
        return self.pool


class Hicache:
    """A controller over a device pool and a host pool, with the storage backend attached as the command line does it."""

    def __init__(self, path, layout, group):
        device = MHATokenToKVPool(size=256, page_size=PAGE, dtype=torch.float16, head_num=HEADS, head_dim=DIM,
                                  layer_num=LAYERS, device="cpu", enable_memory_saver=False, enable_alt_stream=False)
        self.host = MHATokenToKVPoolHost(device._mha_buffer_info(), 1.0, 0, PAGE, layout, pin_memory=False,
                                         device_capacity_tokens=256, start_layer=0, end_layer=LAYERS,
                                         host_token_capacity=TOKENS)
        extra = {"backend_name": "tutti", "module_path": "tutti.hicache", "class_name": "TuttiStorage",
                 "interface_v1": 1, "pool": str(path), "size": "64M", "weights": "ab" * 32}
        self.controller = HiCacheController(
            Allocator(device), self.host, PAGE, group, None, io_backend="kernel", storage_backend="dynamic",
            prefetch_threshold=PAGE, model_name="a/model", storage_backend_extra_config=extra)

    def page(self, index):
        """The bytes of a page as SGLang's own copying interface sees them."""
        return self.host.get_data_page(index * PAGE)

    def backup(self, tokens, seed):
        """Computes (random numbers), stores; returns what was stored, page by page."""
        from sglang.srt.mem_cache.utils import get_storage_hash_str
        pages, hashes = len(tokens) // PAGE, get_storage_hash_str(tokens, None, page_size=PAGE)
        where = self.host.alloc(len(tokens))
        wanted = torch.rand(pages, self.page(0).numel(), generator=torch.Generator().manual_seed(seed)).half()
        for i in range(pages):
            self.host.set_from_flat_data_page(int(where[i * PAGE]), wanted[i].view(self.page(0).shape))
        self.controller.write_storage(where, tokens, hash_value=hashes, prefix_keys=[])
        done = self.controller.ack_backup_queue.get(timeout=WAIT_S)
        assert done.completed_tokens == len(tokens)
        self.host.free(where)
        return wanted

    def prefetch(self, tokens):
        """What comes back, page by page."""
        c = self.controller
        c.prefetch("request", tokens, None, [])
        asked = c.prefetch_hit_queue.get(timeout=WAIT_S)
        if not asked.storage_hit_count:
            return torch.empty(0)
        asked.host_indices = self.host.alloc(asked.storage_hit_count)
        for i in asked.host_indices[::PAGE].tolist():
            self.host.set_from_flat_data_page(i, torch.zeros_like(self.page(0)))
        c.prefetch_buffer.put(asked)
        tokens_there, until = 0, time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                ack = c.ack_prefetch_queue.get(timeout=1)
            except queue.Empty:
                continue
            tokens_there = max(tokens_there, ack.completed_tokens or 0)
            if ack.completed_req:
                break
        else:
            raise AssertionError("the prefetch never ended")
        got = [self.page(i // PAGE).flatten().clone() for i in asked.host_indices[:tokens_there:PAGE].tolist()]
        self.host.free(asked.host_indices)
        return torch.stack(got)

    def close(self):
        self.controller.detach_storage_backend()


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_pages_survive_a_restart(folder, layout, group):
    documents = {seed: [seed * 100000 + i for i in range(pages * PAGE)] for seed, pages in ((1, 9), (2, 200))}
    h = Hicache(folder / "p", layout, group)
    assert not len(h.prefetch(documents[1]))
    wanted = {seed: h.backup(tokens, seed) for seed, tokens in documents.items()}
    for seed, tokens in documents.items():
        assert torch.equal(h.prefetch(tokens), wanted[seed])
    h.close()
    h = Hicache(folder / "p", layout, group)
    for seed, tokens in documents.items():
        assert torch.equal(h.prefetch(tokens), wanted[seed])
    other = documents[1][:5 * PAGE] + [7] * (4 * PAGE)  # a hit of a part
    assert torch.equal(h.prefetch(other), wanted[1][:5])
    storage = h.controller.storage_backend
    assert storage.counts["failed"] == 0 and storage.namespace.info().leased == 0
    h.close()
