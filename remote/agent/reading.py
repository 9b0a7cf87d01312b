"""Requests that only look: logs, events, the past, what the run has written, SGLang's flags."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path
from typing import Protocol

import msgspec

from remote import answers, batches, mix
from remote.agent import logs, machine, merged, search
from remote.agent.run import Run
from remote.agent.serve import RequestError
from remote.fleet import environment
from remote.fleet.fleet import Fleet, FleetError
from remote.journal import Journal
from remote.paths import Workspace
from remote.protocol import (
    CheckFlags,
    Done,
    Events,
    Marks,
    ReadAnswers,
    ReadBatches,
    ReadEvents,
    ReadFlags,
    ReadHistory,
    ReadLog,
    ReadMachine,
    ReadMarks,
    ReadMerged,
    ReadMix,
    Request,
    Result,
    ServerInfo,
    TargetSpec,
)


class Owner(Protocol):
    """What the reader needs of the agent."""

    workspace: Workspace
    journal: Journal
    run: Run
    spec: TargetSpec | None

    async def fleet(self, spec: TargetSpec | None = None) -> Fleet: ...
    def infos(self) -> list[ServerInfo]: ...


class Reader:
    """Answers what changes nothing."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._mixer = mix.Mixer()
        self._searching, self._looking = asyncio.Lock(), asyncio.Lock()

    async def answer(self, request: Request) -> Result:
        """What is there. Raises RequestError."""
        run, journal = self._owner.run, self._owner.journal
        match request:
            case ReadLog():
                return await self._read_log(request)
            case ReadMerged():
                return await self._read_merged(request)
            case ReadHistory():
                until = request.until or time.time()
                if not request.since < until:
                    raise RequestError("history: `since` must be before `until`", "usage")
                return await journal.history(request.since, until, request.points)
            case ReadEvents():
                limit = max(0, min(request.limit, 5000))
                return Events(await journal.events(request.after, limit, request.before))
            case ReadMarks():
                until = time.time() if request.until is None else request.until
                return Marks(await journal.marks(request.since, until, request.points))
            case ReadBatches():
                return await asyncio.to_thread(batches.count, run.output)
            case ReadMix():
                return await asyncio.to_thread(self._mixer.look, run.output, run.prompts)
            case ReadAnswers():
                return await self._read_answers(request)
            case CheckFlags():
                fleet = await self._owner.fleet()
                await fleet.learn()
                try:
                    return Done("; ".join(fleet.checked(request.flags)[1]))
                except FleetError as error:
                    raise RequestError(str(error), error.code) from None
            case ReadMachine():
                return await self._read_machine()
            case ReadFlags():
                fleet = await self._owner.fleet()
                try:
                    return await fleet.knowledge.flags(fleet.spec)
                except FleetError as error:
                    raise RequestError(str(error), error.code) from None
        raise RequestError(f"{type(request).__name__}: not known here", "protocol")

    def log_path(self, source: str) -> Path | None:
        """The file of a log source, None where there is no such source."""
        workspace, spec = self._owner.workspace, self._owner.spec
        if source == "agent":
            return workspace.agent_log
        if source == "run":
            return workspace.run_log
        match = re.fullmatch(r"gpu(\d{1,3})", source)
        if match is None or spec is None:
            return None
        gpu = int(match[1])
        said = next((i.log for i in self._owner.infos() if i.gpu == gpu and i.log), "")
        if not said and gpu >= spec.fleet.gpus:
            return None
        return workspace.root / spec.fleet.log_dir / (said or f"sglang_gpu{gpu}.log")

    async def _read_answers(self, asked: ReadAnswers) -> Result:
        request = msgspec.structs.replace(
            asked,
            limit=max(1, min(asked.limit, 500)),
            chars=max(1, min(asked.chars, answers.TEXT)),
        )
        folder = self._owner.run.output
        if request.grep or request.outcome or request.index is not None:
            return await self._search(request, folder)
        try:
            return await asyncio.to_thread(
                answers.newest,
                folder,
                request.kind,
                request.limit,
                chars=request.chars,
                before=request.before,
            )
        except OSError as error:
            raise RequestError(f"{folder}: {error.strerror}") from None

    async def _read_log(self, asked: ReadLog) -> Result:
        path = self._known(asked.source)
        request = msgspec.structs.replace(asked, lines=max(-10_000, min(asked.lines, 10_000)))
        if request.grep:
            return await self._search(request, path)
        try:
            if request.offset is None:
                return await asyncio.to_thread(logs.tail, request.source, path, request.lines)
            return await asyncio.to_thread(
                logs.read, request.source, path, request.offset, request.lines
            )
        except FileNotFoundError:
            raise RequestError(f"{path}: not there yet") from None
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}") from None

    def _known(self, source: str) -> Path:
        path = self.log_path(source)
        if path is None:
            spec = self._owner.spec
            gpus = f"gpu0 to gpu{spec.fleet.gpus - 1}, " if spec is not None else ""
            raise RequestError(f"no log called {source!r}: there are {gpus}run, agent", "usage")
        return path

    async def _read_merged(self, asked: ReadMerged) -> Result:
        paths = {source: self._known(source) for source in asked.sources}
        request = msgspec.structs.replace(
            asked, sources=list(paths), lines=max(-10_000, min(asked.lines, 10_000))
        )
        if request.grep:
            return await self._search(request, paths)
        try:
            return await asyncio.to_thread(merged.read, paths, request)
        except OSError as error:
            raise RequestError(f"{error.filename}: {error.strerror}") from None

    async def _read_machine(self) -> Result:
        spec = self._owner.spec
        env = environment.clean(os.environ)
        if spec is not None:
            fleet = await self._owner.fleet()
            with contextlib.suppress(FleetError):  # a start says what is wrong with it
                env = await fleet.launcher.environment(spec)
        pids = [info.pid for info in self._owner.infos() if info.pid is not None]
        async with self._looking:  # its commands may each hang for a while
            return await machine.look(spec.python if spec is not None else "", env, pids)

    async def _search(self, request: search.Asked, path: Path | search.Paths) -> Result:
        """One search at a time: each may take a core."""
        async with self._searching:
            try:
                return await search.search(request, path)
            except search.SearchError as error:
                raise RequestError(str(error), error.code) from None
            except OSError as error:
                raise RequestError(str(error)) from None
