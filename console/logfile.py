"""A log file on the other side, read page by page: how panes scroll back through all of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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


@dataclass
class _Page:
    offset: int
    next: int
    low: int
    lines: list[str]


@dataclass
class Past:
    """The pages of one log that are held, oldest first, each line with a number that lasts."""

    source: str
    grep: str = ""
    pages: list[_Page] = field(default_factory=list)
    size: int = 0
    searched: int | None = None
    """How far back a search that found nothing has looked."""
    ahead: int = 0
    """How far on one has."""

    @property
    def first(self) -> int:
        """Byte offset of the first line held, or how far back was looked."""
        at = self.pages[0].offset if self.pages else self.size
        return at if self.searched is None else min(at, self.searched)

    @property
    def next(self) -> int:
        """Byte offset behind the last line held, or how far on was looked."""
        return max(self.ahead, self.pages[-1].next if self.pages else self.size)

    @property
    def count(self) -> int:
        """Lines held."""
        return sum(len(page.lines) for page in self.pages)

    def lines(self) -> list[tuple[int, str]]:
        """Every line held with its number."""
        return [
            (page.low + index, line) for page in self.pages for index, line in enumerate(page.lines)
        ]

    async def back(self, ask: Ask, end: int | None = None, lines: int = PAGE) -> int:
        """Fetch what is before the first line held (or before ``end``); how many lines came."""
        start = self.first if end is None else end
        if start <= 0:
            return 0
        part = await ask(ReadLog(self.source, offset=start, lines=-lines, grep=self.grep))
        if not isinstance(part, LogPart):
            return 0
        self.size = part.size
        if not part.lines:
            self.searched = part.offset
            return 0
        self.searched = None
        low = (self.pages[0].low if self.pages else 0) - len(part.lines)
        self.pages.insert(0, _Page(part.offset, part.next, low, list(part.lines)))
        while self.count - len(self.pages[-1].lines) > HELD:
            self.pages.pop()
            self.ahead = 0
        return len(part.lines)

    async def on(self, ask: Ask, start: int | None = None) -> int:
        """Fetch what is behind the last line held (or from ``start``); how many lines came."""
        at = self.next if start is None else start
        part = await ask(ReadLog(self.source, offset=at, lines=PAGE, grep=self.grep))
        if not isinstance(part, LogPart):
            return 0
        self.size = part.size
        self.ahead = max(at, part.next)
        if not part.lines:
            return 0
        low = self.pages[-1].low + len(self.pages[-1].lines) if self.pages else 0
        self.pages.append(_Page(part.offset, part.next, low, list(part.lines)))
        while self.count - len(self.pages[0].lines) > HELD:
            self.pages.pop(0)
        return len(part.lines)


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


async def last_before(
    ask: Ask, source: str, end: int, grep: str, gone: Callable[[], bool]
) -> int | None:
    """Byte offset of the last line before an offset that matches; None where there is none, or
    nobody wants it any more. Raises LogError."""
    while end > 0 and not gone():
        part = _part(await ask(ReadLog(source, offset=end, lines=-1, grep=grep)), source)
        if part.lines:
            return part.offset
        if part.offset >= end:
            return None
        end = part.offset
    return None


async def first_behind(
    ask: Ask, source: str, start: int, grep: str, gone: Callable[[], bool]
) -> int | None:
    """Byte offset of the first line at or behind an offset that matches, else as
    :func:`last_before`."""
    while not gone():
        part = _part(await ask(ReadLog(source, offset=start, lines=1, grep=grep)), source)
        if part.lines:
            return part.offset
        if part.next <= start or part.next >= part.size:
            return None
        start = part.next
    return None


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
    offset = await seek(ask, source, begin)
    started = False
    while True:
        part = _part(await ask(ReadLog(source, offset=offset, lines=10 * PAGE)), source)
        if not part.lines or part.next <= offset:
            return
        kept: list[str] = []
        for line in part.lines:
            at = stamp([line])
            started = started or (at is not None and at >= begin)
            if at is not None and at > end:
                yield kept
                return
            if started:
                kept.append(line)
        yield kept
        offset = part.next


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
