"""The small files of a run directory: read whole, each mistake in them told."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import psutil

from remote.verify.report import Report

_DIGITS = 18  # no index is longer


class Marks:
    """Which indices were seen, in a bit each, by pages: a wild index costs one page."""

    def __init__(self) -> None:
        self._pages: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(1 << 13))
        self.count = 0

    def add(self, index: int) -> bool:
        """False when it was there already."""
        page, byte, bit = self._pages[index >> 16], index >> 3 & 0x1FFF, 1 << (index & 7)
        if page[byte] & bit:
            return False
        page[byte] |= bit
        self.count += 1
        return True

    def __contains__(self, index: int) -> bool:
        page = self._pages.get(index >> 16)
        return page is not None and bool(page[index >> 3 & 0x1FFF] & (1 << (index & 7)))

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._pages):
            for byte, value in enumerate(self._pages[number]):
                if value:
                    for bit in range(8):
                        if value & (1 << bit):
                            yield (number << 16) + byte * 8 + bit


def numbered_lines(path: Path, report: Report) -> Iterator[tuple[int, bytes]]:
    """Numbered complete lines of a file that need not be there; a torn end is noted."""
    with suppress(FileNotFoundError), path.open("rb") as source:
        for number, line in enumerate(source, 1):
            if line.endswith(b"\n"):
                yield number, line[:-1]
            else:
                report.notes.append(f"{path.name}: the last line is torn; it does not count")


def done_indices(directory: Path, report: Report) -> Marks:
    marks = Marks()
    for number, line in numbered_lines(directory / ".done_indices", report):
        if not line.isdigit() or len(line) > _DIGITS:
            report.violation("bad index line", f".done_indices:{number}: not an index: {line!r}")
        elif not marks.add(int(line)):
            report.violation("index twice", f".done_indices:{number}: {int(line)} stands twice")
    return marks


def side_file(path: Path, report: Report) -> Marks:
    """Indices of ``failed.jsonl`` or ``set_aside.jsonl``."""
    marks = Marks()
    for number, line in numbered_lines(path, report):
        index = index_of(json_object(line))
        if index is None:
            report.violation("bad record", f"{path.name}:{number}: no JSON object with an index")
        elif not marks.add(index):
            report.violation("index twice", f"{path.name}:{number}: index {index} stands twice")
    return marks


def index_of(record: dict[str, Any] | None) -> int | None:
    """A record's index; None where it has none that is a count."""
    value = record.get("index") if record is not None else None
    return value if is_count(value) else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, not negative, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line is; None where it is none."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def json_file(path: Path, report: Report) -> dict[str, Any] | None:
    """The JSON object that a file is; None where there is no file, or something else in it."""
    if not path.exists():
        return None
    value = json_object(path.read_bytes())
    if value is None:
        report.violation("bad file", f"{path.name}: not a JSON object")
    return value


def is_live(directory: Path) -> bool:
    """Whether the process that ``.lock`` names still runs; a lock taken here could stop a start."""
    with suppress(OSError, ValueError, TypeError, KeyError, psutil.Error):
        holder = json.loads((directory / ".lock").read_text())
        started = datetime.fromisoformat(holder["started"]).timestamp()
        return abs(psutil.Process(int(holder["pid"])).create_time() - started) < 3
    return False


def manifest_entries(directory: Path, report: Report) -> dict[str, dict[str, Any]]:
    """The last line of each name."""
    entries: dict[str, dict[str, Any]] = {}
    for number, line in numbered_lines(directory / "manifest.jsonl", report):
        entry = json_object(line)
        coded = entry.get("indices") if entry is not None else None
        if entry is None or not isinstance(entry.get("name"), str):
            report.violation("bad manifest", f"manifest.jsonl:{number}: no JSON object with a name")
        elif not isinstance(coded, list) or not all(type(step) is int for step in coded):
            report.violation("bad manifest", f"manifest.jsonl:{number}: no indices")
        else:
            entries[entry["name"]] = entry
    return entries
