"""Names in a run directory. What they mean is told in the README; old runs depend on them."""

from __future__ import annotations

import re
from pathlib import Path

BATCH = 500
"""Records of a full batch file."""

DONE = ".done_indices"
FAILED = "failed.jsonl"
SET_ASIDE = "set_aside.jsonl"
PENDING = "pending.jsonl"
PROGRESS = "progress.json"
RUN = "run.json"
MANIFEST = "manifest.jsonl"
EPOCHS = "epochs.jsonl"
LOCK = ".lock"
INDEX = ".prompts.idx"
"""Byte offsets of the prompts file; deleting it costs the time to make it again. Beside it lies
``.prompts.sum``, a checksum a line."""
TORN = "torn"
"""Folder of what recovery cut off the end of a file."""
OPEN = ".open"
"""Suffix of the one batch that still grows."""

_SEALED = re.compile(r"completions_(\d+)\.jsonl")
DIGITS = 6


def batch_number(name: str) -> int | None:
    """The number of a sealed batch's file name, or None where it is no such name."""
    match = _SEALED.fullmatch(name)
    return int(match[1]) if match else None


def open_number(name: str) -> int | None:
    """The number of an open batch's file name, or None where it is no such name."""
    return batch_number(name.removesuffix(OPEN)) if name.endswith(OPEN) else None


def digits(names: list[str]) -> int:
    """Digits to number batches with: as the folder has them, six in a new one."""
    found = [m[1] for name in names if (m := _SEALED.fullmatch(name.removesuffix(OPEN)))]
    return len(found[0]) if found else DIGITS


def batch_name(number: int, width: int = DIGITS) -> str:
    """``completions_000001.jsonl``."""
    return f"completions_{number:0{width}d}.jsonl"


def retired(folder: Path, name: str) -> Path:
    """The first free name to rename ``failed.jsonl`` to: ``failed.1.jsonl``, ``.2`` …"""
    stem, _, suffix = name.rpartition(".")
    number = 1
    while (target := folder / f"{stem}.{number}.{suffix}").exists():
        number += 1
    return target
