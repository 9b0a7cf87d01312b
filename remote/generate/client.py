"""Requests to OpenAI-compatible servers.

httpx is the interface; under it stands aiohttp's connection pool (httpx-aiohttp), because
httpcore's pool looks at every connection for every request (encode/httpcore#1035), which at 512
in flight costs more than everything else together. Requests are not streamed. Connections are
kept for less than the five seconds after which SGLang closes them (``SGLANG_TIMEOUT_KEEP_ALIVE``
in its ``entrypoints/http_server.py``); where a kept one dies all the same before anything was
answered, the request is sent once more without a word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport
from msgspec import Raw, Struct

from remote.generate.outcomes import Answer
from remote.generate.records import encode
from remote.generate.replies import read_answer, refusal
from remote.generate.trouble import UNREADABLE, TroubleError, hopeless
from remote.sglang import loads, metrics

_TEMPLATE = "model messages tools tool_choice chat_template_kwargs reasoning_effort".split()
"""Fields of a chat request that its prompt is rendered from."""
KEEP_ALIVE_S = 3.0
_AGAIN_WITHIN_S = 2.0
"""A kept connection that the server had closed shows itself at once."""


class Sample(Struct):
    """What a poll of one server said; None where it has no such number."""

    running: int | None = None
    queued: int | None = None
    max_running: int | None = None
    tokens: int | None = None
    """A number that moves while tokens are produced."""


class Identity(Struct):
    """What ``/v1/models`` says."""

    engine: str = ""
    """``sglang``, ``vllm`` or whatever owns the model."""
    model: str = ""
    context: int | None = None
    """Longest prompt and answer together, tokens."""


class _Model(Struct):
    id: str = ""
    owned_by: str = ""
    max_model_len: int | None = None


class _Count(Struct):
    count: int | None = None


class _Models(Struct):
    data: list[_Model]


_kept: ContextVar[SimpleNamespace | None] = ContextVar("kept", default=None)


async def _on_reuse(*_: Any) -> None:
    if (box := _kept.get()) is not None:
        box.reused = True


class Client:
    """One connection pool for all servers.

    ``headers`` go with every request (API key). Silence is not judged here: a request waits
    until it is answered, its connection dies, or its task is cancelled.
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_on_reuse)

        def session() -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_ALIVE_S, enable_cleanup_closed=True
            )
            return aiohttp.ClientSession(
                connector=connector,
                trace_configs=[trace],
                read_bufsize=1 << 20,
                cookie_jar=aiohttp.DummyCookieJar(),
            )

        timeout = httpx.Timeout(None, connect=10.0, write=60.0)
        self._headers = httpx.Headers({"content-type": "application/json", **(headers or {})})
        # The session verifies certificates by itself; another context would load them in vain.
        self._transport = AiohttpTransport(client=session, verify=False)
        """Completions go straight to it: they have no use for cookies, redirects and log-ins,
        which cost httpx's client as much as the request itself."""
        self._timeouts = {"timeout": timeout.as_dict()}
        self._http = httpx.AsyncClient(
            transport=self._transport, timeout=timeout, headers=self._headers, trust_env=False
        )
        self._urls: dict[str, httpx.URL] = {}
        """Parsed once: httpx takes longer over a URL than over the request that it is for."""

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def chat(self, server: str, body: dict[str, Any]) -> Answer:
        """``POST /v1/chat/completions``, answered.

        :raises TroubleError: no answer, whatever the reason.
        """
        return read_answer(await self.post(f"{server}/v1/chat/completions", body))

    async def post(self, url: str, body: dict[str, Any]) -> bytes:
        """The body of the 200 that a POST is answered with.

        :raises TroubleError: no answer, or another status.
        """
        try:
            data = encode(body)
        except (TypeError, ValueError, OverflowError) as error:
            raise hopeless(f"cannot be sent as JSON: {error}") from None
        box = SimpleNamespace(reused=False)
        _kept.set(box)
        began = time.monotonic()
        try:
            response = await self._post(url, data)
        except TroubleError as trouble:
            early = time.monotonic() - began < _AGAIN_WITHIN_S
            if trouble.cause != "reset" or not box.reused or not early:
                raise
            try:
                response = await self._post(url, data)
            except TroubleError as again:
                # Nobody listens any more: it did break this request off by dying.
                raise trouble if again.cause == "refused" else again from None
        if response.status_code != 200:
            raise refusal(response.status_code, response.content, response.headers)
        return response.content

    async def _post(self, address: str, data: bytes) -> httpx.Response:
        url = self._urls.get(address)
        if url is None:
            url = self._urls[address] = httpx.URL(address)
        try:
            request = httpx.Request(
                "POST", url, headers=self._headers, content=data, extensions=self._timeouts
            )
            response = await self._transport.handle_async_request(request)
            try:
                await response.aread()
            except BaseException:
                await response.aclose()  # a connection with half an answer is of no more use
                raise
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise _transport(error) from error
        return response

    async def get(self, url: str, timeout: float) -> httpx.Response:
        """A small GET, whatever it answers.

        :raises TroubleError: nothing was answered in time.
        """
        try:
            return await self._http.get(url, timeout=timeout)
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise _transport(error) from error

    async def identify(self, server: str) -> Identity:
        """``/v1/models``, as far as the server has it."""
        response = await self.get(f"{server}/v1/models", 10.0)
        if response.status_code != 200:
            if response.status_code in (401, 403):
                raise refusal(response.status_code, response.content, response.headers)
            return Identity()
        try:
            models = msgspec.json.decode(response.content, type=_Models).data
        except UNREADABLE:
            return Identity()
        if not models:
            return Identity()
        return Identity(models[0].owned_by, models[0].id, models[0].max_model_len)

    async def sample(self, server: str, engine: str) -> Sample:
        """Ask a server how it is, by what its engine has; an empty sample where it has nothing."""
        if engine == "vllm":
            text = (await self.get(f"{server}/metrics", 3.0)).text
            samples = metrics.parse(text)

            def count(name: str) -> int | None:
                value = metrics.total(samples, name)
                return None if value is None else int(value)

            return Sample(
                running=count("vllm:num_requests_running"),
                queued=count("vllm:num_requests_waiting"),
                tokens=count("vllm:generation_tokens_total"),
            )
        if engine != "sglang":
            return Sample()
        response = await self.get(f"{server}/v1/loads?include=core", 3.0)
        if response.status_code != 200:
            return Sample()
        try:
            document = msgspec.json.decode(response.content)
        except UNREADABLE:
            return Sample()
        seen = loads.read_loads(document)
        if seen is None:
            return Sample()
        # Tokens held by running requests: grows by one a step and request, so that it moves
        # whenever the server works, also where it keeps no metrics.
        held = [rank.get("num_used_tokens") for rank in document["loads"]]
        used = sum(count for count in held if isinstance(count, int))
        return Sample(seen.running, seen.queued, seen.max_running, used)

    async def count_tokens(self, server: str, engine: str, body: dict[str, Any]) -> int | None:
        """Tokens of a chat request's prompt by the server's own tokenizer; None where it cannot
        say.

        The server applies its chat template; SGLang before 0.5.12 counts a plain text, so that
        the tokens of the template come on top.
        """
        if engine not in ("sglang", "vllm"):
            return None
        template = {name: body[name] for name in _TEMPLATE if body.get(name) is not None}
        count = await self._count(server, template)
        if count is None and engine == "sglang":
            messages = body["messages"]
            if isinstance(messages, Raw):
                messages = msgspec.json.decode(messages)
            texts = [str(message.get("content") or "") for message in messages]
            if (tools := template.get("tools")) is not None:
                texts.append(encode(tools).decode("utf-8", "replace"))
            plain = {"model": body.get("model"), "prompt": "\n".join(texts)}
            count = await self._count(server, plain)
        return count

    async def _count(self, server: str, body: dict[str, Any]) -> int | None:
        try:
            answer = await self._http.post(f"{server}/tokenize", content=encode(body), timeout=10)
            count = msgspec.json.decode(answer.content, type=_Count).count
        except (httpx.HTTPError, aiohttp.ClientError, OSError, *UNREADABLE):
            return None
        return count if answer.status_code == 200 else None

    async def abort(self, server: str, rid: str) -> None:
        """Have SGLang break off one request; it comes back with what it had.

        Only a whole id will do: of another one SGLang's front knows nothing, and its scheduler
        takes all requests whose ids begin with it (``managers/tokenizer_manager.py``).
        """
        try:
            await self._http.post(
                f"{server}/abort_request", content=encode({"rid": rid}), timeout=5.0
            )
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise _transport(error) from error


def _transport(error: BaseException) -> TroubleError:
    """What an exception below HTTP means. httpx-aiohttp maps several of aiohttp's to one of
    httpx's, so that the original one is looked at."""
    origin = error.__cause__ if isinstance(error.__cause__, Exception) else error
    text = str(origin) or type(origin).__name__
    if isinstance(origin, aiohttp.ClientConnectorError | httpx.ConnectError):
        return TroubleError("refused", f"cannot connect: {text}")
    if isinstance(origin, aiohttp.ConnectionTimeoutError | httpx.ConnectTimeout) and not isinstance(
        origin, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError
    ):
        return TroubleError("refused", "cannot connect: timed out")
    if isinstance(origin, TimeoutError | aiohttp.ServerTimeoutError | httpx.TimeoutException):
        return TroubleError("timeout", "timed out")
    return TroubleError("reset", f"connection lost: {text}")
