"""Put the lab's ``nvidia-smi`` where the container's PATH finds it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from console.lab import nvidia_smi


def install(bin_dir: Path, state_dir: Path, gpus: int) -> None:
    """An executable ``nvidia-smi`` in ``bin_dir`` that shows ``gpus`` cards.

    Its numbers follow the state files that the simulated servers write into ``state_dir``.
    """
    bin_dir.mkdir(parents=True, exist_ok=True)
    state_dir.mkdir(parents=True, exist_ok=True)
    conf = bin_dir / ".nvidia-smi.conf"
    conf.write_text(f"{state_dir.resolve()}\n{gpus}\n")
    python, script = sys.executable, Path(nvidia_smi.__file__).resolve()
    command = " ".join(map(shlex.quote, (python, "-ISE", str(script), str(conf.resolve()))))
    program = bin_dir / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
