"""What a failure shows, and who is charged with it: the server, or the prompt.

The server is charged by its breaker, the prompt by its attempts; back-off happens in the queue,
never in a slot. A server's refusal of a prompt is :mod:`.refusals`' business, one for the time
being :mod:`.overload`'s, its death :mod:`.crashes`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remote.generate.crashes import Crashes
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.overload import Overload
from remote.generate.partial import Partial
from remote.generate.refusals import Refusals
from remote.generate.server import Server
from remote.generate.trouble import TroubleError

FREE = 8
"""Failures of a prompt that may be its server's fault and do not count, at most; then they do."""


class Failures:
    """Takes troubles; ``try_due`` begins the trials that are due."""

    def __init__(
        self,
        floor: Floor,
        refusals: Refusals,
        overload: Overload,
        crashes: Crashes,
        try_due: Callable[[], None],
    ) -> None:
        self._floor = floor
        self._overload = overload
        self._refusals = refusals
        self._crashes = crashes
        self._try_due = try_due

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
        job.waits += cause == "busy"
        floor.accounts.retries[cause] += 1
        if trouble.partial is not None and not floor.elsewhere(job):
            floor.keeper.keep(server, job, trouble.partial)
        if cause in ("rejected", "denied"):
            server.sign_at = at
            if base is not None and cause == "rejected":
                floor.keeper.lose(job, server)
                floor.again(job, at)
            else:
                self._refusals.refused(server, job, trouble, at)
            return
        server.problem = trouble.text
        job.avoid = server
        gone = cause in ("refused", "reset", "timeout")
        server.breaker.failed(at, gone=gone)
        if gone:
            self._try_due()  # at once: whether it died is seen only until it is back
        if cause == "refused":
            self._crashes.lost(server)
        if cause == "busy":
            self._overload.told(server, job, trouble, at)
            return
        if cause == "refused" or (cause == "reset" and server.dispatch != "run"):
            floor.again(job, at)
            return
        if cause == "reset":
            server.crashed.append(job)
            if alone:
                floor.suspects[job] = server  # until a trial shows whether the server died of it
                return
        if (gone or server.breaker.is_open) and job.free < FREE:
            job.free += cause != "reset"  # that is seen once it is known whether the server died
            floor.again(job, at, wait=not gone)
            return
        job.attempts += 1
        if base is not None and trouble.partial is None:
            floor.keeper.lose(job, server)  # it may be the cause
        if job.attempts > floor.settings.retries:
            floor.give_up(job, server, "failed", trouble.text, trouble.status)
        else:
            floor.again(job, at, wait=True)
