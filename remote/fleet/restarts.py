"""When a server that failed is started again by itself, and when no more."""

from __future__ import annotations

from dataclasses import dataclass, field

from remote.fleet.timing import Timing

HOUR = 3600.0


@dataclass
class Restarts:
    """The automatic restarts of one server."""

    times: list[float] = field(default_factory=list)
    """Unix seconds of those of the last hour."""

    def wait(self, now: float, timing: Timing) -> float | None:
        """Seconds to wait before the next one; None once there were too many within an hour."""
        self.times = [t for t in self.times if now - t < HOUR]
        if len(self.times) >= timing.restarts_an_hour:
            return None
        return min(timing.restart_first * 2.0 ** len(self.times), timing.restart_most)

    def note(self, now: float) -> None:
        """One begins now."""
        self.times.append(now)

    def forget(self) -> None:
        """A person acted on the server: begin anew."""
        self.times.clear()
