"""What a failure shows, and who is charged with it: the server, or the prompt.

The server is charged by its breaker, the prompt by its attempts; back-off happens in the queue,
never in a slot. A prompt in whose company servers die is sent alone, and given up if that one
dies, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remote.generate import context
from remote.generate.client import TroubleError
from remote.generate.deaths import Deaths
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.partial import Partial
from remote.generate.server import Server

FREE = 8
"""Failures of a prompt that do not count, at most; then they do."""


class Failures:
    """Takes troubles and deaths.

    ``settle`` lets go of a server's answers held back; ``try_due`` begins the trials that are due.
    """

    def __init__(
        self,
        floor: Floor,
        *,
        settle: Callable[[Server], None],
        try_due: Callable[[], None],
    ) -> None:
        self._floor = floor
        self._settle = settle
        self._try_due = try_due
        self._deaths = Deaths()

    def trouble(
        self,
        server: Server,
        job: Job,
        trouble: TroubleError,
        *,
        alone: bool,
        base: Partial | None = None,
    ) -> None:
        """A request gave no answer.

        ``alone``: nothing else was in flight there; ``base``: it was to go on from there.
        """
        floor = self._floor
        at = time.monotonic()
        cause = trouble.cause
        floor.accounts.retries[cause] += 1
        if trouble.partial is not None and not floor.elsewhere(job):
            floor.keeper.keep(server, job, trouble.partial)
        if cause == "rejected" and base is not None:
            server.sign_at = at
            floor.keeper.lose(job, server)
            floor.again(job, at)
            return
        if cause == "rejected":
            server.sign_at = at
            if (limit := context.room_said(trouble.text)) is not None and job.limit is None:
                job.limit = limit
                floor.again(job, at)
                return
            job.attempts += 1
            floor.give_up(job, server, "rejected", trouble.text, trouble.status)
            return
        server.problem = trouble.text
        job.avoid = server
        gone = cause in ("refused", "reset", "timeout", "denied")
        server.breaker.failed(at, gone=gone)
        if gone:
            self._try_due()  # at once: whether it died is seen only until it is back
        if cause == "refused":
            self.lost(server)
        if cause == "busy":
            server.refused_work(at, trouble.after)
        if cause == "reset" and server.dispatch == "run":
            server.crashed.append(job)
            if alone:
                floor.suspects.add(job)  # until a trial shows whether the server died of it
                return
        if (gone or cause == "busy" or server.breaker.is_open) and job.free < FREE:
            if cause in ("reset", "timeout", "server", "garbage"):
                job.free += 1
            floor.again(job, at, wait=not gone)
            return
        job.attempts += 1
        if base is not None and trouble.partial is None:
            floor.keeper.lose(job, server)  # it may be the cause
        if job.attempts > floor.settings.retries:
            floor.give_up(job, server, "failed", trouble.text, trouble.status)
        else:
            floor.again(job, at, wait=True)

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
        ordinary = []
        for job in crashed:
            if job in floor.suspects:
                floor.suspects.remove(job)
                reason = "three servers died with it in flight, the last one with nothing else"
                floor.give_up(job, server, "quarantined", reason, None)
            else:
                ordinary.append(job)
        for job in self._deaths.died(at, server.url, ordinary):
            job.alone = True
            floor.keeper.lose(job, server)  # it may be the cause
        floor.changed()
