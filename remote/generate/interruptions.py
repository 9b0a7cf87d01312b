"""Answers that are broken off: asked for where a server is to be emptied, kept, gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from remote.generate import partial as partials
from remote.generate import requests, sampling
from remote.generate.failures import Failures
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.partial import Partial
from remote.generate.server import Server
from remote.generate.trouble import TroubleError

QUEUE_S = 4.0
"""How long a server's own queue may take to run empty before what runs is broken off."""
RETURN_S = 5.0
"""How long what was broken off may take to come back."""
POLL_S = 0.1
TOGETHER = 32
"""Requests that are broken off at once."""


class Interruptions:
    """Breaks off, and takes what comes back unfinished."""

    def __init__(self, floor: Floor, failures: Failures) -> None:
        self._floor = floor
        self._failures = failures

    def interrupted(
        self,
        server: Server,
        job: Job,
        base: Partial | None,
        trouble: TroubleError,
        latency: float,
        process: str,
    ) -> None:
        """The server broke an answer off: keep what it had, and let it go on from there.

        One that breaks off before it made anything, and was not asked to, has failed.
        """
        floor = self._floor
        kept = trouble.partial
        known = bool(server.identity) and process == server.process
        if (answer := trouble.answer) is not None and known and not self._why_whole(server, job):
            segment = requests.segment(server, trouble.made, "chat", latency)
            kept = partials.from_chat(answer, segment, server.identity)
        asked = server.breaks_off or server.emptying or server.stopped
        if kept is None and not asked and not floor.elsewhere(job):
            floor.accounts.tokens_lost += trouble.made
            self._failures.trouble(server, job, trouble, alone=False, base=base)
            return
        server.sign_at = time.monotonic()
        unwanted = server.dispatch == "redo" or server.stopped or floor.elsewhere(job)
        if kept is not None and not unwanted:
            floor.accounts.retries["continued"] += 1
            floor.keeper.keep(server, job, kept)
        else:
            floor.accounts.retries["abort"] += 1
            floor.accounts.tokens_lost += trouble.made
        floor.again(job, time.monotonic())

    async def break_off(self, server: Server, wanted: Callable[[], bool]) -> None:
        """Have the server return what it has; what does not come back in time is taken back.

        Ends early where it is no longer ``wanted``.
        """
        server.emptying += 1
        try:
            if server.engine == "sglang":
                if not server.breaker.is_open:
                    await self._empty_queue(server, wanted)
                await self._abort_all(server, wanted)
            if wanted():
                self._floor.recall(server)
                self._floor.changed()
        finally:
            server.emptying -= 1

    async def give_back(self, server: Server) -> None:
        """A silent server may still hand over what it has, unless it is well again meanwhile."""
        await self.break_off(server, lambda: server.breaker.is_open)

    async def _abort_all(self, server: Server, wanted: Callable[[], bool]) -> None:
        """All of this run, one by one: others may be at work on that server."""
        end = time.monotonic() + RETURN_S
        asked = -math.inf
        while wanted() and server.flying and time.monotonic() < end:
            if time.monotonic() - asked >= 1.0:  # some may not have been there yet
                asked = time.monotonic()
                jobs = list(server.flying)
                for some in range(0, len(jobs), TOGETHER):
                    await asyncio.gather(
                        *(self._abort(server, job) for job in jobs[some : some + TOGETHER])
                    )
            await asyncio.sleep(POLL_S)

    async def _abort(self, server: Server, job: Job) -> None:
        floor = self._floor
        for before in range(1 + job.hedged):  # of two requests one is another server's
            with contextlib.suppress(TroubleError):
                if job in server.flying:
                    rid = requests.rid(job, floor.session, before=before)
                    await floor.client.abort(server.url, rid)

    async def _empty_queue(self, server: Server, wanted: Callable[[], bool]) -> None:
        """Make room for what waits in the server's own queue by breaking off its oldest requests.

        An aborted request that was still queued leaves an entry in SGLang 0.5.12 that no later
        SIGTERM gets past (``managers/tokenizer_manager.py``).
        """
        floor = self._floor
        end = time.monotonic() + QUEUE_S
        asked: set[Job] = set()
        while wanted() and server.flying and time.monotonic() < end:
            with contextlib.suppress(TroubleError):
                waiting = (await floor.client.sample(server.url, server.engine)).queued
                if not waiting:
                    return
                running = [job for job in server.flying if job not in asked]  # oldest first
                for job in running[: max(0, min(waiting, len(running) - waiting))]:
                    asked.add(job)
                    await self._abort(server, job)
            await asyncio.sleep(POLL_S)

    def _why_whole(self, server: Server, job: Job) -> str:
        """Why this prompt's answer can only be made in one piece; empty where it need not."""
        assert server.facts is not None
        if server.facts.why_not:
            return server.facts.why_not
        try:
            body = requests.chat_body(self._floor.settings, server, job, self._floor.session)
            asked = sampling.translate(body, server.facts.defaults or {})
        except (sampling.SamplingError, ValueError) as error:
            return str(error)
        return asked.constrained
