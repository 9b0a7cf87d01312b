"""Where the console's state comes from: a live agent, a replay or a test, behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from console.model import Link
from remote.protocol import Message, Request, Result, Subscribe

if TYPE_CHECKING:
    from console.config import Target
    from console.link.client import Client


PLAN_S = 120.0
"""For so long the plan of a swap may take: the agent asks SGLang's parser for the flags first."""


class FeedError(Exception):
    """A request was not done; the text is one line for people."""


class Feed(Protocol):
    """One source of messages, and the way to ask for something."""

    async def run(self) -> None:
        """Deliver messages and link states until :meth:`close`."""

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """The result of a request. Raises :class:`FeedError`."""

    async def subscribe(self, wanted: Subscribe) -> None:
        """What is to be pushed; remembered over reconnects. Raises :class:`FeedError`."""

    async def deploy(self) -> str:
        """Bring the agent to the target, or to this version, and the settings that it can take;
        one line of what was done. Raises :class:`FeedError`."""

    def hurry(self) -> None:
        """Try a lost link again now."""

    async def close(self) -> None:
        """End; :meth:`run` returns."""


Connect: TypeAlias = Callable[[Callable[[Message], None], Callable[[Link], None]], Feed]
"""Makes a feed that reports messages to the first and link states to the second callable."""


class AgentFeed:
    """The agent of a target, over SSH and hop.

    The SSH library is imported by :meth:`run`, in a thread: a console paints its first frame
    without waiting for it.
    """

    def __init__(
        self,
        target: Target,
        on_message: Callable[[Message], None],
        on_link: Callable[[Link], None],
    ) -> None:
        self._target = target
        self._on_message = on_message
        self._on_link = on_link
        self._client: Client | None = None
        self._wanted: Subscribe | None = None
        self._closed = False

    async def run(self) -> None:
        """Import the link, connect, and stay connected until :meth:`close`."""
        while not self._over():
            client = await asyncio.to_thread(self._make)
            if self._over():
                return
            self._client = client
            if self._wanted is not None:
                await self.subscribe(self._wanted)
            await client.run()

    def _over(self) -> bool:
        return self._closed

    def _make(self) -> Client:
        from console.link.client import Client

        return Client(
            self._target,
            on_message=self._on_message,
            on_status=lambda s: self._on_link(Link(s.state, s.text, s.since)),
        )

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """See :class:`Feed`."""
        if self._client is None:
            raise FeedError("not connected yet")
        from console.link.errors import LinkError

        try:
            return await self._client.call(request, timeout)
        except LinkError as error:
            raise FeedError(str(error)) from error

    async def subscribe(self, wanted: Subscribe) -> None:
        """See :class:`Feed`; before the connection stands it is only remembered."""
        self._wanted = wanted
        if self._client is None:
            return
        from console.link.errors import LinkError

        try:
            await self._client.subscribe(wanted)
        except LinkError as error:
            raise FeedError(str(error)) from error

    async def deploy(self) -> str:
        """See :class:`Feed`."""
        from console.link.deploy import deploy
        from console.link.errors import LinkError
        from console.settling import settled

        try:
            done = await deploy(self._target)
        except LinkError as error:
            raise FeedError(str(error)) from error
        try:
            if text := await settled(self._target):
                done = f"{done}; {text}"
        except LinkError as error:
            raise FeedError(f"{done}, but {error}") from error
        finally:
            if self._client is not None:
                await self._client.close()  # a new one connects at once, without the pause
        return done

    def hurry(self) -> None:
        """See :class:`Feed`."""
        if self._client is not None:
            self._client.hurry()

    async def close(self) -> None:
        """See :class:`Feed`."""
        self._closed = True
        if self._client is not None:
            await self._client.close()


def connect_agent(target: Target) -> Connect:
    """Feeds of the agent of ``target``."""
    return lambda on_message, on_link: AgentFeed(target, on_message, on_link)
