"""What ``failed.jsonl`` and ``set_aside.jsonl`` hold, told without reading them at every start.

Beside each lies an index, ``[INDEX,"OUTCOME",END]`` a line, END being the offset behind the entry.
It only repeats the file: a line is appended, without a sync, once its entry is durable. A start
believes it up to its first odd line and only where it fits the file, reads the rest of the file
itself, and makes the index anew. Deleting it costs the time to read the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from remote.generate.mending import INDEX, split

Entry = tuple[int, str, int]
"""Prompt, outcome, offset behind its line."""

_entry = msgspec.json.Decoder(Entry)


def path_of(file: Path) -> Path:
    """The index of a file."""
    return file.with_name(f".{file.stem}.idx")


def encode(entries: Iterable[Entry]) -> bytes:
    """Lines of an index."""
    return msgspec.json.Encoder().encode_lines(entries)


def read(file: Path) -> tuple[list[Entry], bool]:
    """The entries of ``file`` that its index tells of, and whether the index is good as it is."""
    index = path_of(file)
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return [], True
    try:
        entries, good = _entry.decode_lines(data), data[-1:] in (b"", b"\n")
        if not good:
            entries.pop()
    except (msgspec.DecodeError, UnicodeDecodeError):
        entries, good = _first_good(index), False
    ends = [0, *(end for _, _, end in entries)]
    if all(a < b for a, b in pairwise(ends)) and _fits(file, entries, ends):
        return entries, good
    return [], False


def _first_good(index: Path) -> list[Entry]:
    entries: list[Entry] = []
    for _, _, raw in split(index):
        try:
            if raw[-1:] == b"\n":
                entries.append(_entry.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
    return entries


def _fits(file: Path, entries: Sequence[Entry], ends: Sequence[int]) -> bool:
    """Whether the last entry's line stands where the index says."""
    if not entries:
        return True
    begin, end = ends[-2:]
    try:
        with file.open("rb") as data:
            line = os.pread(data.fileno(), end - begin, begin)
    except FileNotFoundError:
        return False
    found = INDEX.match(line)
    whole = len(line) == end - begin and line[-1:] == b"\n" and line.count(b"\n") == 1
    return found is not None and int(found[1]) == entries[-1][0] and whole
