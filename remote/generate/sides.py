"""What ``failed.jsonl`` and ``set_aside.jsonl`` hold, told without reading them at every start.

Beside each lies an index, ``[INDEX,"OUTCOME",END]`` a line, END being the offset behind the entry.
It only repeats the file: a line is appended, without a sync, once its entry is durable. A start
believes it up to its first odd line and only where it fits the file, reads the rest of the file
itself, and makes the index anew. Deleting it costs the time to read the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remote.generate.mending import INDEX

Entry = tuple[int, str, int]
"""Prompt, outcome, offset behind its line."""

_entry = msgspec.json.Decoder(Entry)


def path_of(file: Path) -> Path:
    """The index of a file."""
    return file.with_name(f".{file.stem}.idx")


def encode(entries: Iterable[Entry]) -> bytes:
    """Lines of an index."""
    return msgspec.json.Encoder().encode_lines(entries)


@dataclass(frozen=True)
class Known:
    """What an index tells of its file."""

    lines: bytes
    """Those of it that are believed."""
    whole: bool
    """That is all of it."""
    end: int
    """Offset in the file up to which it tells."""

    def entries(self) -> Iterator[Entry]:
        """A million of them take a hundred megabytes at once, so that they come in blocks."""
        for block in _blocks(self.lines):
            yield from _entry.decode_lines(block)


def read(file: Path) -> Known:
    """What is known of ``file`` without reading it."""
    try:
        data = path_of(file).read_bytes()
    except FileNotFoundError:
        return Known(b"", True, 0)
    good = before = end = index = 0
    for block in _blocks(data):
        entries, size = _good_lines(block)
        for _, _, there in entries:
            before, end = end, there
            if end <= before:
                return Known(b"", False, 0)
        index = entries[-1][0] if entries else index
        good += size
        if size != len(block):
            break
    if good and not _fits(file, index, before, end):
        return Known(b"", False, 0)
    return Known(data[:good], good == len(data), end)


def _blocks(data: bytes) -> Iterator[bytes]:
    """Pieces of about a megabyte that end with a newline, except perhaps the last."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + (1 << 20)) + 1 or len(data)
        yield data[start:end]
        start = end


def _good_lines(block: bytes) -> tuple[list[Entry], int]:
    """The entries up to the first odd line, and how many bytes they are."""
    try:
        if block[-1:] == b"\n":
            return _entry.decode_lines(block), len(block)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    entries: list[Entry] = []
    size = 0
    for raw in block.splitlines(keepends=True):
        try:
            if raw[-1:] != b"\n":
                break
            entries.append(_entry.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
        size += len(raw)
    return entries, size


def _fits(file: Path, index: int, begin: int, end: int) -> bool:
    """Whether a record of that prompt stands between those offsets."""
    try:
        with file.open("rb") as data:
            line = os.pread(data.fileno(), end - begin, begin)
    except FileNotFoundError:
        return False
    found = INDEX.match(line)
    whole = len(line) == end - begin and line[-1:] == b"\n" and line.count(b"\n") == 1
    return found is not None and int(found[1]) == index and whole
