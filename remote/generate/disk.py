"""The few system calls that the ledger is made of, and a file that only grows.

All that changes a run directory's durable files passes through :class:`Disk`, so that a test
can write down every call and replay each prefix of them as a crash would leave it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(Exception):
    """There is no space now; what was written since the last sync has been taken back."""


class DiskBrokenError(Exception):
    """A sync or truncate failed: what is on disk is unknown until the next start reads it.

    Syncing again is no answer, since the kernel may have dropped the pages that failed
    (Linux reports an error once, then calls them clean).
    """


def is_full(error: OSError) -> bool:
    """Whether the error means that space (or quota, or the size limit) has run out."""
    return error.errno in _FULL


def trouble(path: Path, error: OSError) -> DiskFullError | DiskBrokenError:
    """What a call that creates, renames or removes a file failed with: it may be tried again where
    only space is missing."""
    kind = DiskFullError if is_full(error) else DiskBrokenError
    return kind(f"{path.name}: {error.strerror}")


class Disk:
    """System calls by path; the file descriptors are the caller's."""

    def open(self, path: Path) -> int:
        """Open for appending; made where it is missing (its folder entry is not yet durable)."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, path: Path, data: bytes | memoryview) -> int:
        """One write(2); may be short."""
        return os.write(fd, data)

    def sync(self, fd: int, path: Path) -> None:
        """Make the file's bytes durable."""
        getattr(os, "fdatasync", os.fsync)(fd)

    def truncate(self, fd: int, path: Path, size: int) -> None:
        """Cut the file."""
        os.ftruncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; durable after :meth:`sync_folder`."""
        old.rename(new)

    def unlink(self, path: Path) -> None:
        """Remove a file; durable after :meth:`sync_folder`."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make the folder's entries durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Give ``path`` this content by a temporary file and a rename.

        :raises DiskFullError: the old content is still there.
        """
        temporary = path.with_name(f".{path.name.lstrip('.')}.tmp")
        try:
            self._fill(temporary, data, durable=durable)
            self.rename(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if is_full(error):
                raise DiskFullError(f"{path.name}: {error.strerror}") from error
            raise
        if durable:
            self.sync_folder(path.parent)

    def _fill(self, path: Path, data: bytes, *, durable: bool) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.created(path)
            rest = memoryview(data)
            while rest:
                rest = rest[self.write(fd, path, rest) :]
            if durable:
                self.sync(fd, path)
        finally:
            os.close(fd)

    def created(self, path: Path) -> None:
        """Called when a temporary file has been made empty."""


class Appender:
    """A file that only grows, with the offset up to which it is known to be durable.

    ``durable`` is the size at the last sync, ``size`` with what was appended since.
    """

    def __init__(self, disk: Disk, path: Path, size: int | None = None) -> None:
        self.path = path
        self._disk = disk
        self._fd = disk.open(path)
        self.durable = self.size = os.fstat(self._fd).st_size if size is None else size

    def append(self, data: bytes) -> None:
        """Write at the end.

        :raises DiskFullError: everything since the last :meth:`sync` has been taken back.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._disk.write(self._fd, self.path, rest) :]
        except OSError as error:
            self.take_back()
            if is_full(error):
                raise DiskFullError(f"{self.path.name}: {error.strerror}") from error
            raise DiskBrokenError(f"{self.path.name}: {error.strerror}") from error
        self.size += len(data)

    def take_back(self) -> None:
        """Cut the file to what is durable."""
        try:
            self._disk.truncate(self._fd, self.path, self.durable)
        except OSError as error:
            raise DiskBrokenError(f"{self.path.name}: {error.strerror}") from error
        self.size = self.durable

    def sync(self) -> None:
        """Make what was appended durable. A failure is final: :class:`DiskBrokenError`."""
        if self.size == self.durable:
            return
        try:
            self._disk.sync(self._fd, self.path)
        except OSError as error:
            raise DiskBrokenError(f"{self.path.name}: {error.strerror}") from error
        self.durable = self.size

    def keep(self) -> None:
        """Call what was appended good without a sync: for files that only repeat others."""
        self.durable = self.size

    def close(self) -> None:
        """Close the descriptor; nothing is synced."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
