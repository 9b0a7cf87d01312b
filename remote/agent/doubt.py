"""Whether a verdict still holds: one that numbers have left behind is worse than none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from remote.generate.progress import WINDOW_S
from remote.protocol import Progress, ServerState, Verdict

APART: Final = 0.25
"""By this share the numbers may be away from a verdict's …"""
APART_S: Final = 60.0
"""… and for so long at most."""
AGAIN_S: Final = 300.0
"""After a verdict has been doubted the next one that is lasts at least so long before it is judged
anew; twice as long each further time, lest a run whose rate moves all the time tell of nothing
else."""
MOST_AGAIN_S: Final = 3600.0


class Doubt:
    """Looks each second at the newest verdict."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._idle_at = 0.0
        """When the run last paused or left: its means hold that time for a while."""
        self._next = 0.0
        self._wait = AGAIN_S

    def begin(self) -> None:
        """Somebody has changed something: a new verdict comes anyway."""
        self._since, self._next, self._wait = None, 0.0, AGAIN_S

    def look(
        self,
        verdict: Verdict,
        states: Iterable[ServerState],
        progress: Progress | None,
        now: float,
    ) -> bool:
        """Whether it has not held for a minute."""
        if progress is not None and progress.status != "running":
            self._idle_at, self._since = now, None
            return False
        if not apart(verdict, states, progress, now, self._idle_at):
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < APART_S:
            return False
        self._since = None
        return True

    def again(self, now: float) -> bool:
        """Whether it is time to judge anew; counts as done."""
        if now < self._next:
            return False
        self._next, self._wait = now + self._wait, min(2 * self._wait, MOST_AGAIN_S)
        return True


def apart(
    verdict: Verdict,
    states: Iterable[ServerState],
    progress: Progress | None,
    now: float,
    idle_at: float = 0.0,
) -> bool:
    """Whether tokens a second, the run's rate or the time left are far from what it says.

    The run's own numbers count once its moving mean is of the time after the verdict and after it
    was last idle.
    """
    total = sum(s.gen_tok_s or 0.0 for s in states if s.state == "ready")
    if _far(total, verdict.tok_s):
        return True
    if progress is None or now - max(verdict.time, idle_at) < WINDOW_S:
        return False
    here = sum(work.completed for work in progress.servers.values())
    if here < 3 * max(progress.in_flight, 1):
        return False
    return _far(progress.rate_per_sec, verdict.rate_per_sec) or _far(
        progress.eta_hours, verdict.eta_hours
    )


def _far(value: float | None, told: float | None) -> bool:
    return value is not None and bool(told) and abs(value / (told or 1.0) - 1.0) > APART
