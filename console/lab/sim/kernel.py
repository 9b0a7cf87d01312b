"""The kernel log of the simulated host: what the driver says of the cards' troubles."""

from __future__ import annotations

import os
import time
from pathlib import Path

NAME = "kmsg"
"""Beside the cards' state files; its records are those of ``/dev/kmsg``."""

_TEXTS = {
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
    "0x7f_c9e00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    79: "GPU has fallen off the bus.",
}
"""By the driver's Xid number (docs.nvidia.com/deploy/xid-errors)."""


def bus(gpu: int) -> str:
    """PCI address of a card, as ``nvidia-smi`` prints it."""
    return f"00000000:{gpu + 1:02X}:00.0"


def report(folder: Path, gpu: int, xid: int) -> None:
    """The driver's line on one card, now."""
    whose = f"PCI:0000:{gpu + 1:02x}:00"
    microseconds = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    text = f"NVRM: Xid ({whose}): {xid}, pid={os.getpid()}, name=python3, {_TEXTS[xid]}"
    with (folder / NAME).open("a") as log:
        log.write(f"4,{microseconds},{microseconds},-;{text}\n")
