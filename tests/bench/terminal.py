"""A program under a pseudo-terminal: everything it paints, its keys, what it costs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS = 200, 50


class Terminal:
    """A child under a pseudo-terminal, everything it paints, and its keys."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        main, side = pty.openpty()
        fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=side, stdout=side, stderr=side, env=env, cwd=ROOT, start_new_session=True
        )
        os.close(side)
        self.main = main
        self.tail = b""
        self.bytes = 0

    def read(self, seconds: float) -> bytes:
        """What comes within a time; returns as soon as something came."""
        ready, _, _ = select.select([self.main], [], [], max(0.0, seconds))
        if not ready:
            return b""
        try:
            data = os.read(self.main, 1 << 20)
        except OSError:
            return b""
        self.bytes += len(data)
        self.tail = (self.tail + data)[-(1 << 20) :]
        return data

    def until(self, wanted: str, seconds: float = 60) -> float:
        """Wait until a text was painted; seconds since the call."""
        began = time.perf_counter()
        pattern = re.compile(wanted.encode())
        seen = b""
        while (left := seconds - (time.perf_counter() - began)) > 0:
            seen = seen[-4096:] + self.read(min(left, 0.5))
            if pattern.search(seen):
                return time.perf_counter() - began
        self.process.kill()  # nobody closes what did not come up
        self.process.wait()
        last = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.tail)[-1500:]
        raise SystemExit(f"{wanted!r} was not painted within {seconds} s; last: {last!r}")

    def drain(self, seconds: float) -> None:
        """Take what is painted for a time."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def keys(self, text: str) -> None:
        """Type."""
        os.write(self.main, text.encode())

    def cpu(self) -> float:
        """CPU seconds of the console and what it started."""
        process = psutil.Process(self.process.pid)
        total = 0.0
        for one in [process, *process.children(recursive=True)]:
            times = one.cpu_times()
            total += times.user + times.system
        return total

    def rss_mb(self) -> float:
        """Resident memory of the console's own process."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / (1 << 20)

    def share(self, seconds: float) -> dict[str, float]:
        """CPU in percent of a core and bytes painted a second, over a time."""
        cpu, painted, began = self.cpu(), self.bytes, time.perf_counter()
        self.drain(seconds)
        wall = time.perf_counter() - began
        return {
            "cpu_percent": round(100 * (self.cpu() - cpu) / wall, 1),
            "painted_kb_s": round((self.bytes - painted) / wall / 1000, 1),
        }

    def close(self) -> None:
        """Leave as a person would."""
        self.keys("q")
        end = time.perf_counter() + 5
        while self.process.poll() is None and time.perf_counter() < end:
            self.read(0.1)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.main)
