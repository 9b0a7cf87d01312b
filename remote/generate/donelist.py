"""``.done_indices`` as a start finds it, and made right again: it only repeats the batches."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Annotated

import msgspec

from remote.generate import layout
from remote.generate.disk import Disk

_indices = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0)]]).decode
_MARK = re.compile(rb"[^\0]")


class DoneList:
    """The file's indices, as one byte a prompt."""

    def __init__(self, folder: Path, total: int) -> None:
        self._path = folder / layout.DONE
        self.listed = bytearray(total)
        """Whether the file has it."""
        self._junk = 0
        """Words that are no index or stand twice; a torn last line counts, too."""
        self._read(total)

    def _read(self, total: int) -> None:
        listed = self.listed
        good = 0
        for block in _blocks(self._path):
            try:
                # As one JSON list: half the time of a split and an int() for each.
                indices = _indices(b"[%b]" % block[:-1].replace(b"\n", b","))
                whole = block[-1:] == b"\n" and max(indices, default=0) < total
            except msgspec.DecodeError:
                whole = False
            if whole:
                deque(map(listed.__setitem__, indices, repeat(1)), maxlen=0)
                good += len(indices)
                continue
            words = block.split()
            if block[-1:] != b"\n" and words:
                words.pop()
                self._junk += 1
            for word in words:
                if word.isdigit() and int(word) < total:
                    listed[int(word)] = 1
                    good += 1
                else:
                    self._junk += 1
        self._junk += good - listed.count(1)

    def mend(self, done: bytes | bytearray, disk: Disk) -> tuple[int, list[int]]:
        """Remove what has no record; ``done`` has a mark for each prompt that has one.

        :returns: how many lines were removed, and the indices that are missing.
        """
        if self.listed == done and not self._junk:
            return 0, []
        removed = len(_differences(self.listed, done)) + self._junk
        if removed:
            both = int.from_bytes(self.listed, "little") & int.from_bytes(done, "little")
            lines = bytearray()
            for match in _MARK.finditer(both.to_bytes(len(done), "little")):
                lines += b"%d\n" % match.start()
            disk.replace(self._path, bytes(lines))
        return removed, _differences(done, self.listed)


def _differences(a: bytes | bytearray, b: bytes | bytearray) -> list[int]:
    """Where ``a`` has a mark and ``b`` has none."""
    ones = int.from_bytes(a, "little")
    only = ones & ~int.from_bytes(b, "little")
    return [m.start() for m in _MARK.finditer(only.to_bytes(len(a), "little"))] if only else []


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in pieces that end with a newline, except perhaps the last."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while block := file.read(1 << 20):
            yield block + (file.readline() if block[-1:] != b"\n" else b"")
