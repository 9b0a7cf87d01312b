"""Taking servers down: emptied first, ended then, and wanted down from the first moment on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.fleet.cold import ColdStart
from remote.fleet.operations import Operations
from remote.fleet.outside import Emit, FleetError
from remote.fleet.server import Server


@dataclass(frozen=True)
class Stopper:
    """Stops servers of one fleet."""

    lock: Callable[[int], asyncio.Lock]
    operations: Operations
    cold: ColdStart
    drain_seconds: Callable[[], float]
    emit: Emit

    async def down(self, servers: list[Server], *, who: str) -> None:
        """Empty and stop servers; returns when they are gone. Foreign ones are not touched.

        Raises :class:`FleetError` where something of a server cannot be ended.
        """
        results = await asyncio.gather(
            *(self.one(server, who=who) for server in servers), return_exceptions=True
        )
        wrong = [r for r in results if isinstance(r, BaseException)]
        for error in wrong:
            if not isinstance(error, FleetError):
                raise error
        if wrong:
            raise FleetError("; ".join(str(error) for error in wrong))

    async def one(self, server: Server, *, who: str) -> None:
        """The same for one."""
        self.cold.call_off(server.gpu)
        async with self.lock(server.gpu):
            self.cold.may_wait(server.gpu)
            if server.foreign is not None and server.alive:
                raise FleetError(
                    f"GPU {server.gpu}: pid {server.main.pid if server.main else '?'} was not "
                    "started by Stoker: take it over by a restart, or end it yourself"
                )
            server.held = True
            try:
                await asyncio.to_thread(self.operations.want, server, "down")
                if not server.alive:
                    server.status = "stopped"
                    return
                until = time.time() + self.drain_seconds()
                if said := await self.operations.empty(server, "continue", until):
                    text = f"GPU {server.gpu}: {said}"
                    self.emit("server.aborted", text, gpu=server.gpu, who=who)
                await self.operations.end(server, "down")
            finally:
                server.let_go()
            self.emit("server.stopped", f"GPU {server.gpu}: stopped", gpu=server.gpu, who=who)
