"""Several log files as one, by time: so many lines before or behind a place. Blocking: a thread's.

A place is an offset in each file, so that no line is told twice or left out, whatever the clocks
of those that wrote them did. A line without a time stays behind the line before it in its file;
of the same second first the first line of each file comes, then the second of each. A file without
any times is spread evenly over the time of the others, up to when it was last written. What is read
is a chunk of each file at a time, and :data:`remote.agent.logs.SCAN` bytes in all for one request.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from calendar import timegm
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from remote.agent import logs
from remote.protocol import MergedPart, ReadMerged

_STAMP: Final = rb"\r*\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)"
_OWN: Final = re.compile(_STAMP)
_ANY: Final = re.compile(rb"^" + _STAMP, re.MULTILINE)
_TYPED: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")

_EACH: Final = 1_000_000
"""Places in a second."""

_CHUNK: Final = 64 * 1024
_SEARCHED: Final = 256 * 1024
"""The same for a search."""
_LONGEST: Final = 4 << 20
"""A line longer than this is cut."""
_WITHOUT: Final = 16 << 20
"""So far is looked for a time where lines have none."""
_TEXT: Final = 4 << 20
"""Bytes of lines that one answer holds."""


class _Line(NamedTuple):
    """A line; or, without text, that a file was looked through as far as this."""

    key: int
    """Its time as a number, ``20261129170530``, times :data:`_EACH`, and how many lines of its file
    and second it makes."""
    begin: int
    end: int
    text: bytes | None


def _key(found: re.Match[bytes]) -> int:
    return int(b"".join(found.groups()))


def _seconds(key: int) -> int | None:
    """A time as a number in seconds since any day; None where there is no such time."""
    try:
        return timegm(time.strptime(str(key), "%Y%m%d%H%M%S"))
    except ValueError:
        return None


class _Log:
    """One file, up to its last newline."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        stat = os.fstat(fd)
        self.end = logs.last_newline(fd, stat.st_size)
        self._written = timegm(time.localtime(stat.st_mtime))
        self.since: int | None = None
        """When the others begin, which is all that is known of lines without times."""
        self.read = 0
        """Bytes read so far."""
        self._blank = (0, 0)
        """A stretch known to have no times."""
        self._head: int | None = None

    def _bytes(self, begin: int, end: int) -> bytes:
        data = os.pread(self._fd, end - begin, begin)
        self.read += len(data)
        return data

    def _behind(self, begin: int, chunk: int) -> bytes:
        """Whole lines from an offset on, one at least; nothing at the end."""
        while True:
            data = self._bytes(begin, min(begin + chunk, self.end))
            edge = data.rfind(b"\n")
            if edge >= 0:
                return data[: edge + 1]
            if begin + len(data) >= self.end or len(data) < chunk or chunk >= _LONGEST:
                return data
            chunk *= 4

    def _before(self, end: int, chunk: int) -> tuple[int, bytes]:
        """Whole lines that end at an offset, one at least, and where they begin."""
        while True:
            begin = max(0, end - chunk)
            data = self._bytes(begin, end)
            if begin == 0 or chunk >= _LONGEST:
                return begin, data
            edge = data.find(b"\n") + 1
            if 0 < edge < len(data):
                return begin + edge, data[edge:]
            chunk *= 4

    def on(self, offset: int, wanted: re.Pattern[bytes] | None) -> Iterator[_Line]:
        """Lines from an offset on; all, or those that match."""
        while offset < self.end:
            data = self._behind(offset, _SEARCHED if wanted else _CHUNK)
            if not data:
                return
            key = 0
            for key, at, text in self._keyed(data, offset):
                if wanted is None or wanted.search(text):
                    yield _Line(key, at, at + len(text) + 1, text)
            offset += len(data)
            yield _Line(key, offset, offset, None)

    def back(self, offset: int, wanted: re.Pattern[bytes] | None) -> Iterator[_Line]:
        """The same from an offset back."""
        while offset > 0:
            begin, data = self._before(offset, _SEARCHED if wanted else _CHUNK)
            first: int | None = None
            lines: list[_Line] = []
            for key, at, text in self._keyed(data, begin):
                first = key if first is None else first
                if wanted is None or wanted.search(text):
                    lines.append(_Line(key, at, at + len(text) + 1, text))
            yield from reversed(lines)
            yield _Line(first or 0, begin, begin, None)
            offset = begin

    def _keyed(self, data: bytes, offset: int) -> Iterator[tuple[int, int, bytes]]:
        """Lines of a stretch of the file: where they stand, their offset and text."""
        key = self.in_force(offset)
        for at, text in logs.lines_of(data, offset):
            if found := _OWN.match(text):
                when = _key(found)
                key = key + 1 if key // _EACH == when else when * _EACH + 1
            yield key or self._guessed(at), at, text

    def in_force(self, offset: int) -> int:
        """Where the last line before an offset stands that has a time."""
        floor, end, top = max(0, offset - _WITHOUT), offset, offset
        when, count, step = 0, 0, _CHUNK // 8
        while end > floor:
            if self._blank[0] < end <= self._blank[1]:
                end, top = self._blank[0], max(top, self._blank[1])
                continue
            begin = max(floor, end - step)
            # A little more than the stretch: a time may stand across its edge.
            base = max(0, begin - 1)
            data = self._bytes(base, min(end + 32, offset))
            for found in reversed(list(_ANY.finditer(data))):
                if not begin <= base + found.start() < end:
                    continue  # the middle of a line, or one that was counted
                when = when or _key(found)
                if _key(found) != when:
                    return when * _EACH + count
                count += 1
            end, step = begin, min(4 * step, _SEARCHED)
        if when:
            return when * _EACH + count
        self._blank = (min(floor, end), top)
        return self.first() * _EACH

    def _guessed(self, offset: int) -> int:
        """A place for a line at an offset of a file without times."""
        begin = self._written if self.since is None else min(self.since, self._written)
        at = begin + (self._written - begin) * offset // max(1, self.end)
        return int(time.strftime("%Y%m%d%H%M%S", time.gmtime(at))) * _EACH

    def first(self) -> int:
        """The first time in the file, for what stands above it; 0 where none is found."""
        if self._head is None:
            found = _ANY.search(self._bytes(0, min(_CHUNK // 8, self.end)))
            if found is None and self.end > _CHUNK // 8:
                found = _ANY.search(self._bytes(0, min(_SEARCHED, self.end)))
            self._head = _key(found) if found else 0
        return self._head

    def _stamped(self, offset: int, end: int) -> tuple[int, int] | None:
        """Offset and time of the first line with one in a stretch; None where it has none."""
        end = min(end, offset + _WITHOUT)
        while offset < end:
            data = self._bytes(offset, min(offset + _SEARCHED + 32, end + 32))
            for found in _ANY.finditer(data):
                if found.start() > 0:  # what stands at the edge may be the middle of a line
                    return offset + found.start(), _key(found)
            offset += _SEARCHED
        return None

    def seek(self, when: int) -> int:
        """Offset of the first line at or after a time; the end where there is none."""
        low, high = 0, self.end
        while high - low > _CHUNK:
            middle = (low + high) // 2
            found = self._stamped(middle, high)
            if found is None or found[1] >= when:
                high = middle
            else:
                low = found[0]
        start = low
        for line in self.on(low, None):
            if line.key >= when * _EACH:
                return line.begin
            if line.begin - start > _WITHOUT + _CHUNK:
                break
        return self.end


def read(paths: Mapping[str, Path], request: ReadMerged) -> MergedPart:
    """Lines of the files of all sources. One that is not there counts as empty; raises OSError on
    one that cannot be read, re.error on a bad pattern."""
    wanted = re.compile(request.grep.encode()) if request.grep else None
    with contextlib.ExitStack() as stack:
        files: dict[str, _Log] = {}
        for source in request.sources:
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(paths[source].open("rb"))
                files[source] = _Log(file.fileno())
        known = [first for log in files.values() if (first := log.first())]
        for log in files.values():
            log.since = _seconds(min(known)) if known else None
        when = _TYPED.match(request.when)
        if when is not None:
            key = int("".join(when.groups()))
            start = {source: log.seek(key) for source, log in files.items()}
        else:
            at = request.at or {}
            start = {s: max(0, min(at.get(s, log.end), log.end)) for s, log in files.items()}
        back = request.lines < 0
        found, reached = _merge(files, start, abs(request.lines), wanted, back=back)
        names = list(files)
        return MergedPart(
            sources=names,
            whose=[index for index, _ in found],
            lines=[logs.text_of(text) for _, text in found],
            begin=reached if back else start,
            next=start if back else reached,
            sizes={source: log.end for source, log in files.items()},
        )


def _merge(
    files: Mapping[str, _Log],
    start: Mapping[str, int],
    count: int,
    wanted: re.Pattern[bytes] | None,
    *,
    back: bool,
) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    """Lines in the order of their times, each with the number of its source, and the place behind
    the last of them (before the first one, on the way ``back``)."""
    reached = dict(start)
    names = list(files)
    ways = [
        log.back(start[name], wanted) if back else log.on(start[name], wanted)
        for name, log in files.items()
    ]
    sign = -1 if back else 1
    heads: list[tuple[int, int, _Line]] = []

    def more(index: int) -> None:
        line = next(ways[index], None)
        if line is not None:
            heapq.heappush(heads, (sign * line.key, sign * index, line))

    for index in range(len(names)):
        more(index)
    found: list[tuple[int, bytes]] = []
    length, last = 0, (0, 0)
    while heads and len(found) < count and length < _TEXT:
        _, place, line = heapq.heappop(heads)
        index = sign * place
        reached[names[index]] = line.begin if back else line.end
        if line.text is not None:
            found.append((index, line.text))
            last = (line.key, index)
            length += min(len(line.text), logs.LINE)
        if sum(log.read for log in files.values()) >= logs.SCAN:
            break
        more(index)
    if found and wanted:
        _align(files, reached, last, back=back)
    if back:
        found.reverse()
    return found, reached


def _align(
    files: Mapping[str, _Log], reached: dict[str, int], last: tuple[int, int], *, back: bool
) -> None:
    """After a search, which goes through each file by chunks: bring all to the time of the last
    line found (its time, and the number of its source), so that without the search the place
    shows that line and what stands around it."""
    for index, (name, log) in enumerate(files.items()):
        if index == last[1]:
            continue
        for line in (log.back if back else log.on)(reached[name], None):
            if line.text is None:
                continue
            if ((line.key, index) > last) != back:
                break
            reached[name] = line.begin if back else line.end
