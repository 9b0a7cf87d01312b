"""Reading on in a log that is being written."""

from __future__ import annotations

import os
from pathlib import Path

HEAD = 1 << 20
"""Of a log that is read for the first time, so much from its start (the start-up lines) …"""

TAIL = 1 << 18
"""… and so much from its end."""

ROTATE_OVER = 64 << 20
"""A log larger than this is set aside by rename when its server is started."""


class Tail:
    """A file that is read piece by piece, from ``offset`` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.skipped = 0
        """Bytes that were passed over because there were too many at once."""

    def read(self, limit: int = TAIL) -> bytes:
        """What has been appended since, at most ``limit`` bytes of it; empty where nothing has.

        Blocking, though only for a page-cache read. A file that has become shorter is read from
        its start.
        """
        try:
            with self.path.open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size < self.offset:
                    self.offset = 0
                log.seek(self.offset)
                data = log.read(limit)
        except OSError:
            return b""
        self.offset += len(data)
        return data

    def read_first(self) -> bytes:
        """Head and tail of what is there, a line break between them where a middle is left out."""
        head = self.read(HEAD)
        try:
            size = self.path.stat().st_size
        except OSError:
            return head
        if size - self.offset > TAIL:
            self.skipped += size - TAIL - self.offset
            self.offset = size - TAIL
            return head + b"\n" + self.read(TAIL).partition(b"\n")[2]
        return head + self.read(TAIL)


def rotate(path: Path) -> Path | None:
    """Set a log of more than :data:`ROTATE_OVER` bytes aside; its new name, or None.

    SGLang keeps its log open for life, so this is done between two servers only.
    """
    try:
        if path.stat().st_size <= ROTATE_OVER:
            return None
    except OSError:
        return None
    number = 1
    while (target := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.replace(target)
    return target
