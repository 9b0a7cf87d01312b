"""Reading requests and writing answers the way FastAPI and SGLang's handlers do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from console.lab.sim import log
from console.lab.sim.core import RefusedError

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(value: Any, status: int = 200) -> web.Response:
    """A JSON answer, with the bare content type that the real server sends."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error(message: str, status: int = 400, kind: str = "BadRequestError") -> web.Response:
    """An error of the OpenAI endpoints: flat, not below a key ``error``."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return reply(body, status)


async def read(request: web.Request, line: int, name: str) -> dict[str, Any]:
    """The JSON object of a request; raises :class:`RefusedError` as FastAPI would."""
    data = await request.read()
    where = (
        f'  File "site-packages/sglang/srt/entrypoints/http_server.py", line {line}, in '
        f"{name}\n    {request.method} {request.path} "
    )
    kind = request.content_type
    if kind != "application/json":
        problem = (
            "[{'type': 'value_error', 'loc': ('header', 'content-type'), "
            "'msg': \"Unsupported Media Type: Only 'application/json' is allowed\"}]"
        )
        raise RefusedError(
            f"1 validation error:\n  {problem[1:-1]}\n\n{where}{problem}", 400, "Bad Request"
        )
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as exc:
        problem = (
            "[{'type': 'json_invalid', 'loc': ('body', 1), 'msg': 'JSON decode error', "
            f"'input': {{}}, 'ctx': {{'error': {str(exc)!r}}}}}]"
        )
        raise RefusedError(
            f"1 validation error:\n  {problem[1:-1]}\n\n{where}{problem}", 400, "Bad Request"
        ) from None
    if not isinstance(body, dict):
        raise RefusedError(field("model_attributes_type", "body", body), 400, "Bad Request")
    return body


def field(kind: str, name: str, got: Any) -> str:
    """The text of a validation error about one field of the body."""
    said = {"missing": "Field required", "list_type": "Input should be a valid list"}
    problem = (
        f"{{'type': '{kind}', 'loc': ('body', '{name}'), "
        f"'msg': '{said.get(kind, 'Input should be a valid dictionary')}', 'input': {got!r}}}"
    )
    return f"1 validation error:\n  {problem}\n"


def deprecated(old: str, new: str) -> None:
    """Log that an old path was called."""
    log.say(
        f"Endpoint '{old}' is deprecated and will be removed in a future version. "
        f"Please use '{new}' instead."
    )
