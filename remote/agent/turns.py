"""One action at a time: whoever comes while another is under way is told of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from remote.agent.serve import RequestError
from remote.fleet.outside import FleetError
from remote.journal import Journal

SOON_S: Final = 2.0
"""What fails within this time is refused; what does not is under way."""


class Owner(Protocol):
    """What turns need of the agent."""

    journal: Journal

    def emit(self, kind: str, text: str, *, level: str = "info", who: str = "") -> object: ...


@dataclass
class _Busy:
    what: str
    who: str
    since: float


class Turns:
    """Whose turn it is."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._busy: _Busy | None = None
        self._tasks: set[asyncio.Task[str]] = set()

    @property
    def is_taken(self) -> bool:
        """Whether an action is under way."""
        return self._busy is not None

    async def close(self) -> None:
        """Leave what is under way as it is; the next agent goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def refuse_if_taken(self) -> None:
        """Raise RequestError while an action is under way."""
        if self._busy is not None:
            busy = self._busy
            ago = time.time() - busy.since
            by = f" by {busy.who}" if busy.who else ""
            raise RequestError(f"busy: {busy.what}{by} for {ago:.0f} s: wait for its end", "busy")

    async def take(
        self, what: str, who: str, work: Callable[[], Awaitable[str]], *, wait: float = SOON_S
    ) -> str:
        """Begin work that only one may do at a time. Returns how it ended, or that it goes on."""
        self.refuse_if_taken()
        self._busy = busy = _Busy(what, who, time.time())
        action = self._owner.journal.began(who, what)
        self._owner.emit("action", what, who=who)
        told = asyncio.Event()

        async def whole() -> str:
            try:
                result = await work()
            except (FleetError, RequestError) as error:
                self._owner.journal.ended(action, f"failed: {error}")
                if told.is_set():
                    self._owner.emit("action.failed", f"{what}: {error}", level="error", who=who)
                raise RequestError(str(error), error.code) from None
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._owner.journal.ended(action, f"failed: {type(error).__name__}: {error}")
                text = f"{what}: {type(error).__name__}: {error}"
                self._owner.emit("action.failed", text, level="error", who=who)
                raise
            else:
                self._owner.journal.ended(action, result)
                if told.is_set():
                    self._owner.emit("action.done", result, who=who)
                return result
            finally:
                if self._busy is busy:
                    self._busy = None

        task = asyncio.create_task(whole())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if wait > 0:
            await asyncio.wait({task}, timeout=wait)
        if task.done():
            return task.result()
        told.set()
        return f"{what}: under way"

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told already
