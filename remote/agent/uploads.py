"""Batches that have reached the bucket, told as they come and never more often than is read."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from remote.generate import layout
from remote.protocol import Progress

EACH_S: Final = 60.0
"""Seconds between two lines: in a usual run one file is finished in some minutes, in a fast one
(and where the bucket was away) many come together."""

_TAIL: Final = 1 << 20
"""Bytes of the manifest's end in which the newest files are looked for."""


class _Line(msgspec.Struct, frozen=True):
    """Of a line of the manifest what is told."""

    name: str
    state: str
    records: int
    bytes: int


class Uploads:
    """Follows one run directory by its progress."""

    def __init__(self) -> None:
        self._known: tuple[str, int] | None = None
        self._told_at = -EACH_S

    def look(self, folder: Path, progress: Progress | None) -> str:
        """A line on the files that came since the last one; empty while there are none, or the
        last line is too young. Blocking."""
        if progress is None:
            return ""
        now, files = time.monotonic(), progress.s3_uploaded
        if self._known is None or self._known[0] != progress.run_id or files < self._known[1]:
            self._known = (progress.run_id, files)
        new = files - self._known[1]
        over = progress.status in ("done", "stopped", "failed")
        if not new or (now - self._told_at < EACH_S and not over):
            return ""
        self._known, self._told_at = (progress.run_id, files), now
        return _words(_newest(folder / layout.MANIFEST, new), new)


def _words(batches: list[_Line], count: int) -> str:
    """``count`` files in words, by name, records and bytes of those that could be read."""
    if not batches:
        return f"{count} files"
    records, size = sum(b.records for b in batches), sum(b.bytes for b in batches)
    last = batches[-1].name
    names = last if count == 1 else f"{count} files, the last {last}"
    return f"{names} ({records:,} records, {size / (1 << 20):.1f} MiB)"


def _newest(manifest: Path, count: int) -> list[_Line]:
    """Name, records and bytes of the ``count`` files that were uploaded last."""
    try:
        with manifest.open("rb") as lines:
            lines.seek(max(0, lines.seek(0, 2) - _TAIL))
            data = lines.read()
    except OSError:
        return []
    found: dict[str, _Line] = {}
    for text in data.splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # the first one is cut, the last may be torn
            told = msgspec.json.decode(text, type=_Line)
            if told.state in ("uploaded", "local_deleted"):
                found.setdefault(told.name, told)
    return list(found.values())[-count:]
