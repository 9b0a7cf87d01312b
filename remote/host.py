"""GPUs and host: one long-lived ``nvidia-smi`` loop, and psutil.

Starting ``nvidia-smi`` once a second costs more than all else the agent does; its own loop
(``-lms``) costs next to nothing. Where the driver says ``[N/A]`` or the program is missing or
has gone silent, the numbers are unknown (None), never 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from remote.kernel_log import address
from remote.protocol import GpuState, HostState

QUERY = (
    "index",
    "pci.bus_id",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "temperature.gpu",
    "power.draw",
    "power.limit",
)
COMMAND = (
    "nvidia-smi",
    f"--query-gpu={','.join(QUERY)}",
    "--format=csv,noheader,nounits",
    "-lms",
    "1000",
)
STALE_S = 10.0
"""A loop that has said nothing for so long is ended and started anew."""
BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)


def parse(line: str) -> GpuState | None:
    """One line of the loop → a card; None for what is no such line (an error text)."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < len(QUERY) or not re.fullmatch("[0-9]+", fields[0]):
        return None
    # A card's name may hold a comma; the numbers are counted from the end.
    numbers = [_number(field) for field in fields[-6:]]
    utilization, used, total, temperature, power, limit = numbers
    return GpuState(
        gpu=int(fields[0]),
        name=", ".join(fields[2:-6]),
        utilization=None if utilization is None else utilization / 100,
        memory_used_mib=None if used is None else int(used),
        memory_total_mib=None if total is None else int(total),
        temperature_c=temperature,
        power_w=power,
        power_limit_w=limit,
    )


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:  # [N/A], [Not Supported], [Unknown Error], [GPU requires reset]
        return None
    return value if math.isfinite(value) else None


class Gpus:
    """The loop, kept alive; :attr:`cards` is what it last said."""

    def __init__(self, on_problem: Callable[[str], None], command: tuple[str, ...] = COMMAND):
        self.cards: dict[int, GpuState] = {}
        self.buses: dict[str, int] = {}
        """PCI address → card, also of cards that are seen no more."""
        self.problem = ""
        self._command = command
        self._on_problem = on_problem
        self._heard = 0.0

    def states(self) -> list[GpuState]:
        """The cards, by index; what has not been heard of lately is unknown."""
        if time.monotonic() - self._heard > STALE_S:
            return [GpuState(gpu=c.gpu, name=c.name) for c in self.cards.values()]
        return [self.cards[gpu] for gpu in sorted(self.cards)]

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                problem = await self._loop()
            except OSError as error:
                problem = f"{self._command[0]}: {error.strerror}"
            if time.monotonic() - began > 60:
                failures = 0
            if problem and problem != self.problem:
                self._on_problem(problem)
            self.problem = problem
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            failures += 1

    async def _loop(self) -> str:
        """Run the loop once; returns why it ended."""
        if shutil.which(self._command[0]) is None:
            return "nvidia-smi is not on the path: what the GPUs do is unknown"
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        last = ""
        seen: set[int] = set()
        try:
            while True:
                async with asyncio.timeout(STALE_S):
                    line = (await process.stdout.readline()).decode("utf-8", "replace").strip()
                if not line:
                    await process.wait()
                    return f"nvidia-smi ended: {last or f'exit status {process.returncode}'}"
                card = parse(line)
                if card is None:
                    last = line
                    continue
                if card.gpu in seen:
                    # A new round: cards that fell off the bus since are forgotten.
                    self.cards = {g: c for g, c in self.cards.items() if g in seen}
                    seen = set()
                    self.problem = ""
                seen.add(card.gpu)
                self.buses[address(line.split(",", 2)[1].strip())] = card.gpu
                self.cards[card.gpu] = card
                self._heard = time.monotonic()
        except TimeoutError:
            return f"nvidia-smi has been silent for {STALE_S:.0f} s: {last or 'a GPU may hang'}"
        finally:
            # One that hangs in the driver can't be killed: it is left behind, not waited for.
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                process.kill()
                async with asyncio.timeout(2):
                    await process.wait()


def host(workspace: Path, *, simulated: bool = False) -> HostState:
    """CPU (0..1 of all cores since the last call), load, memory and the workspace's disk."""
    memory = psutil.virtual_memory()
    free = total = None
    with contextlib.suppress(OSError):
        disk = psutil.disk_usage(str(workspace))
        free, total = disk.free, disk.total
    return HostState(
        cpu=round(psutil.cpu_percent() / 100, 3),
        load_1m=round(psutil.getloadavg()[0], 2),
        memory_used=memory.total - memory.available,
        memory_total=memory.total,
        disk_free=free,
        disk_total=total,
        simulated=simulated,
        clock_east_s=time.localtime().tm_gmtoff,
    )
