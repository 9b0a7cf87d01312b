"""Which prompts kill servers: those that were in flight whenever one died by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from remote.generate.job import Job

TOGETHER_S = 60.0
"""Servers that die within this time of each other die of something else than a prompt."""


@dataclass
class _Death:
    at: float
    server: str
    jobs: list[Job] = field(default_factory=list)
    counted: bool = True


class Deaths:
    """Remembers deaths of the last minute and counts them on the prompts."""

    def __init__(self) -> None:
        self._recent: deque[_Death] = deque()

    def died(self, at: float, server: str, jobs: list[Job]) -> list[Job]:
        """A server that Stoker did not stop is dead, with these prompts in flight.

        :returns: the prompts that have now been in flight in two such deaths.
        """
        while self._recent and self._recent[0].at < at - TOGETHER_S:
            self._recent.popleft()
        death = _Death(at, server, jobs)
        for other in self._recent:
            if other.server != server:
                death.counted = False
                if other.counted:
                    other.counted = False
                    for job in other.jobs:
                        job.deaths -= 1
        self._recent.append(death)
        if not death.counted:
            return []
        for job in jobs:
            job.deaths += 1
        return [job for job in jobs if job.deaths >= 2]
