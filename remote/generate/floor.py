"""What all parts of the dispatcher share: the servers, the queue, and the moves between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remote.generate import requests
from remote.generate.accounts import Accounts
from remote.generate.client import Client
from remote.generate.job import Job
from remote.generate.keeper import Keeper
from remote.generate.native import Native
from remote.generate.outbox import Outbox
from remote.generate.records import Outcome
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.work import Work

BACKLOG = 64 << 20
"""Bytes of finished answers not yet on disk beyond which no new prompt is sent."""


@dataclass(eq=False)
class Floor:
    """All of the dispatcher's state; every part of it works on this one."""

    settings: Settings
    session: str
    """Begins every request id, so that a killed run's requests are not in the way."""
    servers: dict[str, Server]
    work: Work
    client: Client
    native: Native
    outbox: Outbox
    accounts: Accounts
    keeper: Keeper
    spawn: Callable[[Any], asyncio.Task[None]]
    changed: Callable[[], None]
    say: Callable[[str], None]
    sending: bool = False
    """New requests may be sent (not before the start, not while paused or leaving)."""
    most: int = 1 << 16
    """Requests that may be open at once on all servers together."""
    mean_latency: float = 0.0
    """Of the answers so far, the latest ones most, s."""
    suspects: dict[Job, Server] = field(default_factory=dict)
    """Prompts that a server had to itself and may have died of, each with that server: neither
    queued nor in flight."""

    @property
    def idle(self) -> bool:
        """Nothing to send now or later, nothing in flight, nothing that waits for a verdict."""
        if not self.work.idle or self.suspects or self.in_flight:
            return False
        return not any(server.guest or server.doubted for server in self.servers.values())

    @property
    def in_flight(self) -> int:
        """Requests that are open, or whose partial answer is not durable yet."""
        return sum(server.in_flight for server in self.servers.values())

    @property
    def suspected(self) -> int:
        """Prompts under suspicion of killing servers: waiting, tried, or waiting for a verdict."""
        held = {server.guest for server in self.servers.values() if server.guest is not None}
        return len({job for job in self.work.jobs() if job.alone} | held | self.suspects.keys())

    @property
    def may_send(self) -> bool:
        """Whether a request may go out at all: by order, and by the state of the disk."""
        writer = self.outbox.writer
        return self.sending and not writer.stuck and writer.backlog <= BACKLOG

    def again(self, job: Job, at: float, *, wait: bool = False, after: float | None = None) -> None:
        """Back into the queue, unless another server is at it as well."""
        if not self.elsewhere(job):
            self.work.again(job, at, wait=wait, after=after)

    def elsewhere(self, job: Job) -> bool:
        """Whether a server is at it."""
        return any(job in server.flying for server in self.servers.values())

    def landed(self, server: Server, job: Job) -> bool:
        """Take the job of this task out of the air; False where it was taken back meanwhile."""
        if server.flying.get(job) is not asyncio.current_task():
            return False
        del server.flying[job]
        if server.guest is job:
            server.guest = None
        return True

    def withdraw(self, job: Job) -> None:
        """Where it is still in flight, its answer is no longer wanted."""
        for server in self.servers.values():
            if (task := server.flying.pop(job, None)) is not None:
                task.cancel()
                if server.guest is job:
                    server.guest = None

    def recall(self, server: Server) -> None:
        """Take back what is in flight; none of it counts as an attempt.

        The jobs are queued again here and not by their tasks, since a task that is cancelled
        before its first step never runs.
        """
        at = time.monotonic()
        flying, server.flying = server.flying, {}
        if server.guest is not None and server.guest not in flying:
            self.work.lonely.appendleft(server.guest)
        server.guest = None
        for job, task in flying.items():
            job.avoid = server
            self.again(job, at)
            task.cancel()

    def give_up(
        self, job: Job, server: Server, outcome: Outcome, reason: str, status: int | None
    ) -> None:
        """For good: an answer that is still under way elsewhere comes too late."""
        self.withdraw(job)
        self.keeper.count_lost(job.partial, None)
        if text := self.accounts.reasons.note(job.index, outcome, reason):
            self.say(text)
        self.outbox.put(requests.given_up(job, server.url, outcome, reason, status))
