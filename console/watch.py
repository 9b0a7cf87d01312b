"""One target under watch: its feed, what is known of it, and its past. No screen.

A console has one of these for each target that it watches. Each lives in a task of its own: a
target that cannot be reached, or a mistake in its link, is told in its own state and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from console import model
from console.feed import Connect, Feed, FeedError
from console.flags import Book
from console.lookback import Lookback
from console.model import Link, State
from console.prefs import Seen
from console.replay import ReplayFeed
from remote.protocol import (
    Events,
    FlagCatalogue,
    FlagValue,
    Message,
    ReadFlags,
    Request,
    Result,
    Subscribe,
)

if TYPE_CHECKING:
    from console.config import Target


@dataclass(frozen=True)
class Source:
    """What the console is opened on: a name, the way to its messages, and whether it may only
    look there."""

    name: str
    connect: Connect
    read_only: bool = False
    target: Target | None = None
    """Of stoker.toml, where it is one."""


BOOK_S = 180.0
"""For so long SGLang's parser may take to tell its flags."""

Heard: TypeAlias = Callable[["Watch", Message], None]
Linked: TypeAlias = Callable[["Watch", str], None]


class Watch:
    """A target: ``state`` is what is known of it.

    ``heard`` is called after each message was taken in, ``linked`` after each change of the link
    with the state that it had before.
    """

    def __init__(
        self, source: Source, heard: Heard, linked: Linked, *, seen: Seen | None = None
    ) -> None:
        self.name = source.name
        self.read_only = source.read_only
        self.target = source.target
        self.state = State()
        self.lookback = Lookback(self._ask_past, lambda: self.state.time or time.time())
        self.seen = seen
        """Where things stood when this target was last looked at."""
        self.greeted = False
        """Whether it was told what happened since then, or need not be."""
        self.looked = False
        """Whether this target's own screens were in front."""
        self.past_due = False
        """Whether the past is still to be fetched, once somebody looks."""
        self.focus_gpu: int | None = None
        self.hidden_swap: int | None = None
        self.book = Book()
        """The flags of the SGLang there."""
        self.draft: dict[str, FlagValue | None] = {}
        """Flags that were edited for the whole fleet and not restarted with yet."""
        self.feed: Feed | None = None
        self._book_due = True
        self._connect = source.connect
        self._heard = heard
        self._linked = linked

    @property
    def replay(self) -> ReplayFeed | None:
        """The recording that is played, where it is one."""
        return self.feed if isinstance(self.feed, ReplayFeed) else None

    def cursor(self) -> Subscribe:
        """What is wanted of a target in the background: its numbers and its events."""
        last = self.state.events[-1].id if self.state.events else 0
        return Subscribe(snapshots=True, events_after=last)

    def start(self) -> None:
        """Make the feed; :meth:`live` brings it to life."""
        self.feed = self._connect(self.hear, self._link)

    async def live(self, wanted: Subscribe, wait: float = 0.0) -> None:
        """Stay connected until the feed is closed; first wait so many seconds."""
        if wait:
            await asyncio.sleep(wait)
        if self.feed is None:
            self.start()
        assert self.feed is not None
        with contextlib.suppress(FeedError):
            await self.feed.subscribe(wanted)
        try:
            await self.feed.run()
        except FeedError as error:
            self._link(Link("failed", str(error)))
        except Exception as error:  # a bug in the link must show, and must not take the screen down
            self._link(Link("failed", f"{type(error).__name__}: {error}"))

    async def close(self) -> None:
        """End the feed; one that does not end is left behind."""
        if self.feed is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.feed.close(), 3)

    def hear(self, message: Message) -> None:
        """Take a message in."""
        self.state = model.reduce(self.state, message, time.time())
        self._heard(self, message)

    def _link(self, link: Link) -> None:
        before = self.state.link.state
        self._book_due = self._book_due or link.state != "connected"  # it may be another SGLang
        if not link.since:
            link = replace(link, since=time.time())
        self.state = model.reduce(self.state, link, time.time())
        self._linked(self, before)

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """The result of a request. Raises :class:`FeedError` with one line for people."""
        if self.feed is None:
            raise FeedError("not connected yet")
        result = await self.feed.call(request, timeout)
        if isinstance(result, Events):
            self.state = model.with_events(self.state, result.events)
        return result

    async def _ask_past(self, request: Request) -> Result | None:
        try:
            return await self.call(request)
        except FeedError:
            return None

    async def load_book(self) -> None:
        """Read the flags of the SGLang there, once in a link's life; what cannot be read leaves
        those that were known."""
        if not self._book_due or self.replay is not None:
            return
        self._book_due = False
        try:
            found = await self.call(ReadFlags(), BOOK_S)
        except FeedError:
            self._book_due = True
            return
        if isinstance(found, FlagCatalogue) and found.flags:
            self.book = Book(found)

    async def subscribe(self, wanted: Subscribe) -> None:
        """What is to be pushed from now on; remembered where there is no link."""
        if self.feed is not None:
            with contextlib.suppress(FeedError):
                await self.feed.subscribe(wanted)
