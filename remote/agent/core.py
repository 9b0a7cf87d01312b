"""The agent's parts, wired: what is seen each second, and how requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from remote import host, samples
from remote.agent import diff, logs
from remote.agent.diff import Picture
from remote.agent.serve import RequestError
from remote.journal import Journal
from remote.paths import Workspace
from remote.protocol import (
    READ_ONLY,
    Done,
    Event,
    Events,
    Get,
    Hello,
    ReadEvents,
    ReadHistory,
    Reading,
    ReadLog,
    Request,
    Result,
    Shutdown,
    TargetSpec,
)

log = logging.getLogger("agent")

TICK_S = 1.0


class Agent:
    """Everything of one workspace. ``end`` is set when the agent is asked to leave."""

    def __init__(self, workspace: Workspace, *, code: str, end: asyncio.Event) -> None:
        self.workspace = workspace
        self.code = code
        self._end = end
        self._loop = asyncio.get_running_loop()
        self.journal = Journal(workspace.journal, self._journal_problem)
        self.spec: TargetSpec | None = None
        self._gpus = host.Gpus(lambda text: self._later("host.gpus", text, "warning"))
        self._simulated = os.environ.get("STOKER_SIMULATED") == "1"
        self._picture = Picture()

    # --- life ---

    async def open(self) -> None:
        """Read back what the last agent left."""
        await self.journal.open()
        self.spec = await asyncio.to_thread(read_spec, self.workspace.spec)
        self.emit("agent.started", f"agent {self.code[:12]} started, pid {os.getpid()}")

    async def run(self) -> None:
        """Watch, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._gpus.run())
            group.create_task(self._tick())

    async def close(self) -> None:
        """Leave; servers and run go on."""
        self.emit("agent.ended", "agent ended; servers and run go on")
        await self.journal.close()

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except Exception:
                log.exception("a round of looking failed")
            await asyncio.sleep(max(0.05, TICK_S - (time.monotonic() - began)))

    async def _look(self) -> None:
        """One round: sample everything, keep it, compose the picture."""
        state = await asyncio.to_thread(host.host, self.workspace.root, simulated=self._simulated)
        cards = [diff.tidy(card) for card in self._gpus.states()]
        count = self.spec.fleet.gpus if self.spec else len(cards)
        self.journal.add(samples.sample(time.time(), [], cards, count))
        self._picture = Picture(target=self.spec, gpus=cards, host=state)

    # --- what connections show ---

    def picture(self) -> Picture:
        """The newest picture."""
        return self._picture

    def readings(self) -> list[Reading]:
        """The newest readings of the servers."""
        return []

    def log_path(self, source: str) -> Path | None:
        """The file of a log source, None where there is no such source."""
        if source == "agent":
            return self.workspace.agent_log
        if source == "run":
            return self.workspace.run_log
        match = re.fullmatch(r"gpu(\d{1,3})", source)
        if match and self.spec:
            folder = self.workspace.root / self.spec.fleet.log_dir
            return folder / f"sglang_gpu{int(match[1])}.log"
        return None

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
        if self.spec is None and hello.spec is not None:
            self._take_spec(hello.spec)

    # --- requests ---

    async def answer(self, request: Request, who: str) -> Result:
        """Do what is asked, or raise RequestError."""
        if not isinstance(request, READ_ONLY):
            return await self._act(request, who)
        match request:
            case Get():
                return diff.full(self._picture, round(time.time(), 3), 0)
            case ReadLog():
                return await self._read_log(request)
            case ReadHistory():
                until = request.until or time.time()
                if not request.since < until:
                    raise RequestError("history: `since` must be before `until`")
                return await self.journal.history(request.since, until, request.points)
            case ReadEvents():
                limit = max(0, min(request.limit, 5000))
                return Events(await self.journal.events(request.after, limit))
        raise RequestError(f"{type(request).__name__}: not known here", "protocol")

    async def _act(self, request: Request, who: str) -> Result:
        match request:
            case Shutdown():
                self.emit("agent", "asked to end", who=who)
                self._end.set()
                return Done("the agent ends; servers and run go on")
        raise RequestError(f"{type(request).__name__}: not known here", "protocol")

    async def _read_log(self, request: ReadLog) -> Result:
        path = self.log_path(request.source)
        if path is None:
            raise RequestError(f"no log called {request.source!r}: gpu0 …, run or agent")
        lines = max(0, min(request.lines, 10_000))
        try:
            if request.offset is None:
                work = asyncio.to_thread(logs.tail, request.source, path, lines, request.grep)
            else:
                work = asyncio.to_thread(
                    logs.read, request.source, path, request.offset, lines, request.grep
                )
            return await work
        except FileNotFoundError:
            raise RequestError(f"{path}: not there yet") from None
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}") from None
        except re.error as error:
            raise RequestError(f"grep {request.grep!r}: {error}") from None

    # --- helpers ---

    def emit(self, kind: str, text: str, **more: Any) -> Event:
        """Record an event; on the loop only."""
        event = self.journal.emit(kind, text, **more)
        log.log(
            {"error": logging.ERROR, "warning": logging.WARNING}.get(event.level, logging.INFO),
            "%s%s: %s",
            kind,
            "" if event.gpu is None else f" gpu{event.gpu}",
            text,
        )
        return event

    def _later(self, kind: str, text: str, level: str) -> None:
        """Emit from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self.emit(kind, text, level=level))

    def _journal_problem(self, text: str) -> None:
        self._later("journal", text, "info" if text.endswith("again") else "warning")

    def _take_spec(self, spec: TargetSpec) -> None:
        self.spec = spec
        with contextlib.suppress(OSError):
            write_spec(self.workspace.spec, spec)


def read_spec(path: Path) -> TargetSpec | None:
    """The spec the last agent kept; None where there is none or it does not fit."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TargetSpec)
    except (OSError, msgspec.DecodeError):
        return None


def write_spec(path: Path, spec: TargetSpec) -> None:
    """Keep the spec, by rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
    temporary.replace(path)
