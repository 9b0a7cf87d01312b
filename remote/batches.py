"""What the batch files themselves say, without trusting the writer's counters."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

import msgspec

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
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    for name in sorted(found):
        sealed = layout.batch_number(name) is not None
        if not sealed and layout.open_number(name) is None:
            continue
        path = now_at(directory, name, found)
        entry = entries.get(path.name)
        try:
            weighs = path.stat().st_size
        except FileNotFoundError:
            continue  # deleted after its upload, a moment ago
        holds = entry.records if entry else _newlines(path)
        if entry is None:
            state: Literal["sealed", "open"] = "sealed" if sealed else "open"
            told[path.name] = BatchFile(path.name, state, holds, weighs)
        records += holds
        files += 1
        size += weighs
        gone.pop(path.name, None)  # killed before it was deleted
    uploaded = sum(e.state in ("uploaded", "local_deleted") for e in entries.values())
    return Batches(
        files=files + len(gone),
        records=records + sum(e.records for e in gone.values()),
        bytes=size + sum(e.bytes for e in gone.values()),
        uploaded=uploaded,
        done_lines=_newlines(directory / layout.DONE),
        newest=[told[name] for name in sorted(told, reverse=True)[:NEWEST]],
    )


def now_at(directory: Path, name: str, listed: Collection[str]) -> Path:
    """Where a batch lies that was listed under this name: one that was open then may have been
    sealed since, and is in no listing under the name that it has now."""
    path, sealed = directory / name, name.removesuffix(layout.OPEN)
    return path if sealed in listed or path.exists() else directory / sealed


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


def _newlines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 20), b""))
