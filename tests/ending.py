"""The end of what a test started in a folder."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil


def end_all_in(folder: Path, rounds: int = 10) -> None:
    """Kill every process that works in ``folder`` or whose command line names it, by pid, until
    none is left.

    Agents go first: they would start again what is killed before them.
    """
    for _ in range(rounds):
        found = _in(folder)
        if not found:
            return
        found.sort(key=lambda each: "remote.agent" not in each[1])
        for process, _ in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs([process for process, _ in found], timeout=1)
        time.sleep(0.05)  # what was being started at that moment is found the next time


def _in(folder: Path) -> list[tuple[psutil.Process, str]]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ended = process.status() == psutil.STATUS_ZOMBIE
            here = f"{folder}/" in f"{line}/" or Path(process.cwd()).is_relative_to(folder)
            if here and process.pid != os.getpid() and not ended:
                found.append((process, line))
    return found
