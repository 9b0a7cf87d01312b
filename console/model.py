"""What the console knows, and what follows from it. No screen, no link, no clock of its own.

:func:`reduce` turns a protocol message into the next :class:`State`; everything else here is a
pure function of a state. Times are Unix seconds. ``now`` is always passed in: the console's own
clock, on which :attr:`State.received` was taken, so that a wrong clock on the other side never
makes data look fresh or stale.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, Literal, TypeAlias

from msgspec import UNSET

from console.text import duration, hours, moment, number, percent
from remote.protocol import (
    Alert,
    Epoch,
    Event,
    Flags,
    FlagValue,
    GpuState,
    Happened,
    History,
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

Level: TypeAlias = Literal["good", "info", "warning", "error"]


@dataclass(frozen=True)
class Link:
    """The way to the agent, in words."""

    state: Literal[
        "connecting", "connected", "reconnecting", "read-only", "failed", "closed", "replay"
    ]
    text: str = ""
    since: float = 0.0


class LogRing:
    """The newest lines of one log, each with a number that never changes.

    A plain buffer that only grows at its end and drops at its start; ``first`` is the number of
    the oldest line held, ``end`` one past the newest. ``version`` moves with every change.
    """

    def __init__(self, limit: int = MAX_LINES) -> None:
        self._lines: deque[str] = deque()
        self._limit = limit
        self._chars = 0
        self.end = 0
        self.version = 0
        self.skipped = 0
        """Lines that a flood made the agent leave out, in all."""
        self.inode = 0
        self.next = -1
        """Where the agent goes on reading: the cursor of a later subscription."""
        self.offset = -1
        """Where the oldest line that was ever received begins."""
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
        if self.offset < 0 or part.inode != self.inode:
            self.offset = part.offset
        self.inode, self.next, self.size = part.inode, part.next, part.size
        for line in part.lines:
            self.append(line)

    def append(self, line: str) -> None:
        """One more line."""
        self._lines.append(line)
        self._chars += len(line)
        self.end += 1
        self.version += 1
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
    base = State(link=state.link, events=state.events, logs=state.logs) if snapshot.full else state

    def whole(section: str) -> object:
        value = getattr(snapshot, section)
        return getattr(base, section) if value is UNSET else value

    changes: dict[str, object] = {
        name: {**getattr(base, name), **{member.gpu: member for member in value}}
        for name in ("infos", "servers", "gpus")
        if (value := getattr(snapshot, name)) is not UNSET
    }
    for name in ("target", "host", "run", "swap", "verdict"):
        changes[name] = whole(name)
    for name in ("epochs", "alerts"):
        changes[name] = tuple(whole(name))  # type: ignore[arg-type]
    return replace(
        base,
        time=snapshot.time,
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


# --- The fleet ---

ON: Final = frozenset({"starting", "warming", "ready", "draining", "stalled"})
"""States of a server that holds or is taking its GPU."""


@dataclass(frozen=True)
class Fleet:
    """Sums over the servers."""

    servers: int = 0
    ready: int = 0
    failed: int = 0
    busy: int = 0
    """Starting, warming or draining."""
    running: int = 0
    max_running: int = 0
    queued: int = 0
    in_flight: int = 0
    gen_tok_s: float | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    power_w: float | None = None
    hottest_c: float | None = None


def fleet(state: State) -> Fleet:
    """Totals of the fleet; means are over ready servers that told a value."""
    servers = list(state.servers.values())
    ready = [s for s in servers if s.state == "ready"]

    def told(values: Iterable[float | None]) -> list[float]:
        return [v for v in values if v is not None]

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    speeds = told(s.gen_tok_s for s in ready)
    powers = told(g.power_w for g in state.gpus.values())
    heats = told(g.temperature_c for g in state.gpus.values())
    return Fleet(
        servers=len(state.numbers),
        ready=len(ready),
        failed=sum(s.state == "failed" for s in servers),
        busy=sum(s.state in ("starting", "warming", "draining") for s in servers),
        running=sum(s.running or 0 for s in servers),
        max_running=sum(
            info.max_running or 0
            for gpu, info in state.infos.items()
            if (server := state.servers.get(gpu)) is not None and server.state in ON
        ),
        queued=sum(s.queued or 0 for s in servers),
        in_flight=sum(s.in_flight or 0 for s in servers),
        gen_tok_s=sum(speeds) if speeds else None,
        kv_usage=mean(told(s.kv_usage for s in ready)),
        mamba_usage=mean(told(s.mamba_usage for s in ready)),
        power_w=sum(powers) if powers else None,
        hottest_c=max(heats) if heats else None,
    )


@dataclass(frozen=True)
class Outlier:
    """A GPU whose number stands apart from the others'."""

    gpu: int
    metric: str
    value: float
    middle: float
    text: str


def outliers(state: State) -> list[Outlier]:
    """The odd ones out among ready servers, worst first; empty when all is well.

    A server counts as slow below 3/4 of the median throughput of at least three that run the same
    flags with the same slots, a card as hot from 85 °C or 12 K above the median.
    """
    found: list[Outlier] = []
    alike: dict[tuple[int | None, int | None], dict[int, float]] = {}
    for server in state.servers.values():
        if server.state == "ready" and server.gen_tok_s is not None and server.dispatch != "pause":
            info = state.infos.get(server.gpu)
            kind = (info.epoch, info.max_running) if info is not None else (None, None)
            alike.setdefault(kind, {})[server.gpu] = server.gen_tok_s
    for speeds in alike.values():
        if len(speeds) < 3 or (middle := median(speeds.values())) <= 20:
            continue
        found += [
            Outlier(
                gpu,
                "gen_tok_s",
                speed,
                middle,
                f"GPU {gpu} is {percent(1 - speed / middle)} slower than the others "
                f"({number(speed)} against {number(middle)} tok/s)",
            )
            for gpu, speed in speeds.items()
            if speed < 0.75 * middle
        ]
    heats = {g.gpu: g.temperature_c for g in state.gpus.values() if g.temperature_c is not None}
    if heats:
        middle = median(heats.values())
        found += [
            Outlier(
                gpu,
                "temperature_c",
                heat,
                middle,
                f"GPU {gpu} is at {heat:.0f} °C"
                + (f", the others at {middle:.0f} °C" if len(heats) > 2 else ""),
            )
            for gpu, heat in heats.items()
            if heat >= 85 or (len(heats) > 2 and heat > middle + 12)
        ]
    return sorted(found, key=lambda o: o.value / o.middle if o.metric == "gen_tok_s" else 1.0)


# --- How far, how fast, when done ---


@dataclass(frozen=True)
class Eta:
    """When the run will be done; ``low`` and ``high`` are hours from now."""

    hours: float | None = None
    low: float | None = None
    high: float | None = None
    at: float | None = None


def overall_rate(progress: Progress) -> float | None:
    """Prompts a second over the whole run, pauses and restarts included."""
    if progress.elapsed_hours <= 0:
        return None
    return progress.completed / (progress.elapsed_hours * 3600)


def eta(state: State, now: float) -> Eta:
    """The time of the end and a range.

    Three rates bound the range: the run's moving rate, tokens a second over the mean answer
    length, and, once an hour of the run is behind, its overall rate.
    """
    progress = state.progress
    if progress is None or progress.status == "done":
        return Eta()
    left = progress.remaining or max(0, progress.total - progress.completed - progress.failed)
    guesses: list[float] = []
    if progress.rate_per_sec > 0:
        guesses.append(left / progress.rate_per_sec / 3600)
    if progress.tok_s and progress.avg_output_tokens > 0:
        guesses.append(left * progress.avg_output_tokens / progress.tok_s / 3600)
    if progress.elapsed_hours >= 1 and (rate := overall_rate(progress)):
        guesses.append(left / rate / 3600)
    best = progress.eta_hours
    if best is None and state.verdict is not None:
        best = state.verdict.eta_hours
    if best is None:
        best = guesses[0] if guesses else None
    if best is None:
        return Eta()
    spread = [*guesses, best]
    return Eta(
        hours=best,
        low=min(spread) if len(guesses) > 1 else None,
        high=max(spread) if len(guesses) > 1 else None,
        at=now + best * 3600,
    )


def by_count(counts: Mapping[str, int], most: int = 4) -> str:
    """``timeout 8, rejected 4``, largest first; the rest in one number."""
    order = sorted(((n, k) for k, n in counts.items() if n), key=lambda c: (-c[0], c[1]))
    words = [f"{name} {count:,}" for count, name in order[:most]]
    if len(order) > most:
        words.append(f"{len(order) - most} more")
    return ", ".join(words)


# --- What is wrong, and which key helps ---


@dataclass(frozen=True)
class Notice:
    """One thing to know now; ``action`` names the action of the registry that helps."""

    level: Level
    text: str
    action: str = ""
    gpu: int | None = None
    code: str = ""


_WEIGHT: Final[dict[Level, int]] = {"error": 0, "warning": 1, "info": 2, "good": 3}


def notices(state: State, now: float) -> list[Notice]:
    """What is wrong, worst first, then what is worth knowing. Empty only before the first look."""
    found: list[Notice] = []
    link = state.link
    if link.state in ("failed", "reconnecting", "closed"):
        old = age(state, now)
        shown = "" if old is None else f"; what is shown is {duration(old)} old"
        helps = "deploy" if "deploy" in link.text else ""
        found.append(Notice("error", f"{link.text or link.state}{shown}", helps, None, "link"))
    elif link.state == "read-only":
        text = link.text or "this console may only look"
        helps = "deploy" if "deploy" in text else ""
        found.append(Notice("warning", text, helps, None, "link"))
    if state.received is None:
        return found

    found += _down(state, "failed", "it ended without a word", "up")
    found += _down(state, "stalled", "no token is produced", "restart")

    shown = " ".join(n.text for n in found)
    covered = ("server.failed.", "server.stalled.", "run.problem")
    hot = {int(a.code[4:]) for a in state.alerts if a.code[:4] == "hot." and a.code[4:].isdigit()}
    found += [
        Notice(alert.level, alert.text, _HELPS.get(alert.code, ""), None, alert.code)
        for alert in state.alerts
        if alert.text and alert.text not in shown and not alert.code.startswith(covered)
    ]

    progress = state.progress
    if progress is not None and progress.problem and progress.problem not in shown:
        found.append(Notice("error", progress.problem, "", None, "run.problem"))
    if state.run.alive and progress is not None and progress.status == "paused":
        found.append(Notice("warning", "The run is paused", "run.go", None, "run.paused"))
    if state.link.state == "replay":
        return sorted(found, key=lambda n: _WEIGHT[n.level])
    up = sum(s.state in ON for s in state.servers.values())
    if not up and state.numbers:
        found.append(Notice("warning", "No server is up", "up", None, "fleet.down"))
    elif not state.run.alive and not state.run.foreign:
        left = progress is None or progress.status != "done"
        if left:
            ended = "" if state.run.exit in (None, 0, 130) else f" (it ended with {state.run.exit})"
            found.append(
                Notice("warning", f"No run is generating{ended}", "run.go", None, "run.none")
            )

    found += [
        Notice("warning", odd.text, "logs", odd.gpu, f"outlier.{odd.metric}")
        for odd in [o for o in outliers(state) if o.metric != "temperature_c" or o.gpu not in hot][
            :3
        ]
    ]

    verdict = state.verdict
    outdated = verdict is not None and bool(state.epochs) and verdict.time < state.epochs[-1].since
    if verdict is not None and not outdated and (verdict.text or verdict.bound_by):
        level: Level = "good" if verdict.good else "info" if verdict.good is None else "warning"
        text = verdict.text
        if verdict.bound_by and verdict.bound_by.casefold() not in text.casefold():
            text = (
                f"{text.rstrip('. ')}. Held back by {verdict.bound_by}"
                if text
                else (f"Held back by {verdict.bound_by}")
            )
        action = "restart" if verdict.bound_by and verdict.good is not True else ""
        found.append(Notice(level, text, action, None, "verdict"))
    if progress is not None and progress.status == "done":
        found.append(Notice("good", f"Done: {progress.completed:,} completions", "", None, "done"))
    return sorted(found, key=lambda n: _WEIGHT[n.level])


def _down(state: State, status: str, silent: str, action: str) -> list[Notice]:
    """Servers in a bad state, one notice a cause: eight with the same one are one thing to read."""
    causes: dict[str, list[int]] = {}
    for gpu, server in sorted(state.servers.items()):
        if server.state == status:
            causes.setdefault(server.cause or silent, []).append(gpu)
    return [
        Notice(
            "error",
            f"GPU {', '.join(map(str, gpus))} {status}: {cause}",
            action,
            gpus[0],
            f"server.{status}",
        )
        for cause, gpus in causes.items()
    ]


_HELPS: Final[Mapping[str, str]] = {
    "eta": "restart",
    "run.failed": "run.go",
    "gpu.missing": "events",
    "s3": "run",
}


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


def current_flags(state: State, gpu: int | None = None) -> Flags:
    """The flags a restart starts from: of one server, else of the newest epoch, else the spec's."""
    if gpu is not None and (info := state.infos.get(gpu)) is not None and info.flags:
        return dict(info.flags)
    if state.epochs:
        return dict(state.epochs[-1].flags)
    return dict(state.target.fleet.flags) if state.target is not None else {}


def gain(before: Epoch, after: Epoch) -> float | None:
    """How many times the throughput of ``before`` the one of ``after`` is."""
    if not before.tok_s_per_gpu or after.tok_s_per_gpu is None:
        return None
    return after.tok_s_per_gpu / before.tok_s_per_gpu


def winner(epochs: Sequence[Epoch], least_seconds: float = 60.0) -> Epoch | None:
    """The epoch with the best measured throughput that ran long enough to count."""
    judged = [e for e in epochs if e.tok_s_per_gpu and e.seconds >= least_seconds]
    return max(judged, key=lambda e: e.tok_s_per_gpu or 0.0) if len(judged) > 1 else None


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


def swap_pair(state: State) -> tuple[Epoch, Epoch] | None:
    """The epochs before and after the newest swap that reached its end."""
    swap = state.swap
    if swap is None or swap.state != "done":
        return None
    found = {e.id: e for e in state.epochs}
    before, after = found.get(swap.from_epoch or -1), found.get(swap.to_epoch)
    return None if before is None or after is None else (before, after)


# --- Series over time ---

SERIES: Final = (
    "gen_tok_s",
    "kv_usage",
    "mamba_usage",
    "running",
    "queued",
    "temperature_c",
    "power_w",
    "memory_used_mib",
)
"""What the history keeps of each GPU."""


class Trend:
    """Per-GPU series over a sliding window, in equal buckets: what a chart of that window shows.

    History from the journal and live snapshots land in the same buckets (mean of what falls into
    one), so a picture is the same whether it was watched or loaded. A bucket that nothing fell
    into is a hole. Memory is bounded by ``points`` whatever the span.
    """

    def __init__(self, span: float, points: int) -> None:
        self.span = span
        self.points = points
        self.width = span / points
        self._sums: dict[str, dict[int, dict[int, list[float]]]] = {n: {} for n in SERIES}
        self.loads = 0
        """Moves when the past changed, not with each live sample."""

    def clear(self) -> None:
        """Forget everything: before history is loaded anew."""
        self._sums = {n: {} for n in SERIES}
        self.loads += 1

    def load(self, history: History) -> None:
        """Take in samples of the past."""
        for name, columns in history.series.items():
            if name not in self._sums:
                continue
            for gpu, values in enumerate(columns):
                for at, value in zip(history.times, values, strict=False):
                    if value is not None:
                        self._put(name, gpu, at, value)
        for known in self._sums.values():
            for gpu, cells in known.items():
                known[gpu] = dict(sorted(cells.items()))
        self._prune(max(history.times, default=0.0))
        self.loads += 1

    def add(self, state: State) -> None:
        """Take in the newest snapshot."""
        at = state.time
        for gpu, server in state.servers.items():
            if server.state not in ON:
                continue
            for name in ("gen_tok_s", "kv_usage", "mamba_usage", "running", "queued"):
                if (value := getattr(server, name)) is not None:
                    self._put(name, gpu, at, value)
        for gpu, card in state.gpus.items():
            for name in ("temperature_c", "power_w", "memory_used_mib"):
                if (value := getattr(card, name)) is not None:
                    self._put(name, gpu, at, value)
        self._prune(at)

    def _put(self, name: str, gpu: int, at: float, value: float) -> None:
        cell = self._sums[name].setdefault(gpu, {}).setdefault(int(at // self.width), [0.0, 0.0])
        cell[0] += value
        cell[1] += 1.0

    def _prune(self, newest: float) -> None:
        oldest = int(newest // self.width) - self.points - 1
        for columns in self._sums.values():
            for cells in columns.values():
                while cells and (first := next(iter(cells))) < oldest:
                    del cells[first]

    def gpus(self, name: str) -> list[int]:
        """GPUs with anything in this series."""
        return sorted(gpu for gpu, cells in self._sums[name].items() if cells)

    def column(
        self, name: str, gpu: int, until: float, points: int | None = None
    ) -> list[float | None]:
        """One GPU's values of the window that ends at ``until``, oldest first."""
        count = points or self.points
        cells = self._sums[name].get(gpu, {})
        last = int(until // self.width)
        values: list[float | None] = []
        for index in range(last - count + 1, last + 1):
            cell = cells.get(index)
            values.append(cell[0] / cell[1] if cell else None)
        return values

    def top(self, name: str) -> float:
        """Largest value held."""
        return max(
            (c[0] / c[1] for cells in self._sums[name].values() for c in cells.values()),
            default=0.0,
        )


def shrink(values: list[float | None], points: int) -> list[float | None]:
    """Means of equal runs: no more values than can be shown; a run without any stays a hole."""
    if points <= 0:
        return []
    if len(values) <= points:
        return values
    size = len(values) / points
    out: list[float | None] = []
    for index in range(points):
        run = [v for v in values[int(index * size) : int((index + 1) * size)] if v is not None]
        out.append(sum(run) / len(run) if run else None)
    return out


def nice_top(value: float) -> float:
    """A round scale limit at or above ``value``: 1, 1.5, 2, 3, 5, 8 times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0):
        if value <= step * power * 1.0001:
            return step * power
    return 10.0 * power


def steps_of(top: float) -> int:
    """Into how many equal steps a scale from 0 to a :func:`nice_top` divides roundly."""
    first = float(f"{top:e}".split("e")[0])
    return {1.0: 4, 1.5: 3, 2.0: 4, 3.0: 3, 5.0: 5, 8.0: 4}.get(round(first, 1), 4)


# --- Sentences shared by screens and command line ---


def swap_cost(state: State, gpus: Sequence[int], strategy: str = "all") -> str:
    """What taking these servers away costs while it happens, in one line."""
    progress = state.progress
    running = sum(state.servers[g].running or 0 for g in gpus if g in state.servers)
    parts = []
    if running:
        parts.append(f"{running:,} requests in flight end first; what is cut off is sent again")
    speed = sum(state.servers[g].gen_tok_s or 0 for g in gpus if g in state.servers)
    if speed and strategy == "rolling" and len(gpus) > 1:
        parts.append(f"{number(speed / len(gpus))} tok/s are missing while each one restarts")
    elif speed:
        parts.append(f"{number(speed)} tok/s are missing meanwhile")
    if progress is not None and progress.completed:
        parts.append(f"the {progress.completed:,} finished prompts stay")
    return "; ".join(parts) or "nothing is in flight"


def eta_text(estimate: Eta, now: float) -> str:
    """``Tue 03:12, in 9.8 h (9.1–10.6 h)``."""
    if estimate.hours is None:
        return ""
    text = f"{moment(estimate.at, now)}, in {hours(estimate.hours)}"
    if estimate.low is not None and estimate.high is not None:
        low, high = hours(estimate.low), hours(estimate.high)
        if low != high:
            text += f" ({low.removesuffix(' h')}–{high})"
    return text
