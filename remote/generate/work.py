"""The one queue: prompts not yet sent, and those to be sent again."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from remote.generate.job import Job
from remote.generate.prompts import decode
from remote.generate.recovery import TAKEN, TODO
from remote.generate.server import LONGEST_REST_S

_LOOK = 32
"""How far a server looks past prompts that it failed itself."""


class Work:
    """Hands out the longest-waiting prompt that is ready.

    ``status`` is the run's state array (one byte a prompt). Fresh lines come from a reader
    outside: :meth:`wanted` says which, :meth:`feed` brings them.
    """

    def __init__(self, status: bytearray) -> None:
        self._status = status
        self._cursor = 0
        self._fresh: deque[tuple[int, bytes]] = deque()
        self._ready: deque[Job] = deque()
        self._later: list[tuple[float, int, Job]] = []
        self._order = count()
        self.lonely: deque[Job] = deque()
        """Prompts that are suspected of killing servers: each has to be sent alone."""
        self.reading = False
        self.exhausted = False

    def __len__(self) -> int:
        """Prompts held in memory: read ahead, ready again, or waiting for their time."""
        return len(self._fresh) + len(self._ready) + len(self._later) + len(self.lonely)

    @property
    def waiting_retry(self) -> int:
        """Prompts to be sent again."""
        return len(self._ready) + len(self._later) + len(self.lonely)

    def jobs(self) -> Iterator[Job]:
        """Everything that waits to be sent again."""
        yield from self._ready
        yield from (job for _, _, job in self._later)
        yield from self.lonely

    @property
    def idle(self) -> bool:
        """Nothing is left to hand out, now or later."""
        return self.exhausted and not self.reading and not len(self)

    @property
    def fresh(self) -> bool:
        """Whether there are prompts that were not sent yet."""
        return bool(self._fresh) or not self.exhausted

    @property
    def others(self) -> bool:
        """Whether there are prompts to be sent that are under no suspicion."""
        return self.fresh or bool(self._ready)

    def wanted(self, ahead: int) -> list[int]:
        """Indices to read so that ``ahead`` fresh prompts are at hand; they are marked taken."""
        need = ahead - len(self._fresh)
        if need < (ahead + 1) // 2:
            return []
        indices: list[int] = []
        while len(indices) < need:
            at = self._status.find(TODO, self._cursor)
            if at < 0:
                self.exhausted = True
                break
            self._status[at] = TAKEN
            self._cursor = at + 1
            indices.append(at)
        return indices

    def feed(self, lines: list[tuple[int, bytes]]) -> None:
        """Lines that :meth:`wanted` asked for."""
        self._fresh.extend(lines)

    def take(self, now: float, fits: Callable[[Job], bool]) -> Job | None:
        """The next prompt for a server; ``fits`` says whether one that was sent before is for it.

        Suspects are handed to :attr:`lonely` as their time comes.
        """
        self.wake(now)
        for at, job in enumerate(self._ready):
            if fits(job):
                del self._ready[at]
                return job
            if at >= _LOOK:
                break
        if self._fresh:
            index, line = self._fresh.popleft()
            return Job(index, line, decode(line))
        return None

    def wake(self, now: float) -> None:
        """Those whose time has come are ready again."""
        while self._later and self._later[0][0] <= now:
            job = heapq.heappop(self._later)[2]
            (self.lonely if job.alone else self._ready).append(job)

    def isolate(self) -> None:
        """Some that are ready may have become suspects: those are to be sent alone."""
        self.lonely.extend(job for job in self._ready if job.alone)
        self._ready = deque(job for job in self._ready if not job.alone)

    def later(self, job: Job, at: float) -> None:
        """Send it again at that time."""
        heapq.heappush(self._later, (at, next(self._order), job))

    def again(self, job: Job, now: float, *, wait: bool, after: float | None = None) -> None:
        """Send it again: at once, or after a jittered pause that grows with its failures, or is as
        long as a server asked for (``after``).

        One that was interrupted goes before all others.
        """
        if wait and after is not None:
            self.later(job, now + max(0.25, min(after, LONGEST_REST_S)) * random.uniform(1.0, 1.5))
        elif wait:
            pause = min(30.0, 0.5 * 2 ** min(job.attempts + job.free // 2 + job.waits, 10))
            self.later(job, now + pause * random.uniform(0.5, 1.5))
        elif job.alone:
            self.lonely.append(job)
        elif job.partial is not None:
            self._ready.appendleft(job)
        else:
            self._ready.append(job)


def check_line(line: bytes) -> str:
    """Why a prompt's line cannot be sent at all; empty where it can."""
    try:
        roles = msgspec.json.decode(line, type=_Roles)
    except msgspec.DecodeError as error:
        return str(error)
    if roles.messages[-1].role == "assistant":
        # SGLang would quietly make a user turn of it (entrypoints/openai/serving_chat.py).
        return "the last message is the assistant's; a prompt ends with a user or tool turn"
    return ""


class _Role(msgspec.Struct):
    role: str


class _Roles(msgspec.Struct):
    messages: list[_Role]
