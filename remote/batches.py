"""What the batch files themselves say, without trusting the writer's counters."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remote.generate import layout
from remote.protocol import Batches


class _Entry(msgspec.Struct):
    """The keys of a manifest line that count here."""

    name: str
    state: str = "sealed"
    records: int = 0
    bytes: int = 0


def count(directory: Path) -> Batches:
    """Count files, records, bytes and uploads of a run directory.

    A sealed batch costs a stat and its manifest line; one without a line, and the open one, are
    read and their newlines counted. A directory that is not there counts as empty.
    """
    entries = _manifest(directory / layout.MANIFEST)
    files = records = size = 0
    gone = {name: entry for name, entry in entries.items() if entry.state == "local_deleted"}
    for path in directory.iterdir() if directory.is_dir() else ():
        if layout.batch_number(path.name) is not None:
            entry = entries.get(path.name)
            records += entry.records if entry else _newlines(path)
        elif layout.open_number(path.name) is not None:
            records += _newlines(path)
        else:
            continue
        files += 1
        size += path.stat().st_size
        gone.pop(path.name, None)  # killed before it was deleted
    uploaded = sum(e.state in ("uploaded", "local_deleted") for e in entries.values())
    return Batches(
        files=files + len(gone),
        records=records + sum(e.records for e in gone.values()),
        bytes=size + sum(e.bytes for e in gone.values()),
        uploaded=uploaded,
        done_lines=_newlines(directory / layout.DONE),
    )


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
