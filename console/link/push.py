"""Bring a file into the container: streamed, hashed on both sides, in place only when whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path, PurePosixPath

from console.config import Target
from console.link import place as places
from console.link.errors import LinkError
from console.link.place import Place
from console.link.remote import far

BLOCK = 1 << 18
PER_BYTE_S = 1 / 50_000
"""The slowest link that is waited for: 50 kB/s."""


async def push_file(
    where: Target | Place,
    local: Path,
    remote_path: str,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Bring ``local`` to ``remote_path`` (relative: below the workspace); returns its sha256.

    Nothing is sent when the same bytes are there already. ``progress(sent, size)`` is called as
    it goes. Raises LinkError.
    """
    place = where if isinstance(where, Place) else await places.reach(where)
    try:
        return await _push(place, local, remote_path, progress)
    finally:
        if place is not where:
            await place.close()


async def _push(
    place: Place, local: Path, remote_path: str, progress: Callable[[int, int], None] | None
) -> str:
    try:
        size, own = await asyncio.to_thread(_digest, local)
    except OSError as error:
        raise LinkError(f"{local}: {error.strerror}") from None
    path = str(PurePosixPath(place.target.spec.workspace) / remote_path)
    patience = 60 + size * PER_BYTE_S
    there = await far(place, {"do": "digest", "path": path, "size": size}, timeout=patience)
    if there["sha256"] == own:
        if progress:
            progress(size, size)
        return own

    async def content() -> AsyncIterator[bytes]:
        sent = 0
        with local.open("rb") as file:
            while block := await asyncio.to_thread(file.read, min(BLOCK, size - sent)):
                yield block
                sent += len(block)
                if progress:
                    progress(sent, size)
        yield own.encode() + b"\n"

    order = {"do": "receive", "path": path, "size": size}
    done = await far(place, order, content(), timeout=patience)
    if done["sha256"] != own:
        raise LinkError(f"{local} changed while it was sent: try again")
    return own


def _digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size, hashlib.file_digest(file, "sha256").hexdigest()
