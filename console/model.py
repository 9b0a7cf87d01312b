"""What the console knows, and what follows from it. No screen, no link, no clock of its own.

:func:`reduce` turns a protocol message into the next :class:`State`; everything else here is a
pure function of a state. Times are Unix seconds. ``now`` is always passed in: the console's own
clock, on which :attr:`State.received` was taken, so that a wrong clock on the other side never
makes data look fresh or stale.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from console import ram
from remote.protocol import (
    Alert,
    Epoch,
    Event,
    Flags,
    FlagValue,
    GpuState,
    Happened,
    HostState,
    LogPart,
    Message,
    Progress,
    RunState,
    ServerInfo,
    ServerState,
    Skipped,
    Snapshot,
    Swap,
    SwapStep,
    TargetSpec,
    Verdict,
)

MAX_EVENTS: Final = 2000
"""Newest events kept here; the journal on the other side keeps all."""

MAX_LINES: Final = 5000
"""Newest lines kept of each log."""

MAX_CHARS: Final = 4 << 20
"""Characters kept of each log, however long its lines are."""

STALE_S: Final = 5.0
"""Snapshots come once a second; after this long without one the data is shown as old."""


@dataclass(frozen=True)
class Link:
    """The way to the agent, in words."""

    state: Literal[
        "connecting", "connected", "reconnecting", "read-only", "failed", "closed", "replay"
    ]
    text: str = ""
    since: float = 0.0
    run_later: bool = False
    """Of a recording: whether it has the run's own numbers, from some time on."""


class LogRing:
    """The newest lines of one log, each with a number that never changes.

    A plain buffer that only grows at its end and drops at its start; ``first`` is the number of
    the oldest line held, ``end`` one past the newest.
    """

    def __init__(self, limit: int = MAX_LINES) -> None:
        self._lines: deque[str] = deque()
        self._limit = limit
        self._chars = 0
        self.end = 0
        self.skipped = 0
        """Lines that a flood made the agent leave out, in all."""
        self.inode = 0
        self.next = -1
        """Where the agent goes on reading: the cursor of a later subscription."""
        self.size = 0

    @property
    def first(self) -> int:
        """Number of the oldest line held."""
        return self.end - len(self._lines)

    def add(self, part: LogPart) -> None:
        """Append a part; a gap and a new file are said in a line of their own."""
        if part.skipped:
            self.skipped += part.skipped
            self.append(f"{GAP} {part.skipped:,} lines skipped {GAP}")
        if self.inode and part.inode != self.inode:
            self.append(f"{GAP} the log was rotated {GAP}")
        self.inode, self.next, self.size = part.inode, part.next, part.size
        for line in part.lines:
            self.append(line)

    def append(self, line: str) -> None:
        """One more line."""
        self._lines.append(line)
        self._chars += len(line)
        self.end += 1
        while len(self._lines) > self._limit or self._chars > MAX_CHARS:
            self._chars -= len(self._lines.popleft())

    def since(self, number: int) -> tuple[int, list[str]]:
        """Lines from ``number`` on that are still held, and the number of the first of them."""
        start = max(number, self.first)
        count = self.end - start
        if count <= 0:
            return self.end, []
        if count == len(self._lines):
            return start, list(self._lines)
        # From the right: what is asked for is nearly always a few newest lines.
        newest = [self._lines[-i] for i in range(1, count + 1)]
        newest.reverse()
        return start, newest


GAP: Final = "┄┄┄"
"""Marks lines of the console's own in a log."""


@dataclass(frozen=True)
class State:
    """All that is known of one target."""

    link: Link = Link("connecting")
    target: TargetSpec | None = None
    time: float = 0.0
    """The agent's clock at the newest snapshot."""
    received: float | None = None
    """The console's clock when it came; None before the first."""
    seq: int = 0
    infos: Mapping[int, ServerInfo] = field(default_factory=dict)
    servers: Mapping[int, ServerState] = field(default_factory=dict)
    gpus: Mapping[int, GpuState] = field(default_factory=dict)
    host: HostState = field(default_factory=HostState)
    run: RunState = field(default_factory=RunState)
    epochs: tuple[Epoch, ...] = ()
    swap: Swap | None = None
    alerts: tuple[Alert, ...] = ()
    verdict: Verdict | None = None
    events: tuple[Event, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[str, LogRing] = field(default_factory=dict)
    ram: ram.Samples = ()
    """Memory in use on the host, over the last while."""
    journal: str = ""
    """Which journal all this is from; empty where an older agent does not tell."""
    uploads: tuple[int, float] = (-1, 0.0)
    """Files in S3, and since when it is that many: the agent's clock, as far as this console saw
    it."""

    @property
    def progress(self) -> Progress | None:
        """The run's own numbers, where there is a run."""
        return self.run.progress

    @property
    def numbers(self) -> list[int]:
        """Every GPU that anything is known of, in order."""
        known = {*self.infos, *self.servers, *self.gpus}
        if self.target is not None:
            known |= set(range(self.target.fleet.gpus))
        return sorted(known)

    @property
    def simulated(self) -> bool:
        """Whether this hardware is a simulation."""
        return self.host.simulated


def reduce(state: State, message: Message | Link, now: float) -> State:
    """The state after a message. Messages that say nothing new of the target change nothing.

    Snapshots are merged section by section, lists keyed by GPU member by member unless the
    snapshot is full. Log parts go into the bounded ring of their source, which is shared by old
    and new state.
    """
    match message:
        case Snapshot():
            return _merge(state, message, now)
        case Happened(event=event):
            return with_events(state, [event])
        case LogPart():
            ring = state.logs.get(message.source)
            if ring is None:
                ring = LogRing()
                state = replace(state, logs={**state.logs, message.source: ring})
            ring.add(message)
            return state
        case Skipped(what=what, count=count):
            return replace(
                state, skipped={**state.skipped, what: state.skipped.get(what, 0) + count}
            )
        case Link():
            return replace(state, link=message)
        case _:
            return state


def _merge(state: State, snapshot: Snapshot, now: float) -> State:
    base = state
    if snapshot.full:
        other = snapshot.journal not in (UNSET, state.journal) and state.journal
        kept = () if other else state.events  # ids of another journal are not those of this one
        base = State(link=state.link, events=kept, logs=state.logs, journal=state.journal)
    host, run = snapshot.host, snapshot.run

    def whole(section: str) -> object:
        value = getattr(snapshot, section)
        return getattr(base, section) if value is UNSET else value

    changes: dict[str, object] = {
        name: {**getattr(base, name), **{member.gpu: member for member in value}}
        for name in ("infos", "servers", "gpus")
        if (value := getattr(snapshot, name)) is not UNSET
    }
    for name in ("target", "host", "run", "swap", "verdict", "journal"):
        changes[name] = whole(name)
    for name in ("epochs", "alerts"):
        changes[name] = tuple(whole(name))  # type: ignore[arg-type]
    used = None if isinstance(host, UnsetType) else host.memory_used
    uploads = state.uploads
    if not isinstance(run, UnsetType) and run.progress is not None:
        files = run.progress.s3_uploaded
        uploads = uploads if files == uploads[0] else (files, snapshot.time)
    return replace(
        base,
        time=snapshot.time,
        ram=ram.sampled(state.ram, snapshot.time, used),
        uploads=uploads,
        seq=snapshot.seq,
        received=now,
        skipped=state.skipped,
        **changes,  # type: ignore[arg-type]
    )


def with_events(state: State, events: Iterable[Event]) -> State:
    """The state with more events, each id once, in their order, the newest kept."""
    known = {event.id: event for event in state.events}
    fresh = [event for event in events if event.id not in known]
    if not fresh:
        return state
    if not state.events or fresh[0].id > state.events[-1].id:
        merged = [*state.events, *sorted(fresh, key=lambda e: e.id)]
    else:
        merged = sorted([*state.events, *fresh], key=lambda e: e.id)
    return replace(state, events=tuple(merged[-MAX_EVENTS:]))


# --- Age ---


def age(state: State, now: float) -> float | None:
    """Seconds since the newest snapshot; None before the first."""
    return None if state.received is None else max(0.0, now - state.received)


def stale(state: State, now: float) -> bool:
    """Whether what is shown is no longer what is."""
    old = age(state, now)
    return old is not None and old > STALE_S


def agent_now(state: State, now: float) -> float:
    """The agent's clock now, from its last snapshot and the time gone since."""
    return now if state.received is None else state.time + (now - state.received)


def told_now(state: State, now: float) -> float:
    """The agent's clock for what goes on there: it stands still once nothing is told any more."""
    return state.time + min(STALE_S, age(state, now) or 0.0)


def told_at(state: State) -> float:
    """When the newest numbers were told, on the console's clock; on its own for a recording."""
    replay = state.link.state == "replay"
    return state.time if replay or state.received is None else state.received


# --- Servers ---

ON: Final = frozenset({"starting", "warming", "ready", "draining", "stalled"})
"""States of a server that holds or is taking its GPU."""


# --- Flags and epochs ---


def flag_text(value: FlagValue | None) -> str:
    """A flag's value as one types it; a bare flag is ``on``, an absent one ``–``."""
    if value is None or value is False:
        return "–"
    if value is True:
        return "on"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


@dataclass(frozen=True)
class FlagChange:
    """One flag before and after."""

    name: str
    before: FlagValue | None
    after: FlagValue | None

    @property
    def text(self) -> str:
        """``mem-fraction-static 0.85 → 0.9``."""
        return f"{self.name} {flag_text(self.before)} → {flag_text(self.after)}"


def flag_changes(before: Flags, after: Flags) -> list[FlagChange]:
    """Every flag that differs as it would be typed, by name; ``False`` and absent are the same."""
    names = sorted({*before, *after})
    return [
        FlagChange(name, before.get(name), after.get(name))
        for name in names
        if flag_text(before.get(name)) != flag_text(after.get(name))
    ]


def current_epoch(state: State) -> Epoch | None:
    """The epoch that most living servers run with; without any, the newest. After a swap that was
    taken back it is not the newest."""
    known = {epoch.id: epoch for epoch in state.epochs}
    counts = Counter(i.epoch for i in state.infos.values() if i.pid is not None)
    lived = [(count, epoch) for epoch, count in counts.items() if epoch in known]
    if lived:
        return known[max(lived, key=lambda one: (one[0], one[1] or 0))[1] or 0]
    return state.epochs[-1] if state.epochs else None


def current_flags(state: State, gpu: int | None = None) -> Flags:
    """The flags a restart starts from: of one server, else of the epoch that runs, else the
    spec's."""
    if gpu is not None and (info := state.infos.get(gpu)) is not None and info.flags:
        return dict(info.flags)
    if (epoch := current_epoch(state)) is not None:
        return dict(epoch.flags)
    return dict(state.target.fleet.flags) if state.target is not None else {}


MEASURED_S: Final = 240.0
"""Server-seconds at full load from which on an epoch's throughput may be held against another's:
half a minute of eight."""


def winner(epochs: Sequence[Epoch]) -> Epoch | None:
    """The epoch with the best throughput among those that were measured for long enough; None where
    there are no two to compare."""
    judged = [e for e in epochs if e.tok_s_per_gpu and not barely_measured(e)]
    return max(judged, key=lambda e: e.tok_s_per_gpu or 0.0) if len(judged) > 1 else None


def barely_measured(epoch: Epoch) -> bool:
    """Whether its servers have had too little time at full load for its throughput to count."""
    return epoch.seconds < MEASURED_S


# --- A swap, as it happens ---


def step_rows(swap: Swap) -> dict[int, list[SwapStep]]:
    """The steps of each GPU, in plan order of GPUs and steps."""
    rows: dict[int, list[SwapStep]] = {gpu: [] for gpu in swap.gpus}
    for step in swap.steps:
        rows.setdefault(step.gpu, []).append(step)
    return rows


def swap_done(swap: Swap) -> float:
    """How much of the plan is behind, 0..1."""
    if not swap.steps:
        return 1.0 if swap.state != "doing" else 0.0
    ended = sum(step.state in ("done", "skipped", "failed") for step in swap.steps)
    return ended / len(swap.steps)


def awaits_decision(swap: Swap) -> bool:
    """Whether a canary is being judged, or new flags wait to be confirmed."""
    return swap.state == "doing" and any(
        step.name in ("judge", "confirm") and step.state == "doing" for step in swap.steps
    )


def touched(swap: Swap) -> list[int]:
    """GPUs that the swap has begun with."""
    begun = {step.gpu for step in swap.steps if step.began is not None}
    return [gpu for gpu in swap.gpus if gpu in begun]


def swap_pair(state: State) -> tuple[Epoch, Epoch] | None:
    """The epochs before and after the newest swap that reached its end."""
    swap = state.swap
    if swap is None or swap.state != "done":
        return None
    found = {e.id: e for e in state.epochs}
    before, after = found.get(swap.from_epoch or -1), found.get(swap.to_epoch)
    return None if before is None or after is None else (before, after)
