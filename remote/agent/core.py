"""The agent's parts, wired: what is seen each second, and how requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

from remote import host, samples
from remote.agent import alerts, diff, epochs, eta, prune, watched
from remote.agent.actions import Actions
from remote.agent.diff import Picture
from remote.agent.firstminute import FirstMinute
from remote.agent.lookers import Lookers
from remote.agent.reading import Reader
from remote.agent.reserved import Reserved
from remote.agent.run import Run
from remote.agent.serve import RequestError
from remote.agent.target import read_spec, write_spec
from remote.agent.webhook import Webhook
from remote.agent.xids import Xids
from remote.fleet.fleet import Fleet
from remote.fleet.timing import Timing
from remote.generate import layout
from remote.journal import CLOCK, TARGET, Journal
from remote.paths import Workspace
from remote.protocol import (
    READ_ONLY,
    Alert,
    AlertSpec,
    Done,
    Event,
    Get,
    Hello,
    HostState,
    Reading,
    Request,
    Result,
    RunControl,
    ServerInfo,
    ServerState,
    Shutdown,
    TargetSpec,
)

log = logging.getLogger("agent")

TICK_S = 1.0
PRUNE_S = 3600.0
EPOCHS_SHOWN = 20
KEEP_EPOCH_S = 30.0
"""How often an epoch's growing numbers are written down."""


class Agent:
    """Everything of one workspace. ``end`` is set when the agent is asked to leave."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        code: str,
        end: asyncio.Event,
        timing: Timing | None = None,
    ) -> None:
        self.workspace = workspace
        self.code = code
        self.spec: TargetSpec | None = None
        self.journal = Journal(workspace.journal, self._journal_problem)
        self.run = Run(workspace, self._url, self.emit)
        self._end, self._timing = end, timing
        self._loop = asyncio.get_running_loop()
        self._fleet: Fleet | None = None
        self._fleet_lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.first_minute = FirstMinute(self.journal, self.run, self.emit)
        self._actions = Actions(self)
        self._reader = Reader(self)
        self._tally = epochs.Tally()
        self._reserved = Reserved()
        self._eta = eta.EtaWatch()
        self._epochs_kept: dict[int, float] = {}
        self._gpus = host.Gpus(lambda text: self._later("host.gpus", text, "warning"))
        self._webhook = Webhook(lambda: self.spec, self._webhook_problem)
        self._watched = watched.Watched(self.journal)
        self._lookers = Lookers(self.journal, self._webhook)
        self._xids = Xids(self.emit, self._gpus.buses)
        self._simulated = os.environ.get("STOKER_SIMULATED") == "1"
        self._looked = time.monotonic()
        self._host = HostState()
        self._picture = Picture()
        self._background: set[asyncio.Task[object]] = set()

    # --- life ---

    async def open(self) -> None:
        """Read back what the last agent left, and find what still runs."""
        await self.journal.open()
        self.first_minute.read_back()
        self._lookers.read_back()
        unwatched, now = self._watched.read_back(), time.time()
        self.emit("agent.started", f"agent {self.code[:12]} started, pid {os.getpid()}")
        spec = await asyncio.to_thread(read_spec, self.workspace.spec)
        if spec is not None:
            self.spec = spec
            fleet = await self.fleet()
            if unwatched is not None:
                text = watched.gap(unwatched, now, _up(fleet.states()), self.run.alive)
                self.emit("agent.lost", text, level="warning")
            await self._actions.go_on()
        await self._look()

    async def live(self) -> None:
        """Watch, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._gpus.run())
            group.create_task(self._tick())
            group.create_task(self._webhook.run())
            group.create_task(self._prune())

    async def close(self) -> None:
        """Leave; servers and run go on."""
        await self._actions.close()
        for epoch in self.journal.epochs.values():
            if epoch.id in self._epochs_kept:
                self.journal.put_epoch(epoch)
        await self._actions.tell_run()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._fleet is not None:
            await self._fleet.close()
        self.run.close()
        self._xids.close()
        await self.run.written()
        self._watched.over(time.time())
        self.emit("agent.ended", "agent ended; servers and run go on")
        await self.journal.close()

    async def fleet(self, spec: TargetSpec | None = None) -> Fleet:
        """The fleet, made on first need, for the spec given or known. Raises RequestError."""
        async with self._fleet_lock:
            if spec is not None:
                self._check_workspace(spec)
                if spec != self.spec:
                    self.spec = spec
                    await asyncio.to_thread(self._keep_spec, spec)
            if self.spec is None:
                raise RequestError("this agent has not been told of a target yet: `stoker up`")
            if self._fleet is None:
                self._fleet = Fleet(
                    self.workspace,
                    self.spec,
                    run=self.run,
                    emit=self.emit,
                    gpus=self._gpus.states,
                    reported=self._xids.lately,
                    timing=self._timing,
                )
                await self._find(self._fleet)
                self._watch = asyncio.create_task(self._keep_watching(self._fleet))
            elif self._fleet.spec != self.spec:
                await self.run.take(self.spec)
                self._fleet.spec = self.spec
            return self._fleet

    async def _find(self, fleet: Fleet) -> None:
        """What runs already: servers and run of earlier agents, and foreign ones."""
        assert self.spec is not None
        await self.run.take(self.spec)
        for line in await fleet.adopt():
            self.emit("agent.found", line)
        line = await self.run.adopt()
        if line:
            self.emit("agent.found", line)
        path = self.run.output / layout.EPOCHS
        # A lost journal's epochs live on in the run directory.
        for epoch in (await asyncio.to_thread(epochs.read, path)).values():
            if epoch.id not in self.journal.epochs:
                self.journal.put_epoch(epoch)

    async def _keep_watching(self, fleet: Fleet) -> None:
        while True:
            try:
                await fleet.watch()
            except Exception as error:
                log.exception("watching the servers failed")
                self.emit("fleet.fault", f"{type(error).__name__}: {error}", level="error")
            await asyncio.sleep(2)

    async def _prune(self) -> None:
        while True:
            try:
                gone = await asyncio.to_thread(prune.prune, self.workspace.code, self.code)
            except OSError as error:
                log.warning("old code can't be removed: %s", error)
            else:
                if gone:
                    self.emit("agent.pruned", f"removed old code: {', '.join(gone)}")
            await asyncio.sleep(PRUNE_S)

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except Exception:
                log.exception("a round of looking failed")
            await asyncio.sleep(max(0.05, TICK_S - (time.monotonic() - began)))

    # --- each second ---

    async def _look(self) -> None:
        """Sample everything, keep it, and draw what follows from it."""
        now, moment = time.time(), time.monotonic()
        seconds, self._looked = min(moment - self._looked, 5.0), moment
        self._host = await asyncio.to_thread(
            host.host, self.workspace.root, simulated=self._simulated
        )
        hurt = self._xids.tell(await asyncio.to_thread(self._xids.look))
        if self._fleet is not None:
            for gpu in hurt:
                self._fleet.hurt(gpu)
            was = self.run.alive
            await self.run.look()
            if was and not self.run.alive:
                await self._actions.tell_run()
            infos, states = self._fleet.infos(), self._states(self._fleet, now)
            self._count(infos, states, now, seconds)
            self._watched.beat(now, _up(states), self.run.alive)
            if self.spec is not None:
                swap = self._actions.swap
                self.first_minute.look(
                    self.spec,
                    infos,
                    states,
                    self._gpus.states(),
                    now,
                    changing=swap is not None and swap.state == "doing",
                )
        before, self._picture = self._picture, self._compose(now)
        self._tell_alerts(before.alerts, self._picture.alerts)
        self._lookers.look(self._picture)
        seen = self._picture
        gpus = self.spec.fleet.gpus if self.spec else len(seen.gpus)
        self.journal.add_run(seen.run, now)
        if self.spec is not None:  # for one who plays the journal; an address may be a secret
            spec = msgspec.structs.replace(self.spec, alerts=AlertSpec(), credentials_file="")
            self.journal.note(TARGET, spec)
            self.journal.note(CLOCK, time.localtime(now).tm_gmtoff)
        self.journal.add(samples.sample(now, seen.servers, seen.gpus, gpus))

    def _compose(self, now: float) -> Picture:
        """Everything as it is known at this moment."""
        known = sorted(self.journal.epochs.values(), key=lambda e: e.id)
        fleet = self._fleet
        picture = Picture(
            target=self.spec,
            infos=fleet.infos() if fleet else [],
            servers=[diff.tidy(state) for state in self._states(fleet, now)] if fleet else [],
            gpus=[diff.tidy(card) for card in self._gpus.states()],
            host=self._host,
            run=self.run.state(),
            epochs=[epochs.rounded(epoch) for epoch in known[-EPOCHS_SHOWN:]],
            swap=self._actions.swap,
            verdict=self.first_minute.last,
            journal=self.journal.id,
        )
        wrong = alerts.wrong(picture, self.journal.problem)
        wrong += self._eta.look(picture, self._picture.alerts, now)
        found = alerts.since(self._picture.alerts, wrong, round(now, 3))
        return msgspec.structs.replace(picture, alerts=found)

    def _states(self, fleet: Fleet, now: float) -> list[ServerState]:
        """The servers, with what the run says of them."""
        progress = self.run.progress if self.run.alive else None
        return self._reserved.look(fleet.states(), fleet.infos(), progress, now)

    def _tell_alerts(self, before: list[Alert], now: list[Alert]) -> None:
        known = {alert.code for alert in before}
        for alert in now:
            # Servers, run and journal tell their own troubles as they happen.
            told = alert.code.startswith(("server.", "run.failed", "journal"))
            if alert.code not in known and not told:
                self.emit("alert", alert.text, level=alert.level, gpu=alerts.card(alert))
        wrong = {alert.code for alert in now}
        for alert in before:
            if alert.code not in wrong and not alert.code.startswith(("server.", "journal")):
                text = eta.over(alert, self._picture)
                self.emit("alert.over", text, gpu=alerts.card(alert))
                limit = self.spec.alerts.eta_hours_over if self.spec else None
                self.first_minute.alert_ended(alert.code, limit)

    def _count(
        self, infos: list[ServerInfo], states: list[ServerState], now: float, seconds: float
    ) -> None:
        progress = self.run.progress if self.run.alive else None
        moved = self._tally.add(self.journal.epochs, states, infos, progress, now, seconds)
        for epoch in moved.values():
            if now - self._epochs_kept.get(epoch.id, 0.0) >= KEEP_EPOCH_S:
                self._epochs_kept[epoch.id] = now
                self.journal.put_epoch(epoch)
            else:
                self.journal.epochs[epoch.id] = epoch

    @property
    def known_spec(self) -> TargetSpec:
        """The target. Raises RequestError where none was told of yet."""
        if self.spec is None:
            raise RequestError("this agent has not been told of a target yet")
        return self.spec

    # --- what connections show ---

    def picture(self) -> Picture:
        """The newest picture."""
        return self._picture

    def readings(self) -> list[Reading]:
        """The newest readings of the servers."""
        return self._fleet.readings() if self._fleet is not None else []

    def log_path(self, source: str) -> Path | None:
        """The file of a log source, None where there is no such source."""
        return self._reader.log_path(source)

    def infos(self) -> list[ServerInfo]:
        """What was known last of the servers."""
        return self._picture.infos

    @property
    def first_event(self) -> int:
        """Id of the oldest event that is kept, 0 where there is none."""
        return self.journal.first_event

    @property
    def last_event(self) -> int:
        """Id of the newest event."""
        return self.journal.last_event

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events behind a cursor."""
        return await self.journal.events(after, limit)

    def hello(self, hello: Hello) -> None:
        """A console has come. Its spec is taken only where there is none: looking changes
        nothing."""
        if self.spec is None and hello.spec is not None and hello.role == "console":
            task: asyncio.Task[object] = asyncio.create_task(self._first_spec(hello.spec))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def came(self, role: str) -> None:
        """Somebody has said hello."""
        if role == "console":
            self._lookers.came()

    def left(self, role: str) -> None:
        """One who had said hello has gone."""
        if role == "console":
            self._lookers.left(self._picture)

    async def _first_spec(self, spec: TargetSpec) -> None:
        try:
            await self.fleet(spec)
        except RequestError as error:
            self.emit("agent.target", str(error), level="warning")

    # --- requests ---

    async def answer(self, request: Request, who: str) -> Result:
        """Do what is asked, or raise RequestError."""
        match request:
            case Get():
                return diff.full(self._compose(time.time()), round(time.time(), 3), 0)
            case Shutdown():
                self.emit("action", "the agent is asked to end", who=who)
                self._end.set()
                return Done("the agent ends; servers and run go on")
        if isinstance(request, READ_ONLY):
            return await self._reader.answer(request)
        try:
            return await self._actions.do(request, who)
        except RequestError as refused:
            if not getattr(request, "dry_run", False):
                self.emit(
                    "action.refused", f"{_name(request)}: {refused}", level="warning", who=who
                )
            raise

    # --- helpers ---

    def emit(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: str = "info",
        who: str = "",
    ) -> Event:
        """Record an event; on the loop only."""
        event = self.journal.emit(kind, text, gpu=gpu, level=level, who=who)
        number = {"error": logging.ERROR, "warning": logging.WARNING}.get(level, logging.INFO)
        log.log(number, "%s: %s", kind, text)
        return event

    def _later(self, kind: str, text: str, level: str) -> None:
        """Emit from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self.emit(kind, text, level=level))

    def _webhook_problem(self, text: str) -> None:
        self.emit(
            "webhook", text or "webhook: messages arrive again", level="warning" if text else "info"
        )

    def _journal_problem(self, text: str) -> None:
        self._later("journal", text, "info" if text.endswith("again") else "warning")

    def _url(self, gpu: int) -> str:
        if self._fleet is not None:
            return self._fleet.url(gpu)
        port = self.spec.fleet.base_port if self.spec else 30000
        return f"http://127.0.0.1:{port + gpu}"

    def _check_workspace(self, spec: TargetSpec) -> None:
        root = self.workspace.root
        if Path(spec.workspace) != root and Path(spec.workspace).resolve() != root:
            text = f"this agent is of {root}, not of {spec.workspace}"
            raise RequestError(text, "usage")

    def _keep_spec(self, spec: TargetSpec) -> None:
        try:
            write_spec(self.workspace.spec, spec)
        except OSError as error:
            text = f"{self.workspace.spec}: {error.strerror}: kept in memory only"
            self._later("agent.target", text, "warning")


def _up(states: list[ServerState]) -> list[int]:
    """The GPUs of which a server is up."""
    return [state.gpu for state in states if state.state not in ("stopped", "failed")]


def _name(request: Request) -> str:
    """A request as the command line calls it: ``up``, ``run start``, ``run pause``."""
    if isinstance(request, RunControl):
        return f"run {request.do}"
    return str(request.__struct_config__.tag).replace(".", " ")
