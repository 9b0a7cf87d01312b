"""The batch files of a run directory that may be live: listed whole, and found under the name that
they have now.

A writer seals a batch by renaming it. A listing taken meanwhile may show both names or neither,
and a file that was listed may have another name when it is opened. Shares no code
with the writer, for the audit.
"""

from __future__ import annotations

import re
from pathlib import Path

SEALED = re.compile(r"completions_(\d+)\.jsonl")
OPEN = re.compile(r"completions_(\d+)\.jsonl\.open")
_ANY = re.compile(rf"{SEALED.pattern}(?:\.open)?$")
_OPEN_END = ".open"


def listed(directory: Path) -> tuple[list[str], list[str]]:
    """Names of the sealed batches and of the open ones. Every batch that was there when this began
    is in one of them, and every older one that is here, in one only unless it truly lies here under
    both names."""
    # A rename changes a name once: what the first listing missed, the second one has.
    names = {path.name for _ in range(2) for path in directory.iterdir()}
    sealed = {name for name in names if SEALED.fullmatch(name)}
    opened = []
    for name in sorted(name for name in names if OPEN.fullmatch(name)):
        if (directory / name).exists():
            opened.append(name)
        else:
            sealed.add(name.removesuffix(_OPEN_END))
    sealed |= _between(directory, {int(found[1]) for n in names if (found := _ANY.match(n))})
    return sorted(sealed), opened


def _between(directory: Path, numbers: set[int]) -> set[str]:
    """Sealed batches that lie between listed ones: begun in one listing, sealed in the other."""
    if not numbers:
        return set()
    absent = set(range(min(numbers), max(numbers))) - numbers
    names = (f"completions_{number:06d}.jsonl" for number in absent)
    return {name for name in names if (directory / name).exists()}


def content(directory: Path, name: str) -> tuple[str, bytes] | None:
    """What a listed batch holds, and its name when it was read; None where it is here no longer."""
    for known in dict.fromkeys((name, name.removesuffix(_OPEN_END))):
        try:
            return known, (directory / known).read_bytes()
        except FileNotFoundError:
            continue
    return None
