"""How fast the run goes and how long it still takes, for people and machines."""

from __future__ import annotations

from collections import deque

WINDOW_S = 120.0


class Meter:
    """Moving rates over the last two minutes of this process's own work."""

    def __init__(self, now: float) -> None:
        self._points: deque[tuple[float, int, int, int]] = deque([(now, 0, 0, 0)])

    def tick(self, now: float, completed: int, tokens: int, ended: int) -> None:
        """Take a sample of what this process has completed, of its output tokens, and of the
        prompts that it has finished for good, those given up and set aside included."""
        self._points.append((now, completed, tokens, ended))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()

    def rates(self) -> tuple[float, float, float]:
        """Completions, output tokens and finished prompts a second."""
        first, last = self._points[0], self._points[-1]
        took = last[0] - first[0]
        if took < 1.0:
            return 0.0, 0.0, 0.0
        return (
            (last[1] - first[1]) / took,
            (last[2] - first[2]) / took,
            (last[3] - first[3]) / took,
        )


def duration(hours: float | None) -> str:
    """``14.2 h``, ``12 min``, ``40 s``; a dash where it is not known."""
    if hours is None:
        return "–"
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


def bar(done: int, total: int, width: int) -> str:
    """A bar of ``width`` characters."""
    full = width * done // total if total else width
    return "█" * full + "░" * (width - full)
