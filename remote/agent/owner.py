"""What those who act need of the agent whose hands they are."""

from __future__ import annotations

from typing import Protocol

from remote.agent.firstminute import FirstMinute
from remote.agent.run import Run
from remote.fleet.fleet import Fleet
from remote.journal import Journal
from remote.protocol import TargetSpec


class Owner(Protocol):
    """The agent, as actions and swaps see it."""

    journal: Journal
    run: Run
    first_minute: FirstMinute
    spec: TargetSpec | None

    @property
    def known_spec(self) -> TargetSpec: ...

    async def fleet(self, spec: TargetSpec | None = None) -> Fleet: ...
    def emit(self, kind: str, text: str, *, level: str = "info", who: str = "") -> object: ...
