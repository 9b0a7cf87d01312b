"""The real server's child processes, as far as a supervisor can see them.

Each child is as small as a process can be: it waits until its parent is gone and goes too. What
it would have computed is simulated in the parent.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

TITLES = ("sglang::scheduler", "sglang::detokenizer")


@dataclass
class Children:
    """Scheduler and detokenizer."""

    scheduler: subprocess.Popen[bytes]
    detokenizer: subprocess.Popen[bytes]

    @property
    def all(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """Both, the scheduler first."""
        return self.scheduler, self.detokenizer

    def dead(self) -> tuple[str, int, int] | None:
        """(name, pid, exit code) of a child that died of something other than its own will."""
        for name, child in zip(("scheduler_0", "detokenizer"), self.all, strict=True):
            code = child.poll()
            if code:
                return name, child.pid, code
        return None

    def frozen(self) -> bool:
        """True while the scheduler is stopped (SIGSTOP)."""
        try:
            return psutil.Process(self.scheduler.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def kill(self) -> None:
        """SIGKILL to both."""
        for child in self.all:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
        for child in self.all:
            child.wait()


def _spawn(title: str, survives: bool, keep: int | None) -> subprocess.Popen[bytes]:
    # The child reads a pipe whose other end only its parent holds: end of input is the end of
    # the parent, whatever killed it. One that holds both ends itself never reads it.
    read, write = os.pipe()
    try:
        cat = shutil.which("cat")
        if cat and Path(cat).resolve().name == "cat":
            command, env = [title], None
        else:  # a multi-call binary goes by its name
            cat = sys.executable
            command = [title, "-S", "-c", "import sys; sys.stdin.buffer.read()"]
            env = {**os.environ, "PYTHONHOME": sys.base_prefix}
        return subprocess.Popen(
            command,
            executable=cat,
            stdin=read,
            stdout=subprocess.DEVNULL,
            env=env,
            pass_fds=[fd for fd in (write if survives else None, keep) if fd is not None],
        )
    finally:
        os.close(read)
        if survives:
            os.close(write)


def spawn(card: int | None, *, orphan: bool = False) -> Children:
    """Start both children; the scheduler takes over the card's lock.

    ``orphan``: the scheduler outlives its parent.
    """
    scheduler = _spawn(TITLES[0], survives=orphan, keep=card)
    if card is not None:
        os.close(card)
    return Children(scheduler, _spawn(TITLES[1], survives=False, keep=None))
