"""What the simulation is told: how fast, how long answers are, what goes wrong and where."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Version: TypeAlias = Literal["0.5.12", "0.5.23"]
"""The dialects of SGLang that the simulation speaks."""

Phase: TypeAlias = Literal["args", "weights", "memory", "graphs", "warmup", "run"]
"""Where a planned failure strikes: resolving arguments, loading weights, sizing the pools,
capturing CUDA graphs, warming up, or while it serves."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that goes wrong on one GPU. Several may be set at once."""

    fail: Phase | None = None
    """Fail in this phase …"""
    cause: str = ""
    """… with this text: a key of :data:`console.lab.sim.failures.CAUSES`, or a line of its own.
    Empty: the usual one of the phase."""
    after_s: float = 0.0
    """Wall seconds into the phase (``run``: after it was ready; the same for ``hang``)."""
    times: int = 0
    """How many starts the ``fail`` spoils; 0 = every one."""
    silent: bool = False
    """The process lives, says nothing and never opens its port."""
    hang: bool = False
    """Forward passes stop: HTTP lives, the scheduler never answers, the watchdog fires."""
    stall: bool = False
    """Decoding stops and nothing else does: ``/health`` still says 200."""
    slow: float = 1.0
    """Decoding and prefill take this many times longer."""
    slow_probe_s: float = 0.0
    """``/health``, ``/v1/loads`` and ``/metrics`` answer this much later, as on a starved CPU."""
    orphan: bool = False
    """The scheduler survives its parent and holds the GPU's memory."""
    lost: bool = False
    """The card fell off the bus: ``nvidia-smi`` fails and no server can start on it."""
    endless_drain: bool = False
    """A drain never comes to its end."""


class SimSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Stored in the stand-in venv, so that a server finds it whatever its environment."""

    state_dir: str
    """Folder where each server writes the state of its GPU, and faults are read from."""
    speed: float = 20.0
    """Load, graph capture, JIT, prefill and decode run this many times faster than a real card;
    the protocol's own timers do not."""
    seed: int = 0
    length_mean: float = 2711.0
    """Mean length of an answer in tokens (before ``max_tokens`` cuts it)."""
    length_sigma: float = 0.33
    """Spread of the answer lengths: standard deviation of their logarithm."""
    transient_errors: float = 0.003
    """Share of first attempts that end in an error which a retry mends."""
    gpu_memory_mib: int = 97_887
    faults: dict[str, Fault] = {}
    """By GPU index (as text)."""


def load(path: Path) -> SimSettings:
    """Settings from a JSON file written by :func:`save`."""
    return msgspec.json.decode(path.read_bytes(), type=SimSettings)


def save(settings: SimSettings, path: Path) -> None:
    """Write the settings as JSON."""
    write_whole(path, msgspec.json.encode(settings))


def set_fault(state_dir: Path, gpu: int, fault: Fault | None) -> None:
    """Change what goes wrong on a GPU, now: running servers see it within a second.

    ``None`` mends it (whatever the settings say).
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    write_whole(state_dir / f"fault{gpu}.json", msgspec.json.encode(fault or Fault()))


def fault(settings: SimSettings, gpu: int) -> Fault:
    """What goes wrong on this GPU now: the last :func:`set_fault`, else the settings."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        data = (Path(settings.state_dir) / f"fault{gpu}.json").read_bytes()
        return msgspec.json.decode(data, type=Fault)
    return settings.faults.get(str(gpu), Fault())


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in place whole: whoever reads it sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)
