"""Reading log files by (inode, offset): blocking, for a thread.

A cursor stands for a place in one file. When the file was rotated away or truncated the cursor's
inode or offset no longer fits, and reading begins at the start of what is there now. Lines are
whole: what comes after the last newline waits, unless it is longer than a line may be.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from remote.protocol import LogPart
from remote.sglang.flags import without_keys

CHUNK = 128 * 1024
"""Bytes of one part."""

BEHIND = 512 * 1024
"""A follower further behind than this is brought to the end, and told how much it missed."""

LINE = 16 * 1024
"""Longest line told, in bytes; the rest of a longer one is cut and said."""

SCAN = 64 << 20
"""Bytes one search looks through, from the end."""


def tail(source: str, path: Path, lines: int, grep: str = "") -> LogPart:
    """The last ``lines`` lines, or the last of those that match.

    Raises OSError where the file can't be read, re.error on a bad pattern.
    """
    with path.open("rb") as file:
        return _before(source, file, None, lines, grep)


def _before(source: str, file: BinaryIO, end: int | None, lines: int, grep: str) -> LogPart:
    """The last ``lines`` lines that end at or before ``end`` (None: the last newline).

    Where nothing matches, ``offset`` is how far back was looked.
    """
    wanted = re.compile(grep.encode()) if grep else None
    stat = os.fstat(file.fileno())
    if end is None:
        end = last_newline(file.fileno(), stat.st_size)
    start, kept = end, b""
    floor = max(0, end - SCAN)
    found: list[tuple[int, bytes]] = []
    while start > floor:
        begin = max(floor, start - (1 << 20))
        file.seek(begin)
        kept = file.read(start - begin) + kept
        start = begin
        cut = 0 if begin == 0 else kept.find(b"\n") + 1
        found = lines_of(kept[cut:], begin + cut) + found
        kept = kept[:cut]
        if wanted:
            found = [(at, line) for at, line in found if wanted.search(line)]
        if len(found) >= lines:
            break
    found = found[-lines:] if lines > 0 else []
    offset = found[0][0] if found else start
    return _part(source, stat, offset, end, [line for _, line in found])


def read(source: str, path: Path, offset: int, lines: int, grep: str = "") -> LogPart:
    """Lines from a byte offset on; ``next`` is where to go on. A negative number of lines: as
    many of those before ``offset``, which then begins a line. A search goes on until something
    matches, :data:`SCAN` bytes far at most."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        offset = min(max(offset, 0), stat.st_size)
        if lines < 0:
            return _before(source, file, offset, -lines, grep)
        wanted = re.compile(grep.encode()) if grep else None
        floor = offset + SCAN
        while True:
            data = _whole(os.pread(file.fileno(), CHUNK, offset))
            found = lines_of(data, offset)
            shown = [(at, line) for at, line in found if not wanted or wanted.search(line)]
            if shown or not data or not wanted or offset >= floor:
                break
            offset += len(data)
    after = offset + len(data) if wanted else offset
    if shown := shown[:lines]:
        after = shown[-1][0] + len(shown[-1][1]) + 1
        offset = shown[0][0]
    return _part(source, stat, offset, min(after, stat.st_size), [line for _, line in shown])


def follow(source: str, path: Path, inode: int, offset: int) -> LogPart | None:
    """What is new behind a cursor, or None. Offset -1: the last 200 lines first.

    Never raises on a file that is missing: it may come.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    if offset < 0:
        return tail(source, path, 200) if stat.st_size else None
    if stat.st_ino != inode or stat.st_size < offset:
        offset = 0
    if stat.st_size <= offset:
        return None
    skipped = 0
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        if stat.st_size - offset > BEHIND:
            target = stat.st_size - CHUNK // 2
            skipped, offset = _skip(file.fileno(), offset, target)
        data = os.pread(file.fileno(), CHUNK, offset)
    data = _whole(data)
    if not data and not skipped:
        return None
    found = lines_of(data, offset)
    return _part(source, stat, offset, offset + len(data), [line for _, line in found], skipped)


def last_newline(fd: int, size: int) -> int:
    """Offset behind the last newline; the size itself where the last line is very long."""
    begin = max(0, size - CHUNK)
    edge = os.pread(fd, size - begin, begin).rfind(b"\n")
    return begin + edge + 1 if edge >= 0 else (0 if begin == 0 else size)


def _skip(fd: int, offset: int, target: int) -> tuple[int, int]:
    """(lines passed over, offset of the first whole line at or behind ``target``)."""
    count = 0
    at = offset
    while True:
        block = os.pread(fd, 1 << 20, at)
        if not block:
            return count, at
        if at + len(block) <= target:
            count += block.count(b"\n")
            at += len(block)
            continue
        edge = block.find(b"\n", max(target - at, 0))
        if edge < 0:
            at += len(block)
            continue
        return count + block.count(b"\n", 0, edge + 1), at + edge + 1


def _whole(data: bytes) -> bytes:
    """Up to the last newline; all of it where a line does not end within a part."""
    edge = data.rfind(b"\n")
    if edge >= 0:
        return data[: edge + 1]
    return data if len(data) >= CHUNK else b""


def lines_of(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    """(offset, line without its newline) of every line."""
    if not data:
        return []
    found = []
    pieces = data.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        found.append((offset, piece))
        offset += len(piece) + 1
    return found


def _part(
    source: str, stat: os.stat_result, offset: int, after: int, lines: list[bytes], skipped: int = 0
) -> LogPart:
    return LogPart(
        source=source,
        inode=stat.st_ino,
        offset=offset,
        next=after,
        lines=[text_of(line) for line in lines],
        skipped=skipped,
        size=stat.st_size,
    )


def text_of(line: bytes) -> str:
    text = without_keys(line[:LINE].decode("utf-8", "replace").rstrip("\r"))
    return text if len(line) <= LINE else f"{text} … [{len(line) - LINE} bytes more]"
