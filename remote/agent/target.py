"""The target that an action brought last, kept for the next agent."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from remote.protocol import TargetSpec


def read_spec(path: Path) -> TargetSpec | None:
    """The spec the last agent kept; None where there is none or it does not fit. Blocking."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TargetSpec)
    except (OSError, msgspec.DecodeError):
        return None


def write_spec(path: Path, spec: TargetSpec) -> None:
    """Keep the spec, by rename. Raises OSError. Blocking."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
    temporary.replace(path)
