"""Several logs on the other side as one, by time, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from console.logfile import Ask, LogError, Page, Past, span
from remote.protocol import MergedPart, ReadMerged

BAR: Final = "│"
"""Between a line of the merged view and where it is from."""


def labelled(source: str, line: str) -> str:
    """A line with where it is from."""
    return f"{source.removeprefix('gpu'):>5}{BAR}{line}"


def own(line: str) -> str:
    """Of such a line, what its log has of it."""
    return line.partition(BAR)[2]


class MergedPast(Past[dict[str, int]]):
    """Of several logs; a place is an offset in each, in one that it does not name the end."""

    def __init__(self, sources: Sequence[str], at: dict[str, int], grep: str = "") -> None:
        super().__init__(at, grep)
        self.sources = list(sources)
        self.sizes: dict[str, int] = {}
        """Bytes of each file, once something was read."""

    async def read(
        self, ask: Ask, at: dict[str, int], lines: int, grep: str
    ) -> Page[dict[str, int]] | None:
        """See :class:`Past`."""
        part = await ask(ReadMerged(self.sources, at, lines=lines, grep=grep))
        if not isinstance(part, MergedPart):
            return None
        self.sizes = part.sizes
        names = [part.sources[whose] for whose in part.whose]
        lines_ = [labelled(name, line) for name, line in zip(names, part.lines, strict=True)]
        return Page(part.begin, part.next, lines_)

    @property
    def more_before(self) -> bool:
        """See :class:`Past`."""
        return not self.sizes or any(self.first.values())

    @property
    def more_behind(self) -> bool:
        """See :class:`Past`."""
        return any(size > self.next.get(source, size) for source, size in self.sizes.items())

    @property
    def span(self) -> tuple[int, int, int]:
        """See :class:`Past`."""
        size = sum(self.sizes.values())
        return sum(self.first.values()), sum(self.next.values()), size


async def seek(ask: Ask, sources: Sequence[str], when: str) -> dict[str, int]:
    """The place of the first line at or after a time, a stamp of the clock of the logs. Raises
    LogError."""
    part = await ask(ReadMerged(list(sources), when=when, lines=1))
    if not isinstance(part, MergedPart):
        raise LogError("the logs could not be read")
    return part.begin


async def between(
    ask: Ask, sources: Sequence[str], begin: str, end: str
) -> AsyncIterator[list[str]]:
    """All lines from one time to another, in the order of their times. Raises LogError."""
    past = MergedPast(sources, await seek(ask, sources, begin))
    async for page in span(ask, past, begin, end, own):
        yield page
