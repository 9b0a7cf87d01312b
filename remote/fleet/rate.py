"""How fast a counter grows, by samples whose answers take their time."""

from __future__ import annotations

from collections import deque


class Rate:
    """Units a second over the last ``window`` seconds.

    A sample is of some moment between its question and its answer, and nobody knows of which: an
    answer that lay about (its server or its reader stood still meanwhile) is of an old moment.
    So the time between two samples is taken as the longest that can have passed: a late answer
    makes a rate that is a little low, and never one that no server has reached.
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self._samples: deque[tuple[float, float, float]] = deque()

    def clear(self) -> None:
        """Forget all samples: the counter is another one now."""
        self._samples.clear()

    def take(self, asked: float, answered: float, count: float) -> None:
        """A sample, in seconds of one clock; a counter that fell has begun anew."""
        samples = self._samples
        if samples and count < samples[-1][2]:
            samples.clear()
        samples.append((asked, answered, count))
        while len(samples) > 2 and answered - samples[0][1] > self.window:
            samples.popleft()

    @property
    def at(self) -> float | None:
        """When the newest sample was answered."""
        return self._samples[-1][1] if self._samples else None

    @property
    def value(self) -> float | None:
        """None until there are two samples."""
        if len(self._samples) < 2:
            return None
        (asked, _, before), (_, answered, now) = self._samples[0], self._samples[-1]
        return (now - before) / (answered - asked) if answered > asked else None
