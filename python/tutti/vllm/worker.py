"""The connector's worker side, without an engine: carries out a Step's plans on a lane, and reports.

Order in an engine step: begin (fences, and loads for requests that wait; always before the forward pass), start (loads
that this step computes with; vLLM 0.32 calls it behind a pass that has none), layer by layer wait_layer, then end
(stores; after the forward pass) and poll (what has ended). Nothing here waits for I/O but fences, the layers of a load
that this step computes with, and, while the engine has nothing else to do, a short nap in poll.

A load of this step that fails leaves wrong bytes under everything that the step computes. So none of its stores are
carried out, nor those of any step that the scheduler planned before it knew.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import DeadlineError, TuttiError
from .messages import Done, Load, Report, Save, Step

NAP_S = 0.001
PROBE_S = 0.5


def wall_timer() -> Callable[[], Callable[[], int]]:
    """For compute that is done when it returns; see cuda.timer."""
    began = time.monotonic_ns()

    def end() -> Callable[[], int]:
        took = time.monotonic_ns() - began
        return lambda: took

    return end


@dataclass
class _Going:
    """A plan on its way."""

    plan: Any
    number: int
    blocks: list[int]
    began_ns: int
    request: str = ""
    layers: int = 0  # a store's; 0: a load


class Worker:
    """One rank's. open_lane(digest) -> a tutti.Lane with the engine's memory registered, and a word about its path.

    mark(): what it returns tells whether all compute that the device was given before is done. None: compute is done
    when it returns. stream(): the compute stream, which waits for layers by itself; None: the caller's thread waits.
    timer(): begins to time a forward pass on the device; see cuda.timer.
    stop_s: a plan that is not done after that long has a dead device.
    """

    def __init__(self, open_lane: Callable[[bytes], tuple[Any, str]], rank: int, layers: int, block_bytes: int,
                 stop_s: float = 90.0, mark: Callable[[], Callable[[], bool]] | None = None,
                 probe: Callable[[bytes, bytes, int], tuple[Any, Any]] | None = None,
                 stream: Callable[[], int] | None = None,
                 timer: Callable[[], Callable[[], Callable[[], int]]] = wall_timer) -> None:
        self._open_lane, self._rank, self._layers, self._block_bytes = open_lane, rank, layers, block_bytes
        self._stop_s, self._mark, self._open_probe, self._stream = stop_s, mark, probe, stream
        self._timer = timer
        self._timing: Callable[[], Callable[[], int]] | None = None  # of the pass that runs
        self._timed: tuple[int, Callable[[], int]] | None = None  # tokens of a pass, and its time once it is known
        self._lane: Any = None
        self._digest = b""
        self._report = Report()
        self._told = False  # something is in the report
        self._step: Step | None = None
        self._sync: list[_Going] = []
        self.layered = False  # layers of this step have to be waited for; asked for each layer of every step
        self._loads: list[_Going] = []
        self._saves: list[_Going] = []
        self._waiting: list[tuple[Callable[[], bool], _Going]] = []  # compute may still write their blocks
        self._probe: tuple[Any, _Going] | None = None
        self._received: set[str] = set()
        self._errors: set[int] = set()
        self._failed_step = 0
        self.counts = dict.fromkeys(("loaded_bytes", "load_ns", "stored_bytes", "store_ns", "layer_wait_ns",
                                     "fence_ns"), 0)

    # ---- one step, in order ----

    def begin(self, step: Step) -> None:
        """Before the forward pass."""
        self._step = step
        if step.open is not None and self._lane is None:
            self._open(step.open)
        if step.fences:
            self._fence(set(step.fences))
        if step.loads:  # requests that wait for all of it: beside this pass, not behind it, where start() may come
            self._load_all([load for load in step.loads if not load.sync])
            step.loads = [load for load in step.loads if load.sync]
        # From here: start() comes behind the pass in vLLM 0.32 where nothing is waited for. Not a pass that waits for
        # layers or a probe, which would tell of the disk.
        timed = step.tokens and step.probe is None and not step.loads
        self._timing = self._timer() if timed else None  # a pass before that failed has no end

    def start(self, whole: bool = False) -> None:
        """Issues the loads that this step computes with.

        whole: the pass replays one CUDA graph. Nobody asks for its layers then, so all are waited for here.
        """
        step = self._step
        if step is None:
            return
        if step.loads:
            self._load_all(step.loads)
            step.loads = []
        if whole and self.layered:
            for layer in range(self._layers):
                self.wait_layer(layer)
        if step.probe is not None:
            self._begin_probe(step)

    def wait_layer(self, layer: int) -> None:
        """Until a layer of the loads that this pass computes with is there, checked or known as failed.

        On a GPU it is the compute stream that waits: this returns at once.
        """
        began = time.monotonic_ns()
        stream = self._stream() if self._stream is not None else None
        for going in self._sync:
            if stream is None:
                going.plan.wait_layer(layer, self._stop_s)
            else:
                going.plan.wait_layer_stream(layer, stream)
        self.counts["layer_wait_ns"] += time.monotonic_ns() - began

    def end(self) -> None:
        """After the forward pass."""
        step = self._step
        if step is None:
            return
        if self._timing is not None:
            self._timed, self._timing = (step.tokens, self._timing()), None
        if self._sync:
            self._end_sync(step)
        if step.saves:
            saves, step.saves = step.saves, []
            if self._failed_step > step.acked:
                for save in saves:
                    self._tell(Done(save.plan, None))
            else:
                for save in saves:
                    self._save(save)

    def poll(self) -> set[str]:
        """Requests whose loads have ended, each once. May come before end(): a draft model still computes then."""
        if self._step is not None:
            if self._sync:
                self._end_sync(self._step)
            if self._step.idle:
                self.end()  # some versions leave it out where nothing is computed
        if self._timed is not None:
            self._tell_time()
        if self._waiting:
            self._issue_waiting()
        if self._loads or self._saves or self._probe or self._waiting:
            if self._step is not None and self._step.idle and not self._received:
                time.sleep(NAP_S)  # the engine has nothing else to do
            for going in self._ended(self._loads):
                self._loads.remove(going)
                self._finish(going, self._stop_s)
                self._received.add(going.request)
            for going in self._ended(self._saves):
                if self._try_finish(going):
                    self._saves.remove(going)
            self._poll_probe()
        if not self._received:
            return self._received
        received, self._received = self._received, set()
        return received

    def errors(self) -> set[int]:
        """Blocks of the engine that failed to load, each once."""
        if not self._errors:
            return self._errors
        errors, self._errors = self._errors, set()
        return errors

    def report(self) -> Report | None:
        """What the scheduler has not been told yet."""
        if not self._told:
            return None
        report, self._report, self._told = self._report, Report(), False
        return report

    @property
    def idle(self) -> bool:
        return not (self._loads or self._saves or self._sync or self._waiting or self._probe)

    def close(self) -> None:
        """Ends what is in flight and closes the lane."""
        for going in self._sync + self._loads + self._saves + [g for _, g in self._waiting]:
            going.plan.finish(self._stop_s)
        self._sync, self._loads, self._saves, self._waiting, self.layered = [], [], [], [], False
        self._end_probe()
        if self._lane is not None:
            self._lane.close()
            self._lane = None

    # ---- loads ----

    def _open(self, digest: bytes) -> None:
        self._lane, path = self._open_lane(digest)
        self._lane.pace("store", gentle=True)  # nobody waits for one
        self._digest = digest
        self._report.opened[self._rank] = path
        self._told = True

    def _load_all(self, loads: list[Load]) -> None:
        for load in loads:
            self._load(load)

    def _load(self, load: Load) -> None:
        self._errors |= set(load.missing)
        plan, clear = None, None
        if load.blob is not None:
            try:
                plan = self._lane.plan(load.blob, load.blocks)
                clear = self._mark() if self._mark is not None else None
                if load.sync and clear is not None:
                    self._until(clear)
                if load.sync or clear is None:
                    self._retrieve(plan, gentle=False)
            except TuttiError:
                if plan is not None:
                    plan.finish(self._stop_s)
                plan = None
        if plan is None:
            self._errors |= set(load.blocks)
            self._tell(Done(load.plan, None))
        if load.sync and (plan is None or load.missing):
            assert self._step is not None
            self._failed_step = self._report.failed_step = self._step.number
        going = _Going(plan, load.plan, load.blocks, time.monotonic_ns(), load.request)
        if plan is None:
            if not load.sync:
                self._received.add(load.request)
        elif load.sync:
            self._sync.append(going)
            self.layered = True
        elif clear is not None:
            self._waiting.append((clear, going))
        else:
            self._loads.append(going)

    def _retrieve(self, plan: Any, gentle: bool) -> None:
        """gentle: one request waits for it, and all others that compute meanwhile would lose more than it wins."""
        self._lane.pace("retrieve", gentle=gentle)
        plan.retrieve()

    def _until(self, done: Callable[[], bool]) -> None:
        """Waits until the device's earlier passes have ended: they may still write into blocks that were freed."""
        deadline = time.monotonic() + self._stop_s
        while not done():
            if time.monotonic() > deadline:
                raise DeadlineError(110, "tutti: the device does not end its forward pass")
            time.sleep(0.00005)

    def _issue_load(self, going: _Going) -> None:
        going.began_ns = time.monotonic_ns()
        try:
            self._retrieve(going.plan, gentle=self._step is not None and not self._step.idle)
            self._loads.append(going)
        except TuttiError:
            going.plan.finish(self._stop_s)
            self._errors |= set(going.blocks)
            self._tell(Done(going.number, None))
            self._received.add(going.request)

    def _end_sync(self, step: Step) -> None:
        sync, self._sync, self.layered = self._sync, [], False
        for going in sync:
            if self._finish(going, self._stop_s):
                self._failed_step = self._report.failed_step = step.number

    def _finish(self, going: _Going, timeout_s: float) -> int:
        """Ends a load; returns how many of its blocks failed."""
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        while not going.plan.poll():
            if time.monotonic_ns() > deadline:
                raise DeadlineError(110, "tutti: a retrieve does not end; its blocks can't be given back to the engine")
            going.plan.wait_layer(self._layers - 1, timeout_s)
        took = time.monotonic_ns() - going.began_ns
        failed = sorted(going.plan.failed())
        blob = going.plan.finish(timeout_s)
        good = len(going.blocks) - len(failed)
        self._errors |= {going.blocks[i] for i in failed}
        self.counts["loaded_bytes"] += good * self._block_bytes
        self.counts["load_ns"] += took
        self._tell(Done(going.number, blob, failed, took, len(going.blocks) * self._block_bytes))
        return len(failed)

    # ---- stores ----

    def _save(self, save: Save) -> None:
        try:
            plan = self._lane.plan(save.blob, save.blocks)
        except TuttiError:
            self._tell(Done(save.plan, None))
            return
        going = _Going(plan, save.plan, save.blocks, time.monotonic_ns(), layers=self._layers)
        if self._mark is None:
            self._issue(going)
        else:
            self._waiting.append((self._mark(), going))

    def _issue(self, going: _Going) -> None:
        try:
            for layer in range(going.layers):
                going.plan.store_layer(layer)
        except TuttiError:
            pass  # the plan was dropped as a whole, and ends as such
        self._saves.append(going)

    def _issue_waiting(self) -> None:
        still = []
        for done, going in self._waiting:
            if not done():
                still.append((done, going))
            elif going.layers:
                self._issue(going)
            else:
                self._issue_load(going)
        self._waiting = still

    def _try_finish(self, going: _Going) -> bool:
        """Headers are written by the first try, and found written by a later one."""
        failed = sorted(going.plan.failed())
        try:
            blob = going.plan.finish(0)
        except DeadlineError:
            return False
        took = time.monotonic_ns() - going.began_ns
        self.counts["stored_bytes"] += (len(going.blocks) - len(failed)) * self._block_bytes
        self.counts["store_ns"] += took
        self._tell(Done(going.number, blob, failed, took))
        return True

    def _fence(self, numbers: set[int]) -> None:
        began = time.monotonic()
        while True:
            mine = [g for g in self._saves if g.number in numbers]
            if not mine and not any(g.number in numbers for _, g in self._waiting):
                break
            if time.monotonic() - began > self._stop_s:
                raise DeadlineError(110, "tutti: a store does not end; the engine would overwrite what it reads")
            self._issue_waiting()
            for going in mine:
                if going.plan.poll() and self._try_finish(going):
                    self._saves.remove(going)
            time.sleep(0.0001)
        self.counts["fence_ns"] += int((time.monotonic() - began) * 1e9)

    # ---- the rest ----

    @staticmethod
    def _ended(going: list[_Going]) -> list[_Going]:
        return [g for g in going if g.plan.poll()]

    def _tell(self, done: Done) -> None:
        self._report.done.append(done)
        self._told = True

    def _tell_time(self) -> None:
        assert self._timed is not None
        tokens, ns = self._timed[0], self._timed[1]()
        if ns:
            self._report.tokens, self._report.ns, self._timed, self._told = tokens, ns, None, True

    def _begin_probe(self, step: Step) -> None:
        probe, step.probe = step.probe, None
        assert probe is not None
        if self._open_probe is None or self._probe is not None:
            self._tell(Done(probe.plan, None))
            return
        lane = None
        try:
            lane, plan = self._open_probe(self._digest, probe.blob, probe.n_blocks)
            going = _Going(plan, probe.plan, list(range(probe.n_blocks)), time.monotonic_ns())
            plan.retrieve()
            try:  # here and now: an engine step later its time would be the step's
                plan.wait_layer(self._layers - 1, PROBE_S)
            except DeadlineError:
                pass
            self._probe = lane, going
            self._poll_probe()
        except TuttiError:
            if lane is not None:
                plan.finish(self._stop_s)
                lane.close()
            self._tell(Done(probe.plan, None))

    def _poll_probe(self) -> None:
        if self._probe is not None and self._probe[1].plan.poll():
            self._end_probe()

    def _end_probe(self) -> None:
        if self._probe is None:
            return
        lane, going = self._probe
        self._probe = None
        blob = going.plan.finish(self._stop_s)
        took = time.monotonic_ns() - going.began_ns
        lane.close()
        self._tell(Done(going.number, blob, [], took, len(going.blocks) * self._block_bytes))
