"""The target that an action brought last, kept for the next agent, and GPUs named of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from remote.agent.serve import RequestError
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


def chosen(gpus: list[int] | None, spec: TargetSpec, known: Iterable[int] = ()) -> list[int] | None:
    """The GPUs that a request names, in order; None for all. Raises RequestError for one that
    neither the target has nor is ``known`` otherwise."""
    if gpus is None:
        return None
    there = {*range(spec.fleet.gpus), *known}
    wrong = [gpu for gpu in gpus if gpu not in there]
    if wrong or not gpus:
        text = f"no GPU {', '.join(map(str, wrong))}: 0 to {spec.fleet.gpus - 1}"
        raise RequestError(text, "usage")
    return sorted(set(gpus))
