"""What the tests of the Python package share: a folder of their own, a pool, memory of any layout."""
import hashlib
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

import tutti


@pytest.fixture
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="tutti-python-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(folder):
    """A fresh pool of 64 MiB."""
    tutti.Pool.format(folder / "pool", "64M")
    return str(folder / "pool")


class Torch:
    """Looks like a torch tensor of the host's, without torch."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.is_cuda = array, array.shape, f"torch.{array.dtype}", False

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def element_size(self):
        return self.array.itemsize


def spec_of(layout, tokens=16, **facts):
    """A namespace for memory of this layout."""
    known = {"model": "a/model", "weights": hashlib.sha256(b"weights").digest(), "kv_dtype": "bfloat16",
             "backend": "test", "block_tokens": tokens, "kv_heads": 8, "head_size": 64}
    return tutti.NamespaceSpec(**{**known, **facts}).with_layout(layout)


class Both:
    """Scheduler and worker side in one process."""

    def __init__(self, path, layout, **lane):
        self.pool = tutti.Pool.open(path)
        self.ns = self.pool.namespace(spec_of(layout))
        self.lane = tutti.Lane.open(path, self.ns.digest, **lane)
        self.lane.register(layout)

    def store(self, keys, blocks, parent=None, layers=None):
        """Stores what of keys is not there from the engine's blocks; returns how many were stored."""
        first, n, lease = self.ns.reserve(keys, parent, lease_s=60)
        if not n:
            return 0
        plan = self.lane.plan(self.ns.plan_blob(lease, 0, n), blocks[first:first + n])
        for layer in range(self.lane.layout.layers) if layers is None else layers:
            plan.store_layer(layer)
        self.ns.complete(plan.finish(60))
        self.ns.release(lease)
        return n

    def retrieve(self, keys, blocks, by_layer=False):
        """Loads the longest prefix; returns (matched, failed)."""
        hit = self.ns.lookup(keys, lease_s=60)
        if not hit.blocks:
            return 0, {}
        plan = self.lane.plan(self.ns.plan_blob(hit.lease, 0, hit.blocks), blocks[:hit.blocks])
        if not by_layer:
            plan.retrieve()
        good = []
        for layer in range(self.lane.layout.layers):
            if by_layer:
                plan.retrieve_layer(layer)
            good.append(plan.wait_layer(layer, 60))
        failed = plan.failed()
        assert all(good) == (not failed)
        assert self.ns.complete(plan.finish(60)) == len(failed)
        self.ns.release(hit.lease)
        return hit.blocks, failed

    def close(self):
        self.lane.close()
        self.pool.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def random_memory(layers, blocks, block_bytes):
    """KV memory in which each block of a layer has bytes of its own."""
    m = tutti.KvMemory(layers, blocks, block_bytes)
    for layer in range(layers):
        for block in range(blocks):
            m.block(layer, block)[:] = np.random.default_rng(layer * blocks + block).bytes(block_bytes)
    return m


@pytest.fixture
def both(path, memory):
    """Both sides, on the `memory` of the file that asks."""
    with Both(path, memory.layout) as b:
        yield b
