"""What has happened, what is wrong now, and what was made of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from remote.protocol.target import Flags


class Event(Struct, frozen=True):
    """Something that happened. Ids only grow; the journal keeps every event."""

    id: int
    time: float
    kind: str
    """Dotted and lower case: ``server.failed``, ``swap.done``, ``action``, ``verdict``, …"""
    level: Literal["info", "warning", "error"] = "info"
    text: str = ""
    gpu: int | None = None
    who: str = ""


class Alert(Struct, frozen=True):
    """Something that is wrong now; gone when it is mended."""

    code: str
    text: str
    since: float
    level: Literal["warning", "error"] = "warning"


class Verdict(Struct, frozen=True):
    """First-minute verdict after a start, resume or swap."""

    time: float
    text: str
    good: bool | None = None
    """None where there is nothing to compare with."""
    rate_per_sec: float | None = None
    eta_hours: float | None = None
    tok_s_per_gpu: float | None = None
    slots: int | None = None
    bound_by: str = ""
    remedy: str = ""
    """The change of flags that would give most, with the slots it is predicted to give."""
    remedy_flags: Flags = {}
    """The same change as flags; False takes one out."""
    waits: str = ""
    """Numbers are being gathered for the next one, and for what that waits."""
    due: float | None = None
    """When the next one is given."""
    tok_s: float | None = None
    """Of all servers together."""
    after: str = ""
    """What it follows: ``start``, ``resume``, ``swap``, …"""
