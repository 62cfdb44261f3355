"""tutti.hicache against a harness that plays HiCache: its hashes, batches, host pool layouts, threads, restarts."""
import dataclasses
import errno
import functools
import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tutti
from tutti.hicache import TuttiStorage, key_of, page_layout

PAGE, LAYERS, HEADS, DIM = 16, 3, 2, 32
BATCH = 128  # pages a call


@dataclasses.dataclass
class Config:
    """HiCacheStorageConfig, what of it is looked at."""

    extra_config: dict
    model_name: str = "a/model"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    is_mla_model: bool = False


@dataclasses.dataclass
class ExtraInfo:
    prefix_keys: list = None


SHAPES = {  # of the host pool's buffer, and where in it the page index stands
    "layer_first": lambda pages: (2, LAYERS, pages, PAGE, HEADS, DIM),
    "page_first": lambda pages: (2, pages, PAGE, LAYERS, HEADS, DIM),
    "page_first_direct": lambda pages: (2, pages, LAYERS, PAGE, HEADS, DIM),
    "page_head": lambda pages: (2, pages, HEADS, PAGE, LAYERS, DIM),
    "mla layer_first": lambda pages: (LAYERS, pages, PAGE, 1, DIM),
    "mla page_first": lambda pages: (pages, PAGE, LAYERS, 1, DIM),
}


class HostPool:
    """A HiCache host pool: its buffer, free pages, and the addresses of a page."""

    def __init__(self, layout, pages):
        shape = SHAPES[layout](pages)
        self.mla, self.layout = layout.startswith("mla"), layout.split()[-1]
        raw = np.zeros(int(np.prod(shape)) * 2 + 4096, np.uint8)
        at = -raw.__array_interface__["data"][0] % 4096
        self.kv_buffer = raw[at:at + int(np.prod(shape)) * 2].view(np.float16).reshape(shape)
        self.size, self.page_size, self.dtype = pages * PAGE, PAGE, "torch.float16"
        self.layer_num, self.head_num, self.head_dim = LAYERS, HEADS, DIM
        self.free = list(range(pages))

    def page(self, i):
        """All bytes of a page, as an array that can be written to."""
        where = {"layer_first": np.s_[:, i] if self.mla else np.s_[:, :, i]}.get(
            self.layout, np.s_[i] if self.mla else np.s_[:, i])
        return self.kv_buffer[where]

    def get_page_buffer_meta(self, indices):
        indices = indices.tolist()
        assert len(indices) % PAGE == 0
        pointers, sizes = [], set()
        for token in indices[::PAGE]:
            page = self.page(token // PAGE)
            first_k = page if self.mla else page[0]
            for layer in range(LAYERS) if self.layout == "layer_first" else [None]:
                for part in [first_k] if self.mla else [page[0], page[1]]:
                    run = part if layer is None else part[layer]
                    assert run.flags.c_contiguous
                    pointers.append(run.__array_interface__["data"][0])
                    sizes.add(run.nbytes)
        return pointers, [sizes.pop()] * len(pointers)

    def alloc(self, n):
        taken, self.free = self.free[:n], self.free[n:]
        assert len(taken) == n
        return taken


def indices_of(pages):
    return np.concatenate([np.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def hashes_of(tokens, prior=None):
    """HiCache's chained SHA-256 hex digests of whole pages."""
    out = []
    for i in range(0, len(tokens) // PAGE * PAGE, PAGE):
        h = hashlib.sha256(bytes.fromhex(prior) if prior else b"")
        h.update(np.asarray(tokens[i:i + PAGE], np.uint32).tobytes())
        prior = h.hexdigest()
        out.append(prior)
    return out


class Controller:
    """Plays the calls of HiCache's cache controller: backup and prefetch, batch by batch."""

    def __init__(self, where, layout="page_first", pages=512, size="64M", **config):
        self.pool = HostPool(layout, pages)
        extra = {"pool": str(where), "size": size, "interface_v1": 1, "weights": "ab" * 32, "backend_name": "tutti"}
        extra.update(config.pop("extra", {}))
        self.storage = TuttiStorage(Config(extra, is_mla_model=self.pool.mla, **config), {})
        self.storage.register_mem_pool_host(self.pool)

    def compute(self, hashes):
        """What a model would write: bytes that follow from the hash, into fresh pages."""
        pages = self.pool.alloc(len(hashes))
        for h, page in zip(hashes, pages):
            self.pool.page(page)[...] = content(h, self.pool.page(page).shape)
        return pages

    def backup(self, hashes, pages, prefix=None):
        prefix, stored = list(prefix) if prefix else None, 0
        for i in range(0, len(hashes), BATCH):
            batch = hashes[i:i + BATCH]
            answer = self.storage.batch_set_v1(batch, indices_of(pages[i:i + BATCH]), ExtraInfo(prefix))
            assert isinstance(answer, list) and len(answer) == len(batch)
            stored += sum(answer)
            if not all(answer):
                break
            if prefix:
                prefix += batch
        return stored

    def prefetch(self, hashes):
        """Pages that a prefetch brings; checks every byte of them. Pages go back to the host pool."""
        present = 0
        for i in range(0, len(hashes), BATCH):
            n = self.storage.batch_exists(hashes[i:i + BATCH], ExtraInfo())
            present += n
            if n < len(hashes[i:i + BATCH]):
                break
        pages, got = self.pool.alloc(present), 0
        for i in range(0, present, BATCH):
            batch = hashes[i:min(i + BATCH, present)]
            answer = self.storage.batch_get_v1(batch, indices_of(pages[i:i + len(batch)]), ExtraInfo())
            assert isinstance(answer, list) and len(answer) == len(batch)
            n = answer.index(False) if False in answer else len(answer)
            got += n
            if n < len(batch):
                break
        for h, page in zip(hashes[:got], pages):
            assert np.array_equal(self.pool.page(page), content(h, self.pool.page(page).shape)), "wrong bytes"
        self.pool.free += pages
        return got

    def close(self):
        self.storage.close()


@functools.lru_cache(maxsize=None)  # the same pages are written and looked at again and again
def content(h, shape):
    # Small whole numbers, so that equality is equality of bytes.
    page = np.random.default_rng(int(h[:15], 16)).integers(-999, 999, shape).astype(np.float16)
    page.flags.writeable = False
    return page


def tokens(pages, seed):
    return np.random.default_rng(seed).integers(0, 32000, pages * PAGE)


@pytest.mark.parametrize("layout", SHAPES)
def test_every_host_pool_layout_survives_a_restart(folder, layout):
    hashes = hashes_of(tokens(20, 1))
    one = Controller(folder / "p", layout)
    assert one.prefetch(hashes) == 0
    assert one.backup(hashes, one.compute(hashes)) == 20
    assert one.prefetch(hashes) == 20
    one.close()
    two = Controller(folder / "p", layout)
    two.compute(hashes[:5])  # other pages than the first time
    assert two.prefetch(hashes) == 20
    assert two.prefetch(hashes[:7] + hashes_of(tokens(4, 2), hashes[6])) == 7  # a partial hit
    assert two.storage.counts["read"] == 27 and two.storage.counts["failed"] == 0
    info = two.storage._reader.info()
    assert info.zero_copy == 1 or info.why
    two.close()


def test_memory_of_another_layout_is_another_model(folder):
    hashes = hashes_of(tokens(4, 1))
    one = Controller(folder / "p", "page_first")
    one.backup(hashes, one.compute(hashes))
    one.close()
    for layout, config in (("page_first_direct", {}), ("page_first", {"extra": {"weights": "cd" * 32}}),
                           ("page_first", {"model_name": "b/model"})):
        other = Controller(folder / "p", layout, **config)
        assert other.prefetch(hashes) == 0
        other.close()


def test_more_pages_than_a_batch(folder):
    hashes = hashes_of(tokens(300, 3))
    c = Controller(folder / "p", pages=700)
    assert c.backup(hashes, c.compute(hashes)) == 300
    assert c.prefetch(hashes) == 300
    c.close()


@pytest.mark.parametrize("told", [False, True], ids=["no prefix keys", "prefix keys"])
def test_radix_nodes_in_any_cut(folder, told):
    """Nodes are stored without their parents, split later, and stored again in another cut by another process."""
    hashes = hashes_of(tokens(12, 4))
    c = Controller(folder / "p")
    pages = c.compute(hashes)
    cuts = [(0, 4), (4, 8), (2, 6), (0, 12), (6, 12), (3, 9)]
    for a, b in cuts:
        assert c.backup(hashes[a:b], pages[a:b], hashes[:a] if told else None) == b - a
    assert c.prefetch(hashes) == 12
    for a in range(12):
        assert c.prefetch(hashes[a:]) == 12 - a  # HiCache asks for what follows its own prefix
    c.close()


def test_a_middle_first_then_the_whole(folder):
    hashes = hashes_of(tokens(9, 5))
    c = Controller(folder / "p")
    pages = c.compute(hashes)
    assert c.backup(hashes[3:6], pages[3:6], hashes[:3]) == 3  # the prefix was never stored
    assert c.prefetch(hashes) == 0 and c.prefetch(hashes[3:]) == 3
    assert c.backup(hashes, pages) == 9
    assert c.prefetch(hashes) == 9
    c.close()


def test_two_branches_share_their_stem(folder):
    stem = hashes_of(tokens(5, 6))
    branches = [stem + hashes_of(tokens(4, s), stem[-1]) for s in (7, 8)]
    c = Controller(folder / "p")
    for b in branches:
        assert c.backup(b, c.compute(b)) == 9
    assert [c.prefetch(b) for b in branches] == [9, 9]
    assert c.storage.namespace.info().committed == 13
    c.close()


def test_a_full_pool_says_what_it_kept(folder):
    """More documents than the pool holds: what is answered True is there, what comes back is right."""
    c = Controller(folder / "p", size="8M", pages=64)
    room = c.storage.pool.info().bytes // (c.storage.namespace.info().slot_bytes)
    documents = [hashes_of(tokens(8, 100 + i)) for i in range(room // 8 + 30)]
    for d in documents:
        pages = c.compute(d)
        stored = c.backup(d, pages)
        c.pool.free += pages
        assert stored == 8 and c.storage.batch_exists(d) == 8
    info = c.storage.namespace.info()
    assert info.evicted > 0 and info.committed <= info.slots
    back = [c.prefetch(d) for d in documents]
    assert back[-1] == 8 and sum(b < 8 for b in back) >= 20
    c.close()


def test_a_pool_that_is_held_answers_false(folder):
    c = Controller(folder / "p", size="8M", pages=64)
    ns, i = c.storage.namespace, 0
    while True:  # hold everything
        try:
            ns.reserve(ns.keys(tokens(64, 1000 + i)), lease_s=100)
        except tutti.NoSpaceError:
            break
        i += 1
    hashes = hashes_of(tokens(4, 9))
    assert c.storage.batch_set_v1(hashes, indices_of(c.compute(hashes))) == [False] * 4
    assert c.storage.counts["full"] == 4 and c.storage.batch_exists(hashes) == 0
    c.close()


def test_threads_of_hicache_at_once(folder):
    """The query, read and write threads, over documents that come and go; every byte that comes back is checked."""
    c = Controller(folder / "p", pages=1024, size="16M")
    documents = [hashes_of(tokens(24, 200 + i)) for i in range(24)]
    errors, done = [], threading.Event()

    def guarded(fn):
        def run():
            try:
                fn()
            except BaseException as e:
                errors.append(e)
        return run

    @guarded
    def write():
        pages = c.pool.alloc(24)
        try:
            for _ in range(6):
                for d in documents:
                    for h, page in zip(d, pages):
                        c.pool.page(page)[...] = content(h, c.pool.page(page).shape)
                    assert c.backup(d, pages) == 24
        finally:
            done.set()

    @guarded
    def query():
        while not done.is_set():
            for d in documents:
                assert 0 <= c.storage.batch_exists(d) <= 24

    @guarded
    def read():
        got = 0
        while not done.is_set() or not got:
            for d in documents:
                got += c.prefetch(d)

    threads = [threading.Thread(target=t) for t in (write, query, read)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors, errors
    assert c.storage.namespace.info().leased == 0 and c.storage.namespace.info().reserved == 0
    c.close()


def test_a_damaged_page_ends_the_prefix(folder):
    hashes = hashes_of(tokens(6, 10))
    c = Controller(folder / "p")
    pages = c.compute(hashes)
    c.backup(hashes, pages)
    want = c.pool.page(pages[3])[1].tobytes()
    c.close()
    raw = open(folder / "p", "rb").read()
    with open(folder / "p", "r+b") as f:
        f.seek(raw.index(want) + 99)
        f.write(bytes([raw[raw.index(want) + 99] ^ 1]))
    c = Controller(folder / "p")
    assert c.prefetch(hashes) == 3 and c.storage.counts["failed"] == 1
    assert c.storage.batch_exists(hashes) == 3  # it has left the index, with what hung below it
    again = c.compute(hashes)
    assert c.backup(hashes, again) == 6 and c.prefetch(hashes) == 6
    c.close()


def test_errors_are_misses_never_exceptions(folder):
    c = Controller(folder / "p")
    hashes = hashes_of(tokens(3, 11))
    assert c.storage.batch_get_v1(hashes, np.arange(5)) == [False] * 3
    assert c.storage.batch_set_v1(hashes, np.arange(1, 1 + 3 * PAGE)) == [False] * 3
    assert c.storage.batch_get_v1(hashes, indices_of([0, 1, 2])) == [False] * 3
    assert c.storage.batch_exists([]) == 0 and c.storage.batch_get_v1([], np.arange(0)) == []
    assert not c.storage.set("k", 1) and c.storage.get("k") is None and not c.storage.exists(hashes[0])
    c.close()
    assert c.storage.batch_exists(hashes) == 0  # closed
    assert c.storage.batch_get_v1(hashes, indices_of([0, 1, 2])) == [False] * 3
    assert c.storage.batch_set_v1(hashes, indices_of([0, 1, 2])) == [False] * 3
    c.storage.clear()


def test_clear_forgets(folder):
    hashes = hashes_of(tokens(5, 12))
    c = Controller(folder / "p")
    c.backup(hashes, c.compute(hashes))
    c.storage.clear()
    assert c.prefetch(hashes) == 0
    c.close()


def test_a_lane_that_may_still_write_stops_the_engine(folder):
    code = f"""if 1:
        import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
        from hicache_test import *
        c = Controller({str(folder / "p")!r})
        hashes = hashes_of(tokens(2, 1))
        c.backup(hashes, c.compute(hashes))
        def dead(*_):
            raise tutti.DeadLaneError(errno.ENOTRECOVERABLE, "may still be written")
        c.storage._finish_read = dead
        c.prefetch(hashes)
    """
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert r.returncode < 0 and "stopping" in r.stderr


def test_ranks_have_pools_of_their_own(folder):
    hashes = hashes_of(tokens(3, 13))
    ranks = [Controller(folder / "p", tp_rank=r, tp_size=2) for r in range(2)]
    assert ranks[0].backup(hashes, ranks[0].compute(hashes)) == 3
    assert [r.prefetch(hashes) for r in ranks] == [3, 0]
    for r in ranks:
        r.close()
    assert sorted(os.listdir(folder)) == ["p-tp0of2", "p-tp1of2"]


def test_what_is_not_supported_is_refused_at_start(folder):
    for words, kw in (('"pool" is missing', {"extra": {"pool": ""}}), ("interface_v1", {"extra": {"interface_v1": 0}}),
                      ("MLA", {"layout": "mla page_first", "tp_size": 2}), ("64 hex", {"extra": {"weights": "ab"}}),
                      ("no folder", {"extra": {"weights": None}})):
        with pytest.raises(ValueError, match=words):
            Controller(folder / "q", **kw)
    c = Controller(folder / "p")
    c.storage.register_mem_host_pool_v2(c.pool, "kv")
    with pytest.raises(ValueError, match="second cache"):
        c.storage.register_mem_host_pool_v2(c.pool, "mamba")
    c.close()
    with pytest.raises(ValueError, match="no pool"):
        Controller(folder / "r", size=None)


def test_weights_are_read_from_the_model_s_folder(folder):
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(b"weights one")
    hashes = hashes_of(tokens(3, 14))
    for content_, want in ((b"weights one", 0), (b"weights one", 3), (b"weights two", 0)):
        (folder / "model" / "model.safetensors").write_bytes(content_)
        c = Controller(folder / "p", model_name=str(folder / "model"), extra={"weights": None})
        assert c.prefetch(hashes) == want
        c.backup(hashes, c.compute(hashes))
        c.close()


def test_keys_of_any_text():
    assert key_of("ab" * 32) == bytes.fromhex("ab" * 32)
    assert len({key_of(k) for k in ("a", "b", "zz" * 32, "ab" * 32)}) == 4


def test_uneven_pages_are_refused():
    pool = HostPool("page_first", 4)
    meta = pool.get_page_buffer_meta
    pool.get_page_buffer_meta = lambda i: ([a + (i.tolist()[0] == 3 * PAGE) for a in meta(i)[0]], meta(i)[1])
    with pytest.raises(ValueError, match="evenly"):
        page_layout(pool, False)
