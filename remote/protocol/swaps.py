"""Epochs of the fleet, and the swap from one to another."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from remote.protocol.target import Flags


class Epoch(Struct, frozen=True):
    """One set of flags the fleet ran with, and what it gave."""

    id: int
    since: float
    flags: Flags
    who: str = ""
    why: str = ""
    tok_s_per_gpu: float | None = None
    """Mean decode throughput of a busy, ready server of this epoch."""
    max_running: int | None = None
    mamba_usage: float | None = None
    kv_usage: float | None = None
    seconds: float = 0.0
    """Busy server-seconds behind ``tok_s_per_gpu``."""
    cost: str = ""
    """What the swap to it has cost, as measured: one line."""


StepName: TypeAlias = Literal[
    "pause",
    "drain",
    "abort",
    "stop",
    "start",
    "ready",
    "compare",
    "resume",
    "judge",
    "confirm",
    "put back",
]
StepState: TypeAlias = Literal["waiting", "doing", "done", "failed", "skipped"]

Strategy: TypeAlias = Literal["rolling", "canary", "all"]
"""``rolling``: so many servers at a time, the others go on. ``canary``: one first, which is judged.
``all``: every one at once."""

InFlight: TypeAlias = Literal["continue", "drain", "redo"]
"""What a swap does with answers that are under way. ``continue``: broken off, kept, and gone on
with on another server or after the restart; where the engine can't, as ``drain``. ``drain``: they
may end within the drain's bound, and what is left then is continued. ``redo``: broken off and
generated again from nothing."""


class SwapStep(Struct, frozen=True):
    """One step on one server."""

    gpu: int
    name: StepName
    state: StepState = "waiting"
    began: float | None = None
    ended: float | None = None
    text: str = ""


class Swap(Struct, frozen=True):
    """A plan to bring servers to other flags, and how far it is."""

    id: int
    strategy: Strategy
    gpus: list[int]
    from_epoch: int | None
    to_epoch: int
    who: str
    began: float
    state: Literal["doing", "done", "failed", "rolled back"] = "doing"
    ended: float | None = None
    steps: list[SwapStep] = []
    set_flags: Flags = {}
    unset_flags: list[str] = []
    in_flight: InFlight = "drain"
    at_once: int = 1
    tokens_kept: int = 0
    """Output tokens of interrupted answers that the run has kept meanwhile."""
    tokens_lost: int = 0
    """Those that it had to throw away, as far as the servers told them."""
    text: str = ""
    """One line on how it ended, or on what holds it up."""
    confirm_s: float | None = None
    """Once all servers have the new flags, the old ones come back after so many seconds unless a
    :class:`Decide` has kept the new ones and they do no worse."""
    take_over: list[int] = []
    """Processes (pids) of servers not started by Stoker that may be ended."""
    decision: Literal["", "keep", "take back"] = ""
    """What a :class:`Decide` has said and what is not carried out yet."""
    decided_by: str = ""
