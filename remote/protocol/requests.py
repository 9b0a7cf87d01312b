"""Console → agent: requests, each answered by one result or one failure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from remote.protocol.swaps import InFlight, Strategy
from remote.protocol.target import Flags, TargetSpec


class Get(Struct, tag="get", frozen=True):
    """A full snapshot, once. → :class:`Snapshot`"""


class Up(Struct, tag="up", frozen=True):
    """Start servers (all, or some GPUs) with the spec's flags. → :class:`Done`"""

    spec: TargetSpec
    gpus: list[int] | None = None


class Down(Struct, tag="down", frozen=True):
    """Drain and stop servers. → :class:`Done`"""

    gpus: list[int] | None = None


class Restart(Struct, tag="restart", frozen=True):
    """Hot swap to changed flags; with no change, a plain restart. → :class:`Plan`

    Where ``gpus`` names none, servers that are well and run the flags wanted already are left
    alone, unless that is every one of them; those that it names restart in any case. With
    ``dry_run`` nothing is done: the plan and the difference come back.
    """

    spec: TargetSpec
    set_flags: Flags = {}
    unset_flags: list[str] = []
    strategy: Strategy = "rolling"
    gpus: list[int] | None = None
    in_flight: InFlight = "continue"
    at_once: int = 1
    """How many servers a rolling swap (and a canary's rest) takes out of service together."""
    confirm_within_min: float | None = None
    take_over: list[int] = []
    """Processes (pids) of servers not started by Stoker that may be ended, as the plan named
    them; without their being named here the restart is refused."""
    dry_run: bool = False
    why: str = ""


class Rollback(Struct, tag="rollback", frozen=True):
    """Swap back to an earlier epoch (the previous one by default). → :class:`Plan`

    With ``dry_run`` nothing is done: the plan and the difference come back.
    """

    spec: TargetSpec
    epoch: int | None = None
    strategy: Literal["rolling", "all"] = "rolling"
    in_flight: InFlight = "continue"
    at_once: int = 1
    take_over: list[int] = []
    """As that of :class:`Restart`."""
    dry_run: bool = False


class Decide(Struct, tag="swap.decide", frozen=True):
    """Keep the new flags of the swap under way (promote its canary, or confirm it), or take them
    back on every server that has them. → :class:`Done`"""

    keep: bool


class RunStart(Struct, tag="run.start", frozen=True):
    """Start the generation, or resume it where it stopped. → :class:`Done`"""

    spec: TargetSpec
    extend: bool = False
    accept_params: bool = False


class RunControl(Struct, tag="run.control", frozen=True):
    """Change a running generation. → :class:`Done`"""

    do: Literal["pause", "resume", "drain", "stop"]
    seal: bool = False
    concurrency: int | Literal["auto"] | None = None


class RetryFailed(Struct, tag="run.retry", frozen=True):
    """Give the given-up (and, by option, set-aside) prompts another life. → :class:`Done`"""

    set_aside: bool = False


class TakeSettings(Struct, tag="settings", frozen=True):
    """Take over what may change at any time: alerts, files with secrets, bounds of time.
    → :class:`Done`

    Its text names what was taken, and what else differs with the verb that applies it.
    """

    spec: TargetSpec


class ReadLog(Struct, tag="log.read", frozen=True):
    """Lines of one log. → :class:`LogPart`

    ``source`` is ``gpu0`` …, ``run`` or ``agent``. With ``offset`` None the last ``lines``
    lines; else lines from that byte offset on, or with a negative number of lines those before
    it. A search looks through 64 MiB at most: where it found nothing, ``offset`` of the part
    (backwards) or ``next`` (forwards) is where to go on looking.
    """

    source: str
    offset: int | None = None
    lines: int = 200
    grep: str = ""


class ReadMerged(Struct, tag="log.merge", frozen=True):
    """Lines of several logs as one, in the order of their times. → :class:`MergedPart`

    The place is an offset in each log (``at``; one that is not named: its end), or, where ``when``
    is a stamp of the clock of the logs (``2026-11-29 17:05:30``), the first lines at or after it.
    ``lines`` from there on, or with a negative number those before it. A search looks through 64
    MiB in all: where it found less, ``begin`` (backwards) or ``next`` is where to go on looking.
    """

    sources: list[str]
    at: dict[str, int] | None = None
    when: str = ""
    lines: int = 200
    grep: str = ""


class ReadHistory(Struct, tag="history", frozen=True):
    """Samples of the past. → :class:`History`"""

    since: float
    until: float | None = None
    points: int = 300


class ReadEvents(Struct, tag="events", frozen=True):
    """Events with an id above ``after`` and below ``before`` (None: up to the newest), newest
    ``limit`` of them. → :class:`Events`"""

    after: int = 0
    limit: int = 500
    before: int | None = None


class ReadMarks(Struct, tag="marks", frozen=True):
    """What is worth a mark on the axis of a chart of that time, the gravest where several fall into
    one of ``points`` equal parts of it; see :mod:`remote.marks`. → :class:`Marks`"""

    since: float
    until: float | None = None
    points: int = 300


class ReadBatches(Struct, tag="batches", frozen=True):
    """What the batch files of the run's directory themselves say. → :class:`Batches`"""


class ReadMix(Struct, tag="mix", frozen=True):
    """The run by source: what was planned, what has come of it. → :class:`Mix`"""


class ReadAnswers(Struct, tag="answers", frozen=True):
    """Newest records of the run's directory, those whose line matches, or with ``index`` all
    that there is of one prompt. → :class:`Answers`"""

    kind: Literal["done", "failed", "set_aside"] = "done"
    limit: int = 50
    grep: str = ""
    outcome: str = ""
    chars: int = 8000
    """At most so many characters of each text travel."""
    before: str = ""
    """Go on where an earlier answer ended: its ``next``."""
    index: int | None = None


class ReadFlags(Struct, tag="flags", frozen=True):
    """All flags of the SGLang that the servers' Python has; asked of its parser once, which may
    take a minute, then kept. → :class:`FlagCatalogue`"""


class CheckFlags(Struct, tag="flags.check", frozen=True):
    """Hold flags against the SGLang that the servers' Python has, as a start would. → :class:`Done`

    What it would not take is a failure with code ``usage``; what it takes under other names is
    told in the text.
    """

    flags: Flags


class ReadMachine(Struct, tag="machine", frozen=True):
    """What a bug report wants to know of the machine; takes seconds. → :class:`Machine`"""


class Subscribe(Struct, tag="subscribe", frozen=True):
    """What this connection wants pushed. Replaces the earlier subscription. → :class:`Done`

    Cursors say where the subscriber stands: events by last id seen, logs by
    ``source → (inode, offset)``; a source with offset -1 starts with its last 200 lines.
    """

    snapshots: bool = True
    events_after: int | None = None
    logs: dict[str, tuple[int, int]] = {}
    readings: bool = False
    """The run's subscription: server readings as they are taken."""


class Shutdown(Struct, tag="shutdown", frozen=True):
    """End the agent; servers and run go on. Deploy uses it to make room. → :class:`Done`"""


Request: TypeAlias = (
    Get
    | Up
    | Down
    | Restart
    | Rollback
    | Decide
    | RunStart
    | RunControl
    | RetryFailed
    | TakeSettings
    | ReadLog
    | ReadMerged
    | ReadHistory
    | ReadEvents
    | ReadMarks
    | ReadBatches
    | ReadMix
    | ReadAnswers
    | ReadFlags
    | CheckFlags
    | ReadMachine
    | Subscribe
    | Shutdown
)

READ_ONLY: tuple[type, ...] = (
    Get,
    ReadLog,
    ReadMerged,
    ReadHistory,
    ReadEvents,
    ReadMarks,
    ReadBatches,
    ReadMix,
    ReadAnswers,
    ReadFlags,
    CheckFlags,
    ReadMachine,
    Subscribe,
)
"""Requests that change nothing."""
