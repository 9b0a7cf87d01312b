"""What a lab is asked for, and what it must keep when it comes up again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from console.lab.errors import LabError
from console.lab.sim.settings import Version
from remote.protocol import Flags

JOB = 100_000
"""Prompts of a job without ``--count``: over twenty minutes on eight GPUs at speed 20."""


STORY: Flags = {
    "mamba-scheduler-strategy": "extra_buffer",
    "mamba-ssm-dtype": "bfloat16",
    "mem-fraction-static": 0.85,
    "context-length": 8192,
    "attention-backend": "flashinfer",
    "reasoning-parser": "qwen3",
    "tool-call-parser": "qwen3_coder",
    "enable-metrics": True,
}
"""What the lab's servers start with: flags that hold each of them at 37 requests."""


@dataclass(frozen=True)
class Options:
    """What ``stoker lab`` was asked for."""

    gpus: int = 8
    prompts: Path | None = None
    """JSONL of the user's own instead of the shipped prompts."""
    count: int | None = None
    speed: float = 20.0
    sglang: Version = "0.5.12"
    flags: Flags = field(default_factory=dict)
    """Over those of :data:`STORY`."""
    folder: Path | None = None
    """Kept; None: a temporary one."""
    keep: bool = False
    """Leave a temporary folder, too."""
    s3: bool = True
    simulation: dict[str, Any] = field(default_factory=dict)
    """Further fields of :class:`console.lab.sim.settings.SimSettings`."""


class Known(msgspec.Struct, frozen=True):
    """``lab.json``: what must be the same when a lab comes up again in its folder."""

    host: int | None = None
    s3: int | None = None
    base: int | None = None
    gpus: int = 8
    sglang: Version = "0.5.12"


def as_it_was(options: Options, known: Known, folder: Path) -> Options:
    """The options for a lab that comes up again. Raises LabError where others are wanted."""
    usual = Options()
    other = [
        f"--{name} {wanted}"
        for name, wanted, was in (
            ("gpus", options.gpus, known.gpus),
            ("sglang", options.sglang, known.sglang),
        )
        if wanted not in (was, getattr(usual, name))
    ]
    if other:
        was = f"{known.gpus} GPUs and SGLang {known.sglang}"
        raise LabError(f"{folder} holds a lab of {was}: name another --dir for {', '.join(other)}")
    if options.flags:
        raise LabError(f"{folder} holds a lab: change [fleet.flags] in its stoker.toml, not --set")
    return replace(options, gpus=known.gpus, sglang=known.sglang)
