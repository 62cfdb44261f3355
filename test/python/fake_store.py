"""A pool and lanes in plain Python, for the connector's tests: strict about how they are used, and unkind.

Bytes move as late as they may: a store reads the engine's memory when it is found done, not when it is issued, and in
random order. Whoever overwrites a block too early is found out.
"""
import itertools
import pickle
import types

from tutti import AgainError, DeadlineError, Lease, Match, NoSpaceError, NotFoundError, Reservation, StaleError
from tutti import keys as real_keys

KEY = 32


def split(keys):
    raw = bytes(keys)
    return [raw[i:i + KEY] for i in range(0, len(raw), KEY)]


class FakeNamespace:
    """Plays tutti.Namespace for `ranks` ranks with room for `slots` blocks."""

    def __init__(self, random, slots, ranks=1, block_tokens=4):
        self.random, self.slots, self.ranks, self.block_tokens = random, slots, ranks, block_tokens
        self.digest = b"d" * KEY
        self.blocks = {}  # key -> (parent, {rank: bytes})
        self.leases = {}  # id -> keys
        self.reservations = {}  # id -> (keys, {rank: results})
        self.ids = itertools.count(1)
        self.evicted = 0

    def keys(self, tokens, parent=None, extra=None):
        return real_keys(self.digest, tokens, self.block_tokens, parent, extra)

    def _reserved(self):
        return {k for keys, _ in self.reservations.values() for k in keys}

    def lookup(self, keys, lease_s=None):
        n = 0
        for key in split(keys):
            if key not in self.blocks:
                break
            n += 1
        lease = Lease(0, 0, 0)
        if n and lease_s is not None:
            lease = Lease(1, next(self.ids), 1)
            self.leases[lease.id] = split(keys)[:n]
        return Match(n, lease)

    def _evict(self):
        held = {k for keys in self.leases.values() for k in keys}
        held |= {p for keys, _ in self.reservations.values() for p in keys}
        parents = {p for p, _ in self.blocks.values()} | {self._parents.get(k) for k in self._reserved()}
        leaves = [k for k in self.blocks if k not in held and k not in parents]
        if not leaves:
            return False
        del self.blocks[self.random.choice(sorted(leaves))]
        self.evicted += 1
        return True

    _parents = {}

    def reserve(self, keys, parent=None, lease_s=30.0):
        keys, parent = split(keys), bytes(parent) if parent is not None else None
        reserved = self._reserved()
        if parent is not None and parent not in self.blocks and parent not in reserved:
            raise NotFoundError(2, "parent unknown")
        first = 0
        while first < len(keys) and keys[first] in self.blocks:
            first += 1
        mine = []
        for i in range(first, len(keys)):
            if keys[i] in self.blocks or keys[i] in reserved:
                break
            self._parents = dict(self._parents)
            self._parents[keys[i]] = keys[i - 1] if i else parent
            while len(self.blocks) + len(reserved) + len(mine) >= self.slots:
                if not self._evict_but(keys[:i] + ([parent] if parent else [])):
                    break
            else:
                mine.append(keys[i])
                continue
            break
        if first == len(keys) or (first + 1 <= len(keys) and not mine):
            if first < len(keys) and keys[first] not in reserved:
                raise NoSpaceError(28, "no slot")
            return Reservation(first, 0, Lease(0, 0, 0))
        lease = Lease(1, next(self.ids), 1)
        self.reservations[lease.id] = (mine, {})
        return Reservation(first, len(mine), lease)

    def _evict_but(self, keep):
        self.leases[0] = keep
        try:
            return self._evict()
        finally:
            del self.leases[0]

    def plan_blob(self, lease, first, count):
        if lease.id in self.leases:
            keys = self.leases[lease.id][first:first + count]
            data = [dict(self.blocks[k][1]) for k in keys]
            return pickle.dumps(("load", lease.id, keys, data))
        if lease.id in self.reservations:
            return pickle.dumps(("store", lease.id, self.reservations[lease.id][0][first:first + count], None))
        raise StaleError(116, "the lease is gone")

    def complete(self, blob):
        op, lease, keys, rank, results = pickle.loads(blob)
        if op == "load":
            bad = 0
            for key, result in zip(keys, results):
                if result == "corrupt" and key in self.blocks:
                    bad += 1
                    self._drop(key)
            return bad
        if lease not in self.reservations:
            raise StaleError(116, "the reservation is gone")
        mine, ranks = self.reservations[lease]
        assert rank not in ranks, "a rank completed twice"
        ranks[rank] = results
        self._settle()
        return 0

    def _settle(self):
        """Publishes what all ranks have reported, parents first; drops what has lost its parent."""
        again = True
        while again:
            again = False
            for lease, (mine, ranks) in list(self.reservations.items()):
                if len(ranks) < self.ranks:
                    continue
                parent = self._parents[mine[0]]
                if parent is not None and parent not in self.blocks and parent in self._reserved():
                    continue
                for i, key in enumerate(mine):
                    parent = self._parents[key]
                    whole = all(ranks[r][i] is not None for r in ranks)
                    if whole and (parent is None or parent in self.blocks):
                        self.blocks[key] = (parent, {r: ranks[r][i] for r in ranks})
                del self.reservations[lease]
                again = True

    def _drop(self, key):
        del self.blocks[key]
        for child in [k for k, (p, _) in self.blocks.items() if p == key]:
            if child in self.blocks:
                self._drop(child)

    def release(self, lease):
        self.leases.pop(lease.id, None)
        self.reservations.pop(lease.id, None)
        self._settle()

    def cancel(self, lease):
        assert not self.reservations[lease.id][1], "cancelled, but a lane had it"
        self.reservations.pop(lease.id)
        self._settle()

    def clear(self):
        assert not self.leases and not self.reservations
        self.blocks = {}

    def each(self):
        return [types.SimpleNamespace(key=k, parent=p or bytes(KEY)) for k, (p, _) in self.blocks.items()]

    def info(self):
        return types.SimpleNamespace(leased=len(self.leases), reserved=len(self.reservations), evicted=self.evicted,
                                     committed=len(self.blocks))


class FakeLane:
    """Plays tutti.Lane of one rank. memory: [layer][block] -> bytearray. faults: chance of each kind of failure."""

    def __init__(self, random, memory, rank=0, faults=0.0):
        self.random, self.memory, self.rank, self.faults = random, memory, rank, faults
        self.plans = 0
        self.gentle = {"retrieve": False, "store": False}
        self.break_once = None  # which block of the next load is damaged, whatever the chances

    def plan(self, blob, blocks):
        if self.random.random() < self.faults:
            raise AgainError(11, "too many plans")
        self.plans += 1
        return FakePlan(self, pickle.loads(blob), list(blocks))

    def pace(self, operation, *, gentle):
        assert operation in self.gentle
        self.gentle[operation] = gentle

    def close(self):
        assert not self.plans, "closed with plans"


class FakePlan:
    def __init__(self, lane, what, blocks):
        (self.op, self.lease, self.keys, self.data), self.lane, self.blocks = what, lane, blocks
        assert len(self.keys) == len(blocks)
        self.layers, self.issued = len(lane.memory), 0
        self.patience = lane.random.randrange(6)
        self.results = [None] * len(blocks)
        self.done = self.committed = False

    def retrieve(self):
        if self.lane.random.random() < self.lane.faults:
            raise StaleError(116, "the lease ends too soon")
        self.issued = self.layers

    def store_layer(self, layer):
        if self.lane.random.random() < self.lane.faults / 4:
            self.issued = -1
            raise AgainError(11, "queue full")
        self.issued += 1

    def _move(self):
        if self.done:
            return
        self.done = True
        broken = None
        if self.op == "load":
            broken, self.lane.break_once = self.lane.break_once, None
        for i, block in enumerate(self.blocks):
            fault = self.lane.random.random() < self.lane.faults or i == broken
            if self.op == "store":
                whole = self.issued == self.layers and not fault
                self.results[i] = b"".join(bytes(m[block]) for m in self.lane.memory) if whole else None
                continue
            size = len(self.lane.memory[0][block])
            for layer, m in enumerate(self.lane.memory):
                # Wrong bytes may be in memory where a block failed.
                m[block][:] = bytes(size) if fault else self.data[i][self.lane.rank][layer * size:(layer + 1) * size]
            self.results[i] = "corrupt" if fault else "good"

    def poll(self):
        self.patience -= 1
        if self.patience <= 0:
            self._move()
        return self.done

    def wait_layer(self, layer, timeout_s=None):
        self._move()
        return "corrupt" not in self.results

    def failed(self):
        bad = "corrupt" if self.op == "load" else None
        return {i: -74 for i, r in enumerate(self.results) if r == bad} if self.done and self.issued > 0 else {}

    def finish(self, timeout_s=None):
        if timeout_s == 0 and not self.committed:
            self.committed = True
            if self.lane.random.random() < 0.5:
                raise DeadlineError(110, "headers are being written")
        self._move()
        self.lane.plans -= 1
        if self.op == "load" and not self.issued:
            self.results = ["cancelled"] * len(self.results)
        return pickle.dumps((self.op, self.lease, self.keys, self.lane.rank, self.results))
