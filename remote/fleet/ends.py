"""How often a server has died by itself, as far as this agent has seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from remote.fleet.restarts import HOUR

MOST = 100
"""Times of deaths that are kept."""


@dataclass
class Ends:
    """The deaths of one server, each with its cause; times are Unix seconds."""

    count: int = 0
    why: str = ""
    """The last one's."""
    times: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))

    def note(self, at: float, why: str) -> None:
        """It has died."""
        self.count += 1
        self.why = why
        self.times.append(at)

    def lately(self, now: float) -> int:
        """How often in the last hour."""
        return sum(now - at < HOUR for at in self.times)
