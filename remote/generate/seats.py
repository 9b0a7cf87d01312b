"""Who gets what: every server's slots full, every prompt once."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.partial import Partial
from remote.generate.prompts import Prompts, PromptsError
from remote.generate.server import Server
from remote.generate.work import check_line

STRAGGLER = 1.5
"""An answer that takes so many times the mean is sent to a second server at the end."""
WITNESSES = 8
"""Prompts that were in flight when a server died that are sent to one server at once."""

Ask: TypeAlias = Callable[[Server, Job, "Partial | None"], Coroutine[Any, Any, None]]


class Seats:
    """Fills slots from the queue; ``ask`` is one request from its sending to its end."""

    def __init__(
        self, floor: Floor, prompts: Prompts, ask: Ask, *, broken: Callable[[str], None]
    ) -> None:
        self._floor = floor
        self._prompts = prompts
        self._ask = ask
        self._broken = broken

    def pump(self) -> None:
        """Fill every slot that may be filled."""
        floor = self._floor
        if not floor.may_send:
            return
        at = time.monotonic()
        servers = floor.servers.values()
        if floor.work.lonely or any(server.guest for server in servers):
            self._seat_guests(at)
        free = [server for server in servers if server.room(at) > 0]
        left = floor.most - floor.in_flight
        while free and left > 0:
            server = min(free, key=_fullness) if len(free) > 1 else free[0]
            job = floor.work.take(at, functools.partial(self._fits, server, at))
            if job is None:
                free.remove(server)
                continue
            if job.sends == 0 and job.talk is None and (why := check_line(job.line)):
                floor.give_up(job, server, "rejected", why, None)
                continue
            self.send(server, job, at)
            left -= 1
            if server.room(at) <= 0:
                free.remove(server)
        self._read_ahead()
        if floor.settings.hedge and floor.work.idle and not floor.suspects:
            self.hedge(at)

    def send(self, server: Server, job: Job, at: float) -> None:
        """Have one request in flight."""
        floor = self._floor
        if not server.flying:
            server.sign_at = at
        if job.partial is not None and not server.goes_on(job):
            floor.keeper.lose(job, server)
        job.sends += 1
        job.sent_at = at
        server.flying[job] = floor.spawn(self._ask(server, job, job.partial))

    def hedge(self, at: float) -> None:
        """Nothing is left to send: stragglers get a second server; the first answer counts."""
        floor = self._floor
        for server in floor.servers.values():
            late = [
                job
                for job in server.flying
                if not (job.hedged or job.alone)
                and at - job.sent_at > STRAGGLER * floor.mean_latency > 0
            ]
            for job in sorted(late, key=lambda job: job.sent_at):
                others = [
                    o
                    for o in floor.servers.values()
                    if o is not server
                    and o.room(at) > 0
                    and (job.partial is None or o.goes_on(job))
                ]
                if not others:
                    return
                job.hedged = True
                began = job.sent_at
                self.send(min(others, key=_fullness), job, at)
                job.sent_at = began
                floor.accounts.retries["hedged"] += 1

    def _fits(self, server: Server, at: float, job: Job) -> bool:
        """Whether a job that was sent before may be this server's now.

        Not where another one could go on with it, or has not refused it, nor, after a failure
        here, where another one has room for it at this moment.
        """
        others = [o for o in self._floor.servers.values() if o is not server and o.usable]
        if job.partial is not None and not server.goes_on(job):
            able = any(o.goes_on(job) for o in others)
        elif job.refused and server.key in job.refused:
            able = any(o.key not in job.refused for o in others)
        elif job.crowded_out and server.key in job.crowded_out:
            able = any(o.room(at) > 0 and o.key not in job.crowded_out for o in others)
        else:
            able = job.avoid is server and any(o.room(at) > 0 for o in others)
        return not able and not (job.witness and self._crowded(server))

    def _crowded(self, server: Server) -> bool:
        """Whether so many are there already that saw a server die that, if this one dies of one
        of them, the others would be under suspicion in vain. The last prompts can't wait."""
        return self._floor.work.fresh and sum(job.witness for job in server.flying) >= WITNESSES

    def _seat_guests(self, at: float) -> None:
        """A suspect waits until one server is empty, and then has it to itself.

        While there is other work only one does. Later as many as there are empty servers, except
        where a death of a suspect's server is to be told from others that came with it.
        """
        floor = self._floor
        servers = floor.servers.values()
        for server in servers:
            guest = server.guest
            if guest is not None and not server.usable and guest not in server.flying:
                server.guest = None
                floor.work.lonely.appendleft(guest)
        able = sorted(
            (server for server in servers if server.room(at) > 0),
            key=lambda server: len(server.flying),
        )
        for server in able:
            guests = [server.guest for server in servers if server.guest is not None]
            if guests and (server.flying or floor.work.others or any(map(_by_itself, guests))):
                break
            server.guest = self._next_guest(first=not guests)
        for server in servers:
            if server.guest is not None and server.usable and not server.flying:
                self.send(server, server.guest, at)

    def _next_guest(self, *, first: bool) -> Job | None:
        """The suspect that waits longest; ``first``: there is no other one on any server."""
        lonely = self._floor.work.lonely
        for job in lonely:
            if first or not _by_itself(job):
                lonely.remove(job)
                return job
        return None

    def _read_ahead(self) -> None:
        work = self._floor.work
        if not work.reading:
            slots = sum(server.slots for server in self._floor.servers.values())
            ahead = max(64, min(slots, self._floor.most))
            if indices := work.wanted(ahead):
                work.reading = True
                self._floor.spawn(self._read(indices))

    async def _read(self, indices: list[int]) -> None:
        work = self._floor.work
        try:
            work.feed(await asyncio.to_thread(self._prompts.lines, indices))
        except (PromptsError, OSError) as error:
            self._broken(str(error))
        finally:
            work.reading = False
        self.pump()
        self._floor.changed()


def _by_itself(suspect: Job) -> bool:
    """Whether its server died at about the same time as others: no other suspect is sent now."""
    return suspect.lone_deaths > 0


def _fullness(server: Server) -> float:
    return len(server.flying) / server.slots
