"""SIGKILL of each part, mid-run: the run ends complete, and the console sees the truth again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from console.lab.lab import Lab
from tests.e2e import play

COUNT = 400


def ours(here: Lab, *words: str) -> list[int]:
    """Pids of processes of this lab whose command line has all of these words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if all(word in line for word in words) and str(here.folder) in _where(process, line):
            found.append(process.pid)
    return found


def _where(process: psutil.Process, line: str) -> str:
    try:
        return f"{line} {process.cwd()}"
    except psutil.Error:
        return line


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["run", "agent", "server", "link"])
async def test_the_run_survives(victim: str, tmp_path: Path) -> None:
    async with (
        play.lab(tmp_path, count=COUNT, speed=40) as here,
        play.watched(here) as watch,
    ):
        await watch.completed(40)
        words = {
            "run": ("remote.generate",),
            "agent": ("remote.agent",),
            "server": ("sglang.launch_server", f"--port {here.target.spec.fleet.base_port}"),
            "link": ("remote/bridge.py",),
        }[victim]
        pids = ours(here, *words)
        assert pids, f"no process of {words}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        killed = time.time()
        # The console sees the truth again within seconds, whatever died.
        await watch.until(
            lambda s: s.link.state == "connected" and s.time > killed, 30, "the link again"
        )
        end = await watch.done()
        play.all_ended(here, end, COUNT)
        assert watch.fell == []
    play.clean(here)
