"""What is on disk of one server: ``<workspace>/.stoker/servers/<gpu>/``.

``launch.json`` is written before a server is started, ``running.json`` and ``exit.json`` by its
holder, ``ready.json`` when it has proved itself, ``previous.json`` keeps the ``ready.json`` of the
launch before. Together they let a new agent know a server that an earlier one started.
``mending.json`` tells when it was started again by itself, and whether it is to be no more,
``deaths.json`` how often it has died.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from remote.fleet.holder import write_json
from remote.fleet.identity import birth, boot_id
from remote.fleet.outside import FleetError
from remote.fleet.processes import Identity
from remote.protocol import Flags

Wanted = Literal["up", "down", "swap"]


class Launch(Struct, frozen=True):
    """One start of a server, as it was asked for."""

    launch: str
    """Unique; the server's processes carry it in their environment."""
    gpu: int
    port: int
    argv: list[str]
    cwd: str
    log: str
    log_offset: int
    """Where this launch's lines begin in the log."""
    flags: Flags
    epoch: int | None = None
    swap: int | None = None
    """The swap that started it, if one did."""
    who: str = ""
    asked: float = 0.0
    wanted: Wanted = "up"
    """What it is meant to be: a server that ends while it is wanted up has failed."""
    sglang: str | None = None


class Running(Struct, frozen=True):
    """The process of a launch."""

    launch: str
    holder: int
    pid: int
    began: float
    birth: str | None = None
    holder_birth: str | None = None
    boot: str = ""
    init: str = ""
    """Birth of the process that all others of this machine descend from."""

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether host or container have been started anew since."""
        another = bool(self.boot) and self.boot != boot_id()
        return another or (bool(self.init) and self.init != birth(1))

    @property
    def identity(self) -> Identity | None:
        """The main process; None where it ended at once or belongs to an earlier boot."""
        if self.birth is None or (self.boot and self.boot != boot_id()):
            return None
        return Identity(self.pid, self.birth)

    @property
    def holder_identity(self) -> Identity | None:
        """The holder, likewise."""
        if self.holder_birth is None or (self.boot and self.boot != boot_id()):
            return None
        return Identity(self.holder, self.holder_birth)


class Exit(Struct, frozen=True):
    """How a launch ended: ``status`` as of wait(2), negative for a signal; or why it never ran."""

    launch: str
    ended: float
    pid: int | None = None
    status: int | None = None
    error: str = ""


class Ready(Struct, frozen=True):
    """A launch that has served: what it gave, for the next one to be compared with."""

    launch: str
    at: float
    start_seconds: float
    flags: Flags = {}
    epoch: int | None = None
    max_running: int | None = None
    max_mamba: int | None = None
    kv_tokens: int | None = None
    sglang: str | None = None
    phase_seconds: dict[str, float] = {}


class Mending(Struct, frozen=True):
    """What was done about a server's failures."""

    times: list[float] = []
    """When it was started again by itself, Unix seconds."""
    launch: str = ""
    """The launch that is not to be started again by itself."""
    why: str = ""


class Deaths(Struct, frozen=True):
    """How often a server has died by itself."""

    count: int = 0
    times: list[float] = []
    """When, Unix seconds, the last ones."""
    why: str = ""
    """Of what it died last, and in which launch:"""
    launch: str = ""


_T = TypeVar("_T", bound=Struct)


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, record: Struct) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, msgspec.to_builtins(record))
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}") from error


class Folder:
    """The records of one server; those of another launch than asked for count as absent.

    What writes raises :class:`FleetError` where the disk does not take it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def launch(self) -> Launch | None:
        return _read(self.root / "launch.json", Launch)

    def running(self, launch: str) -> Running | None:
        found = _read(self.root / "running.json", Running)
        return found if found is not None and found.launch == launch else None

    def exit(self, launch: str) -> Exit | None:
        found = _read(self.root / "exit.json", Exit)
        return found if found is not None and found.launch == launch else None

    def ready(self, launch: str) -> Ready | None:
        found = _read(self.root / "ready.json", Ready)
        return found if found is not None and found.launch == launch else None

    def previous(self) -> Ready | None:
        """The launch before the present one that got ready."""
        return _read(self.root / "previous.json", Ready)

    def write_launch(self, record: Launch) -> None:
        """Begin a new launch: what the last ready one gave is kept as ``previous.json``."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self.root / "ready.json").replace(self.root / "previous.json")
        _write(self.root / "launch.json", record)

    def write_ready(self, record: Ready) -> None:
        _write(self.root / "ready.json", record)

    def mending(self) -> Mending:
        """What was done about failures, of whichever launch."""
        return _read(self.root / "mending.json", Mending) or Mending()

    def write_mending(self, record: Mending) -> None:
        _write(self.root / "mending.json", record)

    def deaths(self) -> Deaths:
        """How often it has died, in whichever launch."""
        return _read(self.root / "deaths.json", Deaths) or Deaths()

    def write_deaths(self, record: Deaths) -> None:
        _write(self.root / "deaths.json", record)

    def want(self, record: Launch, wanted: Wanted) -> Launch:
        """Note durably what the present launch is meant to be from now on."""
        return self._change(record, msgspec.structs.replace(record, wanted=wanted))

    def settle(self, record: Launch) -> Launch:
        """The swap that started this launch is over: it is wanted up like any other."""
        return self._change(record, msgspec.structs.replace(record, wanted="up", swap=None))

    def _change(self, record: Launch, changed: Launch) -> Launch:
        if changed != record:
            _write(self.root / "launch.json", changed)
        return changed
