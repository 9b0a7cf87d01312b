"""Process trees: who belongs to a server, who listens on a port, and ending a whole tree.

A server is known by its main process's pid and birth. Its members are that process, its
descendants, and whoever is in its process group or session: SGLang's children outlive a main
process that dies while they are still importing (``PR_SET_PDEATHSIG`` is armed only later).
Nothing is ever signalled by name, and each member's birth is checked before each signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from remote.fleet import identity
from remote.fleet.holder import HOLDS, MARK
from remote.fleet.identity import Process

COMPILERS = ("nvcc", "ninja", "cicc", "ptxas", "cc1plus", "cudafe++")
"""While one of these runs below a server, kernels are being compiled: it is busy, not hung."""


@dataclass(frozen=True)
class Identity:
    """A process that can be told from a later one with the same pid."""

    pid: int
    birth: str

    @property
    def alive(self) -> bool:
        return identity.birth(self.pid) == self.birth

    def __str__(self) -> str:
        return f"{self.pid}-{self.birth}"


def identify(pid: int) -> Identity | None:
    """The process that has this pid now."""
    born = identity.birth(pid)
    return None if born is None else Identity(pid, born)


def members(main: Identity, table: dict[int, Process]) -> list[Process]:
    """Living processes of a server, the main one first where it lives.

    A group or session id is not reused while a member is left, so where the main pid is free or
    still our own, whoever carries it as group or session is ours.
    """
    found: dict[int, Process] = {}
    head = table.get(main.pid)
    if head is not None and head.birth != main.birth:
        return []  # the pid has another owner by now, so the group had emptied
    if head is not None and not head.zombie:
        found[head.pid] = head
    children: dict[int, list[Process]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one)
        if main.pid in (one.group, one.session) and not one.zombie:
            found.setdefault(one.pid, one)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), []):
            if child.pid not in found and not child.zombie:
                found[child.pid] = child
                queue.append(child.pid)
    return list(found.values())


def marked(launch: str, table: dict[int, Process], name: str = MARK) -> list[Process]:
    """Living processes that carry this launch's mark in their environment.

    Finds the ones that left both tree and session. Costs a look at every own process.
    """
    return [p for p in table.values() if not p.zombie and environ(p.pid, name) == launch]


def command(pid: int) -> list[str]:
    """A process's command line; empty where it cannot be read."""
    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return []


def environ(pid: int, name: str) -> str:
    """A variable of a process's environment; empty where it has none or may not be read."""
    try:
        return psutil.Process(pid).environ().get(name, "")
    except (psutil.Error, OSError):
        return ""


def commands(wanted: Callable[[list[str]], bool]) -> dict[int, list[str]]:
    """Processes whose command line is wanted: pid → command. Wrappers of one (``uv run``,
    ``sudo``) give way to what they run. Blocking."""
    found: dict[int, tuple[int, list[str]]] = {}
    for one in psutil.process_iter(["cmdline", "ppid", "status"]):
        argv = one.info["cmdline"] or []
        if argv and one.info["status"] != psutil.STATUS_ZOMBIE and wanted(argv):
            found[one.pid] = (one.info["ppid"], argv)
    wrappers = {parent for parent, _ in found.values()}
    return {pid: argv for pid, (_, argv) in found.items() if pid not in wrappers}


def owner(pid: int) -> str:
    """The user a process belongs to."""
    try:
        return psutil.Process(pid).username()
    except (psutil.Error, OSError, KeyError):
        return "?"


def started_at(pid: int) -> float | None:
    """When a process began, as Unix seconds."""
    if (known := identity.began(pid)) is not None:
        return known
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError):
        return None


def log_file(pid: int) -> str | None:
    """The regular file that a process has as standard error or output; None where it has none."""
    with contextlib.suppress(psutil.Error, OSError):
        files = {f.fd: f.path for f in psutil.Process(pid).open_files()}
        return files.get(2, files.get(1))
    return None


def listeners(ports: Iterable[int]) -> dict[int, int | None]:
    """Who listens on these TCP ports: port → pid (None where the owner cannot be seen)."""
    wanted = set(ports)
    found: dict[int, int | None] = {}
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError, RuntimeError, ValueError):
        # Not allowed (macOS), or the system's table changed while it was read.
        return {port: pid for pid in psutil.pids() for port in ports_of([pid]) if port in wanted}
    for one in connections:
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port in wanted:
            found[one.laddr.port] = one.pid if one.pid else found.get(one.laddr.port)
    return found


def ports_of(pids: Iterable[int]) -> set[int]:
    """The TCP ports that any of these processes listens on."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            for one in psutil.Process(pid).net_connections(kind="tcp"):
                if one.status == psutil.CONN_LISTEN and one.laddr:
                    found.add(one.laddr.port)
    return found


def send(who: Iterable[Process], signal_number: int) -> list[Process]:
    """Signal exactly these processes; those that are gone or have become others are passed over.

    Returns the ones that may not be signalled (another user's).
    """
    refused: list[Process] = []
    for one in who:
        if identity.birth(one.pid) != one.birth:
            continue
        try:
            os.kill(one.pid, signal_number)
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.append(one)
    return refused


def end_tree(main: Identity, launch: str | None, seconds: float = 10.0) -> list[Process]:
    """SIGKILL a server's whole tree and stay until nothing of it is left.

    Blocking. Returns what is still there after ``seconds`` (another user's process, or one that
    hangs in the kernel).
    """
    deadline = time.monotonic() + seconds
    look_wide = launch is not None
    while True:
        table = identity.table()
        left = members(main, table)
        if not left and look_wide and launch is not None:
            left = marked(launch, table)
        if not left:
            return []
        if time.monotonic() > deadline:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.05)


def end_launch(launch: str, seconds: float = 10.0) -> list[Process]:
    """SIGKILL all that a launch has begun, its holder first, and stay until nothing is left.

    For one whose main process nobody knows. Blocking; returns what is left after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    none_before = False
    while True:
        table = identity.table()
        left = marked(launch, table, HOLDS) or marked(launch, table)
        # One that has just been started shows no environment for an instant: look twice.
        if (not left and none_before) or time.monotonic() > deadline:
            return left
        none_before = not left
        send(left, signal.SIGKILL)
        time.sleep(0.05)


def may_end(pid: int) -> bool:
    """Whether a process may be signalled from here; also where there is none."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except OSError:
        pass
    return True
