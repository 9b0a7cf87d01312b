"""The generation, from the agent's side: a process of its own, steered by ``control.json``.

It is started under the same tiny holder as the servers, so that it outlives the agent and leaves
its exit status behind. What it is to do stands in ``control.json`` of the run directory; what it
does is read from its ``progress.json``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from remote.agent import launching
from remote.agent.launching import RunLaunch
from remote.agent.orders import Orders
from remote.agent.serve import RequestError
from remote.agent.uploads import Uploads
from remote.bridge import last_line
from remote.fleet.outside import Dispatch
from remote.fleet.records import Folder
from remote.generate import control, layout, lock
from remote.generate.control import Control
from remote.generate.records import RunFile
from remote.paths import Workspace
from remote.protocol import MOST_AT_ONCE, Progress, RunSpec, RunState, TargetSpec

FRESH_S = 30.0
"""A progress file that changed within this time has a living writer."""
REVIVE_S = (2.0, 10.0, 60.0, 300.0)
"""Waits before a run that died is started again; after the last one within an hour it stays."""
LATELY_S = 900.0
"""A run that died without an agent is started again only within this time: later, people decide."""
HOLDER_S = 3.0
EARLY_S = 10.0
"""For so long a start waits for the run's first word or its early end."""

Order: TypeAlias = Literal["run", "pause", "drain", "stop"]

_ORDERED: Final[Mapping[Order, str]] = {
    "pause": "paused: nothing new is sent, what is in flight may end",
    "run": "resumed",
    "drain": "draining: what is in flight may end, then the run leaves",
    "stop": "stopping: what is in flight is ended and will be sent again",
}


class Run:
    """The run of one workspace; also the fleet's :class:`~remote.fleet.outside.RunSide`."""

    def __init__(
        self,
        workspace: Workspace,
        url: Callable[[int], str],
        emit: Callable[..., object],
    ) -> None:
        self.workspace = workspace
        self.folder = workspace.run
        self._records = Folder(self.folder)
        self.launch: RunLaunch | None = None
        self.progress: Progress | None = None
        self.exit: int | None = None
        self.pid: int | None = None
        self.foreign = False
        self._url = url
        self._orders = Orders(url, lambda: self.output, emit)
        self._emit = emit
        self._spec = RunSpec()
        self._alive = False
        self._progress_mtime = 0
        self._began: tuple[str, float] | None = None
        """Which run began when."""
        self._message = ""
        self._target: TargetSpec | None = None
        self._died: float | None = None
        self._revived: list[float] = []
        self._reviving: asyncio.Task[None] | None = None
        self._again_at: float | None = None
        """When it is started again by itself, while that is awaited."""
        self._uploads = Uploads()

    # --- what is known ---

    @property
    def alive(self) -> bool:
        """Whether a run is at work in the output folder, ours or not."""
        return self._alive

    @property
    def output(self) -> Path:
        """The run directory."""
        return self.workspace.root / self._spec.output

    @property
    def prompts(self) -> Path:
        """The prompts file."""
        return self.workspace.root / self._spec.prompts

    @property
    def control(self) -> Control:
        """The desired state."""
        return self._orders.control

    def state(self) -> RunState:
        """For the snapshot."""
        return RunState(
            alive=self._alive,
            pid=self.pid if self._alive else None,
            output=self._spec.output,
            prompts=self._spec.prompts,
            progress=self.progress,
            foreign=self.foreign,
            exit=None if self._alive else self.exit,
            concurrency=self.control.concurrency,
            began=self._began[1] if self._began is not None else None,
            again_at=None if self._alive else self._again_at,
        )

    async def take(self, spec: TargetSpec) -> None:
        """Another spec: where the run directory lies may have changed."""
        known = await asyncio.to_thread(control.read, self.workspace.root / spec.run.output)
        moved = spec.run.output != self._spec.output
        self._spec, self._target = spec.run, spec
        self._orders.take(known, moved=moved)
        if moved:
            self.progress, self._progress_mtime = None, 0

    # --- the fleet's side ---

    def dispatch(self, gpu: int, do: Dispatch) -> None:
        """What the run may do with one server from now on."""
        self._orders.dispatch(gpu, do)

    def in_flight(self, gpu: int) -> int | None:
        """Requests open on one server; None where no run is alive.

        Until the run obeys the last order for this server, its account may be older than that
        order: then at least one is assumed, since a server must not be stopped under requests
        nobody knew of.
        """
        if not self._alive or self.foreign or self.progress is None:
            return None
        work = self.progress.servers.get(self._url(gpu))
        count = work.in_flight if work is not None else 0
        return count if work is None or self._orders.obeyed(gpu, self.progress) else max(count, 1)

    async def refresh(self) -> None:
        """Take in the run's newest account of itself."""
        await asyncio.to_thread(self._read_progress)

    def unable(self) -> str:
        """Why interrupted answers could not be continued; empty where they can."""
        if not self._alive:
            return "no run of Stoker's is at work"
        if self.foreign:
            return "the run was not started by Stoker"
        if self.progress is None or not self.progress.control_version:
            return "this run does not keep them"
        return next((work.whole for work in self.progress.servers.values() if work.whole), "")

    def tokens(self) -> tuple[int, int]:
        """Output tokens of interrupted answers that the run's process has kept and lost."""
        if self.progress is None or self.foreign:
            return 0, 0
        return self.progress.tokens_kept, self.progress.tokens_lost

    def server(
        self, gpu: int, *, max_running: int | None, epoch: int | None, process: str, tried: bool
    ) -> None:
        """A server process is ready."""
        self._orders.change(gpu, max_running=max_running, epoch=epoch, process=process, tried=tried)

    async def written(self) -> None:
        """Until the desired state is on disk."""
        await self._orders.written()

    # --- looking ---

    def _hear(self) -> None:
        """Tell what the run says of itself, once."""
        said = self.progress.message if self.progress is not None else ""
        if said not in ("", self._message):
            self._message = said
            self._emit("run.message", said)

    async def adopt(self) -> str:
        """Find the run that an earlier agent started; returns a line on it, or nothing."""
        self.launch = await asyncio.to_thread(launching.launch_in, self.folder)
        await self.look(quiet=True)
        if self.launch is None:
            return "a run that Stoker did not start is at work" if self.foreign else ""
        if self._alive:
            return f"the run goes on, pid {self.pid}"
        if await asyncio.to_thread(self._died_lately):
            # It was killed together with the agent, or while none was there.
            self._ended(await asyncio.to_thread(last_line, self._log))
        return f"the run had ended ({how(self.exit)})"

    async def look(self, *, quiet: bool = False) -> None:
        """Once a second: is it alive, what does it say."""
        was = self._alive and not self.foreign
        others = self.foreign
        uploaded = await asyncio.to_thread(self._observe)
        if uploaded:
            self._emit("s3.uploaded", uploaded)
        if quiet:
            self._message = self.progress.message if self.progress else ""
            return
        self._hear()
        if self.foreign != others:
            whose = "a run that Stoker did not start"
            pid = f", pid {self.pid}" if self.pid else ""
            ended = f"{whose} is at work no more"
            self._emit("run.foreign", f"{whose} is at work{pid}" if self.foreign else ended)
        if was and not self._alive:
            self._died = time.monotonic()
        if self._died is not None:
            if self._alive:
                self._died = None
            # Its holder writes down how it ended a moment after it has.
            elif self.exit is not None or time.monotonic() - self._died > HOLDER_S:
                self._died = None
                self._ended(await asyncio.to_thread(last_line, self._log))

    def _ended(self, words: str) -> None:
        progress = self.progress
        done = f"{progress.completed} of {progress.total} prompts" if progress else "?"
        if self.exit == 0:
            self._emit("run.done", f"the run is done: {done}")
            return
        status = progress.status if progress else "unknown"
        if self.exit == 1 and status == "done" and progress is not None:
            rest = {
                "given up": progress.failed,
                "set aside": progress.set_aside,
                "not uploaded": progress.not_in_s3,
            }
            told = ", ".join(f"{count} {what}" for what, count in rest.items() if count)
            self._emit("run.done", f"the run is done: {done}; {told}", level="warning")
            return
        if self.exit in (1, 130) and status in ("stopped", "done"):
            self._emit("run.ended", f"the run ended ({status}): {done} done")
            return
        text = f"the run ended ({how(self.exit)}) with {done} done"
        if self.exit is not None and self.exit > 0:
            text += f": {words}"
        wait = self._next_revival()
        if wait is not None and self.launch is not None:
            text += f"; it is started again in {wait:.0f} s"
            self._reviving = asyncio.create_task(self._revive(self.launch, wait))
        self._emit("run.failed", text, level="error")

    def _next_revival(self) -> float | None:
        """Seconds until a run that ended by no one's wish is started again; None: not any more.

        It resumes where it stopped, so nothing speaks against it but a fault that comes back.
        """
        now = time.time()
        self._revived = [t for t in self._revived if now - t < 3600]
        if self.control.dispatch not in ("run", "pause") or self._target is None:
            return None
        count = len(self._revived)
        return REVIVE_S[count] if count < len(REVIVE_S) else None

    async def _revive(self, launch: RunLaunch, wait: float) -> None:
        self._again_at = time.time() + wait
        try:
            await asyncio.sleep(wait)
        finally:
            self._again_at = None
        if self.launch is not launch or self._alive or self._target is None:
            return
        self._revived.append(time.time())
        try:
            again = await asyncio.to_thread(
                launching.once_more, self.workspace, self._target, launch
            )
            env = await launching.environ(self._target)
            self.launch = again
            await asyncio.to_thread(launching.hold, self.folder, again, env)
            self._emit("run.started", f"started again: {await self._first_word(again)}")
        except (OSError, RequestError) as error:
            self._emit("run.failed", f"starting it again failed: {error}", level="error")

    def _let_lie(self) -> bool:
        """Forget a revival that waits; whether one did."""
        waiting = self._reviving is not None and not self._reviving.done()
        if self._reviving is not None:
            self._reviving.cancel()
            self._reviving = None
        return waiting

    @property
    def _log(self) -> Path:
        return self.workspace.run_log

    def _died_lately(self) -> bool:
        """Whether the run that an earlier agent started was killed a moment ago."""
        if self.launch is None or self.exit in (0, 1, 2, 130):
            return False
        running, ended = (
            self._records.running(self.launch.launch),
            self._records.exit(self.launch.launch),
        )
        if running is None or running.identity is None:  # not this boot: no server lives either
            return False
        last = ended.ended if ended else self.progress.time if self.progress else running.began
        return time.time() - last < LATELY_S

    def _observe(self) -> str:
        """Take in what is there; returns a line on files that have reached the bucket."""
        launch = self.launch.launch if self.launch else ""
        running, ended = self._records.running(launch), self._records.exit(launch)
        main = running.identity if running else None
        alive = main is not None and main.alive
        self.pid = running.pid if running else None
        self.exit = ended.status if ended else None
        self._read_progress()
        self.foreign = False
        if not alive:
            self.foreign = self._foreign()
        self._alive = alive or self.foreign
        return self._uploads.look(self.output, self.progress)

    def _read_progress(self) -> None:
        path = self.output / layout.PROGRESS
        try:
            mtime = path.stat().st_mtime_ns
            if mtime != self._progress_mtime:
                self.progress = msgspec.json.decode(path.read_bytes(), type=Progress)
                self._progress_mtime = mtime
        except FileNotFoundError:
            self.progress = None
        except (OSError, msgspec.DecodeError):
            pass  # an older tool's file may hold other types: the last good one stays
        self._read_began()

    def _read_began(self) -> None:
        run = self.progress.run_id if self.progress is not None else ""
        if not run:
            self._began = None  # none there, or an older tool's: it does not say
        elif self._began is None or self._began[0] != run:
            with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
                told = msgspec.json.decode((self.output / layout.RUN).read_bytes(), type=RunFile)
                self._began = (run, datetime.fromisoformat(told.created).timestamp())

    def _foreign(self) -> bool:
        """Whether a run that is not ours works in the output folder."""
        if not self.output.is_dir():
            return False
        if lock.held(self.output):
            holder = lock.read(self.output)
            self.pid = holder.pid if holder else None
            return True
        # The operators' own tool holds no lock, but keeps its progress file fresh.
        age = time.time() - self._progress_mtime / 1e9
        running = self.progress is not None and self.progress.status in ("running", "draining")
        known = self.progress is not None and self.progress.run_id
        return bool(running and age < FRESH_S and not known)

    # --- acting ---

    async def start(
        self, spec: TargetSpec, *, who: str, extend: bool = False, accept_params: bool = False
    ) -> str:
        """Start the generation, or resume it; returns its first word. Raises RequestError."""
        self._let_lie()
        self._revived.clear()
        self._message = ""  # a new process says it anew
        await self.take(spec)
        await self.look(quiet=True)
        if self._alive and not self.foreign and self.control.dispatch in ("drain", "stop"):
            raise RequestError(self._leaving())
        if self._alive:
            whose = f"pid {self.pid}" if self.pid else "not started by Stoker"
            raise RequestError(f"a run is at work already ({whose}): stop it first")
        launch = await asyncio.to_thread(
            launching.prepare,
            self.workspace,
            spec,
            who=who,
            extend=extend,
            accept_params=accept_params,
        )
        env = await launching.environ(spec)
        self._message = ""
        self._orders.set(dispatch="run", seal=False, concurrency=spec.run.concurrency)
        await self.written()
        self.launch = launch
        try:
            await asyncio.to_thread(launching.hold, self.folder, launch, env)
        except OSError as error:
            raise RequestError(f"the run can't be started: {error.strerror}") from None
        return await self._first_word(launch)

    async def _first_word(self, launch: RunLaunch) -> str:
        """The run's own first line, or why it ended at once."""
        deadline = time.monotonic() + EARLY_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            await asyncio.to_thread(self._observe)
            ended = await asyncio.to_thread(self._records.exit, launch.launch)
            if ended is not None:
                self._alive = False
                if ended.status == 0:
                    return "nothing was left to do: every prompt is done"
                why = ended.error or await asyncio.to_thread(last_line, self._log)
                raise RequestError(f"the run did not start: {why}")
            said = self.progress
            if said is not None and said.time >= launch.asked and said.message:
                self._hear()
                return said.message
        return f"started, pid {self.pid}; it reads its folder and checks the servers"

    async def steer(
        self,
        do: Literal["pause", "resume", "drain", "stop"],
        *,
        seal: bool = False,
        concurrency: int | Literal["auto"] | None = None,
    ) -> str:
        """Change what the running generation does. Raises RequestError."""
        if not self._alive:
            if do in ("stop", "drain") and self._let_lie():
                return "the run had ended; it is not started again"
            raise RequestError("no run is alive: start it (it resumes where it stopped)")
        if self.foreign:
            raise RequestError(
                f"this run (pid {self.pid}) was not started by Stoker: it is only watched"
            )
        if do in ("pause", "resume") and self.control.dispatch in ("drain", "stop"):
            raise RequestError(self._leaving())
        if do == "resume" and self.control.dispatch == "run" and concurrency is None:
            return "the run is not paused: it goes on"
        order, before = _order(do), self.control.concurrency
        fields: dict[str, Any] = {"dispatch": order, "seal": seal}
        stays = self.does(do)
        at_once = ""
        if concurrency is not None:
            if concurrency != "auto" and not 1 <= concurrency <= MOST_AT_ONCE:
                raise RequestError(
                    f"concurrency {concurrency}: auto, or 1 to {MOST_AT_ONCE:,} a server", "usage"
                )
            fields["concurrency"] = concurrency
            at_once = f"requests at once on each server: {concurrency} (before: {before})"
        self._orders.set(**fields)
        await self.written()
        if at_once and stays:
            return at_once
        return "; ".join(filter(None, (_ORDERED[order], at_once)))

    def does(self, do: Literal["pause", "resume", "drain", "stop"]) -> bool:
        """Whether that is what it was told last."""
        return self._alive and self.control.dispatch == _order(do)

    def _leaving(self) -> str:
        """What a run that was told to leave answers to other orders."""
        count = self.progress.in_flight if self.progress else 0
        return f"the run is stopping, {count} in flight: start it again once it has ended"

    def close(self) -> None:
        """Leave it as it is; the next agent looks after it."""
        self._let_lie()


def _order(do: Literal["pause", "resume", "drain", "stop"]) -> Order:
    return "run" if do == "resume" else do


def how(status: int | None) -> str:
    """A wait status in words."""
    if status is None:
        return "nobody knows how"
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"
