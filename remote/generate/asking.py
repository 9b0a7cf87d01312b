"""One request for a prompt: what is sent, in which way, and with how much room for the answer."""

from __future__ import annotations

from typing import Any

from remote.generate import context, requests
from remote.generate.floor import Floor
from remote.generate.job import Job
from remote.generate.outcomes import Answer
from remote.generate.partial import Partial
from remote.generate.server import Server
from remote.generate.trouble import TroubleError, hopeless, too_long


class Asking:
    """Sends, and foresees what a server would refuse as too long."""

    def __init__(self, floor: Floor, fit: context.Fit) -> None:
        self._floor = floor
        self._fit = fit

    async def answer(self, server: Server, job: Job, base: Partial | None) -> Answer:
        """The whole answer, going on from ``base``.

        :raises TroubleError: there is none.
        """
        floor = self._floor
        try:
            body = requests.chat_body(floor.settings, server, job, floor.session)
        except ValueError as error:
            raise hopeless(str(error)) from None
        if base is None and floor.settings.endpoint == "chat":
            await self._make_room(server, job, body)
            if server.breaks_off:
                raise TroubleError("abort", "not sent: the server is to be emptied")
            return await floor.client.chat(server.url, body)
        if job.rooms and server.key in job.rooms:
            requests.narrow(body, job.rooms[server.key])
        return await floor.native.answer(server, body, base)

    async def _make_room(self, server: Server, job: Job, body: dict[str, Any]) -> None:
        """Ask for a shorter answer where the server would refuse a long one.

        :raises TroubleError: there is no room for any.
        """
        if server.context is None:
            return
        if job.rooms and server.key in job.rooms:
            requests.narrow(body, job.rooms[server.key])
            return
        wanted = requests.wanted(body)
        if job.talk is not None or self._fit.surely(len(job.line), wanted or 0, server.context):
            return
        tokens = await self._floor.client.count_tokens(server.url, server.engine, body)
        if tokens is None:
            return
        room = context.room(tokens, server.context)
        if room < 1:
            raise too_long(tokens, server.context)
        if wanted is not None and room < wanted:
            job.narrow(server.key, room)
            requests.narrow(body, room)
