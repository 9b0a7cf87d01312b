"""Tasks that go on by themselves; a fault in one becomes an event, never a silence."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from remote.fleet.outside import Emit, FleetError


class Background:
    """The fleet's own tasks, held until they end."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let it run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, FleetError):
            self._emit("fleet", str(error), level="error")
        else:
            text = f"fault in the fleet: {type(error).__name__}: {error}"
            self._emit("fleet.fault", text, level="error")

    async def close(self) -> None:
        """Cancel them all and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
