"""The envelope: all that a line can be."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from remote.protocol.events import Event
from remote.protocol.requests import Request
from remote.protocol.results import LogPart, Result
from remote.protocol.snapshot import Snapshot
from remote.protocol.target import TargetSpec

VERSION = 1
"""Raised whenever a message changes its meaning; consoles of another version are read-only."""


class Hello(Struct, tag="hello", frozen=True):
    """First message of each side.

    The agent takes ``spec`` only when it has none yet: looking changes nothing.
    """

    version: int
    code: str
    """Hash of the deployed ``remote`` package."""
    role: Literal["console", "run", "agent"]
    who: str = ""
    spec: TargetSpec | None = None
    pid: int = 0


class Call(Struct, tag="call", frozen=True):
    """A request; ``id`` is chosen by the caller and comes back once."""

    id: int
    request: Request


class Reply(Struct, tag="reply", frozen=True):
    """The result of call ``id``."""

    id: int
    result: Result


class Failure(Struct, tag="failure", frozen=True):
    """Call ``id`` was not done: one line that says what and what to do."""

    id: int
    text: str
    code: str = "refused"
    """``usage``: what was asked cannot be meant, and asking again would not help; ``busy``,
    ``no-servers``, ``take-over``, ``refused``: it is how things stand; ``internal``: a fault of
    the agent's; ``protocol``: this agent does not know such requests."""


class Heartbeat(Struct, tag="heartbeat", frozen=True):
    """Nothing to say, still here."""

    time: float


class Happened(Struct, tag="happened", frozen=True):
    """An event as it happens."""

    event: Event


class Skipped(Struct, tag="skipped", frozen=True):
    """So many messages of a kind are not pushed: the subscriber was too slow, or begins behind
    more events than are pushed. Events can still be read."""

    what: str
    count: int


class Reading(Struct, tag="reading", frozen=True):
    """One server's numbers, as the agent polled them, for the run's dispatcher."""

    time: float
    url: str
    alive: bool
    running: int | None = None
    queued: int | None = None
    max_running: int | None = None
    tokens: int | None = None
    """A counter that grows while tokens are produced; None where the server has none."""


class Piece(Struct, tag="piece", frozen=True):
    """Part ``n`` (from 0) of ``of`` of a line that is longer than :data:`MAX_LINE`."""

    key: int
    n: int
    of: int
    text: str


Message: TypeAlias = (
    Hello
    | Call
    | Reply
    | Failure
    | Heartbeat
    | Happened
    | Skipped
    | Reading
    | Snapshot
    | LogPart
    | Piece
)
