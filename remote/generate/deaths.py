"""Which prompts kill servers: those that were in flight whenever one died by itself.

Servers that die within a minute of each other die of something else, unless each of them had a
prompt in flight that another one had, too: a prompt that kills at once walks from one to the next.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from remote.generate.job import Job

TOGETHER_S = 60.0
"""Servers that die within this time of each other die of something else than a prompt."""


@dataclass
class _Death:
    at: float
    server: str
    jobs: list[Job]
    together: bool = False
    """Another server died within a minute."""
    blamed: list[Job] = field(default_factory=list)


class Deaths:
    """Remembers deaths of the last minute and counts them on the prompts."""

    def __init__(self) -> None:
        self._recent: deque[_Death] = deque()

    def died(self, at: float, server: str, jobs: list[Job]) -> list[Job]:
        """A server that Stoker did not stop is dead, with these prompts in flight.

        :returns: the prompts that are blamed for two such deaths now.
        """
        while self._recent and self._recent[0].at < at - TOGETHER_S:
            self._recent.popleft()
        death = _Death(at, server, jobs)
        for other in self._recent:
            if other.server != server:
                other.together = death.together = True
        self._recent.append(death)
        often = Counter(job for one in self._recent for job in one.jobs)
        walked = all(
            any(often[job] > 1 for job in one.jobs) for one in self._recent if one.together
        )
        for one in self._recent:
            for job in one.blamed:
                job.deaths -= 1
            one.blamed = one.jobs
            if one.together:
                one.blamed = [job for job in one.jobs if walked and often[job] > 1]
            for job in one.blamed:
                job.deaths += 1
        return [job for job in jobs if job.deaths >= 2]

    def others(self, job: Job, at: float) -> bool:
        """Whether a server that did not have this prompt died within the minute before ``at``, or
        since."""
        return any(job not in death.jobs for death in self._recent if death.at >= at - TOGETHER_S)
