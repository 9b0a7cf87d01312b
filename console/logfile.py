"""A log file on the other side, read page by page: how panes scroll back through all of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from remote.protocol import LogPart, ReadLog, Request, Result

PAGE: Final = 500
"""Lines of one page."""

HELD: Final = 10_000
"""Lines kept while paging; what is dropped at one end is fetched again when one comes back."""

Ask = Callable[[Request], Awaitable[Result | None]]

_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")


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

    @property
    def first(self) -> int:
        """Byte offset of the first line held, or how far back was looked."""
        at = self.pages[0].offset if self.pages else self.size
        return at if self.searched is None else min(at, self.searched)

    @property
    def next(self) -> int:
        """Byte offset behind the last line held."""
        return self.pages[-1].next if self.pages else self.size

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
        return len(part.lines)

    async def on(self, ask: Ask, start: int | None = None) -> int:
        """Fetch what is behind the last line held (or from ``start``); how many lines came."""
        at = self.next if start is None else start
        part = await ask(ReadLog(self.source, offset=at, lines=PAGE, grep=self.grep))
        if not isinstance(part, LogPart) or not part.lines:
            return 0
        self.size = part.size
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


def moment_of(text: str, day: str) -> str | None:
    """What a person types for a time, made comparable: ``17:05``, ``17:05:30``, with or without
    a day in front; None where it is no time."""
    match = re.fullmatch(r"\s*(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d))?\s*", text)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59:
        return None
    return f"{match[1] or day} {int(match[2]):02d}:{match[3]}:{match[4] or '00'}"


async def seek(ask: Ask, source: str, when: str) -> int | None:
    """Byte offset of the first line at or after a time, by halving; None where the log has none.

    ``when`` as :func:`moment_of` gives it, in the clock of the machine that wrote the log.
    """
    newest = await ask(ReadLog(source, lines=1))
    if not isinstance(newest, LogPart):
        return None
    low, high = 0, newest.size
    known = False
    while high - low > 4096:
        middle = (low + high) // 2
        part = await ask(ReadLog(source, offset=middle, lines=60))
        if not isinstance(part, LogPart):
            return None
        at = stamp(part.lines[1:])  # the first line is most often half a one
        if at is None:
            high = middle
            continue
        known = True
        if at < when:
            low = middle
        else:
            high = middle
    if not known:
        part = await ask(ReadLog(source, offset=0, lines=60))
        if not isinstance(part, LogPart) or stamp(part.lines) is None:
            return None
    return low


async def between(ask: Ask, source: str, begin: str, end: str) -> AsyncIterator[list[str]]:
    """All lines of a log from one time to another, page by page; times as for :func:`seek`."""
    offset = await seek(ask, source, begin)
    started = False
    while offset is not None:
        part = await ask(ReadLog(source, offset=offset, lines=10 * PAGE))
        if not isinstance(part, LogPart) or not part.lines or part.next <= offset:
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
