"""Torn ends: lines are read up to the first bad one, and what follows is saved and cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from remote.generate import layout
from remote.generate.disk import Disk

T = TypeVar("T")

INDEX = re.compile(rb'^\{\s*"index"\s*:\s*(\d+)', re.MULTILINE)
"""How a record begins."""


class RecoveryError(Exception):
    """The directory holds what no crash leaves: file, line and what to do, in one line."""


class Mender:
    """Cuts torn ends off a run directory's files, and tells of it.

    ``acknowledged(index)`` says whether a prompt counts as done though no record of it was found.
    """

    def __init__(self, folder: Path, disk: Disk, acknowledged: Callable[[int], bool]) -> None:
        self._folder = folder
        self._disk = disk
        self._acknowledged = acknowledged
        self.notes: list[str] = []
        """What was mended, one line each."""
        self.repaired = 0
        """Lines cut, added or removed."""

    def lines(
        self, path: Path, read: Callable[[bytes], T], *, start: int = 0, number: int = 1
    ) -> Iterator[tuple[int, int, T]]:
        """Number, offset behind it and content of a side file's lines; from the first broken one
        on they are cut off. ``start`` is the offset of the line with that ``number``.

        :raises RecoveryError: a whole line that ``read`` does not take.
        """
        for at, offset, raw in split(path, start, number):
            try:
                if raw[-1:] == b"\n" and (raw.isascii() or raw.decode()):
                    yield at, offset + len(raw), read(raw)
                    continue
            except UnicodeDecodeError:
                pass
            except msgspec.DecodeError as error:
                if _is_object(raw):
                    raise RecoveryError(f"{path}: line {at}: {error}") from None
            with path.open("rb") as file:
                file.seek(offset + len(raw))
                after = any(map(_is_object, file))
            if after:
                # Each append is synced before the next, so that a crash harms only the last one.
                raise RecoveryError(f"{path}: line {at}: broken, with good ones after it")
            fd = self._disk.open(path)
            try:
                self.cut(fd, path, offset, at)
                self._disk.sync(fd, path)
            finally:
                os.close(fd)
            return

    def cut(self, fd: int, path: Path, offset: int, number: int) -> None:
        """Save what follows ``offset`` under ``torn/``, then cut it off.

        :raises RecoveryError: a record that was acknowledged is in it.
        """
        with path.open("rb") as file:
            file.seek(offset)
            rest = file.read()
        if path.name.startswith("completions_"):
            for match in INDEX.finditer(rest):
                index = int(match[1])
                if self._acknowledged(index):
                    raise RecoveryError(
                        f"{path}: line {number}: broken, though {layout.DONE} has prompt {index} "
                        "of it: damage, not a torn end; mend the line, or remove "
                        f"{index} from {layout.DONE} to generate it again"
                    )
        torn = self._folder / layout.TORN
        torn.mkdir(exist_ok=True)
        self._disk.sync_folder(self._folder)
        self._disk.replace(torn / f"{path.name}.{offset}", rest)
        self._disk.truncate(fd, path, offset)
        self.repaired += 1
        self.notes.append(
            f"{path.name}: {len(rest)} bytes from line {number} on were torn: now in "
            f"{layout.TORN}/{path.name}.{offset}"
        )


def split(path: Path, start: int = 0, number: int = 1) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line from ``start`` on; nothing where there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        offset = start
        for at, raw in enumerate(file, number):
            yield at, offset, raw
            offset += len(raw)


def _is_object(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
