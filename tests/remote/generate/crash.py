"""A recorder of the writer's system calls, and the disks that a crash between them can leave.

The model is that of POSIX without luck: bytes written since a file's last sync may be there,
partly there, there as zeros or not at all; folder entries made, renamed or removed since the
folder's last sync may be there or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from remote.generate.disk import Disk

Fate: TypeAlias = Literal["kept", "absent", "shortened", "zeroed"]
"""What became of unsynced bytes."""

FATES: tuple[Fate, ...] = ("kept", "absent", "shortened", "zeroed")


@dataclass(frozen=True)
class Call:
    """One system call; paths are relative to the run directory."""

    name: str
    path: str
    data: bytes = b""
    size: int = 0
    target: str = ""


class Recorder(Disk):
    """A disk that works and remembers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[Call] = []

    def _note(self, name: str, path: Path, data: bytes = b"", size: int = 0, to: str = "") -> None:
        self.calls.append(Call(name, str(path.relative_to(self.folder)), data, size, to))

    def open(self, path: Path) -> int:
        if not path.exists():
            self._note("create", path)
        return super().open(path)

    def created(self, path: Path) -> None:
        self._note("create", path)

    def write(self, fd: int, path: Path, data: bytes | memoryview) -> int:
        done = super().write(fd, path, data)
        self._note("write", path, bytes(data[:done]))
        return done

    def sync(self, fd: int, path: Path) -> None:
        super().sync(fd, path)
        self._note("sync", path)

    def truncate(self, fd: int, path: Path, size: int) -> None:
        super().truncate(fd, path, size)
        self._note("truncate", path, size=size)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._note("rename", old, to=str(new.relative_to(self.folder)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._note("unlink", path)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._note("sync_folder", folder)


class Quick(Disk):
    """A disk that syncs nothing: for what is checked after the crash, at a test's speed."""

    def sync(self, fd: int, path: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


@dataclass
class _Inode:
    """A file's bytes now and at its last sync."""

    now: bytes = b""
    synced: bytes = b""

    def after(self, fate: Fate) -> bytes:
        """Its bytes after a crash."""
        if fate == "kept" or self.now == self.synced:
            return self.now
        if fate == "absent" or not self.now.startswith(self.synced):
            return self.synced  # cut or replaced, and that did not reach the disk
        fresh = self.now[len(self.synced) :]
        if fate == "shortened":
            return self.synced + fresh[: max(1, len(fresh) * 2 // 3)]
        return self.synced + bytes(len(fresh))


@dataclass
class Machine:
    """A disk after some calls."""

    entries: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)

    def do(self, call: Call) -> None:
        """Apply one call."""
        entries = self.entries
        if call.name == "create":
            entries[call.path] = _Inode()
        elif call.name == "write":
            entries[call.path].now += call.data
        elif call.name == "sync":
            entries[call.path].synced = entries[call.path].now
        elif call.name == "truncate":
            entries[call.path].now = entries[call.path].now[: call.size]
        elif call.name == "rename":
            entries[call.target] = entries.pop(call.path)
        elif call.name == "unlink":
            entries.pop(call.path, None)
        elif call.name == "sync_folder":
            inside = "" if call.path == "." else call.path + "/"

            def here(name: str) -> bool:
                return name.startswith(inside) and "/" not in name[len(inside) :]

            self.durable = {n: i for n, i in self.durable.items() if not here(n)}
            self.durable.update({n: i for n, i in entries.items() if here(n)})

    def crashes(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Every disk that a power loss now can leave: what it assumes, and its files."""
        seen = set()
        for name, files in (("entries kept", self.entries), ("entries lost", self.durable)):
            for fate in FATES:
                disk = {path: inode.after(fate) for path, inode in files.items()}
                key = tuple(sorted(disk.items()))
                if key not in seen:
                    seen.add(key)
                    yield f"{name}, unsynced bytes {fate}", disk


def lay_out(folder: Path, files: dict[str, bytes]) -> None:
    """Write a disk's files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
