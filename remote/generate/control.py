"""``control.json``: the desired state that the agent sets and the run obeys.

It is replaced atomically; the run looks several times a second whether it is another file. The last
one written stays in force whoever dies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

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
    """Identity of the server process (pid and start time); another one is on probation anew."""
    tried: bool = False
    """Whether the agent has had a real completion of that process."""


class Control(Struct, frozen=True):
    """The whole desired state. What a file does not say of it stays as it was."""

    servers: list[ServerControl] = []
    dispatch: Literal["run", "pause", "drain", "stop"] = "run"
    """``pause``: keep the process, send nothing new; ``drain``: finish what is in flight and
    leave; ``stop``: break off and keep what is in flight, and leave."""
    seal: bool = False
    """With ``drain`` or ``stop``: seal the open batch short before leaving."""
    concurrency: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"
    version: int = 0
    """Told back as ``control_version`` in ``progress.json`` once all of this is obeyed."""


class ControlError(Exception):
    """What is wrong with a control file, in one line."""


def merged(raw: bytes, before: Control) -> tuple[Control, list[str]]:
    """What the file wants, and its keys that nobody knows.

    What it does not say stays as it was in ``before``: of the whole, and of each server by its
    URL. So does the list of servers where it is empty.

    :raises ControlError: it does not parse, or wants what cannot be.
    """
    try:
        said = msgspec.json.decode(raw, type=dict[str, Any])
        unknown = [name for name in said if name not in _KEYS]
        wanted: dict[str, Any] = {**msgspec.to_builtins(before), **said}
        earlier = {server.url: msgspec.to_builtins(server) for server in before.servers}
        servers = msgspec.convert(said.get("servers") or [], list[dict[str, Any]])
        for server in servers:
            unknown += [f"servers: {name}" for name in server if name not in _SERVER_KEYS]
            url = server["url"] = str(server.get("url") or "").rstrip("/")
            if not url:
                raise ControlError("a server without its url")
        if servers:
            wanted["servers"] = [{**earlier.get(s["url"], {}), **s} for s in servers]
        else:
            wanted["servers"] = list(earlier.values())
        return msgspec.convert(wanted, Control), unknown
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ControlError(str(error)) from None


_KEYS = frozenset(Control.__struct_fields__)
_SERVER_KEYS = frozenset(ServerControl.__struct_fields__)


def read(folder: Path) -> Control | None:
    """The control file of a run directory; None where there is none or it does not parse."""
    try:
        return merged((folder / NAME).read_bytes(), Control())[0]
    except (FileNotFoundError, ControlError):
        return None


def write(folder: Path, control: Control) -> None:
    """Replace the control file atomically and durably."""
    temporary = folder / f".{NAME}.{os.getpid()}"
    with temporary.open("wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(control), indent=1))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(folder / NAME)
