"""What is done to one server: start it, prove it, drain it, end it. Each can be done again."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.fleet import identity, processes
from remote.fleet.launcher import Launcher, Start, describe
from remote.fleet.outside import Dispatch, Emit, FleetError, RunSide
from remote.fleet.records import Launch, Ready, Wanted
from remote.fleet.server import Server
from remote.fleet.timing import Timing
from remote.protocol import InFlight
from remote.sglang.causes import Cause

_BACK_TO = 0.10
"""A card counts as free again once less than this share of its memory is in use."""


@dataclass
class Operations:
    """The hands of the fleet."""

    launcher: Launcher
    run: RunSide
    emit: Emit
    timing: Timing
    memory: Callable[[int], tuple[int, int] | None]
    """Used and total MiB of a card; None where nobody knows."""

    def dispatch(self, server: Server, do: Dispatch) -> None:
        """Tell the run what it may do with this server."""
        server.dispatched = do
        self.run.dispatch(server.gpu, do)

    def announce(self, server: Server) -> None:
        """Tell the run which process serves here now, and how much at once."""
        self.run.server(
            server.gpu,
            max_running=server.max_running,
            epoch=server.launch.epoch if server.launch is not None else None,
            process=server.process,
            tried=server.ready is not None,
        )

    async def start(self, server: Server, asked: Start) -> Launch:
        """Start a server that does not run, once nothing of an earlier one is left; it is
        observed from its launch on.

        Raises :class:`FleetError`. A launch that came to nothing has failed then, and nothing of
        it is left.
        """
        await self.clear_away(server)
        await self._memory_back(server)
        launch = await self.launcher.prepare(server.gpu, asked)
        server.start_seconds = asked.spec.fleet.start_seconds
        server.beginning = True
        try:
            server.begin(launch)
            await self.launcher.hold(asked.spec, launch)
        except FleetError as error:
            server.fail(Cause("start", str(error), again=False))
            await self.clear_away(server)
            raise
        finally:
            server.beginning = False
        server.find_process()
        pid = server.main.pid if server.main is not None else "?"
        self.emit(
            "server.starting",
            f"GPU {server.gpu}: started, pid {pid}",
            gpu=server.gpu,
            who=asked.who,
        )
        return launch

    async def has_come(self, server: Server) -> bool:
        """Whether the process of a launch that an earlier agent had asked for is there; it may
        have been killed before the holder was started."""
        while server.launch is not None and not server.find_process():
            if time.time() - server.launch.asked > self.timing.holder:
                return False
            await asyncio.sleep(0.05)
        return True

    async def prove(self, server: Server) -> bool:
        """Whether a server that says it is up really serves; it is ``ready`` afterwards.

        Its own processes must hold the port, ``/health`` must say yes and one real completion
        come back. Returns False where the server failed or ended instead.
        """
        launch = server.launch
        if not await self._port_is_ours(server):
            return False
        while server.launch is launch and server.status == "warming":
            if await server.probe.healthy(self.timing.health):
                break
            await asyncio.sleep(0.5)
        while server.launch is launch and server.status == "warming":
            if await server.probe.completes(self.timing.proof):
                break
            await asyncio.sleep(0.5)
        if server.launch is not launch or server.status != "warming" or launch is None:
            return False
        server.told.facts, _ = await asyncio.gather(
            server.probe.server_info(),
            asyncio.to_thread(lambda: server.note_core(identity.table())),
        )
        if server.launch is not launch or server.status != "warming":
            return False
        await self._now_ready(server, launch)
        return True

    async def _now_ready(self, server: Server, launch: Launch) -> None:
        now = time.time()
        server.ready = Ready(
            launch=launch.launch,
            at=now,
            start_seconds=now - launch.asked,
            flags=launch.flags,
            epoch=launch.epoch,
            max_running=server.max_running,
            max_mamba=server.max_mamba,
            kv_tokens=server.kv_tokens,
            sglang=server.sglang,
            phase_seconds=server.reader.phase_seconds,
        )
        try:
            await asyncio.to_thread(server.folder.write_ready, server.ready)
        except FleetError as error:  # it serves; only a later swap has nothing to compare with
            self.emit("server.record", str(error), gpu=server.gpu, level="warning")
        server.status, server.doing, server.cause = "ready", "", None
        server.work.serves(True, now)
        self.announce(server)
        self.emit(
            "server.ready",
            f"GPU {server.gpu}: ready after {now - launch.asked:.0f} s, "
            f"{server.max_running if server.max_running is not None else '?'} slots",
            gpu=server.gpu,
        )
        if not server.held:
            self.dispatch(server, "run")

    async def _port_is_ours(self, server: Server) -> bool:
        deadline = time.monotonic() + 3 * self.timing.tick + 2
        holder: int | None = None
        while server.status in ("starting", "warming"):
            pids = [p.pid for p in server.tree]
            if server.port in await asyncio.to_thread(processes.ports_of, pids):
                server.status = "warming"
                return True
            if time.monotonic() > deadline:
                found = await asyncio.to_thread(processes.listeners, [server.port])
                holder = found.get(server.port)
                if holder is not None:
                    text = f"port {server.port} is held by {describe(holder)}, not by this server"
                    server.fail(Cause("port", text, again=False))
                    return False
                deadline = time.monotonic() + 5
            await asyncio.sleep(0.2)
        return False

    # --- Stopping ---

    def left(self, server: Server) -> int | None:
        """Requests that a server still has, by the run's account and its own; None if unknown."""
        in_flight = self.run.in_flight(server.gpu)
        own = None
        if server.running is not None or server.queued is not None:
            own = (server.running or 0) + (server.queued or 0)
        if in_flight is None:
            return own
        return max(in_flight, own or 0)

    async def _ask_loads(self, server: Server) -> None:
        loads = await server.probe.loads()
        if loads is not None:  # none also where a poll has the question open already
            server.took_loads(loads, time.time())

    async def drain(self, server: Server, until: float) -> bool:
        """Nothing new to this server, then wait for what it has, ``until`` (Unix time) at most.

        Returns whether it is empty. A server that is not up has nothing to drain.
        """
        self.dispatch(server, "pause")
        if server.status not in ("ready", "draining", "stalled", "foreign"):
            return True
        began = time.time()
        server.status = "draining" if server.status == "ready" else server.status
        asked = -math.inf
        while server.alive:
            await self.run.refresh()
            if not self.run.in_flight(server.gpu) or time.monotonic() - asked > 1.0:
                asked = time.monotonic()  # the server itself has the last word
                await self._ask_loads(server)
            left = self.left(server)
            if left == 0 or (left is None and time.time() - began > 3 * self.timing.loads):
                return left == 0
            if time.time() >= until:
                return False
            shown = "?" if left is None else left
            server.doing = f"draining: {shown} left, {max(until - time.time(), 0):.0f} s at most"
            await asyncio.sleep(min(0.2, max(until - time.time(), 0.02)))
        return True

    async def break_off(self, server: Server, *, keep: bool = True) -> int:
        """End what the server still has: the run keeps what there is of its answers, to continue
        them, or (not ``keep``) has them made again from nothing.

        Returns how many there were. What did not come back in time is made again.
        """
        await self.run.refresh()
        had = self.left(server) or 0
        server.status = "draining" if server.status == "ready" else server.status
        server.doing = f"breaking off {had} answers" if had else server.doing
        self.dispatch(server, "abort" if keep else "redo")
        deadline = time.monotonic() + self.timing.abort
        while server.alive and self.run.in_flight(server.gpu):
            if time.monotonic() > deadline:
                left = self.run.in_flight(server.gpu)
                text = f"GPU {server.gpu}: {left} answers did not come back in time"
                self.emit("server.aborted", text, gpu=server.gpu, level="warning")
                break
            await asyncio.sleep(0.02)
            await self.run.refresh()
        if server.alive and server.status not in ("starting", "warming"):
            await self._ask_loads(server)
            if (server.running or 0) + (server.queued or 0) > 0:
                await server.probe.abort_all()
        return had

    async def empty(self, server: Server, mode: InFlight, until: float) -> str:
        """Nothing new to a server, and nothing left in it that matters: by ``mode``, a drain
        lasting ``until`` (Unix time) at most. Returns what became of its answers, in words.
        """
        self.dispatch(server, "pause")
        said = ""
        if mode == "continue":
            mode, said = self.feasible(server, mode)
        if mode == "drain" and await self.drain(server, until):
            return said
        await self.run.refresh()
        if self.left(server) == 0:
            return said
        had = await self.break_off(server, keep=mode != "redo")
        return "; ".join(filter(None, (said, self.broken_off(had, mode))))

    def feasible(self, server: Server, mode: InFlight) -> tuple[InFlight, str]:
        """The mode that can be had on this server now, and why it is not the one wished for."""
        why = self.run.unable() if mode == "continue" and self.left(server) != 0 else ""
        return ("drain", f"drains first: {why}") if why else (mode, "")

    def broken_off(self, count: int, mode: InFlight) -> str:
        """What becomes of so many answers that were broken off, in words."""
        if mode == "redo" or self.run.unable():
            return f"{count} answers broken off, to be generated again"
        return f"{count} answers broken off, to be continued"

    def want(self, server: Server, wanted: Wanted) -> None:
        """Note durably what the server is meant to be. Blocking."""
        if server.launch is not None:
            server.launch = server.folder.want(server.launch, wanted)

    async def end(self, server: Server, wanted: Wanted = "down") -> None:
        """SIGTERM, a short wait, then SIGKILL for all that is left; then nothing of it is left.

        Raises :class:`FleetError` where something of it cannot be ended.
        """
        server.held = True
        await asyncio.to_thread(self.want, server, wanted)
        main, launch = server.main, server.launch
        if server.alive:
            server.doing = "stopping"
            if main is not None:
                await self._term(server, main)
            left = await self._end_whole(main, launch.launch if launch is not None else None)
            if left:
                names = ", ".join(describe(p.pid) for p in left[:3])
                raise FleetError(f"GPU {server.gpu}: could not end {names}")
        if launch is not None:
            await self._exit_of(server, launch)
        server.status, server.doing, server.cause = "stopped", "", None
        server.main, server.foreign = None, None
        server.tree, server.core = [], {}

    async def _term(self, server: Server, main: processes.Identity) -> None:
        head = identity.process(main.pid)
        if head is None or head.birth != main.birth:
            return
        refused = processes.send([head], signal.SIGTERM)
        if refused:
            raise FleetError(
                f"GPU {server.gpu}: pid {main.pid} belongs to {processes.owner(main.pid)},"
                " who must end it"
            )
        deadline = time.monotonic() + self.timing.term
        while time.monotonic() < deadline and main.alive:
            if server.reader.remaining:
                server.doing = f"stopping: {server.reader.remaining} requests left in it"
            await asyncio.sleep(0.05)

    async def _end_whole(
        self, main: processes.Identity | None, mark: str | None
    ) -> list[identity.Process]:
        """End a server's tree; where its main process is not known, what its launch has begun."""
        if main is not None:
            return await asyncio.to_thread(processes.end_tree, main, mark, self.timing.kill)
        if mark is not None:
            return await asyncio.to_thread(processes.end_launch, mark, self.timing.kill)
        return []

    async def _exit_of(self, server: Server, launch: Launch) -> None:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            server.exit = server.folder.exit(launch.launch)
            if server.exit is not None or server.holder is None or not server.holder.alive:
                return
            await asyncio.sleep(0.05)

    async def clear_away(self, server: Server) -> None:
        """End what a failed server has left behind; says so where it cannot."""
        main, launch = server.main, server.launch
        if launch is None:
            return
        left = await self._end_whole(main, launch.launch)
        if left:
            names = ", ".join(describe(p.pid) for p in left[:3])
            text = f"GPU {server.gpu}: could not end what its server left: {names}"
            self.emit("server.leftover", text, gpu=server.gpu, level="error")

    async def _memory_back(self, server: Server) -> None:
        deadline = time.monotonic() + self.timing.memory
        try:
            while (known := self.memory(server.gpu)) is not None:
                used, total = known
                if used < total * _BACK_TO:
                    return
                if time.monotonic() > deadline:
                    raise FleetError(
                        f"GPU {server.gpu}: {used:,} of {total:,} MiB are in use by something "
                        "else, perhaps outside this container: on the host `nvidia-smi` names it"
                    )
                server.doing = f"waiting for {used:,} MiB of GPU memory to be free"
                await asyncio.sleep(0.5)
        finally:
            server.doing = ""
