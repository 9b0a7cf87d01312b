"""Files that only grow, read on from where one stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

BLOCK = 256 * 1024
"""Bytes read at once: other threads wait no longer than it takes to parse so much."""


class Appended:
    """The whole lines of one file, each once. A file that was replaced, or has become shorter, is
    read from its start again: :meth:`fresh` tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._at = 0

    def fresh(self) -> bool:
        """Whether all that was read of it is void. Asked before :meth:`lines`."""
        try:
            state = self.path.stat()
        except OSError:
            gone, self._inode, self._at = self._inode != 0, 0, 0
            return gone
        if state.st_ino == self._inode and state.st_size >= self._at:
            return False
        gone, self._inode, self._at = self._inode != 0, state.st_ino, 0
        return gone

    def lines(self) -> Iterator[bytes]:
        """Lines that have come since, without their newlines; what has none yet waits."""
        if not self._inode:
            return
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != self._inode:
                    return
                file.seek(self._at)
                rest = b""
                while block := file.read(BLOCK):
                    *whole, rest = (rest + block).split(b"\n")
                    for line in whole:
                        self._at += len(line) + 1
                        yield line
        except FileNotFoundError:
            return
