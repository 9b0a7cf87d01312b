"""Prompts that are told to come back later (429, 409, 503 …), again and again.

A server that has too much to do says so to whoever comes, and nothing of that is charged to a
prompt. But a gateway may answer one prompt so for ever: its own limit, a conflict, a rule. The two
are told apart by asking: a prompt of this run that was answered before is sent to the same server,
for a few tokens. Only where that one is answered does the refusal count, and where it is refused,
too, all that was counted before is void.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from remote.generate import requests
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.prompts import Prompts, PromptsError, decode
from remote.generate.recovery import DONE
from remote.generate.server import Server
from remote.generate.trouble import TroubleError

TIMES = 10
"""Refusals that count, after which a prompt is given up: a server that refuses half of all that
comes would have to fall on the same prompt ten times in a row, and on no witness."""
WITNESS_S = 20.0
"""How long a witness may take; one that takes longer says nothing."""


class Overload:
    """Counts what each server told each prompt; ``status`` says which prompts are done."""

    def __init__(self, floor: Floor, prompts: Prompts, status: bytearray) -> None:
        self._floor = floor
        self._prompts = prompts
        self._status = status

    def told(self, server: Server, job: Job, trouble: TroubleError, at: float) -> None:
        """A server told this prompt to come back later."""
        floor = self._floor
        counts = job.crowded_out or {}
        if job.waits > 1 and trouble.status is not None:  # a server's own word
            server.unsure[job] = None
        if not counts:  # else it was seen to take others
            server.refused_work(at, trouble.after)
        everyone = all(one.key in counts for one in floor.servers.values() if one.usable)
        if sum(counts.values()) >= TIMES and everyone and not floor.elsewhere(job):
            job.attempts += sum(counts.values())
            reason = f"{trouble.text} (told so each time, while other prompts were answered)"
            floor.give_up(job, server, "failed", reason, trouble.status)
        else:
            floor.again(job, at, wait=True, after=trouble.after)

    def check(self) -> None:
        """Once a second: have servers asked that told a prompt to come back more than once."""
        for server in self._floor.servers.values():
            if not server.usable:
                server.unsure.clear()
            elif server.unsure and not server.witnessing and self._floor.may_send:
                server.witnessing = True
                self._floor.spawn(self._ask(server, list(server.unsure)))
                server.unsure.clear()

    async def _ask(self, server: Server, jobs: list[Job]) -> None:
        """Whether the server takes another prompt now: that speaks against these."""
        key = server.key
        try:
            body = self._witness(server, jobs)
            if body is None:
                return
            async with asyncio.timeout(WITNESS_S):
                await self._floor.client.chat(server.url, body)
        except TroubleError as trouble:
            if trouble.cause == "busy":
                for job in jobs:
                    job.crowded_out = None
        except (TimeoutError, PromptsError, OSError, ValueError):
            pass
        else:
            server.sign_at = time.monotonic()
            server.breaker.succeeded()
            for job in jobs:
                if job.waits and key == server.key:
                    job.refuse_for_now(key)
        finally:
            server.witnessing = False

    def _witness(self, server: Server, jobs: list[Job]) -> dict[str, object] | None:
        """A few tokens of a prompt that was answered before; None where there is none yet."""
        start = random.randrange(len(self._status))
        index = self._status.find(DONE, start)
        if index < 0:
            index = self._status.find(DONE)
        if index < 0:
            return None
        line = self._prompts.line(index)
        witness = Job(index, line, decode(line))
        body = requests.chat_body(self._floor.settings, server, witness, self._floor.session)
        requests.shorten(body)
        if "rid" in body:
            body["rid"] = f"{self._floor.session}-check-{secrets.token_hex(4)}"
        return body
