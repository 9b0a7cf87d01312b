"""A log file on the other side, read page by page: how panes scroll back through all of it."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

from remote.protocol import LogPart, ReadLog, Request, Result

PAGE: Final = 500
"""Lines of one page."""

HELD: Final = 10_000
"""Lines kept while paging; what is dropped at one end is fetched again when one comes back."""

Ask = Callable[[Request], Awaitable[Result | None]]

_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_STAMPED = r"^\r*\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
"""The same as a search on the other side."""


class LogError(Exception):
    """Why a place in a log was not found or not read to its end; one line for people."""


class OutsideError(LogError):
    """A log has nothing of the time that was asked for: it ``begins`` later or ``ends`` earlier."""

    def __init__(self, source: str, how: Literal["begins", "ends"], at: str) -> None:
        """``source`` is empty for several logs as one."""
        one = f"{source}'s log {how}"
        super().__init__(f"{one if source else f'these logs {how[:-1]}'} {at}")
        self.how, self.at = how, at


def outside(errors: Sequence[OutsideError]) -> list[str]:
    """Several such in as few lines as tell them."""
    begin = [error for error in errors if error.how == "begins"]
    end = [error for error in errors if error.how == "ends"]
    told = [str(error) for those in (begin, end) if len(those) < 3 for error in those]
    if len(begin) > 2:
        told.append(f"{len(begin)} of these logs begin {min(e.at for e in begin)} or later")
    if len(end) > 2:
        told.append(f"{len(end)} of these logs end {max(e.at for e in end)} or earlier")
    return told


Place = TypeVar("Place")


@dataclass
class Page(Generic[Place]):
    """Lines that stand one behind the other, between two places."""

    begin: Place
    next: Place
    lines: list[str]
    low: int = 0
    """The number of the first of them."""


class Past(ABC, Generic[Place]):
    """The pages of a log (or of several as one) that are held, oldest first, each line with a
    number that lasts; with ``grep`` only what matches."""

    def __init__(self, at: Place, grep: str = "") -> None:
        self.grep = grep
        self.pages: list[Page[Place]] = []
        self.first = at
        """The place before the first line held, or how far back was looked."""
        self.next = at
        """The place behind the last line held, or how far on was looked."""

    @abstractmethod
    async def read(self, ask: Ask, at: Place, lines: int, grep: str) -> Page[Place] | None:
        """So many lines behind a place, or with a negative number before it; of a search that
        found none, how far it looked. None where nobody answered."""

    @property
    @abstractmethod
    def more_before(self) -> bool:
        """Whether there is something before what is held."""

    @property
    @abstractmethod
    def more_behind(self) -> bool:
        """Whether there is something behind it."""

    @property
    @abstractmethod
    def span(self) -> tuple[int, int, int]:
        """In bytes: where it begins, where it ends, and how long the log is."""

    @property
    def count(self) -> int:
        """Lines held."""
        return sum(len(page.lines) for page in self.pages)

    def lines(self) -> list[tuple[int, str]]:
        """Every line held with its number."""
        return [
            (page.low + index, line) for page in self.pages for index, line in enumerate(page.lines)
        ]

    async def back(self, ask: Ask, lines: int = PAGE) -> int:
        """Fetch what is before the first line held; how many lines came."""
        at = self.first
        page = await self.read(ask, at, -lines, self.grep) if self.more_before else None
        if page is None or at != self.first:  # somebody else fetched the same meanwhile
            return 0
        self.first = page.begin
        if page.lines:
            page.low = (self.pages[0].low if self.pages else 0) - len(page.lines)
            self.pages.insert(0, page)
        while self.pages and self.count - len(self.pages[-1].lines) > HELD:
            self.pages.pop()
            self.next = self.pages[-1].next
        return len(page.lines)

    async def on(self, ask: Ask) -> int:
        """Fetch what is behind the last line held; how many lines came."""
        at = self.next
        page = await self.read(ask, at, PAGE, self.grep)
        if page is None or at != self.next:
            return 0
        self.next = page.next
        if page.lines:
            page.low = self.pages[-1].low + len(self.pages[-1].lines) if self.pages else 0
            self.pages.append(page)
        while self.pages and self.count - len(self.pages[0].lines) > HELD:
            self.pages.pop(0)
            self.first = self.pages[0].begin
        return len(page.lines)

    async def look(
        self, ask: Ask, grep: str, gone: Callable[[], bool], *, back: bool
    ) -> Place | None:
        """The place of the last line before what is held that matches, or of the first behind it;
        None where there is none, or nobody wants it any more. Raises LogError."""
        at = self.first if back else self.next
        while not gone():
            page = await self.read(ask, at, -1 if back else 1, grep)
            if page is None:
                raise LogError("the log could not be read on")
            reached = page.begin if back else page.next
            if page.lines and not back:  # what was searched through lies before it
                page = await self.read(ask, reached, -1, "")
                return None if page is None else page.begin
            if page.lines:
                return reached
            if reached == at:
                return None
            at = reached
        return None


class FilePast(Past[int]):
    """Of one log."""

    def __init__(self, source: str, at: int, grep: str = "") -> None:
        super().__init__(at, grep)
        self.source = source
        self.size = at
        """Bytes of the file."""

    async def read(self, ask: Ask, at: int, lines: int, grep: str) -> Page[int] | None:
        """See :class:`Past`."""
        part = await ask(ReadLog(self.source, offset=at, lines=lines, grep=grep))
        if not isinstance(part, LogPart):
            return None
        self.size = part.size
        begin = part.offset if part.lines or lines < 0 else at
        return Page(begin, max(at, part.next) if lines > 0 else part.next, part.lines)

    @property
    def more_before(self) -> bool:
        """See :class:`Past`."""
        return self.first > 0

    @property
    def more_behind(self) -> bool:
        """See :class:`Past`."""
        return self.next < self.size

    @property
    def span(self) -> tuple[int, int, int]:
        """See :class:`Past`."""
        return self.first, self.next, self.size


def stamp(lines: list[str]) -> str | None:
    """The first time in these lines, as ``2026-11-29 17:05:30``."""
    for line in lines:
        if found := _STAMP.match(line.lstrip("\r")):
            return f"{found[1]} {found[2]}"
    return None


def _part(found: Result | None, source: str) -> LogPart:
    if not isinstance(found, LogPart):
        raise LogError(f"{source}: the log could not be read on")
    return found


async def _stamped(ask: Ask, source: str, offset: int) -> tuple[int, str] | None:
    """Offset and time of the first line with a time at or behind an offset; None where there is
    none to the end. Raises LogError."""
    while True:
        part = _part(await ask(ReadLog(source, offset=offset, lines=1, grep=_STAMPED)), source)
        if at := stamp(part.lines):
            return part.offset, at
        if part.next <= offset or part.next >= part.size:
            return None
        offset = part.next


async def seek(ask: Ask, source: str, when: str) -> int:
    """Byte offset a little before the first line at or after a time, by halving; in a log that
    ends earlier, near its end. Raises LogError, also where no line of the log has a time.

    ``when`` is a stamp of the clock of the machine that wrote the log.
    """
    low, high = 0, _part(await ask(ReadLog(source, lines=1)), source).size
    head = _part(await ask(ReadLog(source, offset=0, lines=60)), source)
    if stamp(head.lines) is None and await _stamped(ask, source, head.next) is None:
        raise LogError(f"{source}: no times in this log")
    while high - low > 4096:
        middle = (low + high) // 2
        part = _part(await ask(ReadLog(source, offset=middle, lines=60)), source)
        at = stamp(part.lines[1:])  # the first line is most often half a one
        if at is None and part.next < high:  # a traceback, which has none
            found = await _stamped(ask, source, part.next)
            at = found[1] if found is not None and found[0] < high else None
        if at is not None and at < when:
            low = middle
        else:
            high = middle
    return low


async def between(ask: Ask, source: str, begin: str, end: str) -> AsyncIterator[list[str]]:
    """All lines of a log from one time to another, page by page; times as for :func:`seek`. Raises
    LogError, also where not all of them could be read."""
    past = FilePast(source, await seek(ask, source, begin))
    async for page in span(ask, past, begin, end, lambda line: line):
        yield page


async def span(
    ask: Ask, past: Past[Place], begin: str, end: str, own: Callable[[str], str]
) -> AsyncIterator[list[str]]:
    """The same from a place a little before the first of them; ``own`` is what of a line is the
    log's."""
    at, started = past.next, False
    while True:
        page = await past.read(ask, at, 10 * PAGE, "")
        if page is None:
            raise LogError("the log could not be read on")
        if not page.lines or page.next == at:
            return
        kept: list[str] = []
        for line in page.lines:
            when = stamp([own(line)])
            started = started or (when is not None and when >= begin)
            if when is not None and when > end:
                yield kept
                return
            if started:
                kept.append(line)
        yield kept
        at = page.next


async def save(path: Path, pages: AsyncIterator[list[str]]) -> tuple[int, str]:
    """Write pages to a file, which is made with their first line. Returns how many lines, and why
    there are not all of them, if so. Raises OSError."""
    count, problem, out = 0, "", None
    try:
        async for page in pages:
            if page and out is None:
                out = await asyncio.to_thread(path.open, "w", encoding="utf-8", errors="replace")
            if out is not None:
                await asyncio.to_thread(out.writelines, [f"{line}\n" for line in page])
                count += len(page)
    except LogError as error:
        problem = str(error)
    finally:
        if out is not None:
            await asyncio.to_thread(out.close)
    return count, problem
