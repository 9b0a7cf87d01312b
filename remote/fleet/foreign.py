"""A server that somebody else started."""

from __future__ import annotations

from dataclasses import dataclass, field

from remote.protocol import Flags


@dataclass
class Foreign:
    """A server on one of our ports that was not started by us."""

    argv: list[str]
    owner: str
    flags: Flags
    model: str | None
    log: str | None
    is_sglang: bool
    started_at: float | None = None
    api_key: str = field(default="", repr=False)
    """What it wants of those who ask it, where that can be read; never shown."""
