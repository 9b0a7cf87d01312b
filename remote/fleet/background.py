"""Tasks that go on by themselves; a fault in one becomes an event, never a silence."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from remote.fleet.outside import Emit, FleetError


class Background:
    """The fleet's own tasks, held until they end."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let it run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(error)

    def fault(self, error: BaseException) -> None:
        """Tell of it, once for each place where it comes from."""
        if isinstance(error, FleetError):
            self._emit("fleet", str(error), level="error")
            return
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        if where not in self._told:
            self._told.add(where)
            text = f"fault in the fleet at {where}: {type(error).__name__}: {error}"
            self._emit("fleet.fault", text, level="error")

    async def close(self) -> None:
        """Cancel them all and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
