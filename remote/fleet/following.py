"""A server's log as it grows, read and understood."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from remote.fleet.tail import TAIL, Tail
from remote.sglang.loglines import LogReader

_READS = 8
"""Pieces of a log that are read in one look: a flood is caught up with over several."""


@dataclass
class Following:
    """One launch's part of a log file; ``tail`` is None where there is none to be read."""

    tail: Tail | None = None
    reader: LogReader = field(default_factory=LogReader)
    _began: bool = False

    @classmethod
    def of(cls, path: Path, offset: int) -> Following:
        """From this byte on."""
        return cls(Tail(path, offset))

    def read(self) -> bool:
        """Take in what has come since; whether it grew while it was followed. Blocking (page
        cache, and parsing)."""
        tail, reader, grew = self.tail, self.reader, False
        if tail is None:
            return False
        if not self._began:
            self._began = True
            reader.feed(tail.read_first(), time.time())
            return False
        for _ in range(_READS):
            data = tail.read()
            if data:
                reader.feed(data, time.time())
                grew = True
            if len(data) < TAIL:
                break
        return grew
