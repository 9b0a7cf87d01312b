"""A recorded run as a feed: the same screens, and a clock that one may turn."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from console.feed import FeedError
from console.hindsight import Hindsight
from console.model import GAP, Link
from console.text import clock, moment
from remote.marks import thin
from remote.protocol import (
    Epoch,
    Event,
    Events,
    Get,
    GpuState,
    Happened,
    History,
    HostState,
    Lights,
    LogPart,
    Marks,
    MergedPart,
    Message,
    ReadEvents,
    ReadHistory,
    ReadLog,
    ReadMarks,
    ReadMerged,
    Request,
    Result,
    RunState,
    ServerInfo,
    ServerState,
    ServerStatus,
    Snapshot,
    Subscribe,
    Swap,
    SwapStep,
    TargetSpec,
)

SPEEDS: Final = (1.0, 5.0, 20.0, 60.0, 300.0, 1800.0)
"""Recorded seconds a second."""

TICK_S: Final = 1.0

LINES: Final = 200
"""Lines of a log that are shown where the clock was turned to another time."""


class Recorded(Protocol):
    """What a recording must give; see ``remote.recording``."""

    begin: float
    end: float
    target: TargetSpec | None
    clock: int
    """Seconds by which the clock of the logs' machine is east of UTC."""
    run_begin: float | None
    """When the first of the run's own numbers were kept; None where none ever were."""

    @property
    def events(self) -> Sequence[Event]:
        """Everything that happened, by id."""

    @property
    def epochs(self) -> Sequence[Epoch]:
        """Every epoch, by id."""

    @property
    def swaps(self) -> Sequence[Swap]:
        """Every swap, by id."""

    def history(self, since: float, until: float, points: int) -> History:
        """Samples of a span."""

    def at(self, time: float) -> History:
        """The newest sample at a time, as one column."""

    def run_at(self, time: float) -> RunState | None:
        """The run's own numbers at a time."""

    def log(self, source: str, time: float, lines: int) -> LogPart | None:
        """The last lines of a log at a time."""

    def log_between(self, source: str, offset: int, time: float) -> LogPart | None:
        """Lines of a log from a place on until a time."""

    def read_log(self, request: ReadLog) -> LogPart:
        """Any part of a log, as an agent gives it. Raises OSError, ValueError."""

    def read_merged(self, request: ReadMerged) -> MergedPart:
        """The same of several logs as one."""


def swap_at(swaps: Sequence[Swap], now: float) -> Swap | None:
    """The newest swap begun by then, as it stood then."""
    begun = [s for s in swaps if s.began <= now]
    if not begun:
        return None
    swap = begun[-1]
    if swap.ended is not None and swap.ended <= now:
        return swap

    def then(step: SwapStep) -> SwapStep:
        if step.began is None or step.began > now:
            return replace(step, state="waiting", began=None, ended=None, text="")
        if step.ended is None or step.ended > now:
            return replace(step, state="doing", ended=None)
        return step

    steps = [then(s) for s in swap.steps]
    return replace(swap, state="doing", ended=None, text="", steps=steps)


_DOING: Final[dict[str, ServerStatus]] = {
    "drain": "draining",
    "abort": "draining",
    "stop": "stopped",
    "start": "starting",
    "ready": "starting",
}


_OF_SERVERS: Final = frozenset({"running", "queued", "gen_tok_s", "kv_usage", "mamba_usage"})
"""Series that tell of a server, not of its card."""


def snapshot_at(
    recorded: Recorded, now: float, seq: int, hindsight: Hindsight | None = None
) -> Snapshot:
    """The state at a time, as far as the recording tells it."""
    sample = recorded.at(now)
    hindsight = hindsight or Hindsight(recorded.events)
    told = hindsight.at(now)
    swap = swap_at(recorded.swaps, now)
    epochs = [e for e in recorded.epochs if e.since <= now]
    doing = {s.gpu: s.name for s in swap.steps if s.state == "doing"} if swap is not None else {}
    gpus = max((len(columns) for columns in sample.series.values()), default=0)

    def value(name: str, gpu: int) -> float | None:
        columns = sample.series.get(name, [])
        if name in _OF_SERVERS and hindsight.unborn(gpu, now):
            return None
        return columns[gpu][0] if gpu < len(columns) and columns[gpu] else None

    def whole(name: str, gpu: int) -> int | None:
        found = value(name, gpu)
        return None if found is None else round(found)

    servers, infos, cards = [], [], []
    for gpu in range(gpus):
        running = whole("running", gpu)
        state: ServerStatus = "ready" if running is not None else "stopped"
        state = _DOING.get(doing.get(gpu, ""), state)
        cause = ""
        if gpu in told.down and (running is None or told.down[gpu][0] == "stalled"):
            state, cause = told.down[gpu]
        speed = value("gen_tok_s", gpu)
        servers.append(
            ServerState(
                gpu,
                state,
                Lights(state not in ("stopped", "failed"), running is not None, bool(speed)),
                doing.get(gpu, ""),
                running=running,
                queued=whole("queued", gpu),
                gen_tok_s=speed,
                kv_usage=value("kv_usage", gpu),
                mamba_usage=value("mamba_usage", gpu),
                cause=cause,
            )
        )
        epoch = _epoch_of(gpu, epochs, swap)
        infos.append(
            ServerInfo(
                gpu,
                0 if recorded.target is None else recorded.target.fleet.base_port + gpu,
                epoch=epoch.id if epoch else None,
                flags=epoch.flags if epoch else {},
                max_running=epoch.max_running if epoch else None,
            )
        )
        cards.append(
            GpuState(
                gpu,
                "",
                value("utilization", gpu),
                whole("memory_used_mib", gpu),
                None,
                value("temperature_c", gpu),
                value("power_w", gpu),
            )
        )
    return Snapshot(
        time=now, seq=seq, full=True, infos=infos, servers=servers, gpus=cards,
        epochs=epochs, swap=swap, run=recorded.run_at(now) or UNSET,
        target=recorded.target or UNSET, host=HostState(clock_east_s=recorded.clock),
        alerts=list(told.alerts), verdict=told.verdict,
    )  # fmt: skip


def _epoch_of(gpu: int, epochs: list[Epoch], swap: Swap | None) -> Epoch | None:
    """The newest epoch, but while a swap has not come to this server the one before."""
    if not epochs:
        return None
    if swap is not None and swap.state == "doing" and len(epochs) > 1:
        steps = [s for s in swap.steps if s.gpu == gpu and s.name == "ready"]
        if steps and steps[0].state in ("waiting", "doing"):
            return epochs[-2]
    return epochs[-1]


class ReplayFeed:
    """Plays a recording; :meth:`seek`, :meth:`toggle` and :meth:`faster` turn its clock."""

    def __init__(
        self,
        recorded: Recorded,
        on_message: Callable[[Message], None],
        on_link: Callable[[Link], None],
    ) -> None:
        self.recorded = recorded
        self.at = recorded.begin
        self.playing = True
        self.speed = SPEEDS[2]
        self._on_message = on_message
        self._on_link = on_link
        self._told = 0
        self._seq = 0
        self._times = [e.time for e in recorded.events]
        self._hindsight = Hindsight(recorded.events)
        self._logs: dict[str, int] = {}
        """Logs that are shown → where each one stands; -1 where it has to be found anew."""
        self._missing: set[str] = set()
        """Logs of which was told that there is none."""
        self._busy = asyncio.Lock()
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Play until :meth:`close`."""
        self._on_link(
            Link(
                "replay",
                "a recording",
                time.time(),
                run_later=self.recorded.run_begin is not None,
            )
        )
        await self._show()
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                await asyncio.wait_for(self._closed.wait(), TICK_S)
            except TimeoutError:
                passed = time.monotonic() - began
                if self.playing and self.at < self.recorded.end:
                    self.at = min(self.recorded.end, self.at + passed * self.speed)
                    await self._show()
                else:
                    await self._show(repeat=True)

    async def _show(self, *, repeat: bool = False) -> None:
        self._seq += 1
        snapshot = await self._snapshot()
        self._on_message(snapshot)
        if repeat:
            return
        upto = bisect_right(self._times, self.at)
        for event in self.recorded.events[self._told : upto]:
            self._on_message(Happened(event))
        self._told = max(self._told, upto)
        await self._read_on()

    async def _snapshot(self) -> Snapshot:
        return await asyncio.to_thread(
            snapshot_at, self.recorded, self.at, self._seq, self._hindsight
        )

    async def _read_on(self) -> None:
        async with self._busy:
            for source in list(self._logs):
                offset = self._logs.get(source)
                part = None if offset is None else await self._lines(source, offset)
                if part is not None and self._logs.get(source) == offset:
                    self._logs[source] = part.next
                    self._on_message(part)

    async def _lines(self, source: str, offset: int) -> LogPart | None:
        """Lines that came, or, where the clock was turned to this time, those before it."""
        there, at = self.recorded, self.at
        try:
            if offset >= 0:
                return await asyncio.to_thread(there.log_between, source, offset, at)
            part = await asyncio.to_thread(there.log, source, at, LINES)
        except OSError:
            part = None
        if part is None:
            if source in self._missing:
                return None
            self._missing.add(source)
            text = f"{GAP} no log with times lies beside this recording {GAP}"
            return LogPart(source, 1, 0, 0, [text])
        text = f"{GAP} {moment(at, there.end)}:{clock(at)[-2:]} {GAP}"
        return replace(part, lines=[text, *part.lines])

    async def seek(self, at: float) -> None:
        """Go to a time; events after it are kept, as what one knows already."""
        self.turn(at)
        self._logs = dict.fromkeys(self._logs, -1)
        await self._show()

    def turn(self, at: float) -> None:
        """Set the clock; what was there then is not read yet."""
        self.at = max(self.recorded.begin, min(self.recorded.end, at))

    def toggle(self) -> None:
        """Pause or play; at the end, from the start."""
        if not self.playing and self.at >= self.recorded.end:
            self.at = self.recorded.begin
        self.playing = not self.playing

    def faster(self, by: int) -> None:
        """Another speed."""
        index = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, index))]

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """Answers from the recording."""
        match request:
            case Get():
                return await self._snapshot()
            case ReadHistory(since=since, until=until, points=points):
                end = min(until or self.at, self.at)
                return await asyncio.to_thread(self.recorded.history, since, end, points)
            case ReadEvents(after=after, limit=limit, before=before):
                upto = bisect_right(self._times, self.at)
                found = [
                    e
                    for e in self.recorded.events[:upto]
                    if e.id > after and (before is None or e.id < before)
                ]
                return Events(found[-limit:])
            case ReadMarks(since=since, until=until, points=points):
                end = min(until or self.at, self.at)
                return Marks(thin(self.recorded.events, since, end, points))
            case ReadLog():
                try:
                    return await asyncio.to_thread(self.recorded.read_log, request)
                except (OSError, ValueError) as error:
                    raise FeedError(str(error)) from None
            case ReadMerged():
                try:
                    return await asyncio.to_thread(self.recorded.read_merged, request)
                except (OSError, ValueError) as error:
                    raise FeedError(str(error)) from None
            case _:
                raise FeedError("this is a recording: nothing can be asked of it but to be shown")

    async def subscribe(self, wanted: Subscribe) -> None:
        """Snapshots come anyway; a log begins with its last lines at the clock's time."""
        self._logs = {source: self._logs.get(source, -1) for source in wanted.logs}
        await self._read_on()

    async def deploy(self) -> str:
        """See :class:`console.feed.Feed`."""
        raise FeedError("this is a recording")

    def hurry(self) -> None:
        """See :class:`console.feed.Feed`: a recording is never away."""

    async def close(self) -> None:
        """End."""
        self._closed.set()
