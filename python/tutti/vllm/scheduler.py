"""The connector's scheduler side, without an engine: which blocks to fetch, which to store, and what became of them.

A request is tracked from its first lookup to its end. The engine says once a step what it schedules (build); the
answer is a Step with plans for the workers. Their reports come back through update().

Blocks are stored from the step on whose forward pass completes them, once their tokens are known (with asynchronous
scheduling the last ones are known a step or two late: then the store lags). A store in flight does not hold blocks in
the engine. Instead, each block that a step may write is looked up among the stores in flight, and that step then
begins with a fence: the worker waits for the store. So an engine that frees, preempts or resets blocks can't overwrite
what is being read, and no free is ever delayed. Blocks of a finished request that were not stored yet are stored in
the next step, unless that very step gives them to someone else.

A step in which nothing is due costs a look into one dict: a decoding request is looked at again when its next block
can be full.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import NotFoundError, TuttiError
from .breakeven import Rates
from .keys import KEY_BYTES, Chain, cacheable
from .messages import Done, Load, Probe, Report, Save, Step
from .options import Options

LOADS_MAX = 512  # in flight; the library has room for 4096 leases and reservations
SAVES_MAX = 2048
PROBE_BLOCKS = 4
_ENDED_WELL = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


@dataclass
class Track:
    """A request as we know it."""

    request: Any
    chain: Chain
    blocks: list[int] = field(default_factory=list)  # the engine's, as of the last step that scheduled it
    stored: int = 0  # leading blocks that are in the pool or on their way there
    tried: int = 0  # leading blocks that a reservation was asked for
    offer: int = 0  # first block of the last answer to the engine
    loading: int = 0  # plan in flight; 0: none
    bad: bool = False  # a load failed and the engine has not come back to it
    flying: int = 0  # stores in flight
    told: int = 0  # leading blocks that on_published was told of


@dataclass
class Flight:
    """A plan that workers have."""

    lease: Any
    track: Track | None
    first: int  # its first block, of the request's
    blocks: list[int]
    load: bool
    probe: bool = False
    reports: int = 0
    reached: int = 0  # lanes
    failed: int = 0
    ns: int = 0
    bytes: int = 0


def some_chain(namespace: Any, n_max: int) -> bytes:
    """Keys of up to n_max blocks from a chain's start, of a pool that is warm; b"" if it is not."""
    child: dict[bytes, bytes] = {}
    for block in itertools.islice(namespace.each(), 65536):
        child.setdefault(block.parent, block.key)
    keys: list[bytes] = []
    at = child.get(bytes(KEY_BYTES))
    while at is not None and len(keys) < n_max:
        keys.append(at)
        at = child.get(at)
    return b"".join(keys)


class Scheduler:
    """One engine's. namespace: tutti.Namespace (or what plays it); lora_digest: of a LoRA request, None without one."""

    def __init__(self, namespace: Any, options: Options, ranks: int, rates: Rates,
                 lora_digest: Callable[[Any], bytes | None] = lambda lora: None, tokens_per_step: int = 1,
                 on_published: Callable[[Track, int, int], None] | None = None,
                 layerwise: bool = False, held_max: int = 1 << 32,
                 log: Callable[[str], None] | None = None) -> None:
        self._ns, self._options, self._ranks, self._rates = namespace, options, ranks, rates
        self._lora_digest, self._tokens_per_step, self._on_published = lora_digest, tokens_per_step, on_published
        self._layerwise, self._size = layerwise, namespace.block_tokens
        self._tracks: dict[str, Track] = {}
        self._due: dict[int, set[str]] = {}  # step number -> requests to look at
        self._tails: list[Track] = []
        # Blocks of requests that wait for a load, or that have it and wait to be scheduled. The engine can't take them
        # back; should all its blocks be held like this, nothing could go on.
        self._held: dict[str, int] = {}
        self._held_max, self._log = held_max, log
        self._loads: list[Load] = []
        self._bad_blocks: list[int] = []
        self._flights: dict[int, Flight] = {}
        self._storing: dict[int, int] = {}  # engine block -> plan
        self._n_loads = self._n_saves = self._number = self._plan = self._acked = 0
        self._opened: set[int] = set()
        self._probing, self._probes = False, True  # _probes: workers have scratch memory for it
        self._probe_keys = some_chain(namespace, PROBE_BLOCKS) if rates.wants_probe else b""
        self.paths: dict[int, str] = {}  # rank -> how its lane works, once it is open
        self.counts = dict.fromkeys(("lookups", "hit_blocks", "loads", "loaded_blocks", "failed_blocks", "saves",
                                     "stored_blocks", "dropped_blocks", "break_even", "fences"), 0)

    # ---- questions of the engine ----

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """(tokens beyond `computed` that are in the pool and worth loading, whether they load between steps).

        Holds nothing; may be asked again and again. None: ask later, too many blocks wait for loads.
        """
        if getattr(request, "skip_reading_prefix_cache", False) or not cacheable(request):
            return 0, False
        track = self._track(request)
        usable = (request.num_tokens - 1) // self._size  # one token must be left to compute
        here = computed // self._size
        if usable <= here or self._n_loads + len(self._loads) >= LOADS_MAX:
            return 0, False
        self.counts["lookups"] += 1
        n = self._ns.lookup(track.chain.upto(usable)).blocks - here
        if n <= 0 or n * self._size < self._options.min_prefix_tokens:
            return 0, False
        if not self._rates.worth(n):
            self.counts["break_even"] += 1
            if self.counts["break_even"] == 1 and self._log:
                self._log(f"tutti: a hit is not loaded, because recomputing is faster here: {self._rates}")
            n = 0 if self._probes else self._rates.trial(n)
            if not n:
                return 0, False
        self._held.pop(request.request_id, None)  # who is asked for anew holds nothing
        if self._held and sum(self._held.values()) + here + n > self._held_max:
            return None, False
        track.offer = here
        return n * self._size, not self._layerwise

    def allocated(self, request: Any, blocks: list[int], external: int) -> None:
        """The engine gave the request these blocks; `external` tokens of them are for us to fill."""
        if not cacheable(request):
            return
        track = self._track(request)
        if external <= 0:
            return
        here, n = track.offer, external // self._size
        mine = blocks[here : here + n]
        lease, got = None, 0
        try:
            got, lease = self._ns.lookup(track.chain.upto(here + n), self._lease_s())
            got = n if got >= here + n else 0  # what was promised, or nothing of it
            blob = self._ns.plan_blob(lease, here, n) if got else None
        except TuttiError:
            got, blob = 0, None
        plan = self._take_flight(Flight(lease, track, here, mine, True))
        self._loads.append(Load(plan, request.request_id, blob, mine[:got], mine[got:], self._layerwise))
        self.counts["hit_blocks"] += n
        track.loading, track.bad = plan, False
        if not self._layerwise:
            self._held[request.request_id] = here + n
        track.stored = track.tried = track.told = here + got
        track.blocks = list(blocks)

    def finished(self, request: Any, blocks: list[int], status: str) -> None:
        """The request has ended and its blocks are free after this call."""
        track = self._tracks.pop(request.request_id, None)
        self._held.pop(request.request_id, None)
        if track is None or status not in _ENDED_WELL:
            return
        # The last token of an answer was never computed.
        full = self._storable(track, min(request.num_computed_tokens, request.num_tokens - 1))
        track.blocks = list(blocks[:full])
        if len(track.blocks) > track.stored:
            self._tails.append(track)

    # ---- one step ----

    def build(self, out: Any) -> Step:
        """The plans of a step that the engine schedules as `out` says (a SchedulerOutput)."""
        self._number += 1
        step = Step(self._number, self._acked, not out.total_num_scheduled_tokens)
        scheduled = out.num_scheduled_tokens
        if self._rates.wants_time(out.total_num_scheduled_tokens):
            step.tokens = out.total_num_scheduled_tokens
        written = self._follow(out)
        if len(self._opened) < self._ranks:
            step.open = self._ns.digest
        if self._loads:
            for load in self._loads:
                written += load.blocks + load.missing
            step.loads, self._loads = self._loads, []
        if self._storing and written:
            step.fences = sorted({self._storing[b] for b in written if b in self._storing})
            self.counts["fences"] += len(step.fences)
        due = self._due.pop(self._number, None)
        if due:
            self._store_due(step, due, scheduled)
        if self._tails:
            self._store_tails(step, written)
        if self._probe_keys:
            self._probe(step)
        return step

    def _follow(self, out: Any) -> list[int]:
        """Takes over what the engine says about requests; returns the blocks that it may write from this step on."""
        written: list[int] = []
        for new in out.scheduled_new_reqs:
            written += self._replace(new.req_id, new.block_ids[0], new.num_computed_tokens)
        cached = out.scheduled_cached_reqs
        if cached.new_block_ids.count(None) == len(cached.new_block_ids):
            return written  # of hundreds that decode, most get no block in most steps
        for i, ids in enumerate(cached.new_block_ids):
            if ids is None:
                continue
            if cached.req_ids[i] in cached.resumed_req_ids:
                written += self._replace(cached.req_ids[i], ids[0], cached.num_computed_tokens[i])
                continue
            written += ids[0]
            track = self._tracks.get(cached.req_ids[i])
            if track is not None:
                track.blocks += ids[0]
        return written

    def _replace(self, request_id: str, blocks: list[int], computed: int) -> list[int]:
        track = self._tracks.get(request_id)
        self._held.pop(request_id, None)
        if track is not None:
            track.blocks = list(blocks)
            self._due.setdefault(self._number, set()).add(request_id)
        return blocks[computed // self._size :]

    def _store_due(self, step: Step, due: set[str], scheduled: dict[str, int]) -> None:
        for request_id in sorted(due):
            track = self._tracks.get(request_id)
            if track is None:
                continue
            count = scheduled.get(request_id)
            if count is None:  # preempted or waiting: its blocks are not its own; whoever resumes it says so
                self._look_again(request_id, 1)
                continue
            end = track.request.num_computed_tokens + count
            full = self._storable(track, end)
            if not track.bad:
                self._save(step, track, full)
            elif track.request.num_computed_tokens <= track.stored * self._size:
                track.bad = False  # the engine went back to what failed and computes it in this step
                self._save(step, track, full)
            known = track.request.num_tokens
            if self._options.store == "prompts" and min(end, known) >= track.request.num_prompt_tokens:
                continue
            left = (end // self._size + 1) * self._size - end
            soon = end < known or known // self._size < end // self._size
            self._look_again(request_id, 1 if soon else max(1, left // self._tokens_per_step))

    def _look_again(self, request_id: str, steps: int) -> None:
        if self._options.store != "none":
            self._due.setdefault(self._number + steps, set()).add(request_id)

    def _storable(self, track: Track, end: int) -> int:
        """Whole blocks of known tokens before position `end` that the user wants stored."""
        end = min(end, track.request.num_tokens)
        if self._options.store == "prompts":
            end = min(end, track.request.num_prompt_tokens)
        return 0 if self._options.store == "none" else end // self._size

    def _store_tails(self, step: Step, written: list[int]) -> None:
        taken = set(written)
        for track in self._tails:
            whole = next((i for i, b in enumerate(track.blocks) if i >= track.stored and b in taken), len(track.blocks))
            if not track.bad and not track.loading:
                track.tried = min(track.tried, whole - 1)  # a last try
                self._save(step, track, whole)
        self._tails = []

    def _save(self, step: Step, track: Track, full: int) -> None:
        """Plans to store blocks [stored, full) of a request, as far as the pool has room for them."""
        full = min(full, len(track.blocks))
        if full <= max(track.stored, track.tried) or self._n_saves >= SAVES_MAX:
            return
        track.tried = full
        at, again = track.stored, False
        while at < full and self._n_saves < SAVES_MAX:
            try:
                got = self._reserve(track, at, full)
                if got is None:
                    if not at or again:
                        return
                    at, again = 0, True  # a block before them is gone again: begin at the chain's start
                    continue
                at += got.first
                if got.blocks:
                    self._begin_save(step, track, at, got)
            except TuttiError:
                self.counts["dropped_blocks"] += full - at
                return
            # Where a reservation ends early, someone else stores the next block: what is ours goes on behind it.
            at = track.stored = min(full, at + max(1, got.blocks))

    def _begin_save(self, step: Step, track: Track, at: int, got: Any) -> None:
        try:
            blob = self._ns.plan_blob(got.lease, 0, got.blocks)
        except BaseException:
            self._ns.cancel(got.lease)
            raise
        mine = track.blocks[at : at + got.blocks]
        plan = self._take_flight(Flight(got.lease, track, at, mine, False))
        step.saves.append(Save(plan, blob, mine))
        track.flying += 1
        for block in mine:
            self._storing[block] = plan
        self.counts["saves"] += 1

    def _reserve(self, track: Track, at: int, full: int) -> Any:
        """Of blocks [at, full); None: the one before them is not there."""
        keys, parent = track.chain.upto(full)[at * KEY_BYTES :], track.chain.key(at - 1) if at else None
        try:
            return self._ns.reserve(keys, parent, self._lease_s())
        except NotFoundError:
            return None

    def _probe(self, step: Step) -> None:
        """Has a worker read a few blocks into scratch memory, while it is not known how fast that is."""
        if not self._probe_keys or self._probing or not self._probes or not self._rates.wants_probe:
            return
        keys, self._probe_keys = self._probe_keys, b""
        got, lease = self._ns.lookup(keys, self._lease_s())
        if not got:
            return
        self._probing = True
        plan = self._take_flight(Flight(lease, None, 0, [], True, probe=True))
        step.probe = Probe(plan, self._ns.plan_blob(lease, 0, got), got)

    # ---- what became of it ----

    def update(self, report: Report) -> None:
        """Takes the workers' reports of a step."""
        if report.opened:
            self._opened |= set(report.opened)
            self.paths |= report.opened
        self._acked = max(self._acked, report.failed_step)
        if report.ns:
            self._rates.computed(report.tokens, report.ns)
        for done in report.done:
            flight = self._flights.get(done.plan)
            if flight is not None:
                self._done(done, flight)

    def _done(self, done: Done, flight: Flight) -> None:
        flight.reports += 1
        flight.failed = max(flight.failed, len(done.failed) if done.blob is not None else max(1, len(flight.blocks)))
        flight.ns, flight.bytes = max(flight.ns, done.ns), flight.bytes + done.bytes
        if done.blob is not None:
            flight.reached += 1
            try:
                self._ns.complete(done.blob)
            except TuttiError:  # its lease has expired, or a clear came between: nothing is published
                flight.failed = max(flight.failed, 1)
        if flight.load and self._layerwise and flight.track is not None and flight.failed:
            told = done.blob is not None and done.failed
            self._spread({flight.blocks[i] for i in done.failed} if told else set(flight.blocks))
        if flight.track is not None and flight.failed and (flight.load or done.failed or done.blob is None):
            bad = flight.first + (min(done.failed) if done.failed else 0)
            flight.track.stored = min(flight.track.stored, bad)
            flight.track.tried = min(flight.track.tried, bad)
        if flight.reports >= self._ranks:
            self._end(done.plan, flight)

    def _end(self, plan: int, flight: Flight) -> None:
        del self._flights[plan]
        n = len(flight.blocks)
        if flight.lease is not None and flight.lease.id:
            if flight.load:
                self._ns.release(flight.lease)
            elif not flight.reached:
                self._ns.cancel(flight.lease)
            elif flight.reached < self._ranks:
                self._ns.release(flight.lease)  # with all ranks' word it ends by itself, once its parent is published
        if flight.load:
            self._n_loads -= 1
            self._rates.loaded(flight.bytes // self._ranks, flight.ns)
            if flight.probe:
                self._probing, self._probes = False, flight.reached > 0
                return
            assert flight.track is not None
            if flight.track.loading == plan:
                flight.track.loading, flight.track.bad = 0, flight.failed > 0
            self.counts["loads"] += 1
            self.counts["loaded_blocks"] += n - min(n, flight.failed)
            self.counts["failed_blocks"] += min(n, flight.failed)
            return
        self._n_saves -= 1
        for block in flight.blocks:
            if self._storing.get(block) == plan:
                del self._storing[block]
        track = flight.track
        assert track is not None
        track.flying -= 1
        self.counts["stored_blocks"] += n - min(n, flight.failed)
        self.counts["dropped_blocks"] += min(n, flight.failed)
        if not track.flying:
            self._settle(track)

    def _settle(self, track: Track) -> None:
        """All stores of a request have ended: what of its prefix is in the pool?"""
        there = self._ns.lookup(track.chain.upto(track.stored)).blocks
        if there < track.stored:
            track.stored = track.tried = there
        if there and self._probes and self._rates.wants_probe and not self._probing:
            self._probe_keys = bytes(track.chain.upto(min(PROBE_BLOCKS, there)))
        if self._on_published and there > track.told:
            self._on_published(track, track.told, there - track.told)
            track.told = there

    def _spread(self, failed: set[int]) -> None:
        """A load of these blocks failed under a forward pass: whoever has one of them has computed garbage behind it."""
        for track in self._tracks.values():
            bad = next((i for i, block in enumerate(track.blocks) if block in failed), None)
            if bad is not None:
                self._bad_blocks += track.blocks[bad:]
                track.stored, track.tried = min(track.stored, bad), min(track.tried, bad)
                self._look_again(track.request.request_id, 1)  # the engine goes back in its next step

    def take_bad_blocks(self) -> list[int]:
        """Blocks of the engine with wrong bytes, which its own prefix cache must forget. Each once."""
        if not self._bad_blocks:
            return self._bad_blocks
        bad, self._bad_blocks = self._bad_blocks, []
        return bad

    # ---- the rest ----

    @property
    def busy(self) -> bool:
        """Whether plans are with the workers, or blocks of finished requests wait to be stored."""
        return bool(self._flights or self._tails)

    def clear(self) -> bool:
        """Empties the namespace; False: plans are in flight."""
        if self._flights:
            return False
        try:
            self._ns.clear()
        except TuttiError:
            return False
        for track in self._tracks.values():
            track.stored = track.tried = 0
        return True

    def _track(self, request: Any) -> Track:
        track = self._tracks.get(request.request_id)
        if track is None or track.request is not request:
            lora = self._lora_digest(getattr(request, "lora_request", None))
            track = Track(request, Chain(request, self._size, self._make_keys, lora))
            self._tracks[request.request_id] = track
        return track

    def _make_keys(self, parent: Any, tokens: Any, extras: Any) -> bytes:
        return cast(bytes, self._ns.keys(tokens, parent, extras))

    def _take_flight(self, flight: Flight) -> int:
        self._plan += 1
        self._flights[self._plan] = flight
        if flight.load:
            self._n_loads += 1
        else:
            self._n_saves += 1
        return self._plan

    def _lease_s(self) -> float:
        # A lane starts no I/O later than its deadline before the lease's end.
        return 4 * self._options.deadline_s
