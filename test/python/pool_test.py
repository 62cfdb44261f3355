"""Pools and namespaces: format, open, keys, lookup, reserve, errors with their messages, what is left behind."""
import array
import dataclasses
import errno
import math
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tutti
from conftest import Both, random_memory, spec_of
from tutti.vllm.options import options_of

LAYERS, BLOCKS, BYTES = 4, 32, 16384


@pytest.fixture
def memory():
    return random_memory(LAYERS, BLOCKS, BYTES)


def tokens(blocks, seed=1):
    return np.random.default_rng(seed).integers(0, 32000, blocks * 16, dtype=np.uint32)


def test_import_is_light():
    code = """if 1:
        import os, sys
        before = set(os.listdir("/proc/self/fd"))
        import tutti
        assert len(os.listdir("/proc/self/task")) == 1, "a thread"
        assert set(os.listdir("/proc/self/fd")) == before, "an open file"
        maps = open("/proc/self/maps").read()
        assert "libcuda" not in maps and "libcudart" not in maps and "/dev/" not in maps, "CUDA or a device"
        heavy = {"torch", "numpy", "multiprocessing", "concurrent.futures", "tutti.hicache"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_version_is_the_library_s():
    assert tutti.__version__.count(".") == 2


def test_one_symbol_is_shown():
    native = tutti._native.__file__
    out = subprocess.run(["nm", "-D", "--defined-only", native], capture_output=True, text=True)
    if out.returncode:
        pytest.skip("no nm here")
    assert [line.split()[-1] for line in out.stdout.splitlines()] == ["PyInit__native"]
    assert native.endswith(".abi3.so")


def test_a_pool_that_is_held_is_looked_at_from_outside(path, memory):
    with pytest.raises(tutti.NotFoundError):
        tutti.Pool.look(path + "-none")
    with Both(path, memory.layout) as b:
        keys = b.ns.keys(tokens(3))
        assert b.store(keys, [0, 1, 2]) == 3
        seen = tutti.Pool.look(path)
        assert seen.held and (seen.pid, seen.lane_pid) == (os.getpid(), os.getpid()) and seen.host
        assert seen.pool.uuid == b.pool.info().uuid and seen.pool.bytes == b.pool.info().bytes
        assert (seen.pool.clean, seen.pool.index_bytes, seen.pool.healed_copies) == (-1, -1, -1)
        ns, = seen.namespaces
        assert (ns.digest, ns.model, ns.layers) == (b.ns.digest, "a/model", LAYERS)
        assert (ns.committed, ns.leased, ns.slots) == (-1, -1, b.ns.info().slots)
        assert b.retrieve(keys, [3, 4, 5]) == (3, {})  # nobody was held up
    before = os.stat(path)
    seen = tutti.Pool.look([path])
    assert (seen.held, seen.pid, seen.host, seen.lane_pid) == (False, None, None, None) and len(seen.namespaces) == 1
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    with pytest.raises(tutti.NoPoolError):
        tutti.Pool.look(os.devnull)


def test_round_trip_survives_reopen(path, memory):
    words = tokens(6)
    with Both(path, memory.layout) as b:
        keys = b.ns.keys(words)
        assert b.ns.lookup(keys) == (0, tutti.Lease(0, 0, 0))
        assert b.store(keys, [3, 9, 1, 30, 12, 0]) == 6
        assert b.store(keys, [3, 9, 1, 30, 12, 0]) == 0
        info = b.ns.info()
        assert (info.committed, info.reserved, info.leased, info.model) == (6, 0, 0, "a/model")
    with Both(path, memory.layout) as b:
        assert b.pool.info().clean == 1
        assert b.retrieve(keys, [20, 21, 22, 23, 24, 25]) == (6, {})
        for layer in range(LAYERS):
            for was, now in zip([3, 9, 1, 30, 12, 0], range(20, 26)):
                assert memory.block(layer, was) == memory.block(layer, now), (layer, was)
        assert b.pool.verify() == (6, 0)
        assert b.lane.stats().bytes_read >= 6 * LAYERS * BYTES
        blocks = {block.key: block for block in b.ns.each()}
        chain = tutti.split_keys(keys)
        assert set(blocks) == set(chain)
        assert [blocks[k].parent for k in chain] == [bytes(32), *chain[:-1]]
        assert [blocks[k].depth for k in chain] == list(range(6))
        b.ns.clear()
        assert b.ns.lookup(keys).blocks == 0 and not list(b.ns.each())


def test_keys_are_the_same_for_every_kind_of_integers(both):
    words = tokens(5)
    want = both.ns.keys(words)
    assert len(want) == 5 * 32
    for same in (words.tolist(), words.astype(np.int64), words.astype(np.int32), words.tobytes(),
                 array.array("I", words.tolist()), array.array("q", words.tolist()), tuple(words.tolist()),
                 np.repeat(words, 2)[::2], memoryview(words)):
        assert both.ns.keys(same) == want
    assert both.ns.keys(words[:5 * 16 - 1]) == want[:4 * 32]  # the rest fills no block
    assert both.ns.keys(words[32:], parent=want[32:64]) == want[64:]
    assert tutti.keys(both.ns.digest, words, 16) == want
    assert tutti.join_keys(tutti.split_keys(want)) == want
    assert both.ns.keys([]) == b""


def test_extra_keys_change_what_follows(both):
    words = tokens(4)
    plain, none = both.ns.keys(words), both.ns.keys(words, extra=[None, b"", None, None])
    lora = both.ns.keys(words, extra=[None, b"adapter", None, None])
    assert none == plain
    assert lora[:32] == plain[:32]
    assert not set(tutti.split_keys(lora)[1:]) & set(tutti.split_keys(plain))
    with pytest.raises(tutti.InvalidError, match="2 extras for 4 blocks"):
        both.ns.keys(words, extra=[b"a", b"b"])


def test_keys_do_not_depend_on_the_process(both):
    words = list(range(32))
    code = f"import tutti; print(tutti.keys(bytes.fromhex('{both.ns.digest.hex()}'), {words}, 16).hex())"
    seeds = [subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": s}, check=True,
                            capture_output=True, text=True, timeout=60).stdout.strip() for s in ("0", "7")]
    assert seeds == [both.ns.keys(words).hex()] * 2


def test_bad_integers_are_refused(both):
    for bad, words in ((["a"], "integers"), ([-1], "integers"), ([1 << 32], "integers"), (np.zeros(4), "float64"),
                       (np.array([-1]), "fit"), (np.array([1 << 40]), "fit"), (b"123", "whole number")):
        with pytest.raises(tutti.InvalidError, match=words):
            both.ns.keys(bad)
    with pytest.raises(tutti.InvalidError, match="block_tokens"):
        tutti.keys(both.ns.digest, [1], 0)
    with pytest.raises(tutti.InvalidError, match="33 bytes"):
        both.ns.lookup(bytes(33))
    with pytest.raises(tutti.InvalidError, match="one key"):
        both.ns.keys([1] * 16, parent=bytes(64))


def test_lookup_of_buffers(both):
    keys = both.ns.keys(tokens(3))
    both.store(keys, [0, 1, 2])
    for same in (keys, bytearray(keys), memoryview(keys), np.frombuffer(keys, np.uint8),
                 np.frombuffer(keys, np.uint8).reshape(3, 32)):
        assert both.ns.lookup(same).blocks == 3
    assert both.ns.lookup(keys[32:]).blocks == 2
    assert both.ns.lookup(b"").blocks == 0


def test_leases_hold_and_end(both):
    keys = both.ns.keys(tokens(2))
    both.store(keys, [0, 1])
    hit = both.ns.lookup(keys, lease_s=60)
    assert hit.blocks == 2 and hit.lease and both.ns.info().leased == 1
    with pytest.raises(tutti.BusyError, match="lease"):
        both.ns.clear()
    same = pickle.loads(pickle.dumps(hit.lease))
    blob = both.ns.plan_blob(same, 1, 1)
    both.ns.release(same)
    both.ns.release(hit.lease)
    both.ns.release(tutti.Lease(0, 0, 0))
    assert both.ns.info().leased == 0
    with pytest.raises(tutti.StaleError):
        both.ns.plan_blob(hit.lease, 0, 1)
    assert both.retrieve(keys, [4, 5]) == (2, {})
    assert isinstance(blob, bytes)


def test_a_reservation_can_be_cancelled(both):
    keys = both.ns.keys(tokens(4))
    first, n, lease = both.ns.reserve(keys, lease_s=60)
    assert (first, n) == (0, 4) and both.ns.info().reserved == 4
    both.ns.cancel(lease)
    assert both.ns.info().reserved == 0 and both.ns.lookup(keys).blocks == 0
    with pytest.raises(tutti.NotFoundError, match="parent"):
        both.ns.reserve(keys[32:], parent=keys[:32])


def test_a_full_pool_evicts(path, memory):
    with Both(path, memory.layout) as b:
        room = 64 << 20 >> 16  # more chains than the pool can hold
        for i in range(room // 8 + 4):
            keys = b.ns.keys(tokens(8, seed=i))
            assert b.store(keys, list(range(8))) == 8
        info = b.ns.info()
        assert info.evicted > 0 and info.committed <= info.slots
        assert b.retrieve(keys, list(range(8, 16))) == (8, {})
        assert b.ns.lookup(b.ns.keys(tokens(8, seed=0))).blocks < 8


def test_a_pool_that_is_held_has_no_space(both):
    slots = both.pool.info().bytes // both.ns.info().slot_bytes  # more than there can be
    held = both.ns.reserve(both.ns.keys(tokens(slots)), lease_s=60)
    assert slots // 2 < held.blocks < slots
    with pytest.raises(tutti.NoSpaceError) as e:
        both.ns.reserve(both.ns.keys(tokens(1, seed=2)))
    assert e.value.errno == errno.ENOSPC and "no" in str(e.value)
    both.ns.cancel(held.lease)
    assert both.ns.reserve(both.ns.keys(tokens(1, seed=2))).blocks == 1


def test_progress_is_told(folder):
    told = []
    tutti.Pool.format(folder / "p", "32M", prewrite="all", progress=lambda *a: told.append(a))
    assert told and all(isinstance(what, str) and 0 <= done <= total for what, done, total in told)


def errors(folder, path):
    spec = spec_of(tutti.KvMemory(1, 1, 4096).layout)
    (folder / "text").write_bytes(b"not a pool" * 1000000)
    yield tutti.ExistsError, errno.EEXIST, "nothing was touched", lambda: tutti.Pool.format(path, "64M")
    yield tutti.NotFoundError, errno.ENOENT, "none", lambda: tutti.Pool.open(folder / "none")
    yield tutti.NoPoolError, errno.ENOMEDIUM, "format it", lambda: tutti.Pool.open(folder / "text")
    yield tutti.InvalidError, errno.EINVAL, "ranks", lambda: tutti.Pool.format(folder / "r", "64M", ranks=99)
    yield tutti.InvalidError, errno.EINVAL, "", lambda: tutti.Pool.format(folder / "small", 4096)
    yield tutti.InvalidError, errno.EINVAL, "must be one of", lambda: tutti.Pool.open(path, controller="x")
    yield tutti.InvalidError, errno.EINVAL, "", lambda: tutti.parse_bytes("four")
    yield tutti.NotFoundError, errno.ENOENT, "", lambda: tutti.Lane.open(path, spec.digest())
    yield tutti.InvalidError, errno.EINVAL, "model", dataclasses.replace(spec, model="").digest
    yield tutti.InvalidError, errno.EINVAL, "weights", dataclasses.replace(spec, weights=b"x").digest
    yield tutti.InvalidError, errno.EINVAL, "layout", lambda: tutti.NamespaceSpec("m", b"w" * 32, "a", "b", 1, 1,
                                                                                 1).digest()


def test_errors_carry_class_errno_and_message(folder, path):
    seen = 0
    for kind, number, word, call in errors(folder, path):
        with pytest.raises(kind) as e:
            call()
        assert e.value.errno == number and isinstance(e.value, OSError) and word in str(e.value), (kind, str(e.value))
        copy = pickle.loads(pickle.dumps(e.value))
        assert type(copy) is kind and str(copy) == str(e.value)
        seen += 1
    assert seen == 11


def test_a_second_opener_is_named(path):
    with tutti.Pool.open(path):
        with pytest.raises(tutti.BusyError, match=f"process {os.getpid()} "):
            tutti.Pool.open(path)
    with tutti.Pool.open(path) as pool:
        assert pool.is_open
    assert not pool.is_open


def test_errors_of_drives_are_apart():
    e = tutti.errors.error_of(0x281, "unrecovered read error")
    assert isinstance(e, tutti.NvmeError) and e.status == 0x281 and e.errno == errno.EIO
    assert pickle.loads(pickle.dumps(e)).status == 0x281
    assert type(tutti.errors.error_of(-errno.EMFILE, "x")) is tutti.TuttiError


def test_what_is_closed_says_so(path, memory):
    with Both(path, memory.layout) as b:
        keys = b.ns.keys(tokens(1))
        b.store(keys, [0])
    for call in (b.pool.info, b.pool.sync, lambda: b.ns.lookup(keys), b.lane.stats, lambda: b.lane.plan(b"", [])):
        with pytest.raises(tutti.InvalidError, match="closed"):
            call()
    b.pool.close()
    b.lane.close()


def test_sync_never(path, memory):
    with tutti.Pool.open(path, sync_interval_s=math.inf, prewrite_ahead=0) as pool:
        pool.namespace(spec_of(memory.layout))
        pool.sync()
        assert [ns.info().model for ns in pool.namespaces()] == ["a/model"]


def test_the_log_reaches_python(path, folder, caplog):
    import logging
    tutti.log_to(logging.getLogger("tutti"))
    try:
        with caplog.at_level(logging.DEBUG, "tutti"), tutti.Pool.open(path) as pool:
            assert pool.is_open
    finally:
        tutti.log_to(None)


def test_a_chain_with_a_missing_layer_is_not_published(both):
    keys = both.ns.keys(tokens(2))
    assert both.store(keys, [0, 1], layers=range(LAYERS - 1)) == 2
    assert both.ns.lookup(keys).blocks == 0 and both.lane.stats().stores_dropped == 1
    assert both.store(keys, [0, 1]) == 2
    assert both.ns.lookup(keys).blocks == 2


def test_byte_cache(folder):
    where = folder / "cache"
    values = {f"key {i}": np.random.default_rng(i).bytes(i * 313) for i in range(1, 20)}
    with tutti.ByteCache.open(where, 6000, size="32M") as cache:
        assert all(cache.put(k, v) for k, v in values.items())
        assert cache.put("array", np.arange(100, dtype=np.int32)) and cache.put("empty", b"")
        with pytest.raises(tutti.InvalidError, match="at most 6000"):
            cache.put("long", bytes(6001))
    with tutti.ByteCache.open(where, 6000) as cache:
        assert all(cache.get(k) == v for k, v in values.items())
        assert cache.get("array") == np.arange(100, dtype=np.int32).tobytes() and cache.get(b"empty") == b""
        assert cache.get("none") is None and "none" not in cache and "array" in cache and len(cache) == 21
    with tutti.ByteCache.open(where, 6000, kind="other") as cache:
        assert cache.get("array") is None


@pytest.mark.parametrize("ids", [
    array.array("q", [1, 2, 3]), memoryview(array.array("q", [1, 2, 3])), array.array("i", [1, 2, 3]),
    memoryview(array.array("I", [1, 2, 3])), np.array([1, 2, 3], ">u4"), np.array([1, 2, 3], "i4"),
], ids=lambda v: f"{type(v).__name__} {getattr(v, 'format', getattr(v, 'dtype', ''))}")
def test_keys_are_those_of_the_numbers_however_they_lie(ids):
    assert tutti.keys(bytes(32), ids, 1) == tutti.keys(bytes(32), [1, 2, 3], 1)


@pytest.mark.parametrize("ids", [np.array([-1], "i4"), array.array("i", [-1]), memoryview(array.array("d", [1.0]))],
                         ids=["numpy", "array", "memoryview"])
def test_numbers_that_are_no_token_ids_are_refused(ids):
    with pytest.raises(tutti.InvalidError):
        tutti.keys(bytes(32), ids, 1)


@pytest.mark.parametrize("paths", ["a\0b", [], [b"a\0b"]])
def test_names_that_c_would_read_otherwise_are_refused(paths):
    with pytest.raises(tutti.InvalidError):
        tutti.Pool.open(paths)


def test_a_path_may_be_bytes(path):
    cache = tutti.ByteCache.open(os.fsencode(path), 1000, size="64M")
    assert cache.put("a", b"x") and cache.get("a") == b"x"
    cache.close()
    tutti.Pool.open(os.fsencode(path)).close()


ODD = [-1, 1 << 70, 1.5, True, "many", None]


@pytest.mark.parametrize("bad", ODD, ids=repr)
def test_odd_numbers_are_value_errors(folder, path, both, bad):
    """Never a bare TypeError or OverflowError of some C layer: what is wrong, and what would be right."""
    keys, spec = both.ns.keys(tokens(2)), spec_of(tutti.KvMemory(1, 1, 4096).layout)
    both.store(keys, [0, 1])
    lease = both.ns.lookup(keys, lease_s=60).lease
    plan = both.lane.plan(both.ns.plan_blob(lease, 0, 2), [2, 3])
    timing = tutti.ModelTiming(read_latency_ns=bad)
    calls = {
        "ranks": lambda: tutti.Pool.format(folder / "x", "64M", ranks=bad),
        "lane rank": lambda: tutti.Lane.open(path, both.ns.digest, rank=bad),
        "sms": lambda: tutti.Lane.open(path, both.ns.digest, sms=bad),
        "queue_depth": lambda: tutti.Lane.open(path, both.ns.digest, queue_depth=bad),
        "store_queue_layers": lambda: tutti.Lane.open(path, both.ns.digest, store_queue_layers=bad),
        "timing": lambda: tutti.Lane.open(path, both.ns.digest, controller="model", timing=timing),
        "prewrite_ahead": lambda: tutti.Pool.open(path, prewrite_ahead=bad),
        "first": lambda: both.ns.plan_blob(lease, bad, 1), "count": lambda: both.ns.plan_blob(lease, 0, bad),
        "layer": lambda: plan.wait_layer(bad), "retrieve": lambda: plan.retrieve_layer(bad),
        "store": lambda: plan.store_layer(bad), "stream": lambda: plan.wait_layer_stream(0, bad),
        "block_tokens": lambda: tutti.keys(both.ns.digest, [1, 2], bad),
        "spec": lambda: dataclasses.replace(spec, layers=bad).digest(),
        "memory": lambda: tutti.KvMemory(1, bad, 4096), "value_bytes": lambda: tutti.ByteCache.open(path, bad),
    }
    if bad != "many":  # a size may be text, and then is refused as such
        calls["bytes"] = lambda: tutti.parse_bytes(bad)
        calls["bounce_bytes"] = lambda: tutti.Lane.open(path, both.ns.digest, bounce_bytes=bad)
    for name, call in calls.items():
        with pytest.raises(ValueError, match="must be|whole number") as e:
            call()
        assert isinstance(e.value, tutti.InvalidError) and len(str(e.value)) > 20, name
    assert tutti.keys(both.ns.digest, [1, 2], np.int64(1)) == tutti.keys(both.ns.digest, [1, 2], 1)
    plan.finish()
    both.ns.release(lease)


@pytest.mark.parametrize("bad", [float("nan"), True, "soon", -0.5])
def test_odd_times_are_value_errors(path, both, bad):
    keys = both.ns.keys(tokens(1))
    for call in (lambda: both.ns.lookup(keys, lease_s=bad), lambda: both.ns.reserve(keys, lease_s=bad),
                 lambda: tutti.Lane.open(path, both.ns.digest, deadline_s=bad),
                 lambda: tutti.Pool.open(path, lock_wait_s=bad), lambda: tutti.Pool.open(path, sync_interval_s=bad)):
        with pytest.raises(ValueError, match="seconds|negative"):
            call()
    both.store(keys, [0])
    for forever in (math.inf, 1e300, 10 ** 400, None):
        if forever is not None:
            both.ns.release(both.ns.lookup(keys, lease_s=forever).lease)
        plan = both.lane.plan(both.ns.plan_blob(both.ns.lookup(keys, lease_s=60).lease, 0, 1), [2])
        plan.retrieve()
        assert plan.wait_layer(LAYERS - 1, forever) and plan.finish(forever)


def test_one_file_under_two_names(folder, path):
    os.symlink(path, folder / "symlink")
    os.link(path, folder / "link")
    (folder / "sub").mkdir()
    new = str(folder / "new")
    for paths in ([path, folder / "symlink"], [path, folder / "link"], [new, folder / "sub" / ".." / "new"]):
        with pytest.raises(tutti.InvalidError, match="one and the same"):
            tutti.Pool.format(paths, "64M", overwrite=True)
    assert not os.path.exists(new)
    with tutti.Pool.open(path):
        for name in ("symlink", "link"):
            with pytest.raises(tutti.BusyError, match="has this pool open"):
                tutti.Pool.open(folder / name, lock_wait_s=0.1)


def test_a_namespace_is_removed(path, memory):
    with Both(path, memory.layout) as b:
        keys = b.ns.keys(tokens(3))
        b.store(keys, [0, 1, 2])
        other = b.pool.namespace(spec_of(memory.layout, model="other"))
        assert len(b.pool.namespaces()) == 2 and b.pool.namespace(spec_of(memory.layout)) is b.ns
        lease = b.ns.lookup(keys, lease_s=60).lease
        with pytest.raises(tutti.BusyError, match="lease"):
            b.ns.remove()
        b.ns.release(lease)
        b.ns.remove()
        b.ns.remove()
        assert not b.ns.is_open and other.is_open and b.pool.info().n_namespaces == 1
        for call in (lambda: b.ns.lookup(keys), b.ns.info, b.ns.clear, lambda: b.ns.reserve(keys)):
            with pytest.raises(tutti.InvalidError, match="removed"):
                call()
        again = b.pool.namespace(spec_of(memory.layout))
        assert again is not b.ns and again.lookup(keys).blocks == 0


def test_what_became_of_a_plan_in_short(path, memory):
    with Both(path, memory.layout) as b:
        keys = b.ns.keys(tokens(2))
        b.store(keys, [0, 1])
        want = bytes(memory.block(0, 1))

        def retrieved():
            lease = b.ns.lookup(keys, lease_s=60).lease
            plan = b.lane.plan(b.ns.plan_blob(lease, 0, 2), [4, 5])
            plan.retrieve()
            done = plan.finish(60)
            b.ns.release(lease)
            return done

        assert tutti.completion_result(retrieved()) == 0
        assert tutti.completion_result(b"something else") == -errno.EBADMSG
        at = open(path, "rb").read().index(want)
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(bytes(64))
        assert tutti.completion_result(retrieved()) == -errno.EBADMSG
        info = b.pool.info()
        assert (info.failed_syncs, info.sync_failing) == (0, 0)


def test_a_key_twice_in_a_chain(both):
    keys = both.ns.keys(tokens(2))
    twice = both.ns.reserve(keys + keys, lease_s=60)
    assert twice[:2] == (0, 2)  # it ends where the first key comes again
    behind = both.ns.reserve(keys, lease_s=60)
    assert behind == (0, 0, tutti.Lease(0, 0, 0))  # someone else is writing them
    more = both.ns.keys(tokens(3), extra=None)
    assert both.ns.reserve(more[64:], parent=keys[32:], lease_s=60).blocks == 1  # but what comes behind them can be had
    both.ns.cancel(twice.lease)
    assert both.ns.reserve(keys[:32] * 2, lease_s=60)[:2] == (0, 1)


def test_a_committed_key_twice_is_no_chain(both):
    keys = both.ns.keys(tokens(2))
    both.store(keys, [0, 1])
    with pytest.raises(tutti.InvalidError, match="not a chain"):
        both.ns.reserve(keys + keys)
    assert both.ns.lookup(keys + keys).blocks == 2 and both.ns.info().reserved == 0


def test_a_forgotten_cache_is_closed(folder):
    cache = tutti.ByteCache.open(folder / "p", 100, size="32M")
    cache.put("a", b"b")
    was = set(os.listdir("/proc/self/fd"))
    del cache  # at once: nothing in it waits for the garbage collector
    assert len(os.listdir("/proc/self/fd")) < len(was)
    with tutti.ByteCache.open(folder / "p", 100) as cache:
        assert cache.get("a") == b"b" and cache.pool.info().clean == 1
    pool = tutti.Pool.open(folder / "p")
    ns = pool.namespaces()[0]
    del pool
    assert ns.info().committed == 1  # a namespace holds its pool
    del ns
    tutti.Pool.open(folder / "p", lock_wait_s=0.1).close()


def test_a_cache_that_ends_with_the_interpreter(folder):
    code = f"""if 1:
        import threading, time, tutti
        cache = tutti.ByteCache.open({str(folder / "p")!r}, 100, size="32M")
        cache.put("a", b"b")
        def work():
            while True:
                cache.get("a")
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with tutti.ByteCache.open(folder / "p", 100) as cache:
        assert cache.get("a") == b"b"


def test_a_cache_that_cannot_be_opened_leaves_nothing(folder, monkeypatch):
    tutti.Pool.format(folder / "p", "32M")
    was, threads = set(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def fails(self, layout):
        raise tutti.NoMemoryError(errno.ENOMEM, "no memory")

    with monkeypatch.context() as m:
        m.setattr(tutti.Lane, "register", fails)
        with pytest.raises(tutti.NoMemoryError):
            tutti.ByteCache.open(folder / "p", 100)
    assert set(os.listdir("/proc/self/fd")) == was and len(os.listdir("/proc/self/task")) == threads
    with tutti.ByteCache.open(folder / "p", 100) as cache:
        with monkeypatch.context() as m:
            m.setattr(tutti.Lane, "close", lambda self: (_ for _ in ()).throw(tutti.BusyError(errno.EBUSY, "busy")))
            with pytest.raises(tutti.BusyError):
                cache.close()
        assert not cache.pool.is_open  # all the same


def test_the_readme_s_example_runs(folder, monkeypatch):
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder)
    facts = {}
    exec(code, facts)
    with tutti.Pool.open("py.pool") as pool:
        assert pool.info().clean == 1 and pool.namespaces()[0].info().committed == 2


@pytest.mark.parametrize("cls, name", [(tutti.pool.PoolInfo, "tutti_pool_info"), (tutti.pool.NamespaceInfo, "tutti_ns_info"),
                                       (tutti.lane.LaneInfo, "tutti_lane_info"),
                                       (tutti.lane.LaneStats, "tutti_lane_stats")])
def test_what_c_tells_is_told(cls, name):
    theirs = {n for n, _ in tutti._native.ffi.typeof(f"struct {name}").fields}
    assert {f.name for f in dataclasses.fields(cls)} == theirs


def test_repair_of_a_sound_pool(both):
    assert both.pool.repair() == 0 and both.pool.info().healed_copies == 0


def told(words, error):
    """The number behind these words of the message."""
    return int(str(error.value).split(words)[1].split()[0].rstrip(";,."))


def test_a_size_that_is_too_small_says_which_is_enough(tmp_path):
    path = tmp_path / "pool"
    with pytest.raises(tutti.InvalidError, match="size '1K' at .*pool: 1024 bytes are too few") as e:
        tutti.ByteCache.open(path, 5 << 20, size="1K")
    enough = told("take ", e)
    for size in (enough, "16M"):  # of a pool, not of one that holds such values
        with pytest.raises(tutti.InvalidError, match=f"size '?{size}'? .*removed again") as e:
            tutti.ByteCache.open(path, 5 << 20, size=size)
        assert not path.exists()
    enough = told("a pool of ", e)
    with tutti.ByteCache.open(path, 5 << 20, size=enough) as cache:
        assert cache.put("a", b"b" * (5 << 20))
    with pytest.raises(tutti.InvalidError, match="a segment of this pool") as e:  # one that was there stays
        tutti.ByteCache.open(path, 50 << 20, size=enough)
    assert path.exists() and "removed" not in str(e.value)


def test_sizes_among_the_options_of_vllm():
    assert options_of({"pool": "p", "size": "1.5G"}).size == 3 << 29
    assert options_of({"pool": "p", "size": 4096, "read_bytes_per_s": "2G"}).read_bytes_per_s == 2 << 30
    for bad in ("inf", "nan", "-1G", -1, "much", "", 1.5, True, "4Q"):
        with pytest.raises(ValueError, match='tutti: "size": '):
            options_of({"pool": "p", "size": bad})
