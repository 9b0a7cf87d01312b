"""Deaths of servers, and the prompts that may have caused them.

A prompt that is blamed for two deaths is sent once more with nothing else on its server, and is
given up if that one dies, too. Several may be sent so at once, each to a server of its own; then a
death is its prompt's only where no other server died at about the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.generate.deaths import TOGETHER_S, Deaths
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.server import Server

SEEN_S = 15.0
"""How long it may take until all servers that died of the same thing are seen to be dead; and until
it is seen of what a server died that is told to stop."""


@dataclass
class _Lone:
    """A server died with nothing but this prompt in flight, while others had suspects, too."""

    job: Job
    server: Server
    at: float


class Crashes:
    """Hears who died and who lives; ``settle`` lets go of a server's answers held back."""

    def __init__(self, floor: Floor, settle: Callable[[Server], None]) -> None:
        self._floor = floor
        self._settle = settle
        self._deaths = Deaths()
        self._lone: list[_Lone] = []
        """Whose verdict waits until other deaths would have been seen; suspects meanwhile."""
        self._unheard: dict[Job, float] = {}
        """Suspects whose server is out of service, and since when that is so."""

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
                self._floor.suspects[guest] = server
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
            if self._floor.suspects.get(job) is server:
                del self._floor.suspects[job]
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
            if floor.suspects.get(job) is server:
                job.lone_deaths += 1
                company = len(floor.suspects) > 1 or any(s.guest for s in floor.servers.values())
                if company and job.lone_deaths < 2:
                    self._lone.append(_Lone(job, server, at))
                else:
                    self._died_alone(server, job, at, at)
        floor.work.isolate()
        floor.changed()

    def check(self, at: float) -> None:
        """Once a second: judge those whose time has come."""
        due = [lone for lone in self._lone if at >= lone.at + SEEN_S]
        self._lone = [lone for lone in self._lone if at < lone.at + SEEN_S]
        for lone in due:
            self._died_alone(lone.server, lone.job, lone.at, at)
        self._let_go(at)

    def _let_go(self, at: float) -> None:
        """Nobody tries a server that is told to stop, so that its death may never be seen: its
        suspect goes on, and is to be sent alone as before."""
        floor = self._floor
        judged = {lone.job for lone in self._lone}
        self._unheard = {
            job: self._unheard.get(job, at)
            for job, server in floor.suspects.items()
            if server.dispatch != "run" and job not in judged
        }
        for job, since in self._unheard.items():
            if at - since >= SEEN_S:
                server = floor.suspects.pop(job)
                server.crashed.remove(job)
                floor.again(job, at)

    def _died_alone(self, server: Server, job: Job, died: float, at: float) -> None:
        """With nothing else in flight; but where others died, too, it gets one more try later."""
        del self._floor.suspects[job]
        if self._deaths.others(job, died) and job.lone_deaths < 2:
            self._floor.work.later(job, at + TOGETHER_S)
            return
        reason = "three servers died with it in flight, the last one with nothing else"
        self._floor.give_up(job, server, "quarantined", reason, None)
