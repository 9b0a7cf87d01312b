"""One request for a prompt: what is sent, in which way, and with how much room for the answer."""

from __future__ import annotations

from remote.generate import context, requests
from remote.generate.client import TroubleError
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.outcomes import Answer
from remote.generate.partial import Partial
from remote.generate.server import Server


class Asking:
    """Sends, and foresees what a server would refuse as too long."""

    def __init__(self, floor: Floor, fit: context.Fit) -> None:
        self._floor = floor
        self._fit = fit

    async def answer(self, server: Server, job: Job, base: Partial | None) -> Answer | None:
        """The whole answer, going on from ``base``; None where the prompt was given up instead.

        :raises TroubleError: there is none.
        """
        floor = self._floor
        if base is None and floor.settings.endpoint == "chat":
            if await self._too_long(server, job):
                return None
            if server.breaks_off:
                raise TroubleError("abort", "not sent: the server is to be emptied")
            body = requests.chat_body(floor.settings, server, job, floor.session)
            return await floor.client.chat(server.url, body)
        body = requests.chat_body(floor.settings, server, job, floor.session)
        return await floor.native.answer(server, body, base)

    async def _too_long(self, server: Server, job: Job) -> bool:
        """Foresee what the server would refuse: less room for the answer, or none at all."""
        floor = self._floor
        wanted = job.prompt.max_tokens or floor.settings.max_tokens
        size = len(job.line)
        if server.context is None or self._fit.surely(size, wanted, server.context):
            return False
        if job.limit is not None or job.talk is not None:
            return False
        tokens = await floor.client.count_tokens(
            server.url, server.engine, server.model, job.prompt.messages, job.prompt.tools
        )
        if tokens is None:
            return False
        limit = context.room(tokens, server.context)
        if limit < 1:
            if floor.landed(server, job):
                why = f"its {tokens} tokens leave no room in a context of {server.context}"
                floor.give_up(job, server, "rejected", why, None)
            return True
        if limit < wanted:
            job.limit = limit
        return False
