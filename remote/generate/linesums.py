"""A short checksum of every line of the prompts file, so that a changed line can be named.

Beside the index of offsets lies a file of them: the sha256 of the prompts file that it tells of (32
bytes), then four bytes a line. Deleting it costs the name of the line.
"""

from __future__ import annotations

import mmap
import sys
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path

HEAD = 32
_CHUNK = 1 << 16


def path_of(index: Path) -> Path:
    """The checksums beside an index."""
    return index.with_suffix(".sum")


def encode(lines: Iterable[bytes]) -> array[int]:
    """The checksums of some lines, as the file has them. Adler-32: any one changed byte shows."""
    sums = array("I", map(zlib.adler32, lines))
    if sys.byteorder == "big":
        sums.byteswap()
    return sums


def difference(old: Path, sha256: str, new: Path) -> tuple[int, int] | None:
    """The first line (from 0) that ``new`` has otherwise than ``old``, and how many of those that
    both have differ.

    The number of lines that both have, and 0, where one is only longer. None where nothing is known
    of the old lines: ``old`` is not there or not of the file with that ``sha256``.
    """
    try:
        before, after = _content(old), _content(new)
    except (OSError, ValueError):
        return None
    if before[:HEAD].hex() != sha256:
        return None
    size = min(len(before), len(after))
    first, count = -1, 0
    for at in range(HEAD, size, _CHUNK):
        end = min(at + _CHUNK, size)
        one, two = before[at:end], after[at:end]
        if one == two:
            continue
        for place in range(0, end - at, 4):
            if one[place : place + 4] != two[place : place + 4]:
                count += 1
                if first < 0:
                    first = (at - HEAD + place) // 4
    return (first, count) if count else ((size - HEAD) // 4, 0)


def _content(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
