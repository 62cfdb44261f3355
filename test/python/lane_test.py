"""Lanes and plans: every layout, failures, threads, fork, what is left behind."""
import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tutti
from conftest import Both, Torch, random_memory, spec_of

NB, BS, H, D = 24, 16, 4, 32  # blocks, tokens, heads, head size: float16


def shaped(shape, order):
    """A tensor of this logical shape whose dimensions lie in memory in this order, outermost first."""
    flat = np.random.default_rng(sum(shape)).integers(0, 1 << 16, int(np.prod(shape)), dtype=np.uint16).view(np.float16)
    return flat.reshape([shape[i] for i in order]).transpose(np.argsort(order))


def padded(blocks, *rest, every):
    """Blocks that lie `every` times as far apart as they are long: views into a larger allocation."""
    return shaped((blocks, every, *rest), range(len(rest) + 2))[:, 0]


# name: (tensors of two layers, block_dim, blocks, segments of a (block, layer)). The shapes are engines'.
LAYOUTS = {
    "split NHD (2,NB,BS,H,D)": lambda: ([shaped((2, NB, BS, H, D), (0, 1, 2, 3, 4))] * 2, 1, None, 2),
    "split HND (2,NB,BS,H,D)": lambda: ([shaped((2, NB, BS, H, D), (0, 1, 3, 2, 4))] * 2, 1, None, 2),
    "block first NHD (NB,2,BS,H,D)": lambda: ([shaped((NB, 2, BS, H, D), (0, 1, 2, 3, 4))] * 2, 0, None, 1),
    "block first HND (NB,2,BS,H,D)": lambda: ([shaped((NB, 2, BS, H, D), (0, 1, 3, 2, 4))] * 2, 0, None, 1),
    "fused NHD (NB,H,BS,2D)": lambda: ([shaped((NB, H, BS, 2 * D), (0, 2, 1, 3))] * 2, 0, None, 1),
    "fused HND (NB,H,BS,2D)": lambda: ([shaped((NB, H, BS, 2 * D), (0, 1, 2, 3))] * 2, 0, None, 1),
    "CPU split (2,NB,H,BS,D)": lambda: ([shaped((2, NB, H, BS, D), (0, 1, 2, 3, 4))] * 2, 1, None, 2),
    "heads outermost": lambda: ([shaped((2, NB, BS, H, D), (0, 3, 1, 2, 4))] * 2, 1, None, 2 * H),
    "one latent (NB,BS,latent)": lambda: ([shaped((NB, BS, 576), (0, 1, 2))] * 2, 0, None, 1),
    "one storage, layers together (BLHNC)": lambda: (
        list(shaped((NB, 2, H, BS, 2 * D), range(5)).transpose(1, 0, 2, 3, 4)), 0, None, 1),
    "one storage, layer by layer (LBHNC)": lambda: (list(shaped((2, NB, H, BS, 2 * D), range(5))), 0, None, 1),
    "two kernel blocks in one": lambda: ([shaped((2 * NB, H, BS // 2, 2 * D), (0, 1, 2, 3))] * 2, 0, NB, 1),
    "kernel blocks, split": lambda: ([shaped((2, 2 * NB, BS // 2, H, D), range(5))] * 2, 1, NB, 2),
    "a strided view": lambda: ([padded(NB, BS, H, D, every=3)] * 2, 0, None, 1),
}


def twin(t):
    """Another tensor with the same strides, other bytes."""
    view = tutti.strided(t)
    extent = sum((n - 1) * s for n, s in zip(view.shape, view.strides)) + view.itemsize
    raw = np.random.default_rng(7).integers(0, 256, extent, dtype=np.uint8)
    return np.ndarray(view.shape, t.dtype, raw, strides=view.strides)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("by_layer", [False, True], ids=["whole", "layers"])
def test_every_layout_round_trips(path, name, by_layer):
    items, dim, blocks, segments = LAYOUTS[name]()
    if items[0] is items[1]:
        items = [items[0], twin(items[0])]
    layout = tutti.KvLayout.from_tensors({f"layer.{i}": t for i, t in enumerate(items)}, dim, blocks)
    assert layout.blocks == NB and layout.names == ("layer.0", "layer.1")
    assert layout.outer_count * layout.inner_count == segments
    assert layout.layer_bytes == items[0].nbytes // NB
    k = items[0].shape[dim] // NB
    for t in items:  # the addresses of a few elements, as the layout sees them and as numpy does
        where = {int(np.moveaxis(t, dim, 0)[b * k:(b + 1) * k].__array_interface__["data"][0]) for b in range(NB)}
        i = [int(x) for x in where]
        base = layout.layer_base[0] if t is items[0] else layout.layer_base[1]
        assert sorted(i) == [base + b * layout.block_stride for b in range(NB)]
    read = lambda t, b: np.moveaxis(t, dim, 0)[b * k:(b + 1) * k].tobytes()
    was = [[read(t, b) for b in range(NB)] for t in items]
    with Both(path, layout) as both:
        keys = both.ns.keys(range(6 * 16))
        assert both.store(keys, [3, 9, 1, 17, 12, 0]) == 6
        assert both.retrieve(keys, [18, 19, 20, 21, 22, 23], by_layer) == (6, {})
        for t, old in zip(items, was):
            for to, source in zip(range(18, 24), [3, 9, 1, 17, 12, 0]):
                assert read(t, to) == old[source]
            for b in range(18):
                assert read(t, b) == old[b], "a block that nobody named"


def test_the_order_of_dimensions_is_part_of_the_identity():
    digests = set()
    for name in LAYOUTS:
        items, dim, blocks, _ = LAYOUTS[name]()
        digests.add(spec_of(tutti.KvLayout.from_tensors(items[:1], dim, blocks)).digest())
    # Where blocks lie does not matter, what is inside of them does: three of the fused HND shape are one.
    assert len(digests) == len(LAYOUTS) - 2


def test_what_cannot_be_described_is_refused():
    t = shaped((NB, BS, H, D), (0, 1, 2, 3))
    of = tutti.KvLayout.from_tensors
    for words, call in (("no tensors", lambda: of([], 0)), ("alike", lambda: of([t, t[:-1]], 0)),
                        ("alike", lambda: of([t, t.astype(np.float32)], 0)), ("dimension 4", lambda: of([t], 4)),
                        ("divide", lambda: of([t], 0, 7)), ("negative", lambda: of([t[:, ::-1]], 0)),
                        ("no tensor", lambda: of([object()], 0)),
                        ("two such pairs", lambda: of([np.zeros((NB, 4, 4, 4, 8), np.int8)[:, ::2, ::2, ::2]], 0))):
        with pytest.raises(tutti.InvalidError, match=words):
            call()


class Dlpack:
    """Shows nothing but DLPack."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


class Cuda:
    def __init__(self, array):
        self.__cuda_array_interface__ = dict(array.__array_interface__)
        self.dtype = array.dtype


def test_tensors_of_every_kind():
    t = shaped((2, NB, BS, H, D), (0, 1, 3, 2, 4))
    want = tutti.strided(t)
    assert want.strides == t.strides and want.dtype == "float16" and not want.cuda
    for other in (Dlpack(t), Torch(t), Cuda(t)):
        assert tutti.strided(other)[:4] == want[:4]
    assert tutti.strided(Torch(t)).dtype == "float16" and tutti.strided(Cuda(t)).cuda
    raw = bytearray(64)
    assert tutti.strided(raw).shape == (64,) and tutti.strided(memoryview(raw)).strides == (1,)
    torch = pytest.importorskip("torch", reason="no torch here")
    x = torch.zeros(2, 8, 16, 4, dtype=torch.bfloat16).transpose(2, 3)
    assert tutti.strided(x).strides == tuple(2 * s for s in x.stride()) and tutti.strided(x).dtype == "bfloat16"


LAYERS, BLOCKS, BYTES = 3, 16, 8192


@pytest.fixture
def memory():
    return random_memory(LAYERS, BLOCKS, BYTES)


def keys_of(both, n, seed=0):
    return both.ns.keys(np.random.default_rng(seed).integers(0, 32000, n * 16, dtype=np.uint32))


def retrieve_plan(both, keys, blocks, lease_s=60):
    hit = both.ns.lookup(keys, lease_s=lease_s)
    return hit, both.lane.plan(both.ns.plan_blob(hit.lease, 0, hit.blocks), blocks)


def test_what_a_lane_refuses(both, memory, path):
    keys = keys_of(both, 2)
    both.store(keys, [0, 1])
    hit = both.ns.lookup(keys, lease_s=60)
    blob = both.ns.plan_blob(hit.lease, 0, 2)
    damaged = bytearray(blob)
    damaged[100] ^= 1
    for kind, call in ((tutti.CorruptError, lambda: both.lane.plan(damaged, [0, 1])),
                       (tutti.CorruptError, lambda: both.lane.plan(b"", [0, 1])),
                       (tutti.InvalidError, lambda: both.lane.plan(blob, [0])),
                       (tutti.InvalidError, lambda: both.lane.plan(blob, [0, BLOCKS])),
                       (tutti.InvalidError, lambda: both.lane.plan(blob, [0, -1])),
                       (tutti.CorruptError, lambda: both.ns.complete(blob)),
                       (tutti.ExistsError, lambda: both.lane.register(memory.layout))):
        with pytest.raises(kind):
            call()
    plan = both.lane.plan(blob, np.array([4, 5], np.int32))
    with pytest.raises(tutti.InvalidError, match="not issued"):
        plan.wait_layer(0)
    with pytest.raises(tutti.InvalidError, match="store plan"):
        plan.store_layer(0)
    with pytest.raises(tutti.BusyError, match="plans are unfinished"):
        both.lane.close()
    plan.retrieve()
    with pytest.raises(tutti.InvalidError):
        plan.retrieve()
    with pytest.raises(tutti.NotSupportedError):
        plan.wait_layer_stream(0, 0)
    assert plan.wait_layer(LAYERS - 1, 60) and both.ns.complete(plan.finish()) == 0
    for call in (plan.finish, plan.poll, plan.failed, plan.retrieve):
        with pytest.raises(tutti.InvalidError, match="finished|closed"):
            call()
    other = tutti.KvMemory(LAYERS, 4, 4096)
    with tutti.Lane.open(path, both.ns.digest) as lane, pytest.raises(tutti.InvalidError, match="8192"):
        lane.register(other.layout)


def test_both_ways_in_one_call(both, memory):
    keys = keys_of(both, 3)
    assert both.lane.move(both.ns, both.ns.reserve(keys).lease, [2, 0, 1]) == 0
    assert both.lane.move(both.ns, both.ns.lookup(keys, lease_s=60).lease, [7, 8, 9]) == 0
    assert both.ns.info().leased == 0 and both.ns.info().committed == 3
    for layer in range(LAYERS):
        assert [memory.block(layer, b) for b in (7, 8, 9)] == [memory.block(layer, b) for b in (2, 0, 1)]
    with pytest.raises(tutti.StaleError):
        both.lane.move(both.ns, tutti.Lease(1, 999, 0), [1])


def test_an_expired_lease_is_refused(both):
    keys = keys_of(both, 1)
    both.store(keys, [0])
    hit, plan = retrieve_plan(both, keys, [3], lease_s=0.05)
    with pytest.raises(tutti.StaleError, match="lease"):
        plan.retrieve()
    plan.finish()
    time.sleep(0.06)
    with pytest.raises(tutti.StaleError):
        both.ns.plan_blob(hit.lease, 0, 1)


def test_a_store_beyond_the_queue_is_dropped_whole(path, memory):
    slow = tutti.ModelTiming(read_latency_ns=150_000_000)
    with Both(path, memory.layout) as both:
        both.store(keys_of(both, 1), [0])
        with tutti.Lane.open(path, both.ns.digest, controller="model", timing=slow, store_queue_layers=2) as lane:
            lane.register(memory.layout)
            hit = both.ns.lookup(keys_of(both, 1), lease_s=60)
            reads = lane.plan(both.ns.plan_blob(hit.lease, 0, 1), [8])
            reads.retrieve()  # stores wait behind it
            keys = keys_of(both, 2, seed=1)
            first, n, lease = both.ns.reserve(keys, lease_s=60)
            plan = lane.plan(both.ns.plan_blob(lease, 0, n), [1, 2])
            plan.store_layer(0)
            plan.store_layer(1)
            with pytest.raises(tutti.AgainError, match="dropped"):
                plan.store_layer(2)
            with pytest.raises(tutti.CanceledError):
                plan.store_layer(2)
            both.ns.complete(plan.finish(60))
            both.ns.release(lease)
            reads.finish(60)
            assert both.ns.lookup(keys).blocks == 0 and lane.stats().stores_dropped == 1


def test_a_damaged_block_fails_alone(path, memory):
    with Both(path, memory.layout) as both:
        keys = keys_of(both, 4)
        both.store(keys, [0, 1, 2, 3])
        want = bytes(memory.block(1, 2))
    at = open(path, "rb").read().index(want)
    with open(path, "r+b") as f:
        f.seek(at + 777)
        f.write(b"\xff" if want[777] != 255 else b"\0")
    with Both(path, memory.layout) as both:
        hit, plan = retrieve_plan(both, keys, [10, 11, 12, 13])
        plan.retrieve()
        assert [plan.wait_layer(i, 60) for i in range(LAYERS)][1:] == [False, False]
        assert plan.failed() == {2: -errno.EBADMSG}
        assert both.ns.complete(plan.finish()) == 1
        both.ns.release(hit.lease)
        for i in (0, 1, 3):
            assert memory.block(1, 10 + i) == memory.block(1, i)
        assert both.ns.lookup(keys).blocks == 2
        assert both.lane.stats().failed_blocks == 1


def test_verify_finds_and_repairs(path, memory):
    with Both(path, memory.layout) as both:
        both.store(keys_of(both, 4), [0, 1, 2, 3])
        want = bytes(memory.block(0, 1))
    at = open(path, "rb").read().index(want)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes(64))
    with tutti.Pool.open(path) as pool:
        told = []
        assert pool.verify(progress=lambda *a: told.append(a)) == (4, 1) and told
        assert pool.verify(repair=True) == (4, 1)
        assert pool.verify()[1] == 0


def test_a_deadline_passes_and_the_plan_lives_on(path, memory):
    slow = tutti.ModelTiming(read_latency_ns=200_000_000)
    with Both(path, memory.layout) as both:
        keys = keys_of(both, 2)
        both.store(keys, [0, 1])
        with tutti.Lane.open(path, both.ns.digest, controller="model", timing=slow) as lane:
            lane.register(memory.layout)
            hit = both.ns.lookup(keys, lease_s=60)
            plan = lane.plan(both.ns.plan_blob(hit.lease, 0, 2), [8, 9])
            plan.retrieve()
            began = time.monotonic()
            with pytest.raises(tutti.DeadlineError) as e:
                plan.wait_layer(0, 0.01)
            assert e.value.errno == errno.ETIMEDOUT and isinstance(e.value, TimeoutError)
            with pytest.raises(tutti.DeadlineError):
                plan.finish(0.01)
            assert not plan.poll() and plan.is_open
            plan.finish(60)
            assert time.monotonic() - began > 0.15
            both.ns.release(hit.lease)


def test_the_gil_is_released_while_waiting(path, memory):
    """Two lanes wait at once: what each waits for takes 0.15 s, and Python runs on meanwhile."""
    slow = tutti.ModelTiming(read_latency_ns=150_000_000)
    with Both(path, memory.layout) as both:
        keys = keys_of(both, 1)
        both.store(keys, [0])
        plans, leases, lanes = [], [], []
        for i in range(2):
            lanes.append(tutti.Lane.open(path, both.ns.digest, controller="model", timing=slow))
            lanes[i].register(memory.layout)
            leases.append(both.ns.lookup(keys, lease_s=60).lease)
            plans.append(lanes[i].plan(both.ns.plan_blob(leases[i], 0, 1), [4 + i]))
            plans[i].retrieve()
        inside, steps = threading.Event(), 0
        results = [None, None]

        def wait(i):
            inside.set()
            results[i] = plans[i].finish(60)

        threads = [threading.Thread(target=wait, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        inside.wait()
        while any(t.is_alive() for t in threads):
            steps += 1
            time.sleep(0.001)
        assert all(results) and steps >= 10
        for lane in lanes:
            lane.close()


def test_two_threads_two_lanes(path, memory):
    with Both(path, memory.layout) as both:
        keys = [keys_of(both, 4, seed) for seed in (1, 2)]
        both.store(keys[0], [0, 1, 2, 3])
        both.store(keys[1], [4, 5, 6, 7])
        errors = []

        def work(i):
            try:
                with tutti.Lane.open(path, both.ns.digest) as lane:
                    mine = tutti.KvMemory(LAYERS, 4, BYTES)
                    lane.register(mine.layout)
                    for _ in range(40):
                        hit = both.ns.lookup(keys[i], lease_s=60)
                        plan = lane.plan(both.ns.plan_blob(hit.lease, 0, 4), [3, 2, 1, 0])
                        plan.retrieve()
                        assert plan.wait_layer(LAYERS - 1, 60)
                        assert both.ns.complete(plan.finish(60)) == 0
                        both.ns.release(hit.lease)
                        for layer in range(LAYERS):
                            for b in range(4):
                                assert mine.block(layer, 3 - b) == memory.block(layer, 4 * i + b)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors and both.ns.info().leased == 0


def test_a_fork_is_told_so(both):
    keys = keys_of(both, 1)
    both.store(keys, [0])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            kinds = set()
            for call in (both.pool.info, lambda: both.ns.lookup(keys), both.lane.stats):
                try:
                    call()
                    kinds.add(None)
                except tutti.TuttiError as e:
                    kinds.add(type(e) if "fork" in str(e) else str(e))
            both.close()  # closes nothing of the parent's
            status = 0 if kinds == {tutti.ForkedError} else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert both.retrieve(keys, [5]) == (1, {})


def fds():
    return len(os.listdir("/proc/self/fd"))


def test_nothing_leaks_over_ten_thousand_plans(both):
    keys = keys_of(both, 8)
    both.store(keys, list(range(8)))
    blocks = np.arange(8, 16, dtype=np.uint64)

    def rounds(n):
        for _ in range(n):
            hit, plan = retrieve_plan(both, keys, blocks)
            plan.finish()
            both.ns.release(hit.lease)

    rounds(1000)
    gc.collect()
    was, before = fds(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds(10000)
    gc.collect()
    assert fds() == was
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "KiB"
    assert both.ns.info().leased == 0


def test_opening_and_closing_leaves_nothing(path, memory):
    def once():
        with Both(path, memory.layout) as b:
            b.store(keys_of(b, 1), [0])

    once()
    was, threads = fds(), len(os.listdir("/proc/self/task"))
    for _ in range(5):
        once()
    assert fds() == was and len(os.listdir("/proc/self/task")) == threads


def test_what_is_forgotten_is_ended(path, memory):
    both = Both(path, memory.layout)
    keys = keys_of(both, 1)
    both.store(keys, [0])
    hit, plan = retrieve_plan(both, keys, [3])
    plan.retrieve()
    del plan
    gc.collect()
    both.lane.close()
    both.pool.close()


def test_an_interpreter_that_ends_closes_cleanly(path):
    code = f"""if 1:
        import tutti, sys
        sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
        from conftest import Both
        m = tutti.KvMemory(2, 4, 4096)
        b = Both({path!r}, m.layout)
        keys = b.ns.keys(range(32))
        b.store(keys, [0, 1])
        hit = b.ns.lookup(keys, lease_s=60)
        plan = b.lane.plan(b.ns.plan_blob(hit.lease, 0, 2), [2, 3])
        plan.retrieve()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
    with tutti.Pool.open(path) as pool:
        assert pool.info().clean == 1


def test_memory_of_its_own():
    m = tutti.KvMemory(2, 3, 4096)
    assert m.layout.layers == 2 and m.layout.layer_base[0] % 4096 == 0
    assert bytes(m.block(1, 2)) == bytes(4096)
    with pytest.raises(IndexError):
        m.block(2, 0)


def test_pace(both):
    for operation in ("retrieve", "store"):
        both.lane.pace(operation, gentle=True)
        both.lane.pace(operation, gentle=False)
    with pytest.raises(tutti.InvalidError, match="operation"):
        both.lane.pace("both", gentle=True)
    for operation, gentle in ((["store"], True), ("store", 0.5), ("store", None), ("store", 1)):
        with pytest.raises(tutti.InvalidError, match="pace"):
            both.lane.pace(operation, gentle=gentle)
