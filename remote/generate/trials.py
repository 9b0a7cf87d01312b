"""Whether servers work: one short completion before the first prompt, samples of their numbers.

A trial also finds out what a server is: engine, model, context, and what its answers depend on.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remote.generate import requests, sampling
from remote.generate.client import Client
from remote.generate.native import Native
from remote.generate.server import Server
from remote.generate.settings import Settings
from remote.generate.trouble import TroubleError

CHECK_S = 20.0
"""How long a trial completion may take."""
LOOK_S = 0.5
"""How often it is seen whether a degenerate server is being restarted."""
FED_S = 15.0
"""Readings this old still mean that the agent polls the servers."""


class Trials:
    """Opens and closes the servers' breakers; ``lost``, ``works`` and ``fails`` hear of it."""

    def __init__(
        self,
        settings: Settings,
        params: dict[str, Any],
        client: Client,
        native: Native,
        servers: dict[str, Server],
        session: str,
        *,
        spawn: Callable[[Any], asyncio.Task[None]],
        learned: Callable[[], None],
        lost: Callable[[Server], None],
        works: Callable[[Server], None],
        fails: Callable[[Server], None],
        pump: Callable[[], None],
    ) -> None:
        self._settings, self._params = settings, params
        self._client, self._native = client, native
        self._servers, self._session = servers, session
        self._spawn, self._learned = spawn, learned
        self._lost, self._works, self._fails, self._pump = lost, works, fails, pump
        self.read_at = 0.0
        """When the agent's last reading came."""

    @property
    def fed(self) -> bool:
        """Readings come from the agent, so that nobody polls twice."""
        return self.read_at > 0 and time.monotonic() - self.read_at < FED_S

    async def try_out(self, server: Server) -> None:
        """One short real completion; if it is answered the server gets work.

        None where the agent has just had one of this very process.
        """
        breaker = server.breaker
        breaker.trying = True
        vouched, server.vouched = server.vouched, False
        try:
            async with asyncio.timeout(CHECK_S):
                identity = await self._client.identify(server.url)
                if identity.model:
                    server.engine, server.model = identity.engine, identity.model
                    server.context = identity.context
                self._same_model(server)
                await self._know(server)
                if not self.fed:
                    await self.sample(server)
                if not vouched:
                    rid = f"{self._session}-check-{secrets.token_hex(4)}"
                    await self._client.chat(
                        server.url, requests.check_body(self._settings, server, rid)
                    )
        except (TroubleError, TimeoutError) as error:
            if isinstance(error, TroubleError):
                server.problem = error.text
                if error.cause == "refused":
                    self._lost(server)
            else:
                server.problem = f"no answer to a short completion within {CHECK_S:.0f} s"
            breaker.trial_failed(time.monotonic())
            if isinstance(error, TroubleError) and error.cause == "reset":
                breaker.retry_at = time.monotonic()  # a connection of before its death
            self._fails(server)
        else:
            server.problem = ""
            server.sign_at = time.monotonic()
            breaker.close(server.sign_at)
            self._works(server)
        finally:
            breaker.trying = False
        self._pump()

    def try_due(self) -> None:
        """Begin the trials whose time has come."""
        at = time.monotonic()
        for server in self._servers.values():
            if server.stopped and not self._settings.agent and at >= server.looked_at + LOOK_S:
                server.looked_at = at + CHECK_S  # until this look is over
                self._spawn(self._still_there(server))
            if server.stopped and at >= server.stopped_until:
                server.new_process(server.process)
                server.breaker.open(at)
            breaker = server.breaker
            due = breaker.is_open and not breaker.trying and at >= breaker.retry_at
            if due and server.dispatch == "run" and not server.stopped:
                breaker.trying = True
                self._spawn(self.try_out(server))

    async def _know(self, server: Server) -> None:
        """Ask what its answers depend on, so that interrupted ones can be continued."""
        if server.engine == "sglang":
            for _ in range(2):  # a busy scheduler may not answer in time
                server.facts = await self._native.facts(server.url, self._asked())
                if server.facts is not None:
                    break
            try:
                sampling.check_request(self._settings.request)
            except sampling.SamplingError as error:
                if server.facts is not None:
                    server.facts = replace(server.facts, why_not=str(error))
        if self._settings.endpoint == "generate":
            if server.facts is None:
                raise TroubleError(
                    "denied",
                    'endpoint "generate" needs SGLang with /server_info and /tokenize (0.5.12 or '
                    'later), which this is not: use endpoint "chat"',
                )
            if server.facts.why_not:
                raise TroubleError("denied", f'{server.facts.why_not}; or use endpoint "chat"')
            await self._native.check(server.url)

    def _asked(self) -> dict[str, Any]:
        """What every answer is asked with, as far as it shapes what is sampled."""
        settings = self._settings
        return {
            **({} if settings.thinking else {"thinking": False}),
            **({} if settings.temperature is None else {"temperature": settings.temperature}),
            **settings.request,
        }

    def _same_model(self, server: Server) -> None:
        """All answers of a run come from one model."""
        params, settings = self._params, self._settings
        if not params.get("model") and server.model:
            params["model"] = server.model
            self._learned()
        other = server.model and params.get("model") not in ("", server.model)
        if other and not (settings.model or settings.accept_params):
            raise TroubleError(
                "denied",
                f"serves {server.model}, but this run is of {params['model']}: restart it with "
                "that model, or add --accept-params",
            )

    async def sample(self, server: Server) -> None:
        """Ask a server how it is."""
        with contextlib.suppress(TroubleError):
            sample = await self._client.sample(server.url, server.engine)
            server.heard(
                time.monotonic(),
                running=sample.running,
                queued=sample.queued,
                max_running=sample.max_running,
                tokens=sample.tokens,
            )

    def sample_all(self) -> None:
        """Where no agent does it."""
        if self.fed:
            return
        for server in self._servers.values():
            if server.engine and not (server.breaker.is_open or server.stopped):
                self._spawn(self.sample(server))

    async def _still_there(self, server: Server) -> None:
        """A degenerate server gets no requests that could show that it was restarted."""
        try:
            await self._client.identify(server.url)
        except TroubleError as trouble:
            if trouble.cause == "refused":
                server.breaker.open(time.monotonic())
                self._lost(server)
        server.looked_at = time.monotonic()
