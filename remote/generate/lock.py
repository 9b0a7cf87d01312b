"""One run per directory: a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec
import psutil

from remote.generate import layout
from remote.generate.records import LockFile


class LockedError(Exception):
    """Another process works in the directory; the text says which."""


class RunLock:
    """flock on ``.lock``, held until the process ends or :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / layout.LOCK
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _taken(self._fd):
            holder = read(folder)
            os.close(self._fd)
            who = f"process {holder.pid}, since {holder.started}" if holder else "another process"
            raise LockedError(
                f"{folder}: a run is at work here already ({who}); stop it first, or choose "
                "another --output"
            )
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(psutil.Process().create_time()))
        data = msgspec.json.encode(LockFile(os.getpid(), started, boot_id())) + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        """Let the next run in. The file stays: removing it would let two hold "the" lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _taken(fd: int) -> bool:
    """Take the lock; one that :func:`held` has for an instant is waited for."""
    for pause in (0.01, 0.05, 0.2, 0.0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(pause)
        else:
            return True
    return False


def read(folder: Path) -> LockFile | None:
    """Who holds the lock, or held it last."""
    try:
        return msgspec.json.decode((folder / layout.LOCK).read_bytes(), type=LockFile)
    except (OSError, msgspec.DecodeError):
        return None


def held(folder: Path) -> bool:
    """Whether a run is at work in the directory."""
    try:
        fd = os.open(folder / layout.LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def boot_id() -> str:
    """Something that changes with every boot of the machine."""
    return f"{psutil.boot_time():.0f}"
