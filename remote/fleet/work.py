"""Whether a server's work moves, and since when it serves without a break."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Work:
    """What its counters and its log told of its work, look by look; times are Unix seconds."""

    moved_at: float | None = None
    """When last anything moved."""
    busy_since: float | None = None
    """Since when it has had something to do."""
    stalled_since: float | None = None
    steady_since: float | None = None
    """Since when it has been there for the run without a break, at work or idle all the time."""
    _done: tuple[float, float] = (0.0, 0.0)

    def look(self, counted: float, logged: float, *, busy: bool, now: float) -> None:
        """Take in both accounts. Either is enough: ``/metrics`` may answer late or not at all
        while tokens flow, and short answers end between two lines of the log."""
        if (counted, logged) != self._done:
            self._done, self.moved_at = (counted, logged), now
        if busy != (self.busy_since is not None):
            self.busy_since = now if busy else None
            self.steady_since = None if self.steady_since is None else now

    def serves(self, yes: bool, now: float) -> None:
        """Whether it is there for the run: ready, not told to pause, and with signs of life."""
        if not yes:
            self.steady_since = None
        elif self.steady_since is None:
            self.steady_since = now

    @property
    def stands_since(self) -> float | None:
        """Since when it has had work of which nothing moved; None while it has none."""
        if self.busy_since is None:
            return None
        return max(self.busy_since, self.moved_at or 0.0)

    @property
    def moved_since_stall(self) -> bool:
        """Whether tokens have come after it was found stalled."""
        if self.stalled_since is None or self.moved_at is None:
            return False
        return self.moved_at > self.stalled_since
