#!/usr/bin/env python3
"""``nvidia-smi`` of the lab: the queries that tools make, answered from the simulation's state.

Runs by itself with the standard library alone (``python -ISE``), since it is started like the
real program and must cost as little. Its first argument names a file with the folder of the GPUs'
state files (see ``console.lab.sim.gpu``) and their number, one a line.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time

DRIVER = "580.95.05"
CUDA = "13.0"
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition (simulated)"
TOTAL_MIB = 97_887
LIMIT_W = 600.0
IDLE_W = 34.0
IDLE_C = 31.0
HELD_W = 92.0
"""Without work, while a process has its memory: clocks stay up."""
COOLING_S = 40.0
"""Time constant of a card's temperature."""

FIELDS = {  # name: unit
    "index": "",
    "uuid": "",
    "gpu_uuid": "",
    "name": "",
    "gpu_name": "",
    "timestamp": "",
    "count": "",
    "serial": "",
    "pci.bus_id": "",
    "gpu_bus_id": "",
    "driver_version": "",
    "compute_cap": "",
    "pstate": "",
    "persistence_mode": "",
    "ecc.mode.current": "",
    "mig.mode.current": "",
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "memory.reserved": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "temperature.gpu": "",
    "temperature.memory": "",
    "power.draw": "W",
    "power.draw.instant": "W",
    "power.draw.average": "W",
    "power.limit": "W",
    "enforced.power.limit": "W",
    "clocks.sm": "MHz",
    "clocks.current.sm": "MHz",
    "clocks.mem": "MHz",
    "clocks.max.sm": "MHz",
    "clocks_throttle_reasons.active": "",
    "clocks_event_reasons.active": "",
    "ecc.errors.uncorrected.volatile.total": "",
    "fan.speed": "%",
}
APPS = {"gpu_uuid": "", "pid": "", "process_name": "", "name": "", "used_memory": "MiB",
        "used_gpu_memory": "MiB", "gpu_name": "", "gpu_bus_id": "", "timestamp": ""}  # fmt: skip


class Gpu:
    """One card, read afresh."""

    def __init__(self, folder: str, index: int) -> None:
        self.index = index
        self.uuid = f"GPU-510c0000-0000-4000-8000-{index:012d}"
        self.bus = f"00000000:{index + 1:02X}:00.0"
        self.pid, self.memory, self.load = 0, 4, 0
        self.power, self.heat = IDLE_W, IDLE_C
        self.lost = lost(folder, index)
        path = f"{folder}/gpu{index}"
        try:
            with open(path) as file:
                pid, memory, load, power, heat = file.read().split()
                age = max(time.time() - os.fstat(file.fileno()).st_mtime, 0.0)
        except (OSError, ValueError):
            return
        if held(path + ".lock"):
            self.pid, self.memory, self.load = int(pid), max(int(memory), 4), int(load)
            self.power, self.heat = float(power), float(heat)
            if age > 10:  # its server is gone and left a process with the memory
                self.load, self.power = 0, HELD_W
                self.heat = cooled(self.heat, age)
        else:
            self.heat = cooled(float(heat), age)

    def value(self, field: str, units: bool, now: str) -> str:
        """The field as the real program prints it."""
        plain = {
            "index": self.index,
            "name": NAME,
            "gpu_name": NAME,
            "timestamp": now,
            "uuid": self.uuid,
            "gpu_uuid": self.uuid,
            "serial": "[N/A]",
            "pci.bus_id": self.bus,
            "gpu_bus_id": self.bus,
            "driver_version": DRIVER,
            "compute_cap": "12.0",
            "pstate": "P1" if self.memory > 4 else "P8",
            "persistence_mode": "Enabled",
            "ecc.mode.current": "Enabled",
            "mig.mode.current": "Disabled",
            "memory.total": TOTAL_MIB,
            "memory.used": self.memory,
            "memory.free": TOTAL_MIB - self.memory,
            "memory.reserved": 0,
            "utilization.gpu": self.load,
            "utilization.memory": round(self.load * 0.8),
            "temperature.gpu": round(self.heat),
            "temperature.memory": "N/A",
            "power.draw": f"{self.power:.2f}",
            "power.draw.instant": f"{self.power:.2f}",
            "power.draw.average": f"{self.power:.2f}",
            "power.limit": f"{LIMIT_W:.2f}",
            "enforced.power.limit": f"{LIMIT_W:.2f}",
            "clocks.sm": 2340 if self.load else 180,
            "clocks.current.sm": 2340 if self.load else 180,
            "clocks.mem": 12481 if self.memory > 4 else 405,
            "clocks.max.sm": 2430,
            "clocks_throttle_reasons.active": "0x0000000000000000",
            "clocks_event_reasons.active": "0x0000000000000000",
            "ecc.errors.uncorrected.volatile.total": 0,
            "fan.speed": "[N/A]",
        }
        text = str(plain[field])
        unit = FIELDS[field]
        return f"{text} {unit}" if units and unit and text[0].isdigit() else text


def lost(folder: str, index: int) -> bool:
    """Whether the simulation says that this card fell off the bus."""
    try:
        with open(f"{folder}/fault{index}.json") as file:
            return '"lost":true' in "".join(file.read().split())
    except OSError:
        return False


def held(path: str) -> bool:
    """Whether a process has the card."""
    try:
        lock = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def cooled(heat: float, age: float) -> float:
    """Temperature so many seconds after the work ended."""
    return IDLE_C + (heat - IDLE_C) * math.exp(-age / COOLING_S)


def chosen(gpus: list[Gpu], wanted: str) -> list[Gpu]:
    """The cards that ``-i`` names, by index, UUID or bus id."""
    if not wanted:
        return gpus
    names = wanted.split(",")
    found = [gpu for gpu in gpus if {str(gpu.index), gpu.uuid, gpu.bus} & set(names)]
    if not found:
        print("No devices were found")
        raise SystemExit(6)
    return found


def query(gpus: list[Gpu], names: list[str], known: dict[str, str], options: set[str]) -> str:
    """Answer of ``--query-gpu`` or ``--query-compute-apps``."""
    for name in names:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.\n')
            raise SystemExit(2)
    now = time.strftime("%Y/%m/%d %H:%M:%S.000")
    units = "nounits" not in options
    lines = []
    if "noheader" not in options:
        titles = [f"{name} [{known[name]}]" if known[name] else name for name in names]
        lines.append(", ".join(titles))
    for gpu in gpus:
        if known is FIELDS:
            values = [
                str(len(gpus)) if name == "count" else gpu.value(name, units, now) for name in names
            ]
            lines.append(", ".join(values))
        elif gpu.pid:
            apps = {
                "gpu_uuid": gpu.uuid,
                "pid": str(gpu.pid),
                "process_name": "sglang::scheduler",
                "name": "sglang::scheduler",
                "used_memory": f"{gpu.memory} MiB" if units else str(gpu.memory),
                "used_gpu_memory": f"{gpu.memory} MiB" if units else str(gpu.memory),
                "gpu_name": NAME,
                "gpu_bus_id": gpu.bus,
                "timestamp": now,
            }
            lines.append(", ".join(apps[name] for name in names))
    return "\n".join(lines) + ("\n" if lines else "")


def summary(gpus: list[Gpu]) -> str:
    """What the program prints without arguments."""
    rule = "+" + "-" * 89 + "+\n"
    head = f"| NVIDIA-SMI {DRIVER}  Driver Version: {DRIVER}  CUDA Version: {CUDA} (simulated)"
    text = time.strftime("%a %b %e %H:%M:%S %Y\n") + rule + head.ljust(90) + "|\n" + rule
    for gpu in gpus:
        line = (
            f"| {gpu.index:>3}  {NAME[:36]:<36} {gpu.heat:>3.0f}C {gpu.power:>4.0f}W / "
            f"{LIMIT_W:.0f}W  {gpu.memory:>6}MiB / {TOTAL_MIB}MiB  {gpu.load:>3}%"
        )
        text += line.ljust(90) + "|\n"
    text += rule + "| Processes:".ljust(90) + "|\n"
    for gpu in gpus:
        if gpu.pid:
            line = f"| {gpu.index:>3}  {gpu.pid:>9}  C  sglang::scheduler  {gpu.memory:>8}MiB"
            text += line.ljust(90) + "|\n"
    return text + rule


class Asked:
    """What the command line says."""

    def __init__(self) -> None:
        self.fields: list[str] = []
        self.known = FIELDS
        self.options: set[str] = set()
        self.every = 0.0
        """Seconds between two answers; 0 is one answer."""
        self.wanted = ""
        self.listing = False
        self.details = False


def asked_for(argv: list[str]) -> Asked | None:
    """The command line's meaning; None, once that is said, where it has none."""
    asked = Asked()
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")

        def follow(equals: str = equals, value: str = value) -> str:
            return value if equals else next(words, "")

        if name == "--query-gpu":
            asked.fields, asked.known = [part.strip() for part in follow().split(",")], FIELDS
        elif name == "--query-compute-apps":
            asked.fields, asked.known = [part.strip() for part in follow().split(",")], APPS
        elif name == "--format":
            asked.options = {part.strip() for part in follow().split(",")}
        elif name in ("-l", "--loop"):
            asked.every = float(follow() or 5)
        elif name in ("-lms", "--loop-ms"):
            asked.every = float(follow()) / 1000
        elif name in ("-i", "--id"):
            asked.wanted = follow()
        elif name in ("-L", "--list-gpus"):
            asked.listing = True
        elif name in ("-q", "--query"):
            asked.details = True
        else:
            print(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' ({word})")
            return None
    return asked


def answer(gpus: list[Gpu], asked: Asked) -> str:
    """What is printed once."""
    if asked.listing:
        return "".join(f"GPU {gpu.index}: {NAME} (UUID: {gpu.uuid})\n" for gpu in gpus)
    if asked.fields:
        return query(gpus, asked.fields, asked.known, asked.options)
    if asked.details:
        return "\n".join(
            f"GPU {gpu.bus}\n    Product Name : {NAME}\n    GPU UUID : {gpu.uuid}\n"
            f"    FB Memory Usage\n        Total : {TOTAL_MIB} MiB\n"
            f"        Used : {gpu.memory} MiB\n    Driver Version : {DRIVER}\n"
            for gpu in gpus
        )
    return summary(gpus)


def main(argv: list[str], conf: str) -> int:
    """Answer once, or again and again with ``-l`` and ``-lms``."""
    with open(conf) as file:
        folder, number = file.read().split("\n")[:2]
    asked = asked_for(argv)
    if asked is None:
        return 2
    while True:
        gpus = chosen([Gpu(folder, n) for n in range(int(number))], asked.wanted)
        for gpu in gpus:
            if gpu.lost:
                print(
                    f"Unable to determine the device handle for GPU{gpu.index}: {gpu.bus}: GPU is "
                    "lost.  Reboot the system to recover this GPU"
                )
                return 15
        sys.stdout.write(answer(gpus, asked))
        sys.stdout.flush()
        if not asked.every:
            return 0
        time.sleep(asked.every)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[2:], sys.argv[1]))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
