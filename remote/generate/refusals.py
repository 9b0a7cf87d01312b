"""Refused prompts (4xx): whether the prompt is at fault, or the server that refuses it.

Before a prompt is given up for good, another server is asked, and the last one that refuses it has
to answer something else first, or a trial. A server that refuses many in a row is tried, and one
that refuses what others answer is degenerate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from remote.generate import context
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.records import Outcome
from remote.generate.server import DOUBTS, Doubt, Server
from remote.generate.trouble import TroubleError


class Refusals:
    """Takes refusals; ``note`` judges a server by its last answers and refusals."""

    def __init__(
        self, floor: Floor, note: Callable[[Server, Outcome, Hashable, float], bool]
    ) -> None:
        self._floor = floor
        self._note = note

    def refused(self, server: Server, job: Job, trouble: TroubleError, at: float) -> None:
        """A server won't have this prompt: wrong whatever it is asked, or ``denied`` to us."""
        floor = self._floor
        if floor.elsewhere(job):
            return  # another server is at it as well: that one decides
        said = context.room_said(trouble.text)
        if said is not None and job.narrow(server.key, said):
            floor.again(job, at)
            return
        if trouble.final:
            self._give_up(server, job, trouble.text, trouble.status)
            return
        job.avoid = server
        if trouble.size is not None:
            job.refuse(server.key, tells=False)
            if self._ask_another(job, at, longer_than=trouble.size + context.MARGIN):
                return
            self._give_up(server, job, trouble.text, trouble.status)
            return
        server.refusals += 1
        tells = not context.spoken_of(trouble.text)
        second = bool(job.refused) and any(key != server.key for key in job.refused or ())
        if trouble.cause == "denied":  # may be the key or the path: first see whether it works
            self._doubt(server, job, trouble, last=False)
        else:
            job.refuse(server.key, tells=tells)
            if second or not self._ask_another(job, at):
                self._doubt(server, job, trouble, last=second)
        if server.refusals >= DOUBTS and not server.breaker.is_open:
            server.refusals = 0
            server.breaker.open(at)

    def answered(self, server: Server, job: Job) -> None:
        """A server answered: what it refused before stands, and who refused this was wrong."""
        if server.doubted:
            known = [doubt for doubt in server.doubted if doubt.sent_at <= server.proof]
            server.doubted = [doubt for doubt in server.doubted if doubt.sent_at > server.proof]
            self._confirm(server, known)
        if job.refused:
            for other in self._floor.servers.values():
                if other is not server and job.refused.get(other.key):
                    self._note(other, "rejected", job.index, time.monotonic())
            job.refused = None

    def works(self, server: Server) -> None:
        """A trial was answered: what it refused before, it refused for the prompts' sake."""
        known, server.doubted = server.doubted, []
        self._confirm(server, known)

    def fails(self, server: Server) -> None:
        """A trial was not answered, or another process stands there: nothing was shown."""
        at = time.monotonic()
        known, server.doubted = server.doubted, []
        for doubt in known:
            self._floor.again(doubt.job, at)

    def check(self) -> None:
        """Have servers tried that nothing in flight will prove right or wrong."""
        for server in self._floor.servers.values():
            if server.doubted:
                if server.dispatch != "run" or server.stopped:
                    self.fails(server)
                elif not server.flying and not server.breaker.is_open:
                    server.breaker.open(time.monotonic())

    def _doubt(self, server: Server, job: Job, trouble: TroubleError, *, last: bool) -> None:
        doubt = Doubt(job, server.key, trouble.text, trouble.status, job.sent_at, last)
        server.doubted.append(doubt)

    def _confirm(self, server: Server, doubts: list[Doubt]) -> None:
        at = time.monotonic()
        for doubt in doubts:
            if doubt.key not in (doubt.job.refused or ()):
                doubt.job.refuse(doubt.key, tells=False)
            if doubt.key != server.key:  # what works is another process by now
                self._floor.again(doubt.job, at)
            elif doubt.last or not self._ask_another(doubt.job, at):
                self._give_up(server, doubt.job, doubt.text, doubt.status)

    def _ask_another(self, job: Job, at: float, *, longer_than: int = 0) -> bool:
        """Whether a server is there that has not refused it yet; it is sent to that one."""
        refused = job.refused or {}
        others = [
            other
            for other in self._floor.servers.values()
            if other.usable
            and other.key not in refused
            and (other.context is None or other.context > longer_than)
        ]
        if others:
            self._floor.again(job, at)
        return bool(others)

    def _give_up(self, server: Server, job: Job, text: str, status: int | None) -> None:
        job.attempts += 1
        self._floor.give_up(job, server, "rejected", text, status)
