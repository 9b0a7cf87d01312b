"""What the benchmarks of the run have in common: a mock engine, prompts, commands measured.

One core for the mock engine, one for what is measured, where the machine has two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
SERVERS = 8
SLOTS = 64


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, where the system can."""
    cores = psutil.cpu_count() or 1
    process = psutil.Process(pid)
    if cores > 1 and hasattr(process, "cpu_affinity"):
        process.cpu_affinity([core % cores])


class Mock:
    """The mock engine's process."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.bench.mock_engine", *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        pin(self.process.pid, 0)
        assert self.process.stdout is not None
        self.ports = [int(word) for word in self.process.stdout.readline().split()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]

    def ask(self, path: str) -> dict[str, Any]:
        """One of its own paths, such as ``/_seen``."""
        with urllib.request.urlopen(self.urls[0] + path, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def rate(self) -> float:
        """Answers a second from the first request since ``/_reset`` to the last answer."""
        seen = self.ask("/_seen")
        return float(sum(seen["answers"].values()) / (seen["last"] - seen["first"]))

    def __enter__(self) -> Mock:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def make_prompts(path: Path, count: int, size: int = 1000) -> None:
    """A prompts file of about ``size`` bytes a line."""
    padding = ("solve this problem carefully and explain each step. " * 200)[: max(0, size - 90)]
    with path.open("w") as out:
        for index in range(count):
            message = {"role": "user", "content": f"PX{index:08d} {padding}"}
            out.write(json.dumps({"id": index, "messages": [message]}) + "\n")


class Peak(threading.Thread):
    """The most memory that a process had, in MB, as last seen before it ended.

    ``ru_maxrss`` would tell of the parent's, where that has more: it outlives the exec.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.mb = 0.0
        self._status = Path(f"/proc/{pid}/status")

    def run(self) -> None:
        """Look twenty times a second, until the process is gone."""
        while (found := self._look()) is not None:
            self.mb = max(self.mb, found)
            time.sleep(0.05)

    def _look(self) -> float | None:
        try:
            for line in self._status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 1024
        except OSError:
            pass
        return None


def measure(command: list[str], limit: float = 300.0) -> dict[str, Any]:
    """Run a command on the second core: wall and CPU seconds, peak memory, exit status.

    One that takes longer than ``limit`` is killed, which its exit status shows.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
        pin(process.pid, 1)
        clock = threading.Timer(limit, process.kill)
        clock.start()
        peak = Peak(process.pid)
        peak.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        clock.cancel()
        peak.join()
        log.seek(0)
        errors = log.read().decode(errors="replace")
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss_mb": peak.mb,
        "exit": process.returncode,
        "errors": errors[-500:],
    }


UNSYNCED = """
import os, sys
os.fdatasync = os.fsync = lambda fd: None
from remote.generate.command import main
sys.exit(main())
"""
"""The run on a disk that costs nothing; only here, to see what the real one costs."""


def command(folder: Path, prompts: Path, urls: list[str], *options: str) -> list[str]:
    """A run of ours, without the Python in front."""
    words = ["--prompts", str(prompts), "--output", str(folder), *options]
    for url in urls:
        words += ["--server", url]
    return words


def stoker(
    folder: Path, prompts: Path, urls: list[str], *options: str, synced: bool = True
) -> dict[str, Any]:
    """One run of ours; without ``synced`` nothing of it is made durable."""
    how = ["-m", "remote.generate"] if synced else ["-c", UNSYNCED]
    return measure([sys.executable, *how, *command(folder, prompts, urls, *options)])


def bare(prompts: Path, urls: list[str]) -> dict[str, Any]:
    """One run of the loop in :mod:`tests.bench.bare`."""
    return measure([sys.executable, "-m", "tests.bench.bare", str(prompts), *urls])


def machine() -> dict[str, Any]:
    """What it was measured on, and what else went on there."""
    load = [round(value, 1) for value in os.getloadavg()]
    return {"cores": os.cpu_count(), "python": platform.python_version(), "load": load}


def report(bench: Callable[..., dict[str, Any]], **options: Any) -> None:
    """Run one benchmark by itself: its options from the command line, its numbers as JSON."""
    parser = argparse.ArgumentParser()
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(value), default=value)
    found = bench(**vars(parser.parse_args()))
    print(json.dumps(found, indent=1))
