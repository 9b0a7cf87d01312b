"""When a server that failed is started again by itself, and when no more."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from remote.fleet.outside import FleetError
from remote.fleet.records import Folder, Mending
from remote.fleet.timing import Timing

HOUR = 3600.0


@dataclass
class Restarts:
    """The automatic restarts of one server; with a folder, the next agent knows of them too.

    What changes them is blocking. Where the disk does not take it, they are known here alone.
    """

    folder: Folder | None = None
    times: list[float] = field(default_factory=list)
    """Unix seconds of those of the last hour."""
    launch: str = ""
    """The launch that was set aside: it is not started again by itself."""
    why: str = ""
    """Why it was."""

    def read_back(self) -> None:
        """What the last agent knew. Blocking."""
        if self.folder is not None:
            kept = self.folder.mending()
            self.times, self.launch, self.why = kept.times, kept.launch, kept.why

    def wait(self, now: float, timing: Timing) -> float | None:
        """Seconds to wait before the next one; None once there were too many within an hour."""
        self.times = [t for t in self.times if now - t < HOUR]
        if len(self.times) >= timing.restarts_an_hour:
            return None
        return min(timing.restart_first * 2.0 ** len(self.times), timing.restart_most)

    def note(self, now: float) -> None:
        """One begins now."""
        self.times.append(now)
        self._keep()

    def set_aside(self, launch: str, why: str) -> None:
        """This launch is not started again by itself."""
        self.launch, self.why = launch, why
        self._keep()

    def forget(self) -> None:
        """A person acted on the server: begin anew."""
        if self.times or self.launch:
            self.times, self.launch, self.why = [], "", ""
            self._keep()

    def _keep(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(FleetError):
                self.folder.write_mending(Mending(self.times, self.launch, self.why))
