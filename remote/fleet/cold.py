"""While no kernels are compiled yet, one server goes ahead and the others wait for it.

Whoever starts servers passes here: a person's start, a swap, and restarts after a reboot alike.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from remote.fleet import kernels
from remote.fleet.outside import Emit, FleetError
from remote.fleet.server import Server


class NotItsTurnError(FleetError):
    """The server waited for another one and was not started after all."""


@dataclass
class _Lead:
    server: Server
    launch: str | None = None
    """Its launch, once there is one."""
    over: bool = False
    waited_for: bool = False

    @property
    def is_at_it(self) -> bool:
        if self.over or self.launch is None:
            return not self.over
        return self._is_same and self.server.status in ("starting", "warming")

    @property
    def is_through(self) -> bool:
        return self._is_same and self.server.status == "ready"

    @property
    def _is_same(self) -> bool:
        return self.server.launch is not None and self.server.launch.launch == self.launch


class ColdStart:
    """Who goes ahead in one fleet."""

    def __init__(self, servers: Callable[[], list[Server]], emit: Emit, tick: float) -> None:
        self._servers, self._emit, self._tick = servers, emit, tick
        self._lead: _Lead | None = None
        self._called_off: set[int] = set()

    async def applies(self, env: Mapping[str, str]) -> bool:
        """Whether the next server has to compile kernels first."""
        if any(s.status in ("ready", "draining", "stalled") for s in self._servers()):
            return False
        return await asyncio.to_thread(kernels.is_cold, env)

    @contextlib.asynccontextmanager
    async def turn(self, server: Server, env: Mapping[str, str]) -> AsyncIterator[None]:
        """Start the server in here: it may be the one that goes ahead.

        Raises :class:`NotItsTurnError` where the one ahead did not get ready, or where this one
        was called off while it waited.
        """
        lead = await self._ahead_of(server, env)
        if lead is not None and lead.server is not server:
            await self._wait(server, lead)
            lead = None
        try:
            yield
        except BaseException:
            if lead is not None:
                lead.over = True
            raise
        if lead is not None and server.launch is not None:
            lead.launch = server.launch.launch

    def call_off(self, gpu: int) -> None:
        """This server is to stop: it waits no longer."""
        self._called_off.add(gpu)

    def may_wait(self, gpu: int) -> None:
        """The stop is over."""
        self._called_off.discard(gpu)

    async def _ahead_of(self, server: Server, env: Mapping[str, str]) -> _Lead | None:
        if not await self.applies(env):
            return None
        if self._lead is None or not self._lead.is_at_it:
            coming = (s for s in self._servers() if s.status in ("starting", "warming"))
            other = next((s for s in coming if s is not server and s.launch is not None), None)
            self._lead = _Lead(other or server)
            if other is not None and other.launch is not None:
                self._lead.launch = other.launch.launch
        return self._lead

    async def _wait(self, server: Server, lead: _Lead) -> None:
        first = f"GPU {lead.server.gpu}"
        if not lead.waited_for:
            lead.waited_for = True
            text = f"no kernels are compiled here yet: {first} goes ahead alone"
            text += ", the others follow once it is ready"
            self._emit("fleet.cold", text, gpu=lead.server.gpu)
        server.doing = f"waits for {first} to compile the kernels"
        try:
            while lead.is_at_it:
                if server.gpu in self._called_off:
                    raise NotItsTurnError(f"GPU {server.gpu}: called off while it waited")
                await asyncio.sleep(self._tick)
        finally:
            server.doing = ""
        if lead.is_through:
            return
        if lead.waited_for:
            lead.waited_for = False
            text = f"{first} did not get ready: the others were not started"
            self._emit("fleet.cold", text, gpu=lead.server.gpu, level="error")
        raise NotItsTurnError(f"{first} did not get ready: GPU {server.gpu} was not started")
