"""One connection for a verb of the command line: call, wait, follow. No screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from console.config import Target
from console.link.client import Client, LinkError, LinkStatus
from console.model import Link, State, reduce
from remote.protocol import Happened, LogPart, Message, Request, Result, Subscribe

T = TypeVar("T")

CONNECT_S = 30.0
"""How long a verb tries to reach the agent before it gives up."""
SNAPSHOT_S = 15.0
"""How long it waits for what the agent tells each second."""


class Session:
    """A connected client and the state that its messages add up to."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.state = State()
        self.on_event: Callable[[Happened], None] | None = None
        self.on_log: Callable[[LogPart], None] | None = None
        self.on_link: Callable[[LinkStatus], None] | None = None
        self._changed = asyncio.Event()
        self.client = Client(target, on_message=self._message, on_status=self._status)

    @property
    def link(self) -> LinkStatus:
        """How the link is."""
        return self.client.status

    def _message(self, message: Message) -> None:
        if isinstance(message, Happened) and self.on_event is not None:
            self.on_event(message)
        if isinstance(message, LogPart) and self.on_log is not None:
            self.on_log(message)
        self.state = reduce(self.state, message, time.time())
        self._changed.set()

    def _status(self, status: LinkStatus) -> None:
        if self.on_link is not None:
            self.on_link(status)
        self.state = reduce(self.state, Link(status.state, status.text, status.since), time.time())
        self._changed.set()

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """The answer to a request. Raises LinkError."""
        return await self.client.call(request, timeout)

    async def follow(self, events_after: int | None = None) -> None:
        """Have snapshots (and events after an id) pushed into ``state`` from now on; returns with
        the first. Raises LinkError."""
        await self.client.subscribe(Subscribe(snapshots=True, events_after=events_after))
        try:
            await self.until(lambda: True if self.state.received else None, timeout=SNAPSHOT_S)
        except TimeoutError:
            text = f"{self.target.name}: connected, but no snapshot came within {SNAPSHOT_S:.0f} s"
            raise LinkError(text, "timeout") from None

    async def until(self, wanted: Callable[[], T | None], timeout: float | None = None) -> T:
        """Wait until ``wanted`` gives something; it is asked at each message and each second.

        Raises TimeoutError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = wanted()
            if found is not None:
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), 1.0)
            except TimeoutError:
                continue

    async def connected(self) -> None:
        """Wait for the link. Raises LinkError when it failed, or after :data:`CONNECT_S`."""

        def settled() -> LinkStatus | None:
            return self.link if self.link.state in ("connected", "read-only", "failed") else None

        try:
            status = await self.until(settled, CONNECT_S)
        except TimeoutError:
            text = f"{self.target.name}: {self.link.text}: not within {CONNECT_S:.0f} s"
            raise LinkError(text, kind="timeout") from None
        if status.state == "failed":
            why = self.client.error
            usage = why is not None and why.kind == "usage"
            raise LinkError(status.text, kind="usage" if usage else "unreachable")


@asynccontextmanager
async def session(target: Target) -> AsyncIterator[Session]:
    """A connected session, closed at the end. Raises LinkError."""
    here = Session(target)
    task = asyncio.create_task(here.client.run())
    try:
        await here.connected()
        yield here
    finally:
        await here.client.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
