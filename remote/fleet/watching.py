"""Looking at every server for ever, and what is done about what is seen."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterable

from remote.fleet import finding, identity, processes
from remote.fleet.background import Background
from remote.fleet.holder import MARK
from remote.fleet.identity import Process
from remote.fleet.memory import OomKills
from remote.fleet.operations import Operations
from remote.fleet.outside import FleetError, InVainError, Report
from remote.fleet.processes import Identity
from remote.fleet.records import Launch
from remote.fleet.server import NEEDS_KEY, Change, Server
from remote.sglang.catalogue import Catalogue
from remote.sglang.causes import Cause, flags_mend

_KNOWN = ("xid", "flags", "backend", "model", "port", "jit", "disk", "memory")
"""Causes that no report on the card explains better."""

_OOM_EXPLAINS_S = 60.0
"""A server whose process was killed within this time of the kernel's doing was killed by it."""

_IN_VAIN = "not started again by itself: it would fail the same way"


class Watch:
    """Each second processes and logs, more rarely by HTTP; failures are cleared away, explained
    and, within bounds, mended."""

    def __init__(
        self,
        *,
        servers: Callable[[], list[Server]],
        lock: Callable[[int], asyncio.Lock],
        operations: Operations,
        start_again: Callable[[Server, Launch], Awaitable[None]],
        set_key: Callable[[Server], Awaitable[None]],
        catalogue: Callable[[], Catalogue | None],
        background: Background,
        reported: Callable[[int], Report | None],
    ) -> None:
        self._servers, self._lock, self._operations = servers, lock, operations
        self._start_again, self._catalogue = start_again, catalogue
        self._set_key = set_key
        self._background, self._reported = background, reported
        self._run, self._emit, self._timing = operations.run, operations.emit, operations.timing
        self._oom_kills = OomKills()
        self._failed: dict[int, str] = {}
        """The launch whose failure was told last, by GPU."""
        self._proofs: dict[int, asyncio.Task[None]] = {}
        self._polls: dict[int, asyncio.Task[None]] = {}
        self._stalls: dict[int, asyncio.Task[None]] = {}
        self._next_table = self._next_ports = 0.0

    async def go(self) -> None:
        """For ever: a fault in one look is told, and the next look is taken all the same."""
        while True:
            began = time.monotonic()
            try:
                await self._tick(began)
            except Exception as error:
                self._background.fault(error)
            await self._until(began + self._timing.tick)

    async def _until(self, end: float) -> None:
        """The time to the next look; servers that are coming up are looked at meanwhile."""
        await asyncio.sleep(0.01)
        while (left := end - time.monotonic()) > 0:
            coming = [s for s in self._servers() if s.status in ("starting", "warming")]
            await asyncio.sleep(min(left, self._timing.starting) if coming else left)
            if coming and left > self._timing.starting:
                try:
                    await self._look(coming)
                except Exception as error:
                    self._background.fault(error)

    async def _tick(self, now: float) -> None:
        for server in self._servers():
            if server.gpu not in self._polls or self._polls[server.gpu].done():
                self._polls[server.gpu] = self._background.start(self._poll(server.gpu))
        await self._look(self._servers())
        if now >= self._next_ports:
            self._next_ports = now + self._timing.ports
            await self.find_foreign()

    async def find_foreign(self) -> list[str]:
        """Servers on our ports that are not ours; a line for each new one."""
        lines: list[str] = []
        free = [s for s in self._servers() if not s.alive and not s.held]
        found = await asyncio.to_thread(finding.who_serves, [s.port for s in free])
        for server in free:
            pid = found.get(server.port)
            main = processes.identify(pid) if pid is not None else None
            if main is None or await asyncio.to_thread(self._is_ours, main):
                continue
            about = await asyncio.to_thread(finding.look_at, main, self._catalogue())
            if server.held or server.alive:
                continue  # an action took it meanwhile
            server.begin_foreign(main, about)
            line = await asyncio.to_thread(finding.describe_foreign, server)
            self._emit("server.foreign", line, gpu=server.gpu, level="warning")
            lines.append(line)
        return lines

    def _is_ours(self, main: Identity) -> bool:
        """Whether a process is of a server that has failed here, and is still being ended."""
        known = {s.launch.launch: s.main for s in self._servers() if s.launch is not None}
        return main in known.values() or processes.environ(main.pid, MARK) in known

    async def _look(self, those: Iterable[Server]) -> None:
        servers = [s for s in those if s.alive]
        if not servers:
            return

        whole = time.monotonic() >= self._next_table
        if whole:
            self._next_table = time.monotonic() + self._timing.table
            self._look_for_oom_kills()
        known = {p.pid for s in servers for p in s.tree}
        known |= {s.main.pid for s in servers if s.main is not None}

        def read() -> dict[int, Process]:
            for server in servers:
                server.read_log()
            return identity.table(None if whole else known)

        table = await asyncio.to_thread(read)
        for server in servers:
            server.in_flight = self._run.in_flight(server.gpu)
            change = server.look(table, time.time())
            if change is not None:
                self._act(server, change)
            if server.status == "stalled" and not server.held:
                self._mind_stall(server)

    def _look_for_oom_kills(self) -> None:
        if count := self._oom_kills.look(time.time()):
            what = "a process" if count == 1 else f"{count} processes"
            text = f"the kernel killed {what} of this container: out of memory (not the GPUs')"
            self._emit("host.oom", text, level="error")

    # --- Acting on it ---

    def _act(self, server: Server, change: Change) -> None:
        gpu = server.gpu
        cause = server.cause.text if server.cause is not None else ""
        if change == "fired up":
            if gpu not in self._proofs or self._proofs[gpu].done():
                self._proofs[gpu] = self._background.start(self._prove(server))
        elif change == "failed":
            self.failed(server)
        elif change == "ended" and not server.held:
            why = f": {cause}" if cause else ""
            self._emit("server.stopped", f"GPU {gpu}: stopped{why}", gpu=gpu)
        elif change == "stalled":
            self._emit("server.stalled", f"GPU {gpu}: {cause}", gpu=gpu, level="error")
        elif change == "drains":
            text = f"GPU {gpu}: got a SIGTERM that did not come from here: nothing more is sent"
            text = f"{text} to it, and it ends once it is empty"
            self._emit("server.draining", text, gpu=gpu, level="warning")
            self._operations.dispatch(server, "pause")
        elif change == "moves again":
            self._emit("server.ready", f"GPU {gpu}: tokens flow again", gpu=gpu)
            if not server.held:
                self._operations.dispatch(server, "run")

    async def _prove(self, server: Server) -> None:
        if not await self._operations.prove(server) and server.status == "failed":
            self.failed(server)

    def _mind_stall(self, server: Server) -> None:
        """Nothing more to it, and an end of it if that goes on; an action that had it in hand as
        it stalled has let go of it."""
        minded = self._stalls.get(server.gpu)
        if minded is None or minded.done():
            self._operations.dispatch(server, "pause")
            self._stalls[server.gpu] = self._background.start(self._after_stall(server))

    async def _after_stall(self, server: Server) -> None:
        launch = server.launch
        deadline = time.monotonic() + self._timing.stalled_restart
        while server.status == "stalled" and server.launch is launch and not server.held:
            if time.monotonic() > deadline:
                assert server.cause is not None
                server.fail(server.cause)
                self.failed(server)
                return
            await asyncio.sleep(self._timing.tick)

    def failed(self, server: Server) -> None:
        """Say so, take it from the run, end what is left of it, and start it again if that may
        help."""
        if server.launch is not None:
            # A look and the proof of a start may both find it dead.
            if self._failed.get(server.gpu) == server.launch.launch:
                return
            self._failed[server.gpu] = server.launch.launch
        if not self._blame_card(server):
            self._blame_memory(server)
        cause = server.cause.text if server.cause is not None else "nobody knows why"
        at = server.exit.ended if server.exit is not None else time.time()
        server.ends.note(at, cause, server.launch.launch if server.launch is not None else "")
        self._emit("server.failed", f"GPU {server.gpu}: {cause}", gpu=server.gpu, level="error")
        self._operations.dispatch(server, "abort")
        self._background.start(self._after_failure(server))

    def explain(self, server: Server) -> None:
        """The driver's report came after the server's end: say so, and don't start it in vain."""
        if server.status == "failed" and self._blame_card(server):
            assert server.cause is not None
            text = f"GPU {server.gpu}: {server.cause.text}"
            self._emit("server.failed", text, gpu=server.gpu, level="error")

    def _blame_card(self, server: Server) -> bool:
        cause, report = server.cause, self._reported(server.gpu)
        if report is None or (cause is not None and cause.code in _KNOWN):
            return False
        seen = f"; its log says: {cause.text}" if cause is not None else ""
        again = report.again and (cause is None or cause.again)
        server.fail(Cause("xid", f"{report.words}{seen}", again=again))
        return True

    def _blame_memory(self, server: Server) -> None:
        """A process that was killed just as the kernel killed one was that one."""
        self._look_for_oom_kills()
        cause, last = server.cause, self._oom_kills.last
        if cause is None or last is None or time.time() - last > _OOM_EXPLAINS_S:
            return
        killed = server.exit is not None and server.exit.status == -signal.SIGKILL
        if cause.code in ("child", "unknown") or (cause.code == "exit" and killed):
            text = "killed by the kernel: the container's memory (not the GPU's) ran out"
            server.fail(Cause("oom-host", f"{text}; seen of it: {cause.text}"))

    async def _after_failure(self, server: Server) -> None:
        launch = server.launch
        await asyncio.to_thread(server.ends.keep)
        async with self._lock(server.gpu):
            if server.launch is launch and server.status == "failed":
                await self._operations.clear_away(server)
        gpu = server.gpu
        while launch is not None:
            if launch.wanted != "up" or launch.swap is not None or server.held:
                return
            wait = await self._wait_before_restart(server)
            if wait is None:
                return
            self._emit("server.restart", f"GPU {gpu}: starting again in {wait:.0f} s", gpu=gpu)
            server.again_at = time.time() + wait
            try:
                await asyncio.sleep(wait)
            finally:
                server.again_at = None
            launch = await self._try_again(server, launch)

    async def _try_again(self, server: Server, launch: Launch) -> Launch | None:
        """Start a failed server again. Returns what is to be tried later where that could not be
        done; None where it is under way, or is not to be done any more."""
        async with self._lock(server.gpu):
            if server.launch is not launch or server.status != "failed" or server.held:
                return None
            if server.cause is not None and not server.cause.again:  # known better meanwhile
                await self._set_aside(server, _IN_VAIN)
                return None
            await asyncio.to_thread(server.restarts.note, time.time())
            try:
                await self._start_again(server, launch)
            except FleetError as error:
                again = not isinstance(error, InVainError)
                server.fail(Cause("start", str(error), again=again))
                text = f"GPU {server.gpu}: could not be started again: {error}"
                self._emit("server.failed", text, gpu=server.gpu, level="error")
                return server.launch
            return None

    async def _wait_before_restart(self, server: Server) -> float | None:
        text = _IN_VAIN
        if server.cause is None or server.cause.again:
            wait = server.restarts.wait(time.time(), self._timing)
            if wait is not None:
                return wait
            times = self._timing.restarts_an_hour
            flags = server.cause is not None and flags_mend(server.cause)
            helps = "`restart` gives it other flags" if flags else "`up` starts it again"
            text = f"failed {times} times within an hour: left stopped; {helps}"
        await self._set_aside(server, text)
        return None

    async def _set_aside(self, server: Server, text: str) -> None:
        if server.launch is not None:
            why = f"{server.cause.text}; {text}" if server.cause is not None else text
            await asyncio.to_thread(server.restarts.set_aside, server.launch.launch, why)
        self._emit("server.set_aside", f"GPU {server.gpu}: {text}", gpu=server.gpu, level="error")

    # --- Asking ---

    async def _poll(self, gpu: int) -> None:
        """Ask one server over and over: each kind of question has its own rhythm."""
        every = {
            "loads": self._timing.loads,
            "metrics": self._timing.metrics,
            "info": self._timing.info,
        }
        asked_at = dict.fromkeys(every, -math.inf)
        await asyncio.sleep(self._timing.loads * (gpu % 8) / 8)
        while True:
            server = next((s for s in self._servers() if s.gpu == gpu), None)
            if server is None:
                return
            now = time.monotonic()
            for kind in every if server.answers else ():
                if kind == "metrics" and server.probe.metrics_off:
                    continue
                if kind == "info" and server.status == "warming":
                    continue
                # One that goes on answering nothing need not be asked as often.
                failing = server.told.loads_failing if kind == "loads" else server.probe.missed // 2
                slower = min(2.0 ** max(failing - 2, 0), 4.0)
                if now - asked_at[kind] >= every[kind] * slower:
                    asked_at[kind] = now
                    self._background.start(self._ask(server, kind))
            await asyncio.sleep(min(every.values()) / 4)

    def _introduce(self, server: Server) -> None:
        """A foreign server that answers may be used by a run like any other."""
        known = server.foreign is not None and server.max_running is not None
        if known and server.introduced != server.process:
            server.introduced = server.process
            self._operations.announce(server)
            if not server.held and not server.reader.draining:
                self._operations.dispatch(server, "run")  # an earlier agent may have paused it

    async def _ask_with_ours(self, server: Server, *, new: bool) -> None:
        """From now on with the target's key: the foreign server's own did not open it, or could
        not be read."""
        if new:
            text = f"GPU {server.gpu}: the server on port {server.port} {NEEDS_KEY}"
            self._emit("server.key", text, gpu=server.gpu, level="warning")
        await self._set_key(server)

    async def _ask(self, server: Server, kind: str) -> None:
        main = server.main
        if kind == "loads":
            loads = await server.probe.loads(self._timing.answer)
            if server.main is main:
                keyless = server.doing != NEEDS_KEY
                server.took_loads(loads, time.time())
                self._introduce(server)
                if server.doing == NEEDS_KEY:
                    await self._ask_with_ours(server, new=keyless)
        elif kind == "metrics":
            asked = time.time()
            metrics = await server.probe.metrics(self._timing.answer)
            if server.main is main:
                server.told.took_metrics(metrics, asked, time.time())
        else:
            facts = await server.probe.server_info()
            if facts is not None and server.main is main:
                server.told.facts = facts
