"""Bringing servers up: each in its environment, and one ahead of the others where kernels have to
be compiled first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from remote.fleet.background import Background
from remote.fleet.cold import ColdStart, NotItsTurnError
from remote.fleet.knowledge import Knowledge
from remote.fleet.launcher import Start, api_key, describe
from remote.fleet.operations import Operations
from remote.fleet.outside import FleetError, InVainError
from remote.fleet.records import Launch
from remote.fleet.server import Server
from remote.protocol import Epoch, Flags, TargetSpec


class Starter:
    """Starts servers of one fleet, whoever wants it: a person, a swap or a failure."""

    def __init__(
        self,
        *,
        spec: Callable[[], TargetSpec],
        servers: Callable[[], list[Server]],
        lock: Callable[[int], asyncio.Lock],
        knowledge: Knowledge,
        operations: Operations,
        background: Background,
    ) -> None:
        self._spec, self._servers, self._lock = spec, servers, lock
        self._launcher, self._emit = operations.launcher, operations.emit
        self._knowledge, self._operations = knowledge, operations
        self._background = background
        self._shown: list[str] | None = None
        self.cold = ColdStart(servers, operations.emit, operations.timing.tick)

    async def set_key(self, server: Server) -> None:
        """Ask a server with the target's key from now on."""
        with contextlib.suppress(FleetError):
            server.probe.api_key = api_key(await self._launcher.environment(self._spec()))

    async def start(
        self,
        server: Server,
        flags: Flags,
        *,
        epoch: int | None,
        who: str,
        swap: int | None = None,
    ) -> None:
        """Start one that does not run, once it is its turn. Raises :class:`FleetError`."""
        spec = self._spec()
        await self._knowledge.ask(spec)
        env = await self._show_environment(spec)
        await self.set_key(server)
        server.listens(spec.fleet.base_port + server.gpu, flags)
        async with self.cold.turn(server, env):
            known = self._knowledge
            await self._operations.start(
                server, Start(spec, flags, epoch, who, swap, known.catalogue, known.version)
            )

    async def again(self, server: Server, launch: Launch) -> None:
        """Start one that has failed as it was started then. Raises :class:`FleetError`."""
        if server.gpu >= self._spec().fleet.gpus:
            raise InVainError(f"this target has no GPU {server.gpu} any more")
        await self.start(server, launch.flags, epoch=launch.epoch, who="stoker")

    async def _show_environment(self, spec: TargetSpec) -> dict[str, str]:
        """The servers' environment; says once what the env script makes of it."""
        env = await self._launcher.environment(spec)
        names = self._launcher.sourced
        if spec.env_script and names != self._shown:
            self._shown = list(names)
            what = ", ".join(names) if names else "nothing"
            self._emit("fleet.environment", f"{spec.env_script} sets {what}")
        return env

    async def up(self, servers: list[Server], *, epoch: Epoch, who: str) -> None:
        """Start servers with the epoch's flags; returns once every start is under way, or waits
        for the one that goes ahead.

        Those that run already are left alone. Raises :class:`FleetError` with a line on those
        that could not be started; the others have been.
        """
        await self._knowledge.ask(self._spec())
        flags, renamed = self._knowledge.checked(epoch.flags)
        for text in renamed:
            self._emit("fleet.flags", text, level="warning")

        async def one(server: Server) -> str | None:
            async with self._lock(server.gpu):
                if server.alive:
                    return await _whose(server) if server.foreign is not None else None
                server.held = False
                await asyncio.to_thread(server.restarts.forget)
                try:
                    await self.start(server, flags, epoch=epoch.id, who=who)
                except NotItsTurnError:
                    return None  # it has been told why
                except FleetError as error:
                    return str(error)
                return None

        later = await self._later(servers)
        now = [server for server in servers if server not in later]
        told = [line for line in await asyncio.gather(*map(one, now)) if line]
        if told and later and all(not s.alive for s in now):
            raise FleetError("; ".join(told) + " (the others were to follow)")
        if later:
            self._background.start(self._follow(later, one))
        if told:
            rest = len(servers) - len(told)
            lines = "; ".join(dict.fromkeys(told))
            raise FleetError(lines + (f" (the other {rest} go ahead)" if rest else ""))

    async def _later(self, servers: list[Server]) -> list[Server]:
        """Those that are to wait until another one has compiled the kernels."""
        stopped = [s for s in servers if not s.alive]
        coming = any(s.status in ("starting", "warming") for s in self._servers())
        later = stopped if coming else stopped[1:]
        if not later:
            return []
        env = await self._launcher.environment(self._spec())
        return later if await self.cold.applies(env) else []

    async def _follow(
        self, followers: list[Server], start: Callable[[Server], Awaitable[str | None]]
    ) -> None:
        for line in await asyncio.gather(*map(start, followers)):
            if line:
                self._emit("server.set_aside", line, level="error")


async def _whose(server: Server) -> str:
    what = await asyncio.to_thread(describe, server.main.pid if server.main is not None else None)
    return (
        f"GPU {server.gpu}: port {server.port} belongs to {what}, not started by Stoker: take it "
        "over by a restart"
    )
