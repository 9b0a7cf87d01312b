"""How often a server has died by itself, as far as the agents here have seen."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from remote.fleet.outside import FleetError
from remote.fleet.records import Deaths, Folder
from remote.fleet.restarts import HOUR

MOST = 100
"""Times of deaths that are kept."""


@dataclass
class Ends:
    """The deaths of one server; with a folder, the next agent knows of them too.

    Where the disk does not take them, they are known here alone.
    """

    folder: Folder | None = None
    known: Deaths = field(default_factory=Deaths)

    def read_back(self) -> None:
        """What the last agent knew. Blocking."""
        if self.folder is not None:
            self.known = self.folder.deaths()

    def note(self, at: float, why: str, launch: str = "") -> None:
        """It has died, at that Unix time. A launch dies once: the last agent may have noted it."""
        if not launch or launch != self.known.launch:
            times = [*self.known.times, at][-MOST:]
            self.known = Deaths(self.known.count + 1, times, why, launch)

    def keep(self) -> None:
        """For the next agent. Blocking."""
        if self.folder is not None:
            with contextlib.suppress(FleetError):
                self.folder.write_deaths(self.known)

    def lately(self, now: float) -> int:
        """How often in the last hour."""
        return sum(now - at < HOUR for at in self.known.times)
