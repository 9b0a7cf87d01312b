"""``control.json``: the desired state that the agent sets and the run obeys.

It is replaced atomically; the run looks several times a second whether it is another file. The last
one written stays in force whoever dies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

NAME = "control.json"


Dispatch: TypeAlias = Literal["run", "pause", "abort", "redo"]
"""``pause``: nothing new, what is in flight may end. ``abort``: break that off too, once the
server's own queue is empty; what it had so far is kept durably and goes on elsewhere, or here
later. ``redo``: the same, but thrown away and generated again."""


class ServerControl(Struct, frozen=True):
    """What the run may do with one server."""

    url: str
    gpu: int | None = None
    dispatch: Dispatch = "run"
    max_running: int | None = None
    """Effective ``max_running_requests``; ``auto`` concurrency is this and a few more."""
    epoch: int | None = None
    process: str = ""
    """Identity of the server process (pid and start time); a new one is on probation anew."""


class Control(Struct, frozen=True):
    """The whole desired state."""

    servers: list[ServerControl] = []
    dispatch: Literal["run", "pause", "drain", "stop"] = "run"
    """``pause``: keep the process, send nothing new; ``drain``: finish what is in flight and
    leave; ``stop``: break off and keep what is in flight, and leave."""
    seal: bool = False
    """With ``drain`` or ``stop``: seal the open batch short before leaving."""
    concurrency: int | Literal["auto"] = "auto"
    version: int = 0
    """Told back as ``control_version`` in ``progress.json`` once all of this is obeyed."""


def read(folder: Path) -> Control | None:
    """The control file of a run directory; None where there is none or it does not parse."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Control)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write(folder: Path, control: Control) -> None:
    """Replace the control file atomically and durably."""
    temporary = folder / f".{NAME}.{os.getpid()}"
    with temporary.open("wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(control), indent=1))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(folder / NAME)
