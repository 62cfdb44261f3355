"""What the two sides say to each other, inside of the engine's own messages. Plain data; pickled where they travel."""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Load:
    """One request's blocks to fetch. blob None, or missing: those could not be planned and count as failed."""

    plan: int
    request: str
    blob: bytes | None
    blocks: list[int]  # the engine's, one a block of the plan
    missing: list[int] = field(default_factory=list)
    sync: bool = False  # this step's forward pass needs them


@dataclass
class Save:
    """One request's blocks to store once this step's forward pass has computed them."""

    plan: int
    blob: bytes
    blocks: list[int]


@dataclass
class Probe:
    """Blocks to fetch into scratch memory, only to learn how fast that is."""

    plan: int
    blob: bytes
    n_blocks: int


@dataclass
class Step:
    """Scheduler to worker, one an engine step."""

    number: int = 0
    acked: int = 0  # all failures of steps up to this one are known to the scheduler
    idle: bool = False  # nothing is computed
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)  # stores that must end before this step's forward pass
    open: bytes | None = None  # digest of the namespace to open, until a worker says that it did
    probe: Probe | None = None
    tokens: int = 0  # that this step computes, if it is to be timed


@dataclass
class Done:
    """What became of a plan on one rank. blob None: it never reached the lane."""

    plan: int
    blob: bytes | None
    failed: list[int] = field(default_factory=list)  # indices of blocks
    ns: int = 0  # from issue to the last byte
    bytes: int = 0


@dataclass
class Report:
    """Worker to scheduler, one an engine step that has something to tell."""

    done: list[Done] = field(default_factory=list)
    opened: dict[int, str] = field(default_factory=dict)  # rank -> what its path is
    failed_step: int = 0  # the last step whose own loads failed
    tokens: int = 0  # of a forward pass that was timed
    ns: int = 0

    def add(self, other: Report) -> Report:
        """Of two ranks."""
        ns, tokens = max((self.ns, self.tokens), (other.ns, other.tokens))
        return Report(self.done + other.done, self.opened | other.opened, max(self.failed_step, other.failed_step),
                      tokens, ns)


@dataclass
class Facts:
    """Worker to scheduler at start: what only the owner of the KV memory knows."""

    layers: int
    objects_per_layer: int
    object_bytes: int
    layout: bytes
    kv_dtype: str
    backend: str
