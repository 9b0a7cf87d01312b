"""One target under watch: its feed, what is known of it, and its past. No screen.

A console has one of these for each target that it watches. Each lives in a task of its own: a
target that cannot be reached, or a mistake in its link, is told in its own state and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from console import model, reckon
from console.feed import Connect, Feed, FeedError
from console.flags import Book
from console.lookback import Lookback
from console.model import Link, State
from console.prefs import Seen
from remote.protocol import (
    Events,
    FlagCatalogue,
    FlagValue,
    Message,
    ReadFlags,
    Request,
    Result,
    Snapshot,
    Subscribe,
)

if TYPE_CHECKING:
    from pathlib import Path

    from console.config import Target
    from console.replay import ReplayFeed


@dataclass(frozen=True)
class Source:
    """What the console is opened on: a name, the way to its messages, and whether it may only
    look there."""

    name: str
    connect: Connect
    read_only: bool = False
    target: Target | None = None
    """Of stoker.toml, where it is one."""


UP: Final = ("connected", "read-only", "replay")
"""States of a link that brings something."""

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
        self,
        source: Source,
        heard: Heard,
        linked: Linked,
        *,
        remembered: Mapping[str, Seen] | None = None,
    ) -> None:
        self.name = source.name
        self.read_only = source.read_only
        self.target = source.target
        self.state = State()
        self.lookback = Lookback(
            self._ask_past, lambda: self.state.time or time.time(), self._run_times
        )
        self.remembered = remembered or {}
        """How earlier consoles saw what they looked at, by journal."""
        self.seen: Seen | None = None
        """Where things stood when this was last looked at: by an earlier console, or by this one
        before its link was gone for a while; None until it is known what stands under the name."""
        self.greeted = False
        """Whether it was told what happened since then, or need not be."""
        self.looked = False
        """Whether this target's own screens were in front."""
        self.past_due = False
        """Whether the past is still to be fetched, once somebody looks."""
        self.focus_gpu: int | None = None
        self.chosen_logs: tuple[str, ...] = ()
        """Logs that the panes show; empty for all of them, page by page."""
        self.told_unsent = ""
        """What was said last of settings that the agent has not got."""
        self.starts_without: list[str] = []
        """Those with which a start was held up for that: the next one goes without them."""
        self.hidden_swap: int | None = None
        self.book = Book()
        """The flags of the SGLang there."""
        self.draft: dict[str, FlagValue | None] = {}
        """Flags that were edited for the whole fleet and not restarted with yet."""
        self.feed: Feed | None = None
        self.began: float | None = None
        """When this console first heard of the target, on the agent's clock."""
        self.rung = 0
        """Id of the newest event that somebody was called for."""
        self._down: float | None = None
        """Since when the link is gone that was there (monotonic)."""
        self._missed = False
        self._book_due = True
        self._which: str | None = None
        """The journal of the newest snapshot."""
        self._stood: Seen | None = None
        """Where things stood at the newest snapshot."""
        self._kept = 0.0
        self._connect = source.connect
        self._heard = heard
        self._linked = linked

    @property
    def file(self) -> Path | None:
        """The stoker.toml that command lines for it have to name; None where none need be."""
        return self.target.file if self.target is not None else None

    @property
    def replay(self) -> ReplayFeed | None:
        """The recording that is played, where it is one."""
        if self.feed is None:
            return None
        from console.replay import ReplayFeed  # asked for before the first frame, too

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
        now = time.time()
        gap = model.age(self.state, now) or 0.0
        self.state = model.reduce(self.state, message, now)
        if isinstance(message, Snapshot) and self.replay is None:
            self._stand(gap)
        self._heard(self, message)

    def _stand(self, gap: float) -> None:
        """Note where things stand. After a gap of so many seconds — the laptop slept, the link was
        cut — whoever looked before it has been away since, and is to be told."""
        if self._which != self.state.journal:
            self._turn_to(self.state.journal)
        from console import away  # not needed for the first frame

        before, self._stood = self._stood, away.seen_now(self.state)
        self.began = self.began or self.state.time
        if self.looked and before is not None and gap >= away.LEAST_S:
            self.seen = before
            self.greeted = False

    def _turn_to(self, journal: str) -> None:
        """Something else stands under this name now: the last look at it is that of its journal,
        if there was one."""
        if self._which is not None:
            self.looked = self.greeted = False
            self.lookback.clear()
        self._which, self._stood, self.began, self._kept = journal, None, None, 0.0
        self.seen = self.remembered.get(journal or self.name)

    def to_keep(self) -> dict[str, Seen]:
        """Where things stand, to be remembered; empty where nobody looked, or nothing came since
        this was last asked: another console may have seen more meanwhile."""
        stood, which = self._stood, self._which or self.name
        if not self.looked or not which or stood is None or stood.time == self._kept:
            return {}
        self._kept = stood.time
        return {which: stood}

    def _link(self, link: Link) -> None:
        before = self.state.link.state
        self._book_due = self._book_due or link.state != "connected"  # it may be another SGLang
        if not link.since:
            link = replace(link, since=time.time())
        self.state = model.reduce(self.state, link, time.time())
        if link.state in UP or self.began is None:
            self._down, self._missed = None, False
        else:
            self._down = self._down or time.monotonic()
        self._linked(self, before)

    def newly_lost(self, seconds: float) -> bool:
        """Whether the link has been gone for so long; True once each time it is lost. A laptop's
        sleep does not count."""
        lost = self._down is not None and time.monotonic() - self._down > seconds
        told, self._missed = self._missed, self._missed or lost
        return lost and not told

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """The result of a request. Raises :class:`FeedError` with one line for people."""
        if self.feed is None:
            raise FeedError("not connected yet")
        result = await self.feed.call(request, timeout)
        if isinstance(result, Events):
            self.state = model.with_events(self.state, result.events)
        return result

    def _run_times(self) -> tuple[float, float | None] | None:
        if self.replay is not None:  # the whole of what was recorded
            return self.replay.recorded.begin, None
        return reckon.run_times(self.state)

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
