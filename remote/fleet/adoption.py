"""What earlier agents have left: their servers, their stops and their swaps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from remote.fleet import finding
from remote.fleet.background import Background
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit
from remote.fleet.records import Folder, Launch
from remote.fleet.server import Server
from remote.fleet.stopping import Stopper
from remote.fleet.watching import Watch
from remote.paths import Workspace
from remote.sglang.causes import Cause

_SWAP_GOES_ON = 60.0
"""Seconds after an adoption within which a swap that was under way must have been taken up."""


def recorded(workspace: Workspace, gpus: int) -> list[int]:
    """The target's GPUs, and others whose server lives: the target had more once. Blocking."""
    found = set(range(gpus))
    folders = workspace.server(0).parent.glob("[0-9]*")
    for gpu in {int(f.name) for f in folders if f.name.isdecimal()} - found:
        folder = Folder(workspace.server(gpu))
        launch = folder.launch()
        running = folder.running(launch.launch) if launch is not None else None
        main = running.identity if running is not None else None
        if main is not None and main.alive:
            found.add(gpu)
    return sorted(found)


class Adoption:
    """Takes up what is found, once at an agent's start."""

    def __init__(
        self,
        *,
        server: Callable[[int], Server],
        lock: Callable[[int], asyncio.Lock],
        operations: Operations,
        watch: Watch,
        stop: Stopper,
        background: Background,
        emit: Emit,
    ) -> None:
        self._server, self._lock = server, lock
        self._operations, self._watch, self._stop = operations, watch, stop
        self._background, self._emit = background, emit
        self._in_a_swap: set[int] = set()

    async def take(self, server: Server, launch: Launch) -> str:
        """Take up one launch, alive or ended meanwhile; returns a line on it."""
        if await asyncio.to_thread(finding.take_up, server, launch):
            return self._living(server, launch)
        return self._ended(server, launch)

    def _living(self, server: Server, launch: Launch) -> str:
        pid = server.main.pid if server.main is not None else "?"
        epoch = f", epoch {launch.epoch}" if launch.epoch is not None else ""
        if server.status == "ready":
            self._operations.announce(server)
        if launch.wanted == "down":
            self._background.start(self._stop.one(server, who="stoker"))
            return f"GPU {server.gpu}: was being stopped, pid {pid}; stopping goes on"
        if launch.wanted == "swap" or launch.swap is not None:
            server.held = True
            self._in_a_swap.add(server.gpu)
        elif server.status == "ready":
            # Its agent may have paused it, or died before it let it run.
            self._operations.dispatch(server, "run")
        return f"GPU {server.gpu}: runs, pid {pid}, {server.status}{epoch}"

    def _ended(self, server: Server, launch: Launch) -> str:
        if launch.wanted != "up":
            server.status = "stopped"
            if launch.wanted == "swap":
                server.held = True
                self._in_a_swap.add(server.gpu)
            return f"GPU {server.gpu}: stopped, as it was meant to be"
        if server.restarts.launch == launch.launch:
            server.fail(Cause("aside", server.restarts.why, again=False))
            return f"GPU {server.gpu}: failed before and is left so: {server.restarts.why}"
        ago = f"{time.time() - server.exit.ended:.0f} s ago, " if server.exit else ""
        if server.judge_end() == "failed":
            self._watch.failed(server)
        cause = server.cause.text if server.cause is not None else ""
        return f"GPU {server.gpu}: ended {ago}while no agent ran: {cause}"

    # --- Swaps that nobody goes on with ---

    def wait_for_swap(self) -> None:
        """Give whoever goes on with an unfinished swap the time to do so."""
        if self._in_a_swap:
            self._background.start(self._release_late())

    def swap_goes_on(self) -> None:
        """Somebody does."""
        self._in_a_swap.clear()

    async def _release_late(self) -> None:
        await asyncio.sleep(_SWAP_GOES_ON)
        for gpu in sorted(self._in_a_swap):
            if gpu in self._in_a_swap:
                await self.release(gpu)
        self._in_a_swap.clear()

    async def release(self, gpu: int) -> None:
        """Let go of a server that an unfinished swap has in hand: it stays as it is."""
        server = self._server(gpu)
        async with self._lock(gpu):
            launch = server.launch
            if launch is None or (launch.wanted != "swap" and launch.swap is None):
                return
            server.held = False
            text = "it is left stopped: `up` starts it"
            if server.alive:
                await asyncio.to_thread(server.settle)
                text = "it runs on as it is"
                if server.status == "ready":
                    self._operations.dispatch(server, "run")
        line = f"GPU {gpu}: nobody went on with its swap; {text}"
        self._emit("swap.lost", line, gpu=gpu, level="warning")
