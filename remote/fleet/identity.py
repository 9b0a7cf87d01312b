"""Who a process is: its pid and when it was born. The one module that looks at ``/proc``.

A pid alone is reused sooner or later; a pid with its birth is not. Linux counts a birth in clock
ticks since boot, which, unlike a wall-clock time, does not move when the clock is set. Standard
library only: the holder uses it too. Systems without ``/proc`` are asked through ``ps``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LINUX = (_PROC / "self" / "stat").exists()


@dataclass(frozen=True)
class Process:
    """One process as the system's table shows it."""

    pid: int
    parent: int
    group: int
    session: int
    birth: str
    """Opaque; two equal births of one pid are one process (within one boot)."""
    zombie: bool
    name: str


def _parse_stat(text: str) -> Process | None:
    # "pid (name) state ppid pgrp session ... starttime(22nd) ...": the name may hold anything.
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    if len(fields) < 20 or not pid.strip().isdigit():
        return None
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        birth=fields[19],
        zombie=fields[0] in ("Z", "X"),
        name=name,
    )


def process(pid: int) -> Process | None:
    """The process with this pid now; None where there is none."""
    if not _LINUX:
        return next((p for p in _from_ps(["-p", str(pid)]) if p.pid == pid), None)
    try:
        return _parse_stat((_PROC / str(pid) / "stat").read_text("utf-8", "replace"))
    except OSError:
        return None


def table(pids: Iterable[int] | None = None) -> dict[int, Process]:
    """All processes that can be seen, by pid; or only these, which costs a thousandth."""
    if not _LINUX:
        return {p.pid: p for p in _from_ps(["-A"])}
    if pids is None:
        # A thousand names at once: no Path objects.
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208
    return {pid: one for pid in pids if (one := process(pid)) is not None}


def birth(pid: int) -> str | None:
    """When this pid's process was born; None where there is no such process, or only a zombie."""
    found = process(pid)
    return None if found is None or found.zombie else found.birth


def began(pid: int) -> float | None:
    """When this pid's process was born, as Unix seconds; None where that cannot be told.

    By its age: a container's own account of when it was booted does not fit its processes'.
    """
    born = birth(pid)
    if born is None or not _LINUX:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(born) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def boot_id() -> str:
    """Changes with each boot of the host; empty where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _from_ps(which: list[str]) -> list[Process]:
    command = ["ps", *which, "-o", "pid=,ppid=,pgid=,sess=,stat=,lstart=,comm="]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: list[Process] = []
    for line in done.stdout.splitlines():
        fields = line.split(None, 10)
        if len(fields) < 10 or not fields[0].isdigit():
            continue
        session = int(fields[3]) if fields[3].isdigit() else 0
        found.append(
            Process(
                pid=int(fields[0]),
                parent=int(fields[1]),
                group=int(fields[2]),
                session=session,
                birth=" ".join(fields[5:10]),
                zombie=fields[4].startswith("Z"),
                name=fields[10] if len(fields) > 10 else "",
            )
        )
    return found
