"""Deaths of servers, and the prompts that may have caused them.

A prompt that is blamed for two deaths is sent once more with nothing else on its server, and is
given up if that one dies, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remote.generate.deaths import TOGETHER_S, Deaths
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.server import Server


class Crashes:
    """Hears who died and who lives; ``settle`` lets go of a server's answers held back."""

    def __init__(self, floor: Floor, settle: Callable[[Server], None]) -> None:
        self._floor = floor
        self._settle = settle
        self._deaths = Deaths()

    def lost(self, server: Server) -> None:
        """Nobody listens there: what comes back is another process (the agent knows it itself)."""
        if server.crashed:
            self._died(server)
        known = server.proved or server.held or server.stopped
        if not self._floor.settings.agent and known:
            self._settle(server)
            server.incarnation += 1
            server.new_process(f"{self._floor.session}.{server.incarnation}")

    def ended(self, server: Server, at: float) -> None:
        """The agent saw its process end."""
        if server.flying and server.dispatch == "run":
            server.problem = "its process has ended"
            server.breaker.open(at)
            server.crashed += server.flying
            if (guest := server.guest) is not None and guest in server.flying:
                self._floor.suspects.add(guest)
                self._floor.withdraw(guest)
            self._died(server)
            self._floor.recall(server)

    def survived(self, server: Server) -> None:
        """The connections broke, but the server lives: no death to count."""
        for job in server.crashed:
            job.free += 1  # it may be the prompt that breaks them
        self.forgive(server)

    def forgive(self, server: Server) -> None:
        """It was Stoker that ended the server: nothing of it speaks against a prompt."""
        at = time.monotonic()
        crashed, server.crashed = server.crashed, []
        for job in crashed:
            if job in self._floor.suspects:
                self._floor.suspects.remove(job)
                self._floor.again(job, at)

    def _died(self, server: Server) -> None:
        """A server died by itself: what was in flight is remembered for it."""
        floor = self._floor
        at = time.monotonic()
        crashed, server.crashed = server.crashed, []
        for job in crashed:
            job.witness = True
        for job in self._deaths.died(at, server.url, crashed):
            job.alone = True
            floor.keeper.lose(job, server)  # it may be the cause
        for job in crashed:
            if job in floor.suspects:
                floor.suspects.remove(job)
                self._died_alone(server, job, at)
        floor.work.isolate()
        floor.changed()

    def _died_alone(self, server: Server, job: Job, at: float) -> None:
        """With nothing else in flight; but where others died, too, it gets one more try later."""
        job.lone_deaths += 1
        if self._deaths.others(job) and job.lone_deaths < 2:
            self._floor.work.later(job, at + TOGETHER_S)
            return
        reason = "three servers died with it in flight, the last one with nothing else"
        self._floor.give_up(job, server, "quarantined", reason, None)
