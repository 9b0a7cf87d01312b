"""What a simulated server makes of its card: a small text file that ``nvidia-smi`` reads.

One line, space-separated: process id that owns the memory, memory used by it in MiB, utilisation
in percent, power in watts, temperature in °C. The file is replaced, never rewritten in place.

Who owns the memory is told by a lock (flock) on a second file: the scheduler process alone keeps it
open, so that it is free the moment that process is gone, and not before.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from pathlib import Path

from console.lab.nvidia_smi import COOLING_S, HELD_W, IDLE_C, IDLE_W, cooled
from console.lab.sim.settings import write_whole

FULL_W, FULL_C = 585.0, 78.0
WRITE_S = 0.95


def claim(folder: Path, index: int) -> int | None:
    """Take the card: a file descriptor to hand to the scheduler; None while another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"gpu{index}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(10):  # nvidia-smi holds it for an instant when it looks
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.02)
        else:
            return lock
    os.close(lock)
    return None


def held_mib(folder: Path, index: int) -> int:
    """What the present owner holds of the card's memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((folder / f"gpu{index}").read_text().split()[1])
    return 0


class Card:
    """Writes the state of one GPU, at most once a second unless told to."""

    def __init__(self, folder: Path, index: int, pid: int) -> None:
        self.path = folder / f"gpu{index}"
        self.pid = pid
        self.memory_mib = 0
        self.load = 0.0
        """Share of the time that kernels run, 0..1."""
        self._temperature = IDLE_C
        self._at = time.monotonic()
        self._written = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError, IndexError):
            age = time.time() - self.path.stat().st_mtime
            self._temperature = cooled(float(self.path.read_text().split()[4]), age)

    def write(self, *, at_once: bool = False) -> None:
        """Put the present state where ``nvidia-smi`` finds it."""
        now = time.monotonic()
        if now - self._written < WRITE_S and not at_once:
            return
        self._written = now
        target = IDLE_C + (FULL_C - IDLE_C) * self.load
        weight = math.exp(-(now - self._at) / COOLING_S)
        self._temperature = target + (self._temperature - target) * weight
        self._at = now
        power = IDLE_W + (FULL_W - IDLE_W) * self.load
        if self.memory_mib and not self.load:
            power = HELD_W
        text = (
            f"{self.pid} {self.memory_mib} {round(self.load * 100)} {power:.2f} "
            f"{self._temperature:.0f}\n"
        )
        with contextlib.suppress(OSError):
            write_whole(self.path, text.encode())
