"""What the batch files themselves say, without trusting the writer's counters."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from remote import batchfiles
from remote.generate import layout
from remote.protocol import Batches, BatchFile

NEWEST = 40
"""Batch files that are told one by one."""


class _Entry(msgspec.Struct):
    """The keys of a manifest line that count here."""

    name: str
    state: Literal["sealed", "uploaded", "local_deleted"] = "sealed"
    records: int = 0
    bytes: int = 0
    last_at: str = ""
    uploaded_at: str = ""


def count(directory: Path) -> Batches:
    """Count files, records, bytes and uploads of a run directory.

    A sealed batch costs a stat and its manifest line; one without a line, and the open one, are
    read and their newlines counted. A directory that is not there counts as empty.
    """
    entries = _manifest(directory / layout.MANIFEST)
    files = records = size = 0
    gone = {name: entry for name, entry in entries.items() if entry.state == "local_deleted"}
    told = {
        name: BatchFile(name, e.state, e.records, e.bytes, e.last_at, e.uploaded_at)
        for name, e in entries.items()
    }
    sealed, opened = batchfiles.listed(directory) if directory.is_dir() else ([], [])
    for listed in (*sealed, *opened):
        seen = _seen(directory, listed, entries)
        if seen is None:
            continue  # deleted after its upload, a moment ago
        name, holds, weighs = seen
        if name not in entries:
            state: Literal["sealed", "open"] = "open" if listed in opened else "sealed"
            told[name] = BatchFile(name, state, holds, weighs)
        records += holds
        files += 1
        size += weighs
        gone.pop(name, None)  # killed before it was deleted
    uploaded = sum(e.state in ("uploaded", "local_deleted") for e in entries.values())
    return Batches(
        files=files + len(gone),
        records=records + sum(e.records for e in gone.values()),
        bytes=size + sum(e.bytes for e in gone.values()),
        uploaded=uploaded,
        done_lines=_done_lines(directory / layout.DONE),
        newest=[told[name] for name in sorted(told, reverse=True)[:NEWEST]],
    )


def _seen(directory: Path, name: str, entries: dict[str, _Entry]) -> tuple[str, int, int] | None:
    """Name, records and bytes of a batch that was listed; None where it went away. One that was
    open then may have been sealed since: it has another name now."""
    for known in dict.fromkeys((name, name.removesuffix(layout.OPEN))):
        path = directory / known
        try:
            weighs = path.stat().st_size
            entry = entries.get(known)
            return known, entry.records if entry else _newlines(path), weighs
        except FileNotFoundError:
            continue
    return None


def _manifest(path: Path) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except msgspec.DecodeError:
                continue
            entries[entry.name] = entry
    return entries


def _done_lines(path: Path) -> int:
    return _newlines(path) if path.exists() else 0


def _newlines(path: Path) -> int:
    """Raises FileNotFoundError."""
    with path.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 20), b""))
